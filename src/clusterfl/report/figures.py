"""Figures of scores, costs and privacy, from the report's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from .canvas import (
    CLUSTERS,
    COLOURS,
    DASHES,
    MARKERS,
    PALE,
    RASTERED,
    SHOWN,
    blank,
    factor,
    grid,
    group_legend,
    legend,
    rows_of,
)

Looks = Mapping[str, Mapping[str, Any]]  # of methods, see `styles`
WIDTH, WIDEST = 1.5, 6.0  # of a line, and the most that is added to the widest of coinciding lines
CLOSE = 0.005  # of a figure's range: lines that are closer than this coincide visually


def spreads(values: pd.DataFrame, stds: Mapping[str, float], label: str, zero: bool = False) -> Figure:
    """Draw rows of values, one column for each seed, as dots with mean and standard deviation.

    If a seed has no value, no mean is drawn, as that of the others would be biased.
    """
    figure, axes = rows_of(len(values))
    if zero:
        axes.axvline(0, color="#555555", linewidth=1)
    rows, mean = np.arange(len(values)), values.mean(axis=1, skipna=False)
    std = np.array([stds[name] for name in values.index])
    axes.plot(values, np.tile(rows[:, None], values.shape[1]), "o", color=PALE, markersize=4)
    axes.plot([], [], "o", color=PALE, markersize=4, label="one seed")
    if not np.isnan(std).all():
        axes.hlines(rows, mean - std, mean + std, color=COLOURS[0], label="± standard deviation")
    axes.plot(mean, rows, "D", color=COLOURS[0], markersize=5, label="mean")
    axes.set_yticks(rows, values.index)
    axes.set_xlabel(label)
    legend(figure, "outside upper right", ncols=3)
    return figure


def styles(methods: Sequence[str], best: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return each method's colour, dash and marker; if there are many, only the `best` few get a colour."""
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


def apart(style: Looks, lines: Mapping[str, pd.Series]) -> dict[str, dict[str, Any]]:
    """Return the styles of named lines with a width each: of coinciding lines the first is the widest.

    The later ones are drawn over it, narrower, and the legend says with which line they coincide. `lines` are values
    indexed by their position on the x axis. Lines that are pale in `styles` aren't changed.
    """
    found: dict[str, dict[str, Any]] = {name: {**style[name], "linewidth": WIDTH} for name in lines}
    groups: dict[str, list[str]] = {}  # coinciding lines, by the first of them
    for name in lines:
        if found[name]["color"] != PALE:
            first = next((one for one in groups if coincide(lines[one], lines[name], lines)), name)
            groups.setdefault(first, []).append(name)
    for first, names in groups.items():
        for place, name in enumerate(names):
            found[name]["linewidth"] += min(2.0, WIDEST / len(names)) * (len(names) - 1 - place)
            found[name]["zorder"] += place / len(names)
            if place:
                found[name]["label"] += f"\non the line of {first}"
    return found


def coincide(one: pd.Series, other: pd.Series, lines: Mapping[str, pd.Series]) -> bool:
    """Return whether two of a figure's lines can't be distinguished, relative to the range of all lines."""
    if not one.index.equals(other.index):
        return False
    values = np.concatenate([line.to_numpy(float) for line in lines.values()])
    near = CLOSE * (np.nanmax(values) - np.nanmin(values)) if np.isfinite(values).any() else 0.0
    return bool(np.allclose(one.to_numpy(float), other.to_numpy(float), rtol=0, atol=near, equal_nan=True))


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
    legend(figure, "outside upper right")
    return figure


