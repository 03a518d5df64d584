"""Our numbers beside the claims: the command on a study that was run, and made-up outcomes."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import put, tiny, write_yaml
from federations import slow_but

from clusterfl.claims import gather, notes, scale, show
from clusterfl.claims.grammar import Key
from clusterfl.claims.ours import Outcome, Results, problems
from clusterfl.claims.printed import Ordering, claims, orderings
from clusterfl.claims.scale import LITE, PREFIX, Scale
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.chain import STAGES
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage import digest
from clusterfl.storage.store import read_table

CELL = "mnist/label-skew-1"


def small(name: str = "tiny", **more: Any) -> dict[str, Any]:
    study = tiny() | {"study": name, "seeds": {"runs": [0, 1]}, "baseline": None}
    study |= {"warmups": {}, "distances": {}, "clusterings": {}}
    study["training"] |= {"rounds": 6}
    study["methods"] = {
        "fedavg": {"method": "fedavg"},
        "clove": {"method": "clove", "clusters": 2, "stable_rounds": 3},
        "ifca-own": {"method": "ifca", "clusters": 2},
        "ifca-other": {"method": "ifca", "clusters": 2, "first_round": "random"},
    }
    cell = {"federation": "digits"}
    cells = {CELL: cell, "mnist/label-skew-2": cell, "cifar10/label-skew-1-early-stopping": cell}
    block = {"paper": "clove", "cells": cells, "names": {"ifca": "ifca-own"}, "profile": "released"}
    block |= {"others": {"paper": {"names": {"ifca": "ifca-other"}}}, "absent": {"amazon/*": "no reviews at hand"}}
    return study | {"claims": block | more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the study was run."""
    path = tmp_path_factory.mktemp("run")
    before = Path.cwd()
    os.chdir(path)
    try:
        plan = Plan.from_settings(small())
        plan.save()
        for job in plan.jobs():
            if job.stage != "report":
                execute(job)
    finally:
        os.chdir(before)
    return path


