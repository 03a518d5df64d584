"""Clusters round by round, for the page's script; stored compactly, as most clients don't change their cluster."""

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

STEPS = (100, 50, 25, 12, 6)  # numbers of evenly spaced rounds; the first that fits in ROOM is used
ROOM = 300_000  # the most characters of a federation's steps
COLOURS = [to_hex(CLUSTERS(i)) for i in range(CLUSTERS.N)]
NONE = -1  # the cluster of a client that has none yet


def steps(found: Mapping[str, pd.DataFrame], groups: pd.Series) -> Markup | None:
    """Return the data for the script, as JSON without HTML's special characters; None if no method has two rounds.

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
    lines = {name: _in_rounds(table.reindex(columns=order, fill_value=NONE), rounds) for name, table in tables.items()}
    numbers = {name: _numbers(pd.Series(line[-1], order), groups) if known else {} for name, line in lines.items()}
    for most in STEPS:
        places = np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))
        methods = [_method(name, _renumbered(line[places], numbers[name], groups)) for name, line in lines.items()]
        text = json.dumps(shown | {"rounds": rounds[places].tolist(), "methods": methods}, separators=(",", ":"))
        if len(text) <= ROOM:
            break
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the clusters, [round x client]; a client without a row in a round keeps its cluster, or has none yet."""
    rounds, row = np.unique(rows["round"], return_inverse=True)
    clients, column = np.unique(rows["client"], return_inverse=True)
    table = np.full((len(rounds), len(clients)), NONE)
    table[row, column] = rows["cluster"]
    seen = np.where(table >= 0, np.arange(len(rounds))[:, None], 0)  # row 0 before the first cluster
    values = np.take_along_axis(table, np.maximum.accumulate(seen, axis=0), axis=0)
    return pd.DataFrame(np.maximum(values, NONE), rounds, clients)


def _in_rounds(table: pd.DataFrame, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the clusters, [round x client], for these rounds, some of which may be missing in the table."""
    places = np.searchsorted(table.index, rounds, side="right") - 1
    return np.where(places[:, None] < 0, NONE, table.to_numpy()[places])


def _method(name: str, lines: NDArray[np.int64]) -> Content:
    """Return a method's clusters in the first round, and for each later round the `moves`."""
    return {"name": name, "first": lines[0].tolist(), "moves": [moves(a, b) for a, b in itertools.pairwise(lines)]}


def moves(before: Sequence[int] | NDArray[np.int64], after: Sequence[int] | NDArray[np.int64]) -> list[int]:
    """Return position i and new cluster k of each client whose cluster changed, as a flat list: i, k, i, k, ..."""
    old, new = np.asarray(before), np.asarray(after)
    places = np.flatnonzero(old != new)
    return [int(x) for x in np.column_stack([places, new[places]]).ravel()]


def _numbers(last: pd.Series, groups: pd.Series) -> dict[int, int]:
    """Return the number, and thereby the colour, of each final cluster in the figure of the last round."""
    last = last[last != NONE].sort_index()  # the figure's order, so that surplus clusters get the same numbers
    return {} if last.empty else dict(zip(last, matched(last, groups.reindex(last.index).astype(int)), strict=True))


def _renumbered(lines: NDArray[np.int64], numbers: Mapping[int, int], groups: pd.Series) -> NDArray[np.int64]:
    """Return clusters renumbered by `numbers`; the others get further numbers, in order."""
    if not numbers:
        return lines
    kinds, places = np.unique(lines, return_inverse=True)
    free = itertools.count(max(*numbers.values(), int(groups.max())) + 1)
    new = [NONE if k == NONE else numbers[k] if k in numbers else next(free) for k in kinds.tolist()]
    return np.array(new)[places].reshape(lines.shape)
