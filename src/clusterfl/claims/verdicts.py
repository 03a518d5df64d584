"""The rule that decides whether a printed number is reproduced. All verdicts on numbers come from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

REPRODUCED, CONSTRUCTED, UNDECIDED, DIFFERS = "reproduced", "by construction", "undecided", "differs"
NOT_COMPARABLE, NOT_RUN = "not comparable", "not run"
JUDGED = (REPRODUCED, CONSTRUCTED, UNDECIDED, DIFFERS)
FREE = (REPRODUCED, UNDECIDED, DIFFERS)  # of numbers that could have come out differently
VERDICTS = (*JUDGED, NOT_COMPARABLE, NOT_RUN)
COUNTS = ("n_clusters",)  # their means must round to print

CLOSE = 1e-9  # decimal fractions aren't exact
NOISE = "twice the joint standard error is"

# Differences too small for a reader to act on, in printed units.
TOLERANCES = {
    "accuracy": 1.0,  # points: as much as other library versions and seeds move a mean of few runs
    "balanced_accuracy": 1.0,  # points: as accuracy
    "clustering_accuracy": 1.57,  # points: one of RR-Cluster's 64 clients
    "ari": 0.02,  # about as much as one client in a hundred moves it by changing its cluster
    "ari_round_10": 0.02,  # as ari
    "rand": 0.02,  # as ari
    "first_round_ari_0.9": 1.0,  # rounds: the first assignment is random, which costs or saves a round
    "stability_round": 1.0,  # rounds: as above
    "rounds_to_accuracy_90": 3.0,  # rounds: the text says "near", and the curves gain a point in about three rounds
    "rounds_to_accuracy_95": 3.0,  # rounds: as above
    "test_loss": 0.001,  # the last digit that the tables print
    "n_clusters": 0.0,  # a count: see COUNTS
    "was": 0.05,  # half of the last digit that the tables print
    "wadb": 0.1,  # the last digit that the tables print
}


class Verdict(NamedTuple):
    """The result of a comparison, and the numbers behind it."""

    verdict: str
    reason: str
    difference: float | None = None  # ours - printed
    standardised: float | None = None  # the difference in joint standard errors


def sample_form(std: float, seeds: int | None, ddof: int) -> float:
    """Return a standard deviation as one that divides by n - 1.

    One that divides by n (``ddof`` 0) is multiplied by sqrt(n / (n - 1)); with n unknown or 1 it stays as it is.
    """
    return std if ddof or seeds is None or seeds < 2 else std * math.sqrt(seeds / (seeds - 1))


def rounding(decimals: int, approximate: bool = False) -> float:
    """Return print's possible rounding error: half a unit of the last digit, a whole one where print says about."""
    return (1.0 if approximate else 0.5) * 10.0**-decimals


def standard_error(
    printed_std: float | None, printed_seeds: int | None, printed_ddof: int, values: Sequence[float]
) -> float | None:
    """Return the joint standard error of two means, sqrt(s_p^2 / n_p + s_o^2 / n_o), s in sample form.

    A side of one run has no deviation of its own and takes the other's. None where neither side has one. Print
    without s_p or n_p adds nothing of its own.
    """
    theirs = None if printed_std is None else sample_form(printed_std, printed_seeds, printed_ddof)
    own = float(np.std(values, ddof=1)) if len(values) > 1 else theirs
    if own is None:
        return None
    if theirs is None and printed_seeds == 1:
        theirs = own
    printed = 0.0 if theirs is None or printed_seeds is None else theirs**2 / printed_seeds
    return math.sqrt(printed + own**2 / max(1, len(values)))


def margin(metric: str, decimals: int, approximate: bool = False) -> tuple[float, str]:
    """Return how much ours may differ from print, and which is larger: the tolerance or the printed rounding."""
    allowed = {"printed rounding": rounding(decimals, approximate), "tolerance": TOLERANCES[metric]}
    by = max(allowed, key=lambda name: allowed[name])
    return allowed[by], by


