"""Description of a federation: tables and a figure from its counts by client and class.

Counts are those of stage partition: one row for each client, role, planted group, split and class that has samples,
with the class's name if classes have names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..data.names import NAMELESS, Names
from . import canvas

NAMED = 20  # the most classes whose names are listed
BUBBLES = 60  # the most clients that get a column of bubbles each; more are stripes of a heat map


def clients(counts: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each client that isn't the server: role, group, samples by split, classes in training."""
    own = counts[counts["role"] != "server"]
    table = own.groupby("client")[["role", "true_cluster"]].first()
    sizes = own.pivot_table(index="client", columns="split", values="n", aggfunc="sum", fill_value=0)
    table = table.join(sizes.reindex(columns=["train", "validation", "test"], fill_value=0))
    return table.assign(classes=own[own["split"] == "train"].groupby("client")["class"].nunique()).fillna(
        {"classes": 0}
    )


def sizes(counts: pd.DataFrame) -> pd.DataFrame:
    """Return min, median and max over clients, and the total: samples of each split, and classes (in training)."""
    table = clients(counts)
    rows = []
    for name in ("train", "validation", "test", "classes"):
        values = table[name]
        if name == "classes" and (counts["class"] < 0).all():
            continue
        if values.any():
            total = values.sum() if name != "classes" else counts["class"].nunique()
            rows.append({"per client": name if name == "classes" else f"{name} samples"}
                        | {n: getattr(values, n)() for n in ("min", "median", "max")} | {"in all": total})  # fmt: skip
    return pd.DataFrame(rows)


def groups(counts: pd.DataFrame, called: Names = NAMELESS) -> pd.DataFrame:
    """Return one row for each planted group: clients, samples, classes. Empty if no groups are planted."""
    table, names = clients(counts), class_names(counts)
    rows = []
    for group, own in table[table["true_cluster"] >= 0].groupby("true_cluster"):
        classes = np.sort(counts.loc[(counts["true_cluster"] == group) & (counts["class"] >= 0), "class"].unique())
        row = {
            "group": called.group(group) if called.groups else group,
            "clients": len(own),
            "train samples": own["train"].sum(),
        }
        rows.append(row | {"test samples": own["test"].sum(), "classes": _listed(classes.tolist(), names)})
    found = pd.DataFrame(rows)
    return found.drop(columns="classes") if len(found) and (counts["class"] < 0).all() else found


def class_names(counts: pd.DataFrame) -> dict[int, str]:
    """Return the names of the classes that have samples; empty if classes have no names."""
    return dict(sorted(zip(counts["class"], counts["label"], strict=True))) if "label" in counts else {}


def _listed(values: list[int], names: Mapping[int, str]) -> str:
    """Return classes as text: their names if they have some, else ranges."""
    if not names:
        return _ranges(values)
    more = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    return ", ".join(names.get(value, str(value)) for value in values[:NAMED]) + more


def _ranges(values: list[int]) -> str:
    """Return whole numbers as text with ranges: 0-3, 7."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][1] + 1:
            parts[-1][1] = value
        else:
            parts.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def shares(counts: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the shares of classes in the training samples, one row for each value of a column."""
    own = counts[(counts["split"] == "train") & (counts["role"] != "server") & (counts["class"] >= 0)]
    table = own.pivot_table(index=by, columns="class", values="n", aggfunc="sum", fill_value=0)
    return table.div(table.sum(axis=1), axis=0)


