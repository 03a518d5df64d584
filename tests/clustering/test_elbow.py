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


def test_a_bend_counts_from_which_the_curve_falls_by_more_than_a_step():
    """From the far end .40, .42, .90 and .95 of the way after 1, 2, 3 and 4 of 5 steps, .20, .02, .30 and .15 above the
    line. A fall by .18 is less than the step of .20, so the second bend is the elbow. In sixteenths 4, 4, 12, 13, ...
    after 1, 2, 3, 4, ... of 8 steps of 2, so 2, 0, 6, 5, ... above: a fall by just a step isn't more.
    """
    assert elbow(np.array([0, 5, 10, 58, 60, 100.0])) == 2
    assert elbow(np.array([0, 0, 1, 2, 3, 4, 12, 12, 16.0])) == 5


def test_after_a_minimum_it_is_enough_to_be_below_the_line():
    """In eighths 0, 0, 3, 7, 8 from the far end, of steps of 2: 0, -2, -1, 1, 0 above the line. The end is a maximum,
    and -2 is no more than a step below it; after that minimum -1 is below 0.
    """
    assert elbow(np.array([0, 1, 5, 8, 8.0])) == 4


def test_scale_and_origin_change_nothing():
    values = np.sort(np.random.default_rng(0).exponential(size=30))
    assert elbow(values) == elbow(3 * values + 7)
