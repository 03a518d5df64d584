"""The report: its numbers by hand arithmetic, its words, and its page on small made-up studies."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from clusterfl.config import loading
from clusterfl.errors import UserError
from clusterfl.pipeline.stages import Work, report
from clusterfl.report import cluster_figures, figures, section_scores, splitting, stepping, tables, words
from clusterfl.report.content import Album
from clusterfl.report.section import Section
from clusterfl.report.source import Source
from clusterfl.storage.manifest import manifest_path, write_manifest
from clusterfl.storage.store import read_table, write_table, write_tensors

SCORE = {
    "evaluation": "aggregated",
    "split": "test",
    "average": "samples",
    "at": "final",
    "smooth": 1,
    "ddof": 1,
    "targets": [0.5, 0.9],
}
COLUMNS = [
    *("federation", "method", "seeds", "accuracy_mean", "accuracy_std", "loss_mean", "loss_std", "ari_mean"),
    *("ari_std", "clusters_mean", "bytes_down", "bytes_up", "local_steps", "epsilon"),
    *("epsilon_proven", "epsilon_at_least", "difference_mean", "difference_low", "difference_high"),
    *("to_best_mean", "to_best_low", "to_best_high", "scored_clients", "scored_of"),
    *("score_evaluation", "score_split", "score_average", "score_at", "score_smooth", "score_ddof"),
]


def history(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["round", "client", "cluster", "n", "correct", "loss"])
    return table.assign(split="test", evaluation="aggregated")


# Client 0 (cluster 0): 8 of 10 right; client 1 (cluster 0): 0 of 10; client 2 (cluster 1): 20 of 20.
# Client 3 has no sample.
ONE = history([(1, 0, 0, 10, 8, 1.0), (1, 1, 0, 10, 0, 3.0), (1, 2, 1, 20, 20, 0.5), (1, 3, 1, 0, 0, np.nan)])


@pytest.mark.parametrize(
    ("average", "accuracy", "loss"),
    [
        ("samples", 28 / 40, (10 + 30 + 10) / 40),
        ("clients", (0.8 + 0 + 1) / 3, (1 + 3 + 0.5) / 3),
        ("clusters", (8 / 20 + 20 / 20) / 2, (40 / 20 + 10 / 20) / 2),
    ],
)
def test_score_averages_by_hand(average: str, accuracy: float, loss: float) -> None:
    found = tables.pick(tables.curve(ONE, SCORE | {"average": average}), SCORE)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["loss"] == pytest.approx(loss)


@pytest.mark.parametrize("average", ["samples", "clients", "clusters"])
def test_a_mean_with_a_loss_that_is_unknown_is_unknown(average: str) -> None:
    """A client whose model diverged has no loss; without it the others' mean would look better than all clients'.

    Its accuracy isn't known, either: outputs that are NaN make class 0 the prediction, and some clients have no other.
    """
    two = pd.concat([ONE, ONE.assign(round=2)])
    broken = two.assign(loss=two["loss"].mask((two["round"] == 2) & (two["client"] == 0)))
    whole, found = (tables.curve(table, SCORE | {"average": average}) for table in (two, broken))
    assert found.iloc[-1].isna().all() and found.iloc[:-1].equals(whole.iloc[:-1])
    assert tables.by_client(broken, SCORE, 2)["accuracy"].isna().tolist() == [True, False, False]


def paired(scores: pd.DataFrame, baseline: str | None) -> tuple[pd.DataFrame, ...]:
    """Differences from the baseline and from the best, and the only client."""
    clients = scores[["federation", "method", "seed"]].assign(client=0)
    return tables.differences(scores, baseline), tables.to_best(scores, ["oracle"]), clients


def test_a_mean_of_some_seeds_is_none() -> None:
    scores = pd.DataFrame({"federation": "f", "method": "m", "seed": [0, 1], "accuracy": [0.5, np.nan]})
    for name in ("loss", "ari", "clusters", "bytes_down", "bytes_up", "local_steps", "epsilon", "seconds"):
        scores[name] = 1.0
    scores = scores.assign(epsilon_proven=None, epsilon_at_least=None)
    found = tables.summarise(scores, SCORE, *paired(scores, None)).iloc[0]
    assert np.isnan(found["accuracy_mean"]) and np.isnan(found["accuracy_std"]) and found["loss_mean"] == 1


@pytest.mark.parametrize(("ddof", "std"), [(1, 0.2 / 2**0.5), (0, 0.1)])
def test_the_deviation_over_seeds_divides_as_the_score_says(ddof: int, std: float) -> None:
    scores = pd.DataFrame({"federation": "f", "method": "m", "seed": [0, 1], "accuracy": [0.5, 0.7]})
    for name in ("loss", "ari", "clusters", "bytes_down", "bytes_up", "local_steps", "epsilon", "seconds"):
        scores[name] = scores["accuracy"]
    scores = scores.assign(epsilon_proven=None, epsilon_at_least=None)
    found = tables.summarise(scores, SCORE | {"ddof": ddof}, *paired(scores, None)).iloc[0]
    assert [found[f"{name}_std"] for name in ("accuracy", "loss", "ari")] == pytest.approx([std] * 3)


# Accuracies 0.2, 0.9, 0.4, 0.5 in rounds 0, 2, 4, 6; smoothed over two: 0.2, 0.55, 0.65, 0.45.
LINE = history([(r, 0, 0, 10, c, r / 2) for r, c in ((0, 2), (2, 9), (4, 4), (6, 5))])


@pytest.mark.parametrize(
    ("settings", "round_", "accuracy"),
    [
        ({}, 6, 0.5),
        ({"at": "best"}, 2, 0.9),
        ({"at": 4}, 4, 0.4),
        ({"smooth": 2}, 6, 0.45),
        ({"smooth": 2, "at": "best"}, 4, 0.65),
        ({"smooth": 9}, 6, 0.5),
        ({"at": 3}, np.nan, np.nan),  # not evaluated
        ({"split": "train"}, np.nan, np.nan),
        ({"evaluation": "local"}, np.nan, np.nan),
    ],
)
def test_score_picks_round_by_hand(settings: dict[str, Any], round_: float, accuracy: float) -> None:
    score = SCORE | settings
    found = tables.pick(tables.curve(LINE, score), score)
    assert found["round"] == pytest.approx(round_, nan_ok=True)
    assert found["accuracy"] == pytest.approx(accuracy, nan_ok=True)


def test_best_of_regression_is_lowest_loss() -> None:
    line = LINE.assign(correct=np.nan, loss=[3.0, 1.0, 2.0, 4.0])
    score = SCORE | {"at": "best"}
    found = tables.pick(tables.curve(line, score), score)
    assert (found["round"], found["loss"]) == (2, 1.0)
    assert np.isnan(found["accuracy"])


@pytest.mark.parametrize("smooth", [1, 2])
def test_a_last_round_that_is_infinite_has_no_score(smooth: int) -> None:
    line = LINE.assign(correct=np.nan, loss=[3.0, 1.0, 2.0, np.inf])
    score = SCORE | {"smooth": smooth}
    found = tables.pick(tables.curve(line, score), score)
    assert np.isnan(found["round"]) and np.isnan(found["loss"])


def test_differences_are_paired_by_seed() -> None:
    rows = [("f", m, s, a) for m, values in {"a": (0.5, 0.7), "b": (0.6, 0.65)}.items() for s, a in enumerate(values)]
    scores = pd.DataFrame(rows, columns=["federation", "method", "seed", "accuracy"]).assign(loss=1.0)
    found = tables.differences(scores.iloc[::-1], "a")
    assert dict(zip(found["seed"], found["difference"], strict=True)) == pytest.approx({0: 0.1, 1: -0.05})
    assert list(found["method"].unique()) == ["b"]
    assert tables.differences(scores, None).empty


def test_differences_have_students_interval_of_two_seeds_or_more() -> None:
    gaps = {"a": (0.0, 0.0), "b": (0.1, -0.05), "c": (0.1, np.nan)}
    rows = [("f", m, s, 0.5 + x) for m, values in gaps.items() for s, x in enumerate(values)]
    scores = pd.DataFrame(rows, columns=["federation", "method", "seed", "accuracy"])
    for name in ("loss", "ari", "clusters", "bytes_down", "bytes_up", "local_steps", "epsilon", "seconds"):
        scores[name] = 1.0
    scores = scores.assign(epsilon_proven=None, epsilon_at_least=None)

    def found(scores: pd.DataFrame) -> pd.DataFrame:
        table = tables.summarise(scores, SCORE, *paired(scores, "a"))
        return table.set_index("method")[["difference_mean", "difference_low", "difference_high"]].astype(float)

    both = found(scores)
    reach = 12.7062047 * 0.075  # t of one degree of freedom; half of what lies between two values is their error
    assert both.loc["b"].to_list() == pytest.approx([0.025, 0.025 - reach, 0.025 + reach])
    assert both.loc[["a", "c"]].isna().all(axis=None)  # of the baseline, and of one that diverged with a seed
    one = found(scores[scores["seed"] == 0])
    assert one.loc["b"].to_list() == pytest.approx([0.1, np.nan, np.nan], nan_ok=True)


def test_differences_from_the_best_leave_those_that_know_the_groups_out_of_the_choice() -> None:
    rows = {"f": {"a": (0.5, 0.7), "b": (0.8, 0.6), "c": (0.9, np.nan), "oracle": (0.9, 0.8)}, "g": {"oracle": (1, 0)}}
    scores = pd.DataFrame(
        [(f, m, s, x) for f, methods in rows.items() for m, values in methods.items() for s, x in enumerate(values)],
        columns=["federation", "method", "seed", "accuracy"],
    )
    found = tables.to_best(scores, ["oracle"])
    assert set(found["federation"]) == {"f"}  # alone there is nothing to compare with
    wide = found.pivot(index="method", columns="seed", values="difference")
    assert wide.loc["a"].to_list() == pytest.approx([-0.3, 0.1])  # c has no mean, so b is the best
    assert wide.loc["oracle"].to_list() == pytest.approx([0.1, 0.2])
    losses = scores.assign(accuracy=np.nan, loss=scores["accuracy"])
    assert "a" not in set(tables.to_best(losses, ["oracle"])["method"])  # the lowest loss
    assert tables.to_best(scores[scores["method"] == "c"], ["oracle"]).empty


def test_spread_by_hand() -> None:
    values = pd.Series([1.0, 3.0])
    assert tables.spread(values, ddof=1) == pytest.approx(2**0.5)
    assert tables.spread(values, ddof=0) == pytest.approx(1)
    assert np.isnan(tables.spread(values[:1], ddof=0))


def method(name: str, clustering: str | None = None) -> dict[str, Any]:
    return {"method": name, "clustering": clustering, "training": {}, "sweep": {}}


METHODS = {
    "fedavg": method("fedavg"),
    "oracle": method("oracle"),
    "ifca": method("ifca"),
    "lcfl": method("lcfl", "pam"),
}


TRIED = {
    "k": np.arange(1, 4), "silhouette": np.array([np.nan, 0.75, 0.5]), "eigengap": np.full(3, np.nan),
    "chosen": np.arange(1, 4) == 2,
}  # fmt: skip


# Six clients: in round 2 no good split; in round 3 clients 1, 3 and 5 part from the others, in round 4 client 5 too.
TWICE = {
    "labels": np.array([0, 1, 0, 1, 0, 2]), "rewards.window": np.array([1]), "splits.attempt": np.array([1, 2]),
    "rewards": np.array([[1, 0.5] * 3, [np.nan, 0.5] * 3, [1, 0.5] * 3, [0.5] * 6], dtype=np.float32),
    "attempts.round": np.array([2, 3, 4]), "attempts.cluster": np.array([0, 0, 1]),
    "attempts.parts": np.array([1, 2, 2]),
    "attempts.scores": np.array([[1.5, np.nan], [0.5, 0.75], [0.25, np.nan]]), "theta": np.zeros((3, 2), np.float32),
    "split0.members": np.arange(6), "split0.labels": np.array([0, 1] * 3),
    "split0.affinity": np.ones((6, 6), np.float32),
    "split1.members": np.array([1, 3, 5]), "split1.labels": np.array([1, 1, 2]),
}  # fmt: skip


def study(**changes: Any) -> dict[str, Any]:
    """Return resolved settings with the parts that the report reads."""
    return {
        "study": "s", "title": "A study", "seeds": {"runs": [0, 1, 2]}, "methods": METHODS,
        "baseline": "fedavg", "score": SCORE,
        "federations": {"f": {"dataset": {"dataset": "digits"}}}, "warmups": {"w": {"rounds": 1}},
        "distances": {"d": {"metric": "loss", "warmup": "w", "data": "train"}},
        "clusterings": {"pam": {"distance": "d", "clusterer": "kmedoids", "clusters": 2}},
    } | changes  # fmt: skip


def run(
    client: np.ndarray, rounds: np.ndarray, split: str, regression: bool, generator: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """Return the made-up tables of a run; its last client has no sample."""
    n = np.tile([10, 10, 10, 10, 10, 0], len(rounds))
    correct = np.full(len(n), np.nan) if regression else generator.integers(0, 11, len(n)) * (n > 0) * 1.0
    return {
        "history": {
            "round": np.repeat(rounds, 6), "client": np.tile(client, len(rounds)),
            "cluster": np.zeros(len(n), int), "split": [split] * len(n),
            "evaluation": ["aggregated"] * len(n), "n": n, "correct": correct,
            "loss": np.where(n > 0, generator.random(len(n)), np.nan),
        },
        "classes": dict.fromkeys(("client", "class", "n", "correct"), client[:0] if regression else client),
        "rounds": {
            "round": np.arange(1, 5), "bytes_down": np.full(4, 100), "bytes_up": np.full(4, 50),
            "local_steps": np.full(4, 7), "client_forwards": np.zeros(4, int),
            "clusters": np.full(4, 2), "epsilon": np.full(4, np.nan),
        },
        "clusters": {
            "round": np.full(6, 4), "client": client, "participated": client > 0,
            "cluster": np.where(client > 0, client % 2, -1),  # client 0 never took part
        },
    }  # fmt: skip


def make(
    folder: Path,
    settings: dict[str, Any],
    regression: bool = False,
    groups: bool = True,
    every: int = 1,
    unscored: tuple[str, ...] = (),
    timed: bool = True,
) -> Work:
    """Write made-up results of six clients and four rounds, and return the report's work on them."""
    inputs: dict[str, Path] = {}
    client, generator = np.arange(6), np.random.default_rng(0)

    def write(key: str, path: str, columns: dict[str, Any]) -> None:
        inputs[key] = folder / path
        write_table(inputs[key], columns)

    true = client % 2 if groups else np.full(6, -1)
    partition = {
        "sample": np.arange(12), "client": np.repeat(client, 2), "split": ["train", "test"] * 6,
        "role": ["member"] * 12, "transform": ["none"] * 12, "true_cluster": np.repeat(true, 2),
    }  # fmt: skip
    names = ("client", "split", "role", "true_cluster")
    label = np.full(12, -1) if regression else np.arange(12) % 3
    classes = {name: partition[name] for name in names} | {"class": label, "n": np.ones(12, int)}
    matrix = np.abs(client[:, None] - client[None]) / 5
    clusterings = {m["clustering"] for m in settings["methods"].values()} - {None}
    for place in (f"{f}/seed{s}" for f in settings["federations"] for s in settings["seeds"]["runs"]):
        write(f"{place}/partition.partition", f"{place}/partition.parquet", partition)
        write(f"{place}/partition.classes", f"{place}/partition.classes.parquet", classes)
        for name in clusterings:
            found = {"client": client, "cluster": client % 2}
            write(f"{place}/clusters/{name}.clusters", f"{place}/clusters/{name}.parquet", found)
            write(f"{place}/clusters/{name}.scores", f"{place}/clusters/{name}.scores.parquet", TRIED)
            block = settings["clusterings"][name]["distance"]
            distance = {"client": client, "distance": matrix}
            write(f"{place}/distance/{block}.distance", f"{place}/distance/{block}.parquet", distance)
            warmup = f"{place}/warmup/{settings['distances'][block]['warmup']}"
            write(f"{warmup}.history", f"{warmup}/history.parquet", {"round": [1]})
            time = {"round": [0], "seconds": [5.0], "host": ["h"], "date": [np.datetime64(0, "s")]}
            write_table(folder / f"{warmup}/timing.parquet", time)
        for name in settings["methods"]:
            split = "train" if name in unscored else "test"
            for kind, columns in run(client, np.arange(0, 5, every), split, regression, generator).items():
                write(f"{place}/methods/{name}.{kind}", f"{place}/methods/{name}/{kind}.parquet", columns)
            if settings["methods"][name]["method"] == "ifca":
                inputs[f"{place}/methods/{name}.models"] = folder / f"{place}/methods/{name}/models.safetensors"
                # Client 0 was never asked; the others lose least on the model that they have.
                losses = np.where(client[:, None] % 2 == [0, 1], 1.0, 2.0) + client[:, None] / 10
                losses[0] = np.nan
                write_tensors(inputs[f"{place}/methods/{name}.models"], {"losses": losses, "labels": client % 2})
            if settings["methods"][name]["method"] == "fedgwc":
                inputs[f"{place}/methods/{name}.models"] = folder / f"{place}/methods/{name}/models.safetensors"
                write_tensors(inputs[f"{place}/methods/{name}.models"], TWICE)
            if timed:
                date = [np.datetime64(second, "s") for second in (60, 90, 90)]
                time = {"round": [0, 0, 1], "seconds": [1.5, 0.5, 1.0], "host": ["g", "h", "h"], "date": date}
                write_table(folder / f"{place}/methods/{name}/timing.parquet", time)
    for place in {manifest_path(path) for path in inputs.values()}:
        files_ = [path for path in inputs.values() if manifest_path(path) == place]
        write_manifest(
            place, files_, {"stage": "x", "federation": _federation(place), "seed": _seed(place), "code": "c"}
        )
    names = {"page": "report.html", "summary": "summary.parquet", "study": "study.json", "tables": "tables"}
    outputs = {key: folder / "out" / name for key, name in (names | {"figures": "figures"}).items()}
    return Work(settings, {}, inputs, outputs, lambda title, total: contextlib.nullcontext(lambda done, text: None))


