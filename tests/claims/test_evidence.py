"""Evidence: the same numbers to the bit without the results, and a sentence for whatever doesn't fit."""

from __future__ import annotations

import contextlib
import fcntl
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import put, tiny, write_yaml

from clusterfl.claims import discrepancies, evidence, evidence_file, evidence_merge, gather, hours, scale, weigh
from clusterfl.claims.evidence_file import Row, read_file, write_file
from clusterfl.claims.ours import Results
from clusterfl.claims.printed import claims, orderings
from clusterfl.claims.reading import Reader
from clusterfl.claims.runs import Run
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.job import Job
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.digest import canonical, of_file, of_text
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, write_json

CELL = "mnist/label-skew-1"
CLAIM = "clove/table1/label-skew-1/mnist/ifca"
MACHINE = {"processor": "Test Processor", "branch": "test-avx512"}
REVISIONS = {"engine": 1, "method ifca": 2}
KEPT = "evidence/tiny/digits.test-avx512-abcdef0.parquet"


def settings() -> dict[str, Any]:
    """Return a study with one of each that is read: a sweep, an early stop, a warm-up, rebalancing, a second score."""
    study = tiny() | {"seeds": {"runs": [0, 1]}, "baseline": None}
    study["federations"]["digits"]["partition"]["validation"] = 0.2
    study["training"] |= {"rounds": 6}
    study["methods"] = {
        "fedavg": {"method": "fedavg"},
        "clove": {"method": "clove", "clusters": 2, "stable_rounds": 3},
        "ifca": {"method": "ifca", "sweep": {"clusters": [3, 2]}},
        "lcfl": {"method": "lcfl", "clustering": "lcfl"},
        "rr": {"method": "ifca", "clusters": 3, "rebalance": {"minimum": 1}},
    }
    for part in ("distances", "clusterings"):
        study[part] = {name: block for name, block in study[part].items() if "diffnorm" not in name}
    test, train = (
        {"federation": "digits", "method": "fedavg", "score": {"split": split}} for split in ("test", "train")
    )
    study["claims"] = {
        "paper": "clove",
        "cells": {CELL: {"federation": "digits"}, "cifar10/label-skew-1-early-stopping": {"federation": "digits"}},
        "names": {"local": "rr", "cfl": "lcfl"},
        "profile": "released",
        "discrepancies": {"split": {"about": "a", "source": "s", "released": train, "paper": test}},
        "figures": {
            "Fig. 1": {"shows": "x", "draw": "curves", "of": {"IFCA": "digits/ifca"}},
            "Fig. 2": {"shows": "x", "draw": "classes", "of": {"IFCA": "digits/ifca"}},
        },
    }
    return study


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the study was run on a named machine, with its evidence."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        plan = Plan.from_settings(settings())
        plan.save()
        for job in plan.jobs():
            if job.stage != "report":
                execute(job)
        facts = {"machine": MACHINE, "commit": "abcdef0123", "revisions": REVISIONS}
        for path in Path("results").rglob("*manifest.json"):
            write_json(path, read_json(path) | facts)
        assert main(["evidence", "--to", "evidence"]) == 0
    return place


@pytest.fixture(autouse=True)
def revised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed code has the revisions that the runs were made with, and the study ships with it."""
    monkeypatch.setattr(Job, "revisions", property(lambda job: dict(REVISIONS)))
    shipped = write_yaml(tmp_path / "shipped.yaml", settings())
    monkeypatch.setattr(scale, "file", lambda paper: shipped)


@pytest.fixture
def both(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with results and evidence, to be changed at will."""
    shutil.copytree(made, tmp_path / "both")
    monkeypatch.chdir(tmp_path / "both")
    return tmp_path / "both"


