"""What verdicts rest on, by hand; Welch's interval beside SciPy's test."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from clusterfl.claims import rests
from clusterfl.claims.printed import Claim, claims
from clusterfl.claims.verdicts import DIFFERS, REPRODUCED, UNDECIDED, standard_error

CLAIM = next(one for one in claims() if one.claim_id == "clove/table1/label-skew-1/mnist/clove")


def printed(value: str, std: str, seeds: str = "3", **other: str) -> Claim:
    return replace(CLAIM, value=value, std=std, n_seeds=seeds, **other)


def test_three_seeds_beside_three_are_welchs_test() -> None:
    """s_o^2 = 1; print's .5 divides by n, so s_p^2 = .25 * 3 / 2 = .375: (1 / 3 + .125)^2 / (1 / 18 + .125^2 / 2)."""
    claim, ours = printed("1.5", "0.5"), [1.0, 2.0, 3.0]
    error, freedom = rests.spread(claim, ours)
    assert error == pytest.approx(math.sqrt(1 / 3 + 0.125)) == standard_error(0.5, 3, 0, ours)
    assert freedom == pytest.approx((1 / 3 + 0.125) ** 2 / (1 / 18 + 0.125**2 / 2))
    test = stats.ttest_ind_from_stats(2.0, 1.0, 3, 1.5, math.sqrt(0.375), 3, equal_var=False)
    assert 2 * special.stdtr(freedom, -0.5 / error) == pytest.approx(test.pvalue)


@pytest.mark.parametrize(
    ("claim", "ours", "square", "freedom"),
    [
        (printed("1.5", "0.5"), [2.0], 0.375 * (1 / 3 + 1), 2),  # print's deviation for both sides: one estimate
        (printed("1.5", "0"), [1.0, 2.0, 3.0], 1 / 3, 2),  # print doesn't vary
        (printed("1.5", ""), [1.0, 2.0, 3.0], 1 / 3, 2),  # print says nothing of it
        (printed("1.5", "", "", note="single run"), [1.0, 2.0, 3.0], 1 / 3 + 1, 2),  # one draw, as one of ours
        (printed("1.5", "0"), [2.0], 0.0, math.inf),
        (printed("1.5", ""), [2.0], 0.0, math.inf),
    ],
)
def test_a_side_without_a_deviation_takes_the_others(
    claim: Claim, ours: list[float], square: float, freedom: float
) -> None:
    error, found = rests.spread(claim, ours)
    assert (error**2, found) == (pytest.approx(square), pytest.approx(freedom))
    known = standard_error(claim.printed_std, claim.seeds, claim.ddof, ours)
    assert error == pytest.approx(known or 0.0)


def row(name: str, verdict: str, values: list[float], value: float, **other: object) -> dict[str, object]:
    gap = sum(values) / len(values) - value if values else math.nan
    found = {"claim_id": name, "paper": "clove", "dataset": "mnist", "setting": "label-skew-1", "method": "clove",
             "metric": "accuracy", "profile": "released", "verdict": verdict, "reason": "", "also_accepts": "",
             "seeds": len(values), "standardised": 1.0, "difference": gap,
             "values": "; ".join(f"{seed}: {one}" for seed, one in enumerate(values))}  # fmt: skip
    return found | other


def test_each_kind_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance 1. Wide: |d| = .9, 2 e = 2 sqrt(.2) = .89, but t_.95 with 4 degrees is 2.13: .9 + .95 > 1.

    Sure: d = 0, so .95 is within 1, which 2.78 e of the wider interval wouldn't be. Near: d = 3.5, 2 e = 2, but t_.975
    with 2 degrees is 4.30, and t_.95 only 2.92; far: d = 9.
    """
    mine = {"wide": printed("50.0", "0.4472136"), "sure": printed("50.0", "0.4472136"),
            "one": printed("50.0", "0"), "near": printed("50.0", "0"),
            "far": printed("50.0", "0"), "again": printed("1", "0", metric="ari")}  # fmt: skip
    monkeypatch.setattr(rests, "_by_name", lambda: mine)
    three = np.array([-1.0, 0.0, 1.0])
    rows = [
        row("wide", REPRODUCED, list(50.9 + three * math.sqrt(0.3)), 50.0, also_accepts="ifca"),
        row("sure", REPRODUCED, list(50 + three * math.sqrt(0.3)), 50.0),
        row("one", REPRODUCED, [50.5], 50.0, standardised=math.nan),
        row("empty", REPRODUCED, [], 0.0, standardised=math.nan, reason="both empty: not reached"),
        row("again", REPRODUCED, [1.0, 1.0], 1.0, standardised=math.nan, metric="ari_round_10", method="pacfl"),
        row("near", DIFFERS, list(53.5 + three * math.sqrt(3)), 50.0),
        row("far", DIFFERS, list(59 + three * math.sqrt(3)), 50.0),
        row("empty", DIFFERS, [], 0.0),
        row("other", UNDECIDED, [1.0], 0.0),
    ]  # fmt: skip
    assert rests.sentences(rows) == (
        "Of the 5 reproduced numbers, 3 have no noise on either side (in 1 of these both sides are empty), and 1 rest "
        "on a single seed of ours. 1 also agree with the number printed for another method in the same cell, so they "
        "don't tell these methods apart. 1 follow from another number: where a method clusters only once, its final "
        "ARI gives the ARI after ten rounds and the first round with .9. Leaving out such numbers and those by "
        "construction, 8 are judged, 1 of them undecided (12%). By two one-sided tests at 5%, 1 of the "
        "reproduced numbers wouldn't be equivalent to print. Of the 3 that differ, 1 wouldn't by Student's 95% "
        "interval, which allows for few seeds."
    )
    assert rests.sentences(rows[-1:]) == "No number is reproduced."


def test_only_methods_that_cluster_once_say_it_again() -> None:
    assert rests.follows(row("a", REPRODUCED, [1.0], 1.0, metric="first_round_ari_0.9", method="flexcfl"))
    assert not rests.follows(row("a", REPRODUCED, [1.0], 1.0, metric="ari", method="flexcfl"))
    assert not rests.follows(row("a", REPRODUCED, [1.0], 1.0, metric="ari_round_10", method="ifca"))