def _seed(manifest: Path) -> int:
    return int(re.findall(r"seed(\d+)", str(manifest))[-1])


def _federation(manifest: Path) -> str:
    return next(p.parent.name for p in manifest.parents if re.fullmatch(r"seed\d+", p.name))


def page(work: Work) -> str:
    report.run(work)
    return work.outputs["page"].read_text(encoding="utf-8")


@pytest.fixture
def no_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the PNGs out, to save time."""
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, path, **k: path.suffix == ".svg" and save(f, path, **k))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Work:
    work = make(tmp_path_factory.mktemp("usual"), study())
    report.run(work)
    return work


def test_summary_has_the_promised_columns_and_values(usual: Work) -> None:
    found = read_table(usual.outputs["summary"])
    assert list(found) == COLUMNS
    assert list(found["method"]) == list(METHODS)
    row = {name: values[0] for name, values in found.items()}
    assert (row["federation"], row["method"], row["seeds"]) == ("f", "fedavg", 3)
    # Four rounds of 100 bytes, 50 bytes and 7 steps.
    assert (row["bytes_down"], row["bytes_up"], row["local_steps"]) == (400, 200, 28)
    assert (row["ari_mean"], row["clusters_mean"]) == (1, 2)
    times = pd.read_csv(usual.outputs["tables"] / "times.csv").groupby("method", sort=False)["seconds"].mean()
    assert times.tolist() == [2, 2, 2, 2 + 5]  # of both processes; the one-shot method's warm-up counts
    jobs = pd.read_csv(usual.outputs["tables"] / "jobs.csv", keep_default_na=False)
    spent = jobs.loc[jobs["seconds"] != "", ["seconds", "host", "date"]].drop_duplicates().values.tolist()
    assert sorted(spent) == [["2.0", "g, h", "1970-01-01 00:01:00"], ["5.0", "h", "1970-01-01 00:00:00"]]
    assert np.isnan(row["epsilon"])
    assert (row["score_at"], row["score_smooth"], row["score_average"]) == ("final", 1, "samples")
    assert sorted(p.name for p in usual.outputs["tables"].iterdir())[:3] == [
        "agreement.csv",
        "bad_clients.csv",
        "choices.csv",
    ]


MANY = {f"method-{i}": method("ifca") for i in range(12)} | {"fedavg": method("fedavg")}
FEW = {name: METHODS[name] for name in ("fedavg", "ifca")}
TWO = {"f": {"dataset": {"dataset": "a"}}, "g": {"dataset": {"dataset": "b"}}}
ODD = {
    "several federations": (
        study(federations=TWO, seeds={"runs": [0, 1]}, methods=FEW, clusterings={}),
        {"timed": False},
    ),
    "one seed": (study(seeds={"runs": [4]}, methods={"fedavg": METHODS["fedavg"]}, clusterings={}), {}),
    "regression": (study(methods=FEW, clusterings={}), {"regression": True}),
    "no groups": (study(baseline=None, methods=FEW, clusterings={}), {"groups": False}),
    "many methods": (study(methods=MANY, seeds={"runs": [0]}), {}),
    "few evaluations": (
        study(score=SCORE | {"at": "best", "smooth": 2, "average": "clusters"}, methods=FEW, clusterings={}),
        {"every": 3},
    ),
    "one evaluation missing": (study(), {"unscored": ("ifca",)}),
    "baseline's evaluation missing": (study(methods=FEW, clusterings={}), {"unscored": ("fedavg",)}),
    "no evaluation at all": (study(), {"unscored": tuple(METHODS)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
@pytest.mark.usefixtures("no_png")
def test_odd_studies_have_a_page(name: str, tmp_path: Path) -> None:
    settings, options = ODD[name]
    work = make(tmp_path, settings, **options)
    text = page(work)
    summary = read_table(work.outputs["summary"])
    assert len(summary["method"]) == len(settings["methods"]) * len(settings["federations"])
    assert not re.search(r"\bnan\b|\bNone\b", re.sub(r"<pre>.*?</pre>", "", text, flags=re.S))
    if name == "regression":
        assert np.isnan(summary["accuracy_mean"].astype(float)).all()
        assert "lowest test loss" in text
    if name == "one seed":
        assert np.isnan(summary["accuracy_std"].astype(float)).all()
        assert "There is one seed, so no spread is known" in text
        assert "Distances between clients" not in text  # there is no one-shot method
        assert "Losses on each model" not in text
    if name == "no groups":
        assert "Losses of 5 clients on the 2 models of ifca, seed 0" in text
        assert np.isnan(summary["ari_mean"].astype(float)).all()
        assert "No groups were planted" in text
    if name == "one evaluation missing":
        assert "Without a score: ifca (" in text


@pytest.mark.slow
@pytest.mark.usefixtures("no_png")
def test_splits_are_shown(tmp_path: Path) -> None:
    """Two methods, one without planted groups; a split whose affinity wasn't kept has no figure."""
    for groups in (True, False):
        shown = study(methods=FEW | {"gwc": method("fedgwc")}, clusterings={})
        work = make(tmp_path / str(groups), shown, groups=groups)
        text = page(work)
        assert "gwc: 3 clusters" in text and "in round 3, gwc" in text and "in round 4, gwc" not in text
        found = sorted(path.stem for path in work.outputs["figures"].glob("*gwc*.svg"))
        assert found == ["affinity0-gwc-f", "rewards-gwc-f", "splits-gwc-f"]
    source = Source(work.settings, work.inputs)
    assert source.splits("f", 0, "ifca") is None and source.splits("f", 0, "fedavg") is None
    state = source.splits("f", 0, "gwc")
    assert state is not None and "theta" not in state and state["clients"].tolist() == list(range(6))


