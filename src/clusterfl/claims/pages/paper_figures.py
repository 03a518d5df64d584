"""How each kind of figure in the papers is drawn from a study's runs, with the table of the numbers drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ...config.claims import Cell, Drawing
from ...report import canvas, cluster_figures, figures, plane, portrait, splitting, tables
from ...storage.store import read_tensors
from ..ours import Results
from ..reading import Reader
from ..runs import Run

LABELS = {
    "accuracy": "test accuracy (%)",
    "loss": "test loss",
    "test_loss": "test loss",
    "ari": "adjusted Rand index",
    "rand": "Rand index",
    "balanced_accuracy": "balanced accuracy (%)",
    "clustering_accuracy": "clustering accuracy (%)",
    "n_clusters": "models in use",
}
HIGH = 2.0  # times the largest of the clients' least losses: higher losses are cut off, as in CLoVE's Fig. 5
WORST = 1e9  # stands for a missing loss, so that it doesn't decide the order of the models
SMALL = 4.5  # size of dots
PLANE = ["panel", "client", "group", "cluster", "x", "y"]
Drawn = tuple[Figure, pd.DataFrame]


class Undrawable(Exception):
    """A figure's runs lack what it shows; the text says what is needed."""


def natural(text: str) -> list[Any]:
    """Return a key that sorts texts naturally, with the numbers in them by value: 2, 16, none."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def runs_of(study: Results, federation: str, method: str) -> Iterator[tuple[int, Run]]:
    """Yield the seeds that were run, with their runs."""
    for seed in study.study.seeds.runs:
        run = study.run(federation, seed, method)
        if isinstance(run, Run):
            yield seed, run


def _with_files(study: Results, federation: str, method: str) -> list[tuple[int, Run]]:
    """Return the seeds with result files, and their runs; evidence has only the numbers that verdicts need."""
    runs = list(runs_of(study, federation, method))
    found = [(seed, run) for seed, run in runs if not run.kept]
    if runs and not found:
        raise Undrawable(f"result files; for {federation}/{method} there is only evidence")
    return found


def _panels(study: Results, drawing: Drawing) -> Iterator[tuple[str, str, int, str]]:
    """Yield name, federation, seed and method of each panel; the seed is the first that was run."""
    for name, _, federation, method in drawing.drawn():
        for seed, _ in _with_files(study, federation, method)[:1]:
            yield name, federation, seed, method


def _states(study: Results, drawing: Drawing) -> Iterator[tuple[str, splitting.Splits, NDArray[np.int64]]]:
    """Yield name, state and planted groups (-1 where there are none) of each panel."""
    for name, federation, seed, method in _panels(study, drawing):
        state = study.source.splits(federation, seed, method)
        if state is None:
            raise Undrawable(f"a method that keeps its splits, such as fedgwc; {federation}/{method} doesn't")
        groups = tables.truth(study.source.frame(federation, seed, "partition.partition"))
        yield name, state, groups.reindex(state["clients"]).fillna(-1).to_numpy(np.int64)


def curves(study: Results, drawing: Drawing) -> Drawn:
    """Draw a measure over the rounds: mean and range over seeds."""
    rows = []
    for name, _, federation, method in drawing.drawn():
        for seed, run in runs_of(study, federation, method):
            rounds, values = run.line(drawing.measure)
            rows.append(pd.DataFrame({"method": name, "seed": seed, "round": rounds, drawing.measure: values}))
    table, names = pd.concat(rows), list(drawing.of)
    if table.empty:
        raise Undrawable(f"runs that have {drawing.measure}")
    figure = figures.curves(table, figures.styles(names, names), {}, drawing.measure, LABELS[drawing.measure])
    scale = canvas.factor(drawing.measure)
    return figure, table.rename(columns={"method": "line"}).assign(**{drawing.measure: scale * table[drawing.measure]})


def scores(study: Results, drawing: Drawing) -> Drawn:
    """Draw the last round's measure at the points of each line: mean and standard deviation over seeds."""
    rows = []
    for name, point, federation, method in drawing.drawn():
        for seed, run in runs_of(study, federation, method):
            value = Reader(run, Cell(federation=federation)).read(drawing.measure, "final")
            if not isinstance(value, str):
                rows.append({"line": name, "point": point, "seed": seed, drawing.measure: value})
    if not rows:
        raise Undrawable(f"runs that have {drawing.measure}")
    table = pd.DataFrame(rows)
    order = sorted({point for _, point, _, _ in drawing.drawn()}, key=natural)
    figure, axes = canvas.blank(5.4, 3.4)
    names, ddof = list(drawing.of), study.study.score.ddof
    by_line = {name: own.groupby("point", sort=False)[drawing.measure] for name, own in table.groupby("line")}
    means = {name: by_line[name].mean() for name in names if name in by_line}
    for name, look in figures.apart(figures.styles(names, names), means).items():
        where = [order.index(point) for point in means[name].index]
        size = 5 + 2 * (look["linewidth"] - figures.WIDTH)
        std = by_line[name].std(ddof=ddof).fillna(0)
        axes.errorbar(where, means[name], std, markersize=size, elinewidth=0.8, capsize=2, **look)
    axes.set_xticks(range(len(order)), order)
    axes.set(xlabel=drawing.axis, ylabel=LABELS[drawing.measure])
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure, table


