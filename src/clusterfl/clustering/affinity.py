"""The graphs of similar clients that spectral clustering cuts, and the eigenvalues that suggest the number of parts.

von Luxburg, A tutorial on spectral clustering, Statistics and Computing 17, 2007.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def gaussian(distance: NDArray[np.float64], scale: float = 1.0) -> NDArray[np.float64]:
    """Return ``exp(-(d / (scale x median distance))^2)``, [M, M], for at least two clients.

    If the median is 0, because most pairs of clients are identical, the mean distance is used instead.
    """
    pairs = distance[~np.eye(len(distance), dtype=bool)]
    unit = float(np.median(pairs)) or float(pairs.mean()) or 1.0
    return np.exp(-np.square(distance / (scale * unit)))


def of_rows(matrix: Any, beta: float) -> NDArray[np.float64]:
    """Return the affinity [M, M] of the rows of ``matrix [M, M]`` (FedGWC, arXiv 2502.03340, Eq. 4).

    ``W_kj = exp(-beta |v_k - v_j|^2)``, where v are the rows without their entries k and j, those of the two clients.

    Parameters
    ----------
    matrix : [M, M]
        A value for each ordered pair of clients, such as FedGWC's interaction matrix.
    beta
        Above 0; the larger, the more local the affinity.
    """
    from scipy.spatial.distance import pdist, squareform

    p = np.asarray(matrix, dtype=np.float64)
    own = np.square(np.diagonal(p)[:, None] - p.T)  # [k, j]: (P_kk - P_jk)^2
    squares = squareform(pdist(p, "sqeuclidean")) - (own + own.T)
    found = np.exp(-beta * np.maximum(squares, 0))
    np.fill_diagonal(found, 1.0)
    return found


def scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix shifted and scaled to least entry 0 and greatest 1; zeros if all entries are equal."""
    low, width = values.min(), np.ptp(values)
    return (values - low) / width if width else np.zeros_like(values)


def eigengaps(affinity: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the gaps ``lambda_{k+1} - lambda_k`` for k = 1 to `most` < M, [most] (section 8.3).

    ``lambda_1 <= lambda_2 <= ...`` are the eigenvalues of the normalised Laplacian ``I - D^-1/2 W D^-1/2``.
    """
    from scipy.linalg import eigvalsh
    from threadpoolctl import threadpool_limits

    root = 1 / np.sqrt(affinity.sum(axis=1))
    laplacian = np.eye(len(affinity)) - root[:, None] * affinity * root
    with threadpool_limits(1):  # LAPACK's last bits may depend on the number of threads
        return np.diff(eigvalsh(laplacian, subset_by_index=[0, most]))
