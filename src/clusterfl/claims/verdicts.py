"""The rule that says whether a printed number is reproduced. No verdict comes from anywhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

REPRODUCED, DIFFERS, NOT_COMPARABLE, NOT_RUN = "reproduced", "differs", "not comparable", "not run"
VERDICTS = (REPRODUCED, DIFFERS, NOT_COMPARABLE, NOT_RUN)

# Differences that no reader would act upon, in printed units.
TOLERANCES = {
    "accuracy": 1.0,  # points: what another version of the libraries and other seeds move a mean of few runs
    "balanced_accuracy": 1.0,  # points: as accuracy
    "clustering_accuracy": 1.57,  # points: one of RR-Cluster's 64 clients
    "ari": 0.02,  # one client in a hundred that changes its cluster moves it about as much
    "ari_round_10": 0.02,  # as ari
    "rand": 0.02,  # as ari
    "first_round_ari_0.9": 1.0,  # rounds: the first assignment is a draw, which costs or saves a round
    "stability_round": 1.0,  # rounds: as above
    "rounds_to_accuracy_90": 3.0,  # rounds: the text says "near", of curves that gain a point in about three rounds
    "rounds_to_accuracy_95": 3.0,  # rounds: as above
    "test_loss": 0.001,  # the last digit that the tables print
    "n_clusters": 0.0,  # a count: the means over seeds must round to it
    "was": 0.05,  # half of the last digit that the tables print
    "wadb": 0.1,  # the last digit that the tables print
}


class Verdict(NamedTuple):
    """What a comparison says, and the numbers that it says it by."""

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
    """Return by how much printed digits may be off: half a unit of the last one, a whole one where print says about."""
    return (1.0 if approximate else 0.5) * 10.0**-decimals


def standard_error(
    printed_std: float | None, printed_seeds: int | None, printed_ddof: int, values: Sequence[float]
) -> float:
    """Return the joint standard error of two means, sqrt(s_p^2 / n_p + s_o^2 / n_o), s in sample form.

    Print that doesn't give s_p or n_p, and fewer than two values of ours, add nothing: the error is then too small
    rather than too large, and a difference is told sooner.
    """
    printed = 0.0
    if printed_std is not None and printed_seeds is not None:
        printed = sample_form(printed_std, printed_seeds, printed_ddof) ** 2 / printed_seeds
    own = float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0
    return math.sqrt(printed + own)


def verdict(
    printed: float | None,
    values: Sequence[float],
    *,
    metric: str,
    decimals: int = 0,
    printed_std: float | None = None,
    printed_seeds: int | None = None,
    printed_ddof: int = 1,
    printed_empty: str | None = None,
    empty: str | None = None,
    better: str = "none",
    approximate: bool = False,
    not_run: str | None = None,
    incomparable: str | None = None,
) -> Verdict:
    """Return whether a printed number is reproduced.

    Asked in this order: is there a number of ours (`not run`), may it be compared (`not comparable`), does it agree.
    It agrees (`reproduced`) if ``|ours - printed| <= max(2 e, r, t)`` with e the joint standard error
    (`standard_error`), r the printed rounding (`rounding`) and t the metric's tolerance (`TOLERANCES`); otherwise it
    `differs`, and the reason begins with the direction. Where nothing is printed, ours must be empty for the same
    reason; where a number is printed, ours must not be empty.

    Parameters
    ----------
    printed, printed_std, printed_seeds, printed_ddof, decimals, approximate
        The printed number, None if it is empty; its standard deviation and seeds, None where unknown; what the
        deviation divides by (n - ddof); digits behind the point; whether print says "about".
    values
        Ours, one for each seed, in printed units; finite.
    printed_empty, empty
        Why there is no printed number, and none of ours although it was run (`printed.EMPTY`).
    better
        ``higher``, ``lower`` or ``none``: only for the words of the reason.
    not_run, incomparable
        Why there is no number of ours; why it isn't compared.
    """
    mean = float(np.mean(values)) if len(values) and empty is None else None
    difference = None if mean is None or printed is None else mean - printed
    error = standard_error(printed_std, printed_seeds, printed_ddof, values)
    standardised = difference / error if difference is not None and error > 0 else None
    if not_run is not None:
        return Verdict(NOT_RUN, not_run)
    if mean is None and empty is None:
        raise ValueError("neither values nor a reason why there are none")
    if incomparable is not None:
        return Verdict(NOT_COMPARABLE, incomparable, difference, standardised)
    if printed is None:
        if empty is not None and empty == printed_empty:
            return Verdict(REPRODUCED, f"both empty: {empty}")
        return Verdict(DIFFERS, f"print is empty ({printed_empty}), ours is {f'empty ({empty})' if empty else 'not'}")
    if difference is None:
        return Verdict(DIFFERS, f"ours is empty ({empty}), print is not")
    allowed = {"twice the joint standard error": 2 * error, "printed rounding": rounding(decimals, approximate)}
    allowed["tolerance"] = TOLERANCES[metric]
    by = max(allowed, key=lambda name: allowed[name])
    if abs(difference) <= allowed[by] + 1e-9:  # decimal fractions aren't exact
        return Verdict(REPRODUCED, f"within {allowed[by]:.3g} ({by})", difference, standardised)
    side = "higher" if difference > 0 else "lower"
    judged = "" if better == "none" else ", better" if side == better else ", worse"
    reason = f"{side} by {abs(difference):.3g}, allowed {allowed[by]:.3g} ({by}){judged}"
    return Verdict(DIFFERS, reason, difference, standardised)
