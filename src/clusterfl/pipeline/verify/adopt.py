"""Taking over results that other code made: where their bytes are whole and the present code gives the same again.

Of each kind of job, those that use the same parts, the quickest is computed again, into a folder of its own. If its
files have the same bytes, all of the kind are taken over: their manifests name the present code from now on.
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

SELDOM = ("download", "report")  # made again in seconds; nothing that follows minds if the bytes are the same


@dataclass
class Adopted:
    """What was taken over."""

    study: str
    done: int = 0  # results that are of the present code already
    taken: list[str] = field(default_factory=list)
    replayed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # with the reason

    def __str__(self) -> str:
        lines = [f"computed again, with the same bytes: {one}" for one in self.replayed]
        lines += [f"not taken over: {one}" for one in self.left]
        found = f"{len(self.taken)} results taken over, {self.done} were of the present code already"
        return "\n".join([*lines, f"study '{self.study}': {found}, {len(self.left)} left as they are"])


def adopt(plan: Plan, wanted: Sequence[Job] | None = None, threads: int = 1) -> Adopted:
    """Take over a study's results, or those that the wanted ones need, and return which.

    Parameters
    ----------
    plan
        The study.
    wanted
        Jobs; all if not given.
    threads
        Processes that compute again, on a CPU; they change no bit.
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
        if job.first in manifests:  # with the content of its inputs, also where it keeps its own code
            write_json(manifest_path(job.first), manifests[job.first] | {"inputs": input_digests(job)})
    return found


def _whole(job: Job) -> dict[str, Any]:
    """Return a result's manifest.

    Raises
    ------
    UserError
        If a file is damaged, of other settings, or made from other inputs than are there now.
    """
    for path in job.outputs.values():
        manifest = verified(path, job.identity, job.settings_digest, job.command, job.settings.get("files"))
    recorded = manifest.get("inputs", {})
    for path in job.inputs.values():
        if not same_content(path, recorded.get(str(path))):
            raise UserError(f"made from another {path} than is there now; make it again: {job.command}")
    there = manifest.get("machine", {})
    processor.same_branch(str(job.first), there, machine(job), "take it over where it was made")
    return manifest


def _seconds(job: Job) -> float:
    """Return how long a job took; infinite where nobody knows."""
    try:
        times = processes(job.first)["seconds"]
    except (OSError, ValueError, LookupError):
        return float("inf")
    return float(times.sum()) if len(times) else float("inf")


def _replay(job: Job, manifest: dict[str, Any], threads: int, chunk: int | None) -> None:
    """Compute a job again, and compare its files with those of the manifest.

    Raises
    ------
    UserError
        If they have other bytes.
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
