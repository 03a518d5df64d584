"""The papers' central claims, three to five each: what print says, what our runs say, and how firmly.

`data/central.csv` has them in the orderings' grammar. Each is checked in every cell (data set, setting, iteration) that
the paper has numbers for. In a cell both sides are paired by seed, as runs of a seed share partition and first models:
the *gap* of a seed is how far the claim's winner leads, and the cell's interval is Student's 95 % interval of the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from scipy import special

from ..metrics import LEVEL, interval
from . import grammar, scale
from .grammar import RELATIONS, Key, Lookup, Number
from .orderings import NO_NUMBER
from .printed import Ordering, read

SHOWN, IN_PART, MIXED = "shown", "shown in part", "mixed"
NOT_SHOWN, CONTRADICTED, UNTESTED = "not shown", "contradicted", "untested"
VERDICTS = {
    SHOWN: "clearly so in every cell for which the paper has numbers, with no rival missing",
    IN_PART: "clearly so in at least half of the cells that were run, and clearly not so in none",
    MIXED: "clearly so in some cells, and clearly not so in others",
    NOT_SHOWN: "too few cells are clear; this isn't the opposite of the claim",
    CONTRADICTED: "clearly not so in at least half of the cells that were run, and clearly so in none",
    NO_NUMBER: "all that it needs was run, but its measure has no value in these runs; the column evidence says why",
    UNTESTED: "something that it needs wasn't run",
}


@dataclass(frozen=True)
class Cell:
    """A claim in one cell. Gaps are in printed units, NaN where one isn't a difference of finite numbers."""

    where: tuple[str, str, str, str]  # dataset, setting, metric, at
    gaps: dict[int, float]  # of each seed
    holds: dict[int, bool]  # in each seed, on its own numbers
    printed: float  # gap
    ahead: bool  # whether it holds on the means
    clear: int  # 1: clearly so, -1: clearly not so, 0: open
    measured: bool  # whether `clear` is by the gaps' interval; else all seeds have to agree
    missing: tuple[str, ...] = ()  # rivals in a min or max without a number


@dataclass(frozen=True)
class Found:
    """What the runs at one scale say about a claim."""

    claim: Ordering
    asked: int  # cells for which the paper has numbers
    cells: tuple[Cell, ...]
    without: str = ""  # why the runs have no number, where all were made and none has

    @property
    def seeds(self) -> int:
        """The number of seeds of the cell with the fewest."""
        return min((len(cell.holds) for cell in self.cells), default=0)

    def count(self, clear: int) -> int:
        """Return in how many cells it is clearly so (1), clearly not so (-1), or open (0)."""
        return sum(cell.clear == clear for cell in self.cells)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        so, not_so, found = self.count(1), self.count(-1), len(self.cells)
        if not found:
            return NO_NUMBER if self.without else UNTESTED
        if so == found == self.asked and not any(cell.missing for cell in self.cells):
            return SHOWN
        if so and not_so:
            return MIXED
        if 2 * so >= found:
            return IN_PART
        return CONTRADICTED if 2 * not_so >= found else NOT_SHOWN

    @property
    def gap(self) -> tuple[float, float, float]:
        """Return the mean gap over the cells, weighted equally, and its interval over the seeds; NaN without seeds."""
        common = set.intersection(*(set(cell.gaps) for cell in self.cells)) if self.cells else set()
        means = [float(np.mean([cell.gaps[seed] for cell in self.cells])) for seed in sorted(common)]
        return interval(means)

    @property
    def printed_gap(self) -> float:
        """Return the mean printed gap over the same cells."""
        return float(np.mean([cell.printed for cell in self.cells])) if self.cells else math.nan


def by_chance(seeds: int, sides: int = 2, errors: float = 2.0) -> float:
    """Return how often two means over `seeds` differ by more than `errors` standard errors though they are equal.

    By Student's distribution, for two measured means of the same deviation, or one and a constant (`sides` 1).
    """
    return float(2 * special.stdtr(sides * (seeds - 1), -errors)) if seeds > 1 else 1.0


@lru_cache(maxsize=1)
def claims() -> tuple[Ordering, ...]:
    """Return the central claims, in the order of `data/central.csv`."""
    return tuple(Ordering(**row) for row in read("central.csv", Ordering))


def evaluate(claim: Ordering, lookup: Lookup) -> Found:
    """Return what the numbers of `lookup` say about a claim."""
    asked = grammar.asked(claim)
    found = (cell(claim, where, lookup, lacking) for where, lacking in asked.items())
    return Found(claim, len(asked), tuple(one for one in found if one is not None))


