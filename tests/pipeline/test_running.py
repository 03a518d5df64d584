"""Two at once, and places and settings of machines: the results have the same bytes, or a sentence says why not."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, put, tiny, undrawn, write_yaml
from test_checkpoint import files

from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.storage.locks import RUNNING, running

PARTITION = "results/tiny/digits/seed0/partition.parquet"
BOTH = ["data/digits/samples.safetensors", PARTITION]
ODD = 'größe (x) a\'b $c "d" `e` %f#'
ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def start(folder: Path, words: list[str], umask: int = 0o022, **environment: str) -> subprocess.Popen[str]:
    """Start snakemake or clusterfl in a folder."""
    program = {"snakemake": ["-m", "snakemake"], "clusterfl": ["-m", "clusterfl.cli"]}[words[0]]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")} | environment
    return subprocess.Popen([sys.executable, *program, *words[1:]], cwd=folder, env=given, umask=umask, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip


def run(folder: Path, words: list[str], code: int = 0, **how: Any) -> str:
    process = start(folder, words, **how)
    said = process.communicate()[0]
    assert process.returncode == code, said
    return said


def workflow(folder: Path, study: dict[str, Any] | None = None) -> Path:
    """Make a folder with the workflow and a study."""
    assert main(["init", str(folder)]) == 0
    write_yaml(folder / "config.yaml", study or tiny())
    return folder


def started(process: subprocess.Popen[str], place: Path) -> None:
    """Wait until a run has claimed its study."""
    until = time.monotonic() + 120
    while not (place.exists() and place.read_text(encoding="utf-8")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, run in a usual place."""
    return run_here(tmp_path_factory.mktemp("plain"), 0o002)


def run_here(folder: Path, umask: int) -> Path:
    """Run the study by this process."""
    write_yaml(folder / "config.yaml", tiny())
    before = os.umask(umask)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            undrawn(patch)
            assert main(["run"]) == 0
    finally:
        os.umask(before)
    return folder


def modes(folder: Path) -> set[str]:
    """Return the permissions of all files and folders of data and results, by kind."""
    found = [path for part in ("data", "results") for path in (folder / part).rglob("*")]
    assert len(found) > 40
    return {f"{'folder' if path.is_dir() else 'file'} {stat.S_IMODE(path.stat().st_mode):03o}" for path in found}


# One folder.


def test_a_run_keeps_others_out_and_says_who_it_is(tmp_path: Path) -> None:
    study = tmp_path / "results" / "tiny"
    with running(study, [], "snakemake"):
        for shared in (False, True):
            with pytest.raises(UserError) as caught, running(study, [], "clusterfl run", shared):
                pass
            said = str(caught.value)
            assert f"'tiny' is being run in this folder by process {os.getpid()} on " in said
            assert ": snakemake; wait until that ends" in said and f"kill -INT {os.getpid()} on" in said
        with running(tmp_path / "results" / "other", [], "snakemake"):
            pass
    assert not (study / RUNNING).exists()
    with running(study, [], "clusterfl run", True), running(study, [], "clusterfl run", True):
        with pytest.raises(UserError, match="clusterfl run"), running(study, [], "snakemake"):
            pass
        assert (study / RUNNING).exists()
    assert not (study / RUNNING).exists()


def test_two_studies_do_not_fetch_the_same_data_at_once(tmp_path: Path) -> None:
    one, other, data = tmp_path / "one", tmp_path / "other", tmp_path / "data"
    with running(one, [data], "snakemake"):
        with pytest.raises(UserError, match="start again when its download is done"), running(other, [data], "x"):
            pass
        assert not (other / RUNNING).exists()
        with running(other, [], "snakemake"):  # it has its data
            pass


def test_what_a_killed_run_left_keeps_nobody_out_and_is_not_named(tmp_path: Path) -> None:
    code = f"import time; from pathlib import Path; from clusterfl.storage.locks import running\n" \
           f"with running(Path({str(tmp_path)!r}), [], 'clusterfl run', True): print('there', flush=True); " \
           "time.sleep(60)"  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline()
    with running(tmp_path, [], "clusterfl run", True):
        process.kill()
        process.communicate()
        with pytest.raises(UserError) as caught, running(tmp_path, [], "snakemake"):
            pass
        assert f"process {process.pid} " not in str(caught.value) and f"process {os.getpid()} " in str(caught.value)
    with running(tmp_path, [], "snakemake"):
        pass


@pytest.mark.slow
def test_snakemake_is_one_at_a_time_and_its_kill_leaves_no_lock(plain: Path, tmp_path: Path) -> None:
    folder = workflow(tmp_path / "new")
    claim = folder / "results" / "tiny" / RUNNING
    first = start(folder, ["snakemake", "--cores", "1", *BOTH])
    started(first, claim)
    words = f"is being run in this folder by process {first.pid} on "
    assert words in run(folder, ["clusterfl", "run"], code=2)
    first.kill()
    first.communicate()
    assert claim.exists()
    run(folder, ["snakemake", "--cores", "1", PARTITION])  # its jobs live on: done by one of both
    assert not claim.exists()
    for name in BOTH:
        assert (folder / name).read_bytes() == (plain / name).read_bytes()
    with running(claim.parent, [], "clusterfl run"):  # as long as it holds, no second Snakemake
        said = run(folder, ["snakemake", "--cores", "1", "results/tiny/digits/seed0/warmup/short/rounds.parquet"], 1)
    assert f"by process {os.getpid()} on " in said and "clusterfl run" in said
    assert not (folder / "results/tiny/digits/seed0/warmup").exists()


