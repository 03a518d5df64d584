"""Splitting a cluster: the number of parts and their members, by spectral clustering and the Davies-Bouldin score."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..clustering import Labels
from ..clustering.spectral import cut

WORST = 1.0  # parts with this score, or a higher one, aren't well separated (FedGWC, Sec. 4.2)


def best_split(affinity: NDArray[np.float64], numbers: Sequence[int], seed: int) -> tuple[Labels, NDArray[np.float64]]:
    """Split into the number of parts with the least Davies-Bouldin score, if that is below 1 (FedGWC, Algorithm 1).

    n parts are scored in the coordinates of n eigenvectors (scikit-learn's SpectralEmbedding), as in FedGWC's released
    code. Nothing is tried if all pairs are equally similar: a split would then be an artefact of the solver.

    Parameters
    ----------
    affinity : [m, m]
        Symmetric, not negative. The diagonal has no effect.
    numbers
        Numbers of parts to try, ascending, each from 2 to m - 2.
    seed
        Seed of the eigenvalue solver's start.

    Returns
    -------
    labels : [m]
        All 0 if there is no good split. Part 0 has the first member.
    scores : [numbers]
        NaN for a number that wasn't tried or gave only one part. Of equal scores the first counts.
    """
    labels, best, scores = np.zeros(len(affinity), dtype=np.int64), WORST, np.full(len(numbers), np.nan)
    pairs = affinity[np.triu_indices(len(affinity), 1)]
    if np.ptp(pairs) <= 1e-12 * pairs.max():
        return labels, scores
    for i, n in enumerate(numbers):
        found, scores[i] = _scored(affinity, n, seed)
        if scores[i] < best:
            labels, best = found, scores[i]
    return labels, scores


def _scored(affinity: NDArray[np.float64], n: int, seed: int) -> tuple[Labels, float]:
    """Return n parts and their score; NaN if there were fewer than two."""
    from sklearn.manifold import SpectralEmbedding
    from sklearn.metrics import davies_bouldin_score
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        # Members may be so far apart that affinities are 0: then the connected components are the parts.
        warnings.filterwarnings("ignore", "Graph is not fully connected", UserWarning)
        labels = cut(affinity, n, seed)
        if not labels.any():
            return labels, np.nan
        model = SpectralEmbedding(n_components=n, affinity="precomputed", random_state=seed)
        return labels, float(davies_bouldin_score(model.fit_transform(affinity), labels))
