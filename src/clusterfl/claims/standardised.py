"""How far ours are from print in joint standard errors, over all judged numbers, beside what chance alone would do.

If ours and print were two draws of the same, (ours - print) / joint standard error would be about normal, a little
wider with three seeds. Numbers that repeat another, that can't differ, and of which neither side varies are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from .verdicts import FREE

TAIL = 2.0  # joint standard errors: the rule's
NAMED = 12  # of the tails, in a sentence: the furthest
Row = Mapping[str, Any]


def judged(rows: Sequence[Row]) -> tuple[list[str], NDArray[np.float64], int]:
    """Return the claims that have a standardised difference, those [n] in order, and how many have no error."""
    own = [row for row in rows if row["verdict"] in FREE and not _repeats(str(row["note"]))]
    found = sorted((float(row["standardised"]), str(row["claim_id"])) for row in own if _finite(row["standardised"]))
    return [name for _, name in found], np.array([z for z, _ in found], dtype=np.float64), len(own) - len(found)


def _repeats(note: str) -> bool:
    return any(part.startswith("repeats ") for part in note.split("; "))


def _finite(value: Any) -> bool:
    return math.isfinite(float(value))


def sentence(rows: Sequence[Row]) -> str:
    """Return mean, deviation and tails of the standardised differences, with what a normal one would have."""
    names, z, without = judged(rows)
    if not len(z):
        return "No judged number has a joint standard error."
    tails = [i for i in np.argsort(-np.abs(z), kind="stable") if abs(z[i]) > TAIL]
    share = float(erfc(TAIL / math.sqrt(2)))
    spread = f", standard deviation {np.std(z, ddof=1):.2f} (normal: 1)" if len(z) > 1 else ""
    listed = ", ".join(f"{names[i]} {z[i]:+.1f}" for i in tails[:NAMED])
    more = f" and {len(tails) - NAMED} more" if len(tails) > NAMED else ""
    return (
        f"(ours - print) / joint standard error, of {len(z)} judged numbers ({without} more have none: neither side "
        f"varies, or both are empty): mean {np.mean(z):+.2f} (normal: 0){spread}; beyond {TAIL:.0f}: {len(tails)}, of "
        f"as many normal ones {share * len(z):.1f}" + (f". Tails: {listed}{more}." if tails else ".")
    )
