"""Commands that are handed to the process that Snakemake's run keeps ready end, and write, as they do by themselves."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, tiny, write_yaml

from clusterfl.cli import forking, handing, main

PYTHON = os.environ | {"PYTHONPATH": str(ROOT / "src")} | forking.THREADS
# Says whether a command was handed over, besides its exit code: 77 stands for "do it yourself".
ASK = """
import sys
from clusterfl.cli.handing import handed
code = handed(sys.argv[1:])
sys.exit(77 if code is None else code)
"""
OWN = "import clusterfl.cli, sys; sys.exit(clusterfl.cli.main())"
RUN = ["--config", "results/tiny/settings.json", "--federation", "digits", "--seed", "0"]
FEDAVG = ["federate", *RUN, "--method", "fedavg"]
MINE = """
import json, os, resource, sys, time
from pathlib import Path
import numpy as np

def seen(folder, samples: int = 40):
    facts = {
        "folder": os.getcwd(), "mask": os.umask(0o77), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "nice": os.nice(0), "cores": sorted(os.sched_getaffinity(0)), "argv": sys.argv,
        "environment": dict(os.environ), "forked": "clusterfl.cli.forking" in sys.orig_argv,
    }
    os.umask(facts["mask"])
    Path("seen.json").write_text(json.dumps(facts))
    if Path("wait").exists():
        Path("slow").write_text(str(os.getpid()))
        time.sleep(60)
    rng = np.random.default_rng(0)
    return rng.random((samples, 4)).astype(np.float32), rng.integers(0, 2, samples)
