"""The papers' orderings and a study's verdicts on them, as claims and reviews in the vocabulary of schema.org."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..pipeline.jobs import Plan
from .central import MODERATE, OTHER, STRONG, WEAK
from .gather import ordering_rows
from .orderings import CONSTRUCTED, FAILS, HOLDS, IN_PART, NO_NUMBER, NOT_RUN, OF_THOSE_RUN, UNDECIDED, kind
from .ours import Results
from .printed import orderings
from .scale import PAPER

# An ordering's verdict in the words of a review.
OUTCOMES = {
    HOLDS: "validated",
    OF_THOSE_RUN: "partially supported",
    IN_PART: "partially supported",
    FAILS: "contradicted",
    UNDECIDED: "inconclusive",
    NO_NUMBER: "inconclusive",
    CONSTRUCTED: "not tested",
    NOT_RUN: "not tested",
}


def entities(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield an entity for each ordering of the study's paper, and one for its review; none without `claims`.

    An ordering is judged at the paper's scale where the study has runs of that scale, and at its own otherwise.
    """
    if plan.study.claims is None:
        return
    results = [Results(plan)]
    for ordering in orderings():
        if ordering.paper != plan.study.claims.paper:
            continue
        paper, lite = ordering_rows(ordering, results)
        row = lite if paper["verdict"] == NOT_RUN else paper
        place = f"#claim-{ordering.claim_id.replace('/', '-')}"
        yield {
            "@id": place,
            "@type": "Claim",
            "name": ordering.claim_id,
            "text": ordering.statement,
            "description": f"{ordering.paper}, {ordering.where}: {ordering.left} {ordering.relation} {ordering.right}",
        }
        yield {
            "@id": f"{place}-review",
            "@type": "ClaimReview",
            "name": f"{OUTCOMES[kind(row['verdict'])]}: {ordering.claim_id}",
            "claimReviewed": ordering.statement,
            "itemReviewed": {"@id": place},
            "reviewAspect": f"verdict: {row['verdict']}; confidence: {confidence(row)}",
            "reviewBody": limits(row),
        }


def confidence(row: dict[str, Any]) -> str:
    """Return how much a verdict is worth: by scale, and by how much was run."""
    if OUTCOMES[kind(row["verdict"])] == "not tested":
        return "none"
    if row["scale"] != PAPER:
        return f"{WEAK}: {OTHER}"
    if row["evaluated"] < row["combinations"]:
        return f"{MODERATE}: {row['evaluated']} of {row['combinations']} combinations"
    return STRONG


def limits(row: dict[str, Any]) -> str:
    """Return scale, seeds and what is missing, in a sentence."""
    parts = [f"scale {row['scale']}", f"{row['seeds_holding']} of {row['seeds']} seeds hold" if row["seeds"] else ""]
    return "; ".join(part for part in [*parts, row["reason"]] if part)