def curves(table: pd.DataFrame, style: dict[str, dict[str, Any]], warmups: dict[int, list[str]], measure: str,
           label: str) -> Figure:  # fmt: skip
    """Draw mean and range over seeds by round; the warm-up of one-shot methods is shaded.

    If a seed has no score, because a model diverged, the line has a gap: the mean of the others would be biased. The
    same range of several methods is drawn once, as several areas would hide colours and lines.
    """
    figure, axes = blank(7.4, 4.0)
    by_round = {
        str(method): factor(measure) * rows.pivot(index="round", columns="seed", values=measure)
        for method, rows in table.groupby("method", sort=False)
    }
    means = {method: seeds.mean(axis=1, skipna=False) for method, seeds in by_round.items()}
    ranges: list[tuple[pd.Series, pd.Series]] = []
    for method, look in apart(style, means).items():
        seeds = by_round[method]
        axes.plot(seeds.index, means[method], **{k: v for k, v in look.items() if k != "marker"})
        if seeds.shape[1] > 1 and look["color"] != PALE:
            low, high = seeds.min(axis=1, skipna=False), seeds.max(axis=1, skipna=False)
            if not any(coincide(a, low, means) and coincide(b, high, means) for a, b in ranges):
                axes.fill_between(seeds.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
            ranges.append((low, high))
    for i, (end, names) in enumerate(sorted(warmups.items())):
        text = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods"
        axes.axvspan(0, end, color="#000000", alpha=0.05, linewidth=0, zorder=0)
        axes.axvline(end, color="#555555", linewidth=0.8, linestyle=":")
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(f"round {end}: clusters found ({text})", (end, 0.02), (4, 12 * i), fontsize=8, **place)
    axes.set(xlabel="communication round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, "outside right upper")
    return figure


def by_client(values: pd.DataFrame, groups: np.ndarray, names: Sequence[str], parts: Mapping[int, str],
              label: str, style: Looks) -> Figure:  # fmt: skip
    """Draw a row for each client with a marker for each method: ``values [client x method]``, one name for each client.

    Clients are ordered by planted group, with lines between the groups, whose names are `parts`; empty if none are
    planted.
    """
    figure, axes = blank(7.4, 1.3 + 0.165 * len(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    rows = np.arange(len(values))
    for method in values:
        look = {k: v for k, v in style[str(method)].items() if k != "linestyle"}
        axes.plot(values[method], rows, linestyle="none", markersize=5, alpha=0.8, **look)
    axes.set_yticks(rows, names, fontsize=7)
    for group, name in parts.items():
        middle = rows[groups == group].mean()
        axes.text(1.01, middle, f"group {name}", transform=axes.get_yaxis_transform(), fontsize=7, va="center")
    for edge in np.flatnonzero(np.diff(groups)) + 0.5:
        axes.axhline(edge, color="#555555", linewidth=0.8)
    axes.set(xlabel=label, ylabel="client, by planted group" if parts else "client")
    legend(figure, "outside upper center", ncols=4)
    return figure


def strip(values: Mapping[str, pd.Series], groups: pd.Series, label: str, called: Callable[[int], str] = str) -> Figure:
    """Draw each client's value (per client, by method) as a dot, a method's planted groups below each other.

    Inside a group clients are slightly offset, in their order; a dark tick is the median, a dark line goes from the
    tenth percentile to the ninetieth. `called` returns a group's name.
    """
    figure, axes = blank(7.4, 1.0 + 0.5 * len(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    names = np.unique(groups)
    room = 0.8 / len(names)  # of a group, in rows
    many = sum(map(len, values.values())) > RASTERED
    alpha = 0.12 if many else 0.6  # overlapping dots appear darker
    for row, own in enumerate(values.values()):
        axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.8)
        for i, k in enumerate(names):
            x, y = own[own.index.map(groups) == k].to_numpy(), row - 0.4 + (i + 0.5) * room
            if len(x):
                spread = y + room * np.linspace(-0.3, 0.3, len(x))
                axes.plot(x, spread, ".", color=CLUSTERS(k % CLUSTERS.N), markersize=5, alpha=alpha, rasterized=many)
                axes.plot(np.percentile(x, [10, 90]), [y, y], color="#000000", linewidth=1)
                axes.plot(np.median(x), y, "|", color="#000000", markersize=40 * room, markeredgewidth=1.5)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_xlabel(label)
    if len(names) > 1:
        group_legend(figure, names, "planted group", called)
    return figure


def sizes(found: np.ndarray, minimum: int) -> Figure:
    """Draw the number of updates of each cluster, [T, 2, K]: before and after rebalancing; the minimum is dotted."""
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
    group_legend(figure, np.arange(found.shape[2]), "cluster")
    return figure


UNPROVEN = ", not proven"  # after the name of a method whose epsilon is printed in a paper but isn't a guarantee


def epsilons(
    spent: Mapping[str, pd.Series], style: dict[str, dict[str, Any]], unproven: Collection[str] = ()
) -> Figure:
    """Draw each private method's epsilon by round; methods with equal values share a line, in the first one's look."""
    figure, axes = blank(7.4, 3.2)
    equal: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for method, values in spent.items():
        equal.setdefault((tuple(values.index), tuple(values)), []).append(method)
    for (rounds, values), names in equal.items():
        look = style[names[0]] | {"label": "\n".join(name + UNPROVEN * (name in unproven) for name in names)}
        if len(values) > SHOWN:
            look |= {"marker": ""}
        if set(names) <= set(unproven):
            look |= {"alpha": 0.5}
        axes.plot(rounds, values, linewidth=1.5, **look)
    axes.set(xlabel="communication round", ylabel="epsilon of all rounds so far")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, "outside right upper")
    return figure


def budgets(
    table: pd.DataFrame, measure: str, label: str, style: dict[str, dict[str, Any]], unproven: Collection[str] = ()
) -> Figure:
    """Draw scores, mean and standard deviation, against epsilon, a curve for each `family` of methods.

    A family's methods differ only in their budgets; it has the `style` of its first method. A family without privacy,
    and so without epsilon, is a horizontal line.
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
    legend(figure, "outside right upper")
    return figure


COSTS = {
    "bytes": ("sent and received (MB)", 1e-6),
    "local_steps": ("local steps (thousands)", 1e-3),
    "client_forwards": ("forward passes (thousands)", 1e-3),
}


def cost(curves: pd.DataFrame, style: dict[str, dict[str, Any]], measure: str, label: str) -> Figure:
    """Draw the score against the clients' accumulated costs, means over seeds, a panel for each kind of cost.

    A method without this cost is a horizontal line at its last score; a cost that no method has gets no panel. An axis
    is logarithmic if the methods' totals differ by more than a factor of 20.
    """
    seeds = curves.groupby(["method", "round"], sort=False)
    means = seeds[[*COSTS]].mean().assign(**{measure: seeds[measure].agg(lambda values: values.mean(skipna=False))})
    totals = means[list(COSTS)].groupby("method", sort=False).max()
    kinds = [kind for kind in COSTS if totals[kind].any()]
    figure, panels = grid(7.4, 3.9, 1, len(kinds), sharey=True)
    for kind, axes in zip(kinds, panels[0], strict=True):
        title, unit = COSTS[kind]
        spent = totals[kind][totals[kind] > 0]
        logarithmic = spent.max() > 20 * spent.min()
        axes.set(xlabel=title, xscale="log" if logarithmic else "linear")
        if logarithmic:  # the default labels are math text, which `STYLE` doesn't render
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
    legend(figure, "outside lower center", ncols=4)
    return figure
