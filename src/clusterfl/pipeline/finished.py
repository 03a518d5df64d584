"""A study that was run, by its name or its folder."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError, choices
from ..storage.store import RESULTS


def settings_of(study: str) -> Path:
    """Return the file with the settings that a study was run with; it may be missing, or damaged.

    Parameters
    ----------
    study
        Its name, or its folder under results/.

    Raises
    ------
    UserError
        If there is no such study here.
    """
    place, here = Path(os.path.abspath(study if os.sep in study else RESULTS / study)), Path.cwd() / RESULTS
    if place.parent != here and place.parent.name == RESULTS.name and (place / "settings.json").exists():
        raise UserError(
            f"'{study}' isn't under {RESULTS}/ of this folder, where a study's files are looked for; "
            f"go there first: cd {place.parent.parent}"
        )
    if place.parent != here or not place.is_dir():
        raise UserError(f"{_unknown(study)}; or name its configuration: --config FILE")
    return RESULTS / place.name / "settings.json"


def folder_of(study: str) -> Path:
    """Return the folder of a study that was run, by its name under results/, or by its path, wherever that is.

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
