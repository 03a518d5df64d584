"""The queue of open blocks: what is in it, in which order, and that running it judges numbers and ends in time."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import measured_briefly, tiny, write_yaml

from clusterfl.claims import gather, hours, scale
from clusterfl.claims.campaign import costs, prefix, run, show
from clusterfl.claims.campaign.queue import Block, Open, Queue
from clusterfl.claims.evidence_file import read_file, write_file
from clusterfl.claims.ours import Results
from clusterfl.claims.printed import claims
from clusterfl.claims.verdicts import JUDGED
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline import running, side_by_side
from clusterfl.pipeline.job import Job
from clusterfl.storage import digest

WHOLE, FIRST = 30, 11  # rounds; CLoVE's ARI after ten rounds is that of round 11
CELL = "mnist/label-skew-1"
CLOVE = ["campaign", "--to", "evidence", "--only", "*/clove"]


def shipped() -> dict[str, Any]:
    """Return a study that stands for CLoVE's, with two methods that print has numbers of."""
    study = tiny() | {"seeds": {"runs": [1, 2]}, "baseline": None}
    study["training"] |= {"rounds": WHOLE}
    study["engine"]["backend"] = "auto"
    study["federations"]["digits"]["partition"] |= {"clients": 4}
    study["methods"] = {"clove": {"method": "clove", "clusters": 2}, "ifca": {"method": "ifca", "clusters": 2}}
    for part in ("warmups", "distances", "clusterings"):
        del study[part]
    study["claims"] = {"paper": "clove", "profile": "released", "cells": {CELL: {"federation": "digits"}}}
    return study


def cost(paper: str, **rows: tuple[float, float]) -> Iterator[dict[costs.Key, costs.Cost]]:
    """Yield a table of costs of a study's first seed: once and in each round, by method; partitions cost nothing."""
    plan = prefix.plan(paper)
    for place in dict.fromkeys(costs.reachable(paper).values()):
        for job in plan.jobs([costs._run(plan, place)]):
            if job.stage != "download":
                yield {costs._key(paper, job): costs.Cost(*rows.get(str(job.name), (0.0, 0.0)))}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the tiny study ships as CLoVE's; IFCA takes twice as long as CLoVE."""
    monkeypatch.chdir(tmp_path)
    file = write_yaml(tmp_path / "shipped.yaml", shipped())
    monkeypatch.setattr(scale, "file", lambda paper: file)
    monkeypatch.setattr(costs, "unit", lambda: 3.6)  # seconds: a thousand an hour
    monkeypatch.setattr(costs, "FILE", tmp_path / "costs.csv")
    rows = {key: value for row in cost("clove", clove=(2.0, 1.0), ifca=(4.0, 2.0)) for key, value in row.items()}
    monkeypatch.setattr(costs, "_table", lambda file, changed: rows)
    costs.FILE.touch()
    return tmp_path


def blocks(*folders: str, seeds: list[int] | None = None, only: str | list[str] = "*") -> list[Block]:
    patterns = [only] if isinstance(only, str) else only
    return Queue([Path(folder) for folder in folders or ("results",)], seeds, patterns).blocks


def numbers(block: Block) -> Counter[str]:
    return Counter(claim.metric for claim in block.claims)


def printed(method: str) -> list[str]:
    """Return what print has of a method in the cell."""
    return [claim.metric for claim in claims() if (claim.paper, claim.cell, claim.method) == ("clove", CELL, method)]


# The queue.


def test_prefixes_come_first_where_they_judge_more_an_hour() -> None:
    found = blocks()
    # IFCA's print has ARI 0.9 not reached, which the end alone can show: of its prefix there is one number.
    assert [(block.method, block.rounds) for block in found] == [("clove", FIRST), ("clove", WHOLE), ("ifca", WHOLE)]
    early = {"ari_round_10": 1, "first_round_ari_0.9": 1}
    assert numbers(found[0]) == early and numbers(found[2]) == Counter(printed("ifca"))
    assert numbers(found[1]) == Counter(printed("clove")) - Counter(early)
    assert [block.study for block in found] == ["tiny-first-11", "tiny", "tiny"]
    assert {block.seeds for block in found} == {(1, 2)} and not any(block.share_done for block in found)
    assert [block.hours for block in found] == pytest.approx([0.026, 0.064, 0.128])  # both seeds
    assert found[0].rate == pytest.approx(2 / 0.026)
    assert len({claim for block in found for claim in block.claims}) == len(printed("clove") + printed("ifca"))


