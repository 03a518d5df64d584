"""Clusterers: blocks are found, numbering is stated, k-medoids against the best medoids by exhaustive search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from clusterfl.clustering import CLUSTERERS, renumbered
from clusterfl.errors import UserError
from clusterfl.metrics import adjusted_rand_index, rand_index


def blocks(sizes=(4, 3, 5), seed=0, within=1.0, between=4.0):
    """A distance matrix with planted blocks, clients shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = rng.uniform(0.5, 1, (len(labels), len(labels)))
    distance = (noise + noise.T) * np.where(labels[:, None] == labels[None], within, between)
    np.fill_diagonal(distance, 0)
    return distance, labels


@pytest.mark.parametrize("name", CLUSTERERS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_blocks_are_found(name, seed):
    if name == "kmedoids":
        pytest.importorskip("sklearn_extra.cluster")
    distance, labels = blocks(seed=seed)
    found = CLUSTERERS[name](distance, k=3, seed=seed)
    assert adjusted_rand_index(labels, found) == 1
    np.testing.assert_array_equal(found, renumbered(labels))
    np.testing.assert_array_equal(CLUSTERERS[name](distance, k=3, seed=seed), found)
    assert CLUSTERERS[name](distance, k=1).tolist() == [0] * len(labels)
    assert sorted(CLUSTERERS[name](distance, k=len(labels))) == list(range(len(labels)))


def test_kmedoids_reaches_the_least_loss_of_all_medoids():
    pytest.importorskip("sklearn_extra.cluster")
    rng = np.random.default_rng(1)
    points = rng.normal(size=(9, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    best = min(distance[list(medoids)].min(0).sum() for medoids in combinations(range(9), 3))
    labels = CLUSTERERS["kmedoids"](distance, k=3)
    loss = sum(distance[np.ix_(labels == k, labels == k)].sum(0).min() for k in range(3))
    assert loss == pytest.approx(best)


def test_released_defaults_can_start_in_one_block():
    """LCFL's code starts from the k clients nearest to all others; a large block then holds every first medoid."""
    pytest.importorskip("sklearn_extra.cluster")
    distance, true = blocks(sizes=(12, 5, 5), seed=1)
    assert len(set(true[np.argsort(distance.sum(1))[:3]])) == 1
    assert adjusted_rand_index(true, CLUSTERERS["kmedoids"](distance, k=3)) == 1
    released = CLUSTERERS["kmedoids"](distance, k=3, method="alternate", init="heuristic")
    assert adjusted_rand_index(true, released) < 0.8


@pytest.mark.parametrize("name", CLUSTERERS)
@pytest.mark.parametrize("k", [0, 13, None])
def test_impossible_numbers_of_clusters_are_told(name, k):
    if name == "kmedoids":
        pytest.importorskip("sklearn_extra.cluster")
    with pytest.raises(UserError, match="clusters"):
        CLUSTERERS[name](blocks()[0], k=k)


def test_indices_by_hand():
    """Labels 0011 against 0001: pairs that agree are (0,1), (0,3), (1,3) of 6, so Rand = 1/2 and ARI = 0."""
    assert rand_index([0, 0, 1, 1], [0, 0, 0, 1]) == pytest.approx(0.5)
    assert adjusted_rand_index([0, 0, 1, 1], [0, 0, 0, 1]) == pytest.approx(0)
    assert rand_index([0] * 50 + [1] * 50, [0] * 100) == pytest.approx(49 / 99)  # FedGWC's .5 for one cluster
    assert adjusted_rand_index([0, 0, 0], [5, 5, 5]) == 1
