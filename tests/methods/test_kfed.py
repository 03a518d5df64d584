"""k-FED: by hand, each step against the obvious loop, planted rotations, what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from conftest import tiny
from federations import engine, mlp, noise, slow_but, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from clusterfl import api
from clusterfl.config import loading
from clusterfl.data.federation import Federation
from clusterfl.errors import UserError
from clusterfl.methods import kfed
from clusterfl.methods.kfed import KFED, awasthi_sheffet, plus_plus, server
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, prepared

SEEDS = st.integers(0, 2**32 - 1)


def begun(federation, factory=mlp, **options):
    with engine(factory, federation) as used:
        return KFED(**options).begin(loop.context(used)).labels


def test_by_hand():
    """Clients' means on a line are 0, 1, 10, 12 and 11: k-means with k = 2 begins at 0 and, farthest from it, 12."""
    x = np.array([-1.0, 1, 0, 2, 10, 10, 12, 12, 11, 11])[:, None]
    federation = Federation.from_arrays(x, np.zeros(10, int), np.repeat(np.arange(5), 2))
    assert begun(federation, lambda: mlp(1), clusters=2).tolist() == [0, 0, 1, 1, 1]
    assert begun(federation, lambda: mlp(1), clusters=5).tolist() == [0, 1, 2, 3, 4]


def test_a_client_belongs_where_most_of_its_samples_do():
    """Client 0 has 3 samples at 0 and 1 at 9; client 1 has 1 at 0.1 and 4 at 9.1; client 2 has 2 and 2: the first."""
    x = np.array([0.0, 0, 0, 9, 0.1, 9.1, 9.1, 9.1, 9.1, 0.2, 0.2, 9.2, 9.2])[:, None]
    federation = Federation.from_arrays(x, np.zeros(13, int), np.repeat([0, 1, 2], [4, 5, 4]))
    for local in ("awasthi-sheffet", "plain"):
        labels = begun(federation, lambda: mlp(1), clusters=2, local_clusters=2, local=local).tolist()
        assert labels[0] != labels[1] and labels[2] in labels[:2], local


def test_starts_are_means_of_points_three_times_nearer():
    """On a line, drawn centres at 0 and 8: of 0, 1, 2 and 3 the first three are three times as near to 0 (6 > 3 x 2).

    Lloyd's iterations then end at the same two groups, whichever points were drawn.
    """
    x = np.array([0.0, 1, 2, 8, 9])[:, None]
    for seed in range(5):
        found = np.sort(awasthi_sheffet(x, 2, np.random.default_rng(seed)).ravel())
        np.testing.assert_allclose(found, [1, 8.5])
    assert awasthi_sheffet(x[:2], 2, np.random.default_rng(0)).tolist() == [[0], [1]]  # no more points than centres


def slow(x, k, draws):
    """Awasthi and Sheffet's k-means, sample by sample."""
    ways = np.linalg.svd(x, full_matrices=False)[2][:k].T
    flat = x @ ways
    drawn = plus_plus(flat, k, draws)
    starts = []
    for r in range(len(drawn)):
        near = []
        for point in flat:
            own = np.linalg.norm(point - drawn[r])
            if all(np.linalg.norm(point - drawn[s]) >= 3 * own for s in range(len(drawn)) if s != r):
                near.append(point)
        starts.append(np.mean(near, axis=0))
    return KMeans(len(drawn), init=np.array(starts) @ ways.T, n_init=1).fit(x).cluster_centers_


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, k=st.integers(1, 4))
def test_a_clients_part_is_the_slow_loop(seed, k):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(30, 6)) + 4 * draw.integers(0, 2, (30, 6))
    found = awasthi_sheffet(x, k, np.random.default_rng(seed))
    np.testing.assert_allclose(found, slow(x, k, np.random.default_rng(seed)), atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, first=st.integers(1, 3), k=st.integers(3, 6))
def test_the_servers_part_is_the_slow_loop(seed, first, k):
    """From the first client's centres, the farthest of the others one by one."""
    centres = np.random.default_rng(seed).normal(size=(15, 3))
    starts, left = list(centres[:first]), list(centres[first:])
    while len(starts) < k:
        away = [min(np.linalg.norm(c - s) for s in starts) for c in left]
        starts.append(left.pop(int(np.argmax(away))))
    model = KMeans(k, init=np.array(starts), n_init=1).fit(centres)
    assert adjusted_rand_index(model.labels_, server(centres, first, k)) == 1


def test_plus_plus_draws_distinct_points_by_squared_distance():
    x = np.array([[0.0], [0], [1], [3]])
    seconds = []
    for seed in range(600):
        drawn = plus_plus(x, 2, np.random.default_rng(seed)).ravel()
        assert drawn[0] != drawn[1]
        if drawn[0] == 0:
            seconds.append(drawn[1])
    assert abs(np.mean(np.array(seconds) == 3) - 0.9) < 0.06  # 9 / (1 + 9); a standard deviation is .017
    assert len(plus_plus(x[:2], 2, np.random.default_rng(0))) == 1  # a copy is no second centre


@pytest.mark.parametrize("seed", slow_but([0], range(5)))
def test_planted_rotations_are_found_by_the_clients_means(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=40, seed=seed)
    found = begun(federation, lambda: mlp(64, 10), clusters=4)
    assert adjusted_rand_index(federation.true_cluster, found) == 1


def test_clients_draw_by_the_runs_seed(monkeypatch):
    drawn = []
    monkeypatch.setattr(kfed, "awasthi_sheffet", lambda x, k, draws: drawn.append(draws.integers(1 << 60)) or x[:k])
    for seed in (0, 1):
        with engine(federation=uneven((5, 6)), seed=seed) as used:
            KFED(clusters=1).begin(loop.context(used))
    assert drawn[0] != drawn[2]


def test_copies_make_fewer_clusters():
    federation = Federation.from_arrays(np.ones((6, 2)), np.zeros(6, int), np.repeat([0, 1, 2], 2))
    for k, own in ((3, 1), (3, 2)):
        assert begun(federation, lambda: mlp(2), clusters=k, local_clusters=own).tolist() == [0, 0, 0]


def test_what_it_refuses():
    with engine(federation=uneven((5,) * 3)) as used:
        context = loop.context(used)
        with pytest.raises(UserError, match="3 centres of each client for 2 clusters in all; allowed: 1 to 2"):
            prepared(KFED(clusters=2, local_clusters=3), context)
    words = noise((8, 9), (6,), dtype=np.int16)
    assert words.words and not uneven((5,)).words
    (problem,) = KFED(clusters=2).check(Known(context.training, 3, words=True))
    assert "such as ifca, clove or lcfl" in problem.sentence


@pytest.mark.parametrize("dataset", ["agnews-test", "shakespeare-tiny"])
def test_words_are_refused_when_settings_are_checked(dataset):
    settings_ = copy.deepcopy(tiny())
    settings_["federations"]["text"] = {
        "dataset": dataset, "partition": {"scheme": "iid", "clients": 4}, "model": {"model": "textcnn"}
    }  # fmt: skip
    settings_["methods"]["k-fed"] = {"method": "k-fed", "clusters": 2}
    with pytest.raises(UserError) as said:
        loading.load(settings_)
    assert "methods.k-fed: k-means takes means of samples" in str(said.value)
    assert "(federation 'text')" in str(said.value) and "(federation 'digits')" not in str(said.value)
