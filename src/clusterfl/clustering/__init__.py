"""Clusterers: from a distance matrix [M, M] to labels [M]. `choice` finds the number of clusters.

A clusterer is a function ``(distance, k, seed, **options) -> labels [M]``. Labels are renumbered so that cluster 0
holds client 0, cluster 1 the first client outside cluster 0, and so on. k-medoids keeps identical clients together, so
there may be fewer than k clusters; `dbscan` determines the number itself. The number of threads changes no label.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..registry import Registry

CLUSTERERS = Registry(
    "clusterer",
    {
        "kmedoids": "clusterfl.clustering.medoids:kmedoids",
        "fasterpam": "clusterfl.clustering.medoids:fasterpam",
        "hierarchical": "clusterfl.clustering.linkage:hierarchical",
        "spectral": "clusterfl.clustering.spectral:spectral",
        "dbscan": "clusterfl.clustering.density:dbscan",
    },
)
Labels = NDArray[np.int64]
Rule = Literal["silhouette", "eigengap"]  # rules that can choose the number of clusters
CUTS = ("threshold", "eps")  # clusterers' options that set the number of clusters by a distance


def needed(k: int | None, name: str, clients: int) -> int:
    """Return k, or raise a `UserError` unless it is between 1 and the number of clients."""
    if k is None:
        raise UserError(f"clusterer '{name}' needs a number of clusters: give clusters, or one of {', '.join(CUTS)}")
    if not 1 <= k <= clients:
        raise UserError(f"clusters: {k} for {clients} clients; allowed: 1 to {clients}")
    return k


def settled(distance: NDArray[np.float64], k: int) -> Labels | None:
    """Return the labels if k or the distances leave no choice, else None.

    All clients are in one cluster for k = 1, or if all distances are 0; else, for k = M, each has its own.
    """
    if k == 1 or not distance.any():
        return np.zeros(len(distance), dtype=np.int64)
    return np.arange(len(distance)) if k == len(distance) else None


def renumbered(labels: Any) -> Labels:
    """Return labels numbered in the order in which clusters first appear.

    >>> renumbered([2, 2, 0, 1, 0]).tolist()
    [0, 0, 1, 2, 1]
    """
    labels = np.asarray(labels)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
