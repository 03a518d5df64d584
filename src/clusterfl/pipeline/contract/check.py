"""A check of a part, and what comes of it: a verdict, and a sentence where it doesn't hold."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ...errors import UserError
from ..global_draws import numpy_state

HOLD = "Hold that "  # what the docstring of each check begins with
Result = TypeVar("Result")
Verdict = Literal["ok", "note", "FAIL", "skip"]
REPRODUCIBLE = "draw from a generator made of the run's seed (clusterfl.streams), never from a global one or the clock"


@dataclass(frozen=True)
class Finding:
    """What is to be said of a part: one sentence, and how bad it is."""

    verdict: Verdict
    sentence: str


def fails(sentence: str) -> Finding:
    """Return that the part breaks the contract: value found, what is allowed, the next step."""
    return Finding("FAIL", sentence)


def note(sentence: str) -> Finding:
    """Return what a user should know, but may be meant so."""
    return Finding("note", sentence)


def skipped(why: str) -> Finding:
    """Return that a check doesn't concern the part, or can't be made."""
    return Finding("skip", why)


@dataclass(frozen=True)
class Check:
    """One thing that the contract holds.

    Parameters
    ----------
    name
        A few words that go on behind the part's name.
    look
        Returns a finding for the part, or None where all is well; the first line of its docstring says what holds.
    needs
        Names of the checks without which this one says nothing: where one fails, it is skipped.
    """

    name: str
    look: Callable[[Any], Finding | None]
    needs: tuple[str, ...] = ()

    @property
    def holds(self) -> str:
        """What holds, in a sentence."""
        said = (self.look.__doc__ or "").partition("\n")[0].removeprefix(HOLD)
        return said[:1].upper() + said[1:]


@dataclass(frozen=True)
class Outcome:
    """What came of a check."""

    check: str
    verdict: Verdict
    holds: str
    sentence: str = ""


def outcomes(checks: Sequence[Check], part: Any, path: str) -> Iterator[Outcome]:
    """Yield what comes of each check of a part, in order; `path` is the file of its module, which errors are found in.

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
    except Exception as error:  # whatever a part of the user's raises is what is wrong with it
        said, frames = f"{type(error).__name__}: {error}", traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == path]
        if own:
            return fails(f"{path}, line {own[-1].lineno}: {said}; mend what stands there")
        # Nothing is to be mended where it was raised: what uses the part can't go on with what that gave.
        where = f"{said} (raised in {frames[-1].filename}, line {frames[-1].lineno})"
        return fails(getattr(part, "blamed", _blamed)(where, path))


def _blamed(said: str, path: str) -> str:
    """Return a sentence on an error that no line of the part's file had a share in."""
    return f"{said}, and no line of {path} had a share in it; look at what the part returns there, and what it takes"


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return in words where two sets of named arrays differ first, or None where they are equal to the bit."""
    if one.keys() != other.keys():
        name = sorted(one.keys() ^ other.keys())[0]
        return f"'{name}' is in {'the first' if name in one else 'the second'} alone"
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
    """The global random generators, put to known states, and which of them were drawn from since."""

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
            f"the global generator of {' and '.join(changed)} was drawn from or seeded; no part may, since others and "
            f"a resumed run would draw other numbers: {REPRODUCIBLE}"
        )


def drawn_in(work: Callable[[], Result]) -> tuple[Result, Finding | None]:
    """Return what some work returns, and a failure if it drew from a global generator.

    What draws is asked again: some packages do so when they are imported, once.
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
    return fails(f"an input was changed in place: {where}; inputs belong to whoever gave them: change a copy")
