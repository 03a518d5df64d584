"""FLUX: moments by hand, its rounds against the slow loop, planted rotations, newcomers without labels, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, mlp, uneven
from sklearn.decomposition import PCA
from test_stocfl import network
from torch import nn

from clusterfl import api, streams
from clusterfl.clustering.distances import parameter_distance
from clusterfl.clustering.elbow import elbow
from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.errors import UserError
from clusterfl.methods.fixed import FedAvg
from clusterfl.methods.flux import FLUX, directions, moments, scaled, shifted
from clusterfl.metrics import adjusted_rand_index
from clusterfl.registry import fields_model
from clusterfl.simulation import loop
from clusterfl.simulation.evaluation import newcomer_labels
from clusterfl.simulation.record import Record
from clusterfl.simulation.survey import Survey


def run(method, used, **how):
    return loop.run(method, loop.context(used), used, **how)


def test_moments_by_hand():
    """Of class 0: (1, 2) and (3, 2), mean (2, 2), deviations (1, 0). Of class 1 one sample, of class 2 none."""
    z, y = np.array([[1.0, 2], [3, 2], [8, 5]]), np.array([0, 0, 1])
    found = moments(z, y, 3)
    np.testing.assert_allclose(found[0], [4, 3])
    np.testing.assert_allclose(found[1], [np.sqrt(26 / 3), np.sqrt(2)])
    np.testing.assert_array_equal(found[[2, 5]], [[2, 2], [1, 0]])
    assert np.isnan(found[[3, 4, 6, 7]]).all()
    np.testing.assert_array_equal(moments(z, np.full(3, -1), 0), found[:2])
    np.testing.assert_array_equal(scaled(found[[2]], np.array([[1.0, 3]])), [[0.5, 0.5]])
    np.testing.assert_array_equal(scaled(found[[2]], np.array([[2.0, 2]])), [[0, 0]])  # all are equal


def test_directions_are_orthonormal_and_those_of_their_draws():
    ways, middle = directions(9, 4, np.random.default_rng(1))
    np.testing.assert_allclose(ways.T @ ways, np.eye(4), atol=1e-12)
    np.testing.assert_array_equal(middle, np.random.default_rng(1).uniform(size=(200, 9)).mean(0))
    assert directions(3, 8, np.random.default_rng(1))[0].shape == (3, 3)


def test_centred_moments_are_those_of_the_releases_pca():
    """scikit-learn's PCA, fitted on points up to 1.02 x the largest feature, but for the directions' signs."""
    z, y = np.maximum(np.random.default_rng(0).normal(size=(30, 9)), 0), np.arange(30) % 3
    y[y == 2] = 1  # no sample of class 2
    bound = 1.02 * z.max()
    pca = PCA(n_components=4, svd_solver="full").fit(bound * np.random.default_rng(1).uniform(size=(200, 9)))
    ways, middle = directions(9, 4, np.random.default_rng(1))
    signs = np.sign((pca.components_ * ways.T).sum(1))
    found = shifted(moments(z @ ways, y, 3), bound * middle @ ways, 3)
    expected = moments(pca.transform(z) * signs, y, 3)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not np.allclose(moments(z @ ways, y, 3)[0], expected[0], atol=1)
    np.testing.assert_array_equal(shifted(expected, None, 3), expected)


def by_hand(used, theta, method, ways):
    """Return the scaled descriptors, from features by plain PyTorch: all but the random directions is done again."""
    module, data = mlp(), used.federation.splits["train"]
    used.layout.load(module, theta)
    rows, features = [], module[:-1](torch.as_tensor(samples_of(data))).detach().double().numpy()
    if method.centred:
        points = 1.02 * max(max(row) for row in features) * streams.generator(3, "flux").uniform(size=(200, 8))
        features = np.array([row - sum(points) / 200 for row in features])
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        z, y = features[first:last] @ ways, data.y[first:last]
        parts = [z[y == c] if (y == c).sum() > 1 else None for c in range(3)]
        if method.describe == "samples":
            parts = []
        means = [np.full(ways.shape[1], -1.0) if p is None else p.mean(0) for p in parts]
        spreads = [np.full(ways.shape[1], -1.0) if p is None else p.std(0) for p in parts]
        rows.append([z.mean(0), z.std(0), *means, *spreads])
    every = np.array(rows)
    for g in range(every.shape[1]):
        low, high = every[:, g].min(), every[:, g].max()
        every[:, g] = (every[:, g] - low) / (high - low)
    return every.reshape(len(every), -1)


@pytest.mark.parametrize("backend", ["dense", "loop"])
@pytest.mark.parametrize(("describe", "centred"), [("classes", False), ("samples", False), ("classes", True)])
def test_it_is_the_slow_obvious_loop(backend, describe, centred):
    """Two rounds of FedAvg; clusters of clients linked by a chain of neighbours within eps; then FedAvg in each."""
    settings = {"federation": uneven((30, 31, 25, 40, 36, 30, 33, 28)), "epochs": 1, "backend": backend}
    method = FLUX(common_rounds=2, describe=describe, centred=centred)
    with engine(rounds=2, **settings) as used:
        common, _ = run(FedAvg(), used)
    with engine(rounds=3, **settings) as used:
        thetas = []
        state, record = run(method, used, save=lambda c: thetas.append(c.state.theta[:].clone()))
        points = by_hand(used, common.theta[0], method, state.own.ways)
        columns = used.layout.columns
    gaps = parameter_distance(points)
    nearest = np.sort((gaps + np.diag(np.full(8, np.inf))).min(1))
    eps, linked = nearest[elbow(nearest)], [[i] for i in range(8)]
    for i in range(8):
        for j in range(i):
            a, b = (next(group for group in linked if k in group) for k in (i, j))
            if gaps[i, j] <= eps * (1 + 1e-6) and a is not b:
                a += b
                linked.remove(b)
    expected = [next(k for k, group in enumerate(linked) if i in group) for i in range(8)]
    assert adjusted_rand_index(expected, state.labels) == 1
    assert torch.equal(thetas[1], common.theta[:].repeat(len(state.theta), 1)) and len(thetas[0]) == 1
    q = 2 * state.own.ways.shape[1]
    for k, centroid in enumerate(state.own.centroids):
        np.testing.assert_allclose(centroid, points[state.labels == k, :q].mean(0), atol=1e-5)
    rounds = Record.table(record.rounds)
    sent = 8 * (q // 2) * (2 + (6 if describe == "classes" else 0)) + 8 * centred
    assert (rounds["bytes_up"] / 4).tolist() == [8 * columns, 8 * columns + sent, 8 * columns]
    assert (rounds["bytes_down"] / 4 / columns).tolist() == [8, 16, 8]
    assert rounds["client_forwards"].tolist() == [0, 253, 0]


def test_a_survey_of_features_is_that_of_the_module():
    with engine(federation=uneven()) as used:
        theta, clients = used.initial(0), np.arange(6)
        found = Survey(used).features(theta, clients, lambda z, y: np.column_stack([z, y]))
        module, data = mlp(), used.federation.splits["train"]
        used.layout.load(module, theta)
        expected = module[:-1](torch.as_tensor(samples_of(data))).detach().numpy()
    np.testing.assert_allclose(np.concatenate(found)[:, :-1], expected, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(found)[:, -1], data.y)


@pytest.mark.parametrize("seed", range(5))
def test_planted_rotations_are_found(seed, tmp_path, monkeypatch):
    """Twelve clients of 150 digits: k-means finds the rotations, DBSCAN joins none, but leaves some clients alone."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=12, seed=seed)
    for method in (FLUX(clusters=4), FLUX()):
        with engine(network, federation, seed=seed, rounds=2, evaluate_every=99) as used:
            state, _ = run(method, used)
        index = adjusted_rand_index(federation.true_cluster, state.labels)
        assert index == 1 if method.clusters else index > 0.7
        for k in range(len(state.theta)):
            assert len(set(federation.true_cluster[state.labels == k])) == 1


