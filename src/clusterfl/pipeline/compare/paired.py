"""Paired differences: their mean, its interval, and the verdict. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...metrics import interval

INTERVAL = "Student's t of the paired differences, n - 1 degrees of freedom"
EQUAL, ONE, NONE, OPEN = "equal", "one pair: no interval", "no pair", "undecided"
HIGHER, LOWER = "B higher", "B lower"


@dataclass(frozen=True)
class Paired:
    """The differences B - A of n pairs: their mean, and the bounds of its interval if there are at least two pairs."""

    pairs: int
    mean: float | None
    low: float | None
    high: float | None
    verdict: str


def paired(differences: Sequence[float]) -> Paired:
    """Return mean, interval (see `metrics.interval`) and verdict of paired differences, which must be finite."""
    n = len(differences)
    if n == 0:
        return Paired(0, None, None, None, NONE)
    mean, low, high = interval(differences)
    if n == 1:
        return Paired(1, mean, None, None, EQUAL if mean == 0 else ONE)
    return Paired(n, mean, low, high, _verdict(differences, low, high))


def _verdict(values: Sequence[float], low: float, high: float) -> str:
    if not any(values):
        return EQUAL
    if low <= 0 <= high:
        return OPEN
    return HIGHER if low > 0 else LOWER
