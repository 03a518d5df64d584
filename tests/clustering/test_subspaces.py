"""Angles between clients' subspaces: by hand, against SciPy, against the obvious loop, and what depends on a sign."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from threadpoolctl import threadpool_limits

from clusterfl.clustering.subspaces import angles, basis, principal_angles

SEEDS = st.integers(0, 2**32 - 1)


def planes(seed, clients=5, d=12, q=3):
    return [np.random.default_rng([seed, i]).normal(size=(d, q + i % 2)) for i in range(clients)]


def test_by_hand():
    """The x axis, the diagonal of the plane, its opposite, and the z axis: 45, 135 and 90 degrees from the first.

    A span has no direction, so the opposite of the diagonal is 45 degrees from the x axis, too.
    """
    ways = [
        np.array([w], dtype=float).T for w in ([1, 0, 0], np.sqrt([0.5, 0.5, 0]), -np.sqrt([0.5, 0.5, 0]), [0, 0, 1])
    ]
    np.testing.assert_allclose(angles(ways, "pairs")[0], [0, 45, 135, 90])
    np.testing.assert_allclose(angles(ways, "smallest")[0], [0, 45, 45, 90])
    plane = np.eye(3)[:, :2]  # which the diagonal lies in, though it is 45 degrees from both of its vectors
    assert angles([plane, ways[1]], "pairs")[0, 1] == pytest.approx(45)
    assert angles([plane, ways[1]], "smallest")[0, 1] == pytest.approx(0, abs=1e-5)


def test_a_basis_by_hand():
    """Class 0 has two samples along x and one of length 1 along y; class 2 one sample, so one vector of it."""
    x = np.array([[3.0, 0, 0], [0, 0, 5], [4, 0, 0], [0, 1, 0]])
    found = basis(x, np.array([0, 2, 0, 0]), 2)
    np.testing.assert_allclose(np.abs(found), [[1, 0, 0], [0, 1, 0], [0, 0, 1]], atol=1e-15)
    np.testing.assert_allclose(np.abs(basis(x, np.array([0, 2, 0, 0]), 1)), [[1, 0], [0, 0], [0, 1]], atol=1e-15)
    assert basis(x, np.array([0.5, 2.5, 0.1, 7.0]), 2).shape == (3, 2)  # real targets are no classes
    assert basis(np.repeat(x[:1], 4, axis=0), np.zeros(4, int), 3).shape == (3, 1)  # four times one sample: one way


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_the_smallest_is_scipys(seed):
    found, spans = angles(planes(seed), "smallest"), planes(seed)
    for i in range(5):
        for j in range(5):
            expected = 0 if i == j else np.degrees(subspace_angles(spans[i], spans[j])[-1])
            assert found[i, j] == pytest.approx(expected, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_pairs_are_the_obvious_loop(seed):
    spans = [vectors / np.linalg.norm(vectors, axis=0) for vectors in planes(seed)]
    found = angles(spans, "pairs")
    for i, j in ((0, 1), (3, 2)):
        every = [np.degrees(np.arccos(np.dot(u, v))) for u in spans[i].T for v in spans[j].T]
        assert found[i, j] == pytest.approx(min(every), abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, flips=st.lists(st.booleans(), min_size=3, max_size=3))
def test_only_pairs_depend_on_signs(seed, flips):
    spans = planes(seed, q=3)
    turned = [spans[0] * np.where(flips, -1.0, 1.0), *spans[1:]]
    np.testing.assert_allclose(angles(turned, "smallest"), angles(spans, "smallest"), atol=1e-5)
    one, other = (angles([s / np.linalg.norm(s, axis=0) for s in each], "pairs") for each in (spans, turned))
    assert (one == other).all() or any(flips)


def test_signs_do_change_the_released_angle():
    one, other = np.array([[1.0], [0.0]]), np.array([[0.8], [0.6]])
    assert angles([one, other], "pairs")[0, 1] < 90 < angles([one, -other], "pairs")[0, 1]


@pytest.mark.parametrize("angle", ["smallest", "pairs"])
def test_columns_symmetry_and_zeros(angle):
    spans = planes(3)
    whole = angles(spans, angle)
    assert (whole == whole.T).all() and not np.diag(whole).any()
    np.testing.assert_array_equal(angles(spans, angle, np.array([1, 4])), whole[:, [1, 4]])
    nothing = principal_angles([(np.zeros((4, 3)), np.zeros(4, int)), (np.eye(3), np.zeros(3, int))], angle="smallest")
    assert nothing.tolist() == [[0, 90], [90, 0]]


def test_threads_change_no_bit():
    draw = np.random.default_rng(0)
    samples = [(draw.random((300, 200)).astype(np.float32), draw.integers(0, 3, 300)) for _ in range(3)]
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(principal_angles(samples))
    np.testing.assert_array_equal(*found)
