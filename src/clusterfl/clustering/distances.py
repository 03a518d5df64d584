"""Distances between clients, from their warmed-up models. M clients, P columns.

LCFL: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, Eq. 2 (loss), Eq. 6 (its variant), Eq. 1 (parameters, called
DiffNorm there); the gradient cosine (GradCos) is from its ablation. Departure as an option: the released code measures
losses on a client's training and test data together (`data: all`); the default uses training data only, so that test
samples don't influence the clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..errors import UserError
from ..storage.blocks import blocks
from .metric import Metrics, computed_from

Ids = NDArray[np.int64]
CACHE_BYTES = 1 << 20  # size of a block of row differences, which should stay in a core's cache


def rows_of(values: Any) -> NDArray[np.float64]:
    """Return values as an array of float64."""
    if hasattr(values, "detach"):  # a torch tensor; torch itself needn't be imported here
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _like(result: NDArray[np.float64], given: Any) -> Any:
    return given.double().new_tensor(result) if hasattr(given, "new_tensor") else result


@computed_from("losses")
def loss_distance(losses: Any, landmarks: Ids | None = None) -> Any:
    """Return ``D[i, j] = |L_i(w_j) - L_i(w_i)| + |L_j(w_i) - L_j(w_j)|`` (LCFL, Eq. 2).

    Parameters
    ----------
    losses : [M, M]
        ``losses[i, j] = L_i(w_j)``, the mean loss of client j's model on client i's data. With landmarks three arrays:
        ``L_i(w_l)`` [M, r], ``L_l(w_i)`` [M, r] and ``L_i(w_i)`` [M] for all clients i and landmarks l.
    landmarks : [r]
        Positions of the clients that every client is compared with; by default all.

    Returns
    -------
    [M, M], symmetric with zero diagonal, numpy or torch like the input; with landmarks only their columns, [M, r].
    """
    here, there, own, others = _mutual(losses, landmarks)
    return _like(np.abs(here - own) + np.abs(there - others), losses)


@computed_from("losses")
def cross_loss_distance(losses: Any, landmarks: Ids | None = None) -> Any:
    """Return ``D[i, j] = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|`` (LCFL, Eq. 6).

    Arguments and result as `loss_distance`.
    """
    here, there, own, others = _mutual(losses, landmarks)
    return _like(np.abs(own - there) + np.abs(here - others), losses)


def _mutual(losses: Any, landmarks: Ids | None) -> tuple[NDArray[np.float64], ...]:
    """Return ``L_i(w_j)`` [M, r], ``L_j(w_i)`` [M, r], ``L_i(w_i)`` [M, 1] and ``L_j(w_j)`` [r]."""
    if landmarks is None:
        matrix = rows_of(losses)
        return matrix, matrix.T, np.diag(matrix)[:, None], np.diag(matrix)
    here, there, own = map(rows_of, losses)
    return here, there, own[:, None], own[landmarks]


@computed_from("parameters")
def parameter_distance(theta: Any, landmarks: Ids | None = None) -> Any:
    """Return the Euclidean distances ``||w_i - w_j||`` of the rows of ``theta [M, P]`` (LCFL, Eq. 1).

    `landmarks` and result as in `loss_distance`.
    """
    return compared(theta, landmarks, rows_of, gaps)


def gaps(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean distances [n, m] of ``rows [n, P]`` from ``others [m, P]``."""
    return _apart(rows, others, _norms)


