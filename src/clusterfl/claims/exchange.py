"""Do the verdicts depend on who made which number? The methods' names are exchanged within each cell, and judged again.

A rule that would accept any method's number as any other's says nothing about methods. Beside another method's print
fewer of our numbers should be reproduced, and more should differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import notes
from .gather import judged, standing
from .ours import Outcome, Results
from .printed import Claim, claims
from .verdicts import CONSTRUCTED, DIFFERS, REPRODUCED

DRAWS = 9999  # exchanges drawn
SEED = 0  # of their draw: the same figures on every machine
Verdicts = dict[tuple[int, int], str]


@dataclass(frozen=True)
class Cell:
    """The methods of a cell that have numbers on both sides: `verdicts[i, j]` is print of i beside ours of j."""

    methods: tuple[str, ...]
    verdicts: Verdicts

    def count(self, order: Sequence[int], verdict: str) -> int:
        """Return how many printed numbers have a verdict where ours of method `order[i]` stands beside print of i."""
        return sum(self.verdicts[i, j] == verdict for i, j in enumerate(order))

    def others(self, verdict: str) -> float:
        """Return the same where each number of print stands beside another method's, the mean over those."""
        size = len(self.methods)
        pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
        return sum(self.verdicts[pair] == verdict for pair in pairs) / (size - 1)


@dataclass(frozen=True)
class Exchanged:
    """What exchanging does, by verdict; ``exchanged`` is the mean over the other methods of each number's cell."""

    cells: int
    numbers: int
    as_named: dict[str, int]
    exchanged: dict[str, float]
    p_value: float  # share of random exchanges, the names as they are included, that do as well as these do


def cells(results: Sequence[Results]) -> list[Cell]:
    """Return every cell, metric and iteration in which two methods or more are compared with print."""
    found: dict[tuple[str, str, str, str], dict[str, tuple[Claim, Outcome]]] = {}
    for claim in claims():
        candidate = standing(claim, results)
        if candidate is None or claim.repeats:
            continue
        _, profile, outcome = candidate
        if outcome.scale.judged and notes.incomparable(claim, profile) is None:
            key = claim.paper, claim.cell, claim.metric, claim.at
            found.setdefault(key, {}).setdefault(claim.method, (claim, outcome))
    return [_cell(tuple(own), list(own.values())) for own in found.values() if len(own) > 1]


def _cell(methods: tuple[str, ...], own: Sequence[tuple[Claim, Outcome]]) -> Cell:
    verdicts = {
        (i, j): judged(claim, outcome).verdict for i, (claim, _) in enumerate(own) for j, (_, outcome) in enumerate(own)
    }
    return Cell(methods, verdicts)


def exchange(found: Sequence[Cell], draws: int = DRAWS) -> Exchanged | None:
    """Return what exchanging does; None where no cell has two methods.

    Numbers by construction count as reproduced here: the rule accepts them, whoever made them. An exchange does as well
    if it has as many reproduced and as few that differ.
    """
    if not found:
        return None
    generator, accepted = np.random.default_rng(SEED), (REPRODUCED, CONSTRUCTED)

    def counts(orders: Sequence[Sequence[int]]) -> tuple[int, int]:
        pairs = list(zip(found, orders, strict=True))
        own = sum(cell.count(order, name) for cell, order in pairs for name in accepted)
        return own, sum(cell.count(order, DIFFERS) for cell, order in pairs)

    named = counts([range(len(cell.methods)) for cell in found])
    drawn = [counts([generator.permutation(len(cell.methods)).tolist() for cell in found]) for _ in range(draws)]
    as_good = sum(one[0] >= named[0] and one[1] <= named[1] for one in drawn)
    others = (sum(c.others(name) for c in found for name in accepted), sum(c.others(DIFFERS) for c in found))
    return Exchanged(
        len(found),
        sum(len(cell.methods) for cell in found),
        dict(zip((REPRODUCED, DIFFERS), named, strict=True)),
        dict(zip((REPRODUCED, DIFFERS), others, strict=True)),
        (1 + as_good) / (1 + draws),
    )


def sentence(results: Sequence[Results]) -> str:
    """Return what exchanging does, in words."""
    found = exchange(cells(results))
    if found is None:
        return "Methods' names can't be exchanged: no cell has two methods whose numbers are judged."
    named, other = found.as_named, found.exchanged
    return (
        f"Of {found.numbers} numbers in cells with two methods or more ({found.cells}), {named[REPRODUCED]} are "
        f"accepted and {named[DIFFERS]} differ; beside another method's print of the same cell it would be "
        f"{other[REPRODUCED]:.1f} and {other[DIFFERS]:.1f} (names exchanged at random within each cell: "
        f"p = {found.p_value:.2g}, {DRAWS:,} draws)."
    )