def test_a_longer_prefix_of_nearly_the_same_rate_spares_a_second_beginning() -> None:
    here = Queue.__new__(Queue)
    own = blocks()
    needs = dict(zip((claim for block in own for claim in block.claims), (4, 5, 6, 6, 11, 30), strict=False))
    here._rate = lambda own, needs, rounds: {4: 3.0, 5: 2.9, 6: 2.1, 11: 1.9, 30: 1.0}[rounds]  # type: ignore[method-assign]
    here._block = lambda own, rounds, claims, wanted: Block(  # type: ignore[method-assign]
        "clove", "s", "f", "m", rounds, 30, claims, (1,), (1,), 1.0
    )
    found = list(here.of(Open("clove", ("digits", "ifca"), plan_job(), needs), (1,)))
    assert [block.rounds for block in found] == [6, 11, 30]
    assert [len(block.claims) for block in found] == [4, 1, len(needs) - 5]


def test_what_checkpoints_have_of_a_block_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert [block.method for block in blocks()] == ["clove", "clove", "ifca"]
    folder = Path("results/tiny/.work/federate.digits.seed1.ifca")
    for step in (12, 13):
        (folder / f"{step:08d}").mkdir(parents=True)
    (folder / "00000012" / "manifest.json").touch()  # and the second was killed while it was written
    (found,) = blocks(only="*/ifca")
    assert (found.share_done, found.hours) == (12 / (2 * WHOLE), pytest.approx(0.128))  # of both seeds' rounds
    assert found.rate == pytest.approx(len(found.claims) / (0.128 * 0.8))
    assert [turn.hours for turn in run.turns([found], 1)] == pytest.approx([0.128 * 0.8])
    assert [turn.round for turn in run.turns([found], 1)] == pytest.approx([0.064 / WHOLE])
    assert main(["campaign", "--list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "ifca" in line)
    assert line.split()[-3:] == [str(WHOLE), "20%", "done"]
    assert [block.method for block in blocks()] == ["clove", "ifca", "clove"]


def plan_job() -> Any:
    return prefix.plan("clove").job("federate", "digits", 1, "ifca")


def test_a_prefix_that_is_no_beginning_isnt_offered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "bound", lambda job: "its schedule depends on the number of rounds")
    assert {block.rounds for block in blocks()} == {WHOLE}


def test_seeds_and_patterns() -> None:
    assert {block.seeds for block in blocks(seeds=[2, 7])} == {(2,)}
    assert {block.method for block in blocks(only="clove/*/ifca")} == {"ifca"}
    assert {block.method for block in blocks(only=["clove/*/ifca", "clove/*/clove"])} == {"ifca", "clove"}
    with pytest.raises(UserError, match=r"--seeds: no shipped study has one of them; allowed: .*clove 1, 2"):
        blocks(seeds=[0])
    with pytest.raises(UserError, match=r"--only: 'ifca' matches no run .*e\.g\. clove/digits/"):
        blocks(only="ifca")
    with pytest.raises(UserError, match=r"--only: 'none' matches no run"):
        blocks(only=["clove/*", "none"])


def test_one_seed_is_not_run_for_what_it_cannot_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {replace(claim, std=""): where for claim, where in costs.reachable("clove").items()}
    monkeypatch.setattr(costs, "reachable", lambda paper: reached if paper == "clove" else {})
    found = blocks(seeds=[1])
    assert [claim.printed for block in found for claim in block.claims] == [None]  # IFCA's, which isn't reached
    assert len({claim for block in blocks() for claim in block.claims}) == len(reached) > 1
    monkeypatch.setattr("clusterfl.claims.campaign.queue._judged", lambda claim, results: {2})  # that one has run
    assert len({claim for block in blocks(seeds=[1]) for claim in block.claims}) == len(reached)


def test_what_has_no_cost_is_listed_and_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(costs, "_table", lambda file, changed: {})
    assert main(["campaign", "--list"]) == 0
    said = capsys.readouterr().out
    assert "3 blocks have no hours" in said
    assert run.turns(blocks(), 2) == []
    with monkeypatch.context() as patch:
        patch.setattr(running, "run", None)
        assert main(["campaign", "--to", "evidence"]) == 0  # nothing to call it for


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "clove/digits/clove", "2", "0.026", "76.9", "0", "of", "2", "1,", "2", "11", "of", "30", "(37%)",
    ]  # fmt: skip
    assert lines[-1].startswith("3 blocks, ")
    assert main(["campaign", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["blocks"]
    assert [block["seeds_to_run"] for block in found] == [[1, 2]] * 3
    assert found[0]["share_of_rounds"] == FIRST / WHOLE and len(found[0]["numbers"]) == 2
    assert main(["campaign", "--dry-run", "--hours", "0.01", "--jobs", "2"]) == 0
    assert "seeds 1, 2" in (said := capsys.readouterr().out) and "nothing was run" in said
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hours", "0"], "hours above 0"),
        (["--seeds", "2-1"], "holds no seed"),
        (["--seeds", "x"], "seeds and ranges"),
    ],
)
def test_options_that_mean_nothing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["campaign", *words])
    assert said in capsys.readouterr().err


