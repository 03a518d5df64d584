"""The number of clusters: given, or chosen by a score.

From 1 upwards, k replaces the number chosen so far if its score exceeds `margin` times that one's, which is 0 for
k = 1. So ties go to the smaller k, and k = 1 is chosen if no other has a score above 0. Neither score can detect that
there are no clusters: even if all clients are equally similar, it is largest for some k.

silhouette
    Mean over clients of ``(b - a) / max(a, b)``, a = mean distance to its own cluster's others, b = least mean
    distance to another cluster (Rousseeuw, Journal of Computational and Applied Mathematics 20, 1987), of the labels
    that the clusterer finds for k. CLoVE's released code takes it with a margin of 1.1.
eigengap
    ``lambda_{k+1} - lambda_k`` of the normalised Laplacian of the Gaussian affinity that `spectral` cuts
    (von Luxburg 2007, section 8.3). Departure: the gap of k = 1 isn't counted. As distances are relative to their
    median, all pairs of clients stay connected, and this gap is the largest one even if there are clear clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, choices
from . import CLUSTERERS, Labels, Rule, needed, renumbered
from .affinity import eigengaps, gaussian

Table = dict[str, NDArray[Any]]
DIGITS = 12  # scores are rounded to these, so that rounding errors don't decide ties


@dataclass(frozen=True)
class Found:
    """Clusters, and their requested or chosen number k.

    ``scores`` has one row for each number tried: ``k``, ``silhouette`` and ``eigengap`` (NaN if undefined or not
    computed), ``chosen``.
    """

    labels: Labels
    k: int
    scores: Table


def find(
    distance: NDArray[np.float64],
    clusterer: str,
    clusters: int | Rule | None,
    seed: int = 0,
    most: int = 10,
    margin: float = 1.0,
    options: Mapping[str, Any] | None = None,
    landmarks: NDArray[np.int64] | None = None,
) -> Found:
    """Cluster clients.

    Parameters
    ----------
    distance : [M, M]
        With landmarks [M, r], from all clients to the landmarks.
    clusterer
        A name in the table of clusterers, or the user's own as ``my_module:function``.
    clusters
        Their number, or the name of the rule that chooses it; None if the clusterer determines it by a distance.
    seed
        Seed of the clusterer.
    most, margin
        As in `choose_k`.
    options
        Options of the clusterer.
    landmarks : [r]
        Positions of the clients that are clustered; the others join them, see `joined`. Scores use only the landmarks.

    Raises
    ------
    UserError
        If the number is impossible, the rule unknown, or a user's clusterer returns invalid labels.
    """
    own = options or {}
    if landmarks is not None:
        found = find(distance[landmarks], clusterer, clusters, seed, most, margin, options)
        return replace(found, labels=joined(distance, landmarks, found.labels))

    @cache
    def labels(k: int | None) -> Labels:
        return _labels(CLUSTERERS[clusterer](distance, k=k, seed=seed, **own), clusterer, len(distance))

    if isinstance(clusters, str):
        scale = own.get("scale", 1.0) if clusterer == "spectral" else 1.0
        k, scores = choose_k(distance, labels, clusters, most, margin, scale)
    else:
        asked = None if clusters is None else needed(clusters, clusterer, len(distance))
        k = len(np.unique(labels(asked))) if asked is None else asked
        scores = {"k": np.array([k]), "silhouette": np.array([silhouette(distance, labels(asked))])}
        scores |= {"eigengap": np.array([np.nan]), "chosen": np.array([True])}
        return Found(labels(asked), k, scores)
    return Found(labels(k), k, scores)


def joined(distance: NDArray[np.float64], landmarks: NDArray[np.int64], labels: Labels) -> Labels:
    """Return the clusters of all clients, [M]: landmarks keep theirs, the others join the nearest, the first on ties.

    Clustering a sample and then placing the rest is the idea of CLARA (Kaufman and Rousseeuw, Finding Groups in Data,
    1990, chapter 3). CLARA draws several samples, places objects by the nearest medoid, and keeps the sample whose
    medoids are nearest to all objects; here one sample is drawn, any clusterer can be used, and a client's distance
    from a cluster is the mean over its landmarks.

    Parameters
    ----------
    distance : [M, r]
        Distances from all clients to the landmarks.
    landmarks : [r]
        The landmarks' positions.
    labels : [r]
        The landmarks' clusters, 0 to K - 1.
    """
    means = np.stack([distance[:, labels == k].mean(axis=1) for k in range(labels.max() + 1)], axis=1)
    found = means.argmin(axis=1)
    found[landmarks] = labels
    return renumbered(found)


def choose_k(
    distance: NDArray[np.float64],
    cluster: Callable[[int], Labels],
    rule: Rule,
    most: int = 10,
    margin: float = 1.0,
    scale: float = 1.0,
) -> tuple[int, Table]:
    """Choose the number of clusters.

    Parameters
    ----------
    distance : [M, M]
    cluster
        Function from k to labels [M]. With ``eigengap`` it is called for the chosen k only.
    rule
        The score.
    most
        The largest k tried; never more than M - 1.
    margin
        At least 1; a larger k's score must exceed this multiple of the score of the k chosen so far.
    scale
        Scale of the affinity, as in `spectral`.

    Returns
    -------
    k, and the table ``Found.scores``.
    """
    if rule not in get_args(Rule):
        raise UserError(f"clusters: '{rule}' is neither a number nor a rule; {choices(get_args(Rule), rule)}")
    tried = np.arange(1, max(1, min(most, len(distance) - 1)) + 1)
    scores = {"silhouette": np.full(len(tried), np.nan), "eigengap": np.full(len(tried), np.nan)}
    if rule == "silhouette":
        scores[rule][:] = [silhouette(distance, cluster(int(k))) for k in tried]
    elif len(tried) > 1:
        scores[rule][1:] = np.round(eigengaps(gaussian(distance, scale), len(tried))[1:], DIGITS)
    chosen, best = 1, 0.0
    for k, score in zip(tried, scores[rule], strict=True):
        if score > margin * best:  # never NaN
            chosen, best = int(k), score
    scores["silhouette"][chosen - 1] = silhouette(distance, cluster(chosen))
    return chosen, {"k": tried, **scores, "chosen": tried == chosen}


def silhouette(distance: NDArray[np.float64], labels: Labels) -> float:
    """Return the mean silhouette; NaN if undefined, i.e. with one cluster or only singletons.

    Rousseeuw, Silhouettes: a graphical aid (1987): ``(b - a) / max(a, b)`` for the mean distance ``a`` from the other
    members of a client's own cluster and ``b`` from those of the nearest other one; 0 for a singleton. Equal to
    scikit-learn's `silhouette_score`, whose import takes longer than a clustering job.
    """
    values, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if not 2 <= len(values) < len(labels):
        return float("nan")
    here = np.arange(len(labels))
    totals = np.stack([distance[:, which == k].sum(1) for k in range(len(values))], 1)  # [M, K]
    means = totals / sizes
    means[here, which] = np.inf
    own, nearest = totals[here, which] / np.maximum(sizes[which] - 1, 1), means.min(1)
    longest = np.maximum(own, nearest)
    apart = np.divide(nearest - own, longest, out=np.zeros(len(here)), where=(sizes[which] > 1) & (longest > 0))
    return round(float(apart.mean()), DIGITS)


def _labels(found: Any, clusterer: str, clients: int) -> Labels:
    """Return a clusterer's labels, or raise a `UserError` if they are invalid."""
    labels = np.asarray(found)
    if labels.shape != (clients,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"clusterer '{clusterer}' should return a whole number as label for each of the {clients} clients; "
            f"it returned {type(found).__name__} ({labels.dtype}, shape {labels.shape})"
        )
    return renumbered(labels)
