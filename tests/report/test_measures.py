"""The table of measures and the costs, by hand arithmetic on result files of four clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clusterfl.metrics import interval
from clusterfl.report import content, figures, measures, tables
from clusterfl.report.section import Section
from clusterfl.report.section_scores import differences, of_measures
from clusterfl.report.source import Source
from clusterfl.report.tables import DIFFERENCE
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import write_json, write_table

TRAIN = {0: [2, 2], 1: [5, 5], 2: [0, 3], 3: [1, 3]}  # samples of the two classes
TESTED = [(0, 0, 2, 1), (0, 1, 2, 2), (1, 0, 4, 4), (2, 1, 5, 0), (3, 0, 1, 1), (3, 1, 1, 0)]  # client, class, n, right
ROUNDS = [([0, 0, 0, -1], [1, 1, 1, 0]), ([0, 1, 1, 1], [1, 0, 1, 1]), ([0, 0, 1, 1], [1, 1, 1, 1])]
SCORE = {"evaluation": "aggregated", "split": "test", "average": "samples", "at": "final", "smooth": 1, "ddof": 1}
NEVER_TRAINED: dict[str, dict[str, Any]] = {"rounds": {}, "clusters": {}}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Federation ``planted`` has groups and a newcomer, ``plain`` has none; method ``none`` trains for no round."""
    inputs: dict[str, Path] = {}

    def write(key: str, columns: dict[str, Any]) -> None:
        inputs[key] = tmp_path / f"{key}.parquet"
        write_table(inputs[key], {name: np.array(values) for name, values in columns.items()})

    history = {"round": [0, 0, 2, 2, 3, 3], "client": [0, 1] * 3, "cluster": [0] * 6, "split": ["test"] * 6,
               "evaluation": ["aggregated"] * 6, "n": [5] * 6, "correct": [1, 1, 4, 1, 5, 4],
               "loss": [1.0] * 6}  # fmt: skip
    spent = {"bytes_down": [10, 20, 30], "bytes_up": [1, 2, 3], "local_steps": [5] * 3, "client_forwards": [0, 7, 0]}
    rounds = {"round": [1, 2, 3], **spent, "clusters": [1, 2, 2], "epsilon": [np.nan] * 3}
    labels, took = (np.concatenate(part) for part in zip(*ROUNDS, strict=True))
    clusters = {"round": np.repeat([1, 2, 3], 4), "client": [0, 1, 2, 3] * 3, "cluster": labels,
                "participated": took.astype(bool)}  # fmt: skip
    classes = dict(zip(("client", "class", "n", "correct"), zip(*TESTED, strict=True), strict=True))
    for federation, groups in {"planted": [0, 0, 1, 1, 0], "plain": [-1] * 5}.items():
        place, roles = f"{federation}/seed0", ["member"] * 4 + ["newcomer"]
        write(
            f"{place}/partition.partition",
            {"client": range(5), "role": roles, "true_cluster": groups, "transform": ["none"] * 5},
        )
        write_json(manifest_path(inputs[f"{place}/partition.partition"]), {})  # no one has a name
        counts = [(k, c, n) for k, own in {**TRAIN, 4: [9, 9]}.items() for c, n in enumerate(own)]
        client, label, n = zip(*counts, strict=True)
        write(f"{place}/partition.classes", {"client": client, "class": label, "n": n, "split": ["train"] * 10,
                                             "role": np.repeat(roles, 2)})  # fmt: skip
        files = {"history": history, "rounds": rounds, "clusters": clusters, "classes": classes}
        for kind, columns in files.items():
            write(f"{place}/methods/some.{kind}", columns)
            write(f"{place}/methods/none.{kind}", NEVER_TRAINED.get(kind, {n: v[:0] for n, v in columns.items()}))
    block = {"clustering": None, "sweep": {}}
    settings = {"federations": {"plain": {}, "planted": {}}, "seeds": {"runs": [0]},
                "methods": {"some": block, "none": block},
                "score": SCORE | {"targets": [0.5, 0.8, 0.99]}}  # fmt: skip
    return Source(settings, inputs)


PLANTED = {
    "ari": 1, "ari_participants": 1, "rand": 1, "nmi": 1, "clustering_accuracy": 1,
    "first_round_ari_0.9": 3, "first_round_ari_0.9_participants": 2,
}  # fmt: skip
ALWAYS = {
    "clusters": 2, "was": (1 + 1 + 0.5 + 0) / 4, "wadb": 1 / 3,  # as in test_metrics
    "balanced_accuracy": (0.75 + 1 + 0 + 0.5) / 4, "balanced_accuracy_train": (0.75 + 1 + 0 + 0.25) / 4,
    "worst_client": 0, "percentile_10_client": 0.3 * 0.5, "std_clients": np.std([0.75, 1, 0, 0.5]),
    "worst_cluster": 1 / 7, "rounds_to_0.5": 2, "rounds_to_0.8": 3, "rounds_to_0.99": np.nan,
}  # fmt: skip


