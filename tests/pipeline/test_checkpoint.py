"""Checkpoints: whatever ends a run, the next one goes on, and ends with the bytes of an undisturbed run."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import put, tiny, undrawn, write_yaml
from federations import slow_but

from clusterfl.cli import main
from clusterfl.errors import Stopped, UserError
from clusterfl.pipeline import checkpoint as unfinished
from clusterfl.pipeline import crate
from clusterfl.pipeline.checkpoint import SECONDS, Saved, Unfinished
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.job import Job
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages import distance
from clusterfl.report.tables import processes, timing
from clusterfl.storage.digest import of_file
from clusterfl.storage.locks import only_while_locked

STAGES = ("run", "--federation", "digits")  # all but the report


class Killed(BaseException):
    """Stands for SIGKILL inside a process that is to live on."""


def settings(rounds: int = 6) -> dict[str, Any]:
    """Every stage and every kind of method, some with memory on the server and some with splits."""
    study = put(tiny(), "training", {"rounds": rounds, "epochs": None, "steps": 1, "participation": 0.5})
    put(study, "training.evaluations", ["aggregated", "local", "stale", "personalised", "newcomer"])
    put(study, "federations.digits.partition.newcomers", 1)
    put(study, "warmups.short", {"rounds": 4, "training": {"evaluations": ["aggregated", "stale"]}})
    put(study, "distances.cosine", {"metric": "gradient-cosine", "warmup": "short"})
    put(study, "clusterings.cosine", {"clusterer": "hierarchical", "distance": "cosine", "clusters": 2})
    put(study, "methods.cosine", {"method": "lcfl", "clustering": "cosine"})
    for name in ("fedavgm", "clove", "fesem", "cfl", "fedgwc"):
        put(study, f"methods.{name}", {"method": name} | ({"clusters": 2} if name in ("clove", "fesem") else {}))
    return study


def files(folder: Path) -> dict[str, str]:
    """Digests of all that has the same bytes in every run, as what has seconds hasn't."""
    walked = (Path(place) / name for place, _, names in os.walk(folder / "results", followlinks=True) for name in names)
    found = sorted(p for p in walked if p.suffix in (".parquet", ".safetensors"))
    return {str(p.relative_to(folder)): of_file(p) for p in found if "timing" not in p.name}