def test_clusters_between_splits_by_hand() -> None:
    found = [(k, began, end, members.tolist()) for k, began, end, members in splitting.lives(TWICE)]
    first, then = [(0, 0, 3, list(range(6))), (1, 3, 4, [1, 3, 5])], [(0, 3, 4, [0, 2, 4])]
    assert found == [*first, *then, (1, 4, 4, [1, 3]), (2, 4, 4, [5])]
    table = splitting.attempts(TWICE)
    assert table.loc[1].to_dict() == {"round": 3, "cluster": 0, "2 parts": 0.5, "3 parts": 0.75, "found": 2}


def test_figures_of_splits_by_hand() -> None:
    axes = splitting.tree(TWICE).axes[0]
    assert [text.get_text() for text in axes.texts] == ["0: 3 clients", "1: 2 clients", "2: 1 client"]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[2, 0.5 * (0 + 1) + 0.5]]]  # the failed attempt
    lines = splitting.rewards(TWICE).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines[:3]] == [[1, 1, 0.5], [0.5] * 4, [0.5] * 4]
    assert lines[0].get_xdata().tolist() == [1, 3, 4] and [line.get_xdata()[0] for line in lines[3:]] == [3, 4]
    nobody = TWICE | {"rewards": np.zeros((0, 6), np.float32), "splits.attempt": np.zeros(0, int)}
    assert not splitting.rewards(nobody | {"labels": np.zeros(6, int)}).axes[0].lines


