"""Measures of a clustering and of predictions, from arrays, and means with intervals. M clients, C classes, K clusters.

A client with a negative label has none yet and is left out. Undefined values are NaN, never 0: each function says
when.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.95


def adjusted_rand_index(true: Any, found: Any) -> float:
    """Return the Rand index adjusted for chance (Hubert and Arabie 1985), at most 1; about 0 for random labels.

    Parameters
    ----------
    true, found : [M]
        Labels, any integers. The index is 1 if both clusterings have one cluster, or both only singletons, or if there
        is one client. NaN if no client has both labels.
    """
    true, found = _labelled(true, found)
    if not len(true):
        return np.nan
    # In Python's integers, as in scikit-learn: the same bits, without its checks, which take most of the time.
    groups, clusters = (np.unique(labels, return_inverse=True)[1] for labels in (true, found))
    size = int(clusters.max()) + 1
    both, one, other = (
        sum(n * (n - 1) for n in np.unique(labels, return_counts=True)[1].tolist())
        for labels in (groups * size + clusters, groups, clusters)
    )  # pairs of clients in the same cluster
    every = len(true) * (len(true) - 1)
    if one == other == both:
        return 1.0
    apart = every - one - other + both
    missed, wrong = one - both, other - both
    return 2.0 * (both * apart - missed * wrong) / (one * (missed + apart) + other * (wrong + apart))


def rand_index(true: Any, found: Any) -> float:
    """Return the share of pairs of clients on which two clusterings agree (Rand 1971), unadjusted, from 0 to 1.

    Parameters
    ----------
    true, found : [M]
        Labels. With one client it is 1. NaN if no client has both labels.
    """
    from sklearn.metrics import rand_score

    true, found = _labelled(true, found)
    return float(rand_score(true, found)) if len(true) else np.nan


def normalised_mutual_information(true: Any, found: Any) -> float:
    """Return 2 I(true; found) / (H(true) + H(found)), from 0 to 1 (Vinh et al. 2010, its NMI_sum).

    Parameters
    ----------
    true, found : [M]
        Labels. It is 1 if both clusterings have one cluster, 0 if only one of them has. NaN if no client has both
        labels.
    """
    from sklearn.metrics import normalized_mutual_info_score

    true, found = _labelled(true, found)
    return float(normalized_mutual_info_score(true, found)) if len(true) else np.nan


def clustering_accuracy(true: Any, found: Any) -> float:
    """Return the share of clients in the right cluster, with the best one-to-one matching of clusters and groups.

    The matching is the Hungarian method's (Kuhn 1955). With more clusters than groups, clients in unmatched clusters
    count as wrong; with one cluster it is the share of the largest group. RR-Cluster (Table 4) calls it "the portion of
    clients that are correctly clustered" and doesn't say how clusters are matched.

    Parameters
    ----------
    true, found : [M]
        Labels. NaN if no client has both.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    true, found = _labelled(true, found)
    if not len(true):
        return np.nan
    table = contingency_matrix(true, found)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(true))


def first_round(rounds: Any, ari: Any, threshold: float = 0.9) -> float:
    """Return the first round whose adjusted Rand index is at least the threshold; NaN if none is (CLoVE, Table 5).

    Parameters
    ----------
    rounds, ari : [R]
        Round numbers, from 1 in CLoVE and in the result files; an index of NaN doesn't reach the threshold.
    threshold
        Inclusive.
    """
    rounds, ari = np.asarray(rounds), np.asarray(ari, dtype=np.float64)
    reached = rounds[ari >= threshold]
    return float(reached.min()) if len(reached) else np.nan


def rounds_to_accuracy(rounds: Any, accuracy: Any, target: float) -> float:
    """Return the first evaluated round whose accuracy is at least the target; NaN if none is.

    McMahan et al. (2017, Section 3) also count like this, but interpolate between evaluations; here the round is an
    evaluated one. An accuracy that later falls below the target has still reached it.

    Parameters
    ----------
    rounds, accuracy : [R]
        Evaluated rounds, 0 = before training; accuracies as shares of 1.
    target
        Share of 1, inclusive.
    """
    return first_round(rounds, accuracy, target)


