"""The number of clusters: scores by hand and by slow loops, the rule, planted numbers, odd inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import blocks, scattered
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

from clusterfl.clustering import renumbered
from clusterfl.clustering.affinity import eigengaps, gaussian
from clusterfl.clustering.choice import choose_k, find, silhouette
from clusterfl.errors import UserError

RULES = ["silhouette", "eigengap"]
LINE = np.abs(np.subtract.outer([0.0, 1, 10, 11], [0.0, 1, 10, 11]))


def cut(k):
    """Labels of the clients of LINE."""
    return np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 2]][k - 1])


def slow_silhouette(distance, labels):
    """The mean silhouette, one client after another."""
    values = []
    for i in range(len(labels)):
        mean = {}
        for k in set(labels):
            others = [j for j in range(len(labels)) if labels[j] == k and j != i]
            mean[k] = sum(distance[i, j] for j in others) / len(others) if others else None
        a = mean.pop(labels[i])
        b = min(mean.values())
        values.append(0 if a is None or max(a, b) == 0 else (b - a) / max(a, b))
    return sum(values) / len(values)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.booleans(), k=st.integers(2, 8))
def test_silhouette_is_the_slow_loop(seed, ties, k):
    distance = scattered(12, seed, ties)
    labels = np.append(np.arange(k), np.random.default_rng(seed).integers(0, k, 12 - k))
    assert silhouette(distance, labels) == pytest.approx(slow_silhouette(distance, labels), abs=1e-11)
    library = silhouette_score(distance, labels, metric="precomputed")
    assert silhouette(distance, labels) == pytest.approx(library, abs=1e-11)


def test_silhouette_by_hand():
    """Two pairs: outer clients (10.5 - 1) / 10.5, inner (9.5 - 1) / 9.5. One pair: (10 - 1) / 10, (9 - 1) / 9, 0, 0."""
    assert silhouette(LINE, cut(2)) == pytest.approx((9.5 / 10.5 + 8.5 / 9.5) / 2, abs=1e-11)
    assert silhouette(LINE, cut(3)) == pytest.approx((9 / 10 + 8 / 9) / 4, abs=1e-11)
    assert np.isnan(silhouette(LINE, cut(1))) and np.isnan(silhouette(LINE, np.arange(4)))


def test_eigengaps_by_hand():
    """Two pairs that know only each other: eigenvalues 0, 0, 1, 1, one 0 for each part of the graph."""
    graph = np.kron(np.eye(2), np.ones((2, 2)))
    np.testing.assert_allclose(eigengaps(graph, 3), [0, 1, 0], atol=1e-14)


def test_eigengaps_are_those_of_the_random_walk():
    """1 - the eigenvalues of D^-1 W are those of the normalised Laplacian (von Luxburg 2007, Proposition 3)."""
    graph = gaussian(scattered(15))
    walk = np.sort(1 - np.linalg.eigvals(graph / graph.sum(1)[:, None]).real)
    np.testing.assert_allclose(eigengaps(graph, 14), np.diff(walk), atol=1e-12)


def test_affinity_by_hand():
    """Distances 2 x 1, 2 x 2, 2 x 3: the median is 2; with most pairs identical the mean takes its place."""
    distance = np.array([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]])
    np.testing.assert_allclose(gaussian(distance), np.exp(-((distance / 2) ** 2)))
    np.testing.assert_allclose(gaussian(distance, 0.5), np.exp(-(distance**2)))
    lone = np.zeros((5, 5))
    lone[4, :4] = lone[:4, 4] = 5  # 8 of 20 pairs: mean 2
    np.testing.assert_allclose(gaussian(lone), np.exp(-((lone / 2) ** 2)))
    np.testing.assert_allclose(gaussian(7 * lone), gaussian(lone))


def test_choice_by_hand():
    k, scores = choose_k(LINE, cut, "silhouette")
    assert k == 2 and list(scores) == ["k", "silhouette", "eigengap", "chosen"]
    assert scores["k"].tolist() == [1, 2, 3] and scores["chosen"].tolist() == [False, True, False]
    assert np.isnan(scores["silhouette"][0]) and np.isnan(scores["eigengap"]).all()
    np.testing.assert_array_equal(scores["silhouette"][1:], [silhouette(LINE, cut(k)) for k in (2, 3)])
    assert choose_k(LINE, cut, "silhouette", most=2)[1]["k"].tolist() == [1, 2]
    k, scores = choose_k(LINE, cut, "eigengap")
    assert k == 2 and np.isnan(scores["eigengap"][0])
    np.testing.assert_allclose(scores["eigengap"][1:], eigengaps(gaussian(LINE), 3)[1:], atol=1e-12)
    assert np.isnan(scores["silhouette"]).tolist() == [True, False, True]  # of the chosen number only


def test_ties_go_to_the_smaller_number():
    assert choose_k(LINE, lambda k: cut(min(k, 2)), "silhouette")[0] == 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("margin", [1.0, 1.05, 1.1, 1.5, 3.0])
def test_margin_is_the_slow_rule(rule, margin):
    chosen = set()
    for seed in range(12):
        distance = scattered(20, seed)
        k, scores = choose_k(distance, lambda k, d=distance: find(d, "hierarchical", k).labels, rule, 8, margin)
        values = dict(zip(scores["k"].tolist(), scores[rule].tolist(), strict=True)) | {1: 0.0}
        expected = 1
        for candidate in range(2, 9):
            if values[candidate] > margin * max(values[j] for j in range(1, expected + 1)):
                expected = candidate
        assert k == expected
        chosen.add(k)
    assert (len(chosen) > 1) == (margin < 1.5 or rule == "eigengap")  # 1.5 is more than any silhouette gains here


def test_a_margin_keeps_the_number_small():
    """Two groups of two blocks each, which are 1.25 times as far from each other as the blocks of a group."""
    group = np.repeat(np.arange(4), 4)
    distance = np.where(group[:, None] == group, 1.0, np.where(group[:, None] // 2 == group // 2, 4.0, 5.0))
    np.fill_diagonal(distance, 0)
    scores = find(distance, "hierarchical", "silhouette").scores["silhouette"]
    assert 1 < scores[3] / scores[1] < 2.2
    assert find(distance, "hierarchical", "silhouette").k == 4
    assert find(distance, "hierarchical", "silhouette", margin=2.2).k == 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["kmedoids", "fasterpam", "hierarchical", "spectral"])
@pytest.mark.parametrize("sizes", [(8, 8), (4, 3, 5), (5, 9, 6, 4), (4,) * 7])
def test_planted_numbers_are_chosen(rule, name, sizes):
    if name == "kmedoids":
        pytest.importorskip("sklearn_extra.cluster")
    for seed in range(3):
        distance, labels = blocks(sizes, seed)
        found = find(distance, name, rule, seed=seed)
        assert found.k == len(sizes)
        np.testing.assert_array_equal(found.labels, renumbered(labels))
        np.testing.assert_array_equal(found.scores["k"], np.arange(1, min(10, len(labels) - 1) + 1))


def test_dbscan_is_tried_too():
    """Of the numbers that set its eps, the first that parts the four blocks is chosen; it isn't theirs."""
    distance, labels = blocks((6, 6, 6, 6))
    found = find(distance, "dbscan", "silhouette")
    np.testing.assert_array_equal(found.labels, renumbered(labels))
    assert found.k == 5 and len(set(found.labels)) == 4


