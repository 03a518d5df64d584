"""Distances between clients, from their warmed-up models. M clients, P columns.

LCFL: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, Eq. 2 (loss), Eq. 6 (its variant), Eq. 1 (parameters, called
DiffNorm there); the gradient cosine (GradCos) is that of its ablation. Departure as an option: the released code
measures losses on a client's training and test data together (`data: all`); the default uses training data only, so
that no test sample decides the clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import blocks
from .errors import UserError
from .registry import Registry

CACHE_BYTES = 1 << 20  # differences of rows should stay in a core's cache


def _as_numpy(values: Any) -> NDArray[np.float64]:
    if hasattr(values, "detach"):  # a torch tensor; torch itself needn't be imported here
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _like(result: NDArray[np.float64], given: Any) -> Any:
    return given.double().new_tensor(result) if hasattr(given, "new_tensor") else result


def loss_distance(losses: Any) -> Any:
    """Return ``D[i, j] = |L_i(w_j) - L_i(w_i)| + |L_j(w_i) - L_j(w_j)|`` (LCFL, Eq. 2).

    Parameters
    ----------
    losses : [M, M]
        ``losses[i, j] = L_i(w_j)``, the mean loss of client j's model on client i's data.

    Returns
    -------
    [M, M], symmetric with zero diagonal, numpy or torch like the input.
    """
    matrix = _as_numpy(losses)
    half = np.abs(matrix - np.diag(matrix)[:, None])
    return _like(half + half.T, losses)


def cross_loss_distance(losses: Any) -> Any:
    """Return ``D[i, j] = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)|`` (LCFL, Eq. 6).

    Arguments and result as `loss_distance`.
    """
    matrix = _as_numpy(losses)
    # half[i, j] = |L_i(w_i) - L_j(w_i)|: both on the same model, so the diagonal is taken along columns.
    half = np.abs(np.diag(matrix)[:, None] - matrix.T)
    return _like(half + half.T, losses)


def parameter_distance(theta: Any) -> Any:
    """Return the Euclidean distances ``||w_i - w_j||`` of the rows of ``theta [M, P]`` (LCFL, Eq. 1), [M, M]."""
    result = np.zeros((len(theta), len(theta)))
    # Difference by difference rather than by the product of rows: no cancellation between close models.
    for part, rows, other, others in _pairs(theta):
        for i, row in enumerate(rows, part.start):
            for cut in blocks(len(others), row.nbytes, CACHE_BYTES):
                difference = others[cut] - row
                found = np.sqrt(np.square(difference, out=difference).sum(axis=1))
                result[i, other][cut] = result[other, i][cut] = found
    return _like(result, theta)


def cosine_distance(vectors: Any) -> Any:
    """Return ``1 - cosine`` of the rows of ``vectors [M, P]``, [M, M]; a zero row is at distance 1 from all others."""
    result = np.zeros((len(vectors), len(vectors)))
    for part, units, other, others in _pairs(vectors, _unit):
        # einsum without BLAS: a product of matrices may change bits with the number of threads.
        found = np.clip(1 - np.einsum("ip,jp->ij", units, others), 0, 2)
        result[part, other], result[other, part] = found, found.T
    np.fill_diagonal(result, 0)
    return _like(result, vectors)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return rows / np.where(norms > 0, norms, 1)


def _pairs(
    values: Any, ready: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda rows: rows
) -> Iterator[tuple[slice, NDArray[np.float64], slice, NDArray[np.float64]]]:
    """Yield every two blocks of rows of ``values [M, P]`` once, where they lie and what they are when made `ready`.

    Only these two are in memory; `values` may be any object with a length whose slices are rows.
    """
    # At least two rows: einsum adds up a single product of rows in another order than one of several.
    parts = blocks(len(values), 8 * np.shape(values[:1])[1], least=2)
    for number, part in enumerate(parts):
        rows = ready(_as_numpy(values[part]))
        for other in parts[number:]:
            yield part, rows, other, rows if other == part else ready(_as_numpy(values[other]))


def check_distance(distance: NDArray[Any]) -> None:
    """Raise a `UserError` unless the matrix is square, finite, symmetric and not negative, with a zero diagonal."""
    if distance.ndim != 2 or distance.shape[0] != distance.shape[1]:
        raise UserError(f"a distance matrix is square; found shape {distance.shape}")
    if not np.isfinite(distance).all():
        i, j = np.argwhere(~np.isfinite(distance))[0]
        raise UserError(f"the distance between clients {i} and {j} is {distance[i, j]}; a model probably diverged")
    if (distance < 0).any() or np.diag(distance).any() or not np.array_equal(distance, distance.T):
        raise UserError("a distance matrix is symmetric, not negative, and has a zero diagonal; this one isn't")


# A metric is a function of one array, told by the name of its first parameter: `losses` [M, M], `theta` [M, p], the
# clients' warmed-up parameters, or `vectors` [M, p], their last mini-batch gradients. The package's own get the latter
# two as something whose slices are rows (see `_pairs`), others as arrays.
METRICS = Registry(
    "metric",
    {
        "loss": "clusterfl.distances:loss_distance",
        "cross-loss": "clusterfl.distances:cross_loss_distance",
        "parameters": "clusterfl.distances:parameter_distance",
        "gradient-cosine": "clusterfl.distances:cosine_distance",
    },
)