@pytest.fixture
def done(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, with the study as the one that ships."""
    shipped = write_yaml(tmp_path / "shipped.yaml", small())
    monkeypatch.setattr(scale, "file", lambda paper: shipped)
    monkeypatch.chdir(folder)
    Plan.from_settings(small()).save()
    return folder


def rows_of(rows: list[gather.Row], start: str) -> gather.Row:
    return next(row for row in rows if row["claim_id"] == start)


def accuracies(method: str, split: str = "test", round_: int = 6) -> list[float]:
    """Return the accuracies of both seeds, final unless said, by a way of its own, in per cent."""
    found = []
    for seed in (0, 1):
        table = pd.read_parquet(f"results/tiny/digits/seed{seed}/methods/{method}/history.parquet")
        last = table[(table["round"] == round_) & (table["split"] == split) & (table["evaluation"] == "aggregated")]
        found.append(100 * last["correct"].sum() / last["n"].sum())
    return found


def test_claims_beside_a_run(done: Path) -> None:
    rows, ordered = gather.write(gather.studies())
    assert len(rows) == 1452 and len(ordered) == 160
    found = rows_of(rows, "clove/table1/label-skew-1/mnist/ifca")
    values = accuracies("ifca-own")
    assert found["ours"] == pytest.approx(np.mean(values)) and found["ours_std"] == pytest.approx(np.std(values))
    assert found["difference"] == pytest.approx(np.mean(values) - found["printed"])
    assert (found["seeds"], found["study"], found["our_method"], found["federation"]) == (
        2,
        "tiny",
        "ifca-own",
        "digits",
    )
    assert found["verdict"] == "differs" and (found["scale"], found["profile"]) == ("paper", "released")
    table = read_table(Path("results/discrepancies.parquet"))
    (other,) = np.flatnonzero((table["claim_id"] == found["claim_id"]) & (table["profile"] == "paper"))
    assert table["ours"][other] == pytest.approx(np.mean(accuracies("ifca-other")))
    assert table["our_method"][other] == "ifca-other"
    places = {row["claim_id"]: (row["federation"], row["our_method"]) for row in rows}
    second = zip(table["claim_id"], table["federation"], table["our_method"], strict=True)
    assert all(places[name] != (federation, method) for name, federation, method in second)  # another run each
    assert list(table) == list(gather.CLAIM_COLUMNS) == list(read_table(Path("results/claims.parquet")))
    not_compared = rows_of(rows, "clove/table1/label-skew-1/mnist/fedavg")
    assert not_compared["verdict"] == "not comparable" and not_compared["ours"] == pytest.approx(
        np.mean(accuracies("fedavg"))
    )


def test_stability_is_when_the_method_stops_asking(done: Path) -> None:
    rows, _ = gather.write(gather.studies())
    last = []
    for seed in (0, 1):
        table = pd.read_parquet(f"results/tiny/digits/seed{seed}/methods/clove/rounds.parquet")
        asking = table[table["client_forwards"] > 0]["round"]
        last.append(asking.max())
    found = rows_of(rows, "clove/table13/label-skew-1-early-stopping/clove/stability")
    assert max(last) < 6, "the study should be so easy that the method stops early"
    assert found["ours"] == np.mean(last)


ABSENT = [
    ("clove/table1/label-skew-1/mnist/pacfl", "no study has a method 'pacfl'"),
    ("clove/table1/concept-shift/mnist/clove", "no study has the cell mnist/concept-shift"),
    ("clove/table3/amazon/clove", "no reviews at hand"),
    ("fedgwc/table1/cifar100/ifca/accuracy", "no study of paper 'fedgwc' was run"),
]


@pytest.mark.parametrize("start, reason", slow_but(ABSENT[1:2], ABSENT))
def test_why_a_claim_was_not_run(done: Path, start: str, reason: str) -> None:
    found = rows_of(gather.claim_rows(gather.studies())[0], start)
    assert (found["verdict"], found["reason"], found["seeds"]) == ("not run", reason, 0)
    assert math.isnan(found["ours"])


def test_a_seed_that_lacks_files_or_has_others_settings_is_left_out(done: Path) -> None:
    start = "clove/table1/label-skew-1/mnist/ifca"
    file = Path("results/tiny/digits/seed1/methods/ifca-own/clusters.parquet")
    file.rename(file.with_name("away"))
    try:
        found = rows_of(gather.claim_rows(gather.studies())[0], start)
    finally:
        file.with_name("away").rename(file)
    assert found["seeds"] == 1 and found["ours"] == pytest.approx(accuracies("ifca-own")[0])
    changed = small()
    changed["training"]["rounds"] = 7
    Plan.from_settings(changed).save()
    found = rows_of(gather.claim_rows(gather.studies())[0], start)
    assert found["verdict"] == "not run" and "was made with other settings than the configuration" in found["reason"]


def lite() -> dict[str, Any]:
    """Return the study with another step size: what was run with it has other settings than what ships."""
    return put(small(), "training.learning_rate", 0.11)


def test_a_study_of_other_settings_is_never_compared_but_ordered(done: Path) -> None:
    shipped = scale.file("clove")
    write_yaml(shipped, lite())
    rows, ordered = gather.write(gather.studies())
    found = rows_of(rows, "clove/table1/label-skew-1/mnist/ifca")
    assert (found["verdict"], found["scale"], found["also_accepts"]) == ("not comparable", "lite", "")
    assert found["reason"] == ("scale lite, not the paper's settings: training.learning_rate 0.1, shipped 0.11")
    assert found["ours"] == pytest.approx(np.mean(accuracies("ifca-own")))
    assert {row["verdict"] for row in rows} == {"not comparable", "not run"}
    over, at_lite = (row for row in ordered if row["claim_id"] == "order/clove/clove-over-ifca-accuracy")
    pairs = list(zip(accuracies("clove"), accuracies("ifca-own"), strict=True))
    assert (over["scale"], over["verdict"], over["evaluated"]) == ("paper", "not run", 0)
    assert (at_lite["scale"], at_lite["study"], at_lite["combinations"], at_lite["evaluated"]) == (
        "lite",
        "tiny",
        12,
        2,
    )
    assert (at_lite["seeds"], at_lite["seeds_holding"]) == (4, 2 * sum(a > b for a, b in pairs))
    assert at_lite["reason"].startswith("10 of 12 combinations not run")
    best = [row for row in ordered if row["claim_id"] == "order/clove/among-top-accuracy"][1]
    assert "without cfl, fedala, fedpac, fedproto, fesem, flexcfl, local, pacfl, per-fedavg" in best["reason"]
    assert best["verdict"] != "holds"


def test_what_a_study_says_of_its_scale_decides_nothing(done: Path) -> None:
    Plan.from_settings(small(scale="paper")).save()
    assert gather.gathered()[1] == []
    write_yaml(scale.file("clove"), lite())
    (study,), said = gather.gathered()
    assert study.scales() == ["lite"] and len(said) == 1
    assert said[0].startswith("study 'tiny' says claims.scale: paper, but 4 of its runs have other settings")
    assert "e.g. digits/fedavg: training.learning_rate 0.1, shipped 0.11; omit claims.scale" in said[0]


@pytest.mark.slow
def test_fewer_rounds_are_judged_by_what_they_reached(done: Path) -> None:
    whole = gather.claim_rows(gather.studies())[0]
    write_yaml(scale.file("clove"), put(small(), "training.rounds", 100))
    rows = gather.claim_rows(gather.studies())[0]
    stops = "study tiny: stops at round 6 of 100"
    final = rows_of(rows, "clove/table1/label-skew-1/mnist/clove")
    assert (final["verdict"], final["reason"]) == ("not run", stops)
    ari, same = (rows_of(found, "clove/table2/label-skew-1/mnist/clove") for found in (rows, whole))
    assert (ari["scale"], same["scale"]) == ("prefix", "paper")  # stopped early: the clusters are at rest
    assert (ari["ours"], ari["verdict"], ari["seeds"]) == (same["ours"], same["verdict"], 2)
    assert rows_of(rows, "clove/table2/label-skew-1/mnist/ifca")["reason"] == stops
    for place in ("first09", "ari10"):  # not later either: the clusters are at rest
        found, same = (rows_of(one, f"clove/table5/label-skew-1/mnist/clove/{place}") for one in (rows, whole))
        assert (found["reason"], found["verdict"]) == (same["reason"], same["verdict"])
        assert (found["ours"], found["seeds"]) == pytest.approx((same["ours"], 2), nan_ok=True)
    other = rows_of(rows, "clove/table5/label-skew-1/mnist/ifca/first09")
    assert (other["verdict"], other["reason"]) == ("not run", stops)  # it may be reached later


def test_a_row_says_what_it_would_also_accept_and_how_much_is_guessed(done: Path) -> None:
    write_yaml(scale.file("clove"), small(guesses={"digits/*": ["training.rounds", "model"]}))
    rows, _ = gather.claim_rows(gather.studies())
    ari = rows_of(rows, "clove/table2/label-skew-1/mnist/clove")
    expected = []
    for one in claims():  # CLoVE's deviations divide by n: s^2 / (n - 1) is the square of the mean's error
        same = (one.paper, one.cell, one.metric) == ("clove", CELL, "ari") and one.method != "clove"
        if same and notes.incomparable(one, "released") is None:
            twice = 2 * math.sqrt(float(one.std) ** 2 / 2 + ari["ours_std"] ** 2 / 1)
            if abs(ari["ours"] - float(one.value)) <= max(0.02, twice):
                expected.append(one.method)
    assert ari["also_accepts"].split("|") == expected and 0 < len(expected) < 5
    assert ari["guesses"] == 2 and rows_of(rows, "clove/table1/concept-shift/mnist/clove")["guesses"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("done")
def test_a_number_of_training_data_is_judged_by_a_run_that_is_scored_on_them() -> None:
    claim, quantity = "clove/table1/label-skew-1/mnist/fedavg", "another quantity: training accuracy"
    before = rows_of(gather.claim_rows(gather.studies())[0], claim)
    assert before["verdict"] == "not comparable" and before["reason"].startswith(quantity)
    assert before["ours"] == pytest.approx(np.mean(accuracies("fedavg")))
    Plan.from_settings(small(scores={"*/fedavg": {"split": "train", "at": 5}})).save()
    rows, _ = gather.claim_rows(results := gather.studies())
    found = rows_of(rows, claim)
    assert found["ours"] == pytest.approx(np.mean(accuracies("fedavg", "train", 5)))
    assert found["verdict"] == "differs" and found["reason"].endswith("; read as aggregated/train/samples of round 5")
    assert found["also_accepts"] == ""  # the other methods' numbers are of test data
    assert "fedavg" not in rows_of(rows, "clove/table1/label-skew-1/mnist/clove")["also_accepts"]
    # An ordering of CLoVE above FedAvg takes both on test data.
    lookup = gather._Lookup(_ordering("order/clove/among-top-accuracy"), results, "paper")
    number = lookup(Key("mnist", "label-skew-1", "fedavg", "accuracy", "final"))
    assert number is not None and number.mean == pytest.approx(np.mean(accuracies("fedavg")))


def test_both_scales_are_shown(done: Path) -> None:
    results = gather.studies()
    other = Results(Plan.from_settings(lite()), own=False)
    for order in ([*results, other], [other, *results]):
        assert rows_of(gather.claim_rows(order)[0], "clove/table1/label-skew-1/mnist/ifca")["scale"] == "paper"
        rows = gather.ordering_rows(_ordering("order/clove/clove-over-ifca-accuracy"), order)
        assert [(row["scale"], row["evaluated"]) for row in rows] == [("paper", 2), ("lite", 0)]


def _ordering(claim_id: str) -> Ordering:
    return next(ordering for ordering in orderings() if ordering.claim_id == claim_id)


class Stub:
    """A study's results, made up: outcomes by method."""

    def __init__(self, name: str = "made-up", **outcomes: Outcome):
        self.outcomes, self.study = outcomes, SimpleNamespace(study=name)
        self.claims = SimpleNamespace(paper="fedgwc", profile="paper")

    def outcome(
        self, profile: str, cell: str, method: str, metric: str, at: str, *, against_print: bool
    ) -> Outcome | None:
        assert not against_print  # an ordering compares methods by one score
        return self.outcomes.get(method)


def test_more_seeds_stand_before_a_whole_run_and_whatever_is_judged_before_lite() -> None:
    three = {0: 50.0, 1: 50.0, 2: 50.0}
    whole, prefix = Outcome(values={0: 52.0}), Outcome(values=three, scale=Scale(PREFIX))
    lite_, open_ = Outcome(values=dict.fromkeys(range(9), 0.0), scale=Scale(LITE)), replace(prefix, not_run="stops")
    among = [("d", whole), ("c", prefix), ("b", lite_), ("a", open_)]
    stubs: list[Any] = [Stub(name, cfl=outcome) for name, outcome in among]
    number = gather._Lookup(_ordering("order/fedgwc/cfl-never-splits"), stubs, "paper")(
        Key("cifar10", "clean-blurred", "cfl", "accuracy", "final")
    )
    assert number is not None and number.mean == 50.0
    found: list[Any] = [(stub, "paper", outcome) for stub, (_, outcome) in zip(stubs, among, strict=True)]
    assert [stub.study.study for stub, _, _ in sorted(found, key=gather._rank)] == ["c", "d", "b", "a"]
    equal: list[Any] = [(Stub("a"), "paper", prefix), (Stub("b"), "paper", Outcome(values=three))]
    assert min(equal, key=gather._rank)[0].study.study == "b"  # as many seeds: the whole run


def test_orderings_on_made_up_results() -> None:
    asked = _ordering("order/fedgwc/cfl-never-splits")  # cfl == fedavg, printed with one digit, on two federations
    fedavg = {0: 50.0, 1: 50.02}
    values = {"cfl": Outcome(values={0: 50.01, 1: 50.02}), "fedavg": Outcome(values=fedavg)}

    def rows(*stubs: Stub) -> list[tuple[str, str]]:
        return [(row["verdict"], row["reason"]) for row in gather.ordering_rows(asked, stubs)]

    (found, at_lite) = gather.ordering_rows(asked, [Stub(**values)])
    assert (found["verdict"], found["combinations"], found["seeds"], found["seeds_holding"]) == ("holds", 2, 4, 4)
    assert (found["share"], at_lite["verdict"], math.isnan(at_lite["share"])) == (1.0, "not run", True)
    far = values | {"cfl": Outcome(values={0: 52.0, 1: 52.2})}
    assert rows(Stub(**far))[0][0] == "fails"
    small_ = {name: replace(one, scale=Scale(LITE)) for name, one in values.items()}
    assert [verdict for verdict, _ in rows(Stub(**far), Stub("a", **small_))] == ["fails", "holds"]  # side by side
    none = Outcome(not_run="study made-up: no groups are planted")
    assert rows(Stub(cfl=none, fedavg=none))[0] == ("no number", none.not_run)
    gone = Outcome(not_run="study made-up: x is missing", ran=False)
    assert rows(Stub(cfl=none, fedavg=gone))[0] == ("not run", gone.not_run)
    best = gather.ordering_rows(_ordering("order/fedgwc/best-was-cifar100"), [Stub(**values)])[0]
    assert best["verdict"] == "not run"
    assert best["reason"] == "no study of paper 'fedgwc' has its cells and methods at scale paper"


def test_what_is_undefined_for_one_cluster_is_no_number() -> None:
    one = "undefined for one cluster"
    undefined = Outcome(empty=one, without={0: one, 1: one})
    spread = Outcome(values={0: 0.1, 1: 0.2})
    found = gather.ordering_rows(_ordering("order/fedgwc/best-was-cifar100"), [Stub(fedgwc=undefined, ifca=spread)])[0]
    assert (found["verdict"], found["reason"]) == ("no number", f"study made-up: fedgwc is {one}")


def test_what_cannot_fail_is_said_to_be_so() -> None:
    asked = _ordering("order/lcfl/warm-up-equals-fedavg")
    same = {0: 81.0, 1: 83.0}  # the noise is larger than the last printed digit: it would be undecided

    def verdict(lcfl: dict[int, float]) -> str:
        stub = Stub(lcfl=Outcome(values=lcfl), fedavg=Outcome(values=same))
        stub.claims.paper = "lcfl"
        return str(gather.ordering_rows(asked, [stub])[0]["verdict"])

    assert verdict(same) == "by construction"
    assert verdict({0: 71.0, 1: 71.1}) == "fails"


def test_one_seed_is_judged_by_the_printed_deviation() -> None:
    asked = _ordering("order/fedgwc/boosts-fedavg")  # CIFAR-100: printed 53.4 +- .4 and 41.6 +- 1.3, twice 2.7

    def verdict(ours: float) -> str:
        stub = Stub(fedgwc=Outcome(values={0: ours}), fedavg=Outcome(values={0: 40.0}))
        return str(
            gather.ordering_rows(replace(asked, dataset="cifar100", setting="dirichlet-0.5"), [stub])[0]["verdict"]
        )

    assert (verdict(42.6), verdict(42.8), verdict(37.0)) == ("undecided", "holds", "fails")


@pytest.mark.slow
def test_command(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--paper", "clove", "--table", "1"]) == 0
    out = capsys.readouterr().out
    assert "144 numbers" in out and "clove/table1/label-skew-1/mnist/ifca " in out and "lcfl/" not in out
    assert "also accepts" in out
    one = ["claims", "--paper", "clove", "--method", "ifca", "--cell", "mnist/label-skew-1", "--table", "Table 1"]
    assert main(one) == 0
    assert "1 numbers" in (out := capsys.readouterr().out) and "clove/table1/label-skew-1/mnist/ifca " in out
    assert main(["claims", "--counts"]) == 0
    out = capsys.readouterr().out
    assert "1452 numbers  printed once" in out and "by construction" in out and "names exchanged at random" in out
    assert main(["claims", "--paper", "clove", "--table", "99"]) == 2
    assert "--table: nothing is from '99'; did you mean 'Table 9'?" in capsys.readouterr().err
    assert main(["claims", "--verdict", "reproducd"]) == 2
    assert "did you mean 'reproduced'?" in capsys.readouterr().err


def test_same_bytes_and_all_rows_with_nothing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        rows, ordered = gather.write(gather.studies())
        assert {row["verdict"] for row in (*rows, *ordered)} == {"not run"}
        tables = [read_table(Path(f"results/{n}.parquet")) for n in ("claims", "orderings", "discrepancies")]
        assert [len(table["claim_id"]) for table in tables] == [1452, 160, 0]
        found.append([path.read_bytes() for path in sorted(Path("results").iterdir())])
    assert found[0] == found[1]


def test_select_and_text() -> None:
    rows, _ = gather.claim_rows([])
    ordered = gather.ordering_rows(_ordering("order/lcfl/lcfl-over-ifca"), [])
    (kept, also) = show.select([rows, ordered], "lcfl", "II", "not run")
    assert len(kept) == 20 and {row["where"] for row in kept} == {"Table II"} and also == ordered
    assert show.select([rows, ordered], verdict="holds") == [[], []]
    assert "holds in 8 of 8" in show.text(kept, also)
    with pytest.raises(UserError, match="--paper: 'clov' is unknown; did you mean 'clove'"):
        show.select([rows], "clov")


def test_select_by_method_and_cell() -> None:
    rows, _ = gather.claim_rows([])
    ordered = [row for one in orderings() for row in gather.ordering_rows(one, [])]

    def ids(**names: str) -> tuple[set[str], set[str]]:
        numbers, stated = show.select([rows, ordered], **names)
        return {row["claim_id"] for row in numbers}, {row["claim_id"] for row in stated}

    numbers, _ = ids(paper="clove", table="Table 1", method="fedavg")
    assert numbers == {c.claim_id for c in claims() if (c.paper, c.where, c.method) == ("clove", "Table 1", "fedavg")}
    assert len(numbers) == 12
    numbers, _ = ids(paper="clove", table="1", method="fedavg", cell="mnist/label-skew-1")
    assert numbers == {"clove/table1/label-skew-1/mnist/fedavg"}
    numbers, stated = ids(paper="clove", cell="mnist/*", method="pacfl")
    assert numbers == {c.claim_id for c in claims() if (c.paper, c.dataset, c.method) == ("clove", "mnist", "pacfl")}
    assert stated == {o.claim_id for o in orderings() if o.paper == "clove" and "mnist" in o.dataset.split("|")
                      and re.search(r"\bpacfl\b", f"{o.left} {o.right}")}  # fmt: skip
    assert stated
    _, stated = ids(cell="mnist/rotated-2400")
    assert "order/lcfl/lcfl-over-ifca" in stated and "order/lcfl/loss-over-cosine-final" not in stated
    with pytest.raises(
        UserError, match=r"--method: no row there is of 'fedavgg'; did you mean 'fedavg'\? allowed: cfl, "
    ):
        ids(paper="clove", table="Table 1", method="fedavgg")
    with pytest.raises(UserError, match="--method: no row there is of 'clove'; allowed: fedavg, ifca, lcfl, "):
        ids(paper="lcfl", method="clove")
    with pytest.raises(UserError, match=r"--cell: no row there is of 'mnist'; .*allowed: .*mnist/rotated-1200, "):
        ids(paper="lcfl", cell="mnist")


# Settings.


def test_the_block_changes_no_job() -> None:
    own = Plan.from_settings(small())
    none = Plan.from_settings({k: v for k, v in small().items() if k != "claims"})
    assert [j.settings_digest for j in own.jobs()] == [j.settings_digest for j in none.jobs()]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"cells": {CELL: {"federation": "digit"}}}, r"claims.cells.*no block 'digit'; did you mean 'digits'"),
        ({"names": {"ifca": "ifca-owm"}}, r"claims.names.ifca: there is no method 'ifca-owm'; did you mean 'ifca-own'"),
        ({"cells": {CELL: {"federation": "digits", "suffix": "-e1"}}}, r"no method's name ends with the suffix '-e1'"),
        ({"others": {"paper": {"names": {"ifca": "x"}}}}, r"claims.others.paper.names.ifca: there is no method 'x'"),
        ({"paper": "clov"}, r"claims.paper: found 'clov'; did you mean 'clove'"),
        ({"cell": {}}, r"claims.cell: unknown key"),
        ({"cells": {}}, r"claims.cells: .*needs at least 1 entry"),
        ({"scale": "full"}, r"claims.scale: found 'full'"),
    ],
)
def test_blocks_that_are_not_there(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Plan.from_settings(small(**change))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"cells": {"mnist/label-skew1": {"federation": "digits"}}}, "did you mean 'mnist/label-skew-1'"),
        ({"names": {"ifac": "ifca-own"}}, "has no 'ifac'; did you mean 'ifca'"),
        ({"absent": {"amazn/*": "gone"}}, "'amazn/*' matches none"),
    ],
)
def test_what_the_paper_does_not_have(change: dict[str, Any], said: str) -> None:
    study = Plan.from_settings(small(**change)).study
    assert any(said in line for line in problems(study))
    assert not problems(Plan.from_settings(small()).study)


@pytest.mark.slow
def test_nothing_that_trains_imports_printed_numbers() -> None:
    found = {stage: digest._closure([f"clusterfl.pipeline.stages.{stage}"]) for stage in STAGES}
    parts = digest._closure(["clusterfl.simulation.loop", "clusterfl.engine", "clusterfl.api"])
    for modules in (*found.values(), parts):
        assert not [m for m in modules if m.startswith("clusterfl.claims")]
    assert "clusterfl.engine.engine" in found["federate"] and "clusterfl.config.claims" in found["report"]
    # As does what runs before a stage does: reading and checking a study, and looking at a job.
    code = "import sys, clusterfl.pipeline.execute, clusterfl.pipeline.stages.federate; " \
           "import clusterfl.config.loading, clusterfl.pipeline.jobs; " \
           "print(*(m for m in sys.modules if m.startswith('clusterfl.claims')))"  # fmt: skip
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == []
