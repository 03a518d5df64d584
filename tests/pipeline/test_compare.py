"""Comparisons: the statistics against scipy and by hand, pairs against the result files, what differs, the page."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import put, tiny, undrawn, write_yaml
from scipy import stats

from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.compare import comparison, page, show
from clusterfl.pipeline.compare.comparison import Comparison
from clusterfl.pipeline.compare.origins import Difference, files, origins, settings
from clusterfl.pipeline.compare.paired import EQUAL, HIGHER, LOWER, NONE, ONE, OPEN, paired
from clusterfl.pipeline.compare.side import Side, _table, read

# Statistics.


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_the_interval_is_that_of_scipys_paired_test(n: int) -> None:
    random = np.random.default_rng(n)
    a, b = random.normal(size=(2, n))
    found, expected = paired((b - a).tolist()), stats.ttest_rel(b, a).confidence_interval(0.95)
    assert (found.pairs, found.mean) == (n, pytest.approx((b - a).mean(), rel=1e-12))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-10)


def test_three_pairs_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s = 1; t of 2 degrees of freedom is 4.3027, so 2 ± 4.3027 / √3."""
    found = paired([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert (found.low, found.high) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-5)
    assert found.verdict == OPEN


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([], NONE),
        ([0.5], ONE),
        ([0.0], EQUAL),
        ([0.0, 0.0, 0.0], EQUAL),
        ([2.0, 2.0], HIGHER),  # as costs are: always the same
        ([-1.0, -1.1, -0.9], LOWER),
        ([1.0, -1.0], OPEN),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    found = paired(differences)
    assert found.verdict == verdict
    assert (found.low is None) == (len(differences) < 2)


# Pairs, of sides made by hand.


def side(name: str = "a", runs: dict[tuple[str, str, int], dict[str, Any]] | None = None, **changes: Any) -> Side:
    """Return a side with these runs, by federation, method and seed."""
    usual = {"accuracy": 0.5, "loss": 1.0, "round": 3.0, "last_round": 3, "clients": "c", "scored": "0,1,2"}
    runs = runs or {("f", "ifca", 0): {}}
    index = pd.MultiIndex.from_tuples(runs, names=["federation", "method", "seed"])
    score = {"evaluation": "aggregated", "split": "test", "average": "samples", "at": "final", "smooth": 1, "ddof": 1}
    own = {
        "study": name,
        "score": score,
        "methods": {m: {} for _, m, _ in runs},
        "federations": {f: {} for f, *_ in runs},
    }
    for place, value in changes.items():
        put(own, place, value, "__")
    return Side(name, Path(name), own, pd.DataFrame([usual | run for run in runs.values()], index=index), {})


def test_only_pairs_of_the_same_federation_method_and_seed_count() -> None:
    a = side("a", {("f", "ifca", 0): {"accuracy": 0.5}, ("f", "ifca", 1): {"accuracy": 0.6}, ("f", "lcfl", 0): {},
                   ("g", "ifca", 0): {}})  # fmt: skip
    b = side("b", {("f", "ifca", 1): {"accuracy": 0.8}, ("f", "ifca", 2): {}, ("h", "ifca", 0): {}})
    found = comparison.studies(a, b)
    (row,) = found.of("f", "accuracy")
    assert row.differences == {1: pytest.approx(0.2)} and row.paired.verdict == ONE
    assert (row.mean_a, row.mean_b) == (0.6, 0.8)
    assert found.only_a == ["ifca on f, seed 0", "method lcfl", "federation g"] and found.only_b == [
        "seed 2",
        "federation h",
    ]


def test_nothing_in_common_is_said() -> None:
    found = comparison.studies(side("a"), side("b", {("f", "ifca", 7): {}}))
    assert found.rows == [] and found.only_a == ["seed 0"] and found.only_b == ["seed 7"]
    assert "no pairs" in show.text(found)


def test_what_is_scored_on_other_clients_is_said_of_what_rests_on_them() -> None:
    """IFCA gives a client a model when it first takes part: its accuracy is of fewer clients than FedAvg's."""
    runs = {("f", m, s): {"worst_client": 0.1, "local_steps": 9} for m in ("fedavg", "ifca") for s in (0, 1)}
    runs["f", "ifca", 0] |= {"scored": "0"}
    runs["f", "ifca", 1] |= {"scored": "0,2"}
    found = comparison.methods(side("s", runs), "fedavg", "ifca")
    assert found.cautions == [
        "scored on 3 clients in A, 1.5 in B, which aren't the same (mean), on f (seeds 0, 1): clients that have no "
        "model yet aren't scored"
    ]
    unlike = {row.metric: row.unlike for row in found.rows}
    assert unlike.pop("local_steps") == []
    assert unlike == {metric: ["other clients scored"] for metric in ("accuracy", "loss", "worst_client")}
    stale = comparison.methods(side("s", runs, score__evaluation="stale"), "fedavg", "ifca")
    assert stale.cautions == []  # of a round's participants alone, whoever they are
    runs["f", "ifca", 0] |= {"scored": None}  # a report of before it named them
    runs["f", "ifca", 1] |= {"scored": "0,1,2"}
    assert comparison.methods(side("s", runs), "fedavg", "ifca").cautions == []


def test_a_value_that_is_not_finite_leaves_its_pair_out() -> None:
    runs = {("f", "ifca", seed): {"loss": float(seed)} for seed in range(3)}
    diverged = runs | {("f", "ifca", 1): {"loss": np.inf}}
    (row,) = comparison.studies(side("a", runs), side("b", diverged)).of("f", "loss")
    assert (row.paired.pairs, row.lacking, row.mean_a) == (2, 1, 1.0) and set(row.differences) == {0, 2}


def test_a_method_that_diverged_with_every_seed_is_named() -> None:
    runs = {("f", method, 0): {"accuracy": 0.5} for method in ("ifca", "hot")}
    gone = runs | {("f", "hot", 0): {"accuracy": np.nan}}
    found = comparison.studies(side("a", runs), side("b", gone))
    assert {row.method: (row.verdict, row.lacking) for row in found.of("f", "accuracy")} == {
        "ifca": ("equal", 0),
        "hot": ("no pair", 1),
    }
    assert "f: test accuracy: equal for ifca; no pair for hot" in show.text(found)


def test_chance_is_counted_for_the_rows_that_are_shown() -> None:
    runs = {("f", "ifca", seed): {"accuracy": 0.1 * seed, "worst_client": 0.1 * seed} for seed in range(3)}
    other = {key: {name: 2 * x for name, x in run.items()} for key, run in runs.items()}
    found = comparison.studies(side("a", runs), side("b", other))
    assert "each interval" not in show.text(found)  # the other two metrics are equal, or not shown
    assert "if nothing differed, about 0.1 of 2 would exclude 0 by chance" in show.text(found, everything=True)


def test_federations_are_rows_of_their_own_and_one_together() -> None:
    keys = [(f, "ifca", s) for f in ("f", "g") for s in (0, 1)]
    b = {key: {"accuracy": 0.5 + 0.01 * i} for i, key in enumerate(keys)}
    found = comparison.studies(side("a", {key: {} for key in keys}), side("b", b))
    means = {row.federation: row.paired.mean for row in found.rows if row.metric == "accuracy"}
    assert means == {"f": pytest.approx(0.005), "g": pytest.approx(0.025), None: pytest.approx(0.015)}
    assert found.of(None, "accuracy")[0].paired.pairs == 4
    assert "independent" in show.text(found)


@pytest.mark.parametrize(
    ("runs", "changes", "said", "flag"),
    [
        ({"clients": "other"}, {}, "other clients, or samples of theirs, on f (seed 0)", "other clients"),
        ({"last_round": 5}, {}, "trained for 3 rounds in A, 5 rounds in B, on f (seed 0)", "other rounds"),
        ({"round": 2.0}, {}, "scored at round 3 in A, 2 in B, on f (seed 0)", "other score"),
        ({}, {"score__average": "clients"}, 'score.average "samples" in A, "clients" in B', "other score"),
    ],
)
def test_other_clients_rounds_and_scores_are_never_silent(
    runs: dict[str, Any], changes: dict[str, Any], said: str, flag: str
) -> None:
    found = comparison.studies(side("a"), side("b", {("f", "ifca", 0): runs}, **changes))
    assert any(said in caution for caution in found.cautions)
    (row,) = found.of("f", "accuracy")
    assert row.unlike == [flag] and row.verdict == f"{EQUAL} ({flag})"
    text = show.text(found)
    assert f"caution: {found.cautions[0]}" in text and row.verdict in text


def test_each_run_has_its_own_best_round() -> None:
    a, b = side("a", score__at="best"), side("b", {("f", "ifca", 0): {"round": 2.0}}, score__at="best")
    assert comparison.studies(a, b).cautions == []


def test_two_methods_are_paired_by_federation_and_seed() -> None:
    runs = {("f", m, s): {"accuracy": v} for m, s, v in [("x", 0, 0.1), ("y", 0, 0.3), ("x", 1, 0.2), ("y", 1, 0.3)]}
    own = side("a", runs, methods={"x": {"k": 2, "same": 1}, "y": {"k": 3, "same": 1}})
    found = comparison.methods(own, "x", "y")
    (row,) = found.of("f", "accuracy")
    assert row.differences == {0: pytest.approx(0.2), 1: pytest.approx(0.1)} and row.method is None
    assert found.settings == [Difference("methods.*.k", "2", "3")] and found.code is None


def test_a_methods_keys_on_one_federation_are_compared_too() -> None:
    own = side("a", {("f", "x", 0): {}, ("f", "y", 0): {}}, methods={"x": {"k": 2}, "y": {"k": 2}},
               federations={"f": {"methods": {"y": {"k": 5}}}})  # fmt: skip
    assert comparison.methods(own, "x", "y").settings == [Difference("federations.f.methods.*.k", "2", "5")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("ifac", "lcfl"), "no method 'ifac'; did you mean 'ifca'? allowed: ifca, lcfl"),
        (("ifca", "ifca"), "given twice"),
    ],
)
def test_methods_that_are_not_there(names: tuple[str, str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        comparison.methods(side("a", {("f", "ifca", 0): {}, ("f", "lcfl", 0): {}}), *names)


# Where results come from.


def test_settings_differ_by_dotted_key() -> None:
    a = {"study": "a", "training": {"rounds": 3, "decay": None}, "methods": {"x": {"k": 1}}, "seeds": [0]}
    b = {"study": "b", "training": {"rounds": 4, "decay": None}, "seeds": [0, 1]}
    assert list(settings(a, b)) == [
        Difference("training.rounds", "3", "4"),
        Difference("methods", '{"x": {"k": 1}}', "(not given)"),
        Difference("seeds", "[0]", "[0, 1]"),
    ]


def test_origins_and_bytes_are_those_of_the_manifests() -> None:
    def manifest(**changes: Any) -> dict[str, Any]:
        machine = {"branch": "amd-avx2", "processor": "P"}
        usual = {"commit": "0" * 40, "versions": {"numpy": "2.0"}, "machine": machine, "revisions": {"engine": 1}}
        return usual | {"files": {"t.parquet": {"sha256": "a"}, "u.parquet": {"sha256": "b"}}} | changes

    a = {"f/x/manifest.json": manifest(), "f/only/manifest.json": manifest()}
    other = {"t.parquet": {"sha256": "a"}, "u.parquet": {"sha256": "z"}}
    b = {"f/x/manifest.json": manifest(commit="1" * 40, versions={"numpy": "2.1"}, files=other,
                                       machine={"branch": "intel", "processor": "P"},
                                       revisions={"engine": 2, "method cfl": 1})}  # fmt: skip
    assert origins(a, b) == [
        Difference("commit", "0" * 12, "1" * 12),
        Difference("revision of engine", "1", "2"),
        Difference("kernels", "amd-avx2", "intel"),
        Difference("numpy", "2.0", "2.1"),
    ]
    found = files(a, b)
    assert (found.equal, found.both, found.different) == (1, 2, ["f/x/u.parquet"])
    assert (found.only_a, found.only_b) == (2, 0) and origins(a, a) == []


# Studies that were run.


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two finished studies: tiny, and one with another rate, other clients, rounds and seeds."""
    place, before = tmp_path_factory.mktemp("ran"), Path.cwd()
    blocks = {"fedavg": {"method": "fedavg"}, "ifca": {"method": "ifca", "clusters": 2}}
    os.chdir(place)
    try:
        with pytest.MonkeyPatch.context() as patch:
            undrawn(patch)
            changes = {"training.learning_rate": 0.05, "training.rounds": 2, "seeds.data": 7, "seeds.runs": [0, 1, 2]}
            for name, own_values in {"tiny": {}, "other": changes}.items():
                own = put(put(put(tiny(), "methods", blocks), "study", name), "seeds.runs", [0, 1])
                for key in ("warmups", "distances", "clusterings"):
                    put(own, key, ...)
                for key, value in own_values.items():
                    put(own, key, value)
                write_yaml(Path(f"{name}.yaml"), own)
                assert main(["run", "--config", f"{name}.yaml"]) == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture
def here(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as working folder."""
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(a: str, b: str) -> Comparison:
    return comparison.studies(read(a), read(b))


def final(study: str, method: str, seed: int) -> float:
    """Return the test accuracy of the last round, from the history itself."""
    table = pd.read_parquet(f"results/{study}/digits/seed{seed}/methods/{method}/history.parquet")
    last = table[(table["round"] == table["round"].max()) & (table["split"] == "test")]
    return float(last["correct"].sum() / last["n"].sum())


def test_differences_are_those_of_the_histories(here: Path) -> None:
    found = of("tiny", "other")
    for row in found.of("digits", "accuracy"):
        expected = {seed: final("other", row.method, seed) - final("tiny", row.method, seed) for seed in (0, 1)}
        assert row.differences == expected  # to the bit
        assert any(expected.values())
    assert {row.method for row in found.of("digits", "accuracy")} == {"fedavg", "ifca"}
    assert {one.key for one in found.settings} == {
        "seeds.runs",
        "seeds.data",
        "training.learning_rate",
        "training.rounds",
    }
    assert found.only_b == ["seed 2"]
    assert found.code is not None and found.code[0] == 0 and found.origins == []


def test_a_copy_under_another_name_is_the_same(here: Path) -> None:
    shutil.copytree("results/tiny", "elsewhere/copy")
    found = of("tiny", "elsewhere/copy")
    assert found.files.different == [] and found.files.both > 10
    assert {row.verdict for row in found.rows} == {EQUAL}
    text = show.text(found)
    assert f"bytes: the same, digests equal for {found.files.both} of {found.files.both} files" in text
    assert "settings: the same" in text


def test_other_clients_and_rounds_are_found_in_the_files(here: Path) -> None:
    found = of("tiny", "other")
    assert found.rows and all(row.unlike[:2] == ["other clients", "other rounds"] for row in found.rows)
    assert [caution.partition(" ")[0] for caution in found.cautions] == ["other", "trained", "scored"]


def test_two_methods_of_a_study_that_was_run(here: Path) -> None:
    found = comparison.methods(read("other"), "fedavg", "ifca")
    (row,) = found.of("digits", "accuracy")
    assert row.differences == {s: final("other", "ifca", s) - final("other", "fedavg", s) for s in range(3)}
    assert found.files.both == 12 or found.files.both == 15
    assert "digits/seed0/history.parquet" in found.files.different
    assert "methods of study other" in show.text(found)


def harm_table(folder: Path) -> None:
    (folder / "tables" / "scores.csv").write_text("federation\n")


def harm_result(folder: Path) -> None:
    path = folder / "digits/seed0/methods/ifca/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["history.parquet"]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))


def harm_manifest(folder: Path) -> None:
    (folder / "digits/seed0/partition.manifest.json").write_text('{"stage": "partition", "files": {}}')


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (harm_manifest, "isn't a complete manifest: it has no 'content'; rebuild it: snakemake"),
        (harm_table, "tables/scores.csv is damaged"),
        (harm_result, "results/tiny/digits/seed0/methods/ifca/history.parquet has changed since the report of"),
        (lambda folder: (folder / "summary.parquet").unlink(), "no report yet"),
        (shutil.rmtree, "no study 'tiny' under results/"),
    ],
)
def test_what_can_not_be_trusted_is_refused(here: Path, harm: Callable[[Path], Any], said: str) -> None:
    harm(Path("results/tiny"))
    with pytest.raises(UserError, match=said) as refused:
        read("tiny")
    steps = ("clusterfl report tiny", "allowed: other", "rebuild it: ")
    assert any(step in str(refused.value) for step in steps)


