"""The papers' figures drawn from our runs, with study and scale of each, as the blocks `claims: figures` say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ...config.claims import PAPERS, Drawing
from ...report import canvas
from ...storage.store import replacing
from ..ours import Results
from ..printed import slug
from ..scale import LITE, PAPER, PREFIX
from ..scale import NAMES as SCALES
from .paper_figures import DRAW, Undrawable, natural, runs_of

# Written above a figure, so that it isn't misread where it is seen without its page.
SAID = {LITE: "reduced settings, not the paper's", PREFIX: "the paper's settings, fewer rounds"}


@dataclass(frozen=True)
class Picture:
    """A figure of a paper: ours, or why there is none."""

    paper: str
    where: str
    study: str
    scale: str  # the lowest of the runs that it shows
    shows: str
    figure: Figure | None
    table: pd.DataFrame
    missing: tuple[str, ...]  # runs that it lacks
    reason: str  # why it isn't drawn although it has runs

    @property
    def name(self) -> str:
        """The figure's name in file names."""
        return slug(self.where)


def pictures(results: Iterable[Results]) -> list[Picture]:
    """Return each figure that a study names, from the study with most of its runs; of equals the one at paper scale."""
    found: dict[tuple[str, str], tuple[tuple[float, bool], Results, set[tuple[str, str]]]] = {}
    for study in results:
        for where, drawing in study.claims.figures.items():
            key = study.claims.paper, where
            there = _there(study, drawing)
            rank = len(there) / len(drawing.places()), _scale(study, drawing.places()) == PAPER
            if key not in found or rank > found[key][0]:
                found[key] = rank, study, there
    ordered = sorted(found, key=lambda key: (PAPERS.index(key[0]), natural(key[1])))
    return [_picture(*found[key][1:], key[1]) for key in ordered]


def write(results: Iterable[Results], folder: Path) -> Sequence[Picture]:
    """Write every figure as SVG, PNG and PDF, and what is drawn as CSV, into `folder`/PAPER; return them all."""
    found, drawn = pictures(results), []
    for picture in found:
        if picture.figure is not None:
            with replacing(folder / picture.paper / f"{picture.name}.csv") as temporary:
                picture.table.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
            drawn.append((picture.figure, folder / picture.paper, picture.name))
    canvas.save_all(drawn)
    return found


def _ordered(of: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is drawn in natural order, as settings that were saved have lost their order."""
    items = sorted(of.items(), key=lambda item: natural(item[0]))
    return {name: _ordered(item) if isinstance(item, dict) else item for name, item in items}


def _there(study: Results, drawing: Drawing) -> set[tuple[str, str]]:
    """Return the federations and methods of a figure that were run with any seed."""
    return {place for place in drawing.places() if any(runs_of(study, *place))}


def _picture(study: Results, there: set[tuple[str, str]], where: str) -> Picture:
    drawing = study.claims.figures[where]
    drawing = drawing.model_copy(update={"of": _ordered(drawing.of)})
    missing = tuple(f"{f}/{m}" for f, m in dict.fromkeys(drawing.places()) if (f, m) not in there)
    figure, table, reason, claims = None, pd.DataFrame(), "", study.claims
    try:
        if there:
            figure, table = DRAW[drawing.draw](study, drawing)
            canvas.remark(figure, _said(study, drawing, there))
    except Undrawable as error:
        reason = f"draw: {drawing.draw} needs {error}"
    scale = _scale(study, there or drawing.places())
    return Picture(claims.paper, where, study.study.study, scale, drawing.shows, figure, table, missing, reason)


def _said(study: Results, drawing: Drawing, there: set[tuple[str, str]]) -> str:
    """Return the scales of what is drawn in words, with the names of lines or panels where they differ in scale."""
    scales = {(name, study.scale_of(*place).name) for name, _, *place in drawing.drawn() if tuple(place) in there}
    said = []
    for scale, words in SAID.items():
        names = [name for name in drawing.of if (name, scale) in scales]
        if names:
            said.append(words if {found for _, found in scales} == {scale} else f"{words}: {', '.join(names)}")
    return "; ".join(said)


def _scale(study: Results, places: Iterable[tuple[str, str]]) -> str:
    """Return the lowest scale of some runs."""
    return max((study.scale_of(*place).name for place in places), key=SCALES.index)
