"""Hierarchical clustering."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from . import Labels, needed, renumbered, settled


def hierarchical(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    linkage: Annotated[
        Literal["average", "complete", "single", "weighted"],
        Field(
            description="distance between clusters; weighted: a merged cluster's is the plain mean of its two halves' "
            "(WPGMA; PACFL's released code calls it average)"
        ),
    ] = "average",
    threshold: Annotated[
        float | None,
        Field(ge=0, description="clusters merge while the nearest two are at most this far apart; null: k clusters"),
        "later",
    ] = None,
) -> Labels:
    """Return agglomerative clustering by SciPy, cut at k clusters or at a threshold. Draws nothing.

    With a `threshold` the number of clusters follows from it, and k has no effect.
    """
    # scikit-learn's AgglomerativeClustering calls this, too, but its import takes longer than a clustering job.
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.hierarchy import linkage as tree
    from scipy.spatial.distance import squareform

    matrix = np.asarray(distance, dtype=np.float64)
    if threshold is not None:
        if len(matrix) == 1:
            return np.zeros(1, dtype=np.int64)
        return renumbered(fcluster(tree(squareform(matrix, checks=False), linkage), threshold, "distance"))
    k = needed(k, "hierarchical", len(matrix))
    found = settled(matrix, k)
    if found is not None:
        return found
    # All merges but the last k - 1: selected by their order, because heights may be equal.
    merges, order = tree(squareform(matrix, checks=False), linkage), np.arange(len(matrix) - 1.0)
    return renumbered(fcluster(merges, len(matrix) - k - 1, "monocrit", monocrit=order))
