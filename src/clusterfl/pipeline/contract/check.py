"""Checks of parts and their outcomes: a verdict, and a sentence if the check doesn't hold."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ...errors import UserError
from ..global_draws import numpy_state

HOLD = "Hold that "  # the beginning of each check's docstring
Result = TypeVar("Result")
Verdict = Literal["ok", "note", "FAIL", "skip"]
REPRODUCIBLE = "draw from a generator made of the run's seed (clusterfl.streams), never from a global one or the clock"


@dataclass(frozen=True)
class Finding:
    """A finding about a part: a verdict and a sentence."""

    verdict: Verdict
    sentence: str


def fails(sentence: str) -> Finding:
    """Return a violation of the contract; the sentence has the value found, what is allowed, and the next step."""
    return Finding("FAIL", sentence)


def note(sentence: str) -> Finding:
    """Return a note: a property that may be intended, but that the user should know."""
    return Finding("note", sentence)


def skipped(why: str) -> Finding:
    """Return that a check doesn't apply to the part, or can't be made."""
    return Finding("skip", why)


@dataclass(frozen=True)
class Check:
    """One requirement of the contract.

    Parameters
    ----------
    name
        A short predicate, which continues a sentence that begins with the part's name.
    look
        Returns a finding for the part, or None if the requirement holds, which its docstring's first line states.
    needs
        Names of checks that must hold; if one of them doesn't, this check is skipped.
    """

    name: str
    look: Callable[[Any], Finding | None]
    needs: tuple[str, ...] = ()

    @property
    def holds(self) -> str:
        """The requirement, as a sentence."""
        said = (self.look.__doc__ or "").partition("\n")[0].removeprefix(HOLD)
        return said[:1].upper() + said[1:]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    check: str
    verdict: Verdict
    holds: str
    sentence: str = ""


def outcomes(checks: Sequence[Check], part: Any, path: str) -> Iterator[Outcome]:
    """Yield the outcome of each check of a part, in order; `path` is its module's file, to locate errors.

    A check that raises an error fails.
    """
    sound: set[str] = set()
    for check in checks:
        lacking = next((name for name in check.needs if name not in sound), None)
        found = skipped(f"'{lacking}' has to hold first") if lacking else _asked(check, part, path)
        if found is None or found.verdict == "note":
            sound.add(check.name)
        if found is None:
            yield Outcome(check.name, "ok", check.holds)
        else:
            yield Outcome(check.name, found.verdict, check.holds, found.sentence)


def _asked(check: Check, part: Any, path: str) -> Finding | None:
    try:
        return check.look(part)
    except UserError as error:
        return fails(str(error))
    except Exception as error:  # any error of a user's part is a finding
        said, frames = f"{type(error).__name__}: {error}", traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == path]
        if own:
            return fails(f"{path}, line {own[-1].lineno}: {said}; correct that line")
        # Raised outside the part's file: the code that uses the part can't process what it returned.
        where = f"{said} (raised in {frames[-1].filename}, line {frames[-1].lineno})"
        return fails(getattr(part, "blamed", _blamed)(where, path))


def _blamed(said: str, path: str) -> str:
    """Return a sentence on an error that was raised outside the part's file."""
    return f"{said}, outside {path}; check what the part returns there, and its parameters"


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return as text where two sets of named arrays first differ, or None if they have the same bits."""
    if one.keys() != other.keys():
        name = sorted(one.keys() ^ other.keys())[0]
        return f"'{name}' is only in {'the first' if name in one else 'the second'}"
    for name, value in one.items():
        a, b = np.asarray(value), np.asarray(other[name])
        if a.shape != b.shape:
            return f"'{name}' has shape {a.shape}, then {b.shape}"
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            same = (a == b) | ((a != a) & (b != b))
            place = tuple(int(i) for i in np.argwhere(~same)[0])
            where = f"{name}[{', '.join(map(str, place))}]" if place else name
            return f"{where} is {a[place]}, then {b[place]}"
    return None


class GlobalDraws:
    """Sets the global random generators to known states, and finds which of them were used since."""

    def __init__(self, seed: int):
        import torch

        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.before = self._states()

    @staticmethod
    def _states() -> dict[str, Any]:
        import torch

        return {
            "random": random.getstate(),
            "numpy.random": numpy_state(),
            "torch": torch.get_rng_state().numpy().tobytes(),
        }

    def drawn(self) -> Finding | None:
        """Return a failure that names the generators that were drawn from, or seeded."""
        after = self._states()
        changed = [name for name, state in self.before.items() if after[name] != state]
        if not changed:
            return None
        return fails(
            f"the global generator of {' and '.join(changed)} was drawn from or seeded; no part may do this, because "
            f"other parts and a resumed run would draw other numbers: {REPRODUCIBLE}"
        )


def drawn_in(work: Callable[[], Result]) -> tuple[Result, Finding | None]:
    """Return the result of `work`, and a failure if it drew from a global generator.

    If it drew, it is called once more, because some packages draw once, when they are imported.
    """
    for seed in (1, 2):
        draws = GlobalDraws(seed)
        result, found = work(), draws.drawn()
        if found is None:
            break
    return result, found


def written(before: dict[str, Any], after: dict[str, Any]) -> Finding | None:
    """Return a failure that names the first input array that was changed in place."""
    where = first_difference(before, after)
    if where is None:
        return None
    return fails(f"an input was changed in place: {where}; inputs belong to the caller: change a copy")
