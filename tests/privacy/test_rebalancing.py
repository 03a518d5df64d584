"""What every rebalanced round keeps to, and that the draw is uniform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterfl.errors import UserError
from clusterfl.privacy import rebalance


@st.composite
def rounds(draw):
    k = draw(st.integers(1, 6))
    labels = np.array(draw(st.lists(st.integers(0, k - 1), min_size=1, max_size=60)))
    return labels, k, draw(st.integers(0, len(labels) // k)), draw(st.integers(0, 2**32))


@given(rounds())
def test_invariants(round_):
    labels, k, minimum, seed = round_
    given_labels = labels.copy()
    found = rebalance(labels, k, minimum, np.random.default_rng(seed))
    before, after = np.bincount(labels, minlength=k), np.bincount(found, minlength=k)
    np.testing.assert_array_equal(labels, given_labels)
    assert len(found) == len(labels) == after.sum()
    assert after.min() >= minimum and after.max() <= len(labels) - (k - 1) * minimum
    np.testing.assert_array_equal(after[before < minimum], minimum)
    np.testing.assert_array_equal(before[after > before], np.minimum(before, minimum)[after > before])
    assert (after[before >= minimum] >= minimum).all()  # no donor is pushed below
    assert (found != labels).sum() == np.maximum(minimum - before, 0).sum()  # each move at most once, none in vain
    assert (before[labels[found != labels]] > minimum).all()


def test_a_case_by_hand():
    """Three of four must leave the only large cluster; two go to 1, one to 2."""
    found = rebalance([0, 0, 0, 0, 0, 2], 3, 2, np.random.default_rng(0))
    assert np.bincount(found).tolist() == [2, 2, 2] and found[5] == 2


def test_uniform_over_the_pooled_surplus():
    """Clusters of 5 and 3 offer 3 and 1 with a minimum of 2; one of these four moves: each of the 5 with 3/20."""
    labels = np.repeat([0, 1, 2], [5, 3, 1])
    moved = np.zeros(9)
    for seed in range(4000):
        moved += rebalance(labels, 3, 2, np.random.default_rng(seed)) != labels
    expected = np.array([3 / 20] * 5 + [1 / 12] * 3 + [0])
    assert np.abs(moved / 4000 - expected).max() < 4 * np.sqrt(0.15 * 0.85 / 4000)


def test_nothing_is_drawn_where_nothing_is_missing():
    generator = np.random.default_rng(0)
    rebalance([0, 1, 1], 2, 1, generator)
    assert generator.random() == np.random.default_rng(0).random()


def test_one_client_more_may_change_three_sums():
    """docs/privacy.md: it joins a cluster that has just the minimum, of which then another member moves.

    Clip 1, minimum 2: cluster 0 has -1, -1; 1 has 1, 1, 1; 2 has one update. One of 1 must move to 2. With a 1 more in
    0, a -1 of 0 may move instead: the sums change by 2, 1 and -2.
    """
    updates, labels = np.array([-1, -1, 1, 1, 1, 0, 1.0]), np.array([0, 0, 1, 1, 1, 2, 0])

    def sums(clients, seed):
        found = rebalance(labels[:clients], 3, 2, np.random.default_rng(seed))
        return np.bincount(found, updates[:clients], minlength=3)

    without = {tuple(sums(6, seed)) for seed in range(50)}
    assert without == {(-2, 2, 1)}
    shifts = [np.linalg.norm(sums(7, seed) - [-2, 2, 1]) for seed in range(50)]
    assert max(shifts) == 3 > np.sqrt(5)


def test_too_few_updates_are_reported():
    with pytest.raises(
        UserError, match=r"2 updates for each of 3 clusters need 6 participants, a round has 5; allowed: 0 to 1"
    ):
        rebalance([0, 0, 0, 1, 2], 3, 2, np.random.default_rng(0))
