"""The graph of similar clients that spectral clustering cuts, and the eigenvalues that tell in how many parts.

von Luxburg, A tutorial on spectral clustering, Statistics and Computing 17, 2007.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def gaussian(distance: NDArray[np.float64], scale: float = 1.0) -> NDArray[np.float64]:
    """Return ``exp(-(d / (scale x median distance))^2)``, [M, M], for at least two clients.

    Where most pairs of clients are identical the mean distance takes the median's place.
    """
    pairs = distance[~np.eye(len(distance), dtype=bool)]
    unit = float(np.median(pairs)) or float(pairs.mean()) or 1.0
    return np.exp(-np.square(distance / (scale * unit)))


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
