"""Figures of clusters and of their inputs: distances, points, members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .canvas import CLUSTERS, COLOURS, MARKERS, PALE, RASTERED, blank, cells, group_legend, legend, rows_of
from .tables import ONE_GROUP, contingency

PLANTED = "planted groups"  # label of their row


def heat_map(distance: np.ndarray, found: np.ndarray, groups: np.ndarray | None, label: str) -> Figure:
    """Draw a distance matrix [M, M], clients ordered by found cluster, then planted group; lines separate clusters."""
    figure, axes = blank(4.8, 4.2)
    axes.grid(visible=False)
    order = np.lexsort((np.zeros(len(found)) if groups is None else groups, found))
    image = axes.imshow(distance[np.ix_(order, order)], cmap=colormaps["viridis"].resampled(64))
    edges = np.flatnonzero(np.diff(found[order])) + 0.5
    for edge in edges:
        axes.axvline(edge, color="white", linewidth=1.3)
        axes.axhline(edge, color="white", linewidth=1.3)
    bounds = np.array([-0.5, *edges, len(found) - 0.5])
    names = [f"{k}" for k in np.unique(found)]
    step = max(1, len(names) // 20)
    axes.set_yticks(((bounds[1:] + bounds[:-1]) / 2)[::step], names[::step])
    axes.set(xlabel="client, in the order of the rows", ylabel="client, by found cluster (number)", xticks=[])
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    if groups is not None:
        _strip(figure, axes, groups[order])
    return figure


def _strip(figure: Figure, axes: Axes, groups: np.ndarray) -> None:
    """Draw the planted group of each row next to the matrix."""
    beside = axes.inset_axes((1.02, 0, 0.04, 1))
    cells(beside, groups[:, None])
    beside.set(xticks=[], yticks=[])
    beside.set_title("planted\ngroup", fontsize=7)
    beside.grid(visible=False)
    group_legend(figure, np.unique(groups), "planted group")


def choice(scores: pd.DataFrame, rule: str) -> Figure:
    """Draw the score by number of clusters, a line for each seed; the chosen numbers are marked."""
    figure, axes = blank(4.8, 2.6)
    for _, rows in scores.groupby("seed"):
        axes.plot(rows["k"], rows[rule], color=PALE, marker=".")
    chosen = scores[scores["chosen"]]
    axes.plot([], [], color=PALE, marker=".", label="one seed")
    axes.plot(chosen["k"], chosen[rule], "D", color=COLOURS[0], label="chosen")
    axes.set(xlabel="number of clusters k", ylabel=rule)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, "outside upper right", ncols=2)
    return figure


def dots(axes: Axes, points: np.ndarray, found: np.ndarray, colours: np.ndarray, size: float = 6) -> dict[int, Any]:
    """Draw clients as points [M, 2], the marker by found cluster; return the clusters' styles."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": size, "rasterized": len(points) > RASTERED}
    looks = {k: plain | {"marker": MARKERS[i % len(MARKERS)]} for i, k in enumerate(np.unique(found))}
    for k, colour in np.unique(np.column_stack([found, colours]), axis=0):
        own = points[(found == k) & (colours == colour)]
        axes.plot(*own.T, color=CLUSTERS(colour % CLUSTERS.N), markeredgecolor="white", markeredgewidth=0.5, **looks[k])
    return looks


def plane(points: np.ndarray, found: np.ndarray, groups: np.ndarray | None, labels: Sequence[str],
          diagonal: bool = False) -> Figure:  # fmt: skip
    """Draw clients as points [M, 2]: the marker shows the found cluster, the colour the planted group.

    If no groups are planted, the colour also shows the cluster. `diagonal` adds the line of equal coordinates.
    """
    figure, axes = blank(4.8, 4.2)
    looks = dots(axes, points, found, found if groups is None else groups)
    if diagonal:
        axes.axline((points.mean(), points.mean()), slope=1, color="#555555", linewidth=1, linestyle=":")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if len(looks) <= len(MARKERS):
        handles = [Line2D([], [], color="#555555", label=str(k), **look) for k, look in looks.items()]
        legend(figure, "outside upper center", handles=handles, ncols=len(looks), title="found cluster")
    if groups is not None:
        group_legend(figure, np.unique(groups), "planted group")
    return figure


def matched(found: pd.Series, groups: pd.Series) -> np.ndarray:
    """Return found clusters renumbered by a one-to-one matching to the planted groups with most common clients."""
    from scipy.optimize import linear_sum_assignment  # half a second

    table = contingency(pd.DataFrame({"group": groups, "cluster": found}))
    if ONE_GROUP in table.index:
        return found.to_numpy()
    rows, columns = linear_sum_assignment(-table.to_numpy())
    names = {table.columns[c]: table.index[r] for r, c in zip(rows, columns, strict=True)}
    free = iter(range(int(groups.max()) + 1, int(groups.max()) + 1 + table.shape[1]))
    return np.array([names[k] if k in names else names.setdefault(k, next(free)) for k in found])


def clusters(members: pd.DataFrame, names: Sequence[str], groups: pd.Series, before: pd.Series) -> Figure:
    """Draw every client's cluster, a row for each of `names`, clients in the order of their planted group.

    Clusterings come before methods. If a drift has changed the planted `groups` since round 1, those of round 1,
    `before`, are drawn above the clusterings, which were made then.
    """
    clients = np.sort(members["client"].unique())
    planted = members["group"].notna().all()
    order = clients[np.argsort(groups[clients], kind="stable")] if planted else clients
    rows = [members[members["name"] == name].set_index("client") for name in names]
    found = [pd.Series(matched(row["cluster"], row["group"]), row.index) for row in rows]
    shown = list(zip(names, found, strict=True))
    if planted:
        first = 0
        if not before.equals(groups) and (members["kind"] == "clustering").any():
            first = members.loc[members["kind"] == "clustering", "name"].nunique() + 1
            shown.insert(0, (f"{PLANTED}, round 1", before))
        shown.insert(first, (PLANTED, groups))
    # Clients that never took part have no cluster and white cells.
    drawn = [row.reindex(order).to_numpy(float) for _, row in shown]
    labels = [name for name, _ in shown]
    figure, axes = rows_of(len(drawn))
    grid = np.ma.masked_invalid(np.array(drawn))
    cells(axes, grid)
    for row in range(1, len(drawn)):
        apart = any(name.startswith(PLANTED) for name in labels[row - 1 : row + 1])
        axes.axhline(row - 0.5, color="white", linewidth=3 if apart else 1.5)
    axes.set_yticks(range(len(drawn)), labels)
    axes.grid(visible=False)
    axes.set_xlabel("client, by planted group" if planted else "client")
    axes.set_xticks([])
    title = "cluster, named after the planted group it fits" if planted else "cluster"
    group_legend(figure, np.unique(grid.compressed()).astype(int), title)
    return figure