def block(method: str, hours: float, seeds: tuple[int, ...] = (1, 2, 3), study: str = "clove") -> Block:
    return Block("clove", study, "f", method, 100, 100, (), seeds, seeds, hours)


def test_turns_are_an_hour_on_all_cores_or_a_seed_for_each() -> None:
    def cut(blocks: list[Block], jobs: int) -> list[list[tuple[str, int]]]:
        return [[(one.method, seed) for one, seed in turn.runs] for turn in run.turns(blocks, jobs)]

    small = [block("a", 0.3), block("b", 0.3), block("c", 0.3, study="clove-first-11")]
    assert cut(small, 1) == [[(m, s) for m in "ab" for s in (1, 2, 3)], [("c", s) for s in (1, 2, 3)]]
    assert cut([block("a", 9.0)], 1) == [[("a", 1)], [("a", 2)], [("a", 3)]]
    assert cut([block("a", 9.0)], 2) == [[("a", 1), ("a", 2)], [("a", 3)]]
    assert cut([block("a", 1.5)], 1) == [[("a", 1), ("a", 2)], [("a", 3)]]


def test_no_core_waits_for_a_turns_longest_run() -> None:
    """Four runs of some half an hour, and a fifth; short ones beside one of three hours, as many as fit."""

    def cut(hours: list[float]) -> list[str]:
        own = [block(name, each, seeds=(1,)) for name, each in zip("abcdefgh", hours, strict=False)]
        return ["".join(one.method for one, _ in turn.runs) for turn in run.turns(own, 2)]

    assert cut([0.507, 0.508, 0.51, 0.51, 0.51]) == ["abcd", "e"]
    assert cut([3.0, 0.9, 0.9, 0.9, 0.9]) == ["abcd", "e"]
    assert cut([0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1]) == ["abcdef", "g"]  # 1.1 hours on both cores


# What a number needs.


def test_rounds_that_numbers_need() -> None:
    """By hand, of the real studies' claims: where they are read, or about as many rounds as print says."""
    own = next(c for c in claims() if c.metric == "first_round_ari_0.9" and c.printed is not None and c.printed_std)

    class At:
        rounds, rest = 100, None

        def last(self, metric: str, at: str) -> int:
            return {"ari_round_10": 11}.get(metric, 0)

    reader: Any = At()
    expected = own.printed + max(1.0, 2 * own.printed_std)  # type: ignore[operator]
    assert expected <= prefix.needed(own, reader) < expected + 1
    never = next(c for c in claims() if c.metric == "first_round_ari_0.9" and c.printed is None)
    assert prefix.needed(never, reader) == 100
    assert prefix.needed(next(c for c in claims() if c.metric == "ari_round_10"), reader) == 11
    reader.rest = 1  # of a method that clusters once
    assert prefix.needed(own, reader) == prefix.needed(never, reader) == 1


def test_a_shorter_study_differs_in_rounds_and_name_alone() -> None:
    whole, short = (prefix.plan("clove", rounds).study.model_dump(mode="json") for rounds in (None, FIRST))
    assert (short["study"], short["training"]["rounds"]) == ("tiny-first-11", FIRST)
    assert short | {"study": "tiny", "training": whole["training"]} == whole


