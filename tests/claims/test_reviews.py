"""Orderings as claims with what came of them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfl.claims import reviews, scale
from clusterfl.claims.orderings import KINDS
from clusterfl.claims.printed import orderings


def test_every_verdict_has_an_outcome() -> None:
    assert set(reviews.OUTCOMES) == set(KINDS)
    allowed = {"validated", "partially supported", "contradicted", "inconclusive", "not tested"}
    assert set(reviews.OUTCOMES.values()) == allowed


def test_an_ordering_is_a_claim_and_a_review_of_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nothing was run here
    found = list(reviews.entities(scale.shipped("lcfl")))
    own = [one for one in orderings() if one.paper == "lcfl"]
    assert [one["@type"] for one in found] == ["Claim", "ClaimReview"] * len(own)
    for ordering, claim, review in zip(own, found[::2], found[1::2], strict=True):
        assert claim["text"] == review["claimReviewed"] == ordering.statement
        assert review["itemReviewed"] == {"@id": claim["@id"]}
        assert review["reviewAspect"].endswith("confidence: none")
        assert review["name"].startswith("not tested")


@pytest.mark.parametrize(
    ("row", "confidence", "limits"),
    [
        (
            {"verdict": "holds in 2, fails in 1", "scale": "lite", "combinations": 3, "evaluated": 3, "seeds": 9}
            | {"seeds_holding": 6, "reason": ""},
            "weak: other settings than the paper's",
            "scale lite; 6 of 9 seeds hold",
        ),
        (
            {"verdict": "holds for those run", "scale": "paper", "combinations": 3, "evaluated": 2, "seeds": 6}
            | {"seeds_holding": 6, "reason": "1 of 3 combinations not run"},
            "moderate: 2 of 3 combinations",
            "scale paper; 6 of 6 seeds hold; 1 of 3 combinations not run",
        ),
        (
            {"verdict": "holds", "scale": "paper", "combinations": 2, "evaluated": 2, "seeds": 0}
            | {"seeds_holding": 0, "reason": ""},
            "strong",
            "scale paper",
        ),
    ],
)
def test_confidence_and_limits(row: dict[str, Any], confidence: str, limits: str) -> None:
    assert (reviews.confidence(row), reviews.limits(row)) == (confidence, limits)
