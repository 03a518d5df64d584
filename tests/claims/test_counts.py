"""What can be reached, and what the verdicts would be with the methods' names exchanged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clusterfl.claims import counts, exchange, gather, notes, scale
from clusterfl.claims.exchange import Cell
from clusterfl.claims.printed import claims
from clusterfl.config.federation import Dataset
from clusterfl.data import MIRROR
from clusterfl.data.catalogue import rows as catalogue

ROOT = Path(__file__).parents[2]


def test_kinds_of_numbers() -> None:
    kinds = Counter(map(counts.kind, claims()))
    assert kinds == {"printed once": 1136, "released, not in print": 229, "repeats": 87}
    assert {c.paper for c in claims() if c.released} == {"lcfl", "clove"}
    assert sum("digitised from a released figure" in c.note for c in claims() if c.released) == 217


def test_each_number_is_counted_once_and_by_what_is_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "at_hand", lambda dataset: dataset.part != "cifar100")
    kinds, reaches = counts.counted()
    assert sum(own.total() for own in kinds.values()) == sum(own.total() for own in reaches.values()) == len(claims())
    fedgwc = [c for c in claims() if c.paper == "fedgwc" and notes.incomparable(c, "paper") is None]
    assert reaches["fedgwc"][counts.NO_DATA] == sum(c.dataset == "cifar100" for c in fedgwc)
    assert reaches["rr-cluster"]["budget unknown"] == sum("stripped in the source" in c.note for c in claims())
    own = scale.claims_of(scale.shipped("clove"))
    lacking = [
        c for c in claims() if c.paper == "clove" and counts.reach(c, scale.shipped("clove")) == "method not built"
    ]
    assert all(scale.named(scale.shipped("clove"), own.profile, c.cell, c.method) is None for c in lacking)
    assert len(lacking) == reaches["clove"][counts.NO_METHOD]


def test_every_reason_of_a_note_has_a_count() -> None:
    reasons = {rule.reason for rule in notes.RULES if rule.reason is not None}
    reasons |= {why for why, _ in notes.ELSEWHERE.values()}
    assert all(sum(reason.startswith(name) for name in counts.NOTED) == 1 for reason in reasons)


def test_data_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MIRROR, raising=False)
    mnist, digits = Dataset(dataset="mnist"), Dataset(dataset="digits")
    assert counts.at_hand(digits) and not counts.at_hand(mnist)
    monkeypatch.setenv(MIRROR, str(tmp_path))
    assert not counts.at_hand(mnist)
    (whole,) = catalogue()["mnist"].sources  # of four files
    for number, file in enumerate(whole, 1):
        place = tmp_path / file.mirror[number % 2]  # as it is, or packed
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert counts.at_hand(mnist) == (number == len(whole) == 4)
    monkeypatch.setenv(MIRROR, "https://mirror.example/data")
    assert counts.at_hand(mnist)
    monkeypatch.delenv(MIRROR)
    prepared = tmp_path / "data/mnist/samples.safetensors"
    prepared.parent.mkdir(parents=True)
    prepared.touch()
    assert counts.at_hand(mnist)


# Of two methods whose numbers are far apart, one that equals print of the other would be wrong. In the second cell the
# rule can't tell them apart.
APART = Cell(("a", "b"), {(0, 0): "reproduced", (1, 1): "undecided", (0, 1): "differs", (1, 0): "differs"})
EQUAL = Cell(("a", "b"), dict.fromkeys([(0, 0), (1, 1), (0, 1), (1, 0)], "reproduced"))


def test_exchanging_by_hand() -> None:
    found = exchange.exchange([APART, EQUAL])
    assert found is not None and (found.cells, found.numbers) == (2, 4)
    assert found.as_named == {"reproduced": 3, "differs": 0}
    assert found.exchanged == {"reproduced": 2.0, "differs": 2.0}
    assert found.p_value == pytest.approx(0.5, abs=0.02)  # half of the draws leave the first cell as it is
    three = Cell(("a", "b", "c"), {(i, j): "reproduced" if i == j else "differs" for i in range(3) for j in range(3)})
    more = exchange.exchange([three] * 4)
    assert more is not None and more.as_named == {"reproduced": 12, "differs": 0}
    assert more.exchanged == {"reproduced": 0.0, "differs": 12.0}
    assert more.p_value == pytest.approx((1 + 9999 / 6**4) / 10000, abs=0.001)
    assert exchange.exchange([]) is None


def test_a_rule_that_cannot_tell_methods_apart_is_found_out() -> None:
    found = exchange.exchange([EQUAL] * 20)
    assert found is not None and found.exchanged == found.as_named and found.p_value == 1


@pytest.mark.slow
def test_exchanged_verdicts_on_the_committed_evidence_are_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as runs of two methods of a cell are committed, those beside each other's print must be worse off."""
    monkeypatch.chdir(tmp_path)
    results = gather.studies([ROOT / "docs/reproduction/evidence"])
    found = exchange.exchange(exchange.cells(results))
    if found is None:
        pytest.skip("no committed run that counts has a second method's beside it")
    assert found.exchanged["reproduced"] < found.as_named["reproduced"]
    assert found.exchanged["differs"] > found.as_named["differs"]
    assert f"p = {found.p_value:.2g}" in exchange.sentence(results)


def test_without_results_nothing_is_exchanged() -> None:
    assert exchange.sentence([]).startswith("Methods' names can't be exchanged")
