"""The figures of the report, drawn from its tables. Nothing touches matplotlib's global state.

Text stays text in the SVG, so that it can be read aloud and searched; equal numbers give equal bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter
from scipy.optimize import linear_sum_assignment

from .tables import ONE_GROUP, contingency

# Okabe and Ito's palette, for every kind of colour vision; without its yellow, too pale for lines on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
PALE = "#B8B8B8"
CLUSTERS = ListedColormap([*COLOURS[:6], "#F0E442", "#000000", *colormaps["tab20b"](range(20))])
RASTERED = 1000  # dots; more are drawn as an image, which is smaller
SHOWN = 8  # methods that get a colour of their own; more can't be distinguished
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG and PNG and return the SVG."""
    # Ids come from the salt, so figures that share a page need different ones.
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", metadata=nothing, dpi=110)
        figure.set_layout_engine("none")  # the layout is found once
        figure.savefig(folder / f"{name}.png", metadata={"Software": None}, dpi=130)
    return (folder / f"{name}.svg").read_text(encoding="utf-8")


def grid(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return an empty figure, inches wide and high, in the report's style, and its axes [rows, columns]."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure, axes = grid(width, height)
    return figure, axes[0, 0]


def _legend(figure: Figure, place: Any, **options: Any) -> None:
    figure.legend(loc=place, frameon=False, fontsize=8, title_fontsize=8, **options)


def _rows(count: int) -> tuple[Figure, Axes]:
    figure, axes = blank(7.4, 1.0 + 0.27 * count)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return figure, axes


def spreads(values: pd.DataFrame, stds: Mapping[str, float], label: str, zero: bool = False) -> Figure:
    """Draw rows of values, one column for each seed, as dots with mean and standard deviation."""
    figure, axes = _rows(len(values))
    if zero:
        axes.axvline(0, color="#555555", linewidth=1)
    rows, mean = np.arange(len(values)), values.mean(axis=1)
    std = np.array([stds[name] for name in values.index])
    axes.plot(values, np.tile(rows[:, None], values.shape[1]), "o", color=PALE, markersize=4)
    axes.plot([], [], "o", color=PALE, markersize=4, label="one seed")
    if not np.isnan(std).all():
        axes.hlines(rows, mean - std, mean + std, color=COLOURS[0], label="± standard deviation")
    axes.plot(mean, rows, "D", color=COLOURS[0], markersize=5, label="mean")
    axes.set_yticks(rows, values.index)
    axes.set_xlabel(label)
    _legend(figure, "outside upper right", ncols=3)
    return figure


def factor(measure: str) -> float:
    """Return what a measure is multiplied with to be shown."""
    return 100.0 if measure == "accuracy" else 1.0


def styles(methods: Sequence[str], best: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return each method's colour, dash and marker; only the `best` few get a colour where there are many."""
    shown = [m for m in methods if m in best[:SHOWN]]
    plain = {"color": PALE, "linestyle": "-", "marker": ".", "label": None, "zorder": 1}
    found: dict[str, dict[str, Any]] = {m: dict(plain) for m in methods}
    for i, method in enumerate(shown):
        look = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i % len(DASHES)],
            "marker": MARKERS[i],
        }
        found[method] = look | {"label": method, "zorder": 3}
    rest = [m for m in methods if m not in shown]
    if rest:
        found[rest[0]]["label"] = f"{len(rest)} other methods" if len(rest) > 1 else rest[0]
    return found


def sweep(trials: pd.DataFrame, key: str, measure: str, label: str) -> Figure:
    """Draw the score of each value of one swept number, mean and standard deviation; the chosen one is marked."""
    figure, axes = blank(7.4, 3.0)
    trials = trials.sort_values("value")
    mean, std = (factor(measure) * trials[f"{measure}_{name}"] for name in ("mean", "std"))
    axes.plot(trials["value"], mean, "o-", color=COLOURS[0], linewidth=1.5, markersize=5)
    axes.errorbar(trials["value"], mean, std.fillna(0), linestyle="none", color=COLOURS[0])
    chosen = trials["chosen"].to_numpy(bool)
    axes.plot(trials["value"][chosen], mean[chosen], "D", color=COLOURS[1], markersize=8, label="chosen", zorder=3)
    if trials["value"].min() > 0 and trials["value"].max() / trials["value"].min() > 20:
        axes.set_xscale("log")
    if len(trials) <= SHOWN:
        axes.set_xticks(trials["value"], trials["value"].map("{:g}".format))
        axes.minorticks_off()
    axes.set(xlabel=key, ylabel=label)
    _legend(figure, "outside upper right")
    return figure


