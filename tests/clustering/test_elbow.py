"""Kneedle: curves whose elbow shows by hand, and steps that are no elbow."""

from __future__ import annotations

import numpy as np
import pytest

from clusterfl.clustering.elbow import elbow


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ([1, 1.1, 1.2, 1.3, 9], 3),  # flat, then a jump
        ([0, 0, 0, 0, 1, 2, 3, 4], 3),  # a bend of two lines
        ([0, 1, 2, 3], 3),  # none: a line is nowhere below itself
        ([2, 2, 2], 2),
        ([5], 0),
        ([1, 4], 1),
    ],
)
def test_by_hand(values, index):
    assert elbow(np.array(values, dtype=float)) == index


def test_of_two_bends_the_first_from_the_far_end_counts():
    """Slopes 1/4, 1 and 6: from its end the curve leaves the line of its ends until the second bend."""
    values = np.concatenate([np.arange(5) / 4, 1 + np.arange(1, 5), 5 + 6 * np.arange(1, 4)]).astype(float)
    away = np.linspace(0, 1, len(values)) - values / values[-1]
    assert elbow(values) == int(np.argmax(away)) == 8


def test_scale_and_origin_change_nothing():
    values = np.sort(np.random.default_rng(0).exponential(size=30))
    assert elbow(values) == elbow(3 * values + 7)
