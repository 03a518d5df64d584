"""How far all judged numbers are from print, in joint standard errors, and how far chance alone would put them.

If ours and print were means of draws from one distribution, (ours - print) / joint standard error would be about
standard normal, a little wider with three seeds. Left out are numbers that repeat another, that can't differ, and
whose joint standard error is unknown or zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from .verdicts import CLOSE, FREE

TAIL = 2.0  # joint standard errors, as in the rule of `verdicts`
NAMED = 12  # numbers in the tails that the sentence names, the furthest first
Row = Mapping[str, Any]


def judged(rows: Sequence[Row]) -> tuple[list[str], NDArray[np.float64], int]:
    """Return the claims that have a standardised difference, the differences [n] in order, and how many have none."""
    own = [row for row in rows if row["verdict"] in FREE and not _repeats(str(row["note"]))]
    found = sorted((float(row["standardised"]), str(row["claim_id"])) for row in own if _finite(row["standardised"]))
    return [name for _, name in found], np.array([z for z, _ in found], dtype=np.float64), len(own) - len(found)


def tails(z: NDArray[np.float64]) -> list[int]:
    """Return the positions of the differences ``z [n]`` beyond `TAIL`, the furthest first; rounding puts none there."""
    return [int(i) for i in np.argsort(-np.abs(z), kind="stable") if abs(z[i]) > TAIL + CLOSE]


def _repeats(note: str) -> bool:
    return any(part.startswith("repeats ") for part in note.split("; "))


def _finite(value: Any) -> bool:
    return math.isfinite(float(value))


def sentence(rows: Sequence[Row]) -> str:
    """Return mean, deviation and tails of the standardised differences, each with the standard normal's."""
    names, z, without = judged(rows)
    if not len(z):
        return "No judged number has a joint standard error."
    far = tails(z)
    share = float(erfc(TAIL / math.sqrt(2)))
    spread = f", standard deviation {np.std(z, ddof=1):.2f} (normal: 1)" if len(z) > 1 else ""
    listed = ", ".join(f"{names[i]} {z[i]:+.1f}" for i in far[:NAMED])
    more = f" and {len(far) - NAMED} more" if len(far) > NAMED else ""
    return (
        f"(ours - print) / joint standard error, of {len(z)} judged numbers ({without} more have none: a side is "
        f"empty, neither varies, or no deviation is known): mean {np.mean(z):+.2f} (normal: 0){spread}; beyond "
        f"±{TAIL:.0f}: {len(far)} (normal: {share * len(z):.1f})" + (f". Tails: {listed}{more}." if far else ".")
    )