def test_losses_and_clients_by_hand(usual: Work) -> None:
    source = Source(usual.settings, usual.inputs)
    losses = source.losses("f", 1, "ifca")
    assert losses is not None
    assert list(losses.index) == [1, 2, 3, 4, 5]
    assert losses.loc[1].to_list() == [2.1, 1.1]
    assert source.losses("f", 1, "fedavg") is None  # it has no such file
    found = tables.by_client(ONE, SCORE, 1)
    assert found.loc[[0, 1, 2], "accuracy"].to_list() == [0.8, 0, 1]
    assert found["loss"].to_list() == [1, 3, 0.5]  # client 3 has no sample
    assert tables.by_client(ONE, SCORE, 2).empty


def test_points_have_a_marker_for_each_cluster_and_a_colour_for_each_group() -> None:
    points = np.array([[0.0, 1], [1, 0], [2, 2], [3, 1]])
    found, groups = np.array([0, 0, 8, 8]), np.array([0, 1, 1, 1])
    axes = cluster_figures.plane(points, found, groups, ["x", "y"], diagonal=True).axes[0]
    drawn = [(line.get_marker(), line.get_color(), line.get_xydata().tolist()) for line in axes.get_lines()]
    looks = {(marker, colour): xy for marker, colour, xy in drawn[:-1]}
    assert [len(xy) for xy in looks.values()] == [1, 1, 2]
    assert len({marker for marker, _ in looks}) == 2  # also where numbers of clusters are eight apart
    assert len({colour for _, colour in looks}) == 2
    alone = cluster_figures.plane(points, found, None, ["x", "y"]).axes[0].get_lines()
    assert len({line.get_color() for line in alone}) == 2


