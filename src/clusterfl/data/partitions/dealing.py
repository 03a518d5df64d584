"""What partitions share: proportions, whole numbers that follow them, and dealing by classes or inside clusters.

Axes: M clients, K clusters, C classes. Whole numbers are computed in integer arithmetic and sorts are stable, so a
partition is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import UserError
from ..samples import Labels, Table

Ints = NDArray[np.int64]


def proportions(
    generator: np.random.Generator, alpha: float | NDArray[np.float64], allowed: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Draw a symmetric Dirichlet over the allowed entries of each row, ``[R, K]``, scaled to a largest entry of 1.

    By gamma variables (Devroye 1986, chapter XI.4). With a small alpha they may underflow to zero: a row of zeros gets
    all its weight in one entry, which is the limit of alpha -> 0.
    """
    gamma = np.where(allowed, generator.standard_gamma(alpha, allowed.shape), 0.0)
    zero = np.flatnonzero(~gamma.any(axis=1))
    gamma[zero, np.where(allowed[zero], generator.random((len(zero), allowed.shape[1])), -1).argmax(axis=1)] = 1
    return gamma / gamma.max(axis=1, keepdims=True)


def shares(weights: NDArray[Any], total: ArrayLike) -> Ints:
    """Divide `total` things in proportion to `weights`: the cumulative sums are rounded down.

    Parameters
    ----------
    weights : [..., K]
        Whole numbers, or floats, not all zero.
    total : [...]
        How many things there are.

    Returns
    -------
    [..., K] : counts that add up to `total`.
    """
    total, whole = np.asarray(total, dtype=np.int64), weights
    if weights.dtype.kind == "f":  # as fine as 64 bits allow for the product below
        bits = 62 - int(total.max(initial=1)).bit_length() - weights.shape[-1].bit_length()
        whole = np.rint(weights / weights.max(axis=-1, keepdims=True) * 2.0 ** min(bits, 40)).astype(np.int64)
    ends = np.cumsum(whole, axis=-1)
    return np.diff(ends * total[..., None] // ends[..., -1:], prepend=0)


def evenly(parts: int, total: int) -> Ints:
    """Return `parts` sizes that differ by at most 1 and add up to `total`."""
    return shares(np.ones(parts, dtype=np.int64), total)


def in_proportion(counts: Ints, train: Ints, test: Ints) -> Ints:
    """Return test counts ``[M, C]`` in the proportions of the training counts.

    Of ``test [C]`` test samples a client gets the share that it got of the ``train [C]`` training samples. Cumulative
    sums are rounded down, with another start for each class: otherwise the same clients would lose out in all classes.
    """
    train = np.maximum(train, 1)
    start = train * np.arange(len(train)) // len(train)
    return np.diff((np.cumsum(counts, axis=0) * test + start) // train, axis=0, prepend=0)


def ranks(sizes: Ints) -> Ints:
    """Return the members' numbers inside consecutive groups of these `sizes`: 0, 1, ..., 0, 1, ..."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def class_sizes(data: Labels, rows: Ints) -> Ints:
    """Return how many of the rows each class has, [C]."""
    return np.bincount(data.y[rows].astype(np.int64), minlength=data.classes)


def grouped(generator: np.random.Generator, keys: NDArray[np.integer]) -> Ints:
    """Return positions in the order of `keys`, shuffled among equal keys."""
    order = generator.permutation(len(keys))
    return order[np.argsort(keys[order], kind="stable")]


def deal_classes(generator: np.random.Generator, data: Labels, rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Deal shuffled rows so that owner i gets ``counts[i, c]`` of class c; return samples and their owners.

    The rest of a class is dealt to nobody.
    """
    sizes = class_sizes(data, rows)
    pool = rows[grouped(generator, data.y[rows])]
    owners = np.tile(np.arange(len(counts)), len(sizes))
    return pool[ranks(sizes) < np.repeat(counts.sum(axis=0), sizes)], np.repeat(owners, counts.T.ravel())


def counted(data: Labels, samples: Ints, client: Ints, clients: int) -> Ints:
    """Return how many samples of each class each client has, [M, C]."""
    cells = client * data.classes + data.y[samples].astype(np.int64)
    return np.bincount(cells, minlength=clients * data.classes).reshape(clients, data.classes)


def check_enough(clients: int, rows: int, minimum: int = 1) -> None:
    """Raise an error if there are too few training samples for the clients."""
    if clients * minimum > rows:
        raise UserError(
            f"clients: {clients} clients of at least {minimum} for {rows} training samples; "
            f"at most {rows // minimum} clients are possible"
        )


def top_up(generator: np.random.Generator, client: Ints, clients: int, minimum: int) -> Ints:
    """Return the samples' clients, [N], after samples are moved so that each client has at least `minimum`.

    Samples to move are drawn uniformly from those that other clients have beyond the minimum. (The usual way, redrawing
    the whole partition until it fits, may never end.)
    """
    sizes = np.bincount(client, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    surplus = generator.permutation(grouped(generator, client)[ranks(sizes) >= minimum])
    client = client.copy()
    client[surplus[: missing.sum()]] = np.repeat(np.arange(clients), missing)
    return client


def deal_clusters(
    generator: np.random.Generator,
    parts: Iterable[tuple[Ints, Ints]],
    clusters: int,
    clients_per_cluster: int | Sequence[int],
    samples: int | None,
) -> Table:
    """Deal each cluster's samples to its clients: shuffled, cut into equal chunks, `samples` of a chunk kept.

    CLoVE's dealing (released code). Test chunks are cut in the same way, so a client has at most `samples` of either.

    Parameters
    ----------
    parts
        Training and then test part: samples and their clusters, [N] each. A sample may be in several clusters.
    clusters, clients_per_cluster
        K, and the number of clients of every cluster, or of each. Ids are consecutive within a cluster.
    samples
        Most samples that a client keeps of a part; None: all.

    Raises
    ------
    UserError
        If a cluster has fewer training samples than clients.
    """
    members = np.broadcast_to(np.asarray(clients_per_cluster, dtype=np.int64), (clusters,))
    first = np.cumsum(members) - members
    tables: list[Table] = []
    for sample, cluster in parts:
        sizes = np.bincount(cluster, minlength=clusters)
        chunks = sizes // members
        if not tables and not chunks.all():
            k = int(np.argmin(chunks))
            raise UserError(
                f"clients_per_cluster: cluster {k} has {sizes[k]} training samples for {members[k]} clients; "
                "every client needs one: use fewer clients or more data"
            )
        order, rank, chunk = grouped(generator, cluster), ranks(sizes), np.repeat(np.maximum(chunks, 1), sizes)
        kept = rank < np.repeat(chunks * members, sizes)
        if samples is not None:
            kept &= rank % chunk < samples
        client = first[cluster[order]] + rank // chunk
        tables.append({"sample": sample[order][kept], "client": client[kept]})
    table = joined(tables)
    return {**table, "true_cluster": np.repeat(np.arange(clusters), members)[table["client"]]}


def joined(tables: list[Table]) -> Table:
    """Concatenate tables with the same columns."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def turns(angles: Sequence[int]) -> NDArray[np.str_]:
    """Return the names of rotations by angles in degrees, counter-clockwise."""
    return np.array([f"rotate{angle}" if angle else "none" for angle in angles])
