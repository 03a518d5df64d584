"""Running a plan's jobs on this machine without Snakemake, for `clusterfl run` and `clusterfl campaign`."""

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
    """Run the jobs that the report (or the wanted jobs) needs, except those that are done.

    Parameters
    ----------
    plan, wanted
        As for `Plan.jobs`.
    doing
        The command, for the error of other processes that want to run the study.
    guard
        Runs a forked job's work and returns its exit code, also for an exception.
    number
        Jobs at a time.
    threads
        Processes that train, for each job.
    keep_going
        Whether to go on after a failure with the jobs that don't need the failed one. Then even a single job at a time
        runs in a forked process, so that a signal ends only the job.

    Returns 0, or the exit code of the first forked job that failed. Raises the errors of jobs in this process, or those
    of `side_by_side.run`.
    """
    # Downloads first, so that errors in data are found before training.
    jobs = sorted(plan.jobs(wanted), key=lambda job: job.stage != "download")
    missing = [job.outputs["samples"].parent for job in jobs if job.stage == "download" and not is_done(job)]

    for job in jobs:
        job.code_digest  # noqa: B018 (cached here once, not in every forked process)

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
