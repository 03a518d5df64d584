"""FlexCFL: its description of updates by hand and against scikit-learn, cold start and newcomers, planted rotations."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import engine, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity
from torch import nn

from clusterfl import api
from clusterfl.clustering.directions import decomposed_cosines
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged
from clusterfl.methods.flexcfl import FlexCFL, grouped
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record
from clusterfl.simulation.survey import Survey
from clusterfl.storage.row_store import RowStore

EIGHT = (40,) * 8


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def test_cosines_by_hand():
    """Updates (3, 0), (6, 0) and (0, 2): the main directions are the two axes, the first one longer.

    A sum of both, (3, 4), has the cosines .6 and .8 to two axes.
    """
    found = decomposed_cosines(np.array([[3.0, 0], [6, 0], [0, 2]]), 2)
    np.testing.assert_allclose(found, [[1, 0], [1, 0], [0, 1]], atol=1e-12)
    third = decomposed_cosines(np.array([[100.0, 0], [0, 50], [0.3, 0.4]]), 2)[2]
    np.testing.assert_allclose(third, [0.6, 0.8], atol=1e-3)
    np.testing.assert_allclose(decomposed_cosines(np.array([[1.0, 1], [2, 2], [0, 0]]), 2), [[1], [1], [0]])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(4, 12), k=st.integers(1, 3))
def test_cosines_are_scikit_learns(seed, m, k):
    """The released core: a truncated decomposition of the updates as columns, then cosines to its scaled directions."""
    draw = np.random.default_rng(seed)
    deltas = draw.normal(size=(m, 3)) @ np.diag([9, 3, 1]) @ np.linalg.qr(draw.normal(size=(200, 3)))[0].T
    directions = TruncatedSVD(k, algorithm="arpack", random_state=0).fit_transform(deltas.T)
    expected = cosine_similarity(deltas, directions.T)
    np.testing.assert_allclose(np.abs(decomposed_cosines(deltas, k)), np.abs(expected), atol=1e-6)


def test_cold_start_is_the_slow_loop():
    """Each client's update of 7 steps from the initial model; groups' models are plain means of what they trained."""
    with engine(federation=uneven((3, 10, 25, 7, 16, 40)), rounds=0) as used:
        method = FlexCFL(clusters=2, pretraining=7)
        state = method.begin(loop.context(used))
        initial, few = used.initial(0), Training(steps=7, epochs=None)
        rows = [Survey(used).updates(initial, np.array([i]), few).rows[0].double() for i in range(6)]
    vectors = decomposed_cosines(torch.stack(rows), 2)
    assert state.labels.tolist() == grouped(vectors, 2, 10, 3).tolist()
    for k in range(2):
        mean = torch.stack([rows[i] for i in np.flatnonzero(state.labels == k)]).mean(0)
        torch.testing.assert_close(state.theta[k].double(), initial.double() + mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(state.own.first[k].double(), mean, rtol=0, atol=1e-6)


def test_who_was_not_sampled_joins_the_nearest_when_first_drawn():
    """One client for each group trains before round 1; the others are asked once each, and stay where they are put."""
    federation = uneven((40,) * 12)
    seen, joined = [], {}

    def observe(round_, state, update):
        for client in np.flatnonzero(state.labels >= 0):
            assert joined.setdefault(client, state.labels[client]) == state.labels[client]
        seen.append(set(joined))

    with engine(federation=federation, rounds=6, participation=0.25, epochs=1) as used:
        method = FlexCFL(clusters=2, sampled=1, pretraining=9)
        before = np.flatnonzero(method.begin(loop.context(used)).labels >= 0)
        state, record = loop.run(method, loop.context(used), used, observe=observe)
        initial, few, size = used.initial(0), Training(steps=9, epochs=None), 4 * used.layout.columns
        rows = Survey(used).updates(initial, np.arange(12), few).rows[:].double().numpy()
    rounds = Record.table(record.rounds)
    assert len(before) == 2 and len(seen[0]) > 2 and len(seen[-1]) > len(seen[0])
    counts = np.diff([2, *map(len, seen)])
    counts[0] += 2  # those before round 1 are recorded with it
    np.testing.assert_array_equal(rounds["bytes_down"], size * (3 + counts))
    np.testing.assert_array_equal(rounds["bytes_up"], size * (3 + counts))
    steps = 4 * 3
    np.testing.assert_array_equal(rounds["local_steps"], steps + 9 * counts)
    first = state.own.first[:].double().numpy()
    for client in set(joined) - set(before.tolist()):
        cosines = cosine_similarity(rows[client : client + 1], first)[0]
        assert state.labels[client] == cosines.argmax()
    assert (state.labels[sorted(set(range(12)) - set(joined))] == -1).all()


def test_nobody_joins_a_group_that_is_empty():
    """The only group that somebody is in is as far as can be, at cosine -1; of an empty one there is no direction."""
    own = SimpleNamespace(first=torch.tensor([[0.0, 0], [2, 0]]))
    update = SimpleNamespace(clients=np.array([4]), rows=torch.tensor([[-1.0, 0]]), dropped=np.array([False]))
    found = FlexCFL(clusters=2)._nearest(SimpleNamespace(parameter_columns=2), SimpleNamespace(own=own), update)
    assert found.tolist() == [1]


@pytest.mark.parametrize("seed", range(5))
def test_planted_rotations_are_found(seed, tmp_path, monkeypatch):
    """The default study's federation: 40 clients, four rotations, and its network."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=40, seed=seed)
    with engine(network, federation, seed=seed, rounds=1) as used:
        state = FlexCFL(clusters=4).begin(loop.context(used))
    assert adjusted_rand_index(federation.true_cluster, state.labels) == 1


def test_one_group_and_more_groups_than_directions():
    with engine(federation=uneven(EIGHT), rounds=1) as used:
        assert FlexCFL(clusters=1).begin(loop.context(used)).labels.tolist() == [0] * 8
        assert len(set(FlexCFL(clusters=8).begin(loop.context(used)).labels)) <= 8
    with engine(federation=uneven((5,) * 4, groups=1), rounds=1, learning_rate=1e-30) as used:
        state = FlexCFL(clusters=3).begin(loop.context(used))  # nobody has learned anything: all updates are zero
    assert state.labels.tolist() == [0] * 4 and torch.equal(state.theta[1], state.theta[2])


def test_rows_in_files_give_the_same_bits(monkeypatch):
    found = []
    for bytes_ in (1 << 30, 1):
        monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", bytes_)
        with engine(federation=uneven(EIGHT), rounds=2, epochs=1) as used:
            state, _ = loop.run(FlexCFL(clusters=2), loop.context(used), used)
            assert isinstance(state.own.first, RowStore) == (bytes_ == 1)
            found.append((state.theta[:].clone(), state.own.first[:].clone(), state.labels))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][2], found[1][2])


def test_diverging_before_the_first_round_is_reported_or_left_out():
    settings_ = {"federation": uneven((40,) * 6), "rounds": 2, "epochs": 1, "largest_update": 1e-9}
    with (
        engine(**settings_) as used,
        pytest.raises(Diverged, match=r"asked for apart from rounds, .* set diverged: exclude"),
    ):
        loop.run(FlexCFL(clusters=2), loop.context(used), used)
    with engine(**settings_, diverged="exclude") as used:
        state, record = loop.run(FlexCFL(clusters=2), loop.context(used), used)
        assert (state.labels == -1).all() and torch.equal(state.theta[0], used.initial(0))
    assert Record.table(record.rounds)["excluded"].tolist() == [6, 6]
