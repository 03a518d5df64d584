"""Our numbers beside the claims: every metric by hand on made-up files, and the command on a study that was run."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import tiny

from clusterfl import digest, loading
from clusterfl.claims import gather, show
from clusterfl.claims.ours import Outcome, Results, Run, problems
from clusterfl.claims.printed import claims
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.execute import execute
from clusterfl.files import STAGES
from clusterfl.jobs import Plan
from clusterfl.report import tables
from clusterfl.store import read_table, write_table, write_tensors

LABELS = {1: [0, 1, 0, 2], 11: [0, 0, 1, 1], 12: [1, 1, 0, 0]}  # of four clients by round; otherwise 0, 0, 0, 1
TRAIN = [(0, 0, 2), (0, 1, 2), (1, 0, 5), (1, 1, 5), (2, 1, 3), (3, 0, 1), (3, 1, 3)]  # client, class, samples
TESTED = [(0, 0, 2, 1), (0, 1, 2, 2), (1, 0, 4, 4), (2, 1, 5, 0), (3, 0, 1, 1), (3, 1, 1, 0)]  # client, class, n, right
CELL = "mnist/label-skew-1"


def settings(paper: str = "clove", **claims: Any) -> dict[str, Any]:
    study = tiny() | {"warmups": {"short": {"rounds": 5}}, "distances": {}, "clusterings": {}, "baseline": None}
    study["federations"] = dict.fromkeys(("planted", "plain"), study["federations"]["digits"])
    study["distances"] = {"loss": {"metric": "loss", "warmup": "short"}}
    study["clusterings"] = {"one": {"clusterer": "hierarchical", "distance": "loss", "clusters": 2}}
    study["training"] |= {"rounds": 12, "evaluations": ["aggregated", "stale"]}
    study["methods"] = {
        "some": {"method": "clove", "clusters": 3, "stable_rounds": 3},
        "fedavg": {"method": "fedavg"},
        "lost": {"method": "fedavg"},
        "lcfl": {"method": "lcfl", "clustering": "one"},
        "rr": {"method": "ifca", "clusters": 3, "rebalance": {"minimum": 1}},
    }
    cells = {"mnist/rotated-1200" if paper == "lcfl" else CELL: {"federation": "planted"}}
    return study | {"claims": {"paper": paper, "cells": cells, **claims}}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """Files of 12 rounds; ``some`` moves between clusters, ``fedavg`` has one, ``lost`` ends with an infinite loss."""
    found: dict[str, Path] = {}

    def write(key: str, columns: dict[str, Any]) -> None:
        found[key] = tmp_path / f"{key}.parquet"
        write_table(found[key], {name: np.array(values) for name, values in columns.items()})

    def long(names: str, rows: list[Any]) -> dict[str, Any]:
        return dict(zip(names.split(), zip(*rows, strict=True), strict=True))

    rounds = range(1, 13)
    moving = [LABELS.get(r, [0, 0, 0, 1]) for r in rounds]
    # Aggregated accuracy of round r is (8 + r) / 20, that before training one step less; losses fall from 2 by 0.1.
    rows = [(r, 0, 0, "test", e, 20, c + r, 2 - r / 10) for r in rounds for e, c in (("aggregated", 8), ("stale", 7))]
    history = pd.DataFrame(long("round client cluster split evaluation n correct loss", rows))
    for federation, groups in {"planted": [0, 0, 1, 1], "plain": [-1] * 4}.items():
        place = f"{federation}/seed0"
        write(f"{place}/partition.partition", {"client": range(4), "role": ["member"] * 4, "true_cluster": groups})
        counts = long("client class n", TRAIN)
        write(f"{place}/partition.classes", counts | {"split": ["train"] * 7, "role": ["member"] * 7})
        for method in ("some", "fedavg", "lost", "lcfl", "rr"):
            own = history.assign(loss=history["loss"].where((method != "lost") | (history["round"] < 12), np.inf))
            write(f"{place}/methods/{method}.history", {name: own[name] for name in own})
            write(f"{place}/methods/{method}.rounds", {"round": rounds})
            write(f"{place}/methods/{method}.classes", long("client class n correct", TESTED))
            labels = moving if method in ("some", "rr") else [[0] * 4] * 12
            took = np.ones((12, 4), bool)
            took[0, 3] = method == "some"
            columns = {"round": np.repeat(rounds, 4), "client": [0, 1, 2, 3] * 12, "cluster": np.ravel(labels)}
            write(f"{place}/methods/{method}.clusters", columns | {"participated": took.ravel()})
        found[f"{place}/methods/rr.models"] = tmp_path / f"{federation}.safetensors"
        sizes = [[[3, 1, 0], [2, 2, 0]], [[4, 0, 0], [2, 1, 1]]]  # before and after rebalancing, in two rounds
        write_tensors(found[f"{place}/methods/rr.models"], {"rebalanced": np.array(sizes)})
    return found


def run(inputs: dict[str, Path], method: str = "some", federation: str = "planted", score: Any = (), **own: Any) -> Run:
    study = loading.load(settings(**own) | {"score": dict(score)})
    source = tables.Source(study.model_dump(mode="json", exclude={"claims"}), inputs)
    return Run(source, study, federation, 0, method)


def read(one: Run, metric: str, at: str = "final") -> float | str:
    assert one.study.claims is not None
    return one.read(metric, at, next(iter(one.study.claims.cells.values())))


@pytest.mark.parametrize(
    "metric, at, value",
    [
        ("accuracy", "final", 100.0),
        ("accuracy", "5", 65.0),
        ("test_loss", "final", 0.8),
        ("balanced_accuracy", "final", 100 * (0.75 + 1 + 0 + 0.25) / 4),  # by training frequencies
        ("clustering_accuracy", "final", 100.0),
        ("ari", "final", 1.0),
        ("rand", "final", 1.0),
        ("ari_round_10", "10", 1.0),  # that of round 11
        ("first_round_ari_0.9", "final", 11.0),
        ("rounds_to_accuracy_90", "final", 10.0),
        ("rounds_to_accuracy_95", "final", 11.0),
        ("stability_round", "final", 4.0),  # rounds 2, 3, 4 are alike
        ("n_clusters", "final", 2.0),
        ("was", "final", (1 + 1 + 0.5 + 0) / 4),  # as in test_metrics
        ("wadb", "final", 1 / 3),
    ],
)
def test_metrics_by_hand(inputs: dict[str, Path], metric: str, at: str, value: float) -> None:
    assert metric in {claim.metric for claim in claims()}
    assert read(run(inputs), metric, at) == pytest.approx(value)


@pytest.mark.parametrize(
    "method, federation, metric, value",
    [
        ("fedavg", "planted", "ari", 0.0),
        ("fedavg", "planted", "rand", 2 / 6),
        ("fedavg", "planted", "clustering_accuracy", 50.0),
        ("fedavg", "planted", "first_round_ari_0.9", "not reached"),
        ("fedavg", "planted", "was", "undefined for one cluster"),
        ("fedavg", "planted", "wadb", "undefined for one cluster"),
        ("fedavg", "planted", "n_clusters", 1.0),
        ("fedavg", "planted", "stability_round", "the method doesn't stop early: stable_rounds is 0"),
        ("some", "plain", "ari", "no groups are planted"),
        ("some", "plain", "first_round_ari_0.9", "no groups are planted"),
        ("lost", "planted", "accuracy", "diverged"),
        ("lost", "planted", "test_loss", "diverged"),
    ],
)
def test_what_has_no_value_says_why(
    inputs: dict[str, Path], method: str, federation: str, metric: str, value: float | str
) -> None:
    assert read(run(inputs, method, federation), metric) == (value if isinstance(value, str) else pytest.approx(value))


def test_a_run_of_fewer_rounds_is_read_at_the_same_share(inputs: dict[str, Path]) -> None:
    lite = run(inputs, rounds=24, scale="lite")
    assert read(lite, "accuracy", "5") == pytest.approx(100 * 10 / 20)  # 2.5, which Python rounds to 2
    assert read(lite, "accuracy", "1") == pytest.approx(45)  # at least round 1
    assert read(lite, "accuracy", "24") == read(lite, "accuracy") == 100
    assert read(lite, "ari_round_10", "10") == 1  # round 11, as it stands
    assert read(run(inputs, rounds=6), "accuracy", "5") == pytest.approx(65)  # more were run: as printed
    own = {"cells": {CELL: {"federation": "planted", "rounds": 48}}}
    assert read(run(inputs, rounds=24, **own), "accuracy", "24") == pytest.approx(70)  # the cell's own, round 6
    assert read(run(inputs), "accuracy", "13") == "round 13 wasn't evaluated as aggregated"


def test_cloves_clusters_are_those_of_a_rounds_participants(inputs: dict[str, Path]) -> None:
    path = inputs["planted/seed0/methods/some.clusters"]
    table = pd.read_parquet(path)
    table["cluster"] = np.tile([0, 1, 1, 1], 12)  # client 1 keeps a wrong label, and takes part in round 1 only
    table["participated"] = (table["client"] != 1) | (table["round"] == 1)
    write_table(path, {name: table[name].to_numpy() for name in table})
    one = run(inputs)
    assert (read(one, "ari"), read(one, "ari_round_10", "10")) == (1.0, 1.0)
    assert read(one, "first_round_ari_0.9") == 2.0
    assert read(one, "clustering_accuracy") == 75.0  # of all clients


def test_ari_after_ten_rounds_is_the_last_one_of_a_run_of_fewer(inputs: dict[str, Path]) -> None:
    one = run(inputs)
    one.rounds = 5
    assert read(one, "ari_round_10", "10") == 0
    one.rounds = 11
    assert read(one, "ari_round_10", "10") == 1


def test_score_of_the_study(inputs: dict[str, Path]) -> None:
    smooth = run(inputs, score={"smooth": 3})
    assert read(smooth, "accuracy") == pytest.approx(95)
    assert read(smooth, "rounds_to_accuracy_90") == 11
    assert read(run(inputs, score={"evaluation": "stale"}), "accuracy") == pytest.approx(95)


def test_points_of_lcfls_released_curves(inputs: dict[str, Path]) -> None:
    # Stale accuracy of round r is (7 + r) / 20. Of 12 rounds in print the last point is round 12's own.
    own = {"paper": "lcfl", "score": {"evaluation": "stale"}, "iterations": "lcfl-released"}
    ifca, lcfl = (run(inputs, method, rounds=7, **own) for method in ("fedavg", "lcfl"))
    assert read(ifca, "accuracy", "1") == pytest.approx(100 * 9 / 20)  # round 2 alone
    assert read(ifca, "accuracy", "5") == pytest.approx(100 * 12.5 / 20)  # rounds 5 and 6
    assert read(ifca, "accuracy", "7") == pytest.approx(100 * 14 / 20)  # the last point: round 7 alone
    assert read(lcfl, "accuracy", "7") == pytest.approx(100 * 14.5 / 20)  # five rounds of warm-up longer
    assert read(lcfl, "accuracy", "12") == pytest.approx(100 * 19 / 20)
    assert read(lcfl, "rounds_to_accuracy_90") == 11  # (18 + 19) / 40 is the first above 0.9, of rounds 11 and 12


def test_models_that_were_trained(inputs: dict[str, Path]) -> None:
    cells = {"synthetic-linear/balanced-hard": {"federation": "planted"}}
    own = {"paper": "rr-cluster", "cells": cells}
    assert read(run(inputs, "some", **own), "n_clusters") == 3  # the third in round 1 only
    assert read(run(inputs, "rr", **own), "n_clusters") == 3  # after rebalancing, though none chose it
    assert read(run(inputs, "fedavg", **own), "n_clusters") == 1


# A study that is run.


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
def done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    Plan.from_settings(small()).save()
    return folder


def rows_of(rows: list[gather.Row], start: str) -> gather.Row:
    return next(row for row in rows if row["claim_id"] == start)


def accuracies(method: str) -> list[float]:
    """Return the final accuracies of both seeds by a way of its own, in per cent."""
    found = []
    for seed in (0, 1):
        table = pd.read_parquet(f"results/tiny/digits/seed{seed}/methods/{method}/history.parquet")
        last = table[(table["round"] == 6) & (table["split"] == "test") & (table["evaluation"] == "aggregated")]
        found.append(100 * last["correct"].sum() / last["n"].sum())
    return found


def test_claims_beside_a_run(done: Path) -> None:
    rows, ordered = gather.write(gather.studies())
    assert len(rows) == 1452 and len(ordered) == 80
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
    assert found["verdict"] in ("reproduced", "differs") and (found["scale"], found["profile"]) == ("paper", "released")
    table = read_table(Path("results/discrepancies.parquet"))
    (other,) = np.flatnonzero((table["claim_id"] == found["claim_id"]) & (table["profile"] == "paper"))
    assert table["ours"][other] == pytest.approx(np.mean(accuracies("ifca-other")))
    assert table["our_method"][other] == "ifca-other"
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


@pytest.mark.parametrize(
    "start, reason",
    [
        ("clove/table1/label-skew-1/mnist/pacfl", "no study has a method 'pacfl'"),
        ("clove/table1/concept-shift/mnist/clove", "no study has the cell mnist/concept-shift"),
        ("clove/table3/amazon/clove", "no reviews at hand"),
        ("fedgwc/table1/cifar100/ifca/accuracy", "no study of paper 'fedgwc' was run"),
    ],
)
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


def test_a_lite_study_is_never_compared_but_ordered(done: Path) -> None:
    Plan.from_settings(small(scale="lite", rounds=100)).save()
    rows, ordered = gather.write(gather.studies())
    found = rows_of(rows, "clove/table1/label-skew-1/mnist/ifca")
    assert found["verdict"] == "not comparable" and found["reason"].startswith("scale lite")
    assert found["ours"] == pytest.approx(np.mean(accuracies("ifca-own")))
    assert {row["verdict"] for row in rows} == {"not comparable", "not run"}
    over = rows_of(ordered, "order/clove/clove-over-ifca-accuracy")
    pairs = list(zip(accuracies("clove"), accuracies("ifca-own"), strict=True))
    assert (over["scale"], over["study"], over["combinations"], over["evaluated"]) == ("lite", "tiny", 12, 2)
    assert (over["seeds"], over["seeds_holding"]) == (4, 2 * sum(a > b for a, b in pairs))
    assert over["reason"].startswith("10 of 12 combinations not run")
    best = rows_of(ordered, "order/clove/among-top-accuracy")
    assert "without cfl, fedala, fedpac, fedproto, fesem, flexcfl, local, pacfl, per-fedavg" in best["reason"]


def test_the_highest_scale_wins(done: Path) -> None:
    results = gather.studies()
    lite = Results(Plan.from_settings(small(scale="lite")))
    for order in ([*results, lite], [lite, *results]):
        assert rows_of(gather.claim_rows(order)[0], "clove/table1/label-skew-1/mnist/ifca")["scale"] == "paper"
        assert gather.ordering_row(_ordering("order/clove/clove-over-ifca-accuracy"), order)["scale"] == "paper"


def _ordering(claim_id: str):
    from clusterfl.claims.printed import orderings

    return next(ordering for ordering in orderings() if ordering.claim_id == claim_id)


class Stub:
    """A study's results, made up: outcomes by method."""

    def __init__(self, scale: str = "paper", name: str = "made-up", **outcomes: Outcome):
        self.outcomes, self.study = outcomes, SimpleNamespace(study=name)
        self.claims = SimpleNamespace(paper="fedgwc", scale=scale, profile="paper")

    def outcome(self, profile: str, cell: str, method: str, metric: str, at: str) -> Outcome | None:
        return self.outcomes.get(method)