def test_strip_shows_every_client_and_each_groups_median() -> None:
    values = {"a": pd.Series([10.0, 20, 90], index=[0, 1, 2]), "b": pd.Series([50.0], index=[2])}
    axes = figures.strip(values, pd.Series([0, 0, 1]), "x").axes[0]
    dots = [x for line in axes.get_lines() if line.get_marker() == "." for x in line.get_xdata()]
    assert sorted(dots) == [10, 20, 50, 90]
    medians = [float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_marker() == "|"]
    assert medians == [15, 90, 50]


def test_clusters_of_each_kind_stand_below_the_groups_that_they_are_held_to() -> None:
    """After a drift; clients 1 and 2 have changed places. A clustering is from before, and both kinds are right."""
    before, groups = pd.Series([0, 0, 1, 1]), pd.Series([0, 1, 0, 1])
    rows = {("clustering", "clustering pam"): before, ("method", "method ifca"): groups}
    members = pd.concat([
        pd.DataFrame({"kind": kind, "name": name, "client": range(4), "group": own, "cluster": 5 + own})
        for (kind, name), own in rows.items()
    ])  # fmt: skip

    def drawn(members: pd.DataFrame, before: pd.Series) -> dict[str, list[int]]:
        axes = cluster_figures.clusters(members, list(members["name"].unique()), groups, before).axes[0]
        labels = [text.get_text() for text in axes.get_yticklabels()]
        return dict(zip(labels, axes.get_images()[0].get_array().tolist(), strict=True))

    then, now = [0, 1, 0, 1], [0, 0, 1, 1]  # clients in the order 0, 2, 1, 3
    found = drawn(members, before)
    assert list(found) == ["planted groups, round 1", "clustering pam", "planted groups", "method ifca"]
    assert list(found.values()) == [then, then, now, now]
    assert drawn(members[members["kind"] == "method"], before) == {"planted groups": now, "method ifca": now}
    assert list(drawn(members, groups)) == ["planted groups", "clustering pam", "method ifca"]


