"""Running several jobs of a study at a time, each in a process forked from one that has imported everything.

A job that Snakemake starts is a new Python process, which takes seconds to start: most of the time of a study with many
short jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from .. import progress
from ..engine.forked import SIGNALS, begin
from ..errors import Stopped, UserError
from .estimate import startup
from .job import Job


def run(jobs: Sequence[Job], number: int, work: Callable[[int], int], keep_going: bool = False) -> int:
    """Call ``work(i)`` for each job i, `number` at a time, each as soon as the jobs that it needs are done.

    Parameters
    ----------
    jobs
        In an order in which they can run; upstream jobs that aren't listed must be done.
    work
        Runs a job in its process and returns an exit code; an exception counts as 1.
    keep_going
        Whether jobs are still started after one has failed: all those that don't need it.

    Returns
    -------
    0, or the exit code of the first job that failed.

    Raises
    ------
    UserError
        If a job's process was killed.
    Stopped
        If a signal requested to stop; it was passed on, and the running jobs have ended or written checkpoints.
    """
    startup.load(sorted({module for job in jobs for module in startup.imports(job)}))
    left, running, code, killed = dict(enumerate(jobs)), dict[int, int](), 0, ""
    failed, waived = list[Job](), 0
    with _handing_on(running) as stopped:
        while left or running:
            waiting = {jobs[i].first for i in [*left, *running.values()]}
            ready = [i for i, job in left.items() if waiting.isdisjoint(o.first for o in job.upstream.values())]
            for i in ready[: 0 if stopped or (failed and not keep_going) else number - len(running)]:
                del left[i]
                running[_forked(work, i)] = i
            if not running:
                break
            process, status = os.wait()
            if process in running:
                i, found = running.pop(process), os.waitstatus_to_exitcode(status)
                if found < 0:
                    killed = killed or f"{jobs[i]}: its process was killed by {signal.Signals(-found).name}"
                code = code or found
                if found and not stopped:  # a stopped job hasn't failed
                    failed.append(jobs[i])
                    waived += _waived(left, jobs[i])
    if keep_going and failed:
        others = f"; not started, because they need one of these: {waived}" if waived else ""
        print(f"failed: {', '.join(map(str, failed))}{others}", file=sys.stderr)
    if stopped:
        name = signal.Signals(stopped[0]).name
        raise Stopped(f"stopped by {name}; the same command continues from the finished jobs", stopped[0])
    if killed:
        raise UserError(
            f"{killed}, most likely because the system ran out of memory; run the same command again with fewer "
            "--jobs; finished jobs are kept"
        )
    return code


def _waived(left: dict[int, Job], failed: Job) -> int:
    """Remove from `left` the jobs that need a failed job, directly or through others; return how many."""
    lost = {failed.first}
    for i, job in list(left.items()):
        if not lost.isdisjoint(other.first for other in job.upstream.values()):
            lost.add(job.first)
            del left[i]
    return len(lost) - 1


def _forked(work: Callable[[int], int], i: int) -> int:
    """Start a process that runs a job, and return its process number."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():  # Python 3.12 warns of threads, here those of BLAS, which can be forked
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C reaches only the parent, which passes it on once
        begin(parent)  # signals are ignored until the job handles them in training
        progress.ALONE = False
        code = work(i)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without clean-up, which is the parent's task


@contextlib.contextmanager
def _handing_on(running: dict[int, int]) -> Iterator[list[int]]:
    """Pass signals on to the running processes; yield a list of those that request to stop: the second one kills."""
    stopped: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked = number != signal.SIGUSR1
        handed = signal.SIGKILL if asked and stopped else number
        if asked and not stopped:
            name = signal.Signals(number).name
            print(f"{name}: running jobs end or write a checkpoint; a second one kills them", file=sys.stderr)
        if asked:
            stopped.append(number)
        for process in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, handed)

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, hand_on) for number in SIGNALS}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