def test_rounds_of_federations_and_methods_are_cut_too_and_warm_ups_are_not() -> None:
    settings = {
        "training": {"rounds": 9, "epochs": 20},
        "warmups": {"w": {"rounds": 20, "training": {"rounds": 3}}},
        "methods": {"a": {"training": {"rounds": 30}}, "b": {"training": {}}},
    }
    found = prefix._shortened(settings, 7)
    assert found["training"] == {"rounds": 7, "epochs": 20} and found["methods"]["a"] == {"training": {"rounds": 7}}
    assert found["warmups"] == {"w": {"rounds": 20, "training": {"rounds": 3}}} and settings["training"]["rounds"] == 9


# The table of costs.


def test_the_table_has_every_run_that_can_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the real studies: a change of their settings needs `make costs`, or the queue has blocks without hours."""
    monkeypatch.undo()
    for paper in ("lcfl", "rr-cluster", "clove", "fedgwc"):
        plan = prefix.plan(paper)
        table = costs._table(costs.FILE, costs.FILE.stat().st_mtime_ns)
        there = {(key[2], key[3]) for key in table if key[0] == paper and key[1] == "federate"}
        for federation, method in there:
            jobs = plan.jobs([plan.job("federate", federation, plan.study.seeds.runs[0], method)])
            assert all(costs.of(paper, job) is not None for job in jobs), (paper, federation, method)
        assert there, paper


@pytest.mark.slow
def test_costs_are_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_briefly(monkeypatch)
    monkeypatch.undo()
    file = write_yaml(place / "shipped.yaml", shipped())
    monkeypatch.chdir(place)
    monkeypatch.setattr(scale, "file", lambda paper: file)
    monkeypatch.setattr(costs, "FILE", place / "measured.csv")
    measured_briefly(monkeypatch)
    assert costs.unit() > 0
    costs.remeasure(["clove"])
    with open(costs.FILE, encoding="utf-8", newline="") as stream:
        rows = {row["name"]: row for row in csv.DictReader(stream)}
    assert set(rows) == {"", "clove", "ifca"} and all(float(row["round"]) > 0 for row in rows.values() if row["name"])
    assert all(block.hours for block in blocks())


# Running it.


def verdicts(*folders: str) -> Counter[str]:
    return Queue([Path(folder) for folder in folders]).verdicts


def files(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).glob("*/*")}


def one_by_one(jobs: Sequence[Job], number: int, work: Callable[[int], int], keep_going: bool) -> int:
    return max(work(place) for place in range(len(jobs)))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the queue was run to CLoVE's end, one machine's two seeds."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        place.__wrapped__(folder, patch)
        patch.setattr(side_by_side, "run", one_by_one)  # which costs no process for each job
        assert main([*CLOVE, "--hours", "0.2"]) == 0
    return folder


@pytest.mark.slow
def test_the_queue_runs_to_its_end(ran: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(ran)
    expected = len(printed("clove"))
    assert sum(verdicts("evidence")[name] for name in JUDGED) == expected
    assert blocks("evidence", only="*/clove") == []
    with monkeypatch.context() as patch:
        patch.setattr(running, "run", None)
        assert main(CLOVE) == 0
    said = capsys.readouterr().out
    assert f"{expected} numbers were judged, {expected} are now" in said and "next block: none is open" in said
    done = Queue([Path("results"), Path("evidence")], only=["*/clove"])
    assert show.table(done).startswith("nothing is open") and done.blocks == []


@pytest.mark.slow
def test_a_prefix_is_judged_by_the_numbers_that_it_has(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ran)
    found: dict[str, set[tuple[str, str]]] = {}  # by study: the claims with a seed's number
    for study in ("tiny-first-11", "tiny"):
        (own,) = (one for one in gather.studies([Path("evidence")]) if one.study.study == study)
        rows = [row for row in gather.claim_rows([own])[0] if row["verdict"] in JUDGED]
        assert {row["scale"] for row in rows} == {"paper" if study == "tiny" else "prefix"}
        found[study] = {(row["claim_id"], value) for row in rows for value in row["values"].split("; ")}
    short, whole = found.values()
    assert len(short) >= 2 and short < whole
    # A seed reaches ARI 0.9 after the prefix's end: that of the other seed alone is no number of the prefix.
    late = {seed for name, seed in whole if "first09" in name}
    assert not any("first09" in name for name, _ in short) and any(float(one.split(": ")[1]) <= FIRST for one in late)


def test_hours_are_kept(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ran)
    rows = hours.read(Path("evidence/tiny/hours.csv"))
    assert {key[:3] for key in rows} == {("digits", method, seed) for method in ("clove",) for seed in (1, 2)}
    assert all(float(row["seconds"]) > 0 and row["rounds"] == str(WHOLE) and row["processor"] for row in rows.values())
    lines = hours.table(Path("evidence"))
    assert lines[1][:5] == ["tiny", "digits", "clove", str(WHOLE), "1, 2"] and len(lines) == 3
    predicted = [float(row["predicted"]) for row in rows.values()]
    assert min(predicted) > 0 and lines[1][5] == f"{sum(predicted) / 3600:.2f}"
    first = next(iter(rows))  # one seed without a prediction: none of the block
    hours.put(Path("evidence/other/hours.csv"), rows | {first: rows[first] | {"predicted": ""}})
    assert [line[5] for line in hours.table(Path("evidence")) if line[0] == "other"] == [""]
    Path("evidence/tiny/damaged.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"damaged.csv hasn't the columns federation, method"):
        hours.read(Path("evidence/tiny/damaged.csv"))


def test_hours_of_runs_that_no_queue_made(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no prediction, and what was predicted before stays; what a run needs before it is counted with it."""
    monkeypatch.chdir(ran)
    queued = hours.read(Path("evidence/tiny/hours.csv"))
    again = tmp_path / "again"
    assert main(["evidence", "tiny", "--to", str(again)]) == 0
    found = hours.read(again / "tiny/hours.csv")
    assert found == {key: row | {"predicted": ""} for key, row in queued.items()} and len(found) == 2
    shutil.copyfile("evidence/tiny/hours.csv", again / "tiny/hours.csv")
    assert main(["evidence", "tiny", "--to", str(again)]) == 0
    assert hours.read(again / "tiny/hours.csv") == queued
    bare, merged = hours.read(again / "tiny/hours.csv"), tmp_path / "merged"
    hours.put(again / "tiny/hours.csv", {key: row | {"predicted": ""} for key, row in bare.items()})
    for first in (again, Path("evidence")):  # what one of them predicted stays, whichever comes first
        shutil.rmtree(merged, ignore_errors=True)
        others = {again, Path("evidence")} - {first}
        assert main(["evidence", "--merge", str(first), *map(str, others), "--to", str(merged)]) == 0
        assert hours.read(merged / "tiny/hours.csv") == queued
    parts = ("partition.timing", "methods/clove/timing")
    tables = [pd.read_parquet(f"results/tiny/digits/seed1/{name}.parquet") for name in parts]
    seconds = sum(table.loc[table["round"] == 0, "seconds"].sum() for table in tables)
    (first,) = (row for key, row in queued.items() if key[2] == 1)
    assert float(first["seconds"]) == pytest.approx(seconds, abs=0.06)
    wider = write_yaml(tmp_path / "wider.yaml", shipped() | {"model": {"model": "mlp", "hidden": [99]}})
    monkeypatch.setattr(scale, "file", lambda paper: wider)  # so that the runs are at another scale than what ships
    other = tmp_path / "other"
    assert main(["evidence", "tiny", "--to", str(other)]) == 0
    assert (other / "tiny").is_dir() and not (other / "tiny/hours.csv").exists()


