"""Clients in two dimensions, for figures. M clients, K models. Nothing is random."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import pdist


def principal(vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first two principal components of ``vectors [M, K]``, K > 1, and their shares of the variance.

    Returns
    -------
    points : [M, 2]
        Zeros if all vectors are equal.
    shares : [2]
        As fractions; zeros if there is no variance.
    """
    from sklearn.decomposition import PCA  # takes a second, which `describe` doesn't need

    if not np.ptp(vectors, axis=0).any():
        return np.zeros((len(vectors), 2)), np.zeros(2)
    found = PCA(n_components=2, svd_solver="full").fit(vectors)
    return found.transform(vectors), found.explained_variance_ratio_


def scaled(distance: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return clients in the plane by classical multidimensional scaling (Torgerson 1952), and the plane's accuracy.

    With ``B = -1/2 J D^2 J``, J the centring matrix, the coordinates are the eigenvectors of the two largest
    eigenvalues, times their roots. Distances of points in a plane are reproduced exactly.

    Parameters
    ----------
    distance : [M, M]
        Symmetric, with zero diagonal.

    Returns
    -------
    points : [M, 2]
        Signs are such that each axis' largest coordinate is positive; zeros for an eigenvalue that isn't.
    agreement
        Correlation of the plane's distances with the matrix; NaN if either are all equal.
    """
    m = len(distance)
    squared = np.square(distance)
    gram = -(squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()) / 2
    values, vectors = eigh(gram, subset_by_index=[max(0, m - 2), m - 1])
    points = np.zeros((m, 2))
    points[:, : len(values)] = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1]
    points *= np.where(points[np.abs(points).argmax(axis=0), [0, 1]] < 0, -1, 1)
    drawn, given = pdist(points), distance[np.triu_indices(m, 1)]
    known = min(np.ptp(drawn), np.ptp(given)) > 0 if m > 2 else False
    return points, float(np.corrcoef(drawn, given)[0, 1]) if known else np.nan


def embedded(affinity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return clients in the plane [M, 2] by scikit-learn's spectral embedding of ``affinity [M, M]``.

    Zeros for fewer than four clients, too few for two eigenvectors in addition to the constant one.
    """
    from sklearn.manifold import spectral_embedding

    if len(affinity) < 4:
        return np.zeros((len(affinity), 2))
    with warnings.catch_warnings():  # a split looks for disconnected parts
        warnings.filterwarnings("ignore", "Graph is not fully connected")
        found: NDArray[np.float64] = spectral_embedding(affinity, n_components=2, random_state=0)
    return found