def test_measures_by_hand(source: Source) -> None:
    found, by_round = measures.measures(source, tables.runs(source)[1])
    assert list(found.columns[:3]) == ["federation", "method", "seed"]
    rows = found.set_index(["federation", "method"]).drop(columns="seed")
    assert rows.loc["planted", "some"].to_dict() == pytest.approx(PLANTED | ALWAYS, nan_ok=True)
    assert rows.loc["plain", "some"].to_dict() == pytest.approx(dict.fromkeys(PLANTED, np.nan) | ALWAYS, nan_ok=True)
    assert rows.xs("none", level="method").isna().all(axis=None)
    assert set(by_round["federation"]) == {"planted"}
    # Round 1: all that have one are together. Round 2: 0011 against 0111; of the participants 011 against 011.
    assert by_round["round"].tolist() == [1, 2, 3]
    assert by_round["ari"].tolist() == pytest.approx([0, 0, 1])
    assert by_round["ari_participants"].tolist() == pytest.approx([0, 1, 1])


def test_training_samples_are_counted_by_the_classes_of_the_last_round(source: Source) -> None:
    """Final models are tested on those: a drift may exchange classes, as it does of all clients but the first."""
    place = source.inputs["planted/seed0/partition.partition"]
    twice = "none@2:2:swap(0,1)@3:3:swap(0,1)+relabel(1,0)"  # and client 1 has its own again
    names = ["none", twice, "none@2:2:relabel(1,0)", "swap(0,1)@3:2:none", "none"]
    table = pd.read_parquet(place).assign(transform=names)
    write_table(place, {name: table[name].to_numpy() for name in table})
    train = measures.Planted.of(source, "planted", 0).train
    assert train.to_numpy().tolist() == [[2, 2], [5, 5], [3, 0], [3, 1]]


def test_silhouette_is_left_out_where_clients_are_too_many(source: Source, monkeypatch) -> None:
    monkeypatch.setattr(measures, "MOST", 3)
    found, _ = measures.measures(source, tables.runs(source)[1])
    some = found[found["method"] == "some"]
    assert some["was"].isna().all() and some["wadb"].notna().all()


def test_what_a_table_does_not_know_is_blank(source: Source) -> None:
    found, _ = measures.measures(source, tables.runs(source)[1])
    lines = found[found["method"] == "none"].to_csv(index=False).splitlines()
    assert [line.strip(",") for line in lines[1:]] == ["plain,none,0", "planted,none,0"]


def test_every_measure_that_is_shown_is_measured(source: Source) -> None:
    found, _ = measures.measures(source, tables.runs(source)[1])
    shown = {**measures.CLUSTERS, **measures.CLIENTS, **measures.rounds(source.settings["score"])}
    assert set(shown) | {"federation", "method", "seed", "clusters"} == set(found)


def test_rounds_to_accuracy_are_smoothed_as_the_score_is(source: Source) -> None:
    source.settings["score"]["smooth"] = 3  # means .2, .35, .533...
    found, _ = measures.measures(source, tables.runs(source)[1])
    row = found[found["method"] == "some"].iloc[0]
    assert row["rounds_to_0.5"] == 3
    assert np.isnan(row["rounds_to_0.8"])


def test_costs_are_summed_up_to_each_evaluated_round(source: Source) -> None:
    scores, curves, _ = tables.runs(source)
    line = curves[(curves["federation"] == "plain") & (curves["method"] == "some")].set_index("round")
    assert line["bytes"].to_dict() == {0: 0, 2: 33, 3: 66}
    assert line["local_steps"].to_dict() == {0: 0, 2: 10, 3: 15}
    assert line["client_forwards"].to_dict() == {0: 0, 2: 7, 3: 7}
    assert scores["client_forwards"].tolist() == [7, 0, 7, 0]