def test_what_failed_is_said_and_the_next_turn_runs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    asked = []

    def fails(plan: Any, wanted: Any, *more: Any, **named: Any) -> int:
        asked.append(plan.study.study)
        if len(asked) == 1:
            raise UserError("no memory; take more")
        return 0

    monkeypatch.setattr(running, "run", fails)
    assert main(["campaign", "--to", "evidence"]) == 2
    said = capsys.readouterr()
    assert len(asked) > 1 and "failed, see above: tiny-first-11" in said.out and "no memory" in said.err


@pytest.mark.slow
def test_it_ends_in_time_and_by_a_signal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A runner that works until it is asked to stop: by the clock it is the campaign's own end, else the user's."""

    def works(*given: Any, **named: Any) -> int:
        if asked:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        raise AssertionError("nobody asked to stop")

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(running, "run", works)
    monkeypatch.setattr(costs, "unit", lambda: 0.001)  # rounds are short enough to be begun
    for code in (0, 128 + signal.SIGTERM):
        asked = code != 0
        began = time.monotonic()
        assert main(["campaign", "--to", "evidence", "--hours", str(5 / 3600)]) == code
        assert time.monotonic() - began < 30
        assert "goes on at the next start: tiny-first-11: digits/clove" in capsys.readouterr().out
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before


def test_what_has_longer_rounds_than_the_time_left_isnt_begun(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """IFCA's rounds take some two units, CLoVE's one: more than half an hour each with a unit of an hour."""
    monkeypatch.setattr(running, "run", lambda *given, **named: 0)
    words = ["campaign", "--to", "evidence", "--hours", "0.5"]
    assert main(words) == 0
    assert "not begun" not in capsys.readouterr().out
    monkeypatch.setattr(costs, "unit", lambda: 3600.0)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "not begun, for a round takes longer than what was left: tiny-first-11" in said and "0 turns done" in said
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["before"] == found["now"] == {"not run": 1452} and (found["won"], found["turns"]) == (0, [])
    assert found["late"][0].startswith("tiny-first-11: ") and found["next"]["block"] == "clove/digits/clove"


TRIES = 10


@pytest.mark.slow
def test_a_real_run_stops_at_a_checkpoint_and_goes_on(place: Path, capsys: Any) -> None:
    settings = shipped()
    settings["training"]["rounds"] = 100_000
    write_yaml(place / "shipped.yaml", settings)
    rows = {key: value for row in cost("clove", ifca=(1.0, 1e-4), clove=(1.0, 1e-4)) for key, value in row.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "_table", lambda file, changed: rows)
        words = ["campaign", "--to", "evidence", "--hours", str(8 / 3600), "--only", "*/ifca", "--seeds", "1"]
        for _ in range(TRIES):  # a busy machine may need several for the prefix, which comes first
            assert main([*words, "--jobs", "2"]) == 0
            said = capsys.readouterr().out
            if "goes on at the next start: tiny: digits/ifca; seeds 1" in said:
                break
        else:
            pytest.fail(f"the whole run wasn't begun: {said}")
        (begun,) = (one for one in blocks(seeds=[1], only="*/ifca") if one.share_done)
        steps = [int(path.name) for path in Path("results/tiny/.work").glob("federate*/0*")]
        assert begun.rounds == 100_000 and [begun.share_done] == pytest.approx([step / 100_000 for step in steps])
        assert main([*words, "--jobs", "1"]) == 0
        assert "goes on at the next start" in capsys.readouterr().out
        assert [int(path.name) for path in Path("results/tiny/.work").glob("federate*/0*")] > steps


# Several machines.


@pytest.mark.slow
def test_evidence_of_two_machines_is_that_of_one(ran: Path, tmp_path: Path, capsys: Any) -> None:
    """Seeds and blocks of one run, dealt over two folders and merged, give the same bytes, in either order."""
    for number in (1, 2):
        for path in sorted((ran / "evidence").glob("*/*.parquet")):
            facts, rows = read_file(path)
            own = [row for row in rows if row["seed"] == number or "first" in facts["study"]]  # both ran the prefix
            write_file(tmp_path / f"machine{number}" / path.relative_to(ran / "evidence"), own, facts)
        for path in sorted((ran / "evidence").glob("*/settings.*")):
            shutil.copy(path, tmp_path / f"machine{number}" / path.parent.name)
        for path in sorted((ran / "evidence").glob(f"*/{hours.NAME}")):
            mine = {key: row for key, row in hours.read(path).items() if key[2] == number}
            hours.put(tmp_path / f"machine{number}" / path.relative_to(ran / "evidence"), mine)
    expected = {name: text for name, text in files(str(ran / "evidence")).items() if "damaged" not in name}
    assert main(["evidence", "--merge", "machine1", "machine2", "--to", "merged"]) == 0
    assert files("merged") == expected
    assert "merged: 4 runs in 2 files, 4 of them new" in capsys.readouterr().out
    assert main(["evidence", "--merge", "machine1", "--to", "merged"]) == 0
    assert files("merged") == expected  # what brings nothing new changes no byte
    assert "0 of them new" in capsys.readouterr().out
    assert main(["evidence", "--merge", "machine1", "--to", "machine2"]) == 0
    assert files("machine2") == expected and files("machine1") != expected
    assert "1 of them new" in capsys.readouterr().out


@pytest.mark.slow
def test_a_contradiction_is_refused_and_nothing_is_written(ran: Path, tmp_path: Path, capsys: Any) -> None:
    for name in ("one", "two"):
        shutil.copytree(ran / "evidence", tmp_path / name)
    path = next(Path("two/tiny").glob("*.parquet"))
    facts, rows = read_file(path)
    before = files("one")
    for name, changed, said in (
        (path.name, {"ari": 0.125}, "is another run there, or has other numbers"),
        ("digits.later.parquet", {"ari": 0.125}, "is another run there, or has other numbers"),
        (path.name, {"settings": "0" * 16}, "is another run there"),
    ):
        path.unlink(missing_ok=True)
        write_file(path.with_name(name), [{**rows[0], **changed}], facts)
        assert main(["evidence", "--merge", "two", "--to", "one"]) == 2
        assert said in (text := capsys.readouterr().err) and "seed 1, clove" in text and "nothing was written" in text
        path.with_name(name).unlink()
    write_file(path.with_name("digits.later.parquet"), [{**rows[0], "versions": "{}", "ari": 0.125}], facts)
    assert main(["evidence", "--merge", "two", "--to", "new"]) == 0  # of another version both are kept
    capsys.readouterr()
    assert files("one") == before
    Path("two/tiny/settings.json").write_text("{}")
    for words, said in (
        (["two", "--to", "one"], "two/tiny/settings.json is damaged"),
        (["none", "--to", "one"], "--merge: none holds no evidence"),
        (["two", "--to", "one", "--origin", "x"], "leave out STUDY and --origin"),
    ):
        assert main(["evidence", "--merge", *words]) == 2
        assert said in capsys.readouterr().err
    assert files("one") == before


@pytest.mark.slow
def test_settings_that_have_all_runs_are_kept(ran: Path, tmp_path: Path, capsys: Any) -> None:
    """A study that got a method since has the older runs, too; one that trains otherwise hasn't."""
    for name in ("old", "new"):
        shutil.copytree(ran / "evidence", tmp_path / name)
    before, path = files("old"), Path("new/tiny/settings.json")
    settings = json.loads(path.read_text())
    settings["training"]["learning_rate"] /= 2
    put_settings(path, settings)
    assert main(["evidence", "--merge", "new", "--to", "old"]) == 0  # by which none of the runs was made
    assert files("old") == before
    settings["training"]["learning_rate"] *= 2
    settings["methods"]["local"] = {"method": "local"}
    put_settings(path, settings)
    for folders, to in ((["old", "new"], "merged"), (["old"], "new"), (["new"], "old")):
        assert main(["evidence", "--merge", *folders, "--to", to]) == 0
        assert Path(to, "tiny/settings.json").read_bytes() == path.read_bytes()
        capsys.readouterr()
        assert main(["claims", "--from", to]) == 0
        assert "other settings" not in capsys.readouterr().err
    settings["training"]["learning_rate"] /= 2
    put_settings(path, settings)
    study, file = Results.from_snapshot(path), next(Path("new/tiny").glob("*.parquet"))
    assert study is not None
    facts, rows = read_file(file)
    job = study.job(facts["federation"], rows[0]["seed"], rows[0]["method"])
    assert job is not None
    own = {"settings": job.settings_digest, "chain": study.chain(job)}
    write_file(file.with_name("digits.later.parquet"), [rows[0] | own], facts)
    before = files("old")
    assert main(["evidence", "--merge", "new", "--to", "old"]) == 2
    assert "new/tiny/settings.json has other settings of study 'tiny' than old/tiny" in capsys.readouterr().err
    assert files("old") == before


def put_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write settings, and their digest beside them, as evidence has them."""
    path.write_text(json.dumps(settings))
    path.with_suffix(".sha256").write_text(f"{digest.of_file(path)}  {path.name}\n")


def test_seeds_in_words() -> None:
    assert (show._seeds((1, 2, 3)), show._seeds((0, 2)), show._seeds((4,)), show._seeds((1, 2))) == (
        "1-3", "0, 2", "4", "1, 2",
    )  # fmt: skip
