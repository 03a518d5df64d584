"""The figures of the report, drawn from its tables. Nothing touches matplotlib's global state.

Text stays text in the SVG, so that it can be read aloud and searched; equal numbers give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import linear_sum_assignment

from .tables import ONE_GROUP, contingency

# Okabe and Ito's palette, told apart with every kind of colour vision; its yellow is too pale for lines on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
PALE = "#B8B8B8"
CLUSTERS = ListedColormap([*COLOURS[:6], "#F0E442", "#000000", *matplotlib.colormaps["tab20b"].colors])
SHOWN = 8  # methods that get a colour of their own; more can't be told apart
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG and PNG and return the SVG."""
    # Ids come from the salt, so figures that share a page need different ones.
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", metadata=nothing, dpi=110)
        figure.savefig(folder / f"{name}.png", metadata={"Software": None}, dpi=130)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure, inches wide and high, in the report's style."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def _rows(count: int) -> tuple[Figure, Axes]:
    figure, axes = blank(7.4, 1.0 + 0.27 * count)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return figure, axes


def scores(summary: pd.DataFrame, runs: pd.DataFrame, measure: str, label: str) -> Figure:
    """Draw each method's mean, standard deviation and single seeds, methods in the order of `summary`."""
    figure, axes = _rows(len(summary))
    factor = _factor(measure)
    for row, (_, method) in enumerate(summary.iterrows()):
        seeds = factor * runs.loc[runs["method"] == method["method"], measure]
        axes.plot(seeds, np.full(len(seeds), row), "o", color=PALE, markersize=4, label="one seed" if row == 0 else None)
        _whisker(axes, row, factor * method[f"{measure}_mean"], factor * method[f"{measure}_std"])
    axes.set_yticks(range(len(summary)), summary["method"])
    axes.set_xlabel(label)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def differences(table: pd.DataFrame, order: Sequence[str], ddof_std: pd.Series, measure: str, label: str) -> Figure:
    """Draw the paired differences from the baseline, one dot for each seed, mean and standard deviation over them."""
    figure, axes = _rows(len(order))
    axes.axvline(0, color="#555555", linewidth=1)
    for row, method in enumerate(order):
        seeds = _factor(measure) * table.loc[table["method"] == method, "difference"]
        axes.plot(seeds, np.full(len(seeds), row), "o", color=PALE, markersize=4, label="one seed" if row == 0 else None)
        _whisker(axes, row, seeds.mean(), _factor(measure) * ddof_std[method])
    axes.set_yticks(range(len(order)), order)
    axes.set_xlabel(label)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def _whisker(axes: Axes, row: int, mean: float, std: float) -> None:
    if not np.isnan(std):
        axes.plot([mean - std, mean + std], [row, row], color=COLOURS[0], linewidth=1.6,
                  label="± standard deviation" if row == 0 else None)  # fmt: skip
    axes.plot(mean, row, "D", color=COLOURS[0], markersize=5, label="mean" if row == 0 else None)


def _factor(measure: str) -> float:
    return 100.0 if measure == "accuracy" else 1.0