def in_folder(folder: Path, study: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_yaml(folder / "config.yaml", study)
    return folder


def command(folder: Path, *words: str, seconds: float | str = 0, **how: Any) -> subprocess.Popen[str]:
    """Start clusterfl in a folder, in a process group of its own."""
    given = os.environ | {SECONDS: str(seconds)}
    how = {"stderr": subprocess.DEVNULL, "start_new_session": True} | how
    return subprocess.Popen([sys.executable, "-m", "clusterfl.cli", *words], cwd=folder, env=given, text=True, **how)


def finish(folder: Path, *words: str, **how: Any) -> str:
    """Run clusterfl to its end; return what it said."""
    code, said = ending(command(folder, *(words or ("run",)), stderr=subprocess.PIPE, **{"seconds": 1e6} | how))
    assert code == 0, said
    return said


def ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; return its exit code and what it said."""
    said = process.communicate(timeout=120)[1]
    return process.returncode, said


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that ran in one go, without a checkpoint and up to the report, which has none."""
    folder = in_folder(tmp_path_factory.mktemp("undisturbed"), settings())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        undrawn(patch)
        patch.setenv(SECONDS, "1e6")
        assert main([*STAGES]) == 0
    return folder


JOBS = [job for job in Plan.from_settings(settings()).jobs() if job.stage in ("warmup", "distance", "federate")]
QUICK = ("fedavg", "cfl", "fesem")


def interrupted(patch: pytest.MonkeyPatch, job: Job, after: int) -> None:
    """Run a job until it has written some checkpoints."""
    write, written = Unfinished._write, 0

    def count(self: Unfinished, *given: Any) -> bool:
        nonlocal written
        write(self, *given)
        written += 1
        if written == after:
            raise Killed
        return True

    with patch.context() as inner:
        inner.setattr(Unfinished, "_write", count)
        with pytest.raises(Killed):
            execute(job)


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished study as working folder, a checkpoint after every step."""
    subprocess.run(["cp", "-r", f"{undisturbed}/.", tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SECONDS, "0")
    monkeypatch.setattr(distance, "MODELS", 2)
    return tmp_path


@pytest.mark.parametrize(
    "job", slow_but([job for job in JOBS if job.stage != "federate" or job.name in QUICK], JOBS), ids=str
)
@pytest.mark.parametrize("after", slow_but([1], [1, 2]))
def test_a_job_goes_on_where_it_was_killed(
    job: Job, after: int, copied: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if job.stage == "distance" and job.name != "loss":
        return  # needs no losses
    job = Plan.from_files([Path("config.yaml")]).job(job.stage, job.federation, job.seed, job.name)
    for output in job.outputs.values():
        subprocess.run(["rm", "-r", output], check=True)
    interrupted(monkeypatch, job, after)
    assert list(job.unfinished.glob("*/manifest.json"))
    execute(job)
    assert "resuming after step" in capsys.readouterr().err
    assert not (copied / "results/tiny/.work").exists()
    assert files(copied) == files(undisturbed)


def test_what_processes_spent_on_a_job_is_counted(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a made-up clock: two processes were stopped in hours 1 and 2 of the job, a third ended it in hour 3."""
    job = Plan.from_files([Path("config.yaml")]).job("federate", "digits", 0, "ifca")
    subprocess.run(["rm", "-r", job.first.parent], check=True)
    clock, host = 0.0, "a"
    monkeypatch.setattr(unfinished.time, "time", lambda: clock)
    monkeypatch.setattr(unfinished.platform, "node", lambda: host)
    write = Unfinished._write

    def later(self: Unfinished, *given: Any) -> bool:
        nonlocal clock
        clock += 600.0
        return write(self, *given)

    monkeypatch.setattr(Unfinished, "_write", later)
    for number in range(2):
        clock, host = 10000.0 * number, "ab"[number]
        interrupted(monkeypatch, job, 2)
    clock = 20000.0
    execute(job)
    monkeypatch.undo()
    monkeypatch.chdir(copied)
    assert "1200.0 s, and 2400.0 s before it was stopped" in capsys.readouterr().err
    found = processes(job.first)
    assert found["seconds"].tolist() == [1200.0] * 3
    assert found["host"].tolist() == ["a", "b", "b"]
    assert found["date"].dt.strftime("%H:%M:%S").tolist() == ["00:00:00", "02:46:40", "05:33:20"]
    assert timing(job.first)["round"].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert crate._times(job) == (datetime(1970, 1, 1, tzinfo=UTC), datetime.fromtimestamp(21200, UTC))


def place(folder: Path, **identity: Any) -> Unfinished:
    return Unfinished(folder, {"name": "a"} | identity, seconds=0)


def numbers(step: int) -> Saved:
    return Saved(step, {"x": np.arange(step)}, {"t": {"round": np.arange(step)}})


def test_the_last_checkpoint_counts_and_is_the_only_one(tmp_path: Path) -> None:
    for step in (1, 9, 10):
        place(tmp_path).at(step, lambda step=step: numbers(step))
    found = place(tmp_path).read()
    assert found is not None and found.step == 10
    assert [p.name for p in tmp_path.iterdir()] == ["00000010"]
    np.testing.assert_array_equal(found.tensors["x"], np.arange(10))
    np.testing.assert_array_equal(found.tables["t"]["round"], np.arange(10))


@pytest.mark.parametrize("name", ["arrays.safetensors", "t.parquet", "manifest.json"])
def test_a_damaged_checkpoint_is_reported_and_not_used(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path).at(3, lambda: numbers(3))
    file = tmp_path / "00000003" / name
    file.write_bytes(file.read_bytes()[:-3])
    assert place(tmp_path).read() is None
    said = capsys.readouterr().err
    assert "checkpoint not used, the job starts again" in said and name in said


def test_a_checkpoint_of_other_settings_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(tmp_path, settings="a").at(3, lambda: numbers(3))
    assert place(tmp_path, settings="b").read() is None
    assert "settings 'a', not 'b'" in capsys.readouterr().err


def test_one_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    place(tmp_path).at(3, lambda: numbers(3))
    (tmp_path / "00000004").mkdir()
    (tmp_path / "00000004" / "arrays.safetensors").write_bytes(b"half")
    found = place(tmp_path).read()
    assert found is not None and found.step == 3


def test_of_two_the_later_counts(tmp_path: Path) -> None:
    """Who is killed between writing one and deleting the one before leaves both."""
    place(tmp_path).at(3, lambda: numbers(3))
    (tmp_path / "00000003").rename(tmp_path / "aside")
    place(tmp_path).at(10, lambda: numbers(10))
    (tmp_path / "aside").rename(tmp_path / "00000003")
    found = place(tmp_path).read()
    assert found is not None and found.step == place(tmp_path).step == 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux what the process had in memory")
def test_the_peak_of_memory_is_in_bytes() -> None:
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = 1024 * int(said["VmHWM"].split()[0])
    (worked,) = Unfinished().worked()  # of children, too, of which there may be larger ones
    assert 0.9 * most < worked.peak_bytes < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_no_more_than_two_percent_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a made-up clock on which a round takes 10 seconds and writing 3."""
    clock, written = 0.0, 0
    monkeypatch.setattr(unfinished.time, "monotonic", lambda: clock)
    kept = Unfinished(tmp_path, {"name": "a"}, seconds=20)

    def make() -> Saved:
        nonlocal clock, written
        clock, written = clock + 3, written + 1
        return numbers(1)

    for step in range(1000):
        clock += 10
        kept.at(step, make)
    assert 0.015 < 3 * written / clock <= 0.02


def test_nothing_is_written_before_it_is_due(tmp_path: Path) -> None:
    kept = Unfinished(tmp_path, {}, seconds=1e6)
    kept.at(1, lambda: pytest.fail("asked for"))
    Unfinished().at(1, lambda: pytest.fail("asked for"))


@pytest.mark.parametrize("given", ["-1", "often", "nan"])
def test_seconds_are_checked(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, given)
    with pytest.raises(UserError, match=f"CLUSTERFL_CHECKPOINT='{given}'"):
        Unfinished()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_after_a_checkpoint(number: int, tmp_path: Path) -> None:
    kept = Unfinished(tmp_path, {"name": "a"}, seconds=1e6)
    before = signal.getsignal(number)
    with kept.watching():
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match="after step 5; the same command resumes from"):
            kept.at(5, lambda: numbers(5))
    assert signal.getsignal(number) is before
    found = place(tmp_path).read()
    assert found is not None and found.step == 5


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Unfinished(tmp_path, {}, seconds=1e6).watching():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigusr1_writes_and_goes_on(tmp_path: Path) -> None:
    kept = Unfinished(tmp_path, {"name": "a"}, seconds=1e6)
    with kept.watching():
        os.kill(os.getpid(), signal.SIGUSR1)
        kept.at(5, lambda: numbers(5))
        kept.at(6, lambda: pytest.fail("asked for"))
    found = place(tmp_path).read()
    assert found is not None and found.step == 5


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path).at(3, lambda: numbers(3))

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(unfinished, "write_tensors", full)
        place(tmp_path).at(4, lambda: numbers(4))
    said = capsys.readouterr().err
    assert "no checkpoint after step 4" in said and "No space left on device" in said
    found = place(tmp_path).read()
    assert found is not None and found.step == 3


def test_who_waited_for_a_job_does_nothing_twice(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `test_a_second_process_waits_and_does_nothing_twice`, by a thread."""
    job = Plan.from_files([Path("config.yaml")]).job("federate", "digits", 0, "ifca")
    before, second, said = job.first.stat().st_mtime_ns, threading.Thread(target=execute, args=[job]), ""
    with only_while_locked(job.unfinished, "doing the same job"):
        second.start()
        until = time.monotonic() + 60
        while "waiting for" not in said and time.monotonic() < until:
            time.sleep(0.01)
            said += capsys.readouterr().err
    second.join(60)
    said += capsys.readouterr().err
    assert f"waiting for process {os.getpid()} on" in said and "which is doing the same job" in said
    assert "done by the other process" in said and job.first.stat().st_mtime_ns == before


# Real processes, which are killed, stopped or kept from writing: slow -------------------------------------------------


def long() -> dict[str, Any]:
    """One method that takes some seconds, by two workers."""
    study = put(settings(60), "methods", {"ifca": {"method": "ifca", "clusters": 2}})
    put(study, "training.evaluations", ["aggregated"])
    for name in ("warmups", "distances", "clusterings"):
        put(study, name, {})
    return put(study, "baseline", ...)


METHOD = ("federate", "--federation", "digits", "--seed", "0", "--method", "ifca", "--threads", "2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long study, undisturbed."""
    folder = in_folder(tmp_path_factory.mktemp("whole"), long())
    finish(folder)
    return folder


@pytest.fixture
def begun(whole: Path, tmp_path: Path) -> Path:
    """The long study without its method's results."""
    subprocess.run(["cp", "-r", f"{whole}/.", tmp_path], check=True)
    subprocess.run(["rm", "-r", tmp_path / "results/tiny/digits/seed0/methods/ifca"], check=True)
    return tmp_path


def wait_for(condition: Any, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} didn't come in {seconds} s"
        time.sleep(0.01)


def checkpoint_in(folder: Path) -> bool:
    return any(folder.glob("results/tiny/.work/*/*/manifest.json"))


def same_results(folder: Path, other: Path) -> None:
    mine, theirs = files(folder), files(other)
    report = {name for name in theirs if "/digits/" not in name}  # the report wasn't made here
    assert {n: d for n, d in mine.items() if n not in report} == {n: d for n, d in theirs.items() if n not in report}


def children(process: subprocess.Popen[str]) -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in found.read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_loses_nothing(number: int, begun: Path, whole: Path) -> None:
    """As a terminal's ^C, or SLURM's before the limit: the workers and `tee` get it, too."""
    line = f"{sys.executable} -m clusterfl.cli {' '.join(METHOD)} 2>&1 | tee log; exit ${{PIPESTATUS[0]}}"
    given = os.environ | {SECONDS: "0"}
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' {number}; {line}"], cwd=begun, env=given, start_new_session=True
    )
    wait_for(lambda: checkpoint_in(begun), "a checkpoint")
    os.killpg(process.pid, number)
    assert process.wait(60) == 128 + number
    assert checkpoint_in(begun)
    assert "resuming after step" in finish(begun, *METHOD)
    same_results(begun, whole)


@pytest.mark.slow
def test_killed_with_workers_none_of_which_lives_on(begun: Path, whole: Path) -> None:
    process = command(begun, *METHOD)
    wait_for(lambda: checkpoint_in(begun), "a checkpoint")
    workers = children(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in workers), "the workers' end")
    assert "resuming after step" in finish(begun, *METHOD)
    same_results(begun, whole)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_job_with_a_sentence(begun: Path, whole: Path) -> None:
    process = command(begun, *METHOD, stderr=subprocess.PIPE)
    wait_for(lambda: checkpoint_in(begun), "a checkpoint")
    os.kill(children(process)[0], signal.SIGKILL)
    code, said = ending(process)
    assert code == 2
    assert "a worker process was killed, most likely because the system ran out of memory" in said
    assert "resuming after step" in finish(begun, *METHOD)
    same_results(begun, whole)


