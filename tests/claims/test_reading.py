"""What a run has beside a printed number: every metric by hand on made-up files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import tiny

from clusterfl.claims import evidence
from clusterfl.claims.printed import claims
from clusterfl.claims.reading import Reader
from clusterfl.claims.runs import Run
from clusterfl.claims.scale import LITE, PAPER, PREFIX, Scale
from clusterfl.config import loading
from clusterfl.engine.training import Faults
from clusterfl.report.source import Source
from clusterfl.storage.store import write_table, write_tensors

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
        write(
            f"{place}/partition.partition",
            {"client": range(4), "role": ["member"] * 4, "true_cluster": groups, "transform": ["none"] * 4},
        )
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
    training = {name: own.pop(name) for name in ("participation", "evaluate_every") if name in own}
    made = settings(**own) | {"score": dict(score)}
    made["training"] |= training
    study = loading.load(made)
    source = Source(study.model_dump(mode="json", exclude={"claims"}), inputs)
    return Run(source, study, federation, 0, method)


def read(one: Run, metric: str, at: str = "final", scale: Scale = Scale(LITE)) -> float | str:  # noqa: B008 (frozen)
    return Reader(one, next(iter(one.claims.cells.values())), scale).read(metric, at)


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
        ("stability_round", "final", 4.0),  # rounds 2, 3, 4 are equal
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
    lite = run(inputs, rounds=24)
    assert read(lite, "accuracy", "5") == pytest.approx(100 * 10 / 20)  # 2.5, which Python rounds to 2
    assert read(lite, "accuracy", "1") == pytest.approx(45)  # at least round 1
    assert read(lite, "accuracy", "24") == read(lite, "accuracy") == 100
    assert read(lite, "ari_round_10", "10") == 1  # round 11, as it stands
    assert read(run(inputs, rounds=6), "accuracy", "5") == pytest.approx(65)  # more were run: as printed
    own = {"cells": {CELL: {"federation": "planted", "rounds": 48}}}
    assert read(run(inputs, rounds=24, **own), "accuracy", "24") == pytest.approx(70)  # the cell's own, round 6
    assert read(run(inputs), "accuracy", "13") == "round 13 wasn't evaluated as aggregated/test/samples"


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


def test_cloves_accuracies_are_those_of_a_rounds_participants(inputs: dict[str, Path]) -> None:
    """As its notebook counts (Table 14); of the other papers' runs, and with all taking part, all clients'."""
    path = inputs["planted/seed0/methods/some.history"]
    correct = {0: 20, 1: 10, 2: 4, 3: 0}  # of 20 of each client, in each round
    rows = [(r, c, 0, "test", "aggregated", 20, n, 1.0) for r in range(1, 13) for c, n in correct.items()]
    names = ["round", "client", "cluster", "split", "evaluation", "n", "correct", "loss"]
    write_table(path, {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    path = inputs["planted/seed0/methods/some.clusters"]
    table = pd.read_parquet(path)
    table["participated"] = np.where(table["round"] == 12, table["client"].isin([1, 2]), table["client"] == 0)
    write_table(path, {name: table[name].to_numpy() for name in table})
    half = run(inputs, participation=0.5)
    assert read(half, "accuracy") == pytest.approx(100 * 14 / 40)
    assert read(half, "accuracy", "5") == pytest.approx(100)
    assert evidence.score_name(half.score) == "aggregated/test/samples/participants"
    assert read(run(inputs), "accuracy") == pytest.approx(100 * 34 / 80)
    assert evidence.score_name(run(inputs).score) == "aggregated/test/samples"


def test_a_number_is_read_as_print_has_it(inputs: dict[str, Path]) -> None:
    """By patterns, of which later ones count, key by key; orderings, and reduced runs, by the study's score."""
    path = inputs["planted/seed0/methods/some.history"]
    counted = {("test", "aggregated"): (15, 8), ("train", "aggregated"): (21, 4), ("test", "local"): (27, 6)}
    rows = [
        (r, client, 0, split, evaluation, n, right + r - 12, 1.0)
        for r in (11, 12)
        for (split, evaluation), own in counted.items()
        for client, n, right in zip((0, 1), (30, 10), own, strict=True)
    ]
    names = ["round", "client", "cluster", "split", "evaluation", "n", "correct", "loss"]
    write_table(path, {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    paper = Scale(PAPER, rounds=12, printed=12)
    cases: list[tuple[dict[str, Any], float, str]] = [
        ({}, 50 * (15 / 30 + 8 / 10), ""),
        ({"*/fedavg": {"split": "train"}}, 50 * (15 / 30 + 8 / 10), ""),
        ({"*/some": {"average": "samples"}}, 100 * 23 / 40, "aggregated/test/samples of round 12"),
        ({"*": {"split": "train", "at": 11}}, 50 * (20 / 30 + 3 / 10), "aggregated/train/clients of round 11"),
        ({"*": {"evaluation": "local"}}, 50 * (27 / 30 + 6 / 10), "local/test/clients of round 12"),
        (
            {"*": {"average": "samples", "at": 11}, "planted/*": {"average": "clients"}},
            50 * (14 / 30 + 7 / 10),
            "aggregated/test/clients of round 11",
        ),
    ]
    for scores, expected, said in cases:
        one = run(inputs, score={"average": "clients"}, scores=scores)
        cell = next(iter(one.claims.cells.values()))
        reader = Reader(one, cell, paper)
        assert reader.read("accuracy", "final") == pytest.approx(expected)
        assert reader.said("final") == (said and f"read as {said}")
        for own in (Reader(one, cell, paper, against_print=False), Reader(one, cell)):
            assert own.read("accuracy", "final") == pytest.approx(50 * (15 / 30 + 8 / 10)) and own.said("final") == ""
    gone = run(inputs, score={"average": "clients"}, scores={"*": {"split": "train", "at": 10}})
    assert read(gone, "accuracy", scale=paper) == "round 10 wasn't evaluated as aggregated/train/clients"


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


# Runs of 12 rounds of a shipped study's 100.

SHORT = Scale(PREFIX, rounds=100, printed=100)
STOPS = "stops at round 12 of 100"


@pytest.mark.parametrize(
    "metric, at, value",
    [
        ("accuracy", "5", 65.0),  # read where it is printed, not at the same share of the rounds
        ("accuracy", "12", 100.0),
        ("accuracy", "13", STOPS),
        ("accuracy", "final", STOPS),
        ("test_loss", "final", STOPS),
        ("balanced_accuracy", "final", STOPS),
        ("clustering_accuracy", "final", STOPS),
        ("ari", "final", STOPS),  # not everybody takes part in each round: it isn't at rest
        ("ari_round_10", "10", 1.0),  # that of round 11
        ("first_round_ari_0.9", "final", 11.0),
        ("rounds_to_accuracy_90", "final", 10.0),
        ("stability_round", "final", 4.0),
        ("n_clusters", "final", STOPS),
        ("was", "final", STOPS),
    ],
)
def test_a_prefix_has_what_it_reached(inputs: dict[str, Path], metric: str, at: str, value: float | str) -> None:
    some = run(inputs, participation=0.75)
    found = read(some, metric, at, SHORT)
    assert found == (value if isinstance(value, str) else pytest.approx(value))
    assert read(run(inputs, "fedavg"), "first_round_ari_0.9", scale=SHORT) == STOPS  # may be reached later
    assert read(run(inputs, "fedavg"), "ari", scale=SHORT) == STOPS


def test_clusters_at_rest_are_those_of_the_last_round(inputs: dict[str, Path]) -> None:
    one = run(inputs)
    assert read(one, "ari", scale=SHORT) == 1 == read(one, "rand", scale=SHORT)
    assert read(one, "n_clusters", scale=SHORT) == 2
    assert read(one, "accuracy", scale=SHORT) == STOPS  # models go on
    one.stability = "not reached"
    assert read(one, "ari", scale=SHORT) == STOPS
    other = run(inputs)  # where some drop out, who comes later may be put elsewhere
    other.training = other.training.model_copy(update={"faults": Faults(dropout=0.1)})
    assert read(other, "ari", scale=SHORT) == STOPS


def test_methods_that_cluster_once_need_a_round(inputs: dict[str, Path]) -> None:
    """LCFL's clusters are there with the first round after its warm-up; all clients take part in each."""
    one = run(inputs, "lcfl")
    short = Reader(one, next(iter(one.claims.cells.values())), SHORT)
    assert one.training.participation == 1 and short.rest == one.warmup + 1
    assert {short.last(metric, "final") for metric in ("ari", "rand", "n_clusters", "ari_round_10")} == {short.rest}
    assert short.read("ari", "final") == read(one, "ari") == short.read("ari_round_10", "10")
    assert short.read("accuracy", "final") == STOPS
    some = run(inputs, "lcfl", participation=0.75)
    assert read(some, "ari", scale=SHORT) == STOPS


def test_a_prefix_of_ten_rounds_has_no_ari_after_ten_rounds(inputs: dict[str, Path]) -> None:
    one = run(inputs, participation=0.75)
    one.rounds = 10
    assert read(one, "ari_round_10", "10", SHORT) == "stops at round 10 of 100"


def test_a_prefix_has_no_evaluation_of_its_own(inputs: dict[str, Path]) -> None:
    one = run(inputs, evaluate_every=5)
    every_fifth = one.scores[one.scores.index.isin([5, 10, 12])]
    one.scored = lambda score: every_fifth  # type: ignore[method-assign]
    assert read(one, "rounds_to_accuracy_95", scale=Scale(PAPER, rounds=12, printed=12)) == 12
    assert read(one, "rounds_to_accuracy_95", scale=SHORT) == STOPS  # the whole run is first asked at round 15
    assert read(one, "accuracy", "12", SHORT) == "round 12 wasn't evaluated as aggregated/test/samples"
    assert read(one, "accuracy", "10", SHORT) == pytest.approx(90)
    often = run(inputs, evaluate_every=2)  # half of the rounds, and the last one
    often.rounds, every_second = 11, often.scores[often.scores.index.isin([2, 4, 6, 8, 10, 11])]
    often.scored = lambda score: every_second  # type: ignore[method-assign]
    assert read(often, "rounds_to_accuracy_95", scale=SHORT) == "stops at round 11 of 100"


def test_other_evaluations_leave_counts_of_rounds_open(inputs: dict[str, Path]) -> None:
    often = Scale(PAPER, rounds=12, printed=12, evaluated=False)
    assert "evaluate_every isn't" in str(read(run(inputs), "rounds_to_accuracy_90", scale=often))
    assert read(run(inputs), "accuracy", scale=often) == 100


def test_the_last_point_of_lcfls_curves_is_open_in_a_prefix(inputs: dict[str, Path]) -> None:
    own = {"paper": "lcfl", "score": {"evaluation": "stale"}, "iterations": "lcfl-released"}
    ifca, scale = run(inputs, "fedavg", **own), Scale(PREFIX, rounds=65, printed=60)
    assert read(ifca, "accuracy", "5", scale) == pytest.approx(100 * 12.5 / 20)  # rounds 5 and 6, as in the whole run
    assert read(ifca, "accuracy", "11", scale) == pytest.approx(100 * 18.5 / 20)  # rounds 11 and 12
    assert read(ifca, "accuracy", "12", scale) == "stops at round 12 of 65"  # rounds 12 and 13
    cut = {"cells": {"mnist/rotated-1200": {"federation": "planted", "rounds": 5}}}
    assert read(run(inputs, "fedavg", **own, **cut), "accuracy", "5", scale) == pytest.approx(100 * 12.5 / 20)


def test_a_number_and_its_curve_are_over_the_same_clients(inputs: dict[str, Path]) -> None:
    path = inputs["planted/seed0/methods/some.clusters"]
    table = pd.read_parquet(path)
    table["cluster"] = np.tile([0, 1, 1, 1], 12)
    table["participated"] = (table["client"] != 1) | (table["round"] == 1)
    write_table(path, {name: table[name].to_numpy() for name in table})
    clove = run(inputs)
    assert last_of_line(clove) == (12, read(clove, "ari")) == (12, 1)
    other = run(inputs, paper="fedgwc", cells={"cifar10/domains-50-50-0": {"federation": "planted"}})
    assert last_of_line(other) == (12, read(other, "ari")) and read(other, "ari") < 0.5


def last_of_line(one: Run) -> tuple[int, float]:
    rounds, values = one.line("ari")
    return int(rounds[-1]), float(values[-1])
