"""Additions to Snakemake's plugin for SLURM, so that a run never waits forever.

The plugin (2.8.0, the newest) forgets every job it waits for if its query to SLURM fails five times in half a second.
Even if `squeue` is set, it uses `sacct` when `scontrol show config` takes more than ten seconds; without accounting
each query then fails, and Snakemake waits for jobs whose end is never reported. `Executor` keeps the jobs, and queries
`squeue` if `sacct` has no answer. Whatever else goes wrong, `watch` ends the run when SLURM has finished or forgotten
all jobs that Snakemake waits for. It also cancels jobs that SLURM can never start.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError

EVERY = 30.0  # seconds
LOOKS = 20  # answers of squeue, in ten minutes; the plugin asks at least every three minutes
LEAVE = 600.0  # seconds in which Snakemake may end by itself
SQUEUE = ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r|%Z"]
FINISHED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
# Reasons of jobs that can never start; other reasons are temporary.
HOPELESS = (
    "AccountNotAllowed", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig", "PartitionNodeLimit",
    "PartitionTimeLimit", "QOSNotAllowed",
)  # fmt: skip
ELSEWHERE = ("cluster", "clusters", "slurm_cluster")  # resources of jobs on another cluster

_ask = plugin.query_job_status


async def _answer(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
    """Return states by job and seconds, as the plugin's function does; from `squeue` if `sacct` has no answer."""
    states, seconds = await _ask(command, logger)
    if not states and command.startswith("sacct"):
        return await _ask(shlex.join(SQUEUE), logger)
    return states, seconds


plugin.query_job_status = _answer  # the plugin's executor looks it up here


class Executor(plugin.Executor):
    """The plugin's executor, which keeps every job until its end has been reported to Snakemake."""

    def __init__(self, workflow: Any, logger: Any):
        if shutil.which("squeue") is None:
            raise WorkflowError("squeue isn't on the PATH; submit from a machine on which SLURM's commands work")
        self.waiting: dict[str, Any] = {}  # set before the plugin begins to query
        super().__init__(workflow, logger)
        threading.Thread(target=watch, args=(self, threading.Event()), daemon=True).start()

    def report_job_submission(self, job_info: Any, register_job: bool = True) -> None:
        """Remember a submitted job."""
        self.waiting[job_info.external_jobid] = job_info
        super().report_job_submission(job_info, register_job=register_job)

    def report_job_success(self, job_info: Any) -> None:
        """Report to Snakemake that a job succeeded, and forget it."""
        self.waiting.pop(job_info.external_jobid, None)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **more: Any) -> None:
        """Report to Snakemake that a job failed, and forget it."""
        self.waiting.pop(job_info.external_jobid, None)
        super().report_job_error(job_info, msg, **more)

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs to query again: those of the plugin, and those about which it got no answer."""
        kept = set()
        async for job in super().check_active_jobs(active_jobs):
            kept.add(job.external_jobid)
            yield job
        for job in active_jobs:
            if job.external_jobid in self.waiting and job.external_jobid not in kept:
                yield job

    def cancel(self) -> None:
        """Cancel all jobs, including those that the plugin is querying."""
        with self.lock:
            self.active_jobs = list(self.waiting.values())
        super().cancel()


def watch(executor: Executor, end: threading.Event) -> None:
    """Cancel jobs that SLURM can never start, and end the run when SLURM has finished or forgotten all its jobs.

    Without an answer of `squeue` nothing is done. The run isn't ended while Snakemake waits for another job, whose end
    it will notice, and then submit the jobs that depend on it.

    Parameters
    ----------
    executor
        Snakemake's.
    end
        Ends the watch.
    """
    looks: dict[str, int] = {}
    known: set[str] = set()
    first = executor.workflow.executor_settings.init_seconds_before_status_checks
    enough = max(LOOKS, 3 * first / EVERY)  # leaves time for several queries of the plugin
    while not end.wait(EVERY):
        rows = _squeue()
        if rows is None:
            continue
        for number, reason in hopeless(rows, str(Path.cwd())):
            _say(
                f"SLURM can never start job {number} ({reason}), so it is cancelled; compare what it requests "
                f"(scontrol show job {number}) with the partition (sinfo -o '%P %c %m %l %G'), and see docs/cluster.md"
            )
            subprocess.run(["scancel", number], check=False)
        states = {number: state for number, state, *_ in rows}
        here = [number for number, info in list(executor.waiting.items()) if not _elsewhere(info.job)]
        looks = count(looks, here, states)
        lost = {
            number: f"has ended job {number} ({states[number]})" if number in states else f"has forgotten job {number}"
            for number, seen in looks.items()
            if seen >= enough
        }
        if lost and len(lost) == len(executor.workflow.scheduler.running):
            break
        for number in lost.keys() - known:
            _say(
                f"SLURM {lost[number]}, but Snakemake still waits for it; when it waits for nothing else, the run ends"
            )
        known.update(lost)
    else:
        return
    executor.workflow.scheduler.executor_error_callback(
        WorkflowError(
            f"SLURM {', '.join(lost.values())}. Snakemake waits for nothing else, so the run ends here. Finished "
            "jobs are kept, and the same command continues: "
            f"{shlex.join(['snakemake', *sys.argv[1:]])} (docs/cluster.md says why)"
        )
    )
    if not end.wait(LEAVE):
        _say("Snakemake doesn't end by itself, so its process is ended; nothing stays locked")
        os._exit(1)


def count(looks: Mapping[str, int], waiting: Iterable[str], states: Mapping[str, str]) -> dict[str, int]:
    """Return how often each waiting job has been found finished or forgotten since it was last seen alive."""
    return {number: looks.get(number, 0) + 1 for number in waiting if states.get(number, "") in ("", *FINISHED)}


def hopeless(rows: Iterable[list[str]], folder: str) -> list[tuple[str, str]]:
    """Return number and reason of the jobs submitted from `folder` that can never start."""
    return [
        (number, reason)
        for number, state, reason, where in rows
        if state == "PENDING" and where == folder and reason in HOPELESS
    ]


def _squeue() -> list[list[str]] | None:
    """Return number, state, reason and folder of the user's jobs; None: no answer."""
    try:
        known = subprocess.run(SQUEUE, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return [row for line in known.stdout.splitlines() if len(row := line.split("|", 3)) == 4]


def _elsewhere(job: Any) -> bool:
    """Return whether a job is on another cluster, whose jobs `squeue` doesn't list."""
    return any(job.resources.get(name) for name in ELSEWHERE)


def _say(text: str) -> None:
    print(f"clusterfl: {text}", file=sys.stderr, flush=True)
