"""Rerun only what changed: after each change the whole list of jobs that would run again is compared.

Once as the package decides it, in this process, and once (slowly) as Snakemake plans it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, put, tiny, undrawn, write_yaml

from clusterfl import registry
from clusterfl.cli import main
from clusterfl.pipeline import job as one_job
from clusterfl.pipeline.execute import is_done
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.rules import Rules
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, write_json

RUN = Path("results/tiny/digits/seed0")


class Project:
    """A copy of the workflow and of the package, so that both can be edited."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.package = folder / "src" / "clusterfl"
        self.backups: dict[Path, Path | None] = {}
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copy(ROOT / "Snakefile", folder)
        shutil.copytree(ROOT / "workflow", folder / "workflow")
        shutil.copytree(ROOT / "src" / "clusterfl", self.package, ignore=ignore)
        (folder / "profiles").symlink_to("workflow/profiles")
        write_yaml(folder / "config.yaml", tiny())

    def snakemake(self, *arguments: str, fails: bool = False) -> str:
        """Run snakemake on this package and return what it says."""
        return self.run([sys.executable, "-m", "snakemake", "--cores", "1", *arguments], fails)

    def run(self, command: list[str], fails: bool = False) -> str:
        """Run a command in the project and return what it says."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            "PATH": path,
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    def stale(self) -> list[str]:
        """Return, in the form of `planned`, the jobs that aren't done or follow from one that isn't."""
        found = {}
        for job in Plan.from_files([Path("config.yaml")]).jobs():
            if not is_done(job) or any(other.first in found for other in job.upstream.values()):
                found[job.first] = " ".join(str(part) for part in (job.stage, job.seed, job.name) if part is not None)
        return sorted(found.values())

    def planned(self, *arguments: str) -> list[str]:
        """Return the jobs of a dry run as 'rule wildcards', without `all` and the default names."""
        jobs = re.findall(
            r"^(?:local)?rule (\w+):\n((?: +.*\n)*)",
            self.snakemake(*arguments, "-n", "--quiet", "host"),
            re.M,
        )
        names = []
        for rule, lines in jobs:
            wildcards = re.search(r"^ +wildcards: (.*)$", lines, re.M)
            values = re.findall(r"\w+=([^,]+)", wildcards[1]) if wildcards else []
            names.append(" ".join([rule, *values]).replace(" tiny", "").replace(" digits ", " "))
        return sorted(name for name in names if name != "all")

    def keep(self, path: Path) -> Path:
        """Remember a file as it is, its time included, until `restore`; return its whole path."""
        path = self.folder / path
        backup = path.with_name(f"{path.name}.kept") if path.exists() else None
        if backup:
            shutil.copy2(path, backup)
        self.backups[path] = backup
        return path

    def restore(self) -> None:
        """Undo every change."""
        for path, backup in self.backups.items():
            if backup:
                os.replace(backup, path)
            else:
                path.unlink()
        self.backups.clear()

    # Changes that a user makes.

    def setting(self, place: str, value: object) -> None:
        """Change one setting."""
        write_yaml(self.keep(Path("config.yaml")), put(tiny(), place, value))

    def source(self, module: str, old: str, new: str) -> None:
        """Change a text that a source file has once."""
        path = self.keep(self.package / module)
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{module} has {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def move(self, module: str, to: str, pattern: str, words: str) -> None:
        """Put a module elsewhere in the package, and replace what names it."""
        old, new = self.package / module, self.package / to
        text = self.keep(old).read_text(encoding="utf-8")
        old.unlink()
        self.backups[new] = None
        new.write_text(text, encoding="utf-8")
        for file in sorted(self.package.rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if (found := re.sub(pattern, words, text)) != text:
                if file != new:
                    self.keep(file)
                file.write_text(found, encoding="utf-8")

    def append(self, file: str, text: str) -> None:
        """Write more to the end of a file of the package."""
        with self.keep(self.package / file).open("a", encoding="utf-8") as stream:
            stream.write(text)

    def delete(self, path: Path) -> None:
        """Delete a result."""
        self.keep(path).unlink()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose tiny study was run by snakemake."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.snakemake("--quiet", "all")
    return project


@pytest.fixture
def project(finished: Project) -> Iterator[Project]:
    """The finished project; changes are undone behind the test."""
    yield finished
    finished.restore()


@pytest.fixture(scope="module")
def finished_here(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose tiny study was run in this process."""
    project = Project(tmp_path_factory.mktemp("here"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.folder)
        undrawn(patch)
        assert main(["run"]) == 0
    return project


@pytest.fixture
def here(finished_here: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """That project, whose copy of the package is the one whose source is read; changes are undone behind the test."""
    monkeypatch.chdir(finished_here.folder)
    monkeypatch.setattr(registry, "PACKAGE", finished_here.package)
    monkeypatch.setattr(one_job, "TEMPLATES", finished_here.package / "report" / "templates")
    yield finished_here
    finished_here.restore()


ONE_SHOT = ["lcfl", "lcfl-diffnorm"]
CLUSTERED = [f"{stage} 0 {name}" for stage in ("cluster", "federate") for name in ONE_SHOT]
FROM_WARMUP = ["warmup 0 short", "distance 0 loss", "distance 0 diffnorm", *CLUSTERED]
METHODS = [f"federate 0 {name}" for name in ("fedavg", "local", "ifca")]
TRAINED = [*FROM_WARMUP, *METHODS]
UNSEEN = "l deleted intermediate"  # by Snakemake
IFCA, REPORT = RUN / "methods" / "ifca" / "history.parquet", Path("results/tiny/report.html")
NEW_LINE = "\n\nUSED_BY_NOBODY = 1\n"

CASES: dict[str, tuple[Callable[[Project], None], list[str]]] = {
    "a nothing": (lambda p: None, []),
    "b learning rate of one method": (
        lambda p: p.setting("methods.ifca.training", {"learning_rate": 0.05}),
        ["federate 0 ifca", "report"],
    ),
    "c number of clusters": (
        lambda p: p.setting("clusterings.lcfl.clusters", 3),
        ["cluster 0 lcfl", "federate 0 lcfl", "report"],
    ),
    "d option of a distance": (
        lambda p: p.setting("distances.loss.data", "all"),
        ["distance 0 loss", "cluster 0 lcfl", "federate 0 lcfl", "report"],
    ),
    "e length of the warm-up": (lambda p: p.setting("warmups.short.rounds", 2), [*FROM_WARMUP, "report"]),
    "f partition": (
        lambda p: p.setting("federations.digits.partition.angles", [0, 180]),
        ["partition 0", *TRAINED, "report"],
    ),
    "g seed added": (
        lambda p: p.setting("seeds.runs", [0, 1]),
        [*(job.replace(" 0", " 1") for job in ["partition 0", *TRAINED]), "report"],
    ),
    "h method added": (
        lambda p: p.setting("methods.oracle", {"method": "oracle"}),
        ["federate 0 oracle", "report"],
    ),
    "h order of the methods": (
        lambda p: p.setting("methods", dict(reversed(tiny()["methods"].items()))),
        ["report"],
    ),
    # What people read, and what handles files: nothing is computed again.
    "i error reworded": (
        lambda p: p.source("engine/choice.py", "isn't possible: {problem}", "can't be: {problem}"),
        [],
    ),
    "i reason reworded": (lambda p: p.source("engine/chain.py", "some of its parameters are fixed", "are fixed"), []),
    "i description": (lambda p: p.source("engine/training.py", "communication rounds in all", "rounds in all"), []),
    "i progress text": (lambda p: p.source("simulation/record.py", "test accuracy {", "accuracy on test data {"), []),
    "i log line": (
        lambda p: p.source("pipeline/stages/federate.py", "privacy: choosing among", "privacy: to choose among"),
        [],
    ),
    "i command line": (lambda p: p.append("cli/program.py", NEW_LINE), []),
    "i store": (lambda p: p.append("storage/store.py", NEW_LINE), []),
    "i checkpoint": (lambda p: p.append("pipeline/checkpoint.py", NEW_LINE), []),
    "i module renamed": (lambda p: p.move("streams.py", "randomness.py", r"\bstreams\b(?!=)", "randomness"), []),
    "i module moved": (
        lambda p: p.move(
            "engine/parameter_layout.py",
            "models/parameter_layout.py",
            r"from \.+(engine\.)?parameter_layout import",
            "from clusterfl.models.parameter_layout import",
        ),
        [],
    ),
    "i words of the page": (
        lambda p: p.source("report/section_scores.py", "against what it cost", "beside its cost"),
        ["report"],
    ),
    "i comment": (lambda p: p.append("clustering/distances.py", "\n# A remark.\n"), []),
    "i docstring": (lambda p: p.source("engine/engine.py", '"""The engine:', '"""This is the engine:'), []),
    "j code of the distances": (
        lambda p: p.append("clustering/distances.py", NEW_LINE),
        ["distance 0 loss", "distance 0 diffnorm", *CLUSTERED, "report"],
    ),
    "j code of the loop": (lambda p: p.append("engine/loop.py", NEW_LINE), [*TRAINED, "report"]),
    "j code of a partition": (
        lambda p: p.append("data/partitions/rotated.py", NEW_LINE),
        ["partition 0", *TRAINED, "report"],
    ),
    "j name of a random stream": (
        lambda p: p.source("methods/ifca.py", '"first round"', '"the first round"'),
        ["federate 0 ifca", "report"],
    ),
    "j code of one method": (lambda p: p.append("methods/ifca.py", NEW_LINE), ["federate 0 ifca", "report"]),
    "j code of the engine": (lambda p: p.append("engine/engine.py", NEW_LINE), [*TRAINED, "report"]),
    "j row of the table of methods": (
        lambda p: p.source("methods/__init__.py", '"local":', '"alone": "my_module:alone", "local":'),
        [],
    ),
    "k template of the report": (
        lambda p: p.append("report/templates/report.html.j2", "<!-- -->\n"),
        ["report"],
    ),
    "l deleted result": (
        lambda p: p.delete(RUN / "methods" / "ifca" / "history.parquet"),
        ["federate 0 ifca", "report"],
    ),
    "l deleted file of the report": (lambda p: p.delete(Path("results/tiny/summary.parquet")), ["report"]),
    # Snakemake calls a missing file up to date as long as all that is made from it is there.
    UNSEEN: (lambda p: p.delete(RUN / "distance" / "loss.parquet"), []),
}


@pytest.mark.parametrize("name", sorted(CASES.keys() - {UNSEEN}))
def test_a_change_makes_stale_what_depends_on_it_and_nothing_else(here: Project, name: str) -> None:
    change, expected = CASES[name]
    change(here)
    assert here.stale() == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_change_reruns_what_depends_on_it_and_nothing_else(project: Project, name: str) -> None:
    change, expected = CASES[name]
    change(project)
    assert project.planned() == sorted(expected)


def forced() -> set[Path]:
    """Return the first files of the results that the rules let Snakemake make again."""
    plan, found = Plan.from_files([Path("config.yaml")]), list[str]()
    for job in plan.jobs():
        wildcards = {"federation": job.federation, "seed": job.seed, job.kind.block: job.name}
        Rules(plan, found.append).inputs(job.stage)(wildcards)
    return set(map(Path, found))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: None, []),
        (lambda p: p.setting("methods.ifca.training", {"learning_rate": 0.05}), [IFCA, REPORT]),
        (lambda p: p.append("methods/ifca.py", NEW_LINE), [IFCA]),
        (lambda p: p.delete(manifest_path(IFCA)), [IFCA]),
        (lambda p: write_json(p.keep(manifest_path(IFCA)), read_json(manifest_path(IFCA)) | {"seed": 1}), [IFCA]),
        (lambda p: p.delete(IFCA), []),  # which Snakemake sees
    ],
)
def test_a_result_is_forced_where_its_manifest_is_of_other_settings_or_code(
    here: Project, change: Callable[[Project], None], expected: list[Path]
) -> None:
    change(here)
    assert forced() == set(expected)


