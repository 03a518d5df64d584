"""Bad input ends with exit code 2 and a sentence: what, where, allowed, next step. What is finished stays."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, put, tiny, write_yaml
from federations import slow_but

from clusterfl.cli import main
from clusterfl.storage.store import read_table

RUN = Path("results/tiny/digits/seed0")
SAMPLES = Path("data/digits/samples.safetensors")
ONE = ["--federation", "digits", "--seed", "0"]


def contents() -> dict[Path, bytes]:
    """Return the bytes of all results."""
    return {p: p.read_bytes() for top in ("data", "results") for p in Path(top).rglob("*") if p.is_file()}


class Clusterfl:
    """The command line, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys = capsys

    def works(self, *arguments: str) -> None:
        """Run a command that should succeed."""
        code = main(list(arguments))
        assert code == 0, self.capsys.readouterr().err

    def refuses(self, *arguments: str, says: list[str]) -> str:
        """Run a command that should fail and leave every file as it is; return what it says."""
        before = contents()
        self.capsys.readouterr()
        code = main(list(arguments))
        said = self.capsys.readouterr().err
        print(said)  # for `pytest -rP`, which lists the messages
        assert code == 2, said
        assert "Traceback" not in said
        for words in says:
            assert words in said
        after = contents()
        assert {p: after.get(p) for p in before} == before
        return said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; modules of the user's own are looked for here only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.fixture
def clusterfl(folder: Path, capsys: pytest.CaptureFixture[str]) -> Clusterfl:
    """The command line, in an empty folder."""
    return Clusterfl(capsys)


