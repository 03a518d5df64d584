"""The page's part on clusters for a federation: the clients in each cluster, and the clusterings' inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from . import cluster_figures, figures, plane, splitting, stepping, tables, words
from .content import Content, listing, number
from .section import Section


def losses(section: Section) -> list[Content]:
    """Return a figure for each method that measures losses: the clients' losses on its models."""
    found = {n: section.source.losses(section.federation, section.seed, n) for n in section.settings["methods"]}
    return [_loss(section, n, t) for n, t in found.items() if t is not None and len(t) and t.shape[1] > 1]


def _loss(section: Section, name: str, losses: pd.DataFrame) -> Content:
    own = section.members().query("kind == 'method' and name == @name").set_index("client").loc[losses.index]
    vectors, two = losses.to_numpy(), losses.shape[1] == 2
    points, labels = vectors, ["loss on model 0", "loss on model 1"]
    if not two:
        points, shares = plane.principal(vectors)
        labels = [f"principal component {i + 1} ({100 * s:.0f} % of the variance)" for i, s in enumerate(shares)]
    figure = cluster_figures.plane(points, own["cluster"].to_numpy(), _groups(own), labels, diagonal=two)
    text = f"Losses of {len(losses)} clients on the {vectors.shape[1]} models of {name}, seed {section.seed}"
    return section.figure(figure, f"losses-{name}", text)


def splits(section: Section) -> list[Content]:
    """Return figures and a table for each method that splits clusters."""
    found = {n: section.source.splits(section.federation, section.seed, n) for n in section.settings["methods"]}
    return [_split(section, n, state) for n, state in found.items() if state is not None]


def _split(section: Section, name: str, state: Mapping[str, Any]) -> Content:
    groups = tables.truth(section.source.frame(section.federation, section.seed, "partition.partition"))
    planted = groups.reindex(state["clients"]).to_numpy()
    attempts, clusters = splitting.attempts(state), len(np.unique(state["labels"]))
    pictures = [
        section.figure(splitting.tree(state), f"splits-{name}", f"Splits of {name}, seed {section.seed}"),
        section.figure(
            splitting.rewards(state), f"rewards-{name}", f"Rewards of {name}'s clients, seed {section.seed}"
        ),
    ]
    for i, attempt in enumerate(state["splits.attempt"]):
        if f"split{i}.affinity" not in state:
            continue
        round_, cluster = state["attempts.round"][attempt], state["attempts.cluster"][attempt]
        figure = splitting.affinity(state, i, None if np.isnan(planted).any() else planted.astype(int))
        text = f"Affinity of cluster {cluster}'s clients before it was split in round {round_}, {name}"
        pictures.append(section.figure(figure, f"affinity{i}-{name}", text))
    forms = {f"{n} parts": number("{:.2f}") for n in range(2, 2 + state["attempts.scores"].shape[1])}
    return {"name": name, "clusters": clusters, "figures": pictures, "table": listing(attempts, forms)}


def distances(section: Section) -> list[Content]:
    """Return two figures for each clustering: its distances as a matrix and in two dimensions."""
    return [figure for name in section.source.clusterings(section.federation) for figure in _distance(section, name)]


def _distance(section: Section, name: str) -> list[Content]:
    block = section.settings["clusterings"][name]["distance"]
    metric = section.settings["distances"][block]["metric"]
    table = section.source.frame(section.federation, section.seed, f"distance/{block}.distance")
    who = "clients"
    if "landmark" in table:
        who = f"the {table['landmark'].sum()} landmarks (of {len(table)} clients)"
        table = table[table["landmark"]]
    own = section.members().query("kind == 'clustering' and name == @name")
    own = own.set_index("client").loc[table["client"]]
    found, groups = own["cluster"].to_numpy(), _groups(own)
    matrix = np.stack(table["distance"].to_list())
    figure = cluster_figures.heat_map(matrix, found, groups, f"distance '{block}' ({metric})")
    text = f"Distance '{block}' (metric {metric}) between {who}, clustering '{name}', seed {section.seed}"
    points, agreement = plane.scaled(matrix)
    labels = [f"dimension {i} of the distance '{block}'" for i in (1, 2)]
    drawn = cluster_figures.plane(points, found, groups, labels)
    caption = f"The same in two dimensions; correlation with the matrix {number('{:.2f}')(agreement)}"
    return [section.figure(figure, f"distance-{name}", text), section.figure(drawn, f"plane-{name}", caption)]


