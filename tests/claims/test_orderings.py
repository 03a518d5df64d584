"""Verdicts on orderings by hand cases: what is missing or within the noise never holds."""

from __future__ import annotations

import pytest

from clusterfl.claims.grammar import Combination
from clusterfl.claims.orderings import KINDS, judge, kind
from clusterfl.claims.printed import orderings

YES, NO, LIKELY, HARDLY = (True, True), (False, True), (True, False), (False, False)  # holds, clear


def combinations(*held: tuple[bool, bool], missing: tuple[str, ...] = ()) -> list[Combination]:
    return [Combination(("d", "s", "m", str(i)), h, c, 3, 2 if h else 0, missing) for i, (h, c) in enumerate(held)]


@pytest.mark.parametrize(
    "held, asked_for, verdict, name",
    [
        ([YES] * 2, 2, "holds", "holds"),
        ([YES] * 2, 3, "holds for those run", "holds for those run"),
        ([YES] * 4 + [LIKELY] * 7 + [HARDLY], 12, "holds in 4, undecided in 8, of 12 (33 %)", "holds in part"),
        ([YES, NO], 2, "holds in 1, fails in 1, of 2 (50 %)", "holds in part"),
        (
            [YES] * 15 + [NO] * 2 + [LIKELY],
            18,
            "holds in 15, fails in 2, undecided in 1, of 18 (83 %)",
            "holds in part",
        ),
        ([NO] * 2, 2, "fails", "fails"),
        ([NO, LIKELY], 2, "fails in 1, undecided in 1, of 2", "fails"),
        ([LIKELY] * 8, 8, "undecided", "undecided"),
        ([LIKELY, HARDLY], 3, "undecided", "undecided"),
    ],
)
def test_verdicts(held: list[tuple[bool, bool]], asked_for: int, verdict: str, name: str) -> None:
    found = judge(combinations(*held), asked_for)
    assert found.verdict == verdict and kind(verdict) == name in KINDS
    assert (found.combinations, found.evaluated, found.holding) == (asked_for, len(held), held.count(YES))
    assert (found.failing, found.undecided) == (held.count(NO), held.count(LIKELY) + held.count(HARDLY))
    assert found.share == held.count(YES) / len(held)
    assert (found.seeds, found.seeds_holding) == (3 * len(held), 2 * sum(h for h, _ in held))


def test_every_kind_is_its_own() -> None:
    assert [kind(name) for name in KINDS] == list(KINDS)


def test_what_is_missing_is_named_and_limits_the_verdict() -> None:
    found = judge(combinations(YES, LIKELY, missing=("b",)), 5)
    assert found.reason == (
        "3 of 5 combinations not run; 1 of 2 within two joint standard errors, or without a deviation; without b"
    )
    assert judge(combinations(YES, missing=("b",)), 1).verdict == "holds for those run"
    (one,) = combinations(YES, missing=("b", "c"))
    assert judge([one.without(["c"])], 1).reason == "without b"  # print lacks c as well
    assert judge([one.without(["b", "c"])], 1).verdict == "holds"


def test_orderings_that_cannot_fail_say_so() -> None:
    found = {ordering.claim_id: ordering.constructed for ordering in orderings() if ordering.constructed}
    assert found == {
        "order/lcfl/warm-up-equals-fedavg": "LCFL is FedAvg in the warm-up",
        "order/rr-cluster/no-collapse-synthetic": "rebalancing gives every model clients in each round",
    }