@pytest.mark.slow
def test_suspended_and_resumed(begun: Path, whole: Path) -> None:
    process = command(begun, *METHOD)
    for _ in range(3):
        wait_for(lambda: checkpoint_in(begun), "a checkpoint")
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    same_results(begun, whole)


@pytest.mark.slow
def test_a_second_process_waits_and_does_nothing_twice(begun: Path, whole: Path) -> None:
    """As when a killed Snakemake's child lives on while its successor begins the same job."""
    first = command(begun, *METHOD)
    wait_for(lambda: checkpoint_in(begun), "a checkpoint")
    said = finish(begun, *METHOD)
    assert first.wait(120) == 0
    assert f"waiting for process {first.pid} on" in said and "which is doing the same job" in said
    assert "done by the other process" in said
    same_results(begun, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_checkpoints_and_then_the_job_with_a_sentence(
    begun: Path, whole: Path, small_disk: Path
) -> None:
    work, results = begun / "results/tiny/.work", begun / "results/tiny/digits/seed0/methods"
    (small_disk / "work").mkdir()
    work.symlink_to(small_disk / "work")
    (small_disk / "filler").write_bytes(bytes(1020 << 10))
    assert "no checkpoint after step 1: no space left on the disk for" in finish(begun, *METHOD, seconds=0)
    same_results(begun, whole)
    subprocess.run(["rm", "-r", results / "ifca"], check=True)
    (small_disk / "ifca").mkdir()
    (results / "ifca").symlink_to(small_disk / "ifca")
    code, said = ending(command(begun, *METHOD, stderr=subprocess.PIPE))
    assert code == 2 and "no space left on the disk for" in said and "run the same command again" in said
    (small_disk / "filler").unlink()
    finish(begun, *METHOD)
    same_results(begun, whole)


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Take the permission to write away for a while; from root, whom none stops, by mounting."""
    if os.getuid() != 0:
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)
        return
    if subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], capture_output=True).returncode:
        pytest.skip("this system mounts nothing")
    yield
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.slow
def test_folders_that_become_unwritable(begun: Path, whole: Path) -> None:
    """Checkpoints stop, the job ends with a sentence; made writable again, the job goes on."""
    process = command(begun, *METHOD, stderr=subprocess.PIPE)
    wait_for(lambda: checkpoint_in(begun), "a checkpoint")
    work = next(begun.glob("results/tiny/.work/federate*"))
    with unwritable(work), unwritable(begun / "results/tiny/digits/seed0/methods"):
        code, said = ending(process)
    assert code == 2 and "no checkpoint after step" in said
    assert "no permission to write" in said and "run the same command again" in said
    assert "resuming after step" in finish(begun, *METHOD)
    same_results(begun, whole)


@pytest.mark.slow
def test_killed_at_fifty_random_moments(undisturbed: Path, tmp_path: Path) -> None:
    """With -9, over all stages; what a run would take is spread over the kills."""
    random, folder, kills = np.random.default_rng(0), in_folder(tmp_path, settings()), 0
    while kills < 50:
        process = command(folder, *STAGES)
        try:
            process.wait(random.uniform(0, 12))
            subprocess.run(["rm", "-r", folder / "results"], check=True)  # done: begin again
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    finish(folder, *STAGES)
    assert files(folder) == files(undisturbed)
