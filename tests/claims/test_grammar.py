"""The orderings' grammar by hand cases, and on the printed numbers against the verdicts their notes record."""

from __future__ import annotations

import pytest

from clusterfl.claims import grammar
from clusterfl.claims.printed import Ordering, orderings


@pytest.mark.parametrize("ordering", orderings(), ids=lambda o: o.claim_id)
def test_printed_numbers_give_the_noted_verdict(ordering: Ordering) -> None:
    found = grammar.on_print(ordering)
    told = f"holds in {sum(c.holds for c in found)} of {len(found)}" if found else "no number"
    assert told == ordering.on_print
