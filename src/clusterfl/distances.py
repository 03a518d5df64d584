"""Distances between clients, from their warmed-up models. M clients, P columns.

LCFL: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, Eq. 2 (loss), Eq. 6 (its variant), Eq. 1 (parameters, called
DiffNorm there); the gradient cosine (GradCos) is that of its ablation. Departure as an option: the released code
measures losses on a client's training and test data together (`data: all`); the default uses training data only, so
that no test sample decides the clusters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UserError
from .registry import Registry


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
    rows = _as_numpy(theta)
    # Difference by difference rather than by the product of rows: no cancellation between close models.
    result = np.zeros((len(rows), len(rows)))
    for i in range(len(rows)):
        result[i] = np.sqrt(np.square(rows - rows[i]).sum(axis=1))
    return _like(result, theta)


def cosine_distance(vectors: Any) -> Any:
    """Return ``1 - cosine`` of the rows of ``vectors [M, P]``, [M, M]; a zero row is at distance 1 from all others."""
    rows = _as_numpy(vectors)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    unit = rows / np.where(norms > 0, norms, 1)
    # einsum without BLAS: a product of matrices may change bits with the number of threads.
    result = np.clip(1 - np.einsum("ip,jp->ij", unit, unit), 0, 2)
    result = (result + result.T) / 2
    np.fill_diagonal(result, 0)
    return _like(result, vectors)


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
# clients' warmed-up parameters, or `vectors` [M, p], their last mini-batch gradients.
METRICS = Registry(
    "metric",
    {
        "loss": "clusterfl.distances:loss_distance",
        "cross-loss": "clusterfl.distances:cross_loss_distance",
        "parameters": "clusterfl.distances:parameter_distance",
        "gradient-cosine": "clusterfl.distances:cosine_distance",
    },
)