def accuracy(correct: Any, total: Any) -> Floats:
    """Return the share of correct predictions, element by element [...]; NaN where there are no samples."""
    correct, total = np.asarray(correct, dtype=np.float64), np.asarray(total, dtype=np.float64)
    shares: Floats = np.divide(correct, total, out=np.full(total.shape, np.nan), where=total > 0)
    return shares


def balanced_accuracy(correct: Any, total: Any, train: Any = None) -> Floats:
    """Return each client's balanced accuracy, [M], in one of FedGWC's two forms.

    The paper's (Appendix F) is the mean recall over the classes that the client is tested on: the mean over c with
    n(c) > 0 of correct(c) / n(c). The released code's, with `train`, weights classes by their frequency p(c) in the
    client's training data: sum_c p(c) correct(c) / sum_c p(c) n(c), which isn't a mean of recalls.

    Parameters
    ----------
    correct, total : [M, C]
        Correct predictions and test samples by client and class.
    train : [M, C], optional
        Training samples by client and class, or their frequencies: a factor per client cancels.

    Returns
    -------
    [M], NaN for a client without test samples, and in the second form also for a client tested only on classes that it
    doesn't train on.
    """
    correct, total = np.asarray(correct, dtype=np.float64), np.asarray(total, dtype=np.float64)
    if train is None:
        return accuracy(np.nansum(accuracy(correct, total), axis=1), (total > 0).sum(axis=1))
    train = np.asarray(train, dtype=np.float64)
    return accuracy((train * correct).sum(axis=1), (train * total).sum(axis=1))


def cluster_accuracy(correct: Any, total: Any, labels: Any) -> Floats:
    """Return the accuracy over all samples of each cluster, [K]: sum of correct / sum of n over its clients.

    Parameters
    ----------
    correct, total, labels : [M]
        Each client's values. K is the highest label + 1; NaN for a cluster that is empty or has no samples.
    """
    own = np.asarray(labels) >= 0
    cluster = np.asarray(labels)[own].astype(np.int64)  # an empty list becomes float64
    correct, total = (np.bincount(cluster, weights=np.asarray(values)[own]) for values in (correct, total))
    return accuracy(correct, total)


