"""The measures, against arithmetic by hand, scikit-learn, SciPy and what must hold for any input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.stats import wasserstein_distance
from sklearn import metrics as sklearn_metrics

from clusterfl import metrics

AGREEMENT: dict[str, Callable[..., float]] = {
    "adjusted_rand_index": metrics.adjusted_rand_index,
    "rand_index": metrics.rand_index,
    "normalised_mutual_information": metrics.normalised_mutual_information,
    "clustering_accuracy": metrics.clustering_accuracy,
}
LOWEST = {"adjusted_rand_index": -1.0}
SCORES: dict[str, Callable[..., float]] = {
    "was": metrics.wasserstein_silhouette,
    "wadb": metrics.wasserstein_davies_bouldin,
}

quick = settings(max_examples=40, deadline=None)
labels_ = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", AGREEMENT)
@quick
@given(pairs=labels_, seed=seeds)
def test_agreement_is_bounded_and_goes_by_neither_names_nor_order(name, pairs, seed):
    measure, rng = AGREEMENT[name], np.random.default_rng(seed)
    true, found = np.array(pairs).T
    value = measure(true, found)
    assert LOWEST.get(name, 0) - 1e-12 <= value <= 1 + 1e-12
    assert measure(true, true) == pytest.approx(1)
    assert measure(true, rng.permutation(4)[found]) == pytest.approx(value)
    order = rng.permutation(len(true))
    assert measure(true[order], found[order]) == pytest.approx(value)
    assert measure(found, true) == pytest.approx(value)


@pytest.mark.parametrize("name", AGREEMENT)
def test_clients_without_a_label_are_left_out(name):
    measure = AGREEMENT[name]
    assert measure([0, 0, 1, 1, 1, -1], [0, 1, 1, 1, -1, 0]) == measure([0, 0, 1, 1], [0, 1, 1, 1])
    assert np.isnan(measure([0, -1], [-1, 0]))
    assert np.isnan(measure([], []))
    assert measure([3], [0]) == 1


@quick
@given(pairs=labels_)
def test_agreement_equals_scikit_learn_and_the_best_of_all_renamings(pairs):
    true, found = np.array(pairs).T
    assert metrics.rand_index(true, found) == sklearn_metrics.rand_score(true, found)
    nmi = sklearn_metrics.normalized_mutual_info_score(true, found)
    assert metrics.normalised_mutual_information(true, found) == nmi
    best = max(np.mean(true == np.array(names)[found]) for names in itertools.permutations(range(4)))
    assert metrics.clustering_accuracy(true, found) == pytest.approx(best)


def test_agreement_of_degenerate_clusterings_by_hand():
    true, one, alone = [0, 0, 0, 1], [7, 7, 7, 7], [0, 1, 2, 3]
    assert metrics.rand_index(true, one) == pytest.approx(3 / 6)  # the pairs within a group
    assert metrics.rand_index(true, alone) == pytest.approx(3 / 6)  # those between groups
    assert metrics.adjusted_rand_index(true, one) == metrics.adjusted_rand_index(true, alone) == pytest.approx(0)
    assert metrics.normalised_mutual_information(true, one) == 0
    h = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert metrics.normalised_mutual_information(true, alone) == pytest.approx(2 * h / (h + np.log(4)))
    assert metrics.clustering_accuracy(true, one) == 3 / 4
    assert metrics.clustering_accuracy(true, alone) == 2 / 4
    assert metrics.rand_index(np.repeat([0, 1, 2], [40, 30, 30]), [0] * 100) == pytest.approx(1650 / 4950)  # FedGWC
    assert all(measure(one, one) == 1 for measure in AGREEMENT.values())


def test_first_rounds_by_hand():
    assert metrics.first_round([1, 2, 3, 4], [0.2, 0.9, 0.5, 1]) == 2  # inclusive, and a later fall changes nothing
    assert metrics.first_round([4, 3, 2], [1, 0.95, 0.1]) == 3  # whatever the order
    assert np.isnan(metrics.first_round([1, 2], [np.nan, 0.89]))
    assert np.isnan(metrics.first_round([], []))
    assert metrics.first_round([1, 2], [0.6, 0.9], threshold=0.5) == 1
    assert metrics.rounds_to_accuracy([0, 5, 10], [0.1, 0.79, 0.8], target=0.8) == 10
    assert metrics.rounds_to_accuracy([0, 5], [0.9, 0.1], target=0.8) == 0
    assert np.isnan(metrics.rounds_to_accuracy([0, 5], [0.1, 0.2], target=0.8))


# Three clients, three classes; client 0 isn't tested on class 2, client 2 on nothing.
CORRECT = np.array([[1, 4, 0], [2, 0, 3], [0, 0, 0]])
TOTAL = np.array([[2, 4, 0], [2, 5, 3], [0, 0, 0]])
TRAIN = np.array([[3, 1, 0], [0, 5, 0], [1, 1, 1]])


def test_balanced_accuracy_by_hand():
    found = metrics.balanced_accuracy(CORRECT, TOTAL)
    np.testing.assert_allclose(found, [(1 / 2 + 4 / 4) / 2, (1 + 0 + 1) / 3, np.nan])
    weighted = metrics.balanced_accuracy(CORRECT, TOTAL, TRAIN)
    np.testing.assert_allclose(weighted, [(0.75 * 1 + 0.25 * 4) / (0.75 * 2 + 0.25 * 4), 0, np.nan])
    shares = TRAIN / TRAIN.sum(1, keepdims=True)
    np.testing.assert_allclose(metrics.balanced_accuracy(CORRECT, TOTAL, shares), weighted)
    alien = metrics.balanced_accuracy(CORRECT[:1], TOTAL[:1], [[0, 0, 9]])  # trains only on what it isn't tested on
    assert np.isnan(alien).all()
    np.testing.assert_allclose(metrics.accuracy(CORRECT.sum(1), TOTAL.sum(1)), [5 / 6, 5 / 10, np.nan])


@quick
@given(n=st.integers(0, 30), classes=st.integers(2, 5), seed=seeds)
def test_balanced_accuracy_equals_scikit_learn(n, classes, seed):
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 1], rng.integers(0, classes, n)])  # scikit-learn warns of a single class
    said = np.where(rng.random(len(y)) < 0.5, y, rng.permutation(y))
    total = np.bincount(y, minlength=classes)
    found = metrics.balanced_accuracy([np.bincount(y[said == y], minlength=classes)], [total])
    assert found[0] == pytest.approx(sklearn_metrics.balanced_accuracy_score(y, said))
    weighted = metrics.balanced_accuracy([np.bincount(y[said == y], minlength=classes)], [total], [total])
    expected = sklearn_metrics.accuracy_score(y, said, sample_weight=total[y])
    assert weighted[0] == pytest.approx(expected)


def test_cluster_accuracy_by_hand():
    found = metrics.cluster_accuracy([1, 2, 9, 0, 5], [4, 2, 10, 0, 5], [0, 0, 2, 3, -1])
    np.testing.assert_allclose(found, [3 / 6, np.nan, 9 / 10, np.nan])  # 1 is empty, 3 has no sample
    assert len(metrics.cluster_accuracy([1], [1], [-1])) == len(metrics.cluster_accuracy([], [], [])) == 0


def test_fairness_by_hand():
    found = metrics.fairness([0.5, np.nan, 1.0, 0.0])
    assert found == pytest.approx({"worst": 0, "percentile_10": 0.1, "std": np.sqrt(1 / 6)})
    assert metrics.fairness([0.7]) == pytest.approx({"worst": 0.7, "percentile_10": 0.7, "std": 0})
    assert np.isnan(list(metrics.fairness([np.nan]).values())).all()


def test_an_interval_by_hand() -> None:
    # 1, 2, 6: mean 3, s^2 = (4 + 1 + 9) / 2 = 7; t of two degrees of freedom at .975 is 4.3027
    assert metrics.interval([1, 2, 6]) == pytest.approx(
        (3, 3 - 4.302653 * math.sqrt(7 / 3), 3 + 4.302653 * math.sqrt(7 / 3))
    )
    assert metrics.interval([5.0]) == (5.0, -math.inf, math.inf)
    assert all(math.isnan(one) for one in (*metrics.interval([]), *metrics.interval([1, math.inf])))
    by_scipy = stats.ttest_rel([0.9, 0.8, 0.7], [0.5, 0.6, 0.55]).confidence_interval(0.95)
    assert metrics.interval([0.4, 0.2, 0.15])[1:] == pytest.approx(by_scipy)


# Frequencies in decreasing order: (.5, .5), (.5, .5), (1, 0), (.75, .25). In units of sqrt(2) times the first
# frequency the clients lie at .5, .5, 1, .75.
COUNTS, FOUND = np.array([[2, 2], [5, 5], [0, 3], [1, 3]]), np.array([0, 0, 1, 1])


def test_wasserstein_scores_by_hand():
    # Clients 0, 1: a = 0, so 1. Client 2: a = .25, b = .5: 1/2. Client 3: a = b = .25: 0.
    assert metrics.wasserstein_silhouette(COUNTS, FOUND) == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    # Centroids .5 and .875; spreads 0 and .125.
    assert metrics.wasserstein_davies_bouldin(COUNTS, FOUND) == pytest.approx(0.125 / 0.375)


@pytest.mark.parametrize("name", SCORES)
@quick
@given(clients=st.integers(3, 9), classes=st.integers(2, 5), seed=seeds)
def test_wasserstein_scores_go_by_no_names_and_no_order(name, clients, classes, seed):
    score, rng = SCORES[name], np.random.default_rng(seed)
    counts, labels = rng.integers(1, 9, (clients, classes)), rng.integers(0, 3, clients)
    value = score(counts, labels)
    renamed = score(rng.permuted(counts, axis=1), labels)  # each client's classes by names of its own
    np.testing.assert_array_equal(renamed, value)
    order = rng.permutation(clients)
    np.testing.assert_allclose(score(counts[order], rng.permutation(3)[labels][order]), value, rtol=1e-6)
    np.testing.assert_allclose(score(7 * counts, labels), value, rtol=1e-6)
    more = np.hstack([counts, np.zeros((clients, 2), int)])  # classes that nobody has
    np.testing.assert_array_equal(score(more, labels), value)
    left_out = np.vstack([counts, np.zeros((1, classes), int), counts[:1]])
    np.testing.assert_array_equal(score(left_out, [*labels, 0, -1]), value)
    assert np.isnan(value) == (not 2 <= len(set(labels)) < clients)
    assert np.isnan(value) or (-1 <= value <= 1 if name == "was" else value >= 0)


@quick
@given(classes=st.integers(2, 6), seed=seeds)
def test_silhouette_equals_scikit_learns_on_the_distances_of_optimal_transport(classes, seed):
    """Of all couplings of two distributions of frequencies, equally weighted, one to one is the best there is."""
    rng = np.random.default_rng(seed)
    counts, labels = rng.integers(1, 30, (7, classes)), np.array([0, 0, 0, 1, 1, 1, 2])
    shares = counts / counts.sum(1, keepdims=True)
    distance = np.zeros((7, 7))
    for k, j in itertools.permutations(range(7), 2):
        cost = (shares[k][:, None] - shares[j][None]) ** 2
        distance[k, j] = np.sqrt(cost[linear_sum_assignment(cost)].mean())
        if classes == 2:  # the two ranks differ by the same amount, so the exponent doesn't matter
            assert distance[k, j] == pytest.approx(wasserstein_distance(shares[k], shares[j]), abs=1e-12)
    expected = sklearn_metrics.silhouette_score(distance, labels, metric="precomputed")
    assert metrics.wasserstein_silhouette(counts, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SCORES)
def test_wasserstein_scores_of_degenerate_clusterings(name):
    score = SCORES[name]
    assert np.isnan(score(COUNTS, [3, 3, 3, 3]))
    assert np.isnan(score(COUNTS, [0, 1, 2, 3]))
    assert np.isnan(score(COUNTS, [-1] * 4))
    assert np.isnan(score(COUNTS, [0, -1, -1, -1]))
    assert score(COUNTS, [0, 0, 5, 5]) == score(COUNTS, FOUND)  # empty clusters between
    same = np.tile([3, 1, 2], (4, 1))
    assert score(same, FOUND) == pytest.approx(0)
    assert metrics.wasserstein_silhouette(COUNTS, [0, 0, 1, 2]) == pytest.approx((1 + 1) / 4)  # alone: 0


def test_the_adjusted_rand_index_has_the_bits_of_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    for size in range(1, 150):
        true, found = 3 * draw.integers(0, 5, size), draw.integers(0, draw.integers(1, 12), size)
        for pair in ((true, found), (true, true), (true, np.arange(size)), (found, np.zeros(size, int))):
            assert metrics.adjusted_rand_index(*pair).hex() == float(sklearn_metrics.adjusted_rand_score(*pair)).hex()


def test_a_pair_of_equal_centroids_adds_nothing_by_hand() -> None:
    """Clients at (2, 1), (3, 3), (3, 3), (2, 0), (3, 2, 1), of which the second to fourth are a cluster.

    In shares (2/3, 1/3, 0) for the first; (1/2, 1/2), (1/2, 1/2), (1, 0), whose centroid is (2/3, 1/3), too; and
    (1/2, 1/3, 1/6). In units of sqrt(2): spreads 0, (1/6 + 1/6 + 1/3) / 3 = 2/9 and 0; the third cluster is 1/6 from
    both, so the ratios of first and second, first and third, second and third are 0, 0 and 4/3.
    """
    counts, labels = np.array([[1, 0, 2], [0, 3, 3], [0, 3, 3], [0, 2, 0], [3, 2, 1]]), np.array([0, 1, 1, 1, 2])
    assert metrics.wasserstein_davies_bouldin(counts, labels) == pytest.approx((0 + 4 / 3 + 4 / 3) / 3)


@pytest.mark.slow
def test_centroids_that_coincide_add_nothing() -> None:
    """Against sums in plain loops; scikit-learn takes 1e-8 for the distance of equal centroids."""

    def direct(counts: np.ndarray, labels: np.ndarray) -> float:
        ranked = np.array([sorted(row / row.sum(), reverse=True) for row in counts])
        names = sorted(set(labels))
        centroids = {k: ranked[labels == k].mean(axis=0) for k in names}
        spread = {k: np.mean([math.dist(row, centroids[k]) for row in ranked[labels == k]]) for k in names}
        total = 0.0
        for k in names:
            apart = {j: math.dist(centroids[k], centroids[j]) for j in names if j != k}
            total += max((spread[k] + spread[j]) / d if d > 1e-12 else 0.0 for j, d in apart.items())
        return total / len(names)

    generator, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        counts = generator.integers(1, 4, (8, 2)) * generator.choice([1, 10])
        labels = generator.integers(0, 3, 8)
        if len(set(labels)) > 1:
            found = metrics.wasserstein_davies_bouldin(counts, labels)
            assert found == pytest.approx(direct(counts, labels), rel=1e-6)
            ranked = np.sort(counts / counts.sum(axis=1, keepdims=True))[:, ::-1]
            wrong += sklearn_metrics.davies_bouldin_score(ranked, labels) > 1e4
    assert wrong > 0


def test_many_groups_and_clusters_take_no_table_of_both() -> None:
    labels = np.arange(60_000)
    assert metrics.adjusted_rand_index(labels, labels) == 1.0