def cell(claim: Ordering, where: tuple[str, str, str, str], lookup: Lookup, lacking: Collection[str]) -> Cell | None:
    """Return a claim in one cell, or None where a side has no number; `lacking` are rivals that print lacks, too.

    A comparison of two measured numbers is clear where the interval of the gaps excludes zero. A comparison with a
    constant, an equality, and one in which a side was not reached in some seed are clear where there are at least two
    seeds and all agree. Where neither side was reached in a seed, the cell is open.
    """
    sides = grammar.sides(claim, where, lookup)
    if sides is None:
        return None
    left, right = sides
    pairs = grammar.pairs(left, right)
    holds = {seed: grammar.holds(claim, a, b, left, right) for seed, (a, b) in pairs.items()}
    sign = -1.0 if claim.relation.startswith("<") else 1.0
    gaps = {seed: sign * (a - b) for seed, (a, b) in pairs.items()}
    measured = left.seeds is not None and right.seeds is not None and all(math.isfinite(gap) for gap in gaps.values())
    measured = measured and claim.relation in RELATIONS and len(gaps) > 1
    clear = 0
    if measured:
        _, low, high = interval(list(gaps.values()))
        clear = int(low > 0) - int(high < 0)
    elif len(holds) > 1 and len(set(holds.values())) == 1 and not any(_neither(claim, gap) for gap in gaps.values()):
        clear = 1 if all(holds.values()) else -1
    missing = tuple(name for name in (*left.missing, *right.missing) if name not in lacking)
    ahead = grammar.holds(claim, left.mean, right.mean, left, right)
    return Cell(where, gaps, holds, _printed_gap(claim, where, sign), ahead, clear, measured, missing)


def _neither(claim: Ordering, gap: float) -> bool:
    """Return whether neither side was reached: the gap is then the difference of two infinite rounds."""
    return claim.relation in RELATIONS and math.isnan(gap)


def _printed_gap(claim: Ordering, where: tuple[str, str, str, str], sign: float) -> float:
    sides = grammar.sides(claim, where, grammar.printed_lookup(claim))
    return math.nan if sides is None else sign * (sides[0].mean - sides[1].mean)


HEAD = ("claim", "scale", "printed", "ours", "seeds", "cells: so, not so, open", "verdict", "evidence")
POINTS = ("accuracy", "balanced_accuracy", "clustering_accuracy")
COLUMNS: dict[str, type] = {
    "claim_id": str, "paper": str, **dict.fromkeys(HEAD, str), "gap": float, "gap_low": float, "gap_high": float,
    "printed_gap": float, "comparisons": int, "intervals": int, "guesses": str,
}  # fmt: skip
FEW = 5  # seeds that agree: of 3 that all succeed the true share may be .37 (lower 95 % bound), of 5 .55
STRONG, MODERATE, WEAK = "strong", "moderate", "weak"
OTHER = "other settings than the paper's"


class Runs(Protocol):
    """Finds a claim's numbers among runs."""

    def __call__(self, key: Key) -> Number | None:
        """Return a number, None where there is none."""

    @property
    def no_number(self) -> str:
        """Why what was asked for has no number although all of it was run; '' where something wasn't."""


def rows(lookup: Callable[[Ordering, str], Runs]) -> Iterator[dict[str, Any]]:
    """Yield a row by `COLUMNS` for each claim and scale with runs, or a single one that says that it is untested.

    ``lookup(claim, scale)`` returns what finds the claim's numbers at a scale.
    """
    for claim in claims():
        found = {}
        for name in (scale.PAPER, scale.LITE):
            runs = lookup(claim, name)
            one = evaluate(claim, runs)
            found[name] = one if one.cells else replace(one, without=runs.no_number)
        shown = {name: one for name, one in found.items() if one.cells or one.without} or {"": found[scale.PAPER]}
        guesses = guessed(claim)
        for name, one in shown.items():
            yield row(one, name, guesses)


def guessed(claim: Ordering) -> list[str]:
    """Return the settings that the shipped study calls guesses, of all runs that the claim is about."""
    plan = scale.shipped(claim.paper)
    block = scale.claims_of(plan)
    found: dict[str, None] = {}
    for key in grammar.compared(claim):
        place = scale.named(plan, block.profile, f"{key.dataset}/{key.setting}", key.method)
        found |= dict.fromkeys(scale.guessed(block, place) if place else [])
    return sorted(found)


