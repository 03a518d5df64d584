"""Doing a job: check its inputs, run the stage, write manifest and time."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from . import digest
from .errors import UserError
from .jobs import Job
from .progress import bar
from .stages import Work
from .store import manifest_path, verified, write_manifest, write_table


def execute(job: Job, threads: int = 1, chunk: int | None = None) -> None:
    """Run one job.

    Raises
    ------
    UserError
        If an input is missing, damaged, of another study or made with other settings; or if the stage finds its
        data or settings wrong.
    """
    began = time.time()
    inputs = {key: digest.of_file(place) for key, place in sorted(_check_inputs(job).items())}
    work = Work(job.settings, job.identity, job.inputs, job.outputs, bar, threads, chunk)
    with _disk_errors(job):
        facts = import_module(f"clusterfl.stages.{job.stage}").run(work)
    files = sorted({file for output in job.outputs.values() for file in _files(output)})
    place = manifest_path(next(iter(job.outputs.values())))
    write_manifest(
        place,
        files,
        job.identity | {"settings": job.settings_digest, "code": job.code_digest, "inputs": inputs} | facts,
    )
    timing: dict[str, list[Any]] = {
        "seconds": [time.time() - began],
        "host": [platform.node()],
        "date": [np.datetime64(int(began), "s")],
    }
    write_table(place.with_name(place.name.replace("manifest.json", "timing.parquet")), timing)
    print(f"{job}: {time.time() - began:.1f} s -> {next(iter(job.outputs.values()))}", file=sys.stderr)


def _check_inputs(job: Job) -> dict[str, Path]:
    """Check every input once and return the manifests' paths by input."""
    checked: dict[Path, None] = {}
    manifests: dict[str, Path] = {}
    for key, path in job.inputs.items():
        source = job.upstream[key]
        if path not in checked:
            verified(path, source.identity, source.settings_digest, source.command)
            checked[path] = None
        manifests[str(path)] = manifest_path(path)
    return manifests


def _files(output: Path) -> list[Path]:
    if output.is_dir():
        return [p for p in sorted(output.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    return [output]


@contextlib.contextmanager
def _disk_errors(job: Job) -> Iterator[None]:
    """Turn a full disk or a missing permission, wherever it strikes, into a sentence."""
    try:
        yield
    except OSError as error:
        place = error.filename or os.fspath(next(iter(job.outputs.values())))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"{job}: no space left on the disk for {place}; free some, then run the same command again"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(
                f"{job}: no permission to write {place}; make it writable, then run the same command again"
            ) from error
        raise


def is_done(job: Job) -> bool:
    """Return whether a job's files are there, whole, and from these settings, inputs and code."""
    try:
        for output in job.outputs.values():
            manifest = verified(output, job.identity, job.settings_digest)
        inputs = {str(p): digest.of_file(manifest_path(p)) for p in job.inputs.values()}
        return manifest["code"] == job.code_digest and manifest["inputs"] == inputs
    except (UserError, OSError, KeyError):
        return False