"""
SEEN = ["download", "mine:seen"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a study that was run, and a module of the user's; the process is ready for it."""
    here = tmp_path_factory.mktemp("handed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        write_yaml(here / "config.yaml", tiny())
        (here / "mine.py").write_text(MINE)
        assert main(["run", "--method", "fedavg"]) == 0
        for name, text in PYTHON.items():
            patch.setenv(name, text)
        patch.delenv("PYTEST_CURRENT_TEST")
        end = forking.begin(3, Path("results/tiny/settings.json"))
        assert end is not None
        ready = Path(os.environ[handing.READY].partition(os.pathsep)[0])
        yield here
        assert ready.exists()
        end()
        gone(ready.parent)


def files(folder: Path) -> dict[Path, bytes]:
    """The bytes of all results but of times."""
    return {p: p.read_bytes() for p in (folder / "results").rglob("*.*") if p.is_file() and "timing" not in p.name}


def gone(place: Path) -> None:
    """Wait until a file isn't there any more."""
    until = time.monotonic() + 60
    while place.exists():
        assert time.monotonic() < until, place
        time.sleep(0.02)


def there(place: Path) -> str:
    """Wait for a file, and return what is in it."""
    until = time.monotonic() + 60
    while not (place.exists() and place.read_text()):
        assert time.monotonic() < until, place
        time.sleep(0.02)
    return place.read_text()


def start(words: list[str], handed: bool = True, code: str = ASK, **how: Any) -> subprocess.Popen[str]:
    """Start a command, or with other code that hands it over, with the process that is ready or without."""
    left = {"PYTEST_CURRENT_TEST"} if handed else {"PYTEST_CURRENT_TEST", handing.READY}
    given = {name: text for name, text in os.environ.items() if name not in left} | how.pop("more", {})
    return subprocess.Popen([sys.executable, "-c", code, *words], env=given, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **how)  # fmt: skip


def ask(words: list[str], expected: int = 0, handed: bool = True, code: str = ASK, **how: Any) -> str:
    """Return what a command says; by default it must be handed over."""
    with start(words, handed, code, **how) as process:
        said = process.communicate()[0]
    assert process.returncode == expected, said
    return said


def alone(words: list[str], expected: int) -> str:
    """Return what a process of its own says."""
    return ask(words, expected, handed=False, code=OWN)


def test_without_the_process_a_command_is_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(handing.READY, raising=False)
    assert handing.handed(FEDAVG) is None
    monkeypatch.setenv(handing.READY, handing.address(tmp_path))  # nobody listens
    assert handing.handed(FEDAVG) is None
    other = os.pathsep.join([str(tmp_path / "socket"), "/another/python", "/another/package"])
    monkeypatch.setenv(handing.READY, other)
    assert handing.handed(FEDAVG) is None
    assert forking.begin(2, tmp_path / "settings.json") is None  # too few jobs
    assert os.environ[handing.READY] == other


def test_a_changed_source_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "changing_source.py"
    place.write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(place.stem)
    before = forking.sources()
    assert before[str(place)] == place.stat().st_mtime_ns and str(Path(forking.__file__)) in before
    assert before == forking.sources() and not any("site-packages" in name for name in before)
    os.utime(place, ns=(1, 1))
    assert before != forking.sources()
    sys.modules.pop(place.stem)


@pytest.mark.slow
def test_same_bytes_and_words(folder: Path) -> None:
    before = files(folder)
    assert "nothing to compute" in ask([*FEDAVG, "--needed"])
    for path in (folder / "results/tiny/digits/seed0/methods/fedavg").iterdir():
        path.unlink()
    said = ask([*FEDAVG, "--needed"])
    assert "federate fedavg digits seed 0: " in said and "nothing" not in said
    assert files(folder) == before
    wrong = ["federate", *RUN, "--method", "fedavx"]
    assert ask(wrong, 2) == alone(wrong, 2) != ""
    assert ask(["federate", *RUN], 2) == alone(["federate", *RUN], 2)  # argparse's own
    assert ask(["summary", "tiny"], 77) == ""  # no stage


@pytest.mark.slow
def test_the_callers_surroundings(folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "mine.py").write_text(MINE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    core = min(os.sched_getaffinity(0))

    def change() -> None:
        os.umask(0o27)
        os.nice(3)
        os.sched_setaffinity(0, {core})
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))

    ask(SEEN, cwd=inside, preexec_fn=change, more={"TMPDIR": str(folder)})
    seen = json.loads((inside / "seen.json").read_text())
    assert seen["forked"] and seen["argv"] == ["clusterfl", *SEEN]
    assert seen["folder"] == str(inside) and seen["mask"] == 0o27 and seen["files"] == [soft - 1, hard]
    assert seen["nice"] == os.nice(0) + 3 and seen["cores"] == [core]
    assert seen["environment"]["TMPDIR"] == str(folder) and handing.READY not in seen["environment"]
    assert (inside / "data").stat().st_mode & 0o777 == 0o750


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"OMP_NUM_THREADS": "2"}, {"MKL_CBWR": "COMPATIBLE"}, {"CLUSTERFL_BRANCH": "avx2"}])
def test_other_variables_are_refused(folder: Path, change: dict[str, str]) -> None:
    ask([*FEDAVG, "--needed"], 77, more=change)


@pytest.fixture
def waiting(folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Return a function that starts a job, which then sleeps; it returns the command and the job's process."""
    said, here = folder / "slow", folder / "wait"
    here.touch()

    def begin(handed: bool, interrupt: Any = signal.SIG_DFL) -> tuple[subprocess.Popen[str], int]:
        said.unlink(missing_ok=True)
        process = start(SEEN, handed, OWN, preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt))
        job = int(there(said))
        assert (job == process.pid) != handed
        return process, job

    yield begin
    here.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_job(waiting, number: signal.Signals) -> None:
    ends = []
    for handed in (True, False):
        process, job = waiting(handed)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        ends.append((process.returncode, said))
        gone(Path(f"/proc/{job}"))
    assert ends[0] == ends[1] and ends[0][0] != 0


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(waiting) -> None:
    """As in a command that a shell runs in the background, which Ctrl-C doesn't reach."""
    for handed in (True, False):
        process, job = waiting(handed, signal.SIG_IGN)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None and Path(f"/proc/{job}").exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_one_is_killed_with_the_other(waiting) -> None:
    process, job = waiting(True)
    os.kill(job, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    process, job = waiting(True)
    process.kill()
    gone(Path(f"/proc/{job}"))
    process.communicate()