@pytest.fixture
def fresh(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with evidence alone."""
    shutil.copytree(made / "evidence", tmp_path / "fresh/evidence")
    monkeypatch.chdir(tmp_path / "fresh")
    return tmp_path / "fresh"


def gathered(*folders: str) -> tuple[Results, list[str]]:
    (study,), said = gather.gathered([Path(folder) for folder in folders])
    return study, said


def changed(
    change: Callable[[Row], Row], name: str = "digits.other.parquet", seed: int = 1, method: str = "ifca"
) -> Path:
    """Write a copy of the evidence in which one run is changed, and nothing else is."""
    facts, rows = read_file(Path(KEPT))
    path = Path("evidence/tiny", name)
    own = [change(row) for row in rows if (row["seed"], row["method"]) == (seed, method)]
    assert len(own) == 1
    write_file(path, own, facts | {"origin": name.split(".")[1]})
    return path


def one_bit_more(row: Row) -> Row:
    """Return a row whose last accuracy is the next larger number."""
    (line, *others) = row["curves"]
    accuracy = [*line["accuracy"][:-1], float(np.nextafter(line["accuracy"][-1], 2))]
    return row | {"curves": [line | {"accuracy": accuracy}, *others]}


def row_of(study: Results, claim_id: str = CLAIM) -> gather.Row:
    return next(row for row in gather.claim_rows([study])[0] if row["claim_id"] == claim_id)


def outcomes(study: Results) -> Iterator[tuple[Any, ...]]:
    """Yield what the study has beside every claim, numbers as their bits."""
    for claim in claims():
        if claim.paper == "clove":
            found = study.outcome("released", claim.cell, claim.method, claim.metric, claim.at)
            if found is not None:
                bits = {seed: value.hex() for seed, value in found.values.items()}
                yield claim.claim_id, bits, found.empty, dict(found.without), found.not_run, found.ran, found.seeds


# The same numbers.


def test_every_number_is_the_same_to_the_bit(both: Path) -> None:
    results, _ = gathered("results")
    kept, said = gathered("evidence")
    assert not said
    found = list(outcomes(results))
    assert found == list(outcomes(kept))
    read = {value for _, values, *_ in found for value in values.values()}
    assert len(found) > 10 and len(read) > 10
    metrics, cell = sorted({claim.metric for claim in claims()}), results.claims.cells[CELL]
    for where in results.places_run():
        one, other = results.run(*where), kept.run(*where)
        assert isinstance(one, Run) and isinstance(other, evidence.Kept)
        for measure in ("accuracy", "loss", "ari"):
            for mine, theirs in zip(one.line(measure), other.line(measure), strict=True):
                np.testing.assert_array_equal(mine, theirs, strict=True)
        assert (one.chosen, one.rounds, one.models) == (other.chosen, other.rounds, other.models)
        for at in ("final", "3"):
            readings = [[Reader(run, cell).read(metric, at) for metric in metrics] for run in (one, other)]
            assert evidence_file._same(*readings), where
        assert evidence.record(one, results).keys() == set(evidence_file.SCHEMA.names)
        assert not evidence_file.differing(evidence.record(one, results), other.row)
    assert kept.run("digits", 0, "ifca").chosen is not None  # type: ignore[union-attr]


def test_the_rows_are_the_same_without_results(both: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*folders: str) -> list[Any]:
        study, said = gathered(*folders)
        assert not said
        first, second = gather.claim_rows([study])
        ordered = [row for ordering in orderings() for row in gather.ordering_rows(ordering, [study])]
        own = [row | {"origin": ""} for row in (*first, *second)]
        return [list(map(str, table)) for table in (own, ordered, discrepancies.rows([study]))]

    monkeypatch.chdir(both)
    expected = rows("results")
    monkeypatch.chdir(fresh)
    assert not Path("results").exists()
    assert rows("evidence") == expected
    assert any("'verdict': 'holds" in row for row in expected[1])
    assert "points" in expected[2][0]  # the score on training samples is there, too


def test_a_row_says_where_its_numbers_come_from(both: Path) -> None:
    row = row_of(gathered("evidence")[0])
    assert (row["origin"], row["processor"], row["branch"], row["commit"]) == (
        "test-avx512-abcdef0", *MACHINE.values(), "abcdef0123",
    )  # fmt: skip
    values = dict(part.split(": ") for part in row["values"].split("; "))
    assert set(values) == {"0", "1"} and np.mean(list(map(float, values.values()))) == row["ours"]
    assert row_of(gathered("results")[0])["origin"] == "results"
    written = evidence.read([Path("evidence")]).pieces["tiny"][0].row
    assert written["labels"]["client"] == list(range(8)) and written["labels"]["group"].count(0) == 4


@pytest.mark.slow
def test_two_writings_are_the_same_bytes(both: Path) -> None:
    def files(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(folder, "tiny").iterdir()}

    before = files("evidence")
    assert set(before) == {Path(KEPT).name, "settings.json", "settings.sha256"}
    spent = "hours.csv"  # of what the command writes, at the paper's scale
    for folder in ("evidence", "other"):
        assert main(["evidence", "tiny", "--to", folder]) == 0
        found = files(folder)
        assert found == before | {spent: found[spent]}
        assert found[spent] == files("evidence")[spent]


@pytest.mark.slow
def test_what_results_no_longer_have_is_kept(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(KEPT).read_bytes()
    shutil.rmtree("results/tiny/digits/seed1/methods/ifca")
    Path("results/tiny/digits/seed0/methods/clove/clusters.parquet").write_bytes(b"x")
    assert main(["evidence", "--to", "evidence"]) == 0
    said = capsys.readouterr()
    assert "8 runs in 3 files" in said.out and "not there 1, left out 1" in said.out
    assert "clove/clusters.parquet is damaged" in said.err
    assert Path(KEPT).read_bytes() == before
    assert row_of(gathered("results", "evidence")[0])["seeds"] == 2  # results and evidence add up
    assert row_of(gathered("results")[0])["seeds"] == 1


def test_runs_made_from_other_settings_are_not_written(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = manifest_path(Path("results/tiny/digits/seed0/warmup/short/history.parquet"))
    write_json(place, read_json(place) | {"settings": "0" * 16})
    assert main(["evidence", "--to", "other"]) == 0
    said = capsys.readouterr()
    assert "left out 1" in said.out and "seed0/methods/lcfl" in said.err and "warmup/short" in said.err


@pytest.mark.slow
def test_the_command_prints_the_same(both: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    said = []
    for folder, source in ((both, "results"), (fresh, "evidence")):
        monkeypatch.chdir(folder)
        assert main(["claims", "--paper", "clove", "--from", source]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and f"\n{CLAIM} " in said[0]
    (fresh / "docs/reproduction").mkdir(parents=True)
    shutil.move("evidence", "docs/reproduction/evidence")
    assert main(["claims", "--paper", "clove"]) == 0  # by default
    own = {line for line in capsys.readouterr().out.splitlines() if line.startswith(CLAIM)}
    assert own and own <= set(said[0].splitlines())


@pytest.mark.slow
def test_the_page_without_results(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(lambda row: row | {"settings": "f" * 16})
    assert main(["site", "--from", "evidence", "--out", "page"]) == 0
    text = Path("page/claims.html").read_text(encoding="utf-8")
    assert "Where the runs are read from" in text and "test-avx512-abcdef0" in text
    assert text.count(f"{path}: other settings, 1 run not used") == 1
    assert "draw: classes needs result files; for digits/ifca there is only evidence" in text
    assert Path("page/tables/clove/fig-1.svg").exists() and not Path("page/tables/clove/fig-2.svg").exists()
    digest = evidence.read([Path("evidence")]).pieces["tiny"][0].row["partition"]
    assert len(digest) == 64 and digest in text


# Several pieces for one run.


def test_equal_pieces_count_once(both: Path) -> None:
    changed(lambda row: row)
    study, said = gathered("results", "evidence")
    assert not said and row_of(study)["origin"] == "results" and row_of(study)["seeds"] == 2
    assert {(one.status, one.place) for one in study.weighed if one.where == ("digits", 1, "ifca")} == {
        (weigh.JUDGES, "results"), (weigh.AGREES, KEPT), (weigh.AGREES, "evidence/tiny/digits.other.parquet"),
    }  # fmt: skip


@pytest.mark.parametrize("folders", [("results", "evidence"), ("evidence",)])
def test_one_bit_is_a_conflict_and_judges_nothing(both: Path, folders: tuple[str, ...]) -> None:
    path = changed(one_bit_more)
    study, said = gathered(*folders)
    places = {weigh.place(run) for run in [study.run("digits", 0, "ifca")] if isinstance(run, Run)}
    assert all(any(str(path) in text and place in text for text in said) for place in places)
    assert all(text.startswith("conflict between") and "digits, seed 1, ifca" in text for text in said) and said
    reason = study.run("digits", 1, "ifca")
    assert isinstance(reason, str) and reason.startswith("conflict between")
    assert row_of(study)["seeds"] == 1  # that of the other seed


def small(folder: Path, name: str = "f.a", federation: str = "f", **changes: Any) -> Row:
    """Write a file of evidence with one row, most of it empty, and return the row."""
    row = dict.fromkeys(evidence_file.SCHEMA.names) | {"seed": 0, "method": "m", "rounds": 5, "curves": []}
    row |= {"settings": "s", "chain": "c", "branch": "b", "revisions": "{}", "versions": "{}"} | changes
    facts = {"study": "t", "paper": "clove", "federation": federation, "origin": "a"}
    write_file(folder / f"t/{name}.parquet", [row], facts)
    return row


def test_a_folder_given_twice_counts_once(tmp_path: Path) -> None:
    """There is nothing to delete: by either name it is the same file."""
    small(tmp_path / "one")
    Path(tmp_path / "link").symlink_to("one")
    for other in (tmp_path / "one", tmp_path / "two/../one", tmp_path / "link"):
        (tmp_path / "two").mkdir(exist_ok=True)
        pool = evidence.read([tmp_path / "one", other])
        assert not pool.warnings and [piece.where for piece in pool.pieces["t"]] == [("f", 0, "m")]


def test_of_two_folders_settings_those_of_the_first_are_used(tmp_path: Path) -> None:
    for name, rounds in (("one", 1), ("two", 2)):
        small(tmp_path / name, rounds=rounds)
        place = tmp_path / name / "t/settings.json"
        write_json(place, {"rounds": rounds})
        evidence.digest_file(place).write_text(f"{of_file(place)}  settings.json\n")
    pool = evidence.read([tmp_path / "two", tmp_path / "one"])
    assert pool.settings == {"t": tmp_path / "two/t/settings.json"} and len(pool.pieces["t"]) == 2
    (said,) = pool.warnings
    assert said.startswith(
        f"{tmp_path / 'one/t/settings.json'} has other settings of study 't' than {tmp_path / 'two'}"
    )


def test_a_run_made_otherwise_replaces_the_one_before(tmp_path: Path) -> None:
    """What must agree is refused if it doesn't; of other settings, or an unknown branch, the last run is kept."""
    before, path = small(tmp_path), tmp_path / "t/f.a.parquet"
    for made in ({"settings": "x"}, {"versions": '{"torch":"0"}'}):
        later = before | {"rounds": 6} | made
        assert [row["rounds"] for row in evidence._joined(path, [later])] == [6]
    others = [before | {"method": "l"}, before | {"seed": 1, "method": "a"}]
    found = [(row["seed"], row["method"]) for row in evidence._joined(path, others[::-1])]
    assert found == [(0, "l"), (0, "m"), (1, "a")]
    with pytest.raises(UserError, match=r"f\.a\.parquet has other numbers of seed 0, m than the results, in rounds"):
        evidence._joined(path, [before | {"rounds": 6}])


def test_rows_must_agree_if_all_that_made_them_is_known_to_be_the_same() -> None:
    row = dict.fromkeys(("settings", "chain", "branch", "revisions", "versions"), "a")
    assert evidence_file.must_agree(row | {"commit": "x"}, row | {"commit": "y"})
    assert not any(evidence_file.must_agree(row, row | {name: "b"}) for name in row)
    assert not evidence_file.must_agree(row | {"branch": ""}, row | {"branch": ""})


def test_a_renamed_file_is_not_merged_into_anothers(tmp_path: Path) -> None:
    small(tmp_path / "one")
    small(tmp_path / "two", federation="g")
    before = (tmp_path / "one/t/f.a.parquet").read_bytes()
    with pytest.raises(UserError, match=r"two/t/f\.a\.parquet has runs of federation 'g', but .* 'f'; .* was written"):
        evidence_merge.merge([tmp_path / "two"], tmp_path / "one")
    assert (tmp_path / "one/t/f.a.parquet").read_bytes() == before


def test_merging_by_hand(tmp_path: Path) -> None:
    """A new run joins its file, in the order of seeds; another study or federation may have a run of the same names."""
    place, more = tmp_path / "one", tmp_path / "two"
    second = small(place, seed=1)
    first = small(more)
    small(more, "g.a", "g", seed=1, rounds=6)
    small(more / "t", rounds=7)
    (more / "t/t").rename(more / "u")
    for new in (3, 0):
        assert evidence_merge.merge([more], place) == f"{place}: 4 runs in 3 files, {new} of them new"
        assert read_file(place / "t/f.a.parquet")[1] == [first, second]


@pytest.mark.parametrize(
    ("name", "changes", "refused"),
    [
        ("f.a", {"rounds": 6}, True),
        ("f.b", {"rounds": 6}, True),
        ("f.b", {"commit": "x"}, False),
        ("f.b", {"rounds": 6, "versions": '{"torch":"0"}'}, False),
        ("f.b", {"rounds": 6, "branch": ""}, False),
        ("f.a", {"rounds": 6, "branch": ""}, True),
        ("f.a", {"settings": "x"}, True),
        ("f.a", {"commit": "x"}, False),
    ],
)
def test_what_contradicts_isnt_merged(tmp_path: Path, name: str, changes: dict[str, Any], refused: bool) -> None:
    """Of one file every run must be the same; of two files only runs that were made in the same way."""
    place, more = tmp_path / "one", tmp_path / "two"
    first = small(place, branch=changes.get("branch", "b"))
    small(more, name, **changes)
    if not refused:
        evidence_merge.merge([more], place)
    else:
        with pytest.raises(UserError, match=rf"two/t/{name}.parquet and .*one/t/f.a.parquet: f, seed 0, m is another"):
            evidence_merge.merge([more], place)
    assert read_file(place / "t/f.a.parquet")[1] == [first]  # in one file the first one is kept
    assert (place / "t/f.b.parquet").exists() == (name == "f.b" and not refused)


def test_one_process_at_a_time_writes_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a campaign may do at the same time: each reads a file, adds its runs and writes it again."""
    monkeypatch.chdir(tmp_path)
    alone = []

    def write(*given: Any) -> Any:
        with open("e/.writing/.lock") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return evidence.Written("t")
        alone.append(given[0])
        return evidence.Written("t")

    monkeypatch.setattr(gather, "studies", lambda folders: [SimpleNamespace(study=SimpleNamespace(study="t"))])
    monkeypatch.setattr(evidence, "write", write)
    monkeypatch.setattr(hours, "at_scale", lambda study, runs: {})
    monkeypatch.setattr(hours, "write", write)
    assert main(["evidence", "--to", "e"]) == 0
    assert len(alone) == 2 and not Path("e").exists()
    monkeypatch.setattr(evidence_merge, "merge", write)
    assert main(["evidence", "--to", "e", "--merge", "more"]) == 0
    assert len(alone) == 3
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["evidence", "--to", "e", "--merge", "more"]) == 2  # an error leaves nothing behind
    assert not Path("e").exists()


CHANGES = {"a branch": {"branch": "amd-avx2"}, "none": {"branch": ""}, "versions": {"versions": '{"torch":"0"}'}}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_another_branch_or_version_is_shown_and_kept(both: Path, change: str) -> None:
    def other(row: Row) -> Row:
        (line, *others) = row["curves"]
        return row | {"curves": [line | {"accuracy": [a + 0.25 for a in line["accuracy"]]}, *others]} | CHANGES[change]

    path = changed(other)
    study, said = gathered("results", "evidence")
    (text,) = said
    assert text.startswith(f"{path}: 1 run not equal to results") and "by up to 25 points of accuracy" in text
    row = row_of(study)
    assert (row["seeds"], row["origin"]) == (2, "results")
    alone, _ = gathered("results")
    assert row["values"] == row_of(alone)["values"]
    shutil.rmtree("results/tiny/digits/seed1")
    Path(KEPT).unlink()
    row = row_of(gathered("results", "evidence")[0])  # where nothing else has the run, it judges
    assert (row["seeds"], row["origin"]) == (2, "results|other")


def test_unknown_branches_may_differ(fresh: Path) -> None:
    facts, rows = read_file(Path(KEPT))
    write_file(Path(KEPT), [row | {"branch": ""} for row in rows], facts)
    changed(one_bit_more)
    study, said = gathered("evidence")
    assert len(said) == 1 and "not equal to" in said[0] and row_of(study)["seeds"] == 2


@pytest.mark.slow
def test_writing_over_other_numbers_is_refused(both: Path) -> None:
    facts, rows = read_file(Path(KEPT))
    write_file(Path(KEPT), [one_bit_more(row) if row["method"] == "clove" else row for row in rows], facts)
    before = Path(KEPT).read_bytes()
    study, _ = gathered("results")
    with pytest.raises(UserError, match=r"test-avx512.*seed 0, clove .*curve.*--origin NAME"):
        evidence.write(study, Path("evidence"))
    assert Path(KEPT).read_bytes() == before
    assert main(["evidence", "--to", "evidence", "--origin", "a b"]) == 2
    assert main(["evidence", "--to", "evidence", "--origin", "again"]) == 0
    assert len(read_file(Path("evidence/tiny/digits.again.parquet"))[1]) == 10


# What judges nothing.


@pytest.mark.slow
def test_an_old_revision_judges_nothing(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Job, "revisions", property(lambda job: REVISIONS | {"method ifca": 3} if job.name == "ifca" else REVISIONS)
    )
    for folders in (("evidence",), ("results",), ("results", "evidence")):
        study, said = gathered(*folders)
        assert row_of(study)["verdict"] == "not run" and "method ifca has revision 2, now 3" in row_of(study)["reason"]
        assert row_of(study, CLAIM.replace("ifca", "clove"))["seeds"] == 2
        if "evidence" in folders:
            assert any(text.startswith(f"{KEPT}: old revision, 2 runs") and "delete the file" in text for text in said)


def test_neither_results_nor_evidence_of_an_old_revision_are_used(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Job, "revisions", property(lambda job: REVISIONS | {"method ifca": 3} if job.name == "ifca" else REVISIONS)
    )
    for folder in ("results", "evidence"):
        study, _ = gathered(folder)
        assert str(study.run("digits", 0, "ifca")).startswith("old revision in")
        assert isinstance(study.run("digits", 0, "clove"), Run)


def test_the_largest_difference_of_scores_is_in_either_direction() -> None:
    def run(accuracy: list[float], loss: list[float]) -> Any:
        return SimpleNamespace(scores=pd.DataFrame({"accuracy": accuracy, "loss": loss}, index=[1, 2]))

    one, other = run([0.5, 0.75], [1.0, 2.0]), run([0.75, 0.625], [1.0, 2.5])
    assert weigh.distance(one, other) == weigh.distance(other, one) == (25, "points of accuracy")
    one, other = run([math.nan] * 2, [1.0, 2.0]), run([math.nan] * 2, [1.0, 2.5])
    assert weigh.distance(one, other) == weigh.distance(other, one) == (0.5, "of loss")


@pytest.mark.parametrize(
    ("recorded", "present", "said"),
    [
        ({}, {"engine": 1}, ""),
        ({}, {"engine": 2}, "engine has revision 1, now 2"),
        ({"engine": 1}, {"engine": 1, "metric loss": 1}, ""),
        ({"engine": 1}, {"engine": 1, "metric loss": 2}, "metric loss has revision 1, now 2"),
        ({"engine": 1, "model cnn": 2}, {"engine": 1}, "model cnn has revision 2, now 1"),
        ({"engine": 2}, {"engine": 2}, ""),
    ],
)
def test_which_revisions_are_old(recorded: dict[str, int], present: dict[str, int], said: str) -> None:
    assert weigh.outdated(recorded, present) == said


@pytest.mark.parametrize(
    ("place", "value", "left"),
    [
        ("training.rounds", 7, 0),
        ("federations.digits.partition.angles", [0, 180], 0),  # of the partition's job, not of the method's
        ("warmups.short.rounds", 2, 8),  # of two jobs before the method's
        ("seeds.runs", [1], 4),  # a sweep is chosen over all seeds
        ("score.average", "clients", 0),  # which no curve is of
    ],
)
def test_evidence_of_other_settings_is_reported(both: Path, place: str, value: Any, left: int) -> None:
    Plan.from_settings(put(settings(), place, value)).save()
    found, said = gathered("results", "evidence")
    assert len([one for one in found.weighed if one.place == KEPT and one.status != weigh.OTHER]) == left
    (text,) = (text for text in said if text.startswith(f"{KEPT}: other settings, {10 - left} run"))
    assert "not used" in text and "write its evidence" in text


def test_evidence_without_a_runs_own_score_is_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of runs with partial participation that were written when the accuracies of all clients were compared."""
    monkeypatch.setattr(Run, "whole", property(lambda run: run.where[2] != "clove"))
    found, said = gathered("evidence")
    unfit = {one.where[2] for one in found.weighed if one.status == weigh.OTHER}
    assert unfit == {"clove"} and any("lacks the score" in text for text in said)


def test_evidence_is_read_by_the_settings_of_its_federation(fresh: Path) -> None:
    """On digits alone half of the clients take part in FedAvg, so that its accuracies are those of participants."""
    place = Path("evidence/tiny/settings.json")
    study = put(settings(), "federations.digits.methods", {"fedavg": {"training": {"participation": 0.5}}})
    write_json(place, Plan.from_settings(study).study.model_dump(mode="json"))
    place.with_suffix(".sha256").write_text(f"{of_file(place)}  settings.json\n")
    results = Results.from_snapshot(place, own=False)
    job = results.job("digits", 1, "fedavg") if results else None
    assert results is not None and job is not None
    made = {"settings": job.settings_digest, "chain": results.chain(job)}

    def of_participants(row: Row) -> Row:
        line = row["curves"][0]
        return row | made | {"curves": [line | {"score": f"{line['score']}/participants"}]}

    changed(of_participants, method="fedavg")
    run = gathered("evidence")[0].run("digits", 1, "fedavg")
    assert isinstance(run, Run) and run.score["clients"] == "participants" and len(run.scores) > 1


def test_evidence_without_settings_is_reported(fresh: Path) -> None:
    for file in ("settings.json", "settings.sha256"):
        Path("evidence/tiny", file).unlink()
    studies, said = gather.gathered([Path("evidence")])
    assert not studies and len(said) == 1 and "no settings of study 'tiny'" in said[0]


def test_settings_that_are_no_longer_allowed_are_reported(fresh: Path) -> None:
    place = Path("evidence/tiny/settings.json")
    write_json(place, read_json(place) | {"methodz": {}})
    place.with_suffix(".sha256").write_text(f"{of_file(place)}  settings.json\n")
    studies, said = gather.gathered([Path("evidence")])
    assert not studies and len(said) == 1 and "methodz" in said[0]


# Damage.


def test_no_flipped_byte_goes_unnoticed(fresh: Path) -> None:
    content, chosen = Path(KEPT).read_bytes(), random.Random(18)
    places = {*chosen.sample(range(len(content)), 300), *range(len(content) - 100, len(content)), *range(8)}
    at = content.index(b"clusterfl.sha256")
    for place in sorted(places | set(range(at, at + 90, 3))):
        damaged = bytearray(content)
        damaged[place] ^= chosen.randrange(1, 256)
        Path(KEPT).write_bytes(damaged)
        with pytest.raises(UserError, match=r"digits\.test-avx512-abcdef0\.parquet .*clusterfl evidence"):
            read_file(Path(KEPT))
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        Path(KEPT).write_bytes(content[:cut])
        with pytest.raises(UserError, match="parquet"):
            read_file(Path(KEPT))


def test_the_rest_of_damaged_evidence_is_read(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(lambda row: row)
    damaged = bytearray(Path(KEPT).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path(KEPT).write_bytes(damaged)
    assert main(["claims", "--from", "evidence"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("clusterfl: "))
    assert f": {KEPT} is damaged" in line and "clusterfl evidence" in line
    row = row_of(gathered("evidence")[0])
    assert (row["seeds"], row["origin"]) == (1, path.name.split(".")[1])


@pytest.mark.parametrize("file", ["settings.json", "settings.sha256"])
def test_damaged_settings_are_reported(fresh: Path, file: str) -> None:
    path = Path("evidence/tiny", file)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    _, said = gather.gathered([Path("evidence")])
    assert any("settings.json is damaged" in text for text in said)


def test_a_file_under_two_names_counts_once(fresh: Path) -> None:
    shutil.copy(KEPT, "evidence/tiny/digits.twin.parquet")
    study, said = gathered("evidence")
    (text,) = said
    assert "digits.twin.parquet is the same file as" in text and KEPT in text
    assert row_of(study)["seeds"] == 2 and len(study.pieces["digits", 0, "ifca"]) == 1


def test_a_run_twice_in_a_file_is_reported(fresh: Path) -> None:
    facts, rows = read_file(Path(KEPT))
    twice = [row for row in rows if (row["seed"], row["method"]) == (1, "ifca")]
    write_file(Path(KEPT), [*rows, *twice], facts)
    study, said = gathered("evidence")
    assert [text for text in said if "holds seed 1, ifca more than once" in text] == said and said
    assert row_of(study)["seeds"] == 2
    write_file(Path(KEPT), [*rows, *map(one_bit_more, twice)], facts)
    study, said = gathered("evidence")
    assert len(said) == 2 and "conflict" in said[1] and row_of(study)["seeds"] == 1


def test_other_formats_are_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, rows = read_file(Path(KEPT))
    with monkeypatch.context() as patch:
        patch.setattr(evidence_file, "FORMAT", 0)
        write_file(Path(KEPT), rows, facts)
    pd.DataFrame({"a": [1]}).to_parquet("evidence/tiny/some.table.parquet")
    _, said = gather.gathered([Path("evidence")])
    assert any(text.startswith(f"{KEPT} has format 0, this version reads format 1") for text in said)
    assert any("some.table.parquet is no evidence" in text for text in said)


def test_the_columns_are_those_of_the_format() -> None:
    """If this fails: a new number for FORMAT, for files that are there have other columns."""
    nested = [evidence_file.SCHEMA.field(name).type for name in ("curves", "by_round", "labels")]
    inner = [[field.name for field in (kind.value_type if i == 0 else kind)] for i, kind in enumerate(nested)]
    names = canonical([evidence_file.SCHEMA.names, inner])
    assert (evidence_file.FORMAT, of_text(names)) == (1, "f987e82ad735a517")


@pytest.mark.parametrize("name", ["nowhere", "results-of-others"])
def test_a_folder_without_evidence_is_refused(fresh: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name != "nowhere":
        Path(name).mkdir()
    assert main(["claims", "--from", "evidence", name]) == 2
    assert f"--from: {name} holds no evidence" in capsys.readouterr().err


def test_an_unknown_study_is_refused(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "tinny"]) == 2
    assert "no study 'tinny'" in capsys.readouterr().err


def test_bits_are_compared_as_bits() -> None:
    same = evidence_file._same
    assert same(math.nan, math.nan) and same([1.0, math.inf], [1.0, math.inf]) and same({"a": [1]}, {"a": [1]})
    assert not same(0.0, -0.0) and not same(1.0, float(np.nextafter(1.0, 2))) and not same([1.0], [1.0, 1.0])
    assert not same({"a": 1}, {"b": 1}) and not same("a", "b")


def with_local(row: Row) -> Row:
    """Return a row that also has the curve of local models."""
    line = row["curves"][0]
    return row | {"curves": [*row["curves"], line | {"score": line["score"].replace("aggregated", "local")}]}


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_merging_keeps_the_curves_of_all(order: tuple[str, str], fresh: Path) -> None:
    """Evidence of a run may be from before its study's print had a score of its own."""
    for name in order:
        shutil.copytree("evidence", name)
    file = Path("new", *Path(KEPT).parts[1:])
    facts, rows = read_file(file)
    write_file(file, [with_local(row) for row in rows], facts)
    wanted = file.read_bytes()
    assert main(["evidence", "--merge", order[1], "--to", order[0]]) == 0
    assert Path(order[0], *Path(KEPT).parts[1:]).read_bytes() == wanted


def test_evidence_with_the_score_of_print_judges(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = property(lambda run: run.score | ({"evaluation": "local"} if run.where[2] == "ifca" else {}))
    monkeypatch.setattr(Run, "printed", score)
    assert row_of(gathered("evidence")[0])["verdict"] == "not run"
    for seed in (0, 1):
        path = changed(with_local, f"digits.zz{seed}.parquet", seed)
    found, _ = gathered("evidence")
    assert row_of(found)["verdict"] != "not run"
    judges = {one.where[1]: one.place for one in found.weighed if one.where[2] == "ifca" and one.status == weigh.JUDGES}
    assert judges == {0: str(path).replace("zz1", "zz0"), 1: str(path)}
