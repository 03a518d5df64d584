"""Verdicts on the orderings that the papers state, from what holds in each combination (`grammar`)."""

from __future__ import annotations

from dataclasses import dataclass

from .grammar import Combination
from .verdicts import CONSTRUCTED, NOT_RUN, UNDECIDED

HOLDS, OF_THOSE_RUN, IN_PART, FAILS = "holds", "holds for those run", "holds in part", "fails"
NO_NUMBER = "no number"
KINDS = (HOLDS, OF_THOSE_RUN, IN_PART, FAILS, UNDECIDED, CONSTRUCTED, NO_NUMBER, NOT_RUN)


@dataclass(frozen=True)
class Found:
    """An ordering's verdict."""

    verdict: str
    reason: str
    combinations: int  # to be evaluated
    evaluated: int
    holding: int  # clearly; the same for `failing`
    failing: int
    undecided: int
    seeds: int  # seeds of all evaluated combinations
    seeds_holding: int

    @property
    def share(self) -> float:
        """The part of the evaluated combinations in which it clearly holds."""
        return self.holding / self.evaluated


def kind(verdict: str) -> str:
    """Return an ordering's verdict without its counts: one of `KINDS`."""
    if verdict.startswith("holds in "):
        return IN_PART
    return FAILS if verdict.startswith(FAILS) else verdict


def judge(found: list[Combination], asked: int) -> Found:
    """Return the verdict of an ordering from its combinations, at least one.

    A combination whose means are within two joint standard errors is undecided, whichever is larger. The verdict is
    `holds` if all `asked` combinations clearly hold, with all methods that the ordering names; `holds for those run`
    if all that were run do; `fails` if all clearly fail; `undecided` if all are; otherwise it gives the counts. In how
    many seeds it holds is counted separately.
    """
    undecided = sum(not c.clear for c in found)
    holding, failing = (sum(c.clear and c.holds == side for c in found) for side in (True, False))
    seeds, seeds_holding = (sum(getattr(c, name) for c in found) for name in ("seeds", "seeds_holding"))
    missing = sorted({name for c in found for name in c.missing})
    said = []
    if asked > len(found):
        said.append(f"{asked - len(found)} of {asked} combinations not run")
    if undecided:
        said.append(f"{undecided} of {len(found)} within two joint standard errors, or without a deviation")
    if missing:
        said.append(f"without {', '.join(missing)}")
    if holding == len(found):
        verdict = HOLDS if asked == len(found) and not missing else OF_THOSE_RUN
    elif undecided == len(found):
        verdict = UNDECIDED
    else:
        verdict = _counted(holding, failing, undecided)
    counts = (asked, len(found), holding, failing, undecided, seeds, seeds_holding)
    return Found(verdict, "; ".join(said), *counts)


def _counted(holding: int, failing: int, undecided: int) -> str:
    """Return a verdict that gives its counts: ``holds in 4, undecided in 8, of 12 (33 %)``, ``fails in 2, ...``."""
    if not holding and not undecided:
        return FAILS
    parts = [("holds in", holding), ("fails in", failing), ("undecided in", undecided)]
    total = holding + failing + undecided
    text = ", ".join(f"{name} {count}" for name, count in parts if count)
    share = f" ({100 * holding / total:.0f} %)" if holding else ""
    return f"{text}{',' if ', ' in text else ''} of {total}{share}"