def test_tables_are_read_to_the_bit_and_names_as_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(200) * 10.0 ** np.arange(-100, 100)
    table = pd.DataFrame({"federation": "NA", "method": "1", "loss": [np.inf, *values], "epsilon": np.nan})
    (tmp_path / "tables").mkdir()
    table.to_csv(tmp_path / "tables" / "scores.csv", index=False)
    found = _table(tmp_path, "scores")
    assert found["loss"].tolist() == table["loss"].tolist() and found["epsilon"].isna().all()
    assert set(found["federation"]) == {"NA"} and set(found["method"]) == {"1"}


# What is shown.


def test_json_holds_all_and_no_nan(here: Path) -> None:
    found = of("tiny", "other")
    shown = json.loads(show.as_json(found), parse_constant=lambda name: pytest.fail(name))
    assert shown["interval"] == {
        "level": 0.95,
        "kind": "Student's t of the paired differences, n - 1 degrees of freedom",
    }
    assert len(shown["rows"]) == len(found.rows) and shown["files"]["both"] == found.files.both
    row = next(row for row in shown["rows"] if (row["method"], row["metric"]) == ("ifca", "accuracy"))
    assert row["differences"] == {
        "0": pytest.approx(row["differences"]["0"]),
        "1": pytest.approx(row["differences"]["1"]),
    }
    assert row["pairs"] == 2 and row["low"] < row["mean"] < row["high"]


