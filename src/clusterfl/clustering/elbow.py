"""Where a rising curve bends: Kneedle (Satopää, Albrecht, Irwin and Raghavan, ICDCS Workshops 2011)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def elbow(values: NDArray[np.float64]) -> int:
    """Return the index of the elbow of ``values [n]``, a rising convex curve, by Kneedle with sensitivity 1.

    Flipped, the curve is concave. Its difference to the straight line between its ends is followed from the far end:
    the elbow is the first maximum from which the difference falls by more than one step of the line, or, after a
    minimum, below 0. If there is none, it is the largest difference; of equal ones the last index.
    """
    n = len(values)
    if n < 3 or values[0] == values[-1]:
        return n - 1
    seen = np.flip((values[-1] - values) / (values[-1] - values[0]))
    away = seen - np.linspace(0, 1, n)
    before, after = np.append(away[0], away[:-1]), np.append(away[1:], away[-1])
    highs, lows = (away >= before) & (away >= after), (away <= before) & (away <= after)
    found, threshold = -1, -np.inf
    for i in range(int(np.argmax(highs)), n - 1):
        if highs[i]:
            found, threshold = i, away[i] - 1 / (n - 1)
        if lows[i]:
            threshold = 0.0
        if away[i + 1] < threshold:
            return n - 1 - found
    return n - 1 - int(np.argmax(away))