@dataclass(frozen=True)
class Print:
    """A printed number, and what print says about it."""

    value: float | None  # None: there is none
    metric: str
    decimals: int = 0  # digits after the point
    std: float | None = None  # None: unknown
    seeds: int | None = None  # None: unknown
    ddof: int = 1  # the deviation divides by n - ddof
    empty: str | None = None  # why there is no number (`printed.EMPTY`)
    better: str = "none"  # or higher, lower: used only in the words of the reason
    approximate: bool = False  # print says "about"


def verdict(
    printed: Print,
    values: Sequence[float],
    *,
    empty: str | None = None,
    incomparable: str | None = None,
    constructed: str = "",
) -> Verdict:
    """Return the verdict on a printed number that was run.

    Checked in this order: may it be compared (else `not comparable`), does it agree though it couldn't have come out
    differently (`by construction`), is there a deviation to judge by (else `undecided`), does it agree.
    With d = ours - printed, e the joint standard error (`standard_error`) and t the larger of tolerance and printed
    rounding (`margin`):

    - `differs` if ``|d| > max(t, 2 e)``; the reason begins with the direction;
    - `reproduced` if ``|d| <= t`` and ``2 e <= t``: the noise is no larger than what would be accepted; for counts
      the mean must round to print, ``|d| < t``;
    - `undecided` otherwise.

    Where nothing is printed, ours must be empty for the same reason; where a number is printed, ours must not be empty.

    Parameters
    ----------
    printed
        The number.
    values
        Ours, one for each seed, in printed units; finite.
    empty
        Why ours has no number although it was run (`printed.EMPTY`).
    incomparable, constructed
        Why it isn't compared; why it couldn't have come out differently (`constructed`).
    """
    mean = float(np.mean(values)) if len(values) and empty is None else None
    difference = None if mean is None or printed.value is None else mean - printed.value
    error = standard_error(printed.std, printed.seeds, printed.ddof, values)
    standardised = difference / error if difference is not None and error else None
    if mean is None and empty is None:
        raise ValueError("neither values nor a reason why there are none")
    if incomparable is not None:
        return Verdict(NOT_COMPARABLE, incomparable, difference, standardised)
    if difference is None:
        why = (printed.empty or "no reason given") if printed.value is None else None
        return _of_empty(why, empty, constructed)
    allowed, by = margin(printed.metric, printed.decimals, printed.approximate)
    agrees = abs(difference) < allowed - CLOSE if printed.metric in COUNTS else abs(difference) <= allowed + CLOSE
    if agrees and constructed:
        return Verdict(CONSTRUCTED, constructed, difference, standardised)
    return Verdict(*_judged(difference, error, agrees, allowed, by, printed.better), difference, standardised)


def _of_empty(printed: str | None, ours: str | None, constructed: str) -> Verdict:
    """Return the verdict where a side is empty, given why each is; None for a side that has a number."""
    if printed is not None and printed == ours:
        return Verdict(CONSTRUCTED, constructed) if constructed else Verdict(REPRODUCED, f"both empty: {ours}")
    if printed is None:
        return Verdict(DIFFERS, f"ours is empty ({ours}), print is not")
    return Verdict(DIFFERS, f"print is empty ({printed}), ours is {f'empty ({ours})' if ours else 'not'}")


def _judged(
    difference: float, error: float | None, agrees: bool, allowed: float, by: str, better: str
) -> tuple[str, str]:
    """Return verdict and reason for two numbers."""
    side = "higher" if difference > 0 else "lower"
    off = f"{side} by {abs(difference):.3g}" if difference else "equal"
    if error is None:
        return UNDECIDED, f"{off}; neither side has a deviation"
    noise = f"{NOISE} {2 * error:.3g}"
    if agrees and 2 * error <= allowed + CLOSE:
        return REPRODUCED, f"within {allowed:.3g} ({by}); {noise}"
    if abs(difference) <= max(allowed, 2 * error) + CLOSE:
        return UNDECIDED, f"{off}, allowed {allowed:.3g} ({by}); {noise}"
    judged = "" if better == "none" else ", better" if side == better else ", worse"
    return DIFFERS, f"{off}, allowed {allowed:.3g} ({by}){judged}; {noise}"
