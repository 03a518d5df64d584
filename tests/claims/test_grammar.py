"""The orderings' grammar by hand cases, and on the printed numbers against the verdicts their notes record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from clusterfl.claims import grammar
from clusterfl.claims.grammar import Key, Number, combination, parse
from clusterfl.claims.printed import Ordering, claims, orderings

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("ordering", orderings(), ids=lambda o: o.claim_id)
def test_printed_numbers_give_the_noted_verdict(ordering: Ordering) -> None:
    found = grammar.on_print(ordering)
    said = f"holds in {sum(c.holds for c in found)} of {len(found)}" if found else "no number"
    assert said == ordering.on_print


def test_a_printed_number_is_that_of_the_orderings_table_and_its_deviation_one_of_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ordering("a", ">", "b")  # names Table 1
    first = next(one for one in claims() if one.paper == "clove" and one.printed_std and not one.repeats)
    stored = [
        replace(first, where="Table 3", value="1", note="repeats x"),
        replace(first, where="Table 2", value="2", note="", std="0.6", n_seeds="3"),
        replace(first, where="Table 1", value="3", note="repeats x"),
    ]
    key = Key("d", "s", "a", "accuracy", "final")
    for many, expected in ((3, 3.0), (2, 2.0), (1, 1.0)):  # the table asked for; what repeats no other; what there is
        monkeypatch.setattr(grammar, "_printed", lambda many=many: {("clove", key): stored[:many]})
        number = grammar.printed_lookup(asked)(key)
        assert number is not None and number.mean == expected
        if many == 2:
            assert number.std == pytest.approx(0.6 * math.sqrt(3 / 2))  # CLoVE's divides by n
    assert grammar.printed_lookup(asked)(key._replace(method="b")) is None


def test_operands() -> None:
    assert parse("0.5").constant == 0.5 and parse("-1").constant == -1 and parse("empty").empty
    assert parse("fedgwc+fedavgm").methods[0].name == "fedgwc+fedavgm"
    one, other = parse("min(a;std:b-c{at=60})").methods
    assert (one.name, one.std, other.name, other.std, other.value) == ("a", False, "b-c", True, "60")
    assert parse("max(a;b)").choose == "max" and parse("a").choose is None


@pytest.mark.parametrize(
    "text, said",
    [
        ("least(a;b)", "allowed: a number, empty, a method, min"),
        ("min()", "allowed"),
        ("min(a;;b)", "operand ''"),
        ("a{round=3}", "'round' is unknown; allowed: setting, at, suffix"),
        ("a{at=3", "operand 'a{at=3'"),
        ("", "operand ''"),
        ("A", "operand 'A'"),
    ],
)
def test_what_is_not_in_the_grammar(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@pytest.mark.parametrize(
    "text, setting, key",
    [
        ("a{suffix=-b4}", "s@e1", ("s-b4@e1", "5")),
        ("a{suffix=-b4}", "s", ("s-b4", "5")),
        ("a{suffix=@e3}", "s", ("s@e3", "5")),
        ("a{setting=t}", "s", ("t", "5")),
        ("a{at=60}", "s", ("s", "60")),
        ("a", "s@e1", ("s@e1", "5")),
    ],
)
def test_where_a_method_is_looked_up(text: str, setting: str, key: tuple[str, str]) -> None:
    assert parse(text).methods[0].at("d", setting, "ari", "5") == Key("d", key[0], "a", "ari", key[1])


def ordering(left: str, relation: str, right: str, metric: str = "accuracy", note: str = "") -> Ordering:
    return Ordering("order/x", "clove", "Table 1", "", "d", "s", metric, "final", left, relation, right, note)


def asked(text: str, metric: str = "accuracy", note: str = "", **numbers: Number):
    """Return the combination of an ordering, given as `left relation right`, on the numbers of methods."""
    left, relation, right = text.split()
    return combination(
        ordering(left, relation, right, metric, note), ("d", "s", metric, "final"), lambda key: numbers.get(key.method)
    )


def seeds(*values: float, decimals: int | None = None) -> Number:
    finite = all(map(math.isfinite, values)) and len(values) > 1
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if finite else None
    return Number(mean, std, dict(enumerate(values)), decimals)


@pytest.mark.parametrize(
    "text, holds, holding",
    [
        ("a > b", True, 2),  # means 4 and 3
        ("a >= b", True, 2),
        ("a < b", False, 1),
        ("a <= 4", True, 2),
        ("a < 4", False, 1),
        ("min(a;b) < 3", False, 2),  # of means 3; of seeds 1, 2, 5
        ("max(a;b) > 4", False, 1),  # of means 4; of seeds 3, 4, 6
        ("min(a;gone) <= 4", True, 2),
        ("a == empty", False, 0),
    ],
)
def test_relations_by_seed_and_on_the_means(text: str, holds: bool, holding: int) -> None:
    found = asked(text, a=seeds(3, 4, 5), b=seeds(1, 2, 6))
    assert found is not None
    assert (found.holds, found.seeds, found.seeds_holding) == (holds, 3, holding)
    assert found.missing == (("gone",) if "gone" in text else ())


@pytest.mark.parametrize("text", ["a > gone", "gone > a", "min(gone;lost) < 5", "std:one > a"])
def test_no_number(text: str) -> None:
    assert asked(text, a=seeds(3, 4, 5), one=seeds(3)) is None


def test_only_seeds_that_both_have_count() -> None:
    found = asked("a > b", a=Number(2.0, None, {0: 1.0, 1: 3.0}), b=Number(1.5, None, {1: 2.0, 2: 1.0}))
    assert found is not None and (found.seeds, found.seeds_holding) == (1, 1)


def test_not_reached_is_infinite_and_empty() -> None:
    numbers = {"never": seeds(3, INF), "soon": seeds(2, 3), "undefined": seeds(NAN, NAN)}

    def holds(text: str) -> tuple[bool, int]:
        found = asked(text, "first_round_ari_0.9", **numbers)
        assert found is not None
        return found.holds, found.seeds_holding

    assert holds("soon < never") == (True, 2)
    assert holds("never < never") == (False, 0)
    assert holds("never == empty") == (True, 1)  # the mean is not there if one seed isn't
    assert holds("undefined == empty") == (True, 2)
    assert asked("undefined < 3", "first_round_ari_0.9", **numbers) is None  # no number, not a failure
    assert asked("soon > undefined", "first_round_ari_0.9", **numbers) is None
    assert holds("soon < min(never;undefined)") == (True, 2)


def test_equal_within_half_of_the_last_printed_digit_and_counts_exactly() -> None:
    def holds(text: str, metric: str, number: Number) -> bool:
        found = asked(text, metric, a=number)
        assert found is not None
        return found.holds

    assert holds("a == 1.0", "rand", seeds(0.951, decimals=1))
    assert not holds("a == 1.0", "rand", seeds(0.949, decimals=1))
    assert not holds("a == 1.0", "ari", seeds(0.99, decimals=2))
    assert holds("a == 4", "n_clusters", seeds(4, 4))
    assert not holds("a == 4", "n_clusters", seeds(4, 3.9))


def test_approx_takes_its_tolerance_from_the_note() -> None:
    for value, expected in ((91.0, True), (91.1, False), (89.0, True)):
        found = asked("a approx 90", note="print: no number; tol=1.0; words", a=seeds(value, value))
        assert found is not None and found.holds == expected and found.clear
    with pytest.raises(ValueError, match="without tol="):
        asked("a approx 90", a=seeds(90))
    with pytest.raises(ValueError, match="relation '=<'; allowed: ==, approx"):
        asked("a =< 90", a=seeds(90))


def test_equality_is_clear_only_where_the_noise_is_within_the_tolerance() -> None:
    # Of 90 + s and 90 - s the standard error is s, and twice of it is held against the tolerance of 1.
    for s, clear in ((0.5, True), (0.51, False)):
        found = asked("a approx 90", note="print: no number; tol=1.0", a=seeds(90 + s, 90 - s))
        assert found is not None and (found.holds, found.clear) == (True, clear)
    for middle, clear in ((92.9, False), (93.1, True)):  # off by more than the tolerance; the standard error is 1.5
        found = asked("a approx 90", note="print: no number; tol=1.0", a=seeds(middle + 1.5, middle - 1.5))
        assert found is not None and (found.holds, found.clear) == (False, clear)
    count = asked("a == 4", "n_clusters", a=seeds(4, 4, 3))
    assert count is not None and not count.holds and not count.clear  # 1/3 off, twice the standard error is 2/3
    for rounds, holds, clear in (
        ([INF], True, False), ([INF, INF], True, True), ([INF, 3], True, False), ([2, 3], False, True),
    ):  # fmt: skip
        empty = asked("a == empty", "first_round_ari_0.9", a=seeds(*rounds))
        assert empty is not None and (empty.holds, empty.clear) == (holds, clear)


def test_standard_deviation() -> None:
    # Deviations 2.83 and 0.71 of two seeds: their errors are s / sqrt(2), 2 and 0.5; twice the joint one is 4.12.
    found = asked("std:a > std:b", a=seeds(1, 5), b=seeds(2, 3))
    assert found is not None and found.holds and found.seeds == 0 and not found.clear
    # Of three seeds: 1 with the error 1 / sqrt(4), .5, and .1 with .05; twice the joint one is 1.005, the gap .9.
    found = asked("std:a > std:b", a=seeds(1, 2, 3), b=seeds(0.1, 0.2, 0.3))
    assert found is not None and found.holds and not found.clear
    # Of five seeds: 31.6 with the error 31.6 / sqrt(8) = 11.2, and 0.32 with 0.11; twice the joint one is 22.4.
    found = asked("std:a > std:b", a=seeds(0, 20, 40, 60, 80), b=seeds(0, 0.2, 0.4, 0.6, 0.8))
    assert found is not None and found.holds and found.clear
    assert asked("std:a > std:b", a=seeds(1, 5), b=Number(2.0, 0.5, {0: 2.0})) is None  # that of print isn't ours


def test_clear_means_more_than_two_joint_standard_errors() -> None:
    # Variances 2 and 2 over two seeds each: the joint standard error is sqrt(1 + 1), twice of it 2.83.
    for shift, clear in ((2.8, False), (2.9, True), (-2.8, False), (-2.9, True)):
        found = asked("a > b", a=seeds(shift + 1, shift - 1), b=seeds(1, -1))
        assert found is not None and (found.clear, found.holds) == (clear, shift > 0)
    exact = asked("a > b", a=seeds(2, 2), b=seeds(1, -1))  # twice the error is 2, as the difference: undecided
    assert exact is not None and exact.holds and not exact.clear
    one = asked("a > b", a=seeds(9.0), b=seeds(0.0))  # one seed: no spread is known
    assert one is not None and one.holds and not one.clear
    lent = asked("a > b", a=Number(9.0, 2.0, {0: 9.0}), b=seeds(0.0, 0.0))  # that of print: 9 against 2 x 2
    assert lent is not None and lent.clear
    same = asked("a >= 1.0", a=seeds(1.0, 1.0))
    assert same is not None and same.clear and same.holds
    tie = asked("a > b", a=seeds(1.0, 1.0), b=seeds(1.0, 1.0))  # doesn't hold, but isn't clearly not so either
    assert tie is not None and not tie.holds and not tie.clear
    # Maxima of b and c by seed: 3 and 6, the standard error 1.5. That d has one seed doesn't make it smaller.
    rivals = {"b": seeds(3, 5), "c": seeds(1, 6), "d": Number(3.0, 0.1, {0: 3.0})}
    for ours, clear in ((seeds(7.1, 7.1), True), (seeds(6.9, 6.9), False)):
        most = asked("a > max(b;c;d)", a=ours, **rivals)  # the mean is b's 4
        assert most is not None and most.holds and most.clear == clear


def test_what_was_not_reached_is_clear_if_all_seeds_agree() -> None:
    for never, clear in (((INF, INF), True), ((INF, 1), False), ((INF, 9), True)):
        found = asked("a < b", "first_round_ari_0.9", a=seeds(2, 3), b=seeds(*never))
        assert found is not None and (found.holds, found.clear) == (True, clear)
    one = asked("a < b", "first_round_ari_0.9", a=seeds(2), b=seeds(INF))
    assert one is not None and not one.clear  # one seed
    neither = asked("a < b", "first_round_ari_0.9", a=seeds(INF, 3), b=seeds(INF, INF))
    assert neither is not None and not neither.clear


@pytest.mark.parametrize(
    "text, metric, expected",
    [
        ("a > 95", "accuracy", True),
        ("a > b", "accuracy", False),
        ("a == 1.0", "ari", False),
        ("a == empty", "accuracy", False),
    ],
)
def test_scores_against_a_number_are_absolute(text: str, metric: str, expected: bool) -> None:
    left, relation, right = text.split()
    assert (
        grammar.absolute(replace(orderings()[0], left=left, relation=relation, right=right, metric=metric)) == expected
    )
