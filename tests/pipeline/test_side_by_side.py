"""Jobs side by side: the order, what ends them, and that nobody can tell from the files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, tiny, write_yaml
from federations import slow_but
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from clusterfl.cli import main
from clusterfl.errors import Stopped, UserError
from clusterfl.pipeline import side_by_side
from clusterfl.pipeline.job import Job
from clusterfl.pipeline.jobs import Plan


@pytest.fixture
def jobs() -> list[Job]:
    return list(Plan.from_settings(tiny() | {"seeds": {"runs": [0, 1]}}).jobs())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def noted(log: Path, seconds: float = 0.02) -> Callable[[int], int]:
    """Return work that notes when each job begins and ends: single lines, which the system appends whole."""

    def note(what: str, i: int) -> None:
        with log.open("a") as file:
            file.write(f"{what} {i}\n")

    def work(i: int) -> int:
        note("begin", i)
        time.sleep(seconds)
        note("end", i)
        return 0

    return work


def lines(log: Path) -> list[tuple[str, int]]:
    parts = (line.split() for line in log.read_text().splitlines())
    return [(what, int(i)) for what, i in parts]


@pytest.mark.parametrize("number", slow_but([2], [1, 2, 5]))
def test_each_job_waits_for_what_it_needs(number: int, jobs: list[Job], log: Path) -> None:
    assert side_by_side.run(jobs, number, noted(log)) == 0
    found, ended, running, most = lines(log), set(), 0, 0
    for what, i in found:
        if what == "begin":
            needed = {other.first for other in jobs[i].upstream.values()}
            assert needed <= {jobs[k].first for k in ended}
        else:
            ended.add(i)
        running += 1 if what == "begin" else -1
        most = max(most, running)
    assert ended == set(range(len(jobs))) and len(found) == 2 * len(jobs)
    assert most == (1 if number == 1 else most) and most <= number


def test_some_run_at_the_same_time(jobs: list[Job], tmp_path: Path) -> None:
    """Two jobs that each wait for the other's file: one after the other would never end."""
    pair = [job for job in jobs if job.stage == "partition"]

    def work(i: int) -> int:
        (tmp_path / str(i)).touch()
        until = time.monotonic() + 30
        while time.monotonic() < until and not (tmp_path / str(1 - i)).exists():
            time.sleep(0.01)
        return 0 if (tmp_path / str(1 - i)).exists() else 1

    assert side_by_side.run(pair, 2, work) == 0