def class_distances(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the total-variation distances [G, G] between the groups' class shares: 0 = equal, 1 = no common class."""
    own = counts[counts["true_cluster"] >= 0]
    table = shares(own, "true_cluster")
    values = 0.5 * np.abs(table.to_numpy()[:, None] - table.to_numpy()[None]).sum(2)
    return pd.DataFrame(values, index=table.index, columns=table.index)


def distances(counts: pd.DataFrame, samples: pd.DataFrame | None = None) -> Iterator[str]:
    """Yield sentences about the distances between planted groups, in classes and in samples."""
    if counts.loc[counts["true_cluster"] >= 0, "true_cluster"].nunique() < 2:
        return
    if (counts["class"] >= 0).any():
        shares = class_distances(counts)
        yield f"Distance between groups, class shares (total variation, 0 to 1): {_spread(shares)}."
    if samples is not None and np.isfinite(_between(samples)).any():  # groups without a class in common have none
        of = " of a class" if (counts["class"] >= 0).any() else ""
        yield f"Distance between groups, mean samples{of} (in standard deviations of one number): {_spread(samples)}."


def _between(matrix: pd.DataFrame) -> NDArray[np.float64]:
    """Return the entries of two different groups."""
    values: NDArray[np.float64] = matrix.to_numpy()[~np.eye(len(matrix), dtype=bool)]
    return values


def _spread(matrix: pd.DataFrame) -> str:
    values = _between(matrix)
    return f"{np.nanmin(values):.2f} to {np.nanmax(values):.2f}, mean {np.nanmean(values):.2f}"


def remarks(counts: pd.DataFrame) -> Iterator[str]:
    """Yield remarks on properties of the data that may be unexpected but needn't be errors."""
    table, has = clients(counts), counts["class"] >= 0
    members, names = table[table["role"] == "member"], class_names(counts)
    if names:
        texts = [f"{number} = {name}" for number, name in list(names.items())[:NAMED]]
        yield f"Classes: {', '.join(texts)}{f' and {len(names) - NAMED} more' if len(names) > NAMED else ''}."
    if has.any():
        one = int((table["classes"] == 1).sum())
        if one:
            yield f"Clients with a single class in training: {one} of {len(table)}."
        present = set(counts.loc[has, "class"])
        if len(present) == 1:
            yield "All samples are of one class, so that every prediction is right."
        gaps = sorted(set(range(max(present) + 1)) - present)
        if gaps:
            yield f"Labels without any sample: {_ranges(gaps)}."
        seen = set(counts.loc[has & (counts["split"] == "train") & (counts["role"] == "member"), "class"])
        unseen = sorted(present - seen)
        if unseen:
            yield f"Labels that no member has in training: {_listed(unseen, names)}."
        test = counts[has & (counts["split"] == "test") & (counts["role"] == "member")]
        train = counts[has & (counts["split"] == "train")].set_index(["client", "class"]).index
        alien = test[~test.set_index(["client", "class"]).index.isin(train)]
        if len(alien):
            yield (
                "Members with test samples of classes that they don't have in training: "
                f"{alien['client'].nunique()} ({alien['n'].sum() / test['n'].sum():.1%} of all members' test samples)."
            )
    untested = int((members["test"] == 0).sum())
    if untested:
        yield f"Members without test samples, who don't count in test scores: {untested} of {len(members)}."
    newcomers = int((table["role"] == "newcomer").sum())
    if newcomers:
        yield f"Newcomers, with whom no method trains: {newcomers}."
    excluded = int((table["role"] == "excluded").sum())
    if excluded:
        yield f"Clients with flipped labels, who are left out of everything: {excluded}."
    kept = counts.loc[counts["role"] == "server", "n"].sum()
    if kept:
        yield f"Samples kept by the server: {kept}."


def picture(counts: pd.DataFrame, called: Names = NAMELESS) -> Figure:
    """Draw classes by client, as bubbles or as a heat map, above the clients' sizes; colours are planted groups."""
    table = clients(counts).sort_values(["true_cluster", "role"], kind="stable")
    with_classes = bool((counts["class"] >= 0).any())
    heights = [3, 1] if with_classes else [1]
    figure, axes = canvas.grid(7.6, 4.2 if with_classes else 2.2, len(heights), sharex=True, height_ratios=heights)
    if with_classes:
        _classes(axes[0, 0], counts, table)
    _sizes(axes[-1, 0], table)
    if called.clients and len(table) <= BUBBLES:
        names = [called.client(client) for client in table.index]
        axes[-1, 0].set_xticks(range(len(table)), names, rotation=90, fontsize=7)
    return figure


def _colours(table: pd.DataFrame) -> list[str]:
    colours = canvas.COLOURS
    return [colours[int(g) % len(colours)] if g >= 0 else colours[0] for g in table["true_cluster"]]


def _classes(axes: Axes, counts: pd.DataFrame, table: pd.DataFrame) -> None:
    wide = counts[(counts["role"] != "server")].pivot_table(
        index="client", columns="class", values="n", aggfunc="sum", fill_value=0
    )
    wide = wide.reindex(columns=range(int(counts["class"].max()) + 1), fill_value=0).loc[table.index]
    if len(table) <= BUBBLES:
        x, y = np.nonzero(wide.to_numpy())
        n = wide.to_numpy()[x, y]
        colours = np.array(_colours(table))
        axes.scatter(x, y, s=4 + 90 * n / n.max(), c=colours[x], linewidth=0, alpha=0.85)
        axes.set_title(f"samples by class; the largest bubble has {n.max():,}", fontsize=8, loc="left")
    else:
        share = wide.div(wide.sum(axis=1), axis=0).to_numpy().T
        axes.imshow(share, aspect="auto", cmap="Blues", vmin=0, vmax=share.max(), interpolation="none")
        axes.set_title(f"share of each class, white = none, darkest = {share.max():.0%}", fontsize=8, loc="left")
        axes.grid(visible=False)
    if wide.shape[1] <= 12:
        names = class_names(counts)
        axes.set_yticks(range(wide.shape[1]), [names[c] for c in wide] if len(names) == wide.shape[1] else None)
    axes.set_ylabel("class")


def _sizes(axes: Axes, table: pd.DataFrame) -> None:
    train = (table["train"] + table["validation"]).to_numpy()
    both, colours = train + table["test"].to_numpy(), np.array(_colours(table))
    if len(table) <= BUBBLES:
        left = np.arange(len(table))
        axes.bar(left, train, color=colours, linewidth=0)
        axes.bar(left, table["test"], bottom=train, color=canvas.PALE, label="test", linewidth=0)
    else:  # one outline for each run of a colour: a bar for each client takes a millisecond
        edges = np.arange(len(table) + 1) - 0.5
        look: dict[str, Any] = {"fill": True, "linewidth": 0, "rasterized": len(table) > canvas.RASTERED}
        starts = [0, *np.flatnonzero(colours[1:] != colours[:-1]) + 1, len(table)]
        for first, end in itertools.pairwise(starts):
            axes.stairs(train[first:end], edges[first : end + 1], color=colours[first], **look)
        axes.stairs(both, edges, baseline=train, color=canvas.PALE, label="test", **look)
    axes.set_xlim(-0.6, len(table) - 0.4)
    planted = (table["true_cluster"] >= 0).any()
    axes.set(xlabel="client" + (", by planted group (colour)" if planted else ""), ylabel="samples")
    axes.grid(axis="x", visible=False)
    axes.figure.legend(loc="outside upper right", frameon=False, fontsize=8)


def examples(images: np.ndarray, labels: np.ndarray, groups: list[str]) -> Figure:
    """Draw samples as pictures: ``images [G, n, channels, height, width]`` from 0 to 1, one row for each group."""
    rows, columns = images.shape[:2]
    figure, grid = canvas.grid(0.75 * columns + 1.0, 0.82 * rows + 0.3, rows, columns)
    for place, axes in np.ndenumerate(grid):
        picture = np.clip(images[place].transpose(1, 2, 0), 0, 1)
        axes.imshow(picture[..., 0] if picture.shape[2] == 1 else picture, cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{labels[place]}", fontsize=7, labelpad=1)
        if place[1] == 0:
            axes.set_ylabel(groups[place[0]], fontsize=7)
    return figure
