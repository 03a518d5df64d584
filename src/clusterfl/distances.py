"""Distances between clients, from their warmed-up models. M clients, P columns.

LCFL: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, Eq. 2 (loss), Eq. 6 (its variant), Eq. 1 (parameters, called
DiffNorm there); the gradient cosine (GradCos) is that of its ablation. Departure as an option: the released code
measures losses on a client's training and test data together (`data: all`); the default uses training data only, so
that no test sample decides the clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import streams
from .blocks import blocks
from .errors import UserError
from .registry import Registry

Ids = NDArray[np.int64]


def _as_numpy(values: Any) -> NDArray[np.float64]:
    if hasattr(values, "detach"):  # a torch tensor; torch itself needn't be imported here
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _like(result: NDArray[np.float64], given: Any) -> Any:
    return given.double().new_tensor(result) if hasattr(given, "new_tensor") else result


def loss_distance(losses: Any, landmarks: Ids | None = None) -> Any:
    """Return ``D[i, j] = |L_i(w_j) - L_i(w_i)| + |L_j(w_i) - L_j(w_j)|`` (LCFL, Eq. 2).

    Parameters
    ----------
    losses : [M, M]
        ``losses[i, j] = L_i(w_j)``, the mean loss of client j's model on client i's data. With landmarks three arrays:
        ``L_i(w_l)`` [M, r], ``L_l(w_i)`` [M, r] and ``L_i(w_i)`` [M] for all clients i and landmarks l.
    landmarks : [r]
        Positions of the clients that all are compared with; all of them if not given.

    Returns
    -------
    [M, M], symmetric with zero diagonal, numpy or torch like the input; with landmarks these columns of it, [M, r].
    """
    here, there, own, others = _mutual(losses, landmarks)
    return _like(np.abs(here - own) + np.abs(there - others), losses)


def cross_loss_distance(losses: Any, landmarks: Ids | None = None) -> Any:
    """Return ``D[i, j] = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|`` (LCFL, Eq. 6).

    Arguments and result as `loss_distance`.
    """
    here, there, own, others = _mutual(losses, landmarks)
    return _like(np.abs(own - there) + np.abs(here - others), losses)


def _mutual(losses: Any, landmarks: Ids | None) -> tuple[NDArray[np.float64], ...]:
    """Return ``L_i(w_j)`` [M, r], ``L_j(w_i)`` [M, r], ``L_i(w_i)`` [M, 1] and ``L_j(w_j)`` [r]."""
    if landmarks is None:
        matrix = _as_numpy(losses)
        return matrix, matrix.T, np.diag(matrix)[:, None], np.diag(matrix)
    here, there, own = map(_as_numpy, losses)
    return here, there, own[:, None], own[landmarks]


def parameter_distance(theta: Any, landmarks: Ids | None = None) -> Any:
    """Return the Euclidean distances ``||w_i - w_j||`` of the rows of ``theta [M, P]`` (LCFL, Eq. 1).

    `landmarks` and result as in `loss_distance`.
    """
    return _compared(theta, landmarks, _as_numpy, _gaps)


def _gaps(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    # Difference by difference rather than by the product of rows: no cancellation between close models.
    return np.stack([np.sqrt(np.square(rows - other).sum(axis=1)) for other in others], axis=1)


def cosine_distance(vectors: Any, landmarks: Ids | None = None) -> Any:
    """Return ``1 - cosine`` of the rows of ``vectors [M, P]``; a zero row is at distance 1 from all others.

    `landmarks` and result as in `loss_distance`.
    """
    result = _compared(vectors, landmarks, _unit, _turned)
    result[np.arange(len(result)) if landmarks is None else landmarks, np.arange(result.shape[1])] = 0
    return result


def _turned(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    # einsum without BLAS: a product of matrices may change bits with the number of threads. In this form, of two
    # matrices of which one has several rows, no bit depends on the other rows.
    return np.clip(1 - np.einsum("ip,jp->ij", rows, others), 0, 2)


def _unit(vectors: Any) -> NDArray[np.float64]:
    rows = _as_numpy(vectors)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.where(norms > 0, norms, 1)


def _compared(
    array: Any,
    landmarks: Ids | None,
    read: Callable[[Any], NDArray[np.float64]],
    distance: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> Any:
    """Return the distances [M, r] of all rows of ``array [M, P]`` from the landmarks', a few rows at a time.

    `read` makes vectors of rows, and ``distance(rows [n, P], others [r, P])`` returns [n, r].
    """
    array = array if hasattr(array, "shape") else np.asarray(array)
    others = read(array[:] if landmarks is None else array[landmarks])
    result = np.zeros((len(array), len(others)))
    for part in blocks(len(array), 8 * array.shape[1]):
        result[part] = distance(read(array[part]), others)
    return _like(result, array)


def landmarks(ids: Ids, number: int, seed: int) -> Ids:
    """Return the positions of `number` clients drawn at random, ascending; of all where there are no more.

    More landmarks of one seed are the same ones and others.
    """
    return np.sort(np.argsort(streams.hashed(seed, "landmarks", ids), kind="stable")[:number])


def check_distance(distance: NDArray[Any], landmarks: Ids | None = None) -> None:
    """Raise a `UserError` unless the matrix is square, finite, symmetric and not negative, with a zero diagonal.

    With `landmarks` [r] it is [M, r], and the landmarks' rows are to be such a matrix.
    """
    between = distance if landmarks is None else distance[landmarks]
    if between.ndim != 2 or between.shape[0] != between.shape[1]:
        raise UserError(f"a distance matrix is square; found shape {between.shape}")
    if not np.isfinite(distance).all():
        i, j = np.argwhere(~np.isfinite(distance))[0]
        other = j if landmarks is None else landmarks[j]
        raise UserError(f"the distance between clients {i} and {other} is {distance[i, j]}; a model probably diverged")
    if (distance < 0).any() or np.diag(between).any() or not np.array_equal(between, between.T):
        raise UserError("a distance matrix is symmetric, not negative, and has a zero diagonal; this one isn't")


# A metric is a function of one array, told by the name of its first parameter: `losses` [M, M], `theta` [M, p], the
# clients' warmed-up parameters, or `vectors` [M, p], their last mini-batch gradients. These also take `landmarks`.
METRICS = Registry(
    "metric",
    {
        "loss": "clusterfl.distances:loss_distance",
        "cross-loss": "clusterfl.distances:cross_loss_distance",
        "parameters": "clusterfl.distances:parameter_distance",
        "gradient-cosine": "clusterfl.distances:cosine_distance",
    },
)