def test_steps_say_who_moved_and_lead_to_the_last_round() -> None:
    rows = [(1, 0, 5), (1, 1, 7), (1, 2, 5), (2, 0, 5), (2, 1, 5), (2, 2, -1), (3, 0, 5), (3, 1, 7), (3, 2, 7)]
    table = pd.DataFrame(rows, columns=["round", "client", "cluster"])
    text = stepping.steps({"<b>": table, "still": table[table["round"] == 3]}, pd.Series({0: 1, 1: 0, 2: 0}))
    assert text is not None and "<" not in text
    found = json.loads(text)
    assert found["clients"] == [1, 2, 0] and found["groups"] == [0, 0, 1] and found["rounds"] == [1, 2, 3]
    (method,) = found["methods"]  # of one round there is nothing to step through
    # Cluster 7 is planted group 0's, 5 is group 1's; client 2 stays where it was while it isn't seen.
    assert method == {"name": "<b>", "first": [0, 1, 1], "moves": [[0, 1], [0, 0, 1, 0]]}
    assert stepping.steps({"still": table[table["round"] == 3]}, pd.Series(dtype=int)) is None


def test_clusters_by_round_are_those_of_a_slow_loop() -> None:
    """One method has no row before round 3, and clients that are missing in some rounds or always."""
    rng = np.random.default_rng(0)
    found = {}
    for name, first, clients in (("a", 1, range(5)), ("b", 3, range(2, 7))):
        rows = [(t, i, rng.integers(-1, 3)) for t in range(first, 8) for i in clients if rng.random() < 0.6]
        found[name] = pd.DataFrame(rows, columns=["round", "client", "cluster"])
    text = stepping.steps(found, pd.Series(dtype=int))
    assert text is not None
    shown = json.loads(text)
    assert shown["clients"] == list(range(7)) and shown["rounds"] == list(range(1, 8)) and shown["groups"] is None
    for method in shown["methods"]:
        now = dict.fromkeys(range(7), -1)
        line = method["first"]
        for t, moved in zip(range(1, 8), [[], *method["moves"]], strict=True):
            for i, k in zip(moved[::2], moved[1::2], strict=True):
                line[i] = k
            rows = found[method["name"]]
            seen = rows[(rows["round"] == t) & (rows["cluster"] >= 0)]
            now |= dict(zip(seen["client"], seen["cluster"], strict=True))
            assert line == list(now.values()), (method["name"], t)


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_chosen_number_of_clusters_is_shown(usual: Work, tmp_path: Path) -> None:
    assert "Number of clusters" not in usual.outputs["page"].read_text(encoding="utf-8")  # it was given
    block = {"distance": "d", "clusterer": "kmedoids", "clusters": "silhouette", "most": 3, "margin": 1.0}
    work = make(tmp_path, study(clusterings={"pam": block}, seeds={"runs": [0, 1]}))
    text = page(work)
    assert "Number of clusters" in text
    assert "clustering &#39;pam&#39;; chosen: 2 for seed 0, 2 for seed 1" in text
    assert (work.outputs["figures"] / "choice-pam-f.svg").exists()
    table = pd.read_csv(work.outputs["tables"] / "choices.csv")
    assert table[["federation", "seed", "clustering"]].drop_duplicates().to_numpy().tolist() == [
        ["f", 0, "pam"],
        ["f", 1, "pam"],
    ]
    assert table["silhouette"].tolist()[1:3] == [0.75, 0.5] and table["k"][table["chosen"]].tolist() == [2, 2]