@pytest.fixture(scope="module")
def done_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny study was run up to its trained methods, with two seeds."""
    place = tmp_path_factory.mktemp("done")
    before = Path.cwd()
    os.chdir(place)
    try:
        study = put(tiny(), "seeds.runs", [0, 1])
        put(
            study,
            "methods",
            {"fedavg": {"method": "fedavg"}, "lcfl": {"method": "lcfl", "clustering": "lcfl"}},
        )
        write_yaml(Path("config.yaml"), study)
        assert main(["run", "--federation", "digits"]) == 0  # all but the report
    finally:
        os.chdir(before)
    return place


@pytest.fixture
def done(folder: Path, done_once: Path) -> Path:
    """A copy of the finished study, as working folder."""
    shutil.copytree(done_once, folder, dirs_exist_ok=True)
    return folder


# Settings.

SETTINGS: dict[str, tuple[str, Any, list[str]]] = {
    "unknown key": ("metods", {}, ["metods: unknown key", "did you mean 'methods'?", "allowed: baseline,"]),
    "unknown key in training": (
        "training.learnig_rate",
        0.1,
        ["training.learnig_rate", "did you mean 'learning_rate'?"],
    ),
    "unknown key of a method's training": (
        "methods.ifca.training",
        {"round": 3},
        ["methods.ifca.training.round: unknown key", "did you mean 'rounds'?"],
    ),
    "unknown option": (
        "federations.digits.partition.client",
        3,
        ["partition.client: unknown key", "scheme 'rotated'", "did you mean 'clients'?"],
    ),
    "missing option": ("methods.ifca.clusters", ..., ["methods.ifca.clusters: missing", "number of models"]),
    "missing block": ("methods", ..., ["methods: missing; it is the methods to compare"]),
    "text for a number": ("training.rounds", "many", ["training.rounds", "integer", "found 'many'"]),
    "text for a rate": (
        "training.learning_rate",
        "fast",
        ["training.learning_rate", "number", "found 'fast'"],
    ),
    "fraction for a count": ("training.rounds", 2.5, ["training.rounds", "found 2.5"]),
    "out of range": (
        "training.participation",
        2,
        ["training.participation", "less than or equal to 1", "found 2"],
    ),
    "truth for a number": ("seeds.runs", [0, True], ["seeds.runs: found [0, True]; it should be a number"]),
    "number for a list": ("seeds.runs", 0, ["seeds.runs", "list", "found 0"]),
    "text for a block": ("methods.x", "fedavg", ["methods.x: found 'fedavg'; should hold keys and values"]),
    "nothing for a block": ("training", None, ["training: found None; should hold keys and values"]),
    "no methods": ("methods", {}, ["methods: found {}; needs at least 1 entry"]),
    "no seeds": ("seeds.runs", [], ["seeds.runs: found []; needs at least 1 entry"]),
    "either a number or a word": (
        "training.batch_size",
        "ful",
        ["1 problem", "training.batch_size:", "integer", "did you mean 'full'?"],
    ),
    "either a number or a word, of an option": (
        "methods.x",
        {"method": "fedgwc", "alpha": 2, "patience": "x", "bta": 1},
        [
            "3 problems",
            "x.alpha: found 2; it should be less",
            "or: allowed: relative",
            "x.patience: found 'x'",
            "'beta'?",
        ],
    ),
    "no units in a layer": ("model.hidden", [4, 0], ["model.hidden.1", "greater than 0", "found 0"]),
    "misspelt choice": (
        "distances.loss.data",
        "tain",
        ["distances.loss.data", "did you mean 'train'?", "allowed: all, augmented, train"],
    ),
    "misspelt choice of an option": (
        "methods.lcfl.start",
        "comon",
        ["methods.lcfl.start", "did you mean 'common'?"],
    ),
    "unknown method": (
        "methods.x",
        {"method": "fedagv"},
        ["unknown method 'fedagv'; did you mean 'fedavg'?"],
    ),
    "unknown metric": ("distances.loss.metric", "los", ["unknown metric 'los'; did you mean 'loss'?"]),
    "unknown clusterer": (
        "clusterings.lcfl.clusterer",
        "kmedoid",
        ["unknown clusterer", "did you mean 'kmedoids'?"],
    ),
    "unknown model": ("model", {"model": "mpl"}, ["model.model: unknown model 'mpl'; did you mean 'mlp'?"]),
    "unknown dataset": ("federations.digits.dataset", "digit", ["unknown dataset", "did you mean 'digits'?"]),
    "unknown partition": (
        "federations.digits.partition.scheme",
        "idd",
        ["unknown partition", "did you mean 'iid'?"],
    ),
    "unknown block": (
        "clusterings.lcfl.distance",
        "los",
        ["there is no block 'los'; did you mean 'loss'?", "diffnorm"],
    ),
    "unknown baseline": (
        "baseline",
        "fedagv",
        ["baseline: there is no block 'fedagv'; did you mean 'fedavg'?"],
    ),
    "method without its clustering": (
        "methods.lcfl.clustering",
        ...,
        ["methods.lcfl.clustering: missing; allowed: lcfl"],
    ),
    "more clusters than clients": (
        "clusterings.lcfl.clusters",
        9,
        ["clusters: 9", "8 clients", "allowed: 1 to 8"],
    ),
    "seeds twice": ("seeds.runs", [0, 1, 0], ["seeds.runs: seed 0 is given 2 times", "a seed of its own"]),
    "warm-up longer than the training": ("warmups.short.rounds", 3, ["methods.lcfl: 3 rounds", "give more"]),
    "study with a slash": ("study", "a/b", ["study: found 'a/b'; a name has letters, digits"]),
    "study above the folder": ("study", "..", ["study: found '..'; a name has"]),
    "method with a blank": ("methods.a b", {"method": "fedavg"}, ["methods.a b: found 'a b'; a name has"]),
    "module that isn't there": (
        "methods.x",
        {"method": "nowhere:f"},
        ["no module 'nowhere'", "put nowhere.py beside"],
    ),
    "module with a syntax error": (
        "methods.x",
        {"method": "mistyped:f"},
        ["methods.x.method:", "mistyped.py, line 2"],
    ),
    "module named as a file": (
        "methods.x",
        {"method": "lacking.py:g"},
        ["no module 'lacking.py'", "leave .py out: 'lacking:g'"],
    ),
    "module in a folder that isn't there": (
        "methods.x",
        {"method": "nowhere.deep.part:f"},
        ["no module 'nowhere.deep.part'", "put nowhere/deep/part.py beside"],
    ),
    "module without the function": (
        "methods.x",
        {"method": "lacking:f"},
        ["lacking.py defines no 'f'"],
    ),
    "module without a name": ("methods.x", {"method": ":f"}, ["unknown method ':f'", "'my_module:Class'"]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(clusterfl: Clusterfl, folder: Path, study: dict[str, Any], name: str) -> None:
    place, value, says = SETTINGS[name]
    Path("mistyped.py").write_text("def good(): pass\ndef f(:\n", encoding="utf-8")
    Path("lacking.py").write_text("def g(): pass\n", encoding="utf-8")
    write_yaml(Path("config.yaml"), put(study, place, value))
    clusterfl.refuses("check", says=["config.yaml: ", "nothing was run", *says])
    assert not Path("results").exists()


FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["config.yaml is empty", "e.g. 'study: digits'"]),
    "only a comment": (b"# later\n", ["config.yaml is empty"]),
    "a list": (b"- study\n", ["should hold keys and values", "found list"]),
    "broken": (b"study: [a\nb: c", ["config.yaml isn't readable YAML", "line 2, column 2"]),
    "a tab": (b"study:\n\tx: 1", ["config.yaml isn't readable YAML", "line 2, column 1"]),
    "a key twice": (b"study: a\nstudy: b\n", ["the key 'study' is given twice", "line 2"]),
    "a list as key": (b"? [a]\n: 1\n", ["config.yaml isn't readable YAML", "unhashable key", "line 1"]),
    "a number as key": (b"1: 2\n", ["1: found 1; Keys should be strings", "methods: missing"]),
    "not text": (b"\xff\xfe\x00", ["config.yaml isn't readable YAML", "can't decode"]),
}


@pytest.mark.parametrize("name", FILES)
def test_configuration_file(clusterfl: Clusterfl, folder: Path, name: str) -> None:
    content, says = FILES[name]
    Path("config.yaml").write_bytes(content)
    clusterfl.refuses("check", says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"study": "a", "seeds": {"runs": [0], "runs": [1]}}', ["the key 'runs' is given twice"]),
        ('{"study": "a",}', ["settings.json isn't readable JSON", "line 1 column 15"]),
        ("[" * 100_000, ["settings.json isn't readable JSON", "recursion"]),
    ],
)
def test_configuration_of_json(clusterfl: Clusterfl, folder: Path, content: str, says: list[str]) -> None:
    Path("settings.json").write_text(content)
    clusterfl.refuses("check", "--config", "settings.json", says=says)


def test_no_configuration_file(clusterfl: Clusterfl) -> None:
    clusterfl.refuses("check", says=["no configuration file config.yaml", "--config", "clusterfl init ."])


def test_number_that_yaml_reads_as_text_is_a_number(clusterfl: Clusterfl, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(write_yaml(Path("config.yaml"), tiny())).read_text()
    assert "learning_rate: 0.1" in text
    Path("config.yaml").write_text(text.replace("learning_rate: 0.1", "learning_rate: 1e-1"))
    clusterfl.works("check")


def test_a_folder_of_modules_that_is_not_there(clusterfl: Clusterfl, folder: Path, study: dict[str, Any]) -> None:
    """But a run's settings, handed on, may name the folder of the file with which it was started."""
    (folder / "mine").mkdir()
    write_yaml(folder / "config.yaml", study | {"modules": ["mine", "nope"]})
    clusterfl.refuses(
        "check", says=[f"modules: found 'nope', which isn't a folder seen from {folder}; allowed: folders"]
    )
    kept = folder / "results" / study["study"] / "settings.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(study | {"modules": ["nope"]}), encoding="utf-8")
    clusterfl.works("check", "--config", str(kept.relative_to(folder)))


