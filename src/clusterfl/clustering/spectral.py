"""Spectral clustering."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from . import Labels, needed, renumbered, settled
from .affinity import gaussian


def spectral(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    scale: Annotated[float, Field(gt=0, description="in the affinity exp(-(d / (scale x median distance))^2)")] = 1.0,
) -> Labels:
    """Return spectral clustering by scikit-learn on the Gaussian affinity of the distances."""
    k = needed(k, "spectral", len(distance))
    matrix = np.asarray(distance, dtype=np.float64)
    found = settled(matrix, k)
    if found is not None:
        return found
    return cut(gaussian(matrix, scale), k, seed)


def cut(affinity: NDArray[np.float64], k: int, seed: int) -> Labels:
    """Return the labels [M] of scikit-learn's spectral clustering of a symmetric ``affinity [M, M]``, 1 < k < M.

    From k eigenvectors, by QR with pivoting (Damle, Minden and Ying 2019). The diagonal has no effect. There may be
    fewer than k clusters.
    """
    from sklearn.cluster import SpectralClustering
    from threadpoolctl import threadpool_limits

    model = SpectralClustering(k, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    with threadpool_limits(1):  # LAPACK's last bits may depend on the number of threads
        return renumbered(model.fit_predict(affinity))
