"""k-medoids: k clients such that the sum of all clients' distances to the nearest of them is small.

Two packages: scikit-learn-extra, which LCFL's released code uses with its defaults, and kmedoids, which is fast.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ..errors import UserError
from . import Labels, needed, renumbered, settled


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
        Field(description="first medoids; build: greedily by loss; heuristic: nearest to all clients (LCFL's code)"),
    ] = "build",
    max_iter: Annotated[int, Field(gt=0, description="most iterations")] = 300,
) -> Labels:
    """Return k-medoids by scikit-learn-extra.

    Defaults are PAM with its BUILD start (Kaufman and Rousseeuw 1990). LCFL's released code takes the package's
    defaults, ``alternate`` and ``heuristic``: they are faster, but all first medoids may be in one true cluster, and on
    the default study the adjusted Rand index is lower by a third to a half (docs/log.md).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it still compares versions with distutils
            from sklearn_extra.cluster import KMedoids
    except (ImportError, ValueError) as error:
        raise UserError(
            f"clusterer 'kmedoids' needs scikit-learn-extra, which can't be imported ({error}); build it with "
            "'make kmedoids' (needs a C compiler), or use clusterer: fasterpam, hierarchical or spectral"
        ) from error
    k = needed(k, "kmedoids", len(distance))
    matrix = np.array(distance, dtype=np.float64)  # a copy: the package needs a writable one
    found = settled(matrix, k)
    if found is not None:
        return found
    model = KMedoids(k, metric="precomputed", method=method, init=init, max_iter=max_iter, random_state=seed)
    with warnings.catch_warnings():
        # The package is unmaintained: it calls a scikit-learn function that 1.10 removes.
        warnings.filterwarnings("ignore", message=".*stable_cumsum", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Cluster .* is empty")  # two medoids may be identical
        return renumbered(model.fit(matrix).labels_)


def fasterpam(
    distance: Any,
    k: int | None = None,
    seed: int = 0,
    *,
    max_iter: Annotated[int, Field(gt=0, description="most passes over all clients")] = 100,
) -> Labels:
    """Return k-medoids by FasterPAM (Schubert and Rousseeuw, Information Systems 101, 2021), package kmedoids.

    It starts with PAM's BUILD and makes each swap that lowers the loss immediately, so it reaches losses like PAM's in
    a small part of the time (docs/log.md). It draws nothing: clients are tried in their order.
    """
    from kmedoids import fasterpam as swap

    k = needed(k, "fasterpam", len(distance))
    matrix = np.ascontiguousarray(distance, dtype=np.float64)
    found = settled(matrix, k)
    return renumbered(swap(matrix, k, max_iter, init="build", n_cpu=1).labels) if found is None else found