def curves(table: pd.DataFrame, style: dict[str, dict[str, Any]], warmups: dict[int, list[str]], measure: str,
           label: str) -> Figure:  # fmt: skip
    """Draw mean and range over seeds by round; the warm-up of one-shot methods is shaded."""
    figure, axes = blank(7.4, 4.0)
    for method, rows in table.groupby("method", sort=False):
        seeds = factor(measure) * rows.pivot(index="round", columns="seed", values=measure)
        look = {k: v for k, v in style[str(method)].items() if k != "marker"}
        axes.plot(seeds.index, seeds.mean(axis=1), linewidth=1.5, **look)
        if seeds.shape[1] > 1 and look["color"] != PALE:
            low, high = seeds.min(axis=1), seeds.max(axis=1)
            axes.fill_between(seeds.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
    for i, (end, names) in enumerate(sorted(warmups.items())):
        text = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods"
        axes.axvspan(0, end, color="#000000", alpha=0.05, linewidth=0, zorder=0)
        axes.axvline(end, color="#555555", linewidth=0.8, linestyle=":")
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(f"round {end}: clusters found ({text})", (end, 0.02), (4, 12 * i), fontsize=8, **place)
    axes.set(xlabel="communication round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, "outside right upper")
    return figure


def heat_map(distance: np.ndarray, found: np.ndarray, groups: np.ndarray | None, label: str) -> Figure:
    """Draw a distance matrix, clients by found cluster, then planted group; lines part the clusters."""
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


def choice(scores: pd.DataFrame, rule: str) -> Figure:
    """Draw the score of every number of clusters tried, a line for each seed, the chosen numbers marked."""
    figure, axes = blank(4.8, 2.6)
    for _, rows in scores.groupby("seed"):
        axes.plot(rows["k"], rows[rule], color=PALE, marker=".")
    chosen = scores[scores["chosen"]]
    axes.plot([], [], color=PALE, marker=".", label="one seed")
    axes.plot(chosen["k"], chosen[rule], "D", color=COLOURS[0], label="chosen")
    axes.set(xlabel="number of clusters k", ylabel=rule)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, "outside upper right", ncols=2)
    return figure


def _strip(figure: Figure, axes: Axes, groups: np.ndarray) -> None:
    """Draw the planted group of each row beside the matrix."""
    beside = axes.inset_axes((1.02, 0, 0.04, 1))
    _cells(beside, groups[:, None])
    beside.set(xticks=[], yticks=[])
    beside.set_title("planted\ngroup", fontsize=7)
    beside.grid(visible=False)
    _group_legend(figure, np.unique(groups), "planted group")


def _cells(axes: Axes, ids: np.ndarray) -> None:
    bounds: dict[str, Any] = {"vmin": -0.5, "vmax": CLUSTERS.N - 0.5}
    axes.imshow(ids % CLUSTERS.N, cmap=CLUSTERS, aspect="auto", interpolation="nearest", **bounds)


def dots(axes: Axes, points: np.ndarray, found: np.ndarray, colours: np.ndarray, size: float = 6) -> dict[int, Any]:
    """Draw clients as points [M, 2], the marker by found cluster; return the looks of the clusters."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": size, "rasterized": len(points) > RASTERED}
    looks = {k: plain | {"marker": MARKERS[i % len(MARKERS)]} for i, k in enumerate(np.unique(found))}
    for k, colour in np.unique(np.column_stack([found, colours]), axis=0):
        own = points[(found == k) & (colours == colour)]
        axes.plot(*own.T, color=CLUSTERS(colour % CLUSTERS.N), markeredgecolor="white", markeredgewidth=0.5, **looks[k])
    return looks


def plane(points: np.ndarray, found: np.ndarray, groups: np.ndarray | None, labels: Sequence[str],
          diagonal: bool = False) -> Figure:  # fmt: skip
    """Draw clients as points [M, 2]: the marker tells the found cluster, the colour the planted group.

    Where no groups are planted, the colour tells the cluster, too. `diagonal` adds the line of equal coordinates.
    """
    figure, axes = blank(4.8, 4.2)
    looks = dots(axes, points, found, found if groups is None else groups)
    if diagonal:
        axes.axline((points.mean(), points.mean()), slope=1, color="#555555", linewidth=1, linestyle=":")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if len(looks) <= len(MARKERS):
        handles = [Line2D([], [], color="#555555", label=str(k), **look) for k, look in looks.items()]
        _legend(figure, "outside upper center", handles=handles, ncols=len(looks), title="found cluster")
    if groups is not None:
        _group_legend(figure, np.unique(groups), "planted group")
    return figure


def strip(values: Mapping[str, pd.Series], groups: pd.Series, label: str) -> Figure:
    """Draw each client's value (per client, by method) as a dot, a method's planted groups below one another.

    Inside a group clients stand a little apart, in their order; a dark tick is the median.
    """
    figure, axes = blank(7.4, 1.0 + 0.5 * len(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    names = np.unique(groups)
    room = 0.8 / len(names)  # of a group, in rows
    many = sum(map(len, values.values())) > RASTERED
    for row, own in enumerate(values.values()):
        axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.8)
        for i, k in enumerate(names):
            x, y = own[own.index.map(groups) == k].to_numpy(), row - 0.4 + (i + 0.5) * room
            if len(x):
                spread = y + room * np.linspace(-0.3, 0.3, len(x))
                axes.plot(x, spread, ".", color=CLUSTERS(k % CLUSTERS.N), markersize=5, alpha=0.6, rasterized=many)
                axes.plot(np.median(x), y, "|", color="#000000", markersize=40 * room, markeredgewidth=1.5)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_xlabel(label)
    if len(names) > 1:
        _group_legend(figure, names, "planted group")
    return figure


def _group_legend(figure: Figure, ids: np.ndarray, title: str) -> None:
    if len(ids) <= 12:
        patches = [Patch(color=CLUSTERS(int(k) % CLUSTERS.N), label=str(k)) for k in ids]
        _legend(figure, "outside lower center", handles=patches, ncols=len(ids), title=title)


def matched(found: pd.Series, groups: pd.Series) -> np.ndarray:
    """Return found clusters renumbered one to one after the planted groups that they share most with."""
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
    groups = members.drop_duplicates("client").sort_values(["group", "client"]).set_index("client")["group"]
    rows = [members[members["name"] == name].set_index("client") for name in names]
    found = [pd.Series(matched(row["cluster"], row["group"]), row.index) for row in rows]
    # Clients that never took part have no cluster: their cells stay white.
    cells = [row.reindex(groups.index).to_numpy(float) for row in ([groups, *found] if planted else found)]
    labels = ["planted groups", *names] if planted else names
    figure, axes = _rows(len(cells))
    grid = np.ma.masked_invalid(np.array(cells))
    _cells(axes, grid)
    for row in range(1, len(cells)):
        axes.axhline(row - 0.5, color="white", linewidth=3 if planted and row == 1 else 1.5)
    axes.set_yticks(range(len(cells)), labels)
    axes.grid(visible=False)
    axes.set_xlabel("client, by planted group" if planted else "client")
    axes.set_xticks([])
    title = "cluster, named after the planted group it fits" if planted else "cluster"
    _group_legend(figure, np.unique(grid.compressed()).astype(int), title)
    return figure


def sizes(found: np.ndarray, minimum: int) -> Figure:
    """Draw the updates of each cluster by round, [T, 2, K], before and after rebalancing; the minimum is dotted."""
    figure, panels = grid(7.4, 2.8, 1, 2, sharey=True)
    rounds = np.arange(1, len(found) + 1)
    titles = ("before", f"after: at least {minimum}")
    for axes, title, drawn in zip(panels[0], titles, found.transpose(1, 0, 2), strict=True):
        for k, own in enumerate(drawn.T):
            look = {"linestyle": DASHES[k % len(DASHES)], "marker": "." if len(found) <= SHOWN else ""}
            axes.plot(rounds, own, color=CLUSTERS(k % CLUSTERS.N), linewidth=1.2, **look)
        axes.axhline(minimum, color="#555555", linewidth=1, linestyle=":")
        axes.set(xlabel="communication round", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0, 0].set_ylabel("updates of a cluster")
    panels[0, 0].set_ylim(bottom=0)
    _group_legend(figure, np.arange(found.shape[2]), "cluster")
    return figure


UNPROVEN = ", not proven"  # behind the name of a method whose epsilon is printed, but no guarantee


def epsilons(
    spent: Mapping[str, pd.Series], style: dict[str, dict[str, Any]], unproven: Collection[str] = ()
) -> Figure:
    """Draw each private method's epsilon by round; methods with equal guarantees lie on one another."""
    figure, axes = blank(7.4, 3.2)
    for method, values in spent.items():
        look = style[method] | {"marker": "" if len(values) > SHOWN else style[method]["marker"]}
        if method in unproven:
            look |= {"label": method + UNPROVEN, "alpha": 0.5}
        axes.plot(values.index, values, linewidth=1.5, **look)
    axes.set(xlabel="communication round", ylabel="epsilon of all rounds so far")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, "outside right upper")
    return figure


