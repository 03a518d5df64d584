"""Pairwise fusion: how a penalty shrinks the difference of two clients' models, and the clusters that result.

Penalty: the smoothed SCAD of Yu, Liu, Wang and Sun, Clustered Federated Learning based on Nonconvex Pairwise Fusion,
arXiv 2211.04218. Axes: M clients, N = M (M - 1) / 2 pairs, in the order of their first client, then of their second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]


def shrunk(lengths: Array, fusion: float, a: float, xi: float, rho: float) -> Array:
    """Return the factors s [N] by which the smoothed SCAD's proximal map shortens differences of these lengths.

    ``s |d|`` minimises ``g(t) + rho / 2 (t - |d|)^2`` over t (paper, eq. of the theta step), a convex function for
    ``rho > 1 / (a - 1)``. The slope of g is ``fusion t / xi`` up to xi (``xi <= fusion``), then `fusion` up to
    t = fusion, then ``(a fusion - t) / (a - 1)`` up to ``a fusion``, and 0 from there on.
    """
    lengths = np.asarray(lengths, dtype=np.float64)
    many = np.where(lengths > 0, lengths, 1.0)
    bend = 1 / ((a - 1) * rho)
    soft, firm = 1 - fusion / (rho * many), (1 - a * fusion * bend / many) / (1 - bend)
    found = np.where(lengths <= fusion + fusion / rho, soft, np.where(lengths <= a * fusion, firm, 1.0))
    return np.where(lengths <= xi + fusion / rho, xi * rho / (fusion + xi * rho), found)


def pairs_of(client: int, clients: int) -> Ids:
    """Return the numbers [M - 1] of a client's pairs with each other client, in the order of the others."""
    others = np.delete(np.arange(clients), client)
    i, j = np.minimum(others, client), np.maximum(others, client)
    return i * (2 * clients - i - 1) // 2 + j - i - 1


def components(lengths: Array, clients: int, threshold: float) -> Ids:
    """Return the connected components [M] of the graph of pairs with `lengths` [N] of at most `threshold`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i, j = np.triu_indices(clients, 1)
    close = lengths <= threshold
    graph = coo_array((np.ones(close.sum(), dtype=bool), (i[close], j[close])), shape=(clients, clients))
    labels = connected_components(graph, directed=False)[1]
    return np.asarray(labels, dtype=np.int64)