def losses(study: Results, drawing: Drawing) -> Drawn:
    """Draw the losses of one client of each planted group on all models, ordered so that the diagonal has least loss.

    For a method that sends each client one model, only the client's test loss on that model is drawn.
    """
    panels, rows = {}, []
    for name, federation, seed, method in _panels(study, drawing):
        groups = tables.truth(study.source.frame(federation, seed, "partition.partition"))
        chosen = groups.reset_index().groupby("true_cluster")["client"].min()
        if chosen.empty:
            raise Undrawable(f"planted groups, one client of each; {federation} has none")
        found = study.source.losses(federation, seed, method)
        if found is None:
            score = study.source.settings["score"]
            history = study.source.frame(federation, seed, f"methods/{method}.history", tables.HISTORY)
            own = tables.by_client(history, score, history["round"].max())["loss"]
            panels[name] = own.reindex(chosen).to_numpy()[:, None]
        else:
            matrix = found.reindex(chosen).to_numpy()
            diagonal = linear_sum_assignment(np.nan_to_num(matrix, nan=WORST))[1]
            others = [k for k in range(matrix.shape[1]) if k not in diagonal]
            panels[name] = matrix[:, [*diagonal, *others]]
        for (i, k), value in np.ndenumerate(panels[name]):
            rows.append({"panel": name, "client": chosen.iloc[i], "group": chosen.index[i], "model": k, "loss": value})
    widths = [max(2.0, panel.shape[1]) for panel in panels.values()]
    figure, axes = canvas.grid(1.2 + 0.29 * sum(widths), 3.6, 1, len(panels), width_ratios=widths)
    top = HIGH * max(np.nanmax(np.nanmin(panel, axis=1)) for panel in panels.values())
    shades = colormaps["viridis_r"].resampled(64).with_extremes(over="#B34700")
    for place, (name, panel) in zip(axes[0], panels.items(), strict=True):
        image = place.imshow(panel, cmap=shades, vmin=0, vmax=top, aspect="auto")
        _bare(place, name, xlabel="model" if panel.shape[1] > 1 else "own")
        for (i, k), value in np.ndenumerate(panel):
            if value <= top:
                colour = "white" if value > 0.5 * top else "black"
                place.text(k, i, f"{value:.2g}".replace("0.", "."), ha="center", va="center", fontsize=5, color=colour)
    axes[0, 0].set_ylabel("client, one of each planted group")
    figure.colorbar(image, ax=axes[0, -1], label="loss", extend="max", shrink=0.9)
    return figure, pd.DataFrame(rows)


