"""Clusters as dense regions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from . import Labels, needed, renumbered


def dbscan(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    eps: Annotated[
        float | None,
        Field(
            gt=0,
            description="distance up to which clients are neighbours; null: percentile 100 / (k - 1) of all entries of "
            "the distance matrix (LCFL's released code)",
        ),
    ] = None,
    min_samples: Annotated[int, Field(gt=0, description="least neighbours, itself included, of a core client")] = 5,
    noise: Annotated[
        Literal["nearest", "own"],
        Field(description="noise clients join the nearest core client's cluster, or are clusters of their own"),
    ] = "nearest",
) -> Labels:
    """Return DBSCAN (Ester, Kriegel, Sander and Xu, KDD 1996) by scikit-learn. Draws nothing.

    k only sets `eps`, and has no effect if `eps` is given: **the number of clusters found may differ from it**. The
    released rule gives a large `eps`: of k groups of equal size, 1 / k of all entries are within groups, so `eps` is a
    distance between groups and joins some of them; for k = 1 and 2 it is the largest entry.

    If there are no core clients, ``nearest`` puts all clients in one cluster and ``own`` gives each its own. A client
    near core clients of several clusters gets the one that is found first, in the clients' order.
    """
    from sklearn.cluster import DBSCAN

    matrix = np.asarray(distance, dtype=np.float64)
    if eps is None:
        eps = _released(matrix, needed(k, "dbscan", len(matrix)))
    model = DBSCAN(eps=eps, min_samples=min_samples, metric="precomputed").fit(matrix)
    labels, lonely = model.labels_, np.flatnonzero(model.labels_ < 0)
    if noise == "own":
        labels[lonely] = len(labels) + lonely
    elif len(core := model.core_sample_indices_):
        labels[lonely] = labels[core[matrix[np.ix_(lonely, core)].argmin(axis=1)]]
    return renumbered(labels)


def _released(distance: NDArray[np.float64], k: int) -> float:
    """Return the `eps` of LCFL's released code, whose rule is defined for k > 1."""
    found = float(np.percentile(distance, 100 / max(k - 1, 1)))
    return max(found, np.finfo(np.float64).tiny)  # scikit-learn refuses 0, where identical clients are neighbours