@pytest.mark.slow
def test_two_studies_at_once_in_one_folder_and_in_another(plain: Path, tmp_path: Path) -> None:
    one, two = workflow(tmp_path / "one"), workflow(tmp_path / "two")
    write_yaml(one / "other.yaml", put(tiny(), "study", "other"))
    run(one, ["clusterfl", "download", "digits"])
    processes = [
        start(one, ["snakemake", "--cores", "1"]),
        start(one, ["snakemake", "--cores", "1", "--configfile", "other.yaml"]),
        start(two, ["snakemake", "--cores", "1"]),
    ]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    expected = files(plain)
    for folder, study in ((one, "tiny"), (one, "other"), (two, "tiny")):
        found = files(folder)
        assert expected == {name: found[name.replace("results/tiny/", f"results/{study}/")] for name in expected}


# Places and settings.


@pytest.mark.slow
def test_an_odd_folder_and_a_strict_umask_change_no_byte(plain: Path, tmp_path: Path) -> None:
    (tmp_path / ODD).mkdir()
    same_as_plain(plain, run_here(tmp_path / ODD, 0o077))


@pytest.mark.slow
def test_an_odd_folder_ascii_and_a_strict_umask_change_no_byte(plain: Path, tmp_path: Path) -> None:
    """By a process of its own, which reads and writes no letter but ASCII's, and with figures."""
    folder = tmp_path / ODD
    folder.mkdir()
    write_yaml(folder / "config.yaml", tiny())
    run(folder, ["clusterfl", "run"], umask=0o077, **ASCII)
    same_as_plain(plain, folder)


def same_as_plain(plain: Path, folder: Path) -> None:
    """Compare results and permissions with those of the usual place."""
    assert files(folder) == files(plain) != {}
    for name in ("agreement", "curves", "members"):
        table = f"results/tiny/tables/{name}.csv"
        assert (folder / table).read_bytes() == (plain / table).read_bytes()
    assert modes(folder) == {"file 600", "folder 700"}
    assert modes(plain) == {"file 664", "folder 775"}


@pytest.mark.slow
def test_letters_that_a_stream_lacks_are_replaced(plain: Path) -> None:
    write_yaml(plain / "größe.yaml", tiny())
    assert "'größe.yaml'" not in run(plain, ["clusterfl", "check", "--config", "größe.yaml"], **ASCII)
    assert "größe.yaml is sound" in run(plain, ["clusterfl", "check", "--config", "größe.yaml"], PYTHONUTF8="1")


@pytest.mark.slow
def test_a_federation_is_described_in_ascii(plain: Path) -> None:
    assert "digits: 8 members" in run(plain, ["clusterfl", "describe", "digits", "--config", "config.yaml"], **ASCII)


@pytest.mark.slow
def test_snakemake_leaves_a_read_only_folder_as_it_is(plain: Path, tmp_path: Path) -> None:
    here, there = workflow(tmp_path / f"a {ODD[:12]}"), tmp_path / "b größe"
    before = {path: path.lstat().st_mtime_ns for path in here.rglob("*")}
    for path in before:
        path.chmod(path.lstat().st_mode & ~0o222) if not path.is_symlink() else None
    here.chmod(0o555)
    try:
        snakefile = ["--snakefile", str(here / "Snakefile"), "--directory", str(there)]
        run(tmp_path, ["snakemake", "--cores", "1", *snakefile, *BOTH], **ASCII)
    finally:
        for path in [here, *before]:
            path.chmod(path.lstat().st_mode | 0o200) if not path.is_symlink() else None
    assert {path: path.lstat().st_mtime_ns for path in here.rglob("*")} == before
    for name in BOTH:
        assert (there / name).read_bytes() == (plain / name).read_bytes()


def test_init_from_a_read_only_package_gives_files_to_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = workflow(tmp_path / "package")
    paths = [path for path in package.rglob("*") if not path.is_symlink()]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr("clusterfl.pipeline.project.source", lambda: package)
    workflow(tmp_path / "new")
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "new").rglob("*"))
    for path in paths:
        path.chmod(0o755)


@pytest.mark.parametrize("letter", ["$", "`", '"', "\\", ":"])
def test_make_refuses_a_folder_in_which_scripts_cannot_run(letter: str, tmp_path: Path) -> None:
    folder = tmp_path / f"a{letter}b"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(["make", "setup"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"lies in one with {letter}," in done.stdout
    assert not (folder / ".venv").exists()


def test_the_versions_of_python_promised_are_those_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.11,<3.14"' in text
    for minor in (11, 12, 13):
        assert f'"Programming Language :: Python :: 3.{minor}"' in text
