"""What the verdicts on numbers rest on, and how many would change under stricter rules than those of `verdicts`.

The rule takes two joint standard errors whatever the number of seeds. Student's distribution with Welch's degrees of
freedom allows for few seeds: by it a number differs where the 95 % interval of ours - print doesn't include zero and
the difference is larger than what is tolerated, and is equivalent where the 90 % interval lies within what is tolerated
(two one-sided tests at 5 %; Schuirmann, 1987).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from ..methods import METHODS
from . import scale
from .printed import Claim, claims
from .reading import INDEX
from .verdicts import CLOSE, DIFFERS, FREE, REPRODUCED, UNDECIDED, margin, sample_form, standard_error

Row = Mapping[str, Any]
LEVEL = 0.05


def sentences(rows: Sequence[Row]) -> str:
    """Return in sentences what the verdicts `reproduced` and `differs` rest on."""
    found = [row for row in rows if row["verdict"] == REPRODUCED]
    if not found:
        return "No number is reproduced."
    valued = [row for row in found if math.isfinite(row["difference"])]
    empty = len(found) - len(valued)  # both sides are empty
    quiet = [row for row in found if math.isnan(row["standardised"])]
    one = [row for row in found if row["seeds"] == 1]
    shared = [row for row in found if row["also_accepts"]]
    strict = [row for row in valued if not _equivalent(row)]
    differ = [row for row in rows if row["verdict"] == DIFFERS]
    near = [row for row in differ if math.isfinite(row["difference"]) and not _differs(row)]
    free = [row for row in rows if row["verdict"] in FREE]
    again = Counter(row["verdict"] for row in free if follows(row))
    facts = Counter(row["verdict"] for row in free) - again
    return (
        f"Of the {len(found)} reproduced numbers, {len(quiet)} have no noise on either side (in {empty} of these both "
        f"sides are empty), and {len(one)} rest on a single seed of ours. {len(shared)} also agree with the number "
        "printed for another method in the same cell, so they don't tell these methods apart. "
        f"{again[REPRODUCED]} follow from another number: where a method clusters only once, its final ARI gives the "
        "ARI after ten rounds and the first round with .9. Leaving out such numbers and those by construction, "
        f"{facts.total()} are judged, {facts[UNDECIDED]} of them undecided "
        f"({facts[UNDECIDED] / facts.total():.0%}). By two one-sided tests at {LEVEL:.0%}, {len(strict)} of the "
        f"reproduced numbers wouldn't be equivalent to print. Of the {len(differ)} that differ, {len(near)} wouldn't "
        f"by Student's {1 - LEVEL:.0%} interval, which allows for few seeds."
    )


def follows(row: Row) -> bool:
    """Return whether a number follows from the final ARI, as the method's first clusters are also its last."""
    if row["metric"] not in INDEX:
        return False
    plan = scale.shipped(row["paper"])
    place = scale.named(plan, row["profile"], f"{row['dataset']}/{row['setting']}", row["method"])
    return place is not None and METHODS[plan.on(place[0]).methods[place[1]].method].settles


def _equivalent(row: Row) -> bool:
    half, allowed = _interval(row, 1 - LEVEL)
    return abs(row["difference"]) + half <= allowed + CLOSE


def _differs(row: Row) -> bool:
    half, allowed = _interval(row, 1 - LEVEL / 2)
    return abs(row["difference"]) > max(allowed, half) + CLOSE


def _interval(row: Row, quantile: float) -> tuple[float, float]:
    """Return half the width of the interval of ours - print, and by how much they may differ."""
    claim = _by_name()[row["claim_id"]]
    error, freedom = spread(claim, [float(part.split(": ")[1]) for part in row["values"].split("; ")])
    half = error * float(special.stdtrit(freedom, quantile)) if error else 0.0
    return half, margin(claim.metric, claim.decimals, claim.approximate)[0]


def spread(claim: Claim, values: Sequence[float]) -> tuple[float, float]:
    """Return the joint standard error of ours - print and its degrees of freedom, by Welch and Satterthwaite.

    A side of one run takes the other's deviation and its degrees of freedom; with an error of zero they are infinite.
    """
    error = standard_error(claim.printed_std, claim.seeds, claim.ddof, values)
    if not error:
        return 0.0, math.inf
    n, runs = len(values), claim.seeds
    parts = []  # of the squared error, each with the number of runs behind its deviation
    theirs = None if claim.printed_std is None else sample_form(claim.printed_std, runs, claim.ddof)
    if n > 1:
        own = float(np.var(values, ddof=1))
        parts.append((own * (1 / n + (theirs is None and runs == 1)), n))
    if theirs is not None and runs is not None:
        parts.append((theirs**2 * (1 / runs + (1 / n if n == 1 else 0)), runs))
    return error, error**4 / sum(part**2 / max(1, of - 1) for part, of in parts)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Claim]:
    return {claim.claim_id: claim for claim in claims()}