def styles(methods: Sequence[str], best: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return each method's colour, dash and marker; only the `best` few get a colour where there are many."""
    shown = [m for m in methods if m in best[:SHOWN]]
    plain = {"color": PALE, "linestyle": "-", "marker": ".", "label": None, "zorder": 1}
    found = {m: dict(plain) for m in methods}
    for i, method in enumerate(shown):
        dash = DASHES[i % len(DASHES)]
        found[method] = {"color": COLOURS[i % len(COLOURS)], "linestyle": dash, "marker": MARKERS[i], "label": method, "zorder": 3}
    rest = [m for m in methods if m not in shown]
    if rest:
        found[rest[0]]["label"] = f"{len(rest)} other methods" if len(rest) > 1 else rest[0]
    return found


def curves(table: pd.DataFrame, style: dict[str, dict[str, Any]], warmups: dict[int, list[str]], measure: str,
           label: str) -> Figure:  # fmt: skip
    """Draw mean and range over seeds by round; the warm-up of one-shot methods is shaded."""
    figure, axes = blank(7.4, 4.0)
    for method, rows in table.groupby("method", sort=False):
        seeds = _factor(measure) * rows.pivot(index="round", columns="seed", values=measure)
        look = {k: v for k, v in style[str(method)].items() if k != "marker"}
        axes.plot(seeds.index, seeds.mean(axis=1), linewidth=1.5, **look)
        if seeds.shape[1] > 1 and look["color"] != PALE:
            low, high = seeds.min(axis=1), seeds.max(axis=1)
            axes.fill_between(seeds.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
    for end, names in sorted(warmups.items()):
        text = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods"
        axes.axvspan(0, end, color="#000000", alpha=0.05, linewidth=0, zorder=0)
        axes.axvline(end, color="#555555", linewidth=0.8, linestyle=":")
        axes.annotate(f"round {end}: clusters found ({text})", (end, 0.02), xycoords=("data", "axes fraction"),
                      xytext=(4, 0), textcoords="offset points", fontsize=8, color="#444444")  # fmt: skip
    axes.set(xlabel="communication round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right upper")
    return figure


def heat_map(distance: np.ndarray, found: np.ndarray, groups: np.ndarray | None, label: str) -> Figure:
    """Draw a distance matrix, clients ordered by found cluster, then planted group; lines part the clusters."""
    figure, axes = blank(6.0, 5.0)
    axes.grid(visible=False)
    order = np.lexsort((np.zeros(len(found)) if groups is None else groups, found))
    image = axes.imshow(distance[np.ix_(order, order)], cmap=matplotlib.colormaps["viridis"].resampled(64))
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
    """Draw the planted group of each row beside the matrix."""
    beside = axes.inset_axes((1.02, 0, 0.04, 1))
    beside.pcolormesh(groups[:, None] % CLUSTERS.N, cmap=CLUSTERS, vmin=-0.5, vmax=CLUSTERS.N - 0.5)
    beside.set(xticks=[], yticks=[], ylim=(len(groups), 0))
    beside.set_title("planted\ngroup", fontsize=7)
    beside.grid(visible=False)
    _group_legend(figure, np.unique(groups), "planted group")


def _group_legend(figure: Figure, ids: np.ndarray, title: str) -> None:
    if len(ids) <= 12:
        patches = [matplotlib.patches.Patch(color=CLUSTERS(int(k) % CLUSTERS.N), label=str(k)) for k in ids]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(ids), title=title, fontsize=8,
                      title_fontsize=8, handlelength=1.2)  # fmt: skip


def matched(found: pd.Series, groups: pd.Series) -> np.ndarray:
    """Return found clusters renumbered to the planted groups they share most clients with, each at most once."""
    table = contingency(pd.DataFrame({"group": groups, "cluster": found}))
    if ONE_GROUP in table.index:
        return found.to_numpy()
    rows, columns = linear_sum_assignment(-table.to_numpy())
    names = {table.columns[c]: table.index[r] for r, c in zip(rows, columns, strict=True)}
    free = iter(range(int(groups.max()) + 1, int(groups.max()) + 1 + table.shape[1]))
    return np.array([names[k] if k in names else names.setdefault(k, next(free)) for k in found])


def clusters(members: pd.DataFrame, names: Sequence[str]) -> Figure:
    """Draw the cluster of every client by `names`, clients in the order of their planted group."""
    planted = members["group"].notna().all()
    order = members[members["name"] == names[0]].sort_values(["group", "client"])["client"]
    rows = [members[members["name"] == n].drop_duplicates("client").set_index("client") for n in names]
    cells = [pd.Series(matched(r["cluster"], r["group"]), r.index).reindex(order).to_numpy(float) for r in rows]
    labels = list(names)
    if planted:
        cells.insert(0, rows[0]["group"].reindex(order).to_numpy(float))
        labels.insert(0, "planted groups")
    figure, axes = _rows(len(cells))
    grid = np.ma.masked_invalid(np.array(cells))
    edges = np.arange(len(order) + 1) - 0.5, np.arange(len(cells) + 1) - 0.5
    axes.pcolormesh(*edges, grid % CLUSTERS.N, cmap=CLUSTERS, vmin=-0.5, vmax=CLUSTERS.N - 0.5)
    for row in range(1, len(cells)):
        axes.axhline(row - 0.5, color="white", linewidth=3 if planted and row == 1 else 1.5)
    axes.set_yticks(range(len(cells)), labels)
    axes.grid(visible=False)
    axes.set_xlabel("client, by planted group" if planted else "client")
    axes.set_xticks([])
    _group_legend(figure, np.unique(grid.compressed()).astype(int), "cluster, named after the planted group it fits")
    return figure


def cost(summary: pd.DataFrame, style: dict[str, dict[str, Any]], measure: str, label: str) -> Figure:
    """Draw the score against the bytes of a whole run."""
    figure, axes = blank(7.4, 3.8)
    total = (summary["bytes_down"] + summary["bytes_up"]) / 1e6
    for megabytes, (_, row) in zip(total, summary.iterrows(), strict=True):
        std = row[f"{measure}_std"]
        look = {k: v for k, v in style[row["method"]].items() if k != "linestyle"}
        axes.errorbar(megabytes, _factor(measure) * row[f"{measure}_mean"],
                      yerr=None if np.isnan(std) else _factor(measure) * std, linestyle="none", markersize=7, **look)  # fmt: skip
    if total.min() > 0 and total.max() / total.min() > 20:
        axes.set_xscale("log")
    axes.set(xlabel="bytes sent and received by all clients in a run (MB)", ylabel=label)
    figure.legend(loc="outside right upper")
    return figure