def interactions(study: Results, drawing: Drawing) -> Drawn:
    """Draw interaction matrix and affinity at the first split, or at the last attempt, and the clients in a plane."""
    states, rows = list(_states(study, drawing)), []
    figure, grid = canvas.grid(7.6, 2.7 * len(states), len(states), 3)
    for (first, second, third), (name, state, planted) in zip(grid, states, strict=True):
        found = _first(state)
        order = np.lexsort((found["labels"], planted[found["members"]]))
        members, known = found["members"][order], (planted >= 0).any()
        for axes, kind in ((first, "interaction"), (second, "affinity")):
            matrix = found.get(kind)
            if matrix is not None:
                values = matrix[np.ix_(order, order)].astype(float)
                if kind == "affinity":
                    np.fill_diagonal(values, np.nan)
                axes.imshow(values, cmap=colormaps["viridis"].resampled(64))
            tried = kind == "interaction" or matrix is not None
            _bare(
                axes,
                kind if tried else f"{kind}: no attempt to split",
                xlabel="client, by planted group" if known else "client",
            )
        first.set_ylabel(name)
        points = _embed(found.get("affinity"))
        if points is not None:
            cluster_figures.dots(third, points[order], found["labels"][order], planted[members], SMALL)
        _bare(third, "spectral embedding; markers are clusters", xlabel="colours are planted groups" if known else "")
        rows += _rows_of(name, members, planted, found["labels"][order], None if points is None else points[order])
    return figure, pd.DataFrame(rows, columns=PLANE)


def splits(study: Results, drawing: Drawing) -> Drawn:
    """Draw the plane of each cluster that was split, coloured by the resulting clusters, in the order of the splits."""
    shown, rows = [], []
    for name, state, planted in _states(study, drawing):
        for i, attempt in enumerate(state["splits.attempt"]):
            points = _embed(state.get(f"split{i}.affinity"))
            if points is not None:
                round_, k = state["attempts.round"][attempt], state["attempts.cluster"][attempt]
                labels, members = state[f"split{i}.labels"], state[f"split{i}.members"]
                shown.append((f"{name}: cluster {k}, round {round_}", points, labels))
                rows += _rows_of(shown[-1][0], members, planted, labels, points)
    columns = min(3, max(1, len(shown)))
    lines = -(-max(1, len(shown)) // columns)
    figure, grid = canvas.grid(max(4.8, 2.6 * columns), 2.6 * lines if shown else 0.5, lines, columns)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (title, points, labels) in zip(grid.flat, shown, strict=False):
        cluster_figures.dots(axes, points, labels, labels, SMALL)
        _bare(axes, title)
    if not shown:
        grid[0, 0].text(0, 1, "no cluster was split in these rounds", va="top", transform=grid[0, 0].transAxes)
    return figure, pd.DataFrame(rows, columns=PLANE)


def classes(study: Results, drawing: Drawing) -> Drawn:
    """Draw the share of each class in the training samples of each found cluster."""
    panels = {}
    for name, federation, seed, method in _panels(study, drawing):
        counts = study.source.frame(federation, seed, "partition.classes")
        labels = tables.final_labels(study.source.frame(federation, seed, f"methods/{method}.clusters"))
        own = counts.assign(cluster=counts["client"].map(labels)).dropna(subset="cluster")
        panels[name] = portrait.shares(own.astype({"cluster": int}), "cluster")
        if panels[name].empty:
            raise Undrawable(f"classes and clusters; {federation}/{method} has none")
    figure, grid = canvas.grid(7.4, sum(0.9 + 0.25 * len(p) for p in panels.values()), len(panels))
    for axes, (name, shares) in zip(grid[:, 0], panels.items(), strict=True):
        image = axes.imshow(shares.to_numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="none")
        axes.set_title(name, fontsize=8, loc="left")
        axes.set_yticks(range(len(shares)), shares.index)
        axes.set(xlabel="class", ylabel="cluster")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="share")
    rows = [s.stack().rename("share").reset_index().assign(panel=name) for name, s in panels.items()]
    return figure, pd.concat(rows)[["panel", "cluster", "class", "share"]]