class Loads(HTMLParser):
    """Collects tags, and what the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [
            v or "" for k, v in attrs if k in ("src", "srcset", "data", "xlink:href", "action") or tag == "link"
        ]


@pytest.mark.usefixtures("no_png")
def test_page_loads_nothing_and_names_are_harmless(tmp_path: Path) -> None:
    bad = "<script>alert(1)<b>&$x$"
    settings = study(
        title=bad, federations={bad: {"dataset": {"dataset": bad}}}, baseline=bad,
        methods={bad: method("fedavg"), f"{bad}2": method("lcfl", bad)},
        clusterings={bad: {"distance": bad, "clusterer": "kmedoids", "clusters": 2}},
        distances={bad: {"metric": bad, "warmup": "w", "data": "train"}},
    )  # fmt: skip
    text = page(make(tmp_path, settings))
    assert text.count("<script") == 1  # the page's own
    parser = Loads()
    parser.feed(text)
    assert "b" not in parser.tags
    assert all(load.startswith(("#", "data:image/png;base64,")) for load in parser.loads)
    assert not re.search(r"@import|url\((?!#)", text)
    outside = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(text.encode()) < 3_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "data", "said"),
    [("loss", "train", False), ("loss", "all", True), ("loss", "augmented", True), ("parameters", "all", False)],
)
def test_clusters_that_have_seen_test_samples_are_named(usual: Work, metric: str, data: str, said: bool) -> None:
    distances = {"d": {"metric": metric, "warmup": "w", "data": data}}
    source = Source({**usual.settings, "distances": distances}, usual.inputs)
    scores = pd.DataFrame({"accuracy_mean": [0.5]})
    found = list(section_scores.seen(Section(source, "f", {"summary": scores}, Album(Path()))))
    assert found == ["Test samples had a part in the clusters of lcfl: distances are of losses on them, too."] * said


def test_methods_that_are_scored_on_fewer_clients_are_named(usual: Work) -> None:
    rows = [("fedavg", seed, client) for seed in (0, 1) for client in range(4)]
    rows += [("ifca", 0, 2), ("ifca", 0, 3), ("ifca", 1, 0), ("lcfl", 1, 0), ("lcfl", 1, 1), ("lcfl", 1, 2)]
    clients = pd.DataFrame(rows, columns=["method", "seed", "client"]).assign(federation="f")
    clients = pd.concat([clients, pd.DataFrame({"method": ["ifca"], "seed": 0, "client": 0, "federation": "g"})])
    found = tables.scored_on(clients)
    counts = {("f", "fedavg"): [4, 4], ("f", "ifca"): [1.5, 4], ("f", "lcfl"): [3, 4], ("g", "ifca"): [1, 1]}
    assert found.T.to_dict("list") == counts
    summary = pd.DataFrame({"accuracy_mean": [0.5, 0.4, 0.3]}, ["ifca", "fedavg", "lcfl"]).join(found.loc["f"])
    own = {"summary": summary.rename_axis("method").reset_index()}
    for evaluation, count in (("aggregated", 1), ("stale", 0)):
        settings = {**usual.settings, "score": {**usual.settings["score"], "evaluation": evaluation}}
        lines = list(section_scores.fewer(Section(Source(settings, usual.inputs), "f", own, Album(Path()))))
        assert len(lines) == count
    (line,) = section_scores.fewer(Section(Source(usual.settings, usual.inputs), "f", own, Album(Path())))
    assert line.startswith("Scored on fewer clients than other methods, mean over seeds: ifca 1.5 of 4, lcfl 3 of 4.")
    before = [{"method": "ifca"}]  # a summary without these columns
    assert words.fewer(before, usual.settings["score"]) == []


def test_newcomers_chosen_for_by_their_test_samples_are_counted(tmp_path: Path) -> None:
    table = {
        "client": np.array([0, 1, 1, 2]),
        "role": ["member"] + ["newcomer"] * 3,
        "split": ["train"] * 2 + ["test"] * 2,
    }
    write_table(tmp_path / "p.parquet", {name: np.array(column) for name, column in table.items()})
    settings = study(methods={"fedavg": method("fedavg")}, score=SCORE | {"evaluation": "newcomer"})
    source = Source(settings, {"f/seed0/partition.partition": tmp_path / "p.parquet"})
    section = Section(source, "f", {"summary": pd.DataFrame({"accuracy_mean": [0.5]})}, Album(tmp_path))
    (line,) = section_scores.seen(section)
    assert line.startswith("Of 2 newcomers 1 have no training samples")


@pytest.mark.usefixtures("no_png")
def test_page_stays_small_when_figures_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterfl.report.content.ROOM", 20_000)
    text = page(make(tmp_path, study()))
    assert text.count("the page has no room for it") > 0
    assert len(text) < 100_000


@pytest.mark.slow
def test_figures_are_the_same_bytes_twice(usual: Work, tmp_path: Path) -> None:
    first, second = usual, make(tmp_path, study())
    second.outputs["figures"].mkdir(parents=True)
    (second.outputs["figures"] / "of-an-earlier-report.svg").touch()
    report.run(second)
    names = sorted(p.name for p in first.outputs["figures"].iterdir())
    assert [n for n in names if n.endswith(".svg")]
    for name in names:
        assert (first.outputs["figures"] / name).read_bytes() == (second.outputs["figures"] / name).read_bytes()
    assert names == sorted(p.name for p in second.outputs["figures"].iterdir())


def row(name: str, accuracy: float, std: float = 0.01, ari: float | None = None, reach: float = 0.02) -> dict[str, Any]:
    gap = accuracy - 0.8
    return {"federation": "f", "method": name, "seeds": 3, "accuracy_mean": accuracy, "accuracy_std": std,
            "ari_mean": ari, "ari_std": None,
            "difference_low": gap - reach, "difference_high": gap + reach}  # fmt: skip


def test_words_follow_the_numbers() -> None:
    up = words.headline([row("fedavg", 0.8), row("oracle", 0.95), row("ifca", 0.9, ari=0.5)], study())
    assert up[0].startswith("f: ifca has the highest test accuracy, 90.0 ± 1.0 %")
    assert "10.0 points above the baseline fedavg (95 % interval of the paired differences 8.0 to 12.0);" in up[0]
    assert "oracle, which knows the planted groups, has 95.0 ± 1.0 %" in up[0]
    assert "ifca 0.50" in up[1]
    down = words.headline([row("fedavg", 0.8), row("ifca", 0.7, ari=0.0)], study())
    assert "f: fedavg has" in down[0]
    assert "no method does better than the baseline" in down[0]
    near = words.headline([row("fedavg", 0.8), row("ifca", 0.815)], study())  # the means are further apart than ± 1.0
    assert near[0].endswith(
        "above the baseline fedavg (95 % interval of the paired differences -0.5 to 3.5: undecided)."
    )
    alone = row("ifca", 0.9) | {"seeds": 1, "difference_low": np.nan, "difference_high": np.nan}
    assert "fedavg (one seed: no interval)" in words.headline([row("fedavg", 0.8), alone], study())[0]
    assert "No groups were planted" in near[1]
    broken = words.headline([row("fedavg", 0.8), row("ifca", np.nan)], study())
    assert broken[0].endswith("; ifca has none.")
    tie = words.headline([row("fedavg", 0.8), row("ifca", 0.9), row("lcfl", 0.9)], study())
    assert "ifca and lcfl have the highest" in tie[0]
    known = words.headline([row("fedavg", 0.8), row("ifca", 0.7), row("oracle", 0.9)], study())
    assert "no method without knowledge of the groups does better than the baseline; oracle, which" in known[0]


def test_words_name_the_methods_that_the_best_is_not_distinguished_from() -> None:
    best = row("ifca", 0.9)
    near = [row(f"lcfl{i}", 0.89 - i / 1000) | {"to_best_low": -0.03, "to_best_high": 0.01} for i in range(6)]
    clear = row("local", 0.85) | {"to_best_low": -0.06, "to_best_high": -0.04}
    base = row("fedavg", 0.8) | {"to_best_low": -0.2, "to_best_high": 0.1}  # said by the interval from the baseline
    blocks = study() | {
        "methods": {n: {"method": n} for n in ("ifca", "local", "fedavg", *(f"lcfl{i}" for i in range(6)))}
    }

    def found(*rows: dict[str, Any]) -> str:
        return words.headline([*rows], blocks)[0]

    assert "8.0 to 12.0); its lead over lcfl0 is undecided." in found(best, near[0], clear, base)
    assert "its lead over lcfl0 and lcfl1 is undecided." in found(best, *near[:2], clear, base)
    assert "its lead over lcfl0, lcfl1, lcfl2 and 3 more is undecided." in found(best, *near, clear, base)
    assert "lead" not in found(best, clear, base)
    assert "their lead over lcfl0 is" in found(best, best | {"method": "local"}, near[0], base)


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_summary_in_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = loading.load({
        "study": "s", "baseline": "fedavg",
        "federations": {"f": {"dataset": "digits", "partition": {"scheme": "rotated", "clients": 6}}},
        "methods": {"fedavg": {"method": "fedavg"}, "oracle": {"method": "oracle"}},
    })  # fmt: skip
    with pytest.raises(UserError, match=r"no report yet .*summary\.parquet.* make it with: snakemake"):
        words.summary(loaded)
    work = make(tmp_path, loaded.model_dump(mode="json", exclude={"modules"}))
    work.outputs["summary"] = tmp_path / "results/s/summary.parquet"
    text = page(work)
    lines = words.summary(loaded).splitlines()
    assert len(lines) == 3
    assert "results/s/report.html" in lines[0]
    assert lines[1] in text


def test_words_import_nothing_heavy() -> None:
    code = "import sys, clusterfl.report.words; print({'torch', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
