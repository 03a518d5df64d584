"""PACFL: by hand, against the slow merging of its released code, planted rotations, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import engine, mlp, noise, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import merged

from clusterfl import api
from clusterfl.clustering.subspaces import angles
from clusterfl.data.federation import Federation
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.pacfl import PACFL
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, prepared


def begun(federation, **options):
    with engine(lambda: mlp(federation.splits["train"].pool.x.shape[1]), federation) as used:
        return METHODS["pacfl"](**options).begin(loop.context(used))


def test_by_hand():
    """Clients whose samples lie along one line each, at 5, 15, 35 and 37 degrees of a plane.

    The last two merge at 2, the first two at 10; then the clusters are ((30 + 32) / 2 + (20 + 22) / 2) / 2 = 26 apart.
    """
    ways = np.radians([5, 15, 35, 37])
    x = np.repeat(np.column_stack([np.cos(ways), np.sin(ways)]), 3, axis=0) * np.tile([1, 2, 3], 4)[:, None]
    federation = Federation.from_arrays(x, np.zeros(12, int), np.repeat(np.arange(4), 3))
    expected = {1: [0, 1, 2, 3], 2.1: [0, 1, 2, 2], 10.1: [0, 0, 1, 1], 25.9: [0, 0, 1, 1], 26.1: [0, 0, 0, 0]}
    for angle in ("pairs", "smallest"):
        found = {t: begun(federation, threshold=t, angle=angle).labels.tolist() for t in expected}
        assert found == expected, angle
    state = begun(federation, clusters=2)
    assert state.labels.tolist() == [0, 0, 1, 1] and torch.equal(state.theta[0], state.theta[1])


def test_linkages_by_hand():
    """Lines at 0, 40 and 75 degrees: the last two merge at 35; the first is 40, (40 + 75) / 2 or 75 from both."""
    ways = np.radians([0, 40, 75])
    x = np.repeat(np.column_stack([np.cos(ways), np.sin(ways)]), 2, axis=0)
    federation = Federation.from_arrays(x, np.zeros(6, int), np.repeat(np.arange(3), 2))
    for linkage, far in (("single", 40), ("weighted", 57.5), ("complete", 75)):
        found = [
            begun(federation, threshold=t, angle="smallest", linkage=linkage).labels.tolist()
            for t in (34.9, 35.1, far - 0.1, far + 0.1)
        ]
        assert found == [[0, 1, 2], [0, 1, 1], [0, 1, 1], [0, 0, 0]], linkage


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1), angle=st.sampled_from(["pairs", "smallest"]))
def test_it_is_the_slow_loop(seed, share, angle):
    federation = uneven((9, 12, 15, 3, 8, 20), features=40, seed=seed)
    data = federation.splits["train"]
    bases = []
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        x, y = data.pool.x[data.rows[first:last]].astype(float), data.y[first:last]
        bases.append(np.hstack([np.linalg.svd(x[y == c].T, full_matrices=False)[0][:, :2] for c in np.unique(y)]))
    distance = angles(bases, angle)
    cut = distance[distance > 0].min() + share * np.ptp(distance[distance > 0])
    found = begun(federation, threshold=cut, vectors=2, angle=angle).labels
    assert found.tolist() == merged(distance, "weighted", cut).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_planted_rotations_are_found(seed, tmp_path, monkeypatch):
    """The default study's federation: 40 clients, four rotations; by their number and by degrees."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=40, seed=seed)
    for options in ({"clusters": 4}, {"threshold": 15.5}):
        found = begun_of_pictures(federation, **options)
        assert adjusted_rand_index(federation.true_cluster, found) == 1


def begun_of_pictures(federation, **options):
    with engine(lambda: mlp(64, 10), federation) as used:
        return PACFL(**options).begin(loop.context(used)).labels


def test_clusters_then_train_as_the_oracle_of_these_groups():
    federation = uneven((30, 31, 25, 40), features=12, classes=3)
    with engine(lambda: mlp(12), federation, rounds=3, epochs=1, participation=0.5) as used:
        state, _ = loop.run(PACFL(clusters=2), loop.context(used), used)
    grouped = replace(federation, true_cluster=state.labels)
    with engine(lambda: mlp(12), grouped, rounds=3, epochs=1, participation=0.5) as used:
        oracle, _ = loop.run(METHODS["oracle"](), loop.context(used), used)
    assert torch.equal(state.theta, oracle.theta) and len(np.unique(state.labels)) == 2


def test_words_have_angles_too():
    """As CLoVE's tables have it on AG News; what they are worth is another matter."""
    federation = noise((8, 9, 10), (6,), dtype=np.int16)
    with engine(lambda: Words(), federation) as used:
        assert len(PACFL(clusters=2).begin(loop.context(used)).labels) == 3


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.words(x).mean(1))


@pytest.mark.parametrize(
    ("options", "clients", "says"),
    [
        ({}, 4, "threshold: found neither threshold nor clusters; give one: degrees"),
        ({"threshold": 5, "clusters": 2}, 4, "threshold: found both threshold and clusters; give one: degrees"),
        ({"clusters": 5}, 4, "clusters: 5 clusters for 4 clients; allowed: 1 to 4"),
        ({"threshold": 5}, 30_000, "30000 clients are too many to compare all with all"),
    ],
)
def test_what_it_refuses(options, clients, says):
    with engine(federation=uneven((5,) * 4)) as used:
        context = loop.context(used)
    problems = PACFL(**options).check(Known(context.training, clients))
    found = [f"{key}: {words}" if key else words for key, words in problems]
    assert any(says in line for line in found), found
    if clients == 4:
        with pytest.raises(UserError, match=r"give one|allowed"):
            prepared(PACFL(**options), context)