def test_keys_shared_by_anchor_may_be_replaced(clusterfl: Clusterfl, study: dict[str, Any]) -> None:
    text = Path(write_yaml(Path("config.yaml"), put(study, "methods", ...))).read_text()
    shared = "methods:\n  local: &same {method: local, training: {momentum: 0.5}}\n"
    shared += "  fedavg: {<<: *same, method: fedavg}\n"
    Path("config.yaml").write_text(text + shared)
    clusterfl.works("check")


@pytest.mark.slow
def test_snakemake_prints_the_same_sentence(folder: Path, study: dict[str, Any]) -> None:
    for part in ("Snakefile", "workflow"):
        (folder / part).symlink_to(ROOT / part)
    write_yaml(folder / "config.yaml", put(study, "training.learnig_rate", 0.1))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "training.learnig_rate: unknown key" in said
    assert "Traceback" not in said


ADDRESSES: dict[str, tuple[list[str], list[str]]] = {
    "federation": (
        ["partition", "--federation", "digit", "--seed", "0"],
        ["--federation: 'digit'", "did you mean 'digits'?"],
    ),
    "seed": (["partition", "--federation", "digits", "--seed", "7"], ["--seed: '7'", "allowed: 0"]),
    "method": (["federate", *ONE, "--method", "ifac"], ["--method: 'ifac'", "did you mean 'ifca'?"]),
    "warm-up": (["warmup", *ONE, "--warmup", "sort"], ["--warmup: 'sort'", "did you mean 'short'?"]),
    "dataset": (["download", "digit"], ["unknown dataset 'digit'; did you mean 'digits'?"]),
    "input not there": (
        ["partition", *ONE],
        [f"{SAMPLES} is missing", "rebuild it: clusterfl download digits"],
    ),
    "settings changed since the plan": (
        ["partition", *ONE, "--digest", "0123456789abcdef"],
        [
            "partition digits seed 0",
            "the configuration changed",
            "planned 0123456789abcdef",
            "start snakemake again",
        ],
    ),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_command_line(clusterfl: Clusterfl, study: dict[str, Any], name: str) -> None:
    arguments, says = ADDRESSES[name]
    write_yaml(Path("config.yaml"), study)
    clusterfl.refuses(*arguments, says=says)


def test_no_threads(clusterfl: Clusterfl, study: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    write_yaml(Path("config.yaml"), study)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--threads", "0"])
    assert ended.value.code == 2
    assert "--threads: '0'; allowed: 1, 2, ..." in capsys.readouterr().err


# Files. Each: what is harmed, the command that needs it, the command that rebuilds it.

NEEDED: dict[str, tuple[Path, list[str]]] = {
    "samples": (SAMPLES, ["partition", *ONE]),
    "partition": (RUN / "partition.parquet", ["warmup", *ONE, "--warmup", "short"]),
    "clients' models": (
        RUN / "warmup/short/clients/00000.safetensors",
        ["distance", *ONE, "--distance", "loss"],
    ),
    "warm-up's table": (RUN / "warmup/short/rounds.parquet", ["federate", *ONE, "--method", "lcfl"]),
    "common model": (RUN / "warmup/short/common.safetensors", ["federate", *ONE, "--method", "lcfl"]),
    "distance": (RUN / "distance/loss.parquet", ["cluster", *ONE, "--clustering", "lcfl"]),
    "clusters": (RUN / "clusters/lcfl.parquet", ["federate", *ONE, "--method", "lcfl"]),
}
HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "is missing"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged: sha256"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged: sha256"),
}