def test_the_terminal_shows_three_metrics_unless_asked_for_all(here: Path) -> None:
    found = of("tiny", "other")
    few, many = show.text(found), show.text(found, everything=True)
    assert "worst_client" not in few and "worst_client (%)" in many
    assert "more metrics: --all" in few and "more metrics" not in many


def test_the_page_asks_for_nothing_and_has_pictures(here: Path) -> None:
    found = of("tiny", "other")
    text = page.write(found, Path("pages/compared.html")).read_text(encoding="utf-8")
    assert text.count("<svg") == 2 and "seed 0" in text and "seed 1" in text and "training.learning_rate" in text
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)""", text.replace("xlink:href", ""))
    assert sorted(path.name for path in Path("pages").iterdir()) == ["compared.html"]
    assert page.write(found, Path("again.html")).read_text(encoding="utf-8") == text


def test_names_are_harmless_on_the_page(tmp_path: Path) -> None:
    found = comparison.studies(side("<b>a"), side("b"))
    text = page.write(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<b>a" not in text and "&lt;b&gt;a" in text


def test_a_picture_has_each_pair_its_mean_and_interval() -> None:
    keys = [("f", "ifca", seed) for seed in range(3)]
    b = {key: {"accuracy": 0.5 + value} for key, value in zip(keys, (0.01, 0.02, 0.03), strict=True)}
    rows = comparison.studies(side("a", {key: {} for key in keys}), side("b", b)).of("f", "accuracy")
    (axes,) = page.differences(rows, 100, "x").axes
    points = {line.get_label(): line.get_xdata() for line in axes.lines}
    assert [points[f"seed {seed}"][0] for seed in range(3)] == pytest.approx([1, 2, 3])
    assert points["mean"][0] == pytest.approx(2)
    ((low, _), (high, _)) = axes.collections[0].get_segments()[0]
    assert (low, high) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-5)
