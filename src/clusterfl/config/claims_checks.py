"""Problems of the block `claims`, as far as the study alone shows them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from pydantic import ValidationError

from ..errors import choices
from .claims import CURVES, SCORES, Drawing, Side
from .sentences import lines, reference
from .study import Score, Study


def problems(study: Study) -> Iterator[str]:
    """Yield blocks that the block `claims` names and that don't exist; what the papers have is checked elsewhere."""
    if study.claims is None:
        return
    for profile in study.claims.profiles():
        cells, names = study.claims.of(profile)
        place = "claims" if profile == study.claims.profile else f"claims.others.{profile}"
        for key, cell in cells.items():
            yield from reference(f"{place}.cells.{key}.federation", cell.federation, study.federations)
        suffixes = sorted({cell.suffix for cell in cells.values()})
        for suffix in suffixes:
            if suffix and not any(name.endswith(suffix) for name in study.methods):
                known = choices(study.methods, suffix)
                yield f"{place}.cells: no method's name ends with the suffix '{suffix}'; {known}"
        for key, name in names.items():
            if not any(name + suffix in study.methods for suffix in suffixes):
                yield f"{place}.names.{key}: there is no method '{name}'; {choices(study.methods, name)}"
    runs = [f"{federation}/{method}" for federation, method in product(study.federations, study.methods)]
    for pattern, keys in study.claims.scores.items():
        if not any(fnmatchcase(run, pattern) for run in runs):
            yield f"claims.scores: '{pattern}' matches none of the study's federation/method, e.g. {runs[0]}"
        yield from _score_problems(study, f"claims.scores.{pattern}", keys)
    for key, discrepancy in study.claims.discrepancies.items():
        for kind in ("released", "paper"):
            yield from _side_problems(study, f"claims.discrepancies.{key}.{kind}", getattr(discrepancy, kind))
    for key, drawing in study.claims.figures.items():
        yield from _drawing_problems(study, f"claims.figures.{key}", drawing)


def _drawing_problems(study: Study, place: str, drawing: Drawing) -> Iterator[str]:
    """Yield what a figure names that doesn't exist, and what it can't draw."""
    nested = {isinstance(item, dict) for item in drawing.of.values()}
    if nested != {drawing.draw == "scores"}:
        form = "{line: {point: federation/method}}" if drawing.draw == "scores" else "{name: federation/method}"
        yield f"{place}.of: draw: {drawing.draw} takes {form}"
    known = {"curves": CURVES, "scores": SCORES}.get(drawing.draw)
    if known is not None and drawing.measure not in known:
        yield f"{place}.measure: found '{drawing.measure}'; {choices(known, drawing.measure)}"
    for federation, method in drawing.places():
        yield from _place_problems(study, f"{place}.of", federation, method)


def _place_problems(study: Study, place: str, federation: str, method: str) -> Iterator[str]:
    """Yield a federation or method that is named and doesn't exist."""
    yield from (found := list(reference(f"{place}.federation", federation, study.federations)))
    only = None if found else study.federations[federation].only
    methods = {name: block for name, block in study.methods.items() if only is None or name in only}
    yield from reference(f"{place}.method", method, methods)


def _side_problems(study: Study, place: str, side: Side) -> Iterator[str]:
    """Yield what a discrepancy's side names that doesn't exist."""
    yield from _place_problems(study, place, side.federation, side.method)
    yield from _score_problems(study, f"{place}.score", side.score)


def _score_problems(study: Study, place: str, keys: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with keys that override the study's score."""
    try:
        Score(**(study.score.model_dump() | keys))
    except ValidationError as error:
        yield from lines(error, tuple(place.split(".")), Score)
