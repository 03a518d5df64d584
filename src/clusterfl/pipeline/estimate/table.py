"""A study's predicted costs as text and as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ...report.words import aligned
from .estimate import Estimate, distinct

COLUMNS = ("seconds", "memory MB", "disk MB", "sent MB")


def text(estimate: Estimate) -> str:
    """Return the rows as a table, totals, and the measurements."""
    lines = [["stage", "name", "federation", "seed", *COLUMNS, ""]]
    for row in estimate.rows:
        values = (row.seconds, *(b and b / 1e6 for b in (row.memory, row.disk, row.sent)))
        numbers = ["-" if value is None else f"{value:,.1f}" for value in values]
        numbers[-1] += "" if row.known else "?"
        words = ", ".join(filter(None, ["done" if row.done else "", row.note]))
        where = [row.stage, row.name or "", row.federation or "", "" if row.seed is None else str(row.seed)]
        lines.append([*where, *numbers, words])
    return "\n".join([aligned(lines, {"seed", *COLUMNS}), "", *_totals(estimate), *_measured(estimate)])


def as_json(estimate: Estimate) -> str:
    """Return the rows and totals as JSON."""
    rows = [asdict(row) for row in estimate.rows]
    return json.dumps({"jobs": rows, "totals": totals(estimate), "calibration_seconds": estimate.seconds}, indent=1)


def totals(estimate: Estimate) -> dict[str, float]:
    """Return the sums over the jobs that aren't done and can be predicted; ``unknown`` counts the unpredictable ones.

    ``seconds``: one job after another, each a new process; ``in_one_process``: one start (``clusterfl run``);
    ``on_all_cores``: as many jobs as possible at a time, each a new process; ``forked``: the same with one start
    (``clusterfl run --jobs``, and Snakemake without its own time).
    """
    todo = [row for row in estimate.rows if not row.done]
    known = [row for row in todo if row.seconds is not None]
    starts = [row.start or 0.0 for row in known]
    seconds, start = sum(row.seconds or 0.0 for row in known), max(starts, default=0.0)
    return {
        "jobs": len(todo),
        "unknown": len(todo) - len(known),
        "seconds": seconds,
        "in_one_process": seconds - sum(starts) + start,
        "on_all_cores": _side_by_side(estimate, starting=True),
        "forked": _side_by_side(estimate, starting=False) + start,
        "cores": _cores(estimate.threads),
        "memory": max((row.memory or 0.0 for row in known), default=0.0),
        "disk": sum(row.disk or 0.0 for row in known),
        "sent": sum(row.sent or 0 for row in known),
    }


def _side_by_side(estimate: Estimate, starting: bool) -> float:
    """Return when the last job ends if each begins, in order, as soon as its inputs are made and a core is free.

    `starting`: whether each job's start time counts.
    """
    free, ends = [0.0] * _cores(estimate.threads), dict[Path, float]()
    for job, row in zip(estimate.jobs, estimate.rows, strict=True):
        ready = max((ends[other.first] for other in distinct(job)), default=0.0)
        core = int(np.argmin(free))
        seconds = 0.0 if row.done else (row.seconds or 0.0) - (0.0 if starting else row.start or 0.0)
        ends[job.first] = max(ready, free[core] if seconds else 0.0) + seconds
        free[core] = max(free[core], ends[job.first]) if seconds else free[core]
    return max(ends.values())


def _cores(threads: int) -> int:
    """Return how many jobs with this many processes each can run at a time."""
    return max(1, len(os.sched_getaffinity(0)) // threads)


def _totals(estimate: Estimate) -> list[str]:
    found = totals(estimate)
    lines = [
        f"{found['jobs']} jobs to do: {found['seconds']:,.0f} s one after another, {found['on_all_cores']:,.0f} s with "
        f"{found['cores']} at a time, {found['forked']:,.0f} s without their starts (snakemake, clusterfl run --jobs "
        f"{found['cores']}), {found['in_one_process']:,.0f} s in one process (clusterfl run); at most "
        f"{found['memory'] / 1e9:.2f} GB of memory a job, {found['disk'] / 1e6:,.1f} MB of files, "
        f"{found['sent'] / 1e6:,.1f} MB sent"
    ]
    if found["unknown"]:
        lines.append(f"{found['unknown']} of them can't be predicted yet and aren't in these sums: see their rows")
    return lines


def _measured(estimate: Estimate) -> list[str]:
    lines = []
    for (federation, copies), speed in estimate.speeds.items():
        name = federation if copies == 1 else f"{federation}, sums of {copies} networks"
        steps = [f"{', '.join(f'{1e6 * s:.3g}' for s in speed.steps.values())} in a step"] if speed.steps else []
        takes = " and ".join([*steps, f"{1e6 * speed.sample:.3g} in a forward pass"])
        lines.append(f"{name}: {speed.layout.columns:,} numbers a model; a sample takes, in microseconds, {takes}")
    if not all(row.known for row in estimate.rows):
        lines.append("?: depends on how training goes")
    starts = [seconds for seconds, _ in estimate.starts.values()]
    figure = f", a figure {estimate.figure[0]:.2f} s" if estimate.whole else ""  # the report is of all
    return [
        f"measured in {estimate.seconds:.1f} s: starting takes {min(starts):.1f} to {max(starts):.1f} s{figure}",
        *lines,
    ]
