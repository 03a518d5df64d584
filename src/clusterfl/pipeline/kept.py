"""Results that Snakemake deletes before it knows whether they would be any different.

Snakemake plans whatever follows from a job that runs, and deletes a job's files before it begins. So a run links the
files of all planned jobs into a folder of its own first; a job whose settings, inputs and code turn out to be those of
its files, because what it follows from was made again with equal bytes, gets them back and ends. Files that Snakemake
keeps by itself (``update``) wouldn't do: after a failure it puts them back and calls them up to date.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FOLDER = "kept"  # under .work of a study


def keep(outputs: Iterable[Path], folder: Path) -> None:
    """Link existing files, and those of folders, into `folder`, emptied first; what can't be linked isn't kept."""
    drop(folder)
    for output in outputs:
        for path in sorted(output.rglob("*")) if output.is_dir() else [output]:
            if path.is_file():
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):
                    os.link(path, place)


def restore(outputs: Iterable[Path], folder: Path) -> list[Path]:
    """Link back what is missing of these files and folders; return what was linked."""
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
    """Delete what is kept."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()
