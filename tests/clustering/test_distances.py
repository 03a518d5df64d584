"""Distances: by hand on two clients, and the properties a distance has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matrices import taken
from scipy.spatial.distance import cdist

from clusterfl.clustering.distances import (
    METRICS,
    check_distance,
    cosine_distance,
    cross_loss_distance,
    loss_distance,
    parameter_distance,
)
from clusterfl.errors import UserError

MATRIX = arrays(np.float64, (4, 4), elements=st.floats(0, 10))
# L_i(w_j): client 0 loses 1 on its own model and 5 on client 1's; client 1 loses 2 on its own and 4 on client 0's.
LOSSES = np.array([[1.0, 5.0], [4.0, 2.0]])


def test_loss_distance_by_hand():
    """|5 - 1| + |4 - 2| = 6."""
    assert loss_distance(LOSSES).tolist() == [[0, 6], [6, 0]]


def test_cross_loss_distance_by_hand():
    """|L_0(w_0) - L_1(w_0)| + |L_0(w_1) - L_1(w_1)| = |1 - 4| + |5 - 2| = 6; with L_0(w_1) = 0 it is 3 + 2 = 5."""
    assert cross_loss_distance(LOSSES).tolist() == [[0, 6], [6, 0]]
    assert cross_loss_distance([[1.0, 0.0], [4.0, 2.0]]).tolist() == [[0, 5], [5, 0]]


@given(MATRIX)
@settings(deadline=None)
def test_formulas_against_the_obvious_loops(losses):
    m = len(losses)
    eq2, eq6 = np.zeros((m, m)), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            eq2[i, j] = abs(losses[i, j] - losses[i, i]) + abs(losses[j, i] - losses[j, j])
            eq6[i, j] = abs(losses[i, i] - losses[j, i]) + abs(losses[i, j] - losses[j, j])
    np.testing.assert_allclose(loss_distance(losses), eq2, atol=1e-12)
    np.testing.assert_allclose(cross_loss_distance(losses), eq6, atol=1e-12)


@given(MATRIX, st.permutations(range(4)))
@settings(deadline=None)
def test_properties(values, order):
    """Symmetric, zero diagonal, and renaming clients renames the distances."""
    for name in METRICS:
        metric = METRICS[name]
        distance = metric(taken(name, values))
        check_distance(distance)
        if METRICS.input(name) == "losses":
            np.testing.assert_allclose(metric(values[np.ix_(order, order)]), distance[np.ix_(order, order)], atol=1e-12)
        else:
            renamed = metric(taken(name, values[list(order)]))
            np.testing.assert_allclose(renamed, distance[np.ix_(order, order)], atol=1e-12)


def test_the_loss_distance_violates_the_triangle_inequality():
    """Against LCFL's Sec. II-A, although everybody's own model is best on its data: 0 and 0 away, but 2 apart."""
    distance = loss_distance(np.array([[0.0, 0, 1], [0, 0, 0], [1, 0, 0]]))
    assert distance.tolist() == [[0, 0, 2], [0, 0, 0], [2, 0, 0]]


def test_vectors_against_scipy():
    rows = np.random.default_rng(0).normal(size=(7, 30))
    np.testing.assert_allclose(parameter_distance(rows), cdist(rows, rows), atol=1e-12)
    np.testing.assert_allclose(cosine_distance(rows), cdist(rows, rows, "cosine"), atol=1e-12)
    assert cosine_distance([[0.0, 0.0], [1.0, 2.0]]).tolist() == [[0, 1], [1, 0]]  # a zero row is at distance 1


@pytest.mark.parametrize("metric", ["parameters", "gradient-cosine"])
@pytest.mark.parametrize(
    "chosen, reads",
    [
        (None, [(0, 2), (2, 4), (4, 5), (2, 4), (4, 5), (4, 5)]),  # every two blocks once; with itself it is read once
        (np.array([0, 3, 4]), [[0, 3], (0, 2), (2, 4), (4, 5), [4], (0, 2), (2, 4), (4, 5)]),
    ],
)
def test_long_rows_are_read_a_block_at_a_time(metric, chosen, reads, monkeypatch):
    """Five rows of three numbers, of which two fit in a block as float64."""

    class Reads:
        def __init__(self, rows):
            self.rows, self.found = rows, []

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, place):
            self.found.append((place.start, place.stop) if isinstance(place, slice) else place.tolist())
            return self.rows[place]

    monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", 2 * 3 * 8)
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    values = Reads(rows)
    found = METRICS[metric](values, chosen)
    assert [place for place in values.found if place != (None, 1)] == reads  # the first row says how long rows are
    np.testing.assert_array_equal(found, METRICS[metric](rows)[:, slice(None) if chosen is None else chosen])


def test_result_is_of_the_kind_of_the_input():
    for name in METRICS:
        assert isinstance(METRICS[name](taken(name, LOSSES)), np.ndarray)
        if METRICS.input(name) == "samples":
            continue  # of which there is one kind
        found = METRICS[name](torch.as_tensor(LOSSES))
        assert isinstance(found, torch.Tensor) and found.dtype == torch.float64


@pytest.mark.parametrize(
    "matrix, words",
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros((3, 2)), "square"),
        (np.array([[0, np.nan], [np.nan, 0]]), "clients 0 and 1 is nan"),
        (np.array([[0, 1.0], [2, 0]]), "client 0 is 1.0 from client 1, and that one 2.0 from it"),
        (np.array([[0, -1.0], [-1, 0]]), "between clients 0 and 1 is -1.0; none is negative"),
        (np.array([[0, 1.0], [1, 0.5]]), "client 1 from itself is 0.5; it has to be 0"),
    ],
)
def test_wrong_matrices_are_reported(matrix, words):
    with pytest.raises(UserError, match=words):
        check_distance(matrix)


def test_wrong_distances_to_landmarks_are_reported():
    """Of five clients the second and the fifth are landmarks, whom the columns are of."""
    far = np.array([[1.0, 2.0], [0.0, 3.0], [1.0, 2.0], [1.0, 2.0], [4.0, 0.0]])
    with pytest.raises(UserError, match=r"client 1 is 3.0 from client 4, and that one 4.0 from it"):
        check_distance(far, np.array([1, 4]))
    far[4] = [3.0, 0.0]
    check_distance(far, np.array([1, 4]))
    far[2, 1] = -1
    with pytest.raises(UserError, match=r"between clients 2 and 4 is -1.0"):
        check_distance(far, np.array([1, 4]))