def test_after_a_failure_no_other_job_begins(jobs: list[Job], log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = noted(log)
    bad = next(i for i, job in enumerate(jobs) if job.stage == "partition")
    assert side_by_side.run(jobs, 1, lambda i: 2 if i == bad else good(i)) == 2
    assert max(i for _, i in lines(log)) < bad

    def breaks(i: int) -> int:
        raise ValueError("a mistake of ours")

    assert side_by_side.run(jobs, 2, breaks) == 1
    assert "ValueError: a mistake of ours" in capfd.readouterr().err


def test_what_does_not_need_a_failed_job_is_done(jobs: list[Job], log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A partition fails: nothing of its seed is begun, all of the other's is but for the report, which needs both."""
    good = noted(log, 0)
    bad = next(i for i, job in enumerate(jobs) if job.stage == "partition" and job.seed == 0)
    assert side_by_side.run(jobs, 2, lambda i: 3 if i == bad else good(i), keep_going=True) == 3
    done = {i for what, i in lines(log) if what == "end"}
    assert done == {i for i, job in enumerate(jobs) if job.seed == 1 or job.stage == "download"}
    said = capfd.readouterr().err
    others = f"not started, because they need one of these: {len(jobs) - len(done) - 1}"
    assert said == f"failed: partition digits seed 0; {others}\n"


def test_a_killed_job_is_named_though_others_went_on(
    jobs: list[Job], log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair, good = [job for job in jobs if job.stage == "partition"], noted(log)

    def work(i: int) -> int:
        if i == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return good(i)

    with pytest.raises(UserError, match=r"partition digits seed 0: its process was killed by SIGKILL"):
        side_by_side.run(pair, 1, work, keep_going=True)
    assert lines(log) == [("begin", 1), ("end", 1)]
    assert capfd.readouterr().err == "failed: partition digits seed 0\n"


def test_a_killed_job_is_named_when_the_others_have_ended(jobs: list[Job], log: Path) -> None:
    pair, good = [job for job in jobs if job.stage == "partition"], noted(log, 0.3)

    def work(i: int) -> int:
        if i == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return good(i)

    with pytest.raises(UserError, match=r"partition digits seed 0: its process was killed by SIGKILL.*fewer --jobs"):
        side_by_side.run(pair, 2, work)
    assert lines(log) == [("begin", 1), ("end", 1)]


@pytest.mark.parametrize("number, keep_going", [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_reaches_the_jobs_once(
    number: signal.Signals, keep_going: bool, jobs: list[Job], log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = os.getpid()

    def work(i: int) -> int:
        caught: list[int] = []
        signal.signal(number, lambda n, frame: caught.append(n))
        os.kill(parent, number)
        until = time.monotonic() + 30
        while time.monotonic() < until and not caught:
            time.sleep(0.01)
        with log.open("a") as file:
            file.write(f"caught {len(caught)}\n")
        return 128 + number

    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=f"stopped by {number.name}.*continues") as found:
        side_by_side.run(jobs, 2, work, keep_going)
    assert found.value.number == number and signal.getsignal(number) == before
    assert "failed" not in capfd.readouterr().err  # what was stopped goes on
    assert lines(log) == [("caught", 1)]  # the first job is the download, on which all others wait


def test_a_second_signal_ends_jobs_that_do_not_listen(jobs: list[Job], log: Path) -> None:
    parent = os.getpid()

    def work(i: int) -> int:
        for _ in range(2):
            os.kill(parent, signal.SIGINT)
            time.sleep(0.2)
        time.sleep(60)
        return 0

    began = time.monotonic()
    with pytest.raises(Stopped, match="stopped by SIGINT"):
        side_by_side.run(jobs, 2, work)
    assert time.monotonic() - began < 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they live on")
def test_jobs_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import os, time; from conftest import tiny\n"
        "from clusterfl.pipeline import side_by_side; from clusterfl.pipeline.jobs import Plan\n"
        "jobs = list(Plan.from_settings(tiny()).jobs())[:1]\n"
        "def work(i):\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n    return 0\n"
        "side_by_side.run(jobs, 2, work)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT / "tests") as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        run.kill()
    until = time.monotonic() + 30
    while time.monotonic() < until and _lives(child):
        time.sleep(0.05)
    assert not _lives(child)


def _lives(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_job_computes_though_threads_of_its_parent_have_computed(jobs: list[Job]) -> None:
    x, before = torch.rand(1000, 1000), torch.get_num_threads()

    def compute() -> None:
        x.exp(), x @ x, KMeans(2, n_init=1, max_iter=1).fit(x)  # OpenMP of torch, of MKL and of scikit-learn

    def work(i: int) -> int:
        signal.alarm(60)  # which kills a process that waits for threads it hasn't
        compute()
        return 0

    torch.set_num_threads(2)
    try:
        with threadpool_limits(2):
            compute()
            assert side_by_side.run(jobs[:1], 1, work) == 0
    finally:
        torch.set_num_threads(before)


def _files(folder: Path) -> dict[str, bytes]:
    kept = (path for path in folder.rglob("*") if path.is_file() and "timing" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if path.name not in ("report.html",)}


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_the_files_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study: dict[str, Any] = tiny() | {"seeds": {"runs": [0, 1]}}
    found = []
    for number in ("1", "3"):
        place = tmp_path / number
        place.mkdir()
        monkeypatch.chdir(place)
        write_yaml(place / "config.yaml", study)
        assert main(["run", "--jobs", number]) == 0
        found.append(_files(place / "results/tiny/digits"))
    assert found[0] == found[1] and len(found[0]) > 20
    said = capfd.readouterr().err
    assert main(["run", "--jobs", "3"]) == 0
    assert "report" in said and capfd.readouterr().err == ""  # all is done


def test_a_failure_is_reported_as_it_is_without_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = tiny()
    study["training"]["learning_rate"] = 1e30
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "config.yaml", study)
    assert main(["run", "--jobs", "2"]) == 2
    assert "clusterfl: " in capfd.readouterr().err


def test_a_method_that_diverges_costs_only_itself_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = tiny()
    study["methods"] = {
        "fedavg": {"method": "fedavg", "training": {"learning_rate": 1e30}},
        "local": study["methods"]["local"],
    }
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "config.yaml", study)
    assert main(["run", "--keep-going"]) == 2
    said = capfd.readouterr().err
    assert said.endswith("failed: federate fedavg digits seed 0; not started, because they need one of these: 1\n")
    made = tmp_path / "results/tiny/digits/seed0/methods"
    assert (made / "local/history.parquet").exists() and not (made / "fedavg/history.parquet").exists()
