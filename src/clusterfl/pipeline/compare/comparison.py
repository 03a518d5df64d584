"""Paired comparison of two studies, or of two methods of one: a pair is one federation and seed; differences B - A."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...config.blocks import differing
from ...errors import UserError, choices
from ...report.measures import CLIENTS, CLUSTERS
from ...report.words import of_all
from . import origins
from .origins import Difference, Files
from .paired import Paired, paired
from .side import Side

SCORED = ("accuracy", "loss")  # metrics of the round that the block `score` names; all others are of the last round
OTHER_CLIENTS, OTHER_ROUNDS, OTHER_SCORE = "other clients", "other rounds", "other score"
OTHER_SCORED = "other clients scored"
# The metrics that such a word concerns, of those that don't concern all.
CONCERNED = {OTHER_SCORE: [*SCORED], OTHER_SCORED: [*SCORED, *CLIENTS, *CLUSTERS]}


@dataclass(frozen=True)
class Row:
    """A metric of one method on one federation, or on all (None), over the pairs in which A and B have a value."""

    federation: str | None
    method: str | None  # None: two methods are compared
    metric: str
    mean_a: float | None
    mean_b: float | None
    paired: Paired
    lacking: int  # pairs left out, because A or B has no finite value
    unlike: list[str]  # further differences between A and B in these pairs: clients, rounds, score
    differences: dict[int, float]  # by seed; empty over all federations

    @property
    def verdict(self) -> str:
        """The verdict of the interval, and what else differs."""
        return self.paired.verdict + (f" ({', '.join(self.unlike)})" if self.unlike else "")


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides, A and B."""

    study: str | None  # for two methods: their study
    a: str
    b: str
    score: Mapping[str, Any]  # A's settings block
    federations: list[str]  # those of both, in A's order
    rows: list[Row]
    cautions: list[str]  # reasons why numbers aren't comparable
    settings: list[Difference]
    origins: list[Difference]
    code: tuple[int, int] | None  # common jobs with different code, and all common jobs; None for two methods
    files: Files
    only_a: list[str]
    only_b: list[str]

    def measure(self, federation: str) -> str:
        """Return the metric that is shown first for a federation: accuracy, or loss if there is none."""
        return SCORED[0] if self.of(federation, SCORED[0]) else SCORED[1]

    def of(self, federation: str | None, metric: str) -> list[Row]:
        """Return the rows of a federation and a metric, one for each method."""
        return [row for row in self.rows if (row.federation, row.metric) == (federation, metric)]


def studies(a: Side, b: Side) -> Comparison:
    """Compare two studies, each method with the one of the same name."""
    return Comparison(
        **_numbers(a, b, a.runs, b.runs),
        study=None,
        a=a.name,
        b=b.name,
        settings=list(origins.settings(a.settings, b.settings)),
        origins=origins.origins(a.manifests, b.manifests),
        code=origins.other_code(a.manifests, b.manifests),
        files=origins.files(a.manifests, b.manifests),
    )


def methods(study: Side, first: str, second: str) -> Comparison:
    """Compare two methods of a study.

    Raises
    ------
    UserError
        If the study has no such method, or both are the same.
    """
    known = study.settings["methods"]
    for name in (first, second):
        if name not in known:
            raise UserError(f"--methods: study '{study.name}' has no method '{name}'; {choices(known, name)}")
    if first == second:
        raise UserError(f"--methods: '{first}' is given twice; give two of: {', '.join(sorted(known))}")
    one, other = (_alone(study.runs, name) for name in (first, second))
    jobs = [origins.of_method(study.manifests, name) for name in (first, second)]
    return Comparison(
        **_numbers(study, study, one, other),
        study=study.name,
        a=first,
        b=second,
        settings=list(_blocks(study.settings, first, second)),
        origins=origins.origins(*jobs),
        code=None,
        files=origins.files(*jobs),
    )


