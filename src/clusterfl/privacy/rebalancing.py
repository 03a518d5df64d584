"""RR-Cluster's rebalancing: no cluster gets fewer updates than a minimum.

Paper: Yang, Hu, Kim and Li, arXiv 2508.06183, Algorithm 1: updates of large clusters, drawn uniformly, move to small
ones. The paper doesn't specify the draw further; see `rebalance`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError


def rebalance(labels: Any, k: int, minimum: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return labels with at least `minimum` members in each of `k` clusters.

    From each cluster above the minimum as many members as it has above it are drawn uniformly; the members that other
    clusters lack are drawn uniformly from all of these, without replacement. So no cluster falls below the minimum, and
    no member moves twice.

    Parameters
    ----------
    labels : [m]
        Clusters, 0 to k - 1.
    minimum
        B; 0 changes nothing.
    generator
        Not used if all clusters are large enough.

    Raises
    ------
    UserError
        If there are fewer than ``k * minimum`` labels.
    """
    labels = np.array(labels, dtype=np.int64)
    if k * minimum > len(labels):
        raise UserError(
            f"rebalance.minimum: {minimum} updates for each of {k} clusters need {k * minimum} participants, a round "
            f"has {len(labels)}; allowed: 0 to {len(labels) // k}; lower it, or raise training.participation"
        )
    counts = np.bincount(labels, minlength=k)
    missing = np.maximum(minimum - counts, 0)
    if missing.any():
        donors = np.flatnonzero(counts > minimum)
        offered = [generator.choice(np.flatnonzero(labels == j), counts[j] - minimum, replace=False) for j in donors]
        moved = generator.choice(np.concatenate(offered), missing.sum(), replace=False)
        labels[moved] = np.repeat(np.arange(k), missing)
    return labels
