"""Partitions that belong to no single paper: iid, Dirichlet by class, shards, sizes, natural clients, groups."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...errors import UserError
from ..samples import Labels, Table
from .dealing import (
    Ints,
    check_enough,
    class_sizes,
    counted,
    deal_classes,
    deal_clusters,
    evenly,
    grouped,
    in_proportion,
    joined,
    proportions,
    shares,
    top_up,
)


def iid(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
) -> Table:
    """Shuffle all samples and deal them out evenly; no planted groups."""
    check_enough(clients, len(data.train))
    return joined(
        [
            {"sample": generator.permutation(rows), "client": np.repeat(np.arange(clients), evenly(clients, len(rows)))}
            for rows in data.parts()
        ]
    )


def dirichlet(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    alpha: Annotated[float, Field(gt=0, description="concentration; if small, few clients have a class")] = 0.5,
    minimum: Annotated[int, Field(ge=1, description="least training samples of every client")] = 1,
) -> Table:
    """Divide each class over the clients by its own draw from Dir(alpha); clients' sizes differ accordingly.

    Yurochkin et al. 2019 (arXiv 1905.12022). A class's proportions are the same for training and test rows. Clients
    below `minimum` get training samples of other clients, drawn uniformly from what these have beyond it.
    """
    check_enough(clients, len(data.train), minimum)
    weights = proportions(generator, alpha, np.ones((data.classes, clients), dtype=bool))
    tables = []
    for rows in data.parts():
        counts = shares(weights, class_sizes(data, rows)).T
        tables.append(dict(zip(("sample", "client"), deal_classes(generator, data, rows, counts), strict=True)))
    tables[0]["client"] = top_up(generator, tables[0]["client"], clients, minimum)
    return joined(tables)


def shards(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    shards: Annotated[int, Field(gt=0, description="shards of each client; 2 in the paper")] = 2,
) -> Table:
    """Sort by class, cut into equal shards and give each client some at random.

    McMahan et al. 2017 (arXiv 1602.05629, section 3). Test rows are dealt in each client's training proportions.
    """
    check_enough(clients, len(data.train), shards)
    train = data.train[grouped(generator, data.y[data.train])]
    owners = generator.permutation(np.repeat(np.arange(clients), shards))
    client = np.repeat(owners, evenly(clients * shards, len(train)))
    counts = in_proportion(
        counted(data, train, client, clients), class_sizes(data, data.train), class_sizes(data, data.test)
    )
    test, tester = deal_classes(generator, data, data.test, counts)
    return {"sample": np.concatenate([train, test]), "client": np.concatenate([client, tester])}


def quantity(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    sigma: Annotated[
        float, Field(ge=0, description="standard deviation of the sizes' logarithm; 0: equal sizes")
    ] = 1.0,
    minimum: Annotated[int, Field(ge=1, description="least training samples of every client")] = 1,
) -> Table:
    """Deal shuffled samples to clients whose sizes are in proportion to log-normal draws."""
    check_enough(clients, len(data.train), minimum)
    weights = generator.lognormal(0, sigma, clients)
    tables = [
        {
            "sample": generator.permutation(rows),
            "client": np.repeat(np.arange(clients), shares(weights, len(rows))),
        }
        for rows in data.parts()
    ]
    tables[0]["client"] = top_up(generator, tables[0]["client"], clients, minimum)
    return joined(tables)


def natural(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int | None, Field(gt=0, description="most clients to keep; null: all")] = None,
    minimum: Annotated[int, Field(ge=1, description="clients with fewer training samples are left out")] = 1,
    which: Annotated[
        Literal["drawn", "largest"], Field(description="clients to keep: drawn uniformly, or those with most samples")
    ] = "drawn",
) -> Table:
    """Give every natural owner (writer, speaking role, user) its own samples.

    As LEAF does (Caldas et al. 2018, arXiv 1812.01097): owners below a minimum are left out, then some are drawn.
    Clients are numbered in the order of owners; rows without an owner are left out. CLoVE's 100 FEMNIST writers are
    `drawn` too: its code draws from the largest ten times as many, which are nearly all. If the data also have natural
    groups, a client belongs to a group if all its samples do.

    Raises
    ------
    UserError
        If the dataset has no owners, or none has `minimum` samples.
    """
    if data.owner is None:
        raise UserError("natural: this dataset doesn't tell who owns a sample; use iid, dirichlet or quantity")
    owned = data.owner[data.train]
    sizes = np.bincount(owned[owned >= 0], minlength=1)
    kept = np.flatnonzero(sizes >= minimum)
    if not sizes.any():
        raise UserError(
            f"natural: no client has a training sample: all {len(data.test)} samples are marked as test samples; mark "
            "fewer, or divide each client's own: partition.split: share"
        )
    if not len(kept):
        raise UserError(
            f"minimum: no owner has {minimum} training samples; the largest has {sizes.max()}; allowed: 1 to "
            f"{sizes.max()}"
        )
    if clients is not None and clients < len(kept):
        largest = kept[np.argsort(-sizes[kept], kind="stable")]
        kept = np.sort(largest[:clients] if which == "largest" else generator.choice(kept, clients, replace=False))
    rows = np.concatenate(data.parts())
    rows = rows[np.isin(data.owner[rows], kept)]
    table = {"sample": rows, "client": np.searchsorted(kept, data.owner[rows])}
    return table if data.group is None else table | {"true_cluster": _groups(table["client"], data.group[rows])}


def _groups(client: Ints, group: Ints) -> Ints:
    """Return for each row the group of all its client's samples, -1 if they are of several groups."""
    bounds = np.full((2, client.max(initial=-1) + 1), -1)
    bounds[0] = np.iinfo(np.int64).max
    np.minimum.at(bounds[0], client, group)
    np.maximum.at(bounds[1], client, group)
    return np.where(bounds[0] == bounds[1], bounds[0], -1)[client]


def by_group(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients_per_cluster: Annotated[
        Annotated[int, Field(gt=0)] | Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)],
        Field(description="clients of each group, or a list with one number for each; CLoVE: 5"),
    ] = 5,
    samples: Annotated[
        int | None, Field(gt=0, description="most training (and test) samples of a client; null: all")
    ] = None,
) -> Table:
    """Deal each natural group of the data (product domain, planted model) to its own clients.

    CLoVE's Amazon reviews and linear models: 5 clients for each group, up to 1,000 samples each.
    """
    if data.group is None:
        raise UserError("by-group: this dataset has no natural groups; use rotated, label-skew or concept-shift")
    groups = int(data.group.max()) + 1
    if isinstance(clients_per_cluster, list) and len(clients_per_cluster) != groups:
        raise UserError(
            f"clients_per_cluster: {clients_per_cluster}, but the dataset has {groups} groups; give one number for each"
        )
    parts = [(rows, data.group[rows]) for rows in data.parts()]
    return deal_clusters(generator, parts, groups, clients_per_cluster, samples)