@pytest.mark.slow
def test_what_was_not_made_by_snakemake_is_planned_by_its_manifest(project: Project) -> None:
    """It knows what it wrote down itself: nothing of what `clusterfl run` made since, and nothing in a copy."""
    project.setting("methods.ifca.training", {"learning_rate": 0.05})
    project.run([sys.executable, "-m", "clusterfl.cli", "run", "--config", "config.yaml"])
    project.restore()
    assert project.planned() == ["federate 0 ifca", "report"]
    assert project.planned(str(RUN / "methods/fedavg/history.parquet")) == []
    shutil.rmtree(project.folder / ".snakemake" / "metadata")
    assert project.planned() == ["federate 0 ifca", "report"]
    assert done(project.snakemake()) == {"computed": ["federate ifca digits seed 0", "report"], "spared": []}


def done(said: str) -> dict[str, list[str]]:
    """Return the jobs that computed and those that ended without, of what a run said."""
    computed = re.findall(r"^(.+): [\d.]+ s -> results", said, re.M)
    spared = re.findall(r"^(.+): nothing to compute", said, re.M)
    return {"computed": sorted(computed), "spared": sorted(spared)}


@pytest.mark.slow
def test_j_equal_bytes_stop_what_follows(project: Project) -> None:
    """A change of code that gives the same numbers: its stage is computed once, nothing after it."""
    before = list((project.folder / "results").rglob("*.safetensors"))
    project.append("pipeline/stages/distance.py", NEW_LINE)
    distances = [f"distance {name} digits seed 0" for name in ("diffnorm", "loss")]
    later = [f"{stage} {name} digits seed 0" for stage in ("cluster", "federate") for name in ONE_SHOT]
    assert done(project.snakemake()) == {"computed": distances, "spared": sorted([*later, "report"])}
    assert project.planned() == []
    assert all(path.exists() for path in before)
    assert not (project.folder / "results/tiny/.work").exists()
    project.append("methods/ifca.py", NEW_LINE)
    said = project.run([sys.executable, "-m", "clusterfl.cli", "run", "--config", "config.yaml"])
    assert re.findall(r"^\[\d+/\d+\] (.+)$", said, re.M) == ["federate ifca digits seed 0"]
    project.restore()
    project.snakemake()  # for the tests that follow


