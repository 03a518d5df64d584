"""Setting up a folder with the workflow and a commented configuration, for users of an installed package."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ..errors import UserError
from ..registry import PACKAGE
from ..storage.store import replacing

PARTS = ("Snakefile", "config.yaml", "workflow")


def source() -> Path:
    """Return the folder of the workflow's files: inside an installed package, or the top of a checkout."""
    for folder in (PACKAGE / "_project", PACKAGE.parent.parent):
        if all((folder / part).exists() for part in PARTS):
            return folder
    raise UserError(f"the workflow's files are neither in {PACKAGE / '_project'} nor in a checkout; install again")


def init(folder: Path) -> None:
    """Copy Snakefile, workflow and configuration into `folder`; UserError if one exists: nothing is overwritten."""
    there = [part for part in (*PARTS, "profiles") if (folder / part).exists()]
    if there:
        raise UserError(f"{folder / there[0]} already exists; choose another folder, or move it away")
    origin = source()
    for part in PARTS:
        _copy(origin / part, folder / part)
    # Snakemake looks for a default profile only under ./profiles.
    (folder / "profiles").symlink_to(Path("workflow") / "profiles")
    where = f"cd {folder} && " if folder != Path(".") else ""
    print(f"written: {', '.join(str(folder / part) for part in PARTS)}; next: {where}snakemake", file=sys.stderr)


def _copy(origin: Path, target: Path) -> None:
    """Copy a file or folder with the permissions of new ones: those of an installed package may be read-only."""
    if origin.is_dir():
        for part in sorted(origin.iterdir()):
            if part.name != "__pycache__":
                _copy(part, target / part.name)
    else:
        with replacing(target) as temporary:
            shutil.copyfile(origin, temporary)