def budgets(
    table: pd.DataFrame, measure: str, label: str, style: dict[str, dict[str, Any]], unproven: Collection[str] = ()
) -> Figure:
    """Draw scores, mean and standard deviation, against epsilon, a curve for each `family` of methods.

    A family's methods differ in their budgets alone; it looks as its first one does in `style`. Without privacy, and so
    without epsilon, it is a horizontal line.
    """
    figure, axes = blank(7.4, 3.6)
    for family, rows in table.sort_values("epsilon").groupby("family", sort=False):
        mean, std = (factor(measure) * rows[f"{measure}_{name}"].to_numpy() for name in ("mean", "std"))
        look = style[rows["method"].iloc[0]] | {"label": family, "linewidth": 1.5}
        if set(rows["method"]) & set(unproven):
            look |= {"label": f"{family}{UNPROVEN}", "alpha": 0.5}
        if rows["epsilon"].isna().all():
            axes.axhline(mean[0], **look | {"marker": "", "linewidth": 1})
        else:
            axes.errorbar(rows["epsilon"], mean, np.nan_to_num(std), **look | {"markersize": 6})
    axes.set(xlabel="epsilon of all rounds", ylabel=label, xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xticks(sorted(set(np.round(table["epsilon"].dropna(), 2))))
    axes.minorticks_off()
    _legend(figure, "outside right upper")
    return figure


COSTS = {
    "bytes": ("sent and received (MB)", 1e-6),
    "local_steps": ("local steps (thousands)", 1e-3),
    "client_forwards": ("forward passes (thousands)", 1e-3),
}


def cost(curves: pd.DataFrame, style: dict[str, dict[str, Any]], measure: str, label: str) -> Figure:
    """Draw the score against what all clients have spent by then, means over seeds, a panel for each kind of cost.

    A method that spends nothing is a horizontal line at its last score; a kind that no method spends has no panel.
    An axis is logarithmic where the methods' totals are more than 20 fold apart.
    """
    means = curves.groupby(["method", "round"], sort=False)[[measure, *COSTS]].mean()
    totals = means[list(COSTS)].groupby("method", sort=False).max()
    kinds = [kind for kind in COSTS if totals[kind].any()]
    figure, panels = grid(7.4, 3.9, 1, len(kinds), sharey=True)
    for kind, axes in zip(kinds, panels[0], strict=True):
        title, unit = COSTS[kind]
        spent = totals[kind][totals[kind] > 0]
        logarithmic = spent.max() > 20 * spent.min()
        axes.set(xlabel=title, xscale="log" if logarithmic else "linear")
        if logarithmic:  # powers would be formulas, which are written as they are
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        for method, rows in means.groupby("method", sort=False):
            x, y = unit * rows[kind].to_numpy(), factor(measure) * rows[measure].to_numpy()
            look = style[str(method)] | {"label": None, "linewidth": 1.5, "markersize": 5}
            drawn = x > 0 if logarithmic else np.full(len(x), True)
            if x.any():
                axes.plot(x[drawn], y[drawn], markevery=[-1], **look)
            else:
                axes.axhline(y[-1], **look | {"marker": "", "linewidth": 1})
    for method in totals.index:
        panels[0, 0].plot([], [], **style[str(method)])  # for the legend
    panels[0, 0].set_ylabel(label)
    _legend(figure, "outside lower center", ncols=4)
    return figure