@pytest.mark.slow
def test_what_is_forced_is_computed(project: Project) -> None:
    place = str(RUN / "methods" / "ifca" / "history.parquet")
    assert done(project.snakemake("--force", place)) == {"computed": ["federate ifca digits seed 0"], "spared": []}


@pytest.mark.slow
def test_l_a_deleted_intermediate_is_made_again_by_its_file_name(project: Project) -> None:
    place = RUN / "distance" / "loss.parquet"
    project.delete(place)
    assert project.planned(str(place)) == ["distance 0 loss"]


@pytest.mark.slow
def test_l_a_rule_is_forced_with_all_that_follows(project: Project) -> None:
    assert project.planned("-R", "cluster") == sorted([*CLUSTERED, "report"])


@pytest.mark.slow
def test_m_nothing_of_the_default_study_leaks_into_another(project: Project) -> None:
    other = put(put(tiny(), "study", "other"), "methods", {"ifca": {"method": "ifca", "clusters": 3}})
    put(other, "baseline", ...)
    write_yaml(project.keep(Path("other.yaml")), other)
    expected = ["federate other 0 ifca", "partition other 0", "report other"]
    assert project.planned("--configfile", "other.yaml") == expected


@pytest.mark.slow
def test_a_damaged_intermediate_is_named_on_the_terminal_and_rebuilt(project: Project) -> None:
    place = project.folder / RUN / "distance" / "loss.parquet"
    whole = place.read_bytes()
    place.write_bytes(whole[:-9])
    said = project.snakemake(fails=True)
    sentence = next(line for line in said.splitlines() if line.startswith("clusterfl: "))
    assert f"{RUN / 'distance/loss.parquet'} is damaged" in sentence
    project.run(shlex.split(sentence.partition("rebuild it: ")[2]))
    assert place.read_bytes() == whole
    project.snakemake()
    assert project.planned() == []