def rebuild(clusterfl: Clusterfl, said: str) -> None:
    """Run the command that a message names."""
    command = said.strip().rpartition("rebuild it: ")[2]
    program, *arguments = shlex.split(command)
    assert program == "clusterfl"
    clusterfl.works(*arguments)


@pytest.mark.parametrize("harm", slow_but(["truncated"], HARM))
@pytest.mark.parametrize("name", NEEDED)
def test_damaged_file_is_named_and_rebuilt(clusterfl: Clusterfl, done: Path, name: str, harm: str) -> None:
    (path, command), (damage, says) = NEEDED[name], HARM[harm]
    whole = path.read_bytes()
    damage(path)
    said = clusterfl.refuses(*command, says=[str(path), says])
    rebuild(clusterfl, said)
    assert path.read_bytes() == whole
    clusterfl.works(*command)


MANIFESTS = {
    "missing": None,
    "no JSON": "{",
    "a list": "[]",
    "without files": '{"schema": 1, "stage": "distance"}',
    "of another version": '{"schema": 0}',
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_corrupt_manifest_is_named_and_rebuilt(clusterfl: Clusterfl, done: Path, name: str) -> None:
    place, content = RUN / "distance" / "loss.manifest.json", MANIFESTS[name]
    place.unlink() if content is None else place.write_text(content)
    said = clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=[str(place)])
    rebuild(clusterfl, said)
    clusterfl.works("cluster", *ONE, "--clustering", "lcfl")


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_run_repairs_damaged_files(clusterfl: Clusterfl, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = RUN / "distance" / "loss.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"PAR1")
    clusterfl.works("run")
    assert path.read_bytes() == whole
    assert "fedavg" not in capsys.readouterr().err


def copy_stage(source: Path, target: Path) -> None:
    for path in source.parent.glob(f"{source.name}.*"):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target.parent)


def test_file_of_another_seed(clusterfl: Clusterfl, done: Path) -> None:
    path = RUN / "partition.parquet"
    shutil.copy("results/tiny/digits/seed1/partition.parquet", path)
    clusterfl.refuses(
        "warmup", *ONE, "--warmup", "short", says=[f"{path} is damaged", "rebuild it: clusterfl partition"]
    )


def test_file_of_another_seed_with_its_manifest(clusterfl: Clusterfl, done: Path) -> None:
    copy_stage(Path("results/tiny/digits/seed1/distance/loss"), RUN / "distance" / "loss")
    says = [
        f"{RUN / 'distance/loss.parquet'} belongs to seed '1', not '0'",
        "copied from elsewhere",
        "or rebuild it: ",
    ]
    said = clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=says)
    rebuild(clusterfl, said)
    clusterfl.works("cluster", *ONE, "--clustering", "lcfl")


def test_file_of_another_study(clusterfl: Clusterfl, done: Path, study: dict[str, Any]) -> None:
    write_yaml(Path("config.yaml"), put(study, "study", "other"))
    copy_stage(RUN / "partition", Path("results/other/digits/seed0/partition"))
    says = ["results/other", "belongs to study 'tiny', not 'other'", "copied from elsewhere"]
    clusterfl.refuses("warmup", *ONE, "--warmup", "short", says=says)


def test_file_made_with_other_settings(clusterfl: Clusterfl, done: Path, study: dict[str, Any]) -> None:
    write_yaml(Path("config.yaml"), put(study, "warmups.short.training", {"learning_rate": 0.2}))
    says = ["warmup/short/clients was made with other settings", "rebuild it: clusterfl warmup"]
    clusterfl.refuses("distance", *ONE, "--distance", "loss", says=says)


def test_shards_left_by_a_larger_warmup_are_not_read(clusterfl: Clusterfl, done: Path) -> None:
    shards = RUN / "warmup" / "short" / "clients"
    shutil.copy(shards / "00000.safetensors", shards / "00001.safetensors")
    clusterfl.works("warmup", *ONE, "--warmup", "short")
    clusterfl.works("distance", *ONE, "--distance", "loss")


# Disk.


