"""A finished study as an RO-Crate: what it holds, by hand, and what the profiles' validator says of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from conftest import undrawn, write_yaml

from clusterfl.cli.program import main
from clusterfl.errors import UserError
from clusterfl.pipeline import crate
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.running import run

VALIDATE = Path(__file__).parent / "ro-crate" / "validate.py"
STUDY = {
    "study": "handed-on",
    "seeds": {"runs": [0]},
    "engine": {"device": "cpu"},
    "model": {"model": "linear"},
    "training": {"rounds": 2, "evaluate_every": 2},
    "federations": {"f": {"dataset": "digits", "partition": {"scheme": "rotated", "clients": 8}}},
    "methods": {"fedavg": {"method": "fedavg"}, "ifca": {"method": "ifca", "clusters": 4}},
}
WHO = ["--author", "Ada Lovelace", "--orcid", "0000-0002-1825-0097", "--affiliation", "University of London"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two methods, and its crate in out/."""
    folder, before = tmp_path_factory.mktemp("crate"), Path.cwd()
    os.chdir(folder)
    plan = Plan.from_files([write_yaml(Path("config.yaml"), STUDY)])
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        assert run(plan, None, "clusterfl run", lambda work: work(), 1, 1) == 0
    assert main(["crate", "handed-on", "--to", "out", "--license", "CC-BY-4.0", *WHO]) == 0
    os.chdir(before)
    return folder


