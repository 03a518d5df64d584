"""The papers' central claims: intervals by hand, verdicts from cells, and what a reader is shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from clusterfl.claims import central, grammar
from clusterfl.claims.grammar import Key, Number
from clusterfl.claims.printed import Ordering


def claim(**given: str) -> Ordering:
    own = {
        "claim_id": "central/x/a", "paper": "clove", "where": "Table 1", "statement": "a is better than b",
        "dataset": "d", "setting": "one|two", "metric": "accuracy", "at": "final", "left": "a", "relation": ">",
        "right": "b", "note": "print: holds in 2 of 2",
    }  # fmt: skip
    return Ordering(**(own | given))


def lookup(numbers: dict[tuple[str, str], list[float]]):
    """Return numbers by (setting, method): a list over seeds."""

    def find(key: Key) -> Number | None:
        values = numbers.get((key.setting, key.method))
        if values is None:
            return None
        return Number(sum(values) / len(values), None, dict(enumerate(values)))

    return find


def test_two_standard_errors_of_three_seeds_by_simulation() -> None:
    draws = stats.norm.rvs(size=(200_000, 3), random_state=1)
    beyond = abs(draws.mean(axis=1)) > 2 * draws.std(axis=1, ddof=1) / math.sqrt(3)
    assert central.by_chance(3, sides=1) == pytest.approx(beyond.mean(), abs=3e-3)
    means, errors = draws.mean(axis=1), draws.std(axis=1, ddof=1) / math.sqrt(3)
    apart = abs(means[::2] - means[1::2]) > 2 * np.hypot(errors[::2], errors[1::2])
    assert central.by_chance(3) == pytest.approx(apart.mean(), abs=3e-3)
    assert central.by_chance(1) == 1


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        ([5, 6, 7], [4, 5, 6], central.SHOWN),  # gaps 4, 5, 6 and 3, 4, 5: both clear
        ([5, 6, 7], [-4, 5, 6], central.IN_PART),  # the second is open
        ([5, 6, 7], [-5, -6, -7], central.MIXED),
        ([-1, 1, 2], [-2, 1, 3], central.NOT_SHOWN),
        ([-5, -6, -7], [-1, 1, 2], central.CONTRADICTED),
        ([5, 6, 7], None, central.IN_PART),  # one cell wasn't run
        (None, None, central.UNTESTED),
    ],
)
def test_verdicts_follow_from_the_cells(one: list[float] | None, two: list[float] | None, verdict: str) -> None:
    numbers = {}
    for setting, gaps in (("one", one), ("two", two)):
        if gaps is not None:
            numbers |= {(setting, "a"): [70 + gap for gap in gaps], (setting, "b"): [70.0] * len(gaps)}
    found = central.evaluate(claim(), lookup(numbers))
    assert found.verdict == verdict


def test_what_is_shown_has_the_gap_its_interval_and_the_cells() -> None:
    numbers = {
        ("one", "a"): [72.0, 74.0],
        ("one", "b"): [71.0, 71.0],
        ("two", "a"): [60.0, 60.0],
        ("two", "b"): [61.0, 61.0],
    }
    found = central.evaluate(claim(), lookup(numbers))
    # per seed: (1 - 1) / 2 = 0 and (3 - 1) / 2 = 1: mean .5, s = .7071, t of one degree 12.706
    half = 12.7062 * 0.5
    assert found.gap == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-3)
    row = central.row(found, "lite", ["training.rounds"])
    assert row["ours"] == "+0.50 points (−5.85 to 6.85); ahead in 1 of 2"
    assert row["cells: so, not so, open"] == "0, 1, 1 of 2"
    assert row["verdict"] == "contradicted, reduced"
    assert row["evidence"] == "weak: other settings than the paper's, 1 guessed setting"
    assert central.row(found, "paper", [])["evidence"] == "strong"


def test_a_rival_without_numbers_keeps_a_claim_from_being_shown() -> None:
    numbers = {(s, m): v for s in ("one", "two") for m, v in {"a": [75.0, 76.0], "b": [70.0, 71.1]}.items()}
    assert central.evaluate(claim(), lookup(numbers)).verdict == central.SHOWN
    found = central.evaluate(claim(right="max(b;c)"), lookup(numbers))
    assert found.verdict == central.IN_PART
    assert "without c" in central.strength(found, "paper", [])


def test_what_must_be_equal_or_reached_counts_runs() -> None:
    equal = claim(metric="ari", relation="==", right="1.0")
    found = central.evaluate(equal, lookup({("one", "a"): [1.0, 1.0], ("two", "a"): [1.0, 0.5]}))
    assert [cell.clear for cell in found.cells] == [1, 0]
    assert central.row(found, "paper", [])["ours"] == "in 3 of 4 runs"
    fast = claim(metric="first_round_ari_0.9", relation="<=", right="3")
    found = central.evaluate(fast, lookup({("one", "a"): [2, 3], ("two", "a"): [math.inf, math.inf]}))
    assert [cell.clear for cell in found.cells] == [1, -1]


def test_a_race_that_nobody_finished_is_open() -> None:
    race = claim(metric="first_round_ari_0.9", relation="<", right="b")
    never, three = [math.inf] * 2, [3, 3]
    found = central.evaluate(
        race, lookup({("one", "a"): never, ("one", "b"): never, ("two", "a"): never, ("two", "b"): three})
    )
    assert [cell.clear for cell in found.cells] == [0, -1]
    alone = central.evaluate(race, lookup({("one", "a"): never, ("one", "b"): never}))
    assert alone.verdict == central.NOT_SHOWN
    assert central.row(alone, "lite", [])["ours"] == "reached by neither in 2 runs"


class Runs:
    """Numbers of one scale, and why there is none."""

    def __init__(self, numbers: dict[str, list[float]], no_number: str = "") -> None:
        self.numbers, self.no_number = numbers, no_number

    def __call__(self, key: Key) -> Number | None:
        values = self.numbers.get(key.method)
        return None if values is None else Number(sum(values) / len(values), None, dict(enumerate(values)))


@pytest.mark.parametrize(
    ("paper", "lite", "shown"),
    [
        (Runs({}), Runs({}), [("–", "untested", "none")]),
        (Runs({}), Runs({}, "undefined"), [("reduced", "no number, reduced", "none: undefined")]),
        (Runs({}, "undefined"), Runs({}), [("paper's", "no number", "none: undefined")]),
        (
            Runs({"a": [5.0, 6.0], "b": [1.0, 2.0]}, "of another cell"),
            Runs({}, "undefined"),
            [("paper's", "shown", "strong"), ("reduced", "no number, reduced", "none: undefined")],
        ),
    ],
)
def test_runs_without_a_number_are_distinguished_from_none(
    monkeypatch: pytest.MonkeyPatch, paper: Runs, lite: Runs, shown: list[tuple[str, str, str]]
) -> None:
    one = claim(dataset="mnist", setting="label-skew-1|label-skew-2")
    monkeypatch.setattr(central, "claims", lambda: [one])
    monkeypatch.setattr(central, "guessed", lambda claim: [])
    rows = central.rows(lambda claim, name: paper if name == "paper" else lite)
    assert [(row["scale"], row["verdict"], row["evidence"]) for row in rows] == shown


def test_all_central_claims_say_of_print_what_it_gives() -> None:
    papers = [one.paper for one in central.claims()]
    assert all(3 <= papers.count(paper) <= 5 for paper in ("lcfl", "rr-cluster", "clove", "fedgwc"))
    for one in central.claims():
        found = grammar.on_print(one)
        assert one.on_print == f"holds in {sum(c.holds for c in found)} of {len(found)}", one.claim_id


def test_guesses_are_those_of_the_shipped_study() -> None:
    by_name = {one.claim_id: central.guessed(one) for one in central.claims()}
    assert "privacy.epsilon" in by_name["central/rr-cluster/over-private-ifca"]
    assert by_name["central/lcfl/over-fedavg"] == []


def test_chance_is_named() -> None:
    text = central.sentence([{"comparisons": 60, "intervals": 40}, {"comparisons": 40, "intervals": 20}])
    assert "100 comparisons, each in one cell. 60 use 95% intervals" in text and "about 3 would" in text
    assert "in 12% of comparisons of equals with 3 seeds, 8% of" in text and "a constant, in 18%, 12%." in text
