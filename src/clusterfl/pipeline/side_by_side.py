"""Jobs of a study several at a time, each in a process forked from one that has imported everything.

A job that Snakemake starts is a Python of its own, which takes seconds before the job begins; of a study of many short
jobs that is most of the time.
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
        What each needs comes before it, or is done.
    work
        Does a job in a process of its own and returns an exit code; whatever else it ends with counts as 1.
    keep_going
        Whether jobs are begun after one that didn't return 0: all that don't need it.

    Returns
    -------
    0, or the exit code of the first job that failed.

    Raises
    ------
    UserError
        If a job's process was killed.
    Stopped
        If a signal asked to stop; it was handed on, and the running jobs have written their checkpoints.
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
                if found and not stopped:  # a job that is stopped has written a checkpoint
                    failed.append(jobs[i])
                    waived += _waived(left, jobs[i])
    if keep_going and failed:
        others = f"; not begun, as they need one of them: {waived}" if waived else ""
        print(f"failed: {', '.join(map(str, failed))}{others}", file=sys.stderr)
    if stopped:
        name = signal.Signals(stopped[0]).name
        raise Stopped(f"stopped by {name}; the same command goes on from what was finished", stopped[0])
    if killed:
        raise UserError(
            f"{killed}, most likely by the system for want of memory; run the same command again with fewer --jobs; "
            "what was finished is kept"
        )
    return code


def _waived(left: dict[int, Job], failed: Job) -> int:
    """Take from what is left the jobs that need a failed one, or what isn't made without it; return how many."""
    lost = {failed.first}
    for i, job in list(left.items()):
        if not lost.isdisjoint(other.first for other in job.upstream.values()):
            lost.add(job.first)
            del left[i]
    return len(lost) - 1


def _forked(work: Callable[[int], int], i: int) -> int:
    """Return the number of a new process that does a job and ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():  # Python 3.12 warns of threads: those of BLAS, which is ready to be forked
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which hands it on once
        begin(parent)  # a job watches for signals while it trains
        progress.ALONE = False
        code = work(i)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing that the parent has open is this process's to close


@contextlib.contextmanager
def _handing_on(running: dict[int, int]) -> Iterator[list[int]]:
    """Hand signals on to the running processes; yield a list that gets those that ask to stop: the second kills."""
    stopped: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked = number != signal.SIGUSR1
        handed = signal.SIGKILL if asked and stopped else number
        if asked and not stopped:
            name = signal.Signals(number).name
            print(f"{name}: running jobs end or write a checkpoint; once more ends them at once", file=sys.stderr)
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
