"""Revisions of parts: where a part's numbers changed on purpose, and are to be told from those before.

A part is named as its registry's kind and its own name, ``"method cfl"``; the engine, with the loop around it, is
``"engine"``. What isn't listed has revision 1. A revision is part of the identity of every job that uses the part, and
of the evidence made from it. `tests/test_pins.py` fails when numbers change without one.
"""

from __future__ import annotations

from collections.abc import Iterable

REVISIONS: dict[str, int] = {
    # Less noise for the same epsilon: privacy loss distributions with Poisson sampling, exact where all take part. A
    # random first round draws each client's model from its own hash alone.
    "wrapper": 2,
}


def of(parts: Iterable[str]) -> dict[str, int]:
    """Return the revision of each part, by name."""
    return {part: REVISIONS.get(part, 1) for part in sorted(parts)}
