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
    """Return the clusters, [round x client]; who isn't seen in a round is where it was, or has none."""
    rounds, row = np.unique(rows["round"], return_inverse=True)
    clients, column = np.unique(rows["client"], return_inverse=True)
    table = np.full((len(rounds), len(clients)), NONE)
    table[row, column] = rows["cluster"]
    seen = np.where(table >= 0, np.arange(len(rounds))[:, None], 0)  # before the first one, a row that has none
    values = np.take_along_axis(table, np.maximum.accumulate(seen, axis=0), axis=0)
    return pd.DataFrame(np.maximum(values, NONE), rounds, clients)


def _in_rounds(table: pd.DataFrame, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the clusters, [round x client], in rounds of which the table may lack some."""
    places = np.searchsorted(table.index, rounds, side="right") - 1
    return np.where(places[:, None] < 0, NONE, table.to_numpy()[places])


def _method(name: str, lines: NDArray[np.int64]) -> Content:
    """Return a method's clusters in the first round, and after it for each round who moved where: i, k, i, k, ..."""
    return {"name": name, "first": lines[0].tolist(), "moves": [moves(a, b) for a, b in itertools.pairwise(lines)]}


def moves(before: Sequence[int] | NDArray[np.int64], after: Sequence[int] | NDArray[np.int64]) -> list[int]:
    """Return place and new cluster of each client whose cluster changed, one after the other."""
    old, new = np.asarray(before), np.asarray(after)
    places = np.flatnonzero(old != new)
    return [int(x) for x in np.column_stack([places, new[places]]).ravel()]


def _numbers(last: pd.Series, groups: pd.Series) -> dict[int, int]:
    """Return the number, and so the colour, that each of the last round's clusters has in the figure of that round."""
    last = last[last != NONE].sort_index()  # as the figure has them, so that surplus clusters are numbered the same
    return {} if last.empty else dict(zip(last, matched(last, groups.reindex(last.index).astype(int)), strict=True))


def _renumbered(lines: NDArray[np.int64], numbers: Mapping[int, int], groups: pd.Series) -> NDArray[np.int64]:
    """Return clusters by these numbers; clusters that have none follow in their order."""
    if not numbers:
        return lines
    kinds, places = np.unique(lines, return_inverse=True)
    free = itertools.count(max(*numbers.values(), int(groups.max())) + 1)
    new = [NONE if k == NONE else numbers[k] if k in numbers else next(free) for k in kinds.tolist()]
    return np.array(new)[places].reshape(lines.shape)
