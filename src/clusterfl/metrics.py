"""Measures of a clustering and of predictions. M clients."""

from __future__ import annotations

from typing import Any

import numpy as np


def adjusted_rand_index(true: Any, found: Any) -> float:
    """Return the Rand index adjusted for chance (Hubert and Arabie 1985), at most 1; about 0 for random labels.

    Parameters
    ----------
    true, found : [M]
        Labels, any integers. Two clusterings that both have one cluster, or both only singletons, agree: 1.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(np.asarray(true), np.asarray(found)))


def rand_index(true: Any, found: Any) -> float:
    """Return the share of pairs of clients on which two clusterings agree, unadjusted, between 0 and 1."""
    from sklearn.metrics import rand_score

    return float(rand_score(np.asarray(true), np.asarray(found)))