def choices(section: Section) -> list[Content]:
    """Return a figure for each clustering whose number of clusters was chosen by a score."""
    return [
        _choice(section, name, section.settings["clusterings"][name]["clusters"], rows)
        for name, rows in section.own["choices"].groupby("clustering")
        if isinstance(section.settings["clusterings"][name]["clusters"], str)
    ]


def _choice(section: Section, name: str, rule: str, rows: pd.DataFrame) -> Content:
    chosen = rows[rows["chosen"]].set_index("seed")["k"]
    numbers = ", ".join(f"{k} for seed {seed}" for seed, k in chosen.items())
    text = f"{rule} by number of clusters, clustering '{name}'; chosen: {numbers}"
    return section.figure(cluster_figures.choice(rows, rule), f"choice-{name}", text)


def clusters(section: Section) -> Content | None:
    """Return each client's cluster by method and clustering; None if no method searches for clusters."""
    fixed = [n for n, m in section.settings["methods"].items() if m["method"] in words.FIXED]
    table = section.members()
    table = table[(table["kind"] == "clustering") | ~table["name"].isin(fixed)]
    if table.empty:
        return None
    table = table.assign(own=table["name"], name=table["kind"] + " " + table["name"])
    counts = []
    for name, rows in table.groupby("name", sort=False):
        counted = tables.contingency(rows).rename(columns="cluster {}".format)
        counted = counted.rename_axis("planted group").reset_index()
        if section.names.groups:
            called = [k if k == tables.ONE_GROUP else section.names.group(int(k)) for k in counted["planted group"]]
            counted["planted group"] = called
        counts.append({"name": name, "table": listing(counted)})
    partition = section.source.frame(section.federation, section.seed, "partition.partition")
    groups, before = tables.truth(partition), tables.truth(partition, 1)
    figure = cluster_figures.clusters(table, list(table["name"].unique()), groups, before)
    text = f"Cluster of each client, seed {section.seed}"
    return {
        "figure": section.figure(figure, "clusters", text),
        "counts": counts,
        "steps": _steps(section, table, groups),
        "drift": not before.equals(groups) and (table["kind"] == "clustering").any(),
    }


def _steps(section: Section, table: pd.DataFrame, groups: pd.Series) -> Markup | None:
    """Return the clusters of each round, for methods that form them during training."""
    columns = ["round", "client", "cluster"]
    names = [
        name for name in section.settings["methods"] if ((table["kind"] == "method") & (table["own"] == name)).any()
    ]
    found = {n: section.source.frame(section.federation, section.seed, f"methods/{n}.clusters", columns) for n in names}
    return stepping.steps(found, groups)


def sizes(section: Section) -> list[Content]:
    """Return a figure for each rebalanced method: the numbers of updates of each cluster before and after."""
    shown = []
    for name in section.settings["methods"]:
        found = section.source.sizes(section.federation, section.seed, name)
        if found is not None and len(found[0]):
            text = f"Updates of each cluster of {name} before and after rebalancing, seed {section.seed}"
            shown.append(section.figure(figures.sizes(*found), f"sizes-{name}", text))
    return shown


def _groups(members: pd.DataFrame) -> np.ndarray | None:
    """Return the planted group of each client, or None unless all have one."""
    return members["group"].to_numpy(int) if members["group"].notna().all() else None
