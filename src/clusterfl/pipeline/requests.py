"""Resource requests of jobs to a scheduler: as `clusterfl plan --save` predicted, or else as their rules state.

Jobs are grouped only if they are predicted. If all jobs of a federation and seed take at most half an hour together,
they are one request, a chain. Otherwise each job is a request, except that methods of at most ten minutes are grouped,
in numbers that the profile sets, as are partitions, and that a clustering is grouped with its distance.
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

CHAIN = 1800.0  # seconds, as are all times here
SHORT = 600.0
CHAINED = ("partition", "warmup", "losses", "distance", "cluster", "federate")
ALWAYS = {"partition": "partition", "distance": "distance", "cluster": "distance", "select": "select"}
OVERHEAD = 600  # MB, of the two Snakemake processes that run a job


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
        """Return the function of a job's memory (MB), which grows with each attempt; `stated` (MB) if not predicted."""

        def ask(wildcards: Any, attempt: int) -> int:
            row = self._row(self._job(stage)(wildcards))
            return attempt * (math.ceil(1.5 * row["memory"] / 1e6) + OVERHEAD if row else stated)

        return ask

    def minutes(self, stage: str, stated: int) -> Callable[..., int]:
        """Return the function of a job's time limit (minutes), which grows with each attempt; `stated` as above."""

        def ask(wildcards: Any, attempt: int) -> int:
            row = self._row(self._job(stage)(wildcards))
            return attempt * (math.ceil(3 * row["seconds"] / 60) + 1 if row else stated)

        return ask

    def group(self, stage: str) -> Callable[[Any], str | None]:
        """Return the function of the group in which a job is requested; None: by itself."""

        def ask(wildcards: Any) -> str | None:
            if not self._predicted:  # e.g. without a cluster, where Snakemake then reports single jobs
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
    """Return the path of a study's saved prediction."""
    return plan.snapshot.with_name("plan.json")


def save(estimate: Any) -> Path:
    """Save an `Estimate` for later requests and return the file; one of a part is added to the earlier ones.

    Raises
    ------
    UserError
        If a job can't be predicted, e.g. because data are missing.
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
    """Return a key that identifies a job and its settings."""
    return f"{job.first} {job.settings_digest}"


def _read(path: Path) -> dict[str, dict[str, float]]:
    found = read_json(path, "delete it, or run clusterfl plan --save again") if path.exists() else {}
    rows = found.values() if isinstance(found, dict) else [None]
    if not all(
        isinstance(row, dict) and {type(row.get(k)) for k in ("seconds", "memory")} <= {int, float} for row in rows
    ):
        raise UserError(f"{path} has no seconds and memory by job; delete it, or run clusterfl plan --save again")
    return dict(found)