@pytest.fixture
def small_disk(done: Path) -> Iterator[Path]:
    """A disk of 16 kB under a new warm-up's folder."""
    place = RUN / "warmup"
    shutil.rmtree(place)
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield place
    subprocess.run(["umount", place], check=True)


def test_no_space_on_the_disk(clusterfl: Clusterfl, small_disk: Path) -> None:
    clusterfl.refuses(
        "warmup",
        *ONE,
        "--warmup",
        "short",
        says=["no space left on the disk", str(small_disk), "run the same"],
    )


@pytest.fixture
def locked(done: Path) -> Iterator[Path]:
    """A folder that nobody may write to, root neither."""
    place = RUN / "clusters"
    if os.geteuid():
        place.chmod(0o500)
    elif subprocess.run(["chattr", "+i", place], check=False, capture_output=True).returncode:
        pytest.skip("root may write everywhere, and this file system has no immutable folders")
    yield place
    subprocess.run(["chattr", "-i", place] if not os.geteuid() else ["chmod", "700", place], check=True)


def test_unwritable_folder(clusterfl: Clusterfl, locked: Path) -> None:
    says = ["no permission to write", str(locked), "make its folder writable"]
    clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=says)


# Data, models and functions of the user's own.


def module(name: str, text: str) -> None:
    """Write a module of the user's own. Each test takes another name: Python keeps what it imported."""
    Path(f"{name}.py").write_text(f"import numpy as np\nfrom torch import nn\n\n{text}", encoding="utf-8")


def study_with(place: str, value: Any) -> None:
    """Write the configuration with one change."""
    write_yaml(Path("config.yaml"), put(tiny(), place, value))


def test_member_without_training_data(clusterfl: Clusterfl, done: Path) -> None:
    study_with("federations.digits.partition", {"scheme": "iid", "clients": 1797, "test": 0.9})
    says = ["client 0 (1797 in all) has no training sample", "use fewer clients, smaller test and validation shares"]
    clusterfl.refuses("partition", *ONE, says=says)


DATASETS: dict[str, tuple[str, list[str]]] = {
    "a number": ("return np.zeros((3, 2)), 1", ["equally many rows", "()"]),
    "a matrix of labels": ("return np.zeros((3, 2)), np.zeros((3, 1))", ["equally many rows", "(3, 1)"]),
    "nothing": ("return None", ["should return two arrays", "returned NoneType"]),
    "texts": ("return np.array(['a', 'b']), np.arange(2)", ["rows of numbers", "<U1"]),
    "unequal lengths": ("return np.zeros((3, 2)), np.arange(2)", ["equally many rows", "(3, 2)", "(2,)"]),
}


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_that_returns_rubbish(clusterfl: Clusterfl, name: str) -> None:
    body, says = DATASETS[name]
    stem = f"rubbish_{name.replace(' ', '_')}"
    module(stem, f"def data(folder):\n    {body}\n")
    clusterfl.refuses("download", f"{stem}:data", says=[f"dataset '{stem}:data'", *says])


def test_data_that_cannot_be_read_are_reported_before_anything_else_is_made(clusterfl: Clusterfl) -> None:
    module("none", "def data(folder):\n    return None\n")
    far = {"dataset": "none:data", "partition": {"scheme": "iid", "clients": 8}}
    write_yaml(Path("config.yaml"), put(tiny(), "federations.far", far))
    clusterfl.refuses("run", says=["dataset 'none:data'"])
    assert not list(Path("results").glob("**/*.parquet"))


def test_samples_of_a_module_beside_the_configuration_are_rebuilt(clusterfl: Clusterfl) -> None:
    Path("studies").mkdir()
    module("studies/beside", "def data(folder):\n    return np.ones((64, 3)), np.arange(64) % 2\n")
    federation = {"dataset": "beside:data", "partition": {"scheme": "iid", "clients": 8}}
    write_yaml(Path("studies/mine.yaml"), put(tiny(), "federations.digits", federation))
    command = ["partition", "--config", "studies/mine.yaml", *ONE]
    said = clusterfl.refuses(*command, says=["samples.safetensors is missing", "--modules studies"])
    rebuild(clusterfl, said)
    clusterfl.works(*command)


