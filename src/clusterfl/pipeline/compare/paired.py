"""Paired differences: their mean, an interval of it, and what that says. Nothing here is drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
INTERVAL = "Student's t of the paired differences, n - 1 degrees of freedom"
EQUAL, ONE, NONE, OPEN = "equal", "one pair: no interval", "no pair", "undecided"
HIGHER, LOWER = "B higher", "B lower"


@dataclass(frozen=True)
class Paired:
    """The differences B - A of n pairs: their mean, and the ends of its interval where there are two pairs or more."""

    pairs: int
    mean: float | None
    low: float | None
    high: float | None
    verdict: str


def paired(differences: Sequence[float]) -> Paired:
    """Return mean, interval and verdict of paired differences, all of them finite.

    With d the mean of n differences and s their standard deviation (n - 1 in the denominator) the interval is
    d ± t s / √n, t the quantile of Student's t of n - 1 degrees of freedom that leaves half of 1 - `LEVEL` above it.
    """
    values, n = np.asarray(differences, dtype=np.float64), len(differences)
    if n == 0:
        return Paired(0, None, None, None, NONE)
    mean = float(values.mean())
    if n == 1:
        return Paired(1, mean, None, None, EQUAL if mean == 0 else ONE)
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * float(values.std(ddof=1)) / n**0.5
    low, high = mean - reach, mean + reach
    return Paired(n, mean, low, high, _verdict(values, low, high))


def _verdict(values: np.ndarray, low: float, high: float) -> str:
    if not values.any():
        return EQUAL
    if low <= 0 <= high:
        return OPEN
    return HIGHER if low > 0 else LOWER