@pytest.mark.parametrize("ddof", [1, 0])
def test_the_page_shows_means_where_every_seed_has_a_value(ddof: int) -> None:
    """Of two seeds a deviation that divides by n - 1 is their difference over sqrt(2), by n half of it."""
    table = pd.DataFrame({
        "federation": "f", "method": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "clusters": 2.0,
        "ari": [0.5, 1, 1, 1], "ari_participants": [0.5, 1, 1, 1],  # everyone took part, so one column is enough
        "first_round_ari_0.9": [2, 4, np.nan, 3], "first_round_ari_0.9_participants": [2, 3, np.nan, 3],
        "was": np.nan, "worst_client": [0.1, 0.3, 0.2, np.nan], "rounds_to_0.9": np.nan,
    })  # fmt: skip
    summary = pd.DataFrame({"method": ["b", "a"], "accuracy_mean": [0.8, 0.9]})
    settings = {
        "federations": {"f": {}},
        "seeds": {"runs": [0, 1]},
        "baseline": None,
        "score": SCORE | {"targets": [0.9], "ddof": ddof},
    }
    half, tenths, one, other = ("0.35", "14.1", "1.4", "0.7") if ddof else ("0.25", "10.0", "1.0", "0.5")
    own = {"summary": summary, "measures": table}
    section = Section(Source(settings, {}), "f", own, content.Album(Path()))
    shown = [(kind["table"]["columns"], kind["table"]["rows"]) for kind in of_measures(section)]
    assert [[name for name, _ in columns] for columns, _ in shown] == [
        ["method", "ARI"], ["method", "worst client"], ["method", "ARI ≥ 0.9", "ARI ≥ 0.9, took part"]
    ]  # fmt: skip
    assert [rows for _, rows in shown] == [
        [("a", f"0.75 ± {half}"), ("b", "1.00 ± 0.00")],
        [("a", f"20.0 ± {tenths}"), ("b", "–")],
        [("a", f"3.0 ± {one}", f"2.5 ± {other}"), ("b", "–", "–")],
    ]


@pytest.mark.parametrize(("ddof", "std"), [(1, "7.64"), (0, "6.24")])
def test_differences_count_those_above_zero_and_what_chance_would_do(
    monkeypatch: pytest.MonkeyPatch, ddof: int, std: str
) -> None:
    """Points 10, -5 and 0: mean 1.67, squares 69.44, 44.44 and 2.78 about it, so sqrt(116.67 / 2), or of a third.

    The interval always takes the first: 4.303 times 7.64 / sqrt(3), which is 18.97. That all of three seeds lie on one
    side, whichever it is, has the probability 2 / 8.
    """
    found = {"a": [0.1, -0.05, 0.0], "b": [0.02, np.nan, 0.04]}
    rows = [(m, seed, value) for m, values in found.items() for seed, value in enumerate(values)]
    table = pd.DataFrame(rows, columns=["method", "seed", "difference"])
    summary = pd.DataFrame({"method": ["b", "a", "base"], "accuracy_mean": [0.8, 0.7, 0.6]})
    for number, name in enumerate(DIFFERENCE):
        summary[name] = [interval(found["b"])[number], interval(found["a"])[number], np.nan]
    settings = {"federations": {"f": {}}, "seeds": {"runs": [0, 1, 2]}, "baseline": "base"}
    settings["score"] = SCORE | {"ddof": ddof}
    monkeypatch.setattr(Section, "figure", lambda *given: {})
    section = Section(Source(settings, {}), "f", {"summary": summary, "differences": table}, content.Album(Path()))
    shown = differences(section)
    columns = ["method", "mean", "95% interval", "std", "above zero"]
    assert [name for name, _ in shown["table"]["columns"]][:5] == columns
    assert shown["table"]["rows"] == [
        ("b", "–", "–", "–", "2 of 2", "+2.00", "–", "+4.00"),
        ("a", "+1.67", "−17.31 to +20.64", std, "1 of 3", "+10.00", "−5.00", "+0.00"),
    ]
    assert (shown["seeds"], shown["chance"]) == (3, "0.25")


def spending(**bytes_: list[float]) -> pd.DataFrame:
    """Return the curves of methods by what they have sent in rounds 0, 1, 2, with two seeds."""
    rows = [
        {"method": m, "round": r, "seed": s, "accuracy": (r + s) / 10, "bytes": 1e6 * x, "local_steps": 1000.0 * r,
         "client_forwards": 0.0}
        for m, sent in bytes_.items() for r, x in enumerate(sent) for s in (0, 2)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("most", "scale"), [(20, "linear"), (21, "log")])
def test_costs_are_drawn_by_kind_and_what_is_free_is_seen(most: float, scale: str) -> None:
    curves = spending(cheap=[0, 0.5, 1], dear=[0, 1, most], free=[0, 0, 0])
    style = figures.styles(["cheap", "dear", "free"], ["cheap"])
    figure = figures.cost(curves, style, "accuracy", "score")
    sent, steps = figure.axes  # nobody passes anything forward, so there is no third
    assert (sent.get_xscale(), steps.get_xscale()) == (scale, "linear")
    figure.draw_without_rendering()
    assert not [tick for tick in sent.get_xticklabels(which="both") if "$" in tick.get_text()]  # no formulas
    cheap, dear, free = sent.lines[:3]
    first = 1 if scale == "log" else 0  # zero has no logarithm
    assert list(cheap.get_xdata()) == [0, 0.5, 1][first:]
    assert list(dear.get_ydata()) == pytest.approx([10, 20, 30][first:])  # per cent, mean of the seeds
    assert list(free.get_xdata()) == [0, 1]  # the whole width, in axes coordinates
    assert list(free.get_ydata()) == pytest.approx([30, 30])
    assert list(steps.lines[2].get_xdata()) == [0, 1, 2]
