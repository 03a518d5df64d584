"""Which samples a client uses in each step, and which clients are trained together.

A client's batches depend only on its id and its number of samples, not on the clients trained with it, so every chunk
size gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..errors import UserError
from .training import Training

MINIMUM_ROWS = 16  # below this, matrix products use another kernel with other bits (measured, docs/log.md)

VECTOR = 32  # the most numbers that kernels compute at once; the remainder at a tensor's end is computed differently


def padded_rows(n: NDArray[np.int64] | int, least: int = MINIMUM_ROWS) -> NDArray[np.int64]:
    """Return the number of rows that n samples are padded to: a multiple of `least`, with padding of at most a quarter.

    For small n, padding to `least` rows may add more.
    """
    n = np.maximum(np.asarray(n, dtype=np.int64), 1)
    unit = np.maximum(least, 1 << np.maximum(np.floor(np.log2(n)).astype(np.int64) - 2, 0))
    return -(-n // unit) * unit


def batch_rows(sizes: NDArray[np.int64], training: Training) -> NDArray[np.int64]:
    """Return the rows of each client's batches, padded if they are full batches, [m]."""
    if training.batch_size == "full":
        return padded_rows(sizes)
    return np.full(len(sizes), training.batch_size, dtype=np.int64)


def per_epoch(sizes: NDArray[np.int64], training: Training) -> NDArray[np.int64]:
    """Return the batches of an epoch of each client, [m]; 0 if its only batch is short and is left out."""
    if training.batch_size == "full":
        return np.ones(len(sizes), dtype=np.int64)
    batch = np.int64(training.batch_size)
    return sizes // batch if training.short_batches == "drop" else -(-sizes // batch)


def check_sizes(ids: NDArray[np.int64], sizes: NDArray[np.int64], training: Training) -> None:
    """Refuse clients without a batch: they would train nothing, and still count in means.

    Raises
    ------
    UserError
        It names them.
    """
    without = per_epoch(sizes, training) == 0
    if training.short_batches == "drop" and without.any():
        named = ", ".join(map(str, ids[without][:5].tolist())) + (" and others" if without.sum() > 5 else "")
        raise UserError(
            f"with short_batches: drop, no batch of {training.batch_size} is left to client {named}: it has "
            f"{sizes[without].min()} samples; allowed: a batch_size up to {sizes.min()}, or short_batches: train"
        )


def steps_of(sizes: NDArray[np.int64], training: Training, work: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the optimiser steps each client takes in a round, [m].

    `work` [m] are the epochs (or steps) of each client, if not those of the settings.
    """
    many = np.full(len(sizes), training.most, dtype=np.int64) if work is None else work
    if training.steps is not None:
        return many
    return many * per_epoch(sizes, training)


def schedule(
    seed: int,
    ids: NDArray[np.int64],
    sizes: NDArray[np.int64],
    round_: int,
    training: Training,
    steps: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the samples of each step, as positions among the client's own samples.

    A client's data are shuffled in every epoch and cut into batches in this order; an epoch's last batch may be short,
    or is left out. `steps` [m] are the steps of each client, if not those of the settings.

    Returns
    -------
    [m, steps, rows] : -1 for padding, and in all steps that a client doesn't take.
    """
    rows = int(batch_rows(sizes, training).max())
    steps = steps_of(sizes, training) if steps is None else steps
    many = per_epoch(sizes, training)[:, None]
    step = np.arange(steps.max())
    epoch, batch = step // many, step % many  # [m, steps]
    epochs = int(epoch[step < steps[:, None]].max()) + 1
    each = (np.repeat(part, epochs) for part in (sizes, ids))
    shuffled = streams.permutations(seed, "shuffle", *each, round_, np.tile(np.arange(epochs), len(ids)))
    place = batch[:, :, None] * rows + np.arange(rows)
    found = shuffled.reshape(len(ids), epochs, -1)[
        np.arange(len(ids))[:, None, None], np.minimum(epoch, epochs - 1)[:, :, None], place.clip(max=sizes.max() - 1)
    ]
    return np.where((step < steps[:, None])[:, :, None] & (place < sizes[:, None, None]), found, -1)


def parts(
    sizes: NDArray[np.int64],
    ids: NDArray[np.int64],
    training: Training,
    kinds: NDArray[np.int64],
    most: int,
    fold: int,
    steps: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Group participants into parts of at most `most` clients of one kind with batches of equal shape.

    Each group's parts have about equal size, and their number is a multiple of `fold` if there are enough clients, so
    that processes end together. Each part is an array of positions among the participants, ordered by (kind, batch
    rows, steps, id); sums are taken in this order.
    """
    rows, steps = batch_rows(sizes, training), steps_of(sizes, training) if steps is None else steps
    order = np.lexsort((ids, steps, rows, kinds))
    cuts = np.flatnonzero(np.diff(rows[order]) | np.diff(kinds[order])) + 1
    found = []
    for group in np.split(order, cuts):
        found += np.array_split(group, min(fold * -(-len(group) // (fold * most)), len(group)))
    return found


def together(
    parts: list[NDArray[np.int64]],
    sizes: NDArray[np.int64],
    training: Training,
    kinds: NDArray[np.int64],
    fits: Callable[[NDArray[np.int64]], bool],
) -> list[list[NDArray[np.int64]]]:
    """Group consecutive `parts` of one kind, with batches of equal shape, whose clients together fit one chunk.

    Training them at once takes fewer operations; each part's updates are still summed separately.
    """
    rows, found = batch_rows(sizes, training), list[list[NDArray[np.int64]]]()
    for part in parts:
        first, joined = part[0], np.concatenate([*(found[-1] if found else []), part])
        same = kinds[first] == kinds[joined[0]] and rows[first] == rows[joined[0]]
        if found and same and fits(joined):
            found[-1].append(part)
        else:
            found.append([part])
    return found