def graph(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entities of the crate in a folder by their names."""
    found = json.loads((folder / "ro-crate-metadata.json").read_text(encoding="utf-8"))["@graph"]
    assert len({entity["@id"] for entity in found}) == len(found)
    return {entity["@id"]: entity for entity in found}


def many(value: Any) -> list[str]:
    """Return the names that a value refers to."""
    return [one["@id"] for one in (value if isinstance(value, list) else [value])]


def test_every_job_is_an_action_with_what_it_used_and_made(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(done)
    entities = graph(done / "out")
    actions = {e["name"]: e for e in entities.values() if e["@type"] == "CreateAction"}
    jobs = [str(job) for job in Plan.from_files([Path("config.yaml")]).jobs()]
    assert sorted(actions) == sorted([*jobs, "Run of study handed-on"])
    ifca = actions["federate ifca f seed 0"]
    place = "results/handed-on/f/seed0"
    assert set(many(ifca["object"])) == {f"{place}/partition.parquet", "#data/digits/samples.safetensors"}
    made = {f"{place}/methods/ifca/{name}.parquet" for name in ("history", "rounds", "clusters", "classes")}
    assert set(many(ifca["result"])) == made | {f"#{place}/methods/ifca/models.safetensors"}
    assert entities[many(ifca["agent"])[0]]["name"] == "Ada Lovelace"
    assert ifca["startTime"] <= ifca["endTime"]


def test_the_run_goes_from_settings_and_data_to_the_report(done: Path) -> None:
    entities = graph(done / "out")
    action = entities["#run"]
    assert many(action["instrument"]) == ["workflow/Snakefile"] == many(entities["./"]["mainEntity"])
    assert many(action["object"]) == ["results/handed-on/settings.json", "#data/digits/samples.safetensors"]
    assert "results/handed-on/report.html" in many(action["result"])
    assert many(entities["./"]["license"]) == ["https://spdx.org/licenses/CC-BY-4.0"]


@pytest.fixture
def copied(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project in which the study was run, to be changed; the working folder."""
    for part in ("data", "results"):
        shutil.copytree(done / part, tmp_path / part)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_there_with_the_digests_that_are_named_and_models_are_not(done: Path) -> None:
    entities = graph(done / "out")
    files = {place: entity for place, entity in entities.items() if "sha256" in entity}
    assert len(files) > 20
    for place, entity in files.items():
        copied = done / "out" / place
        where = done / place.removeprefix("#") if place.startswith("#") else copied
        assert hashlib.sha256(where.read_bytes()).hexdigest() == entity["sha256"], place
        assert place.startswith("#") == (where.suffix == ".safetensors"), place
    assert not list((done / "out").rglob("*.safetensors"))
    assert (done / "out/README.md").read_text(encoding="utf-8").count("results/handed-on/") >= 4


def test_the_copied_settings_run_the_study_again(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's last line, up to the settings' digests, which are those of the jobs that were run."""
    shutil.copytree(done / "out", tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    again = Plan.from_files([Path("results/handed-on/settings.json")])
    monkeypatch.chdir(done)
    before = Plan.from_files([Path("config.yaml")])
    assert {str(job): job.settings_digest for job in again.jobs()} == {
        str(job): job.settings_digest for job in before.jobs()
    }


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        (
            "f/seed0/methods/ifca/history.parquet",
            lambda read: read[:-9] + b"!" + read[-8:],
            "history.parquet is damaged",
        ),
        ("tables/scores.csv", lambda read: read.replace(b"0.", b"0.9", 1), "scores.csv is damaged: sha256"),
        (
            "settings.json",
            lambda read: read.replace(b'"rounds": 2', b'"rounds": 3'),
            "was made with other settings than",
        ),
    ],
)
@pytest.mark.usefixtures("copied")
def test_results_that_were_changed_are_not_handed_on(
    name: str, harm: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("results/handed-on") / name
    read = path.read_bytes()
    path.write_bytes(harm(read))
    assert path.read_bytes() != read
    assert main(["crate", "handed-on", *WHO, "--license", "MIT"]) == 2
    found = capsys.readouterr().err
    assert said in found and "`clusterfl verify handed-on` lists all that is wrong" in found
    assert not Path("crates").exists()


@pytest.mark.usefixtures("copied")
def test_results_that_were_made_again_are_not_handed_on_with_what_was_made_from_the_earlier_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Path("results/handed-on/f/seed0/partition.manifest.json")
    manifest = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps(manifest | {"names": {"clients": ["a"]}}), encoding="utf-8")
    assert main(["crate", "handed-on", *WHO, "--license", "MIT"]) == 2
    assert (
        "was made from another results/handed-on/f/seed0/partition.parquet than is there now" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--author", "A"], "--license is missing"),
        (["--license", "MIT"], "--author is missing"),
        (["--license", "CC BY", "--author", "A"], "found 'CC BY'; allowed: an SPDX identifier"),
        (["--license", "MIT", "--author", "A", "--orcid", "12"], "--orcid: found '12'; allowed: 0000-0000-0000-0000"),
        (
            ["--license", "MIT", "--author", "A", "--orcid", "0000-0002-1825-0079"],
            "found '0000-0002-1825-0079', in which the last character, which checks the others, doesn't fit them",
        ),
        (["--license", "MIT", "--author", "A", "--to", "out"], "out already exists; choose another folder"),
    ],
)
def test_what_is_refused(
    done: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(done)
    assert main(["crate", "handed-on", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_study_that_is_not_finished_is_refused(copied: Path) -> None:
    (copied / "results/handed-on/f/seed0/methods/ifca/manifest.json").unlink()
    plan = Plan.from_files([Path("results/handed-on/settings.json")])
    with pytest.raises(
        UserError, match=r"1 of 5 results of study 'handed-on' are missing, e.g. .*ifca.*complete it first"
    ):
        crate.write(plan, copied / "out", "MIT", crate.author("A"))
    assert not (copied / "out").exists()


@pytest.mark.usefixtures("copied")
def test_a_job_of_which_nobody_knows_when_it_ran_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("results/handed-on/f/seed0/methods/ifca/timing.parquet").unlink()
    assert main(["crate", "handed-on", "--to", "new", "--license", "MIT", "--author", "A"]) == 2
    said = capsys.readouterr().err
    assert "methods/ifca/timing.parquet is missing, but a crate needs each job's times; make the result again" in said


@pytest.mark.slow
def test_the_validator_accepts_it(done: Path, tmp_path: Path) -> None:
    """Workflow Run Crate 0.5 and all that it is based on; without internet, by the vendored terms.

    The validator has an environment of its own, for it wants an older package than a linter does. What it recommends
    and isn't there is the address of the package's repository, which has none yet, and that of the author's
    organisation.
    """
    python = tmp_path / "venv/bin/python"
    venv.create(python.parents[1], with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "roc-validator==0.13.0"], check=True)
    said = subprocess.run([python, VALIDATE, done / "out"], check=True, capture_output=True, text=True, cwd=tmp_path)
    issues = json.loads(said.stdout)
    assert [text for severity, _, text in issues if severity == "REQUIRED"] == []
    assert {check for _, check, _ in issues} <= {
        "process-run-crate-0.5_3.2", "process-run-crate-0.5_5.1", "ro-crate-1.1_31.2",
    }  # fmt: skip
