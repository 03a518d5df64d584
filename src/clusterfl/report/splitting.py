"""Figures of methods that split clusters during training, from the arrays of `FedGWC`'s state. M clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from . import canvas, cluster_figures

Splits = Mapping[str, Any]  # see `Source.splits`
POINTS = 60  # the most points of a line of rewards
NAMED = 16  # the most clusters in a legend


def attempts(state: Splits) -> pd.DataFrame:
    """Return a row for each attempt to split: round, cluster, score for each number of parts tried, parts found."""
    scores = state["attempts.scores"]
    table = pd.DataFrame({"round": state["attempts.round"], "cluster": state["attempts.cluster"]})
    table = table.assign(**{f"{i + 2} parts": scores[:, i] for i in range(scores.shape[1])})
    return table.assign(found=state["attempts.parts"])


def lives(state: Splits) -> list[tuple[int, int, int, NDArray[np.int64]]]:
    """Return number, first and last round and members of each cluster between splits; the final clusters come last."""
    rounds, found = len(state["rewards"]) * int(state["rewards.window"][0]), []
    now = {0: (0, np.arange(len(state["labels"])))}
    for i, attempt in enumerate(state["splits.attempt"]):
        k, round_ = int(state["attempts.cluster"][attempt]), int(state["attempts.round"][attempt])
        began, members = now.pop(k)
        found.append((k, began, round_, members))
        labels = state[f"split{i}.labels"]
        now |= {int(part): (round_, state[f"split{i}.members"][labels == part]) for part in np.unique(labels)}
    return found + [(k, began, rounds, members) for k, (began, members) in sorted(now.items())]


def tree(state: Splits) -> Figure:
    """Draw each cluster as a line over its rounds, its width by the number of clients; also splits, failed attempts."""
    final, parts = state["labels"], lives(state)
    order = [0]
    for i, attempt in enumerate(state["splits.attempt"]):
        place = order.index(int(state["attempts.cluster"][attempt]))
        order[place : place + 1] = np.unique(state[f"split{i}.labels"]).tolist()
    height = {k: float(place) for place, k in enumerate(order)}

    def middle(members: NDArray[np.int64]) -> float:
        return float(np.mean([height[int(k)] for k in np.unique(final[members])]))

    figure, axes = canvas.blank(4.8, 1.6 + 0.3 * len(order))
    for k, began, end, members in parts:
        y, last = middle(members), len(np.unique(final[members])) == 1
        colour = canvas.CLUSTERS(k % canvas.CLUSTERS.N) if last else "#555555"
        axes.hlines(y, began, end, color=colour, linewidth=1 + 7 * len(members) / len(final))
        if last:
            text = f"{k}: {len(members)} client{'s' if len(members) > 1 else ''}"
            axes.annotate(text, (end, y), (4, -3), textcoords="offset points", fontsize=8)
            continue
        below = [middle(own) for _, start, _, own in parts if start == end and np.isin(own, members).all()]
        axes.vlines(end, min(below), max(below), color="#555555", linewidth=1)
    for attempt in np.flatnonzero(state["attempts.parts"] == 1):
        k, round_ = state["attempts.cluster"][attempt], state["attempts.round"][attempt]
        members = next(own for cluster, start, end, own in parts if cluster == k and start < round_ <= end)
        axes.plot(round_, middle(members), "x", color="#000000", markersize=5)
    axes.set(xlabel="communication round", ylabel="clusters", yticks=[], ylim=(len(order) - 0.5, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(axis="y", visible=False)
    return figure


def rewards(state: Splits) -> Figure:
    """Draw the mean reward of the clients of each final cluster over the rounds, and the rounds of splits."""
    values, window, labels = state["rewards"], int(state["rewards.window"][0]), state["labels"]
    figure, axes = canvas.blank(4.8, 3.0)
    bins = np.array_split(np.arange(len(values)), min(POINTS, max(1, len(values))))
    for i, k in enumerate(np.unique(labels)):
        points = [(window * (rows.mean() + 1), _spread(values[rows][:, labels == k])) for rows in bins if len(rows)]
        known = [(x, *spread) for x, spread in points if spread is not None]
        if known:
            x, low, mean, high = np.array(known).T
            colour, dash = canvas.CLUSTERS(k % canvas.CLUSTERS.N), canvas.DASHES[i % len(canvas.DASHES)]
            axes.plot(x, mean, color=colour, linestyle=dash, linewidth=1.5, label=str(k))
            axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    for attempt in state["splits.attempt"]:
        axes.axvline(state["attempts.round"][attempt], color="#555555", linewidth=0.8, linestyle=":")
    axes.set(xlabel="communication round", ylabel="reward of a client", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if axes.get_legend_handles_labels()[0] and len(np.unique(labels)) <= NAMED:
        look: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 8, "title": "final cluster"}
        figure.legend(loc="outside upper center", ncols=8, **look)
    return figure


def _spread(values: NDArray[np.float32]) -> tuple[float, float, float] | None:
    """Return tenth percentile, mean and ninetieth percentile of the numbers that aren't NaN; None if all are."""
    there = values[~np.isnan(values)].astype(np.float64)
    if not len(there):
        return None
    return float(np.percentile(there, 10)), float(there.mean()), float(np.percentile(there, 90))


def affinity(state: Splits, i: int, groups: NDArray[np.int64] | None) -> Figure:
    """Draw the affinity before the i-th split without the diagonal, clients ordered by their new cluster.

    `groups [M]` are the planted groups, if any are.
    """
    members, matrix = state[f"split{i}.members"], state[f"split{i}.affinity"].astype(np.float64)
    np.fill_diagonal(matrix, np.nan)
    own = None if groups is None else groups[members]
    return cluster_figures.heat_map(matrix, state[f"split{i}.labels"], own, "affinity")