NUMBERS = {
    "NaN": ("x[5] = np.nan", ["sample 5 has NaN or infinity (1 samples in all", "replace or drop such samples"]),
    "too large": ("x[7, 1] = -1e300", ["sample 7 has NaN or infinity", "beyond 3.4e+38, the largest of float32"]),
    "no target": ("y = y * 0.5; y[3] = np.nan", ["the target of sample 3 has NaN or infinity"]),
    "no class": ("y[::2] = -1", ["sample 0 has the class -1 (32 samples in all have a negative one)", "0, 1, 2, ..."]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_nothing_can_be_learnt_from(clusterfl: Clusterfl, name: str) -> None:
    body, says = NUMBERS[name]
    stem = f"holes_{name.replace(' ', '_')}"
    given = "x, y = np.ones((64, 3)), np.arange(64) % 2"
    module(stem, f"def data(folder):\n    {given}\n    {body}\n    return x, y\n")
    write_yaml(
        Path("config.yaml"),
        put(
            tiny(),
            "federations.digits",
            {"dataset": f"{stem}:data", "partition": {"scheme": "iid", "clients": 8}},
        ),
    )
    clusterfl.works("download", f"{stem}:data")
    clusterfl.works("partition", *ONE)
    clusterfl.refuses("federate", *ONE, "--method", "fedavg", says=["samples.safetensors: ", *says])


PARTITIONS: dict[str, tuple[str, list[str]]] = {
    "nothing": ("return None", ["should return columns by name", "returned NoneType; allowed: sample, "]),
    "no clients": ("return {'sample': np.arange(3)}", ["no column 'client'", "needed: sample, client"]),
    "samples that aren't there": (
        "return {'sample': np.arange(5000), 'client': np.zeros(5000, int)}",
        ["names sample 4999", "samples 0 to 1796"],
    ),
    "a sample twice": ("return {'sample': [1, 1], 'client': [0, 0]}", ["sample 1 to client 0 twice"]),
    "unequal lengths": (
        "return {'sample': [1, 2], 'client': [0]}",
        ["'client' has shape (1,), 'sample' (2,)"],
    ),
    "names of clients": (
        "return {'sample': [1, 2], 'client': ['a', 'b']}",
        ["'client' holds <U1", "whole numbers"],
    ),
    "another column": (
        "return {'sample': [1], 'client': [0], 'group': [0]}",
        ["returned a column 'group'", "allowed: client, role, sample, split, transform, true_cluster"],
    ),
    "unknown split": (
        "return {'sample': [1], 'client': [0], 'split': ['tain']}",
        ["names the split 'tain'; did you mean 'train'?"],
    ),
    "no rows": ("return {'sample': [], 'client': []}", ["at least one", "'sample' has shape (0,)"]),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_that_returns_rubbish(clusterfl: Clusterfl, done: Path, name: str) -> None:
    body, says = PARTITIONS[name]
    stem = f"deal_{name.replace(' ', '_').replace(chr(39), '')}"
    module(stem, f"def deal(y, generator):\n    {body}\n")
    study_with("federations.digits.partition", {"scheme": f"{stem}:deal"})
    clusterfl.refuses("partition", *ONE, says=says)


METRICS: dict[str, tuple[str, list[str]]] = {
    "nothing": ("return None", ["a distance matrix", "returned NoneType"]),
    "a vector": ("return np.zeros(8)", ["a distance matrix", "8 clients", "shape (8,)"]),
    "another size": ("return np.zeros((3, 3))", ["(3, 3)", "8 clients"]),
    "NaN": ("return np.full((8, 8), np.nan)", ["distance between clients 0 and 0 is nan"]),
    "negative": ("return np.eye(8) - 1", ["distance between clients 0 and 1 is -1.0; none is negative"]),
    "from itself": ("return np.eye(8)", ["distance of client 0 from itself is 1.0; it has to be 0"]),
    "one way": ("return np.triu(np.ones((8, 8)), 1)", ["client 0 is 1.0 from client 1, and that one 0.0 from it"]),
    "complex": ("return np.zeros((8, 8), dtype=complex)", ["a distance matrix of real numbers"]),
    "texts": ("return np.full((8, 8), '0')", ["a distance matrix of real numbers"]),
    "ragged": ("return [[0], [0, 1]] * 4", ["a distance matrix of real numbers", "it returned list"]),
}
COMPUTED_FROM = "from clusterfl.clustering.metric import computed_from\n\n\n@computed_from('{}')\n"


@pytest.mark.parametrize("name", METRICS)
def test_metric_that_returns_rubbish(clusterfl: Clusterfl, done: Path, name: str) -> None:
    body, says = METRICS[name]
    stem = f"metric_{name.replace(' ', '_')}"
    module(stem, COMPUTED_FROM.format("parameters") + f"def far(rows):\n    {body}\n")
    study_with("distances.loss", {"metric": f"{stem}:far", "warmup": "short"})
    clusterfl.refuses("distance", *ONE, "--distance", "loss", says=says)


@pytest.mark.parametrize(
    "declared, says",
    [
        ("", ["distances.loss.metric", "'metric_of:far'", '@computed_from("losses")', "losses, parameters, gradients"]),
        ("weights", ["distances.loss.metric", "metric_of.py, line", "'weights'", "gradients, losses, parameters"]),
    ],
)
def test_metric_of_no_known_input(clusterfl: Clusterfl, declared: str, says: list[str]) -> None:
    """Also one whose parameter's name said it once; nothing runs."""
    module("metric_of", (COMPUTED_FROM.format(declared) if declared else "") + "def far(losses):\n    return losses\n")
    study_with("distances.loss", {"metric": "metric_of:far", "warmup": "short", "shards": 2})
    clusterfl.refuses("check", says=says)


CLUSTERERS: dict[str, tuple[str, list[str]]] = {
    "nothing": ("return None", ["clusterer 'group_nothing:group'", "for each of the 8 clients", "NoneType"]),
    "too few": ("return [0, 1]", ["for each of the 8 clients", "shape (2,)"]),
    "fractions": ("return np.full(8, 0.5)", ["a whole number as label", "float64"]),
}


@pytest.mark.parametrize("name", CLUSTERERS)
def test_clusterer_that_returns_rubbish(clusterfl: Clusterfl, done: Path, name: str) -> None:
    body, says = CLUSTERERS[name]
    stem = f"group_{name.replace(' ', '_')}"
    module(stem, f"def group(distance, k, seed):\n    {body}\n")
    study_with("clusterings.lcfl", {"clusterer": f"{stem}:group", "distance": "loss", "clusters": 2})
    clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=says)


MODELS: dict[str, tuple[str, list[str]]] = {
    "another input": (
        "return nn.Sequential(nn.Flatten(), nn.Linear(3, outputs))",
        ["can't take samples", "(1, 8, 8)"],
    ),
    "another output": ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))", ["10 classes", "(2, 2)"]),
    "nothing": ("return None", ["model 'net_nothing:net'", "torch module", "NoneType"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_that_does_not_fit(clusterfl: Clusterfl, done: Path, name: str) -> None:
    body, says = MODELS[name]
    stem = f"net_{name.replace(' ', '_')}"
    module(stem, f"def net(sample_shape, outputs):\n    {body}\n")
    study_with("model", {"model": f"{stem}:net"})
    clusterfl.refuses("federate", *ONE, "--method", "fedavg", says=says)


def test_convolutions_on_flat_samples(clusterfl: Clusterfl) -> None:
    module("flat", "def data(folder):\n    return np.ones((64, 3)), np.arange(64) % 2\n")
    study = put(tiny(), "federations.digits", {"dataset": "flat:data", "partition": {"scheme": "iid", "clients": 8}})
    write_yaml(Path("config.yaml"), put(study, "model", {"model": "lcfl-cnn"}))
    clusterfl.works("download", "flat:data")
    clusterfl.works("partition", *ONE)
    says = ["model 'lcfl-cnn'", "samples of shape (3,)"]
    clusterfl.refuses("federate", *ONE, "--method", "fedavg", says=says)


WAY = (
    "from dataclasses import dataclass\nfrom clusterfl.simulation.method import Method\n"
    "@dataclass(frozen=True, kw_only=True)\nclass Way(Method):\n"
)
FROZEN = ["a method is a frozen dataclass", "clusterfl.simulation.method.Method", "CONTRIBUTING.md"]
METHODS: dict[str, tuple[str, list[str]]] = {
    "a function": ("def Way(context):\n    return None\n", ["method 'way_a_function:Way' is no class", *FROZEN]),
    "another class": ("class Way:\n    pass\n", ["method 'way_another_class:Way' is the class Way", *FROZEN]),
    "not frozen": (
        "from dataclasses import dataclass\nfrom clusterfl.simulation.method import Method\n"
        "@dataclass\nclass Way(Method):\n    factor: float = 2.0\n",
        [
            "method 'way_not_frozen:Way': ",
            "way_not_frozen.py, line 6: TypeError: cannot inherit non-frozen dataclass from a frozen one",
        ],
    ),
    "an error at import": ("1 / 0\n", ["way_an_error_at_import.py, line 4: ZeroDivisionError: division by zero"]),
    "an import of what is missing": (
        "from clusterfl.methods.fedavg import FedAvg\nWay = FedAvg\n",
        [
            "way_an_import_of_what_is_missing.py, line 4: ModuleNotFoundError: No module named "
            "'clusterfl.methods.fedavg'; correct the import, or install what it needs"
        ],
    ),
    "an import of a missing name": (
        "from clusterfl.methods.fixed import FedAvgg\nWay = FedAvgg\n",
        ["way_an_import_of_a_missing_name.py, line 4: ImportError: cannot import name", "; correct the import"],
    ),
    "a hook misspelt": (
        f"{WAY}    def re_group(self, context, state, update):\n        state.labels[:] = 0\n",
        ["method Way has 're_group', which is never called; did you mean 'regroup'? Rename it, to _re_group if"],
    ),
    "an unknown need": (
        f'{WAY}    needs = frozenset({{"update"}})\n',
        ["method Way: needs has 'update'; did you mean 'updates'? allowed: curves, features, last_gradient, updates"],
    ),
    "a list of needs": (f'{WAY}    needs = ["updates"]\n', ["needs is a value of the type list; allowed: a set"]),
    "needs as an option": (
        f'{WAY}    needs: frozenset = frozenset({{"updates"}})\n',
        ["method Way has an option 'needs', which is a hook or class variable", "write needs: ClassVar"],
    ),
    "an option that is a key": (
        f"{WAY}    training: float = 0.5\n",
        ["Way has an option 'training', which no study can set: each block of a method has a key of that name", "swee"],
    ),
    "another name": (
        f"{WAY.replace('Way', 'Ways')}    pass\n",
        ["way_another_name.py defines no 'Way'; did you mean 'Ways'? allowed: Ways"],
    ),
    "no dataclass": (
        "from clusterfl.simulation.method import Method\nclass Way(Method):\n    factor: float = 2.0\n",
        ["method 'way_no_dataclass:Way' is the class Way", *FROZEN],
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_method(clusterfl: Clusterfl, folder: Path, name: str) -> None:
    body, says = METHODS[name]
    stem = f"way_{name.replace(' ', '_')}"
    module(stem, body)
    study_with("methods.mine", {"method": f"{stem}:Way"})
    clusterfl.refuses("check", says=["methods.mine.method: ", *says])


def test_a_method_that_draws_from_numpys_global_generator_is_named(
    clusterfl: Clusterfl, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module(
        "way_drawing",
        f"{WAY}    def begin(self, context):\n        np.random.seed(0)\n        return super().begin(context)\n",
    )
    study_with("methods.mine", {"method": "way_drawing:Way"})
    clusterfl.works("federate", *ONE, "--method", "mine")
    said = capsys.readouterr().err
    assert "federate mine digits seed 0: NumPy's global generator was drawn from or seeded" in said
    clusterfl.works("federate", *ONE, "--method", "fedavg")
    assert "global generator" not in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_training_that_diverges(clusterfl: Clusterfl, done: Path, study: dict[str, Any], backend: str) -> None:
    put(study, "engine.backend", backend)
    write_yaml(Path("config.yaml"), put(study, "training.learning_rate", 1e38))
    says = ["round ", "is NaN or infinite", "lower the learning rate", "diverged: exclude"]
    clusterfl.refuses("federate", *ONE, "--method", "fedavg", says=says)


def test_too_many_models(clusterfl: Clusterfl, done: Path) -> None:
    study_with("methods.ifca.clusters", 99)
    clusterfl.refuses(
        "federate",
        *ONE,
        "--method",
        "ifca",
        says=["methods.ifca.clusters: 99 clusters for 8 clients", "allowed: 1 to 8"],
    )


def test_oracle_without_planted_groups(clusterfl: Clusterfl, done: Path, study: dict[str, Any]) -> None:
    put(study, "federations.digits.partition", {"scheme": "iid", "clients": 8})
    write_yaml(Path("config.yaml"), put(study, "methods.oracle", {"method": "oracle"}))
    clusterfl.works("partition", *ONE)
    says = ["method 'oracle' needs planted groups", "drop it"]
    clusterfl.refuses("federate", *ONE, "--method", "oracle", says=says)


def test_no_cuda(clusterfl: Clusterfl, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    study_with("engine.device", "cuda")
    says = ["device: 'cuda' asked for", "finds no CUDA device", "use 'auto' or 'cpu'"]
    clusterfl.refuses("federate", *ONE, "--method", "fedavg", says=says)


def test_unknown_device(clusterfl: Clusterfl, done: Path) -> None:
    study_with("engine.device", "quantum")
    clusterfl.refuses(
        "federate", *ONE, "--method", "fedavg", says=["engine.device: found 'quantum'", "auto, cpu, cuda"]
    )


def test_scikit_learn_extra_missing(clusterfl: Clusterfl, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        *(n for n in sys.modules if n.startswith("sklearn_extra")),
        "sklearn_extra",
        "sklearn_extra.cluster",
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    study_with("clusterings.lcfl", {"clusterer": "kmedoids", "distance": "loss", "clusters": 2})
    says = ["'kmedoids' needs scikit-learn-extra", "make kmedoids", "fasterpam, hierarchical or spectral"]
    clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=says)


def test_more_clusters_than_a_partition_of_ones_own_has_clients(clusterfl: Clusterfl, done: Path) -> None:
    assert len(np.unique(read_table(RUN / "clusters" / "lcfl.parquet")["client"])) == 8
    module(
        "three",
        "def deal(y, generator):\n    return {'sample': np.arange(300), 'client': np.arange(300) % 3}\n",
    )
    study = put(tiny(), "federations.digits.partition", {"scheme": "three:deal"})
    write_yaml(Path("config.yaml"), put(study, "clusterings.lcfl.clusters", 5))
    clusterfl.works("partition", *ONE)
    clusterfl.works("warmup", *ONE, "--warmup", "short")
    clusterfl.works("distance", *ONE, "--distance", "loss")
    clusterfl.refuses("cluster", *ONE, "--clustering", "lcfl", says=["clusters: 5 for 3 clients", "allowed: 1 to 3"])
