"""Finding a study that was run, by its name or its folder."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError, choices
from ..storage.store import RESULTS


def settings_of(study: str) -> Path:
    """Return the path of the settings that a study was run with; the file may be missing or damaged.

    Parameters
    ----------
    study
        Its name, or its folder under results/.

    Raises
    ------
    UserError
        If there is no such study under results/ of the working folder.
    """
    place, here = Path(os.path.abspath(study if os.sep in study else RESULTS / study)), Path.cwd() / RESULTS
    if place.parent != here and place.parent.name == RESULTS.name and (place / "settings.json").exists():
        raise UserError(
            f"'{study}' isn't under {RESULTS}/ of this folder, where studies are looked for; change the folder first: "
            f"cd {place.parent.parent}"
        )
    if place.parent != here or not place.is_dir():
        raise UserError(f"{_unknown(study)}; or name its configuration: --config FILE")
    return RESULTS / place.name / "settings.json"


def folder_of(study: str) -> Path:
    """Return the folder of a study that was run, from its name under results/ or any path.

    Raises
    ------
    UserError
        If there is no such study.
    """
    place = Path(study) if os.sep in study else RESULTS / study
    if not (place / "settings.json").exists():
        raise UserError(f"{_unknown(study)}; or give the folder of one elsewhere, e.g. ../other/{RESULTS}/NAME")
    return place


def _unknown(study: str) -> str:
    there = sorted(p.parent.name for p in RESULTS.glob("*/settings.json"))
    return f"no study '{study}' under {RESULTS}/; {choices(there, study)}"
