"""Keeping results that Snakemake deletes although making them again wouldn't change them.

Snakemake plans every job downstream of a job that runs, and deletes a job's files before it begins. So a run first
links the files of all planned jobs into another folder. If a job's inputs were made again with equal bytes, so that its
files match its settings, inputs and code, they are linked back and the job ends. Snakemake's own way of keeping files
(``update``) doesn't suffice: after a failure it restores them and treats them as up to date.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FOLDER = "kept"  # under .work of a study


def keep(outputs: Iterable[Path], folder: Path) -> None:
    """Empty `folder` and link existing files, and those in folders, into it; if linking fails, a file isn't kept."""
    drop(folder)
    for output in outputs:
        for path in sorted(output.rglob("*")) if output.is_dir() else [output]:
            if path.is_file():
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):
                    os.link(path, place)


def restore(outputs: Iterable[Path], folder: Path) -> list[Path]:
    """Link missing files of these files and folders back; return the linked ones."""
    found = []
    for output in outputs:
        kept = folder / output
        for path in sorted(kept.rglob("*")) if kept.is_dir() else [kept]:
            place = path.relative_to(folder)
            if path.is_file() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, place)
                found.append(place)
    return found


def drop(folder: Path) -> None:
    """Delete the kept files, and the parent folder if it is then empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
