"""Clusterers: from a distance matrix [M, M] to labels [M], and the choice of their number.

A clusterer is a function ``(distance, k, seed, **options) -> labels [M]``. Labels are renumbered so that cluster 0
holds client 0, cluster 1 the first client outside cluster 0, and so on.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .errors import UserError
from .registry import Registry

CLUSTERERS = Registry(
    "clusterer",
    {
        "kmedoids": "clusterfl.clustering:kmedoids",
        "hierarchical": "clusterfl.clustering:hierarchical",
        "spectral": "clusterfl.clustering:spectral",
    },
)
Labels = NDArray[np.int64]


def kmedoids(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    method: Annotated[
        Literal["pam", "alternate"],
        Field(description="pam swaps medoids while that lowers the loss; alternate is what LCFL's released code uses"),
    ] = "pam",
    init: Annotated[
        Literal["build", "heuristic", "k-medoids++", "random"],
        Field(description="first medoids: greedily by loss, or (LCFL's released code) those nearest to all others"),
    ] = "build",
    max_iter: Annotated[int, Field(gt=0, description="most iterations")] = 300,
) -> Labels:
    """Return k-medoids by scikit-learn-extra.

    Defaults are PAM with its BUILD start (Kaufman and Rousseeuw 1990). LCFL's released code takes the package's
    defaults, ``alternate`` and ``heuristic``: they are faster, but all first medoids may lie in one true cluster,
    and on the default study they lose a third to a half of the adjusted Rand index (docs/log.md).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it still asks distutils for versions
            from sklearn_extra.cluster import KMedoids
    except (ImportError, ValueError) as error:
        raise UserError(
            f"clusterer 'kmedoids' needs scikit-learn-extra, which can't be imported ({error}); build it with "
            "'make kmedoids' (needs a C compiler), or use clusterer: hierarchical or spectral"
        ) from error
    k = _needed(k, "kmedoids", distance)
    if k == 1:
        return np.zeros(len(distance), dtype=np.int64)
    model = KMedoids(k, metric="precomputed", method=method, init=init, max_iter=max_iter, random_state=seed)
    with warnings.catch_warnings():
        # The package is unmaintained: it calls a scikit-learn function that 1.10 removes.
        warnings.filterwarnings("ignore", message=".*stable_cumsum", category=FutureWarning)
        return renumbered(model.fit(np.array(distance, dtype=np.float64)).labels_)  # it needs a writable copy


def hierarchical(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    linkage: Annotated[
        Literal["average", "complete", "single"], Field(description="distance between two clusters")
    ] = "average",
) -> Labels:
    """Return agglomerative clustering by scikit-learn, cut at k clusters. Draws nothing."""
    from sklearn.cluster import AgglomerativeClustering

    model = AgglomerativeClustering(_needed(k, "hierarchical", distance), metric="precomputed", linkage=linkage)
    return renumbered(model.fit_predict(np.asarray(distance)))


def spectral(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    scale: Annotated[float, Field(gt=0, description="of the affinity exp(-(d / (scale x median distance))^2)")] = 1.0,
) -> Labels:
    """Return spectral clustering by scikit-learn on the Gaussian affinity of the distances."""
    from sklearn.cluster import SpectralClustering

    k = _needed(k, "spectral", distance)
    distance = np.asarray(distance, dtype=np.float64)
    median = float(np.median(distance[~np.eye(len(distance), dtype=bool)])) if len(distance) > 1 else 0.0
    affinity = np.exp(-np.square(distance / (scale * (median or 1.0))))
    if k >= len(distance):
        return np.arange(len(distance))  # scikit-learn's embedding needs fewer clusters than points
    model = SpectralClustering(k, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    return renumbered(model.fit_predict(affinity))


def _needed(k: int | None, name: str, distance: Any) -> int:
    if k is None:
        raise UserError(f"clusterer '{name}' needs a number of clusters: give clusters")
    if not 1 <= k <= len(distance):
        raise UserError(f"clusters: {k} for {len(distance)} clients; allowed: 1 to {len(distance)}")
    return k


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