def strength(found: Found, name: str, guesses: Collection[str]) -> str:
    """Return how strong the evidence about a claim is: a word, and the reasons for it."""
    if not found.cells:
        return f"none: {found.without}" if found.without else "none"
    why = [OTHER] if name == scale.LITE else []
    why += [f"{len(guesses)} guessed setting{'s' * (len(guesses) != 1)}"] if guesses else []
    missing = sorted({rival for one in found.cells for rival in one.missing})
    why += [f"{len(found.cells)} of {found.asked} cells"] if len(found.cells) < found.asked else []
    why += [f"without {', '.join(missing)}"] if missing else []
    why += ["one seed"] if found.seeds < 2 else []
    agreed = any(one.clear and not one.measured for one in found.cells)
    why += [f"clear where {found.seeds} seeds agree"] if agreed and 1 < found.seeds < FEW else []
    word = WEAK if name == scale.LITE else MODERATE if why else STRONG
    return f"{word}: {', '.join(why)}" if why else word


def row(found: Found, name: str, guesses: Sequence[str]) -> dict[str, Any]:
    """Return the row of a claim at a scale, by `COLUMNS`; the scale's name is "" where nothing was run."""
    claim = found.claim
    so, not_so, still = (str(found.count(clear)) for clear in (1, -1, 0))
    texts = (
        f"{claim.statement} ({claim.where.replace('|', ', ')})",
        {scale.PAPER: "paper's", scale.LITE: "reduced"}.get(name, "–"),
        _printed_text(found),
        _ours(found) if found.cells else "–",
        str(found.seeds) if found.cells else "–",
        f"{so}, {not_so}, {still} of {found.asked}" if found.cells else f"none of {found.asked}",
        found.verdict + _but(name, guesses),
        strength(found, name, guesses),
    )
    mean, low, high = found.gap if found.cells and _is_gap(found) else (math.nan,) * 3
    own: dict[str, Any] = {"claim_id": claim.claim_id, "paper": claim.paper, **dict(zip(HEAD, texts, strict=True))}
    own |= {"gap": mean, "gap_low": low, "gap_high": high, "printed_gap": found.printed_gap}
    own |= {"comparisons": len(found.cells), "intervals": sum(cell.measured for cell in found.cells)}
    return own | {"guesses": "|".join(guesses)}


def _but(name: str, guesses: Sequence[str]) -> str:
    """Return what is added after a verdict: that the scale is reduced, or that settings are guessed."""
    if name == scale.LITE:
        return ", reduced"
    return ", settings guessed" if name == scale.PAPER and guesses else ""


def _printed_text(found: Found) -> str:
    """Return what print says: the mean lead over the same cells, or in how many cells the claim holds."""
    if found.cells and _is_gap(found) and math.isfinite(found.printed_gap):
        return _signed(found.printed_gap, found.claim.metric)
    return "in " + found.claim.on_print.removeprefix("holds in ") + " cells"


def _ours(found: Found) -> str:
    """Return our mean lead, its interval and in how many cells it is positive, or in how many runs the claim holds."""
    ahead, cells = sum(cell.ahead for cell in found.cells), len(found.cells)
    runs = [held for cell in found.cells for held in cell.holds.values()]
    mean, low, high = found.gap
    if runs and all(_neither(found.claim, gap) for cell in found.cells for gap in cell.gaps.values()):
        return f"reached by neither in {len(runs)} runs"
    if not _is_gap(found) or math.isnan(mean):
        return f"in {sum(runs)} of {len(runs)} runs"
    bounds = "" if math.isinf(low) else f" ({_plain(low)} to {_plain(high)})"
    return f"{_signed(mean, found.claim.metric)}{bounds}; ahead in {ahead} of {cells}"


def _is_gap(found: Found) -> bool:
    return found.claim.relation in RELATIONS and found.claim.metric not in ("n_clusters", "first_round_ari_0.9")


def _signed(number: float, metric: str) -> str:
    return f"{_plain(number, sign=True)}{' points' if metric in POINTS else ''}"


def _plain(number: float, sign: bool = False) -> str:
    text = f"{number:+.2f}" if sign else f"{number:.2f}"
    return text.replace("-", "−")


def sentence(found: Sequence[Mapping[str, Any]]) -> str:
    """Return how many comparisons the rows make, and how many of them would be clear by chance alone."""
    made, intervals = (sum(row[name] for row in found) for name in ("comparisons", "intervals"))
    equals = ", ".join(f"{by_chance(seeds):.0%} of comparisons of equals with {seeds} seeds" for seeds in (3, 5))
    constant = ", ".join(f"{by_chance(seeds, sides=1):.0%}" for seeds in (3, 5))
    return (
        f"The rows make {made} comparisons, each in one cell. {intervals} use {LEVEL:.0%} intervals: if all of these "
        f"were between equals, about {intervals * (1 - LEVEL):.0f} would be clear by chance. The others have one seed, "
        "or compare with a constant or with a mark that was not reached; they are clear where at least two seeds were "
        f"run and all agree. Two standard errors, the rule of the orderings, are exceeded by chance in {equals}; where "
        f"one side is a constant, in {constant}."
    )