def _alone(runs: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the runs of a method, without its name, to be paired with another method's."""
    return runs[runs.index.get_level_values("method") == method].rename(index={method: ""}, level="method")


def _blocks(settings: Mapping[str, Any], first: str, second: str) -> Iterator[Difference]:
    """Yield the differences between two methods' blocks, then further ones on federations that change the blocks."""
    usual = list(origins.settings(settings["methods"][first], settings["methods"][second], "methods.*."))
    yield from usual
    for federation in settings["federations"]:
        blocks = differing(settings, federation)["methods"]
        if first in blocks and second in blocks:
            place = f"federations.{federation}.methods.*."
            own = list(origins.settings(blocks[first], blocks[second], place))
            known = {(one.key.removeprefix("methods.*."), one.a, one.b) for one in usual}
            yield from (one for one in own if (one.key.removeprefix(place), one.a, one.b) not in known)


def _numbers(a: Side, b: Side, first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Any]:
    """Return the fields of a `Comparison` that come from the runs of both."""
    both = first.index.intersection(second.index, sort=False)
    one, other = first.loc[both], second.loc[both]
    unlike, cautions = _unlike(a, b, one, other)
    mine, theirs = (
        [name for name in side.metrics if table[name].notna().any()] for side, table in ((a, one), (b, other))
    )
    shared = [name for name in mine if name in theirs]
    federations = list(dict.fromkeys(both.get_level_values("federation")))
    return {
        "score": a.settings["score"],
        "federations": federations,
        "rows": list(_rows(one, other, shared, unlike)),
        "cautions": cautions,
        "only_a": [*_only(first.index, second.index), *(f"metric {name}" for name in mine if name not in shared)],
        "only_b": [*_only(second.index, first.index), *(f"metric {name}" for name in theirs if name not in shared)],
    }


def _rows(a: pd.DataFrame, b: pd.DataFrame, metrics: list[str], unlike: pd.DataFrame) -> Iterator[Row]:
    """Yield the rows of each federation and method, then those of each method over several federations."""
    for (federation, method), pairs in a.groupby(["federation", "method"], sort=False):
        yield from _of(federation, method, metrics, a.loc[pairs.index], b.loc[pairs.index], unlike.loc[pairs.index])
    for method, pairs in a.groupby("method", sort=False):
        if pairs.index.get_level_values("federation").nunique() > 1:
            yield from _of(None, method, metrics, a.loc[pairs.index], b.loc[pairs.index], unlike.loc[pairs.index])


def _of(federation: str | None, method: str, metrics: list[str], a: pd.DataFrame, b: pd.DataFrame,
        unlike: pd.DataFrame) -> Iterator[Row]:  # fmt: skip
    for metric in metrics:
        pair = pd.DataFrame({"a": a[metric], "b": b[metric]}).astype(float)
        none = pair.isna().all()
        if none.all() or (none.any() and metric not in SCORED):  # the metric doesn't apply to this method
            continue
        finite = pair[np.isfinite(pair).all(axis=1)]
        found = finite["b"] - finite["a"]
        seeds = found.droplevel(["federation", "method"]).to_dict() if federation is not None else {}
        yield Row(
            federation,
            method or None,
            metric,
            float(finite["a"].mean()) if len(finite) else None,
            float(finite["b"].mean()) if len(finite) else None,
            paired(found.tolist()),
            len(pair) - len(finite),
            [word for word in unlike if unlike[word].any() and metric in CONCERNED.get(word, [metric])],
            seeds,
        )


def _unlike(a: Side, b: Side, one: pd.DataFrame, other: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return which pairs have other clients, rounds or scores, a column for each, and sentences about them."""
    mine, theirs = a.settings["score"], b.settings["score"]
    asked = list(origins.settings(mine, theirs, "score."))
    at = one["round"].ne(other["round"]) & (one["round"].notna() | other["round"].notna())
    if "best" in (mine["at"], theirs["at"]):  # each run has its own best round
        at[:] = False
    last, clients = one["last_round"].ne(other["last_round"]), one["clients"].ne(other["clients"])
    cautions = []
    if clients.any():
        places = _places(one.index[clients])
        cautions.append(f"other clients, or samples of theirs, on {places}: what differs there is of the data, too")
    scored = one["scored"].ne(other["scored"]) & one["scored"].notna() & other["scored"].notna() & ~clients
    scored &= of_all(mine) and of_all(theirs)
    if scored.any():
        first, second = (side["scored"][scored].str.count(",").add(1).mean() for side in (one, other))
        cautions.append(
            f"scored on {first:.3g} clients in A, {second:.3g} in B, which aren't the same (mean), on "
            f"{_places(one.index[scored])}: clients that have no model yet aren't scored"
        )
    cautions += _rounds("trained for", one["last_round"][last], other["last_round"][last])
    cautions += _rounds("scored at round", one["round"][at], other["round"][at])
    if asked:
        words = "; ".join(f"{difference.key} {difference.a} in A, {difference.b} in B" for difference in asked)
        cautions.append(f"accuracy and loss are other scores: {words}")
    found = {OTHER_CLIENTS: clients, OTHER_SCORED: scored, OTHER_ROUNDS: last, OTHER_SCORE: at | bool(asked)}
    return pd.DataFrame(found), cautions


def _rounds(word: str, a: pd.Series, b: pd.Series) -> Iterator[str]:
    """Yield a sentence for each pair of different numbers of rounds, with the runs that have them."""
    unit = " rounds" if word.endswith("for") else ""
    for (x, y), rows in pd.DataFrame({"a": a, "b": b}).groupby(["a", "b"], dropna=False):
        mine, other = (f"{number:g}{unit}" if pd.notna(number) else "none" for number in (x, y))
        yield f"{word} {mine} in A, {other} in B, on {_places(rows.index)}"


def _places(index: pd.MultiIndex) -> str:
    """Return federations with their seeds, as text."""
    seeds: dict[str, list[int]] = {}
    for federation, _, seed in index:
        seeds.setdefault(federation, [])
        seeds[federation] += [seed] * (seed not in seeds[federation])
    texts = [f"{name} (seed{'s' * (len(own) > 1)} {', '.join(map(str, own))})" for name, own in seeds.items()]
    return ", ".join(texts)


def _only(own: pd.MultiIndex, other: pd.MultiIndex) -> list[str]:
    """Return the federations, methods (on which federations) and seeds that only the first has, as short texts."""
    federations, methods, seeds = (set(other.get_level_values(name)) for name in ("federation", "method", "seed"))
    places = {(federation, method) for federation, method, _ in other}
    found: dict[str, None] = {}
    for federation, method, seed in own:
        if federation not in federations:
            found[f"federation {federation}"] = None
        elif method not in methods:
            found[f"method {method}"] = None
        elif (federation, method) not in places:
            found[f"method {method} on {federation}" if method else f"federation {federation}"] = None
        elif seed not in seeds:
            found[f"seed {seed}"] = None
        elif (federation, method, seed) not in other:
            found[f"{method} on {federation}, seed {seed}".strip()] = None
    return list(found)
