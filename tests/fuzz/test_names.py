"""Names from settings and data: none leads out of a study's folder, none is more than one word of a command."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, put, tiny
from fuzz_readers import HOSTILE, inside
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clusterfl import registry
from clusterfl.cli.program import _parser
from clusterfl.config import loading
from clusterfl.config import text as yaml_text
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan

ALLOWED = string.ascii_letters + string.digits + "._-"
# Names that could be accepted, or differ from such in one place, and others.
NAMES = st.text(ALLOWED, min_size=1, max_size=81) | HOSTILE | st.text(max_size=9) | st.builds(
    "{}{}{}".format, st.text(ALLOWED, max_size=4), HOSTILE, st.text(ALLOWED, max_size=4)
)  # fmt: skip
PLACES = ("study", "federations", "warmups", "distances", "clusterings", "methods")
REFERENCES = {
    "warmups": [("distances", "*", "warmup")],
    "distances": [("clusterings", "*", "distance")],
    "clusterings": [("methods", "lcfl", "clustering")],
}


def named(kind: str, name: str) -> dict[str, Any]:
    """Return a sound study in which one name is another."""
    study = tiny()
    for extra in ("lcfl-diffnorm",):
        del study["methods"][extra], study["clusterings"][extra]
    del study["distances"]["diffnorm"], study["baseline"]
    if kind == "study":
        return study | {"study": name}
    old = {"federations": "digits", "warmups": "short", "distances": "loss", "clusterings": "lcfl", "methods": "ifca"}
    study[kind][name] = study[kind].pop(old[kind])
    for block, which, key in REFERENCES.get(kind, []):
        for part in study[block] if which == "*" else [which]:
            study[block][part][key] = name
    return study


@pytest.mark.parametrize("kind", PLACES)
@given(NAMES)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_name_is_refused_or_stays_inside_its_folder(kind: str, name: str) -> None:
    try:
        plan = Plan(loading.load(named(kind, name)))
    except UserError as error:
        assert kind in str(error)
        return
    assert set(name) <= set(ALLOWED) and name[0] not in ".-" and len(name) <= 80
    inside(plan)
    outputs = [path for job in plan.jobs() for path in job.outputs.values()]
    assert len(outputs) == len(set(outputs))
    for job in plan.jobs():
        assert shlex.split(job.command) == job.command.split()  # nothing had to be quoted


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "a b", "a/b", "a\nb", "a\n", "a\0", "$(touch x)", "<script>", "é", "a" * 81]
)
def test_a_hostile_name_is_refused(kind: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"(?s){kind}.*(a name has letters|at most 80 characters)"):
        loading.load(named(kind, name))


@pytest.mark.parametrize(
    "kind, name", [("federations", "plan.json"), ("federations", "LOGS"), ("federations", "settings.json"),
                   ("study", "claims.html"), ("study", "Tables"), ("study", "federations"),
                   ("study", "central.parquet"), ("study", "evidence.parquet"), ("study", "benchmark.html"),
                   ("study", "benchmark-growth.parquet"), ("study", "slurm-logs"), ("methods", "FedAvg"),
                   ("distances", "x.manifest"), ("clusterings", "x.scores")],
)  # fmt: skip
def test_a_name_that_another_file_has_is_refused(kind: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"{kind}.*choose another name"):
        loading.load(named(kind, name))


@given(st.dictionaries(st.sampled_from(["label", "client", "test", "group"]), HOSTILE | st.text(max_size=9)), HOSTILE)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_options_of_a_dataset_are_words_of_the_command(tmp_path_factory: Any, options: Any, name: str) -> None:
    """Snakemake's rule download pastes the arguments as they are, so they come quoted."""
    folder = tmp_path_factory.getbasetemp() / "data"
    folder.mkdir(exist_ok=True)
    kept = name.replace("/", "").replace("\0", "")[:60]
    path = folder / f"t{kept}.csv"
    try:
        path.write_text("a,label,client\n1,0,x\n")
    except (OSError, UnicodeEncodeError):
        assume(False)
    block = {"dataset": "table", "path": str(path)} | {"label": "label", "client": "client"} | options
    job = next(Plan(loading.load(put(tiny(), "federations.digits.dataset", block))).jobs())
    said = _parser().parse_args(shlex.split(job.command)[1:])
    assert said.command == "download" and said.name == "table"
    assert dict(said.option) == job.settings["given"] == {k: v for k, v in block.items() if k != "dataset"}
    inside(Plan(loading.load(put(tiny(), "federations.digits.dataset", block))))


# Of these the package makes the values: numbers, a digest, words that are quoted already.
MADE_HERE = {"{wildcards.seed}", "{params.digest}", "{params.trial}", "{params.dataset}", "{threads}"}


@pytest.mark.parametrize("path", sorted((ROOT / "workflow/rules").glob("*.smk")), ids=lambda path: path.name)
def test_rules_quote_what_they_paste(path: Path) -> None:
    commands = re.findall(r'shell:\s+"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
    assert len(commands) == path.read_text(encoding="utf-8").count("shell:")
    for field in itertools.chain.from_iterable(re.findall(r"\{[^{}]*\}", command) for command in commands):
        assert field.endswith(":q}") or field in MADE_HERE


@pytest.mark.parametrize("name", ["nan", "None", "NA", "null"])
def test_a_name_that_tables_would_lose_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"methods.{name}: programs that read tables take '{name}' as missing"):
        Plan.from_settings(put(tiny(), f"methods.{name}", {"method": "fedavg"}))


def test_only_three_programs_are_started_and_none_through_a_shell() -> None:
    """Python itself, SLURM's commands and djxl: each with a list of words."""
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src/clusterfl").rglob("*.py")}
    starting = [f"{p.name}: {m}" for p, text in sources.items() for m in re.findall(r"subprocess\.(?!run\b)\w+", text)]
    others = {s for s in starting if not s.endswith((".PIPE", ".DEVNULL", ".CalledProcessError", ".SubprocessError"))}
    assert others == {"forking.py: subprocess.Popen"}  # Python itself, which goes on beside
    banned = (
        r"shell=True|os\.system|os\.popen|pickle\.load\(|torch\.load|allow_pickle=True|yaml\.(unsafe_|full_)?load\("
    )
    found = {p.name for p, text in sources.items() if re.search(banned + r"|extractall|\bexec\(", text)}
    assert found == {"text.py", "registry.py"}  # yaml.load with loaders of their own, which are safe ones
    for source, loader in ((yaml_text, yaml_text._UniqueKeys), (registry, registry.OWN_READER)):
        assert Path(source.__file__).read_text(encoding="utf-8").count("yaml.load(") == 1
        assert loader.construct_object is yaml.SafeLoader.construct_object
        assert loader.yaml_constructors.keys() == yaml.SafeLoader.yaml_constructors.keys()  # no tag that makes objects
        assert not issubclass(loader, yaml.constructor.FullConstructor)


def test_verify_takes_no_folder_beside_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterfl.pipeline.verify.study import named as of_name

    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "settings.json").write_text("{}")
    for name in ("..", ".", "../x", os.fspath(tmp_path)):
        with pytest.raises(UserError, match="no study"):
            of_name(name)


@pytest.mark.parametrize("page", ["trust.md", "reliability.md"])
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named_ = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named_) > 20
    for file, function in named_:
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), function