def _apart(
    rows: NDArray[np.float64],
    others: NDArray[np.float64],
    length: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the lengths [n, m] of all differences; ``length(differences [c, P])`` may write over its argument."""
    # From differences rather than from products of rows: no cancellation between close models.
    result = np.empty((len(rows), len(others)))
    for j, other in enumerate(others):
        for cut in blocks(len(rows), other.nbytes, CACHE_BYTES):
            result[cut, j] = length(rows[cut] - other)
    return result


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.square(rows, out=rows)
    return np.sqrt(squares.sum(axis=1))


def _city_blocks(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    absolute: NDArray[np.float64] = np.abs(rows, out=rows)
    return absolute.sum(axis=1)


def manhattan_distance(deltas: Any, landmarks: Ids | None = None) -> Any:
    """Return ``sum |d_i - d_j|`` of the rows of ``deltas [M, P]``; `landmarks` and result as in `loss_distance`."""
    return compared(deltas, landmarks, rows_of, partial(_apart, length=_city_blocks))


@computed_from("gradients")
def cosine_distance(vectors: Any, landmarks: Ids | None = None) -> Any:
    """Return ``1 - cosine`` of the rows of ``vectors [M, P]``; a zero row is at distance 1 from all others.

    `landmarks` and result as in `loss_distance`.
    """
    result = compared(vectors, landmarks, _unit, _turned)
    result[np.arange(len(result)) if landmarks is None else landmarks, np.arange(result.shape[1])] = 0
    return result


@computed_from("deltas")
def update_cosine_distance(deltas: Any, landmarks: Ids | None = None) -> Any:
    """Return ``1 - cosine`` of the rows of ``deltas [M, P]``, clients' updates; otherwise as `cosine_distance`."""
    return cosine_distance(deltas, landmarks)


def _unit(vectors: Any) -> NDArray[np.float64]:
    rows = rows_of(vectors)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.where(norms > 0, norms, 1)


def _turned(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(1 - products(rows, others), 0, 2)


def products(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scalar products [n, m] of ``rows [n, P]`` and ``others [m, P]``."""
    # einsum without BLAS: a matrix product's bits may change with the number of threads. A single product of rows is
    # added up in another order than several are, so the row is doubled.
    several = np.repeat(others, 2, axis=0) if len(rows) == len(others) == 1 else others
    return np.einsum("ip,jp->ij", rows, several)[:, : len(others)]


def compared(
    values: Any,
    landmarks: Ids | None,
    ready: Callable[[Any], NDArray[np.float64]],
    distance: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> Any:
    """Return the distances, [M, M] or with landmarks [M, r], of the rows of ``values [M, P]`` after `ready`.

    ``distance(rows [n, P], others [m, P])`` returns [n, m]. Two blocks of rows are in memory at a time; without
    landmarks each pair is compared once. `values` may be any object with a length whose rows are read by indexing.
    """
    row_bytes = 8 * np.shape(values[:1])[1]
    parts = blocks(len(values), row_bytes)
    cuts = parts if landmarks is None else blocks(len(landmarks), row_bytes)
    result = np.zeros((len(values), cuts[-1].stop))
    for number, cut in enumerate(cuts):
        others = ready(values[cut if landmarks is None else landmarks[cut]])
        for part in parts[number:] if landmarks is None else parts:
            same = landmarks is None and part == cut
            found = distance(others if same else ready(values[part]), others)
            result[part, cut] = found
            if landmarks is None:
                result[cut, part] = found.T
    return _like(result, values)


def landmarks(ids: Ids, number: int, seed: int) -> Ids:
    """Return the positions of `number` randomly drawn clients, ascending; of all clients if there are fewer.

    With the same seed, a larger number gives the same landmarks and further ones.
    """
    return np.sort(np.argsort(streams.hashed(seed, "landmarks", ids), kind="stable")[:number])


def check_distance(distance: NDArray[Any], landmarks: Ids | None = None) -> None:
    """Raise a `UserError` unless the matrix is square, finite, symmetric and not negative, with a zero diagonal.

    With `landmarks` [r] it is [M, r], and the landmarks' rows must be such a matrix.
    """
    between = distance if landmarks is None else distance[landmarks]
    if between.ndim != 2 or between.shape[0] != between.shape[1]:
        raise UserError(f"a distance matrix is square; found shape {between.shape}")
    columns = np.arange(distance.shape[1]) if landmarks is None else landmarks
    for wrong, why in ((~np.isfinite(distance), "a model probably diverged"), (distance < 0, "none is negative")):
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise UserError(f"the distance between clients {i} and {columns[j]} is {distance[i, j]}; {why}")
    apart = np.flatnonzero(np.diag(between))
    if len(apart):
        i = apart[0]
        raise UserError(f"the distance of client {columns[i]} from itself is {between[i, i]}; it has to be 0")
    if not np.array_equal(between, between.T):
        i, j = np.argwhere(between != between.T)[0]
        raise UserError(
            f"client {columns[i]} is {between[i, j]} from client {columns[j]}, and that one {between[j, i]} from it; a "
            "distance has to be the same both ways: return, e.g., (distance + distance.T) / 2"
        )


# This package's metrics get parameters, gradients and deltas as objects whose rows are read by indexing (see
# `compared`), and take `landmarks`; a user's metrics get arrays.
METRICS = Metrics(
    "metric",
    {
        "loss": "clusterfl.clustering.distances:loss_distance",
        "cross-loss": "clusterfl.clustering.distances:cross_loss_distance",
        "parameters": "clusterfl.clustering.distances:parameter_distance",
        "gradient-cosine": "clusterfl.clustering.distances:cosine_distance",
        "update-cosine": "clusterfl.clustering.distances:update_cosine_distance",
        "principal-angles": "clusterfl.clustering.subspaces:principal_angles",
    },
)
