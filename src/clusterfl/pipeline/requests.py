"""What jobs ask a scheduler for: what `clusterfl plan --save` predicted of them, or else what their rules state.

Jobs are put together only if they are predicted. All jobs of a federation and seed that take half an hour are one
request, a chain; of longer ones each job is, but for methods of less than ten minutes, which the profile puts together
by the number. Then partitions are put together, too, and clusterings go with their distance: both take seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage.store import read_json, write_json
from .job import Job
from .jobs import Plan
from .rules import Rules

CHAIN = 1800.0  # seconds, as all other times here
SHORT = 600.0
CHAINED = ("partition", "warmup", "losses", "distance", "cluster", "federate")
ALWAYS = {"partition": "partition", "distance": "distance", "cluster": "distance", "select": "select"}
OVERHEAD = 600  # MB: two Snakemakes stand around a job


class Requests:
    """The requests of a plan's jobs, as functions of a rule's wildcards."""

    def __init__(self, plan: Plan):
        self._job = Rules(plan).job
        self._predicted = _read(place(plan))
        self._seconds: dict[tuple[str | None, int | None], float] = defaultdict(float)
        if self._predicted:
            for job in plan.jobs():
                if job.stage in CHAINED:
                    self._seconds[job.federation, job.seed] += self._row(job).get("seconds", math.inf)

    def memory(self, stage: str, stated: int) -> Callable[..., int]:
        """Return the function of a job's memory (MB), once more at each attempt; `stated` (MB) where none is known."""

        def ask(wildcards: Any, attempt: int) -> int:
            row = self._row(self._job(stage)(wildcards))
            return attempt * (math.ceil(1.5 * row["memory"] / 1e6) + OVERHEAD if row else stated)

        return ask

    def minutes(self, stage: str, stated: int) -> Callable[..., int]:
        """Return the function of a job's time limit; `stated` (minutes) where nothing is predicted."""

        def ask(wildcards: Any, attempt: int) -> int:
            row = self._row(self._job(stage)(wildcards))
            return attempt * (math.ceil(3 * row["seconds"] / 60) + 1 if row else stated)

        return ask

    def group(self, stage: str) -> Callable[[Any], str | None]:
        """Return the function of the group that a job is requested in; None: alone."""

        def ask(wildcards: Any) -> str | None:
            if not self._predicted:  # as without a cluster: Snakemake tells of single jobs then
                return None
            job = self._job(stage)(wildcards)
            if stage in CHAINED and self._seconds.get((job.federation, job.seed), math.inf) <= CHAIN:
                return "chain"
            if stage == "federate" and self._row(job).get("seconds", math.inf) <= SHORT:
                return "methods"
            return ALWAYS.get(stage)

        return ask

    def _row(self, job: Job) -> dict[str, float]:
        return self._predicted.get(_key(job), {})


def place(plan: Plan) -> Path:
    """Return where a study's prediction is kept."""
    return plan.snapshot.with_name("plan.json")


def save(estimate: Any) -> Path:
    """Keep an `Estimate` for later requests, of a part beside what was kept before, and return where.

    Raises
    ------
    UserError
        If data are missing: nothing can be predicted then.
    """
    pairs = list(zip(estimate.jobs, estimate.rows, strict=True))
    notes = sorted({row.note for _, row in pairs if row.seconds is None})
    if notes:
        raise UserError(f"not all jobs can be predicted: {'; '.join(notes)}")
    path = place(estimate.plan)
    before = {} if estimate.whole else _read(path)
    write_json(path, before | {_key(job): {"seconds": row.seconds, "memory": row.memory} for job, row in pairs})
    return path


def _key(job: Job) -> str:
    """Return what tells a job from others, and from what it was with other settings."""
    return f"{job.first} {job.settings_digest}"


def _read(path: Path) -> dict[str, dict[str, float]]:
    found = read_json(path, "delete it, or run clusterfl plan --save again") if path.exists() else {}
    rows = found.values() if isinstance(found, dict) else [None]
    if not all(
        isinstance(row, dict) and {type(row.get(k)) for k in ("seconds", "memory")} <= {int, float} for row in rows
    ):
        raise UserError(f"{path} holds no seconds and memory by job; delete it, or run clusterfl plan --save again")
    return dict(found)
