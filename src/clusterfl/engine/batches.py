"""Which samples a client uses in which step, and which clients train together.

Both depend on the client alone (its id, its number of samples), never on its neighbours: so chunks of any size
give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..training import Training

MINIMUM_ROWS = 16  # below this, matrix products take another kernel and other bits (measured, docs/log.md)


def padded_rows(n: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return the rows that n samples are padded to: a multiple of 16 that wastes at most a quarter beyond that."""
    n = np.maximum(np.asarray(n, dtype=np.int64), 1)
    unit = np.maximum(MINIMUM_ROWS, 1 << np.maximum(np.floor(np.log2(n)).astype(np.int64) - 2, 0))
    return -(-n // unit) * unit


def batch_rows(sizes: NDArray[np.int64], training: Training) -> NDArray[np.int64]:
    """Return the rows of each client's batches in the stacked form, [m]."""
    if training.batch_size == "full":
        return padded_rows(sizes)
    return np.full(len(sizes), training.batch_size, dtype=np.int64)


def steps_of(sizes: NDArray[np.int64], training: Training) -> NDArray[np.int64]:
    """Return the optimiser steps each client takes in a round, [m]."""
    if training.steps is not None:
        return np.full(len(sizes), training.steps, dtype=np.int64)
    batch = sizes if training.batch_size == "full" else np.int64(training.batch_size)
    assert training.epochs is not None
    return training.epochs * -(-sizes // batch)


def schedule(
    seed: int, ids: NDArray[np.int64], sizes: NDArray[np.int64], round_: int, training: Training
) -> NDArray[np.int64]:
    """Return the samples of each step, as positions among the client's own.

    A client's data are shuffled anew in every epoch; its batches follow one another, the last one of an epoch short.

    Returns
    -------
    [m, steps, rows] : -1 where there is no sample. Steps beyond a client's own are all -1.
    """
    rows = int(batch_rows(sizes, training).max())
    steps = steps_of(sizes, training)
    per_epoch = -(-sizes // (sizes if training.batch_size == "full" else np.int64(rows)))
    result = np.full((len(ids), int(steps.max()), rows), -1, dtype=np.int64)
    for epoch in range(int((-(-steps // per_epoch)).max())):
        shuffled = streams.permutations(seed, "shuffle", sizes, ids, round_, epoch)
        width = int(per_epoch.max()) * rows
        padded = np.full((len(ids), width), -1, dtype=np.int64)
        padded[:, : shuffled.shape[1]] = shuffled
        batches = padded.reshape(len(ids), -1, rows)
        for i in range(len(ids)):  # an epoch starts at a different step for each client size
            first = epoch * int(per_epoch[i])
            count = min(int(per_epoch[i]), int(steps[i]) - first)
            if count > 0:
                result[i, first : first + count] = batches[i, :count]
    return result


def chunks(sizes: NDArray[np.int64], ids: NDArray[np.int64], training: Training, most: int) -> list[NDArray[np.int64]]:
    """Group participants into chunks of at most `most` clients with batches of equal shape.

    Each chunk is an array of positions among the participants, who are processed in the order of (batch rows, steps,
    id). Sums run in this order too, whatever the chunks, and within a chunk the clients that still train are always
    its tail.
    """
    rows, steps = batch_rows(sizes, training), steps_of(sizes, training)
    order = np.lexsort((ids, steps, rows))
    cuts = np.flatnonzero(np.diff(rows[order])) + 1
    return [part[i : i + most] for part in np.split(order, cuts) for i in range(0, len(part), most)]
