"""The rule by hand arithmetic, what notes mean for it, and the claims as they are stored."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfl.claims import notes, scale, verdicts
from clusterfl.claims.ours import problems
from clusterfl.claims.printed import EMPTY, Claim, claims, orderings
from clusterfl.claims.verdicts import Print, verdict
from clusterfl.config import loading


def asked(printed: float | None, *values: float, **more: Any) -> verdicts.Verdict:
    """Return the verdict; what is of print are the fields of `Print`."""
    own = {name: more.pop(name) for name in list(more) if name in Print.__dataclass_fields__ and name != "empty"}
    if "printed_empty" in more:
        own["empty"] = more.pop("printed_empty")
    return verdict(Print(printed, **{"metric": "accuracy", "decimals": 2} | own), values, **more)


def test_reproduced_needs_the_noise_within_the_tolerance() -> None:
    # Of 90 + s and 90 - s the standard error is s: twice of it is held against the tolerance of one point.
    assert asked(90, 90.5, 89.5).verdict == "reproduced"  # exactly
    assert asked(90, 90.51, 89.49).verdict == "undecided"
    found = asked(91, 90.5, 89.5)  # off by the tolerance, the noise as large: both inclusive
    assert found[:2] == ("reproduced", "within 1 (tolerance); twice the joint standard error is 1")
    assert (found.difference, found.standardised) == pytest.approx((-1, -2))
    assert asked(91.01, 90.5, 89.5).verdict == "differs"


def test_more_noise_never_makes_a_number_reproduced() -> None:
    verdicts_ = [asked(90, 91.5 + s, 91.5 - s).verdict for s in (0, 0.4, 0.7, 0.8, 3, 9)]
    assert verdicts_ == ["differs", "differs", "differs", "undecided", "undecided", "undecided"]
    found = asked(1.0, 0.97, 1.0, 0.98, metric="ari")  # .983 of 1.00: within .02, but 2 x .0088 is within, too
    assert found.verdict == "reproduced"
    assert asked(1.0, 0.96, 1.0, 0.99, metric="ari").verdict == "undecided"  # the same mean, 2 x .012


def test_twice_the_joint_standard_error() -> None:
    # 0.6^2 / 4 + 2 / 2 = 1.09: twice the root is 2.088.
    more: dict[str, Any] = {"std": 0.6, "seeds": 4}
    found = asked(90, 91, 93, **more)
    assert found.verdict == "undecided"
    assert found.reason == "higher by 2, allowed 1 (tolerance); twice the joint standard error is 2.09"
    assert (found.difference, found.standardised) == pytest.approx((2, 2 / 1.09**0.5))
    found = asked(90, 91.1, 93.1, **more, better="higher")
    assert found.verdict == "differs"
    assert found.reason == "higher by 2.1, allowed 1 (tolerance), better; twice the joint standard error is 2.09"


def test_population_form_is_made_that_of_a_sample() -> None:
    # 1.2 over 3 seeds: variance 1.44 x 3 / 2 = 2.16; 2.16 / 3 = 0.72, and as much again for each of our three seeds.
    assert verdicts.standard_error(1.2, 3, 0, [1.0, 1.0]) == pytest.approx(0.72**0.5)
    assert verdicts.standard_error(1.2, 3, 1, [1.0, 1.0]) == pytest.approx(0.48**0.5)
    assert verdicts.standard_error(1.2, 2, 0, [1.0, 1.0]) == pytest.approx(1.2)  # 1.44 x 2 / 1 over two seeds
    assert verdicts.standard_error(1.2, 1, 0, [1.0, 1.0]) == pytest.approx(1.2)


@pytest.mark.parametrize("std, count", [(None, 3), (0.5, None), (None, None)])
def test_what_print_does_not_say_adds_nothing(std: float | None, count: int | None) -> None:
    assert verdicts.standard_error(std, count, 1, [1.0, 3.0]) == pytest.approx(1)


def test_one_run_takes_the_deviation_of_the_other_side() -> None:
    # Ours of one seed: 0.3^2 / 3 + 0.3^2 / 1 = 0.12.
    assert verdicts.standard_error(0.3, 3, 1, [1.0]) == pytest.approx(0.12**0.5)
    assert verdicts.standard_error(0.3, None, 1, [1.0]) == pytest.approx(0.3)  # print doesn't say over how many
    # Print of one run: ours has the deviation sqrt(2), 2 / 1 + 2 / 2 = 3.
    assert verdicts.standard_error(None, 1, 1, [1.0, 3.0]) == pytest.approx(3**0.5)
    assert verdicts.standard_error(None, 1, 1, [1.0]) is None
    assert asked(90, 90.2, std=0.3, seeds=3).verdict == "reproduced"  # 2 x .346
    assert asked(90, 90.2, std=0.5, seeds=3).verdict == "undecided"  # 2 x .577


def test_without_any_deviation_nothing_is_decided() -> None:
    assert asked(90, 90.0)[:2] == ("undecided", "equal; neither side has a deviation")
    assert asked(90, 80.0)[:2] == ("undecided", "lower by 10; neither side has a deviation")
    assert asked(90, 90.0, 90.0).verdict == "reproduced"  # ours has one, of zero


@pytest.mark.parametrize(
    "printed, ours, metric, decimals, approximate, expected",
    [
        (90.0, 91.0, "accuracy", 2, False, "reproduced"),  # the tolerance, inclusive
        (90.0, 91.01, "accuracy", 2, False, "differs"),
        (90.0, 88.99, "accuracy", 2, False, "differs"),
        (37, 40, "rounds_to_accuracy_90", 0, True, "reproduced"),
        (0.9, 0.95, "rand", 1, False, "reproduced"),  # rounding of one digit is wider than the tolerance
        (0.9, 0.96, "rand", 1, False, "differs"),
        (0.9, 1.0, "rand", 1, True, "reproduced"),  # "about 0.9"
        (3.0, 4.0, "first_round_ari_0.9", 1, False, "reproduced"),
        (3.0, 4.1, "first_round_ari_0.9", 1, False, "differs"),
    ],
)
def test_rounding_and_tolerances(
    printed: float, ours: float, metric: str, decimals: int, approximate: bool, expected: str
) -> None:
    found = asked(printed, ours, ours, metric=metric, decimals=decimals, approximate=approximate)
    assert found.verdict == expected and found.standardised is None
    if expected == "differs":
        assert found.reason.startswith("higher" if ours > printed else "lower")


@pytest.mark.parametrize(
    "printed, values, expected",
    [
        (3, (2, 2, 3), "undecided"),  # 2.33 rounds to 2; twice the standard error is 2/3, as far as print is
        (2, (2, 2, 3), "undecided"),  # rounds to print, but the noise is larger than half a cluster
        (5, (5, 5, 5), "reproduced"),
        (5, (4, 4, 4), "differs"),
        (5, (5, 6) * 2, "undecided"),  # 5.5 rounds to neither
        (5, (5, 6) * 3, "undecided"),  # nor here, where twice the standard error is .447, less than half a cluster
        (5, (5,) * 15 + (6,), "reproduced"),  # 5.06, twice the standard error is .125
        (5, (5,) * 9 + (6,) * 11, "differs"),  # 5.55 rounds to 6, and .55 is more than 2 x .114
    ],
)
def test_counts_must_round_to_print(printed: int, values: tuple[int, ...], expected: str) -> None:
    found = asked(printed, *values, metric="n_clusters", decimals=0)
    assert found.verdict == expected


def test_what_cannot_fail_is_by_construction() -> None:
    why = {"metric": "n_clusters", "decimals": 0, "constructed": "the number is given"}
    assert asked(5, 5, **why)[:2] == ("by construction", "the number is given")  # one seed, no deviation: all the same
    assert asked(5, 4, 4, **why).verdict == "differs"
    gone = {"metric": "was", "printed_empty": "undefined for one cluster", "constructed": "one model"}
    assert asked(None, empty="undefined for one cluster", **gone)[:2] == ("by construction", "one model")


def test_direction_is_judged_by_what_is_better() -> None:
    noise = "; twice the joint standard error is 0"
    assert asked(90, 80, 80, better="higher").reason.endswith(f", worse{noise}")
    assert asked(90, 80, 80, better="lower").reason.endswith(f", better{noise}")
    assert asked(90, 80, 80).reason == f"lower by 10, allowed 1 (tolerance){noise}"


def test_empty_numbers() -> None:
    never = {"metric": "first_round_ari_0.9", "printed_empty": "not reached"}
    assert asked(None, empty="not reached", **never).verdict == "reproduced"
    assert asked(None, 3.0, empty="not reached", **never).verdict == "reproduced"  # one of two seeds
    assert asked(None, 3.0, **never) == ("differs", "print is empty (not reached), ours is not", None, None)
    assert asked(None, empty="diverged", **never).verdict == "differs"
    found = asked(2.0, 2.0, empty="not reached", metric="first_round_ari_0.9")
    assert found[:2] == ("differs", "ours is empty (not reached), print is not")
    with pytest.raises(ValueError, match="neither values nor a reason"):
        asked(90)


def test_order_of_the_questions() -> None:
    found = asked(90, 95, incomparable="misprint")
    assert found[:3] == ("not comparable", "misprint", 5)
    assert asked(90, 90, incomparable="misprint", constructed="one model")[:2] == ("not comparable", "misprint")
    gone: dict[str, Any] = {"metric": "was", "printed_empty": "not reached"}
    assert asked(None, 0.5, incomparable="misprint", **gone)[:2] == ("not comparable", "misprint")
    assert asked(None, empty="not reached", incomparable="misprint", **gone)[0] == "not comparable"


def test_every_metric_has_a_tolerance() -> None:
    assert {claim.metric for claim in claims()} == set(verdicts.TOLERANCES)


def test_all_claims_are_there() -> None:
    assert len(claims()) == 1452 == len({claim.claim_id for claim in claims()})
    assert len(orderings()) == 80 == len({ordering.claim_id for ordering in orderings()})
    assert all(claim.empty in EMPTY for claim in claims() if claim.printed is None)
    assert all(math.isfinite(claim.printed) for claim in claims() if claim.printed is not None)


def claim(start: str) -> Claim:
    return next(c for c in claims() if c.claim_id.startswith(start))


def test_fields_of_a_claim() -> None:
    found = claim("clove/table1/label-skew-1/mnist/fedavg")
    assert (found.printed, found.printed_std, found.seeds, found.ddof, found.decimals) == (87.4, 0.9, 3, 0, 1)
    assert claim("lcfl/table2/rotmnist-1200/lcfl/it5").ddof == 1
    assert {c.ddof for c in claims() if c.paper == "lcfl" and "drawn band" in c.note} == {0}
    assert {c.seeds for c in claims() if "single" in c.note} == {1}
    assert claim("rr-cluster/table2/speaking-roles/dp-fedcam/e1").empty == "diverged"


def test_every_note_is_classified_on_purpose() -> None:
    used = {rule for claim in claims() for rule in notes.rules(claim)}  # an error where not exactly one rule fits
    assert used == set(notes.RULES)  # and no rule is about nothing
    unknown = Claim(**vars(claims()[0]) | {"note": "never seen"})
    with pytest.raises(ValueError, match="0 rules for the note 'never seen'"):
        notes.rules(unknown)


@pytest.mark.parametrize(
    "start, profile, reason",
    [
        ("rr-cluster/table1/rotated-balanced/dp-fedavg/e1", "paper", "budget unknown"),
        ("rr-cluster/appd3-text/balanced-hard/ifca", "paper", None),
        ("lcfl/table2/rotmnist-1200/local/it5", "released", "misprint"),
        ("lcfl/table2/rotmnist-1200/lcfl/it5", "released", None),
        ("clove/table4/one-class-50/fashionmnist/local", "paper", "misprint"),
        ("clove/table1/label-skew-1/mnist/fedavg", "released", "another quantity"),
        ("clove/table1/feature-skew/cifar10/clove", "paper", "text and code differ"),
        ("clove/table1/feature-skew/cifar10/clove", "released", None),
        ("clove/table8/label-skew-3/mnist/fedpac", "released", "used to choose a setting"),
        ("clove/table8/label-skew-3/mnist/fedpac", "paper", None),
        ("clove/table8/label-skew-3/fashionmnist/fedpac", "released", None),
        ("fedgwc/table1/femnist/fedavg/accuracy", "paper", "misprint"),
        ("clove/table5/label-skew-1/mnist/ifca/first", "paper", None),
    ],
)
def test_what_is_compared(start: str, profile: str, reason: str | None) -> None:
    found = notes.incomparable(claim(start), profile)
    assert found is None if reason is None else str(found).startswith(reason)


def test_what_a_setting_was_chosen_by_is_there_and_has_that_setting() -> None:
    """Of every such cell, both networks: what the runs that were compared had."""
    released = scale.shipped("clove", (1,))
    for paper, cell, method, profile in notes.CHOSEN_BY:
        assert paper == "clove" and any((c.cell, c.method) == (cell, method) for c in claims() if c.paper == paper)
        networks = {
            name: released.job("federate", place[0], 1, place[1]).settings["model"]["model"]
            for name in ("paper", "released")
            if (place := scale.named(released, name, cell, method))
        }
        assert networks == {"paper": "clove-cnn", "released": "rr-cnn"} and profile == "released"


PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")


def test_the_page_has_the_tolerances_of_the_code() -> None:
    table = PAGE.partition("<!-- tolerances -->")[2].partition("\n\n")[0]
    assert dict(re.findall(r"\| `(\S+)` \| (\S+) \|", table)) == {k: str(v) for k, v in verdicts.TOLERANCES.items()}


def test_the_page_s_block_is_one_of_the_reduced_studies() -> None:
    (text,) = re.findall(r"<!-- claims: clove -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    folder = Path(__file__).parents[2] / "workflow" / "studies" / "reduced"
    study = loading.load(loading.read([folder / "common.yaml", folder / "label-skew.yaml"]) | yaml.safe_load(text))
    assert study.claims is not None and study.claims.profiles() == ["released", "paper"] and not problems(study)
