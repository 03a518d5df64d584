"""FL+HC: distances by hand, its rounds against the slow loop, planted rotations, clients without a sound update."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, slow_but, uneven
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering
from torch import nn

from clusterfl import api
from clusterfl.clustering.distances import manhattan_distance
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods.fixed import FedAvg
from clusterfl.methods.flhc import FLHC
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record
from clusterfl.simulation.survey import Survey

EIGHT = (40,) * 8


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def test_manhattan_distance_by_hand():
    """(1, 2), (4, -2) and (1, 2.5): 3 + 4 = 7, 0 + .5 and 3 + 4.5."""
    rows = np.array([[1.0, 2], [4, -2], [1, 2.5]])
    expected = np.array([[0, 7, 0.5], [7, 0, 7.5], [0.5, 7.5, 0]])
    np.testing.assert_array_equal(manhattan_distance(rows), expected)
    np.testing.assert_array_equal(manhattan_distance(rows, np.array([1])), expected[:, [1]])


def test_manhattan_distance_is_scipys_whatever_the_blocks(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(37, 400))
    whole = manhattan_distance(rows)
    np.testing.assert_allclose(whole, cdist(rows, rows, "cityblock"), rtol=1e-13)
    monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", 8 * 400 * 5)
    monkeypatch.setattr("clusterfl.clustering.distances.CACHE_BYTES", 8 * 400 * 3)
    np.testing.assert_array_equal(manhattan_distance(rows), whole)


@pytest.mark.parametrize("metric", ["manhattan", "euclidean", "cosine"])
@pytest.mark.parametrize("linkage", slow_but(["average"], ["average", "complete", "single"]))
def test_clusters_are_scikit_learns_on_the_slow_loops_updates(metric, linkage):
    """FedAvg for three rounds; then each client's own update of the common model, clustered; then FedAvg in each."""
    how = {"federation": uneven((3, 10, 25, 7, 16, 40)), "epochs": 1}
    with engine(rounds=3, **how) as used:
        common, _ = loop.run(FedAvg(), loop.context(used), used)
        few, one = Training(epochs=1), [np.array([i]) for i in range(6)]
        rows = np.stack([Survey(used).updates(common.theta[0], i, few).rows[0].double().numpy() for i in one])
    name = {"manhattan": "cityblock"}.get(metric, metric)
    heights = np.unique(cdist(rows, rows, name).round(9))
    threshold = float(heights[1] + heights[2]) / 2  # the nearest two merge, and nobody else
    for cut in ({"clusters": 3}, {"threshold": threshold}):
        tree = AgglomerativeClustering(
            n_clusters=cut.get("clusters"), distance_threshold=cut.get("threshold"), metric=name, linkage=linkage
        )
        with engine(rounds=4, **how) as used:
            method = FLHC(**cut, common_rounds=3, distance=metric, linkage=linkage)
            thetas = []
            state, record = loop.run(
                method, loop.context(used), used, save=lambda c, seen=thetas: seen.append(c.state.theta[:].clone())
            )
        assert adjusted_rand_index(tree.fit(rows).labels_, state.labels) == 1
        assert len(state.theta) == state.labels.max() + 1 > 1
        assert len(thetas[1]) == 1 and torch.equal(thetas[2], common.theta[:].repeat(len(state.theta), 1))
        rounds = Record.table(record.rounds)
        assert rounds["clusters"].tolist() == [1, 1, len(state.theta), len(state.theta)]
        models = 4 * used.layout.columns * np.array([6, 6, 12, 6])
        assert rounds["bytes_up"].tolist() == rounds["bytes_down"].tolist() == models.tolist()


def test_a_share_of_each_cluster_takes_part():
    with engine(federation=uneven(EIGHT), rounds=6, epochs=1, participation=0.25) as used:
        state, record = loop.run(FLHC(clusters=4), loop.context(used), used)
    rounds = Record.table(record.clusters)
    drawn = rounds["participated"].reshape(6, 8)
    assert drawn[0].sum() == 2
    for row in drawn[1:]:
        members = np.bincount(state.labels)
        took = np.bincount(state.labels[row], minlength=4)
        assert took.tolist() == [max(1, round(0.25 * n)) for n in members]


@pytest.mark.parametrize("seed", slow_but([0], range(5)))
def test_planted_rotations_are_found_by_first_updates(seed, tmp_path, monkeypatch):
    """The default study's federation: 40 clients, four rotations, and its network; and by the threshold alone."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=40, seed=seed)
    for method in (FLHC(clusters=4), FLHC(threshold=0.9, distance="cosine", linkage="average", common_rounds=10)):
        with engine(network, federation, seed=seed, rounds=method.common_rounds + 1) as used:
            state, _ = loop.run(method, loop.context(used), used)
        assert adjusted_rand_index(federation.true_cluster, state.labels) == 1


def test_whose_update_is_not_sound_stays_with_the_first_cluster():
    settings = {"federation": uneven(EIGHT), "rounds": 2, "epochs": 1, "diverged": "exclude"}
    with engine(**settings) as used:
        sizes = Survey(used).updates(used.initial(0), np.arange(8), Training(epochs=1)).rows[:].norm(dim=1)
    largest = float(sizes.sort().values[-2:].mean())  # one client's is larger
    with engine(**settings, largest_update=largest) as used:
        state, record = loop.run(FLHC(threshold=0.0), loop.context(used), used)
    assert Record.table(record.rounds)["excluded"].max() >= 1
    labels, counts = np.unique(state.labels, return_counts=True)
    assert len(labels) < 8 and counts[0] == 8 - len(labels) + 1
    with engine(**settings, largest_update=1e-9) as used:
        state, _ = loop.run(FLHC(clusters=3), loop.context(used), used)
    assert state.labels.tolist() == [0] * 8 and len(state.theta) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "found neither threshold nor clusters; give one"),
        ({"clusters": 2, "threshold": 1.0}, "found both threshold and clusters; give one"),
        ({"clusters": 2, "common_rounds": 4}, "leave none for the clusters; allowed: 1 to 3, or more training.rounds"),
        ({"clusters": 9}, "9 clusters for 8 clients"),
    ],
)
def test_what_is_refused(options, said):
    with engine(federation=uneven(EIGHT), rounds=4) as used, pytest.raises(UserError, match=said):
        loop.run(FLHC(**options), loop.context(used), used)
