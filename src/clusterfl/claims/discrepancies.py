"""The effect of differences between a paper's text and its released code: both versions are run and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..config.claims import Discrepancy, Side
from ..report import tables
from .ours import Results, spread
from .runs import Run

CLEAR = 2.0  # standard errors from which on a difference isn't put down to chance
COLUMNS: dict[str, type] = {
    "study": str, "paper": str, "name": str, "about": str, "source": str, "measure": str, "seeds": int,
    "released": float, "released_std": float, "released_federation": str, "released_method": str,
    "text": float, "text_std": float, "text_federation": str, "text_method": str,
    "difference": float, "error": float, "consequence": str,
}  # fmt: skip
Scores = Mapping[int, float]
FACTOR = {"accuracy": 100.0, "loss": 1.0}


def rows(results: Iterable[Results]) -> Iterator[dict[str, Any]]:
    """Yield one row for each discrepancy that a study names, accuracies in per cent.

    ``difference`` is released - text, the mean over the seeds that have both. ``error`` is its standard error, from the
    differences seed by seed, as both sides share a seed's draws; NaN for one seed.
    """
    for study in results:
        for name, block in study.claims.discrepancies.items():
            yield _row(study, name, block)


def _row(study: Results, name: str, block: Discrepancy) -> dict[str, Any]:
    row: dict[str, Any] = {column: {str: "", int: 0, float: math.nan}[kind] for column, kind in COLUMNS.items()}
    row |= {"study": study.study.study, "paper": study.claims.paper, "name": name}
    row |= {"about": block.about, "source": block.source}
    for kind, side in (("released", block.released), ("text", block.paper)):
        row |= {f"{kind}_federation": side.federation, f"{kind}_method": side.method}
    released, text = _scores(study, block.released), _scores(study, block.paper)
    if isinstance(released, str) or isinstance(text, str):
        said = {"released code": released, "text": text}
        reasons = [f"{side}: {found}" for side, found in said.items() if isinstance(found, str)]
        return row | {"consequence": "not run: " + "; ".join(reasons)}
    return row | compare(*released, *text, study.study.score.ddof)


def compare(measure: str, released: Scores, measure_of_text: str, text: Scores, ddof: int) -> dict[str, Any]:
    """Compare two sides' scores by seed: return the numbers of a row, and the consequence in words."""
    seeds = sorted(released.keys() & text.keys())
    if measure != measure_of_text or not seeds:
        why = "no seed has both" if measure == measure_of_text else f"one has {measure}, the other {measure_of_text}"
        return {"consequence": f"not comparable: {why}"}
    gaps = np.array([released[seed] - text[seed] for seed in seeds])
    error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.nan
    found: dict[str, Any] = {"measure": measure, "seeds": len(seeds), "difference": float(gaps.mean()), "error": error}
    for kind, scores in (("released", released), ("text", text)):
        own = {seed: scores[seed] for seed in seeds}
        found |= {kind: float(np.mean(list(own.values()))), f"{kind}_std": spread(own, ddof)}
    return found | {"consequence": words(measure, found["difference"], error, len(seeds))}


def words(measure: str, difference: float, error: float, seeds: int) -> str:
    """Return the consequence as a sentence."""
    amount = f"{abs(difference):.2f} points" if measure == "accuracy" else f"{abs(difference):.3g}"
    if difference == 0:
        return f"none: both have the same {measure}, mean of {seeds} seed{'s' * (seeds > 1)}"
    side = "higher" if difference > 0 else "lower"
    said = f"{measure} {amount} {side} with the released code"
    if math.isnan(error):
        return f"{said}, of one seed: no standard error"
    if error == 0:
        return f"{said}, the same with each of {seeds} seeds"
    times = f"{abs(difference) / error:.1f} standard errors"
    clear = abs(difference) >= CLEAR * error
    return f"{said}, {times}" + ("" if clear else ": not distinguishable from zero with these seeds")


def _scores(study: Results, side: Side) -> tuple[str, Scores] | str:
    """Return measure and score of each seed, or why there are none."""
    score = study.source.settings["score"] | side.score
    found: dict[str, dict[int, float]] = {"accuracy": {}, "loss": {}}
    reasons = []
    for seed in study.study.seeds.runs:
        run = study.run(side.federation, seed, side.method)
        if not isinstance(run, Run):
            reasons.append(run)
            continue
        picked = tables.pick(run.curve(score), score)
        for measure, scores in found.items():
            if math.isfinite(picked[measure]):
                scores[seed] = FACTOR[measure] * picked[measure]
    measure = "accuracy" if found["accuracy"] else "loss"
    if found[measure]:
        return measure, found[measure]
    return reasons[0] if reasons else f"no {score['split']} score of {score['evaluation']} models"
