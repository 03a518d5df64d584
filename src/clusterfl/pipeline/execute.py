"""Running a job: checking its inputs, running the stage, writing manifest and times."""

from __future__ import annotations

import contextlib
import errno
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..engine import processor
from ..errors import UserError
from ..progress import bar
from ..storage.columns import to_arrow
from ..storage.locks import only_while_locked
from ..storage.manifest import (
    commit,
    content,
    manifest_path,
    same_content,
    timing_path,
    verified,
    versions,
    write_manifest,
)
from ..storage.sealed import sealed
from ..storage.store import cannot_write, read_json
from . import kept
from .checkpoint import Unfinished, Worked
from .global_draws import watched
from .job import Job
from .stages import Work


def execute(job: Job, threads: int = 1, chunk: int | None = None, needed: bool = False) -> None:
    """Run one job.

    Parameters
    ----------
    job
        The job.
    threads, chunk
        Of the engine.
    needed
        Whether to run it only if its files don't exist with these settings, inputs and code; files that Snakemake
        deleted are first restored from the kept ones.

    Raises
    ------
    UserError
        If an input is missing, damaged, of another study, or made with other settings or on another branch; or if the
        stage finds its data or settings wrong.
    """
    processor.check()
    check_inputs(job)
    if job.stage == "download":  # has no checkpoint: `fetch` continues an interrupted download itself
        _execute(job, _origin(job), threads, chunk, Unfinished())
        return
    with only_while_locked(job.unfinished, "doing the same job") as waited:
        found = kept.restore(job.outputs.values(), job.unfinished.with_name(kept.FOLDER)) if needed else []
        if (waited or needed) and is_done(job):
            why = "done by the other process" if waited else "nothing to compute, its inputs' content is unchanged"
            print(f"{job}: {why}", file=sys.stderr)
            return
        for path in found:
            path.unlink()
        origin, identity = _origin(job), {"versions": versions()}
        _execute(job, origin, threads, chunk, Unfinished(job.unfinished, origin | identity, machine=machine(job)))


def _origin(job: Job) -> dict[str, Any]:
    """Return a job's identity and the digests of what its result depends on, as in its manifest."""
    digests = {"settings": job.settings_digest, "code": job.code_digest, "inputs": input_digests(job)}
    return job.identity | digests | {"revisions": job.revisions}


def _execute(job: Job, origin: dict[str, Any], threads: int, chunk: int | None, unfinished: Unfinished) -> None:
    work = Work(job.settings, job.identity, job.inputs, job.outputs, bar, threads, chunk, unfinished)
    with _disk_errors(job):
        stage = import_module(f"clusterfl.pipeline.stages.{job.stage}")
        gc.enable()  # commands start with it disabled
        with watched(lambda sentence: print(f"{job}: {sentence}", file=sys.stderr)):
            facts = stage.run(work)
    rounds = facts.pop("timing", {})
    files = sorted({file for output in job.outputs.values() for file in _files(output)})
    place = manifest_path(job.first)
    own = {"own": job.settings["files"]} if "files" in job.settings else {}
    made = {"machine": machine(job), "commit": commit()}
    write_manifest(place, files, origin | made | own | facts)
    worked = unfinished.worked()
    _write_timing(timing_path(job.first), worked, rounds)
    before = sum(process.seconds for process in worked[:-1])
    also = f", and {before:.1f} s before it was stopped" if before else ""
    print(f"{job}: {worked[-1].seconds:.1f} s{also} -> {job.first}", file=sys.stderr)


def _write_timing(path: Path, worked: Sequence[Worked], rounds: Mapping[str, NDArray[Any]]) -> None:
    """Write the times: a row of round 0 for each process that worked on the job, then a row for each round.

    There are several processes if the job was stopped and resumed from a checkpoint; time after a process's last
    checkpoint isn't counted. A round's host, date and memory are those of the last process.
    """
    numbers = rounds.get("round", np.empty(0))
    spent = {name: np.array(values) for name, values in zip(Worked._fields, zip(*worked, strict=True), strict=True)}
    last = [len(worked) - 1] * len(numbers)
    timing: dict[str, Any] = {"round": np.concatenate([np.zeros(len(worked)), numbers]).astype(np.int64)}
    timing["seconds"] = np.concatenate([spent.pop("seconds"), rounds.get("seconds", [])])
    timing["server_seconds"] = np.concatenate([np.full(len(worked), np.nan), rounds.get("server_seconds", [])])
    timing |= {name: np.concatenate([values, values[last]]) for name, values in spent.items()}
    timing["date"] = timing["date"].astype("datetime64[s]")
    table = pa.table([to_arrow(values) for values in timing.values()], names=list(timing))
    sealed(table, path, {})  # not listed in the manifest, which would then differ each time


def machine(job: Job) -> dict[str, str]:
    """Return what manifests record about the machine: the processor, and the branch or the GPU."""
    found, device = processor.record(), job.settings.get("device", "cpu")
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            found["branch"] = f"cuda {torch.cuda.get_device_name()}"
    return found


def check_inputs(job: Job) -> None:
    """Check a job's inputs.

    Raises
    ------
    UserError
        If a file is missing, damaged or of other settings, what it was made from has changed since, or it was made on
        another branch.
    """
    for key, path in job.inputs.items():
        source = job.upstream[key]
        own = source.settings.get("files", {})
        manifest = verified(path, source.identity, source.settings_digest, source.command, own)
        for origin in source.inputs.values():
            if not _made_from(origin, manifest):
                raise UserError(
                    f"{origin} has changed since {path} was made from it; make {path} again, then all later results: "
                    f"{source.command}"
                )
        if job.kind.inexact and source.kind.inexact:
            again = f"continue on that machine, or make it again here: {source.command}"
            processor.same_branch(str(path), manifest.get("machine", {}), machine(job), again)


def _made_from(origin: Path, manifest: Mapping[str, Any]) -> bool:
    """Return whether a result was made from the present content of an input; True if that no longer exists."""
    recorded = manifest.get("inputs", {}).get(str(origin))
    return not manifest_path(origin).exists() or same_content(origin, recorded)


def input_digests(job: Job) -> dict[str, str]:
    """Return the digest of the content of each input."""
    return {str(path): content(path, read_json(manifest_path(path))) for path in sorted(job.inputs.values())}


def _files(output: Path) -> list[Path]:
    if output.is_dir():
        return [p for p in sorted(output.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    return [output]


@contextlib.contextmanager
def _disk_errors(job: Job) -> Iterator[None]:
    """Convert errors of a full disk or a missing permission inside the block to a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        place = error.filename or job.first
        raise UserError(f"{job}: {cannot_write(place, error)}") from error


def is_done(job: Job) -> bool:
    """Return whether a job's files exist, are undamaged, and come from these settings, inputs and code."""
    try:
        for output in job.outputs.values():
            manifest = verified(output, job.identity, job.settings_digest)
        return all(manifest[key] == value for key, value in _origin(job).items())
    except (UserError, OSError, KeyError):
        return False


def tidy(job: Job) -> None:
    """Delete the checkpoint left by a job that was killed after it had written its last file."""
    if job.stage != "download" and job.unfinished.exists():
        with only_while_locked(job.unfinished, "doing the same job"):
            pass
