"""Running a plan's jobs on this machine, without Snakemake: what `clusterfl run` and `clusterfl campaign` do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..storage.locks import running
from . import side_by_side
from .execute import execute, is_done, tidy
from .job import Job
from .jobs import Plan

Guard = Callable[[Callable[[], int]], int]


def run(
    plan: Plan, wanted: Sequence[Job] | None, doing: str, guard: Guard, number: int = 1, threads: int = 1,
    keep_going: bool = False,
) -> int:  # fmt: skip
    """Run what the report (or the wanted jobs) needs, skipping what is there and still right.

    Parameters
    ----------
    plan, wanted
        As of `Plan.jobs`.
    doing
        The command, for those who are refused meanwhile.
    guard
        Does a forked job's work and returns the exit code for what ended it.
    number
        Jobs side by side.
    threads
        Processes that train, of each job.
    keep_going
        Whether a job that fails keeps only those from being done that need it. A single job at a time has a process of
        its own then, too: signals are handed on to it, and reach nothing else that this process does.

    Returns 0, or the exit code of the first forked job that failed; what it raises is that of jobs in this process, or
    of `side_by_side.run`.
    """
    # All data first: what is wrong with them is said before anything is trained.
    jobs = sorted(plan.jobs(wanted), key=lambda job: job.stage != "download")
    missing = [job.outputs["samples"].parent for job in jobs if job.stage == "download" and not is_done(job)]

    for job in jobs:
        job.code_digest  # noqa: B018 (found once here, not by every process that is forked for a job)

    def do(place: int) -> int:
        job = jobs[place]
        if is_done(job):
            tidy(job)
        else:
            print(f"[{place + 1}/{len(jobs)}] {job}", file=sys.stderr)
            execute(job, threads, plan.study.engine.chunk)
        return 0

    with running(plan.snapshot.parent, missing, doing, shared=True):
        plan.save()
        if number > 1 or keep_going:
            return side_by_side.run(jobs, number, lambda place: guard(lambda: do(place)), keep_going)
        for place in range(len(jobs)):
            do(place)
        return 0