@pytest.mark.parametrize("centred", [False, True])
def test_newcomers_without_labels_go_to_the_nearest_centroid(centred, tmp_path, monkeypatch):
    """Clients that a model was trained without: in the cluster of their rotation, though they show no label."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=16, seed=0)
    train = federation.splits["train"]
    x, owner = samples_of(train), np.repeat(np.arange(16), train.sizes)
    groups = federation.true_cluster
    new = [np.flatnonzero(groups == g)[-1] for g in range(4)]
    member, group = ~np.isin(owner, new), groups[owner]

    def part(rows):
        return Federation.from_arrays(x[rows], train.y[rows], owner[rows], None, group[rows])

    with engine(network, part(member), rounds=2, newcomers=part(~member), evaluate_every=99) as used:
        method = FLUX(clusters=4, centred=centred)
        before = newcomer_labels(used, method, method.begin(loop.context(used)))[0]
        state, _ = run(method, used)
        labels, losses = newcomer_labels(used, method, state)
    assert before.tolist() == [0, 0, 0, 0] and losses.shape == (4, 4)
    of = dict(zip(groups[np.setdiff1d(np.arange(16), new)].tolist(), state.labels.tolist(), strict=True))
    assert labels.tolist() == [of[int(groups[i])] for i in sorted(new)]


def test_a_class_that_a_client_lacks_counts_as_the_others_mean():
    """Clients of one distribution, some without class 2: marked they are apart, with the mean they are nearer."""
    federation = uneven((40,) * 6, groups=1)
    found = {}
    for absent in ("marked", "mean"):
        data = federation.splits["train"]
        keep = (np.repeat(np.arange(6), data.sizes) > 2) | (data.y < 2)
        lacking = Federation.from_arrays(
            samples_of(data)[keep], data.y[keep], np.repeat(np.arange(6), data.sizes)[keep]
        )
        with engine(federation=lacking, rounds=2) as used:
            state, _ = run(FLUX(absent=absent, clusters=2), used)
        found[absent] = state.labels
    assert found["marked"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found["mean"].tolist() != found["marked"].tolist()


def test_eps_is_the_elbows_distance_times_a_factor():
    """On a line 0, 1, 10, 11 and 13: the nearest are 1, 1, 1, 1 and 2 away, the elbow at 1; 2 joins the last, too."""
    points = np.array([[0.0], [1], [10], [11], [13]])
    for scale, labels in ((1.0, [0, 0, 1, 1, 2]), (2.0, [0, 0, 1, 1, 1])):
        assert FLUX(eps_scale=scale)._clustered(None, points).tolist() == labels


@pytest.mark.parametrize(("given", "many"), [(2, 2), (None, 3)])
def test_clients_send_moments_in_as_many_directions_as_asked(given, many):
    """Two moments, of all samples and of each of three classes; as many directions as classes if none are asked."""
    with engine(federation=uneven((20,) * 4), rounds=2, epochs=1) as used:
        state, record = run(FLUX(components=given, clusters=2), used)
    sent = np.array(Record.table(record.rounds)["bytes_up"]) / 4
    assert state.own.ways.shape == (8, many) and sent[0] - sent[1] == 4 * 2 * (1 + 3) * many


def test_centring_changes_how_much_means_count():
    """By default nothing is subtracted, and settings without the option are stored as before it."""
    federation = uneven((30, 31, 25, 40, 36, 30, 33, 28))
    found = {}
    for centred in (False, True):
        with engine(federation=federation, rounds=2, epochs=1) as used:
            state, _ = run(FLUX(clusters=2, centred=centred), used)
        found[centred] = state.own
    assert found[False].origin is None and found[True].origin.shape == (3,)
    np.testing.assert_array_equal(found[True].bounds[1], found[False].bounds[1])  # deviations
    assert np.ptp(found[True].bounds[0]) != pytest.approx(np.ptp(found[False].bounds[0]))  # means
    options = fields_model(FLUX)
    assert "centred" not in options().model_dump() and options(centred=True).model_dump()["centred"] is True


def test_what_is_refused():
    with engine(rounds=3) as used, pytest.raises(UserError, match=r"3 of 3 rounds leave none .* allowed: 1 to 2"):
        run(FLUX(common_rounds=3), used)
    alone = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    with engine(alone, rounds=3) as used, pytest.raises(UserError, match="goes into a network's last layer"):
        run(FLUX(), used)