def test_orderings_on_made_up_results() -> None:
    asked = _ordering("order/fedgwc/cfl-never-splits")  # cfl == fedavg, printed with one digit, on two federations
    values = {"cfl": Outcome(values={0: 50.04, 1: 52.0}), "fedavg": Outcome(values={0: 50.0, 1: 51.96})}
    found = gather.ordering_row(asked, [Stub(**values)])
    assert (found["verdict"], found["combinations"], found["seeds"], found["seeds_holding"]) == ("holds", 2, 4, 4)
    far = values | {"cfl": Outcome(values={0: 50.0, 1: 52.2})}
    assert gather.ordering_row(asked, [Stub(**far)])["verdict"] == "fails"
    assert gather.ordering_row(asked, [Stub(**far), Stub("lite", "a", **values)])["scale"] == "paper"
    none = Outcome(not_run="study made-up: no groups are planted")
    found = gather.ordering_row(asked, [Stub(cfl=none, fedavg=none)])
    assert (found["verdict"], found["reason"]) == ("no number", none.not_run)
    gone = Outcome(not_run="study made-up: x is missing", ran=False)
    found = gather.ordering_row(asked, [Stub(cfl=none, fedavg=gone)])
    assert (found["verdict"], found["reason"]) == ("not run", gone.not_run)
    best = gather.ordering_row(_ordering("order/fedgwc/best-was-cifar100"), [Stub(**values)])
    assert (best["verdict"], best["reason"]) == ("not run", "no study of paper 'fedgwc' has its cells and methods")