@pytest.mark.parametrize("rule", RULES)
def test_order_of_clients_changes_no_choice(rule):
    distance = scattered(20)
    order = np.random.default_rng(1).permutation(20)
    one, other = (find(d, "hierarchical", rule) for d in (distance, distance[np.ix_(order, order)]))
    assert one.k == other.k
    np.testing.assert_allclose(one.scores[rule], other.scores[rule], atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_one_cluster_where_no_number_has_a_score(rule):
    for distance in (np.zeros((1, 1)), np.array([[0.0, 1], [1, 0]]), np.zeros((6, 6))):
        found = find(distance, "fasterpam", rule)
        assert found.k == 1 and found.labels.tolist() == [0] * len(distance)
        assert found.scores["chosen"][0] and found.scores["chosen"].sum() == 1


def test_scale_of_spectral_is_that_of_the_eigengaps():
    distance = scattered(20)
    found = find(distance, "spectral", "eigengap", options={"scale": 0.5}).scores["eigengap"]
    np.testing.assert_allclose(found[1:], eigengaps(gaussian(distance, 0.5), 10)[1:], atol=1e-12)
    plain = find(distance, "hierarchical", "eigengap").scores["eigengap"]
    np.testing.assert_allclose(plain[1:], eigengaps(gaussian(distance), 10)[1:], atol=1e-12)
    other = find(distance, f"{__name__}:in_two", "eigengap", options={"scale": 0.5}).scores["eigengap"]
    np.testing.assert_array_equal(other, plain)  # of another clusterer it means something else


def in_two(distance, k, seed, *, scale):
    """A clusterer of somebody's own, with an option of the same name."""
    return np.arange(len(distance)) % min(2, k)


def test_a_distance_may_decide_the_number():
    """No number is asked for; what comes out has its silhouette, and is as if its number had been given."""
    distance = blocks()[0]
    found = find(distance, "hierarchical", None, options={"threshold": 2.0})
    given = find(distance, "hierarchical", 3)
    assert found.k == 3 and found.labels.tolist() == given.labels.tolist()
    assert all(np.array_equal(found.scores[key], given.scores[key], equal_nan=True) for key in given.scores)
    assert find(distance, "dbscan", None, options={"eps": 2.5, "min_samples": 3}).k == 3


def test_a_given_number_has_its_silhouette():
    distance, labels = blocks()
    found = find(distance, "hierarchical", 3)
    assert found.k == 3 and found.scores["k"].tolist() == [3] and found.scores["chosen"].tolist() == [True]
    assert found.scores["silhouette"] == [silhouette(distance, labels)]


@pytest.mark.parametrize(
    ("clusters", "says"), [("elbow", "allowed: eigengap, silhouette"), (13, "1 to 12"), (None, "give clusters")]
)
def test_wrong_numbers_are_reported(clusters, says):
    with pytest.raises(UserError, match=says):
        find(blocks()[0], "hierarchical", clusters)


def test_threads_change_no_bit():
    distance = scattered(300)
    with threadpool_limits(2):
        two = eigengaps(gaussian(distance), 10), find(distance, "spectral", 6).labels
    one = eigengaps(gaussian(distance), 10), find(distance, "spectral", 6).labels
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
