"""Which rows of a paper aren't compared, whoever ran them."""

from __future__ import annotations

import pytest

from clusterfl.claims import notes
from clusterfl.claims.printed import claims


@pytest.mark.parametrize("method, same", [("fesem", set()), ("flexcfl", {"mnist", "fashionmnist"})])
def test_what_other_code_made_for_cloves_tables_is_compared_where_ours_does_the_same(method, same):
    """CLoVE ran FlexCFL's TensorFlow code for both; FedGWC's FeSEM is another's and is compared."""
    rows = [claim for claim in claims() if claim.method == method]
    assert {claim.paper for claim in rows} == ({"clove", "fedgwc"} if method == "fesem" else {"clove"})
    assert same <= {claim.dataset for claim in rows} - {"cifar10"} and len(rows) > 40
    for claim in rows:
        for profile in ("released", "paper"):
            elsewhere = "made by other code" in (notes.incomparable(claim, profile) or "")
            assert elsewhere == (claim.paper == "clove" and claim.dataset not in same), claim.claim_id


def test_pacfls_accuracies_are_of_other_models_and_its_indices_are_compared():
    """CLoVE reads the line of its released code's log that has each client's accuracy after its local training."""
    rows = [claim for claim in claims() if claim.method == "pacfl"]
    assert {claim.metric for claim in rows} >= {"accuracy", "ari"}
    for claim in rows:
        after = "after local training" in (notes.incomparable(claim, "released") or "")
        assert after == (claim.metric == "accuracy"), claim.claim_id


@pytest.mark.parametrize(
    "method, why, score",
    [
        ("pacfl", "after local training", {"evaluation": "local"}),
        ("per-fedavg", "after a step of adaptation", {"evaluation": "personalised"}),
        ("fedavg", "training accuracy", {"split": "train"}),
    ],
)
def test_numbers_of_other_models_or_data_are_compared_with_runs_that_are_scored_so(method, why, score):
    rows = [c for c in claims() if (c.paper, c.method, c.metric) == ("clove", method, "accuracy")]
    assert len(rows) > 15
    usual = {"evaluation": "aggregated", "split": "test"}
    for claim in rows:
        assert why in (notes.incomparable(claim, "released") or ""), claim.claim_id
        assert why in (notes.incomparable(claim, "released", usual) or ""), claim.claim_id
        assert why not in (notes.incomparable(claim, "released", usual | score) or ""), claim.claim_id


def test_rows_made_elsewhere_are_printed():
    assert {*notes.ELSEWHERE, *notes.OTHER_MODELS} <= {(claim.paper, claim.method) for claim in claims()}