def test_command(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--paper", "clove", "--table", "1"]) == 0
    out = capsys.readouterr().out
    assert "144 numbers" in out and "clove/table1/label-skew-1/mnist/ifca " in out and "lcfl/" not in out
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
        assert [len(table["claim_id"]) for table in tables] == [1452, 80, 0]
        found.append([path.read_bytes() for path in sorted(Path("results").iterdir())])
    assert found[0] == found[1]


def test_select_and_text() -> None:
    rows, _ = gather.claim_rows([])
    ordered = [gather.ordering_row(_ordering("order/lcfl/lcfl-over-ifca"), [])]
    (kept, also) = show.select([rows, ordered], "lcfl", "II", "not run")
    assert len(kept) == 20 and {row["where"] for row in kept} == {"Table II"} and also == ordered
    assert show.select([rows, ordered], verdict="holds") == [[], []]
    assert "holds in 8 of 8" in show.text(kept, also)
    with pytest.raises(UserError, match="--paper: 'clov' is unknown; did you mean 'clove'"):
        show.select([rows], "clov")


# Settings.


def test_the_block_changes_no_job() -> None:
    own = Plan.from_settings(small())
    none = Plan.from_settings({k: v for k, v in small().items() if k != "claims"})
    assert [j.settings_digest for j in own.jobs()] == [j.settings_digest for j in none.jobs()]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"cells": {CELL: {"federation": "digit"}}}, r"claims.cells.*no block 'digit'; did you mean 'digits'"),
        ({"names": {"ifca": "ifca-owm"}}, r"claims.names.ifca: there is no method 'ifca-owm'; did you mean 'ifca-own'"),
        ({"cells": {CELL: {"federation": "digits", "suffix": "-e1"}}}, r"no method's name ends with the suffix '-e1'"),
        ({"others": {"paper": {"names": {"ifca": "x"}}}}, r"claims.others.paper.names.ifca: there is no method 'x'"),
        ({"paper": "clov"}, r"claims.paper: found 'clov'; did you mean 'clove'"),
        ({"cell": {}}, r"claims.cell: unknown key"),
        ({"cells": {}}, r"claims.cells: .*needs at least 1 entry"),
    ],
)
def test_blocks_that_are_not_there(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Plan.from_settings(small(**change))


@pytest.mark.parametrize(
    "change, told",
    [
        ({"cells": {"mnist/label-skew1": {"federation": "digits"}}}, "did you mean 'mnist/label-skew-1'"),
        ({"names": {"ifac": "ifca-own"}}, "has no 'ifac'; did you mean 'ifca'"),
        ({"absent": {"amazn/*": "gone"}}, "'amazn/*' matches none"),
    ],
)
def test_what_the_paper_does_not_have(change: dict[str, Any], told: str) -> None:
    study = Plan.from_settings(small(**change)).study
    assert any(told in line for line in problems(study))
    assert not problems(Plan.from_settings(small()).study)


def test_nothing_that_trains_imports_printed_numbers() -> None:
    found = {stage: digest._closure([f"clusterfl.stages.{stage}"]) for stage in STAGES}
    parts = digest._closure(["clusterfl.simulation", "clusterfl.engine", "clusterfl.notebook"])
    for modules in (*found.values(), parts):
        assert {m for m in modules if m.startswith("clusterfl.claims")} <= {"clusterfl.claims.settings"}
    assert "clusterfl.engine.engine" in found["federate"] and "clusterfl.claims.settings" in found["report"]
    # As does what runs before a stage does: reading and checking a study, and looking at a job.
    code = "import sys, clusterfl.execute, clusterfl.stages.federate, clusterfl.loading, clusterfl.jobs; " \
           "print(*(m for m in sys.modules if m.startswith('clusterfl.claims')))"  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(told) == ["clusterfl.claims", "clusterfl.claims.settings"]
