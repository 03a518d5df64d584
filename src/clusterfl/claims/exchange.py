"""Do the verdicts depend on which method made a number? Names are exchanged within each cell, and all judged again.

A rule that accepts any method's number as any other's says nothing about methods. Compared with another method's
printed number, fewer of ours should be reproduced, and more should differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """The methods of a cell with numbers on both sides: `verdicts[i, j]` compares print of i with ours of j."""

    methods: tuple[str, ...]
    verdicts: Verdicts

    def grid(self, *verdicts: str) -> NDArray[np.bool_]:
        """Return whether print of one method compared with ours of another has one of `verdicts`, [print x ours]."""
        size = range(len(self.methods))
        return np.array([[self.verdicts[i, j] in verdicts for j in size] for i in size])


@dataclass(frozen=True)
class Exchanged:
    """Counts by verdict; ``exchanged`` is the mean over the other methods of each number's cell."""

    cells: int
    numbers: int
    as_named: dict[str, int]
    exchanged: dict[str, float]
    p_value: float  # share of random exchanges, the actual names included, that agree as well as the actual names


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

    Numbers by construction count as reproduced here, as the rule accepts them. An exchange agrees as well as the actual
    names if it has at least as many reproduced and at most as many that differ.
    """
    if not found:
        return None
    generator, accepted = np.random.default_rng(SEED), (REPRODUCED, CONSTRUCTED)
    grids = [(cell.grid(*accepted), cell.grid(DIFFERS)) for cell in found]  # each [print x ours]
    named = tuple(sum(int(grid.trace()) for grid in kind) for kind in zip(*grids, strict=True))
    counts = np.zeros((draws, 2), dtype=np.int64)  # [draw x (accepted, differ)]
    for kinds in grids:
        rows = np.arange(len(kinds[0]))
        orders = generator.permuted(np.tile(rows, (draws, 1)), axis=1)
        counts += np.stack([kind[rows, orders].sum(axis=1) for kind in kinds], axis=1)
    as_good = int(((counts[:, 0] >= named[0]) & (counts[:, 1] <= named[1])).sum())
    others = [sum((grid.sum() - grid.trace()) / (len(grid) - 1) for grid in kind) for kind in zip(*grids, strict=True)]
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
        f"Of {found.numbers} numbers in the {found.cells} cells with two methods or more, {named[REPRODUCED]} are "
        f"accepted and {named[DIFFERS]} differ. Compared with another method's printed number of the same cell, "
        f"{other[REPRODUCED]:.1f} would be accepted and {other[DIFFERS]:.1f} would differ on average (permutation "
        f"test, names exchanged at random within each cell: p = {found.p_value:.2g}, {DRAWS:,} draws)."
    )