def convergence(study: Results, drawing: Drawing) -> Drawn:
    """Draw the interaction matrix's mean squared step over the rounds, log scale: a line for each seed."""
    figure, axes = canvas.blank(6.4, 3.2)
    names, rows = list(drawing.of), []
    looks = figures.styles(names, names)
    for name, _, federation, method in drawing.drawn():
        style = {k: v for k, v in looks[name].items() if k not in ("marker", "label")}
        for i, (seed, _) in enumerate(_with_files(study, federation, method)):
            state = study.source.splits(federation, seed, method)
            if state is None or "mse.rounds" not in state:
                raise Undrawable(f"fedgwc's record of its rounds; {federation}/{method} has none")
            mse = state["mse.rounds"]
            axes.plot(range(1, len(mse) + 1), mse, linewidth=1, label=None if i else looks[name]["label"], **style)
            rows.append(pd.DataFrame({"line": name, "seed": seed, "round": range(1, len(mse) + 1), "mse": mse}))
    limits = {study.source.on(f)["methods"][m].get("epsilon") for f, m in drawing.places()}
    for limit in limits - {None}:
        axes.axhline(limit, color="#555555", linestyle=":", linewidth=1, label=f"epsilon {limit:g}")
    axes.set(xlabel="communication round", ylabel="MSE of the interaction matrix", yscale="log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure, pd.concat(rows)


def lines(study: Results, drawing: Drawing) -> Drawn:
    """Draw the models ``y = slope x + intercept`` over the lines from which the data were made."""
    panels = list(_panels(study, drawing))
    columns = min(2, len(panels))
    height = -(-len(panels) // columns)
    figure, grid = canvas.grid(3.4 * columns, 2.0 * height, height, columns, sharex=True, sharey=True)
    x, rows = np.array([-3.0, 3.0]), []
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, federation, seed, method) in zip(grid.flat, panels, strict=False):
        made: Mapping[str, Any] = study.source.on(federation)["federations"][federation]["dataset"]
        path = study.source.path(federation, seed, f"methods/{method}.models")
        models = read_tensors(path, ["theta"])["theta"]
        if "slopes" not in made or models.shape[1] != 2:
            raise Undrawable(f"models of a slope and an intercept, and the dataset linear-1d; {federation} has others")
        for slope, intercept in zip(made["slopes"], made["intercepts"], strict=True):
            line, noise = slope * x + intercept, made["noise"]
            axes.fill_between(x, line - noise, line + noise, color=canvas.PALE, alpha=0.35, linewidth=0)
            axes.plot(x, line, color="#888888", linewidth=0.7)
        for k, (slope, intercept) in enumerate(models.tolist()):
            colour, dash = canvas.COLOURS[k % len(canvas.COLOURS)], canvas.DASHES[k % len(canvas.DASHES)]
            axes.plot(x, slope * x + intercept, color=colour, linestyle=dash, linewidth=1.5)
            rows.append({"panel": name, "seed": seed, "model": k, "slope": slope, "intercept": intercept})
        axes.set_title(name, fontsize=8, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("x")
    for axes in grid[:, 0]:
        axes.set_ylabel("y; grey: the data")
    return figure, pd.DataFrame(rows)


def _first(state: splitting.Splits) -> dict[str, NDArray[Any]]:
    """Return the matrices at the first split; if there was none, at the last attempt; else P at the end."""
    kinds = ("members", "labels", "interaction", "affinity")
    for name in ("split0", "last"):
        if f"{name}.affinity" in state:
            return {kind: state[f"{name}.{kind}"] for kind in kinds if f"{name}.{kind}" in state}
    labels = state["labels"]
    return {"members": np.arange(len(labels)), "labels": labels, "interaction": state["interaction"]}


def _embed(affinity: NDArray[np.float32] | None) -> NDArray[np.float64] | None:
    return None if affinity is None else plane.embedded(affinity.astype(np.float64))


def _rows_of(
    name: str, members: NDArray[Any], planted: NDArray[Any], labels: NDArray[Any], points: NDArray[np.float64] | None
) -> list[dict[str, Any]]:
    places = np.full((len(members), 2), np.nan) if points is None else points
    return [
        dict(zip(PLANE, (name, client, planted[client], label, x, y), strict=True))
        for client, label, (x, y) in zip(members, labels, places, strict=True)
    ]


def _bare(axes: Axes, title: str, xlabel: str = "") -> None:
    axes.set_title(title, fontsize=8, loc="left")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(xlabel, fontsize=8)
    axes.grid(visible=False)


DRAW: dict[str, Callable[[Results, Drawing], Drawn]] = {
    f.__name__: f for f in (curves, scores, losses, interactions, splits, classes, convergence, lines)
}
