"""Adopting results of other code, if they are undamaged and the present code reproduces them.

Of all jobs of a stage with the same parts, the quickest is computed again, in a temporary folder. If its files have the
same bytes, the results of all these jobs are adopted: their manifests then name the present code.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ...engine import processor
from ...errors import UserError
from ...progress import bar
from ...report.tables import processes
from ...storage.digest import of_file
from ...storage.manifest import commit, manifest_path, same_content, verified
from ...storage.store import write_json
from ..execute import input_digests, is_done, machine
from ..job import Job
from ..jobs import Plan
from ..stages import Work

SELDOM = ("download", "report")  # not adopted: they are made again in seconds


@dataclass
class Adopted:
    """What was adopted."""

    study: str
    done: int = 0  # results that were already of the present code
    taken: list[str] = field(default_factory=list)
    replayed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # results that weren't adopted, with the reason

    def __str__(self) -> str:
        lines = [f"computed again, with the same bytes: {one}" for one in self.replayed]
        lines += [f"not taken over: {one}" for one in self.left]
        found = f"{len(self.taken)} results taken over, {self.done} were of the present code already"
        return "\n".join([*lines, f"study '{self.study}': {found}, {len(self.left)} left as they are"])


def adopt(plan: Plan, wanted: Sequence[Job] | None = None, threads: int = 1) -> Adopted:
    """Adopt a study's results, or those of the wanted jobs and their inputs.

    Parameters
    ----------
    plan
        The study.
    wanted
        Jobs; all if not given.
    threads
        Processes that compute, on a CPU; their number changes no bit.
    """
    found, kinds, manifests = Adopted(plan.study.study), defaultdict[tuple[str, ...], list[Job]](list), {}
    for job in plan.jobs(wanted):
        if is_done(job):
            found.done += 1
            continue
        try:
            manifests[job.first] = _whole(job)
        except UserError as error:
            found.left.append(f"{job}: {str(error).partition(';')[0]}")
            continue
        if job.stage not in SELDOM:
            kinds[(job.stage, *job.parts)].append(job)
    for kind in kinds.values():
        quickest = min(kind, key=_seconds)
        try:
            _replay(quickest, manifests[quickest.first], threads, plan.study.engine.chunk)
        except UserError as error:
            found.left += [f"{job}: {error}" for job in kind]
            continue
        found.replayed.append(str(quickest))
        found.taken += map(str, kind)
        for job in kind:
            manifests[job.first] |= {"code": job.code_digest, "revisions": job.revisions, "commit": commit()}
            manifests[job.first].setdefault("machine", machine(job))
    for job in plan.jobs(wanted):
        if job.first in manifests:  # with the present digests of its inputs, even if its code isn't replaced
            write_json(manifest_path(job.first), manifests[job.first] | {"inputs": input_digests(job)})
    return found


def _whole(job: Job) -> dict[str, Any]:
    """Return a result's manifest.

    Raises
    ------
    UserError
        If a file is damaged, of other settings, of another branch, or its inputs have changed since.
    """
    for path in job.outputs.values():
        manifest = verified(path, job.identity, job.settings_digest, job.command, job.settings.get("files"))
    recorded = manifest.get("inputs", {})
    for path in job.inputs.values():
        if not same_content(path, recorded.get(str(path))):
            raise UserError(f"{path} has changed since this was made from it; run: {job.command}")
    there = manifest.get("machine", {})
    processor.same_branch(str(job.first), there, machine(job), "take it over where it was made")
    return manifest


def _seconds(job: Job) -> float:
    """Return how many seconds a job took; infinite if that isn't known."""
    try:
        times = processes(job.first)["seconds"]
    except (OSError, ValueError, LookupError):
        return float("inf")
    return float(times.sum()) if len(times) else float("inf")


def _replay(job: Job, manifest: dict[str, Any], threads: int, chunk: int | None) -> None:
    """Compute a job again, and compare its files' digests with those in the manifest.

    Raises
    ------
    UserError
        If a file has other bytes.
    """
    base = manifest_path(job.first).parent
    with tempfile.TemporaryDirectory(dir=base, prefix=".adopt.") as folder:
        outputs = {key: Path(folder) / path.relative_to(base) for key, path in job.outputs.items()}
        work = Work(job.settings, job.identity, job.inputs, outputs, bar, threads, chunk)
        import_module(f"clusterfl.pipeline.stages.{job.stage}").run(work)
        for name, entry in manifest["files"].items():
            file = Path(folder) / name
            if not file.is_file() or of_file(file) != entry["sha256"]:
                raise UserError(
                    f"the present code gives other bytes ({name} of {job}), so it has to be computed: {job.command}"
                )
