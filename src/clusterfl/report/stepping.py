"""Clusters round by round, as the page's script steps through them: small, since most clients stay where they are."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from .canvas import CLUSTERS
from .cluster_figures import matched
from .content import Content

STEPS = (100, 50, 25, 12, 6)  # rounds that are kept, evenly from all: the first number of them that has room
ROOM = 300_000  # characters of a federation's steps
COLOURS = [to_hex(CLUSTERS(i)) for i in range(CLUSTERS.N)]
NONE = -1  # the cluster of a client that has none yet


def steps(found: Mapping[str, pd.DataFrame], groups: pd.Series) -> Markup | None:
    """Return what the script steps through, as JSON that means nothing to HTML; None where there is nothing to step.

    Parameters
    ----------
    found
        For each method rows of round, client and cluster.
    groups
        The planted group of each client, if any are planted.
    """
    tables = {name: wide(rows) for name, rows in found.items() if rows["round"].nunique() > 1}
    if not tables:
        return None
    clients = pd.Index(sorted(set().union(*(table.columns for table in tables.values()))))
    planted = groups.reindex(clients)
    known = bool(planted.notna().all())
    order = clients[np.argsort(planted.to_numpy(), kind="stable")] if known else clients
    shown = {"colours": COLOURS, "clients": order.tolist()}
    shown |= {"groups": groups.reindex(order).astype(int).tolist() if known else None}
    rounds = np.unique(np.concatenate([table.index.to_numpy() for table in tables.values()]))
    for most in STEPS:
        kept = rounds[np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))]
        methods = [_method(name, table, order, kept, groups if known else None) for name, table in tables.items()]
        text = json.dumps(shown | {"rounds": kept.tolist(), "methods": methods}, separators=(",", ":"))
        if len(text) <= ROOM:
            break
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the clusters, [round x client]; who isn't seen in a round is where it was, or has none."""
    table = rows.pivot(index="round", columns="client", values="cluster")
    return table.where(table >= 0).ffill().fillna(NONE).astype(int)


def _method(
    name: str, table: pd.DataFrame, order: pd.Index, rounds: NDArray[np.int64], groups: pd.Series | None
) -> Content:
    """Return a method's clusters in the first round, and after it for each round who moved where: i, k, i, k, ..."""
    lines = table.reindex(columns=order, fill_value=NONE).reindex(rounds, method="ffill").fillna(NONE).astype(int)
    values = _renumbered(lines, groups)
    return {"name": name, "first": values[0].tolist(), "moves": [moves(a, b) for a, b in itertools.pairwise(values)]}


def moves(before: Sequence[int] | NDArray[np.int64], after: Sequence[int] | NDArray[np.int64]) -> list[int]:
    """Return place and new cluster of each client whose cluster changed, one after the other."""
    old, new = np.asarray(before), np.asarray(after)
    places = np.flatnonzero(old != new)
    return [int(x) for x in np.column_stack([places, new[places]]).ravel()]


def _renumbered(lines: pd.DataFrame, groups: pd.Series | None) -> NDArray[np.int64]:
    """Return clusters in all rounds by the number, and so the colour, that they have in the figure of the last one."""
    values = lines.to_numpy()
    last = lines.iloc[-1]
    last = last[last != NONE].sort_index()  # as the figure has them, so that surplus clusters are numbered the same
    if groups is None or last.empty:
        return values
    names = dict(zip(last, matched(last, groups.reindex(last.index).astype(int)), strict=True))
    free = iter(range(max(*names.values(), int(groups.max())) + 1, 10**9))
    for k in np.unique(values[values != NONE]):
        if k not in names:
            names[k] = next(free)
    names[NONE] = NONE
    kinds, places = np.unique(values, return_inverse=True)
    return np.array([names[k] for k in kinds], np.int64)[places].reshape(values.shape)