def fairness(accuracies: Any) -> dict[str, float]:
    """Return how evenly accuracy is distributed: the worst client's, the 10th percentile, the standard deviation.

    The more uniform, the fairer (Li et al. 2020, "Fair resource allocation in federated learning", Definition 1).

    Parameters
    ----------
    accuracies : [M]
        NaN for a client without samples, which is left out.

    Returns
    -------
    ``worst``; ``percentile_10``, between clients by linear interpolation; ``std``, the population's (n in the
    denominator), 0 for one client. All NaN if no client has samples.
    """
    known = np.asarray(accuracies, dtype=np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return dict.fromkeys(("worst", "percentile_10", "std"), np.nan)
    return {"worst": float(known.min()), "percentile_10": float(np.percentile(known, 10)), "std": float(known.std())}


def wasserstein_silhouette(counts: Any, labels: Any) -> float:
    """Return FedGWC's Wasserstein adjusted silhouette (WAS), from -1 to 1; higher is better.

    The mean silhouette (Rousseeuw 1987) of clients with the distance (1/C) ||x_k - x_j||_2 between their class
    frequencies in decreasing order (FedGWC, Eq. 7): up to a factor, which cancels, the 2-Wasserstein distance
    between the distributions of the frequencies (Appendix B). Renaming a client's classes doesn't change it. Takes time
    M^2 C, memory in chunks.

    Parameters
    ----------
    counts : [M, C]
        Training samples by client and class. A client without any is left out.
    labels : [M]
        Clusters. A client alone in its cluster has silhouette 0. NaN with fewer than two clusters, or when every
        client is alone.
    """
    from sklearn.metrics import silhouette_score

    ranked, labels = _ranked(counts, labels)
    # Minkowski uses differences; scikit-learn's own Euclidean distance, from products, isn't 0 between equal rows.
    return float(silhouette_score(ranked, labels, metric="minkowski")) if _scorable(labels) else np.nan


def wasserstein_davies_bouldin(counts: Any, labels: Any) -> float:
    """Return FedGWC's Wasserstein adjusted Davies-Bouldin score (WADB), at least 0; lower is better.

    The mean over clusters i of max_j (S_i + S_j) / D_ij (Davies and Bouldin 1979): S_i is the mean distance of
    cluster i's clients from their centroid, D_ij the distance between two centroids, both between class frequencies in
    decreasing order as in `wasserstein_silhouette`.

    Parameters
    ----------
    counts : [M, C]
        Training samples by client and class. A client without any is left out.
    labels : [M]
        Clusters. NaN with fewer than two, or if every client is alone in its cluster. As in scikit-learn, 0 if all
        centroids coincide or no cluster has any spread, and a pair of equal centroids adds nothing.
    """
    from sklearn.metrics import davies_bouldin_score

    ranked, labels = _ranked(counts, labels)
    if not _scorable(labels):
        return np.nan
    clusters = [ranked[labels == label] for label in np.unique(labels)]
    centroids = np.array([rows.mean(axis=0) for rows in clusters])
    apart = _lengths(centroids[:, None] - centroids)
    if np.count_nonzero(apart) == apart.size - len(apart):
        return float(davies_bouldin_score(ranked, labels))
    # Some centroids coincide: scikit-learn's distance, from products, is 1e-8 between them, and its score millions.
    spread = np.array([_lengths(rows - centroid).mean() for rows, centroid in zip(clusters, centroids, strict=True)])
    ratios = np.divide(spread[:, None] + spread, apart, out=np.zeros_like(apart), where=apart > 0)
    return float(ratios.max(axis=1).mean())


def interval(values: Any, level: float = LEVEL) -> tuple[float, float, float]:
    """Return the mean of values [n] and the bounds of Student's interval, ``mean -+ t s / sqrt(n)``.

    s is their standard deviation, n - 1 in the denominator, t the quantile of Student's t with n - 1 degrees of freedom
    that leaves half of 1 - `level` above it. One value has the bounds -inf and inf; with none, or one that isn't
    finite, all three are NaN.
    """
    from scipy.special import stdtrit

    values = np.asarray(values, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        return np.nan, np.nan, np.nan
    mean, n = float(values.mean()), len(values)
    if n == 1:
        return mean, -np.inf, np.inf
    half = float(stdtrit(n - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / n**0.5
    return mean, mean - half, mean + half


def _labelled(true: Any, found: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both clusterings of those clients that have both labels."""
    true, found = np.asarray(true), np.asarray(found)
    both = (true >= 0) & (found >= 0)
    return true[both], found[both]


def _ranked(counts: Any, labels: Any) -> tuple[Floats, NDArray[Any]]:
    """Return class frequencies in decreasing order, and labels, of the clients that have both."""
    counts, labels = np.asarray(counts, dtype=np.float64), np.asarray(labels)
    sizes = counts.sum(axis=1)
    kept = (labels >= 0) & (sizes > 0)
    ranked = np.sort(counts[kept] / sizes[kept, None], axis=1)[:, ::-1]
    return ranked[:, ranked.any(axis=0)], labels[kept]  # ranks that are 0 for all clients change no distance


def _lengths(differences: Floats) -> Floats:
    """Return Euclidean lengths along the last axis; rounding between equal frequencies counts as 0."""
    lengths = np.linalg.norm(differences, axis=-1)
    return np.where(lengths < 1e-12, 0.0, lengths)


def _scorable(labels: NDArray[Any]) -> bool:
    return 2 <= len(np.unique(labels)) < len(labels)
