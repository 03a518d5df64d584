"""`clusterfl verify`: a sound study is sound; each planted damage is found and mended by the command it names."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, put, tiny, undrawn, write_yaml
from federations import slow_but

from clusterfl.cli import main
from clusterfl.pipeline.execute import is_done
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.verify import study as verify
from clusterfl.pipeline.verify.adopt import adopt
from clusterfl.pipeline.verify.replay import chosen, equal
from clusterfl.storage import digest
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, read_table, read_tensors, write_json, write_table, write_tensors

RUN = Path("results/tiny/digits/seed0")
IFCA, WARMUP = RUN / "methods/ifca", RUN / "warmup/short"


def settings() -> dict[str, Any]:
    """The tiny study with a sweep, newcomers, validation samples and every evaluation that keeps no state."""
    study = put(tiny(), "training.evaluations", ["aggregated", "local", "personalised", "newcomer"])
    put(study, "training.evaluate_every", 2)
    put(study, "warmups.short.training", {"evaluations": ["aggregated"]})
    put(study, "federations.digits.partition", {"validation": 0.1, "newcomers": 1} | tiny_partition(study))
    put(study, "methods.swept", {"method": "ifca", "sweep": {"clusters": [1, 2]}})
    for name in ("local", "lcfl-diffnorm"):
        put(study, f"methods.{name}", ...)
    put(study, "clusterings.lcfl-diffnorm", ...)
    return put(study, "distances.diffnorm", ...)


def tiny_partition(study: dict[str, Any]) -> dict[str, Any]:
    return study["federations"]["digits"]["partition"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("verify"), Path.cwd()
    os.chdir(folder)
    write_yaml(Path("config.yaml"), settings())
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        assert main(["run"]) == 0
    os.chdir(before)
    return folder


@pytest.fixture
def study(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished study, as working folder."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verdict(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> dict[str, Any]:
    """Run the command and return what it says as JSON."""
    capsys.readouterr()
    given = arguments or ("tiny",)
    assert main(["verify", *given, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["sound"] == (code == 0)
    return found


def forge(path: Path) -> None:
    """Let the manifest list a changed file as if a run had written it so: its digest tells nothing then."""
    place = manifest_path(path)
    manifest = read_json(place)
    manifest["files"][path.relative_to(place.parent).as_posix()]["sha256"] = digest.of_file(path)
    write_json(place, manifest)


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a table's or a file of tensors' columns behind its manifest's back."""
    read, write = (read_table, write_table) if path.suffix == ".parquet" else (read_tensors, write_tensors)
    columns = {name: np.array(column) for name, column in read(path).items()}
    change(columns)
    write(path, columns)
    forge(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cell(
    name: str, value: Any, where: Callable[[dict[str, Any]], Any] = lambda t: 0
) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        table[name][where(table)] = value

    return change


def without(rows: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        table |= {name: column[~rows(table)] for name, column in list(table.items())}

    return change


def aggregated(table: dict[str, Any]) -> int:
    return int(np.argmax((table["evaluation"] == "aggregated") & (table["split"] == "test") & (table["round"] == 3)))


def double(table: dict[str, Any]) -> None:
    """Give the first sample of client 0 to it in another split, too."""
    row = int(np.argmax((table["client"] == 0) & (table["split"] == "train")))
    table |= {name: np.concatenate([column, column[row : row + 1]]) for name, column in list(table.items())}
    table["split"] = table["split"].astype(object)
    table["split"][-1] = "test"


def of_strings(table: dict[str, Any]) -> None:
    table["correct"] = table["correct"].astype(str)


def other_settings() -> None:
    place = IFCA / "manifest.json"
    write_json(place, read_json(place) | {"settings": "0123456789abcdef"})


def other_model(state: dict[str, Any]) -> None:
    state["theta"] = state["theta"][::-1]


def elsewhere() -> None:
    """Put another method's files in the place of one's own."""
    for file in (RUN / "methods/fedavg").iterdir():
        shutil.copy(file, IFCA)


SEED = "--federation digits --seed 0"
# what is done, which file and words the damage has, the stage and block of the command
DAMAGES: dict[str, tuple[Callable[[], Any], Path, str, str]] = {
    "missing file": (lambda: (IFCA / "history.parquet").unlink(), IFCA / "history.parquet", "is missing",
                     f"federate --config C {SEED} --method ifca"),
    "missing result": (lambda: shutil.rmtree(IFCA), IFCA / "history.parquet", "missing, with all files of",
                       f"federate --config C {SEED} --method ifca"),
    "truncated": (lambda: cut(RUN / "distance/loss.parquet"), RUN / "distance/loss.parquet", "is damaged: sha256",
                  f"distance --config C {SEED} --distance loss"),
    "changed byte": (lambda: flipped(IFCA / "models.safetensors"), IFCA / "models.safetensors", "is damaged: sha256",
                     f"federate --config C {SEED} --method ifca"),
    "changed sample": (lambda: flipped(Path("data/digits/samples.safetensors")),
                       Path("data/digits/samples.safetensors"), "is damaged: sha256", "download digits"),
    "a shard's byte": (lambda: flipped(WARMUP / "clients/00000.safetensors"), WARMUP / "clients/00000.safetensors",
                       "is damaged: sha256", f"warmup --config C {SEED} --warmup short"),
    "a shard too many": (lambda: shutil.copy(WARMUP / "common.safetensors", WARMUP / "clients/00007.safetensors"),
                         WARMUP / "clients/00007.safetensors", "the manifest doesn't list",
                         f"warmup --config C {SEED} --warmup short"),
    "manifest missing": (lambda: (RUN / "clusters/lcfl.manifest.json").unlink(), RUN / "clusters/lcfl.manifest.json",
                         "is missing", f"cluster --config C {SEED} --clustering lcfl"),
    "manifest damaged": (lambda: cut(RUN / "partition.manifest.json"), RUN / "partition.manifest.json",
                         "can't be read as JSON", f"partition --config C {SEED}"),
    "other settings": (other_settings, IFCA / "history.parquet", "other settings",
                       f"federate --config C {SEED} --method ifca"),
    "from elsewhere": (elsewhere, IFCA / "history.parquet", "belongs to name 'fedavg', not 'ifca'",
                       f"federate --config C {SEED} --method ifca"),
    "type of a column": (lambda: changed(IFCA / "history.parquet", of_strings), IFCA / "history.parquet",
                         "column 'correct': string found, double expected",
                         f"federate --config C {SEED} --method ifca"),
    "column missing": (lambda: changed(WARMUP / "history.parquet", lambda t: t.pop("loss")), WARMUP / "history.parquet",
                       "column 'loss': missing found, double expected", f"warmup --config C {SEED} --warmup short"),
    "more correct than there are": (lambda: changed(IFCA / "history.parquet", cell("correct", 9999.0, aggregated)),
                                    IFCA / "history.parquet", "correct 9999.0 found, 0 to n expected",
                                    f"federate --config C {SEED} --method ifca"),
    "negative loss": (lambda: changed(IFCA / "history.parquet", cell("loss", -1.0)), IFCA / "history.parquet",
                      "loss -1.0 found, 0 or more expected", f"federate --config C {SEED} --method ifca"),
    "loss that is no number": (lambda: changed(IFCA / "history.parquet", cell("loss", np.nan, aggregated)),
                               IFCA / "history.parquet", "loss nan found",
                               f"federate --config C {SEED} --method ifca"),
    "round missing in rounds": (lambda: changed(IFCA / "rounds.parquet", without(lambda t: t["round"] == 2)),
                                IFCA / "rounds.parquet", "round 2 (1 row in all): missing, 3 rows expected",
                                f"federate --config C {SEED} --method ifca"),
    "round missing in clusters": (lambda: changed(IFCA / "clusters.parquet", without(lambda t: t["round"] == 2)),
                                  IFCA / "clusters.parquet", "round 2, client 0 (7 rows in all): missing, 21 rows",
                                  f"federate --config C {SEED} --method ifca"),
    "round missing in history": (lambda: changed(IFCA / "history.parquet", without(lambda t: t["round"] == 2)),
                                 IFCA / "history.parquet", "round 2, client 0, split test (21 rows in all): missing",
                                 f"federate --config C {SEED} --method ifca"),
    "label that no model has": (lambda: changed(IFCA / "clusters.parquet", cell("cluster", 2)),
                                IFCA / "clusters.parquet", "cluster 2 found, 0 to 1 or -1 (none) expected",
                                f"federate --config C {SEED} --method ifca"),
    "label of a clustering": (lambda: changed(RUN / "clusters/lcfl.parquet", cell("cluster", 5)),
                              RUN / "clusters/lcfl.parquet", "cluster 5 found, 0 to ",
                              f"cluster --config C {SEED} --clustering lcfl"),
    "distance from itself": (lambda: changed(RUN / "distance/loss.parquet", cell("distance", 1.0, lambda t: (2, 2))),
                             RUN / "distance/loss.parquet", "from itself is 1.0; it has to be 0",
                             f"distance --config C {SEED} --distance loss"),
    "sample in two splits": (lambda: changed(RUN / "partition.parquet", double), RUN / "partition.parquet",
                             "twice found, once expected", f"partition --config C {SEED}"),
    "sample exchanged": (lambda: changed(RUN / "partition.parquet", cell("transform", "rotate180")),
                         RUN / "partition.parquet", "content ", f"partition --config C {SEED}"),
    "other models": (lambda: changed(RUN / "methods/lcfl/models.safetensors", other_model),
                     RUN / "methods/lcfl/models.safetensors", "evaluated again: correct ",
                     f"federate --config C {SEED} --method lcfl"),
    "labels of the models": (lambda: changed(IFCA / "models.safetensors", cell("labels", -1)),
                             IFCA / "models.safetensors", "labels -1 found, ",
                             f"federate --config C {SEED} --method ifca"),
    "results by class": (lambda: changed(IFCA / "classes.parquet", cell("n", 77)), IFCA / "classes.parquet",
                         " of history.parquet expected", f"federate --config C {SEED} --method ifca"),
    "trial": (lambda: flipped(RUN / "methods/swept/trials/1/rounds.parquet"),
              RUN / "methods/swept/trials/1/rounds.parquet", "is damaged",
              f"federate --config C {SEED} --method swept --trial 1"),
    "choice": (lambda: changed(RUN / "methods/swept/sweep.parquet", cell("accuracy_mean", 1.5)),
               RUN / "methods/swept/sweep.parquet", ": accuracy_mean 1.5 found, 0 to 1 expected",
               f"select --config C {SEED} --method swept"),
    "table of the report": (lambda: Path("results/tiny/tables/scores.csv").unlink(),
                            Path("results/tiny/tables/scores.csv"), "is missing", "report --config C"),
    "summary": (lambda: changed(Path("results/tiny/summary.parquet"), cell("accuracy_mean", 94.0)),
                Path("results/tiny/summary.parquet"), "accuracy_mean 94.0 found, 0 to 1 expected", "report --config C"),
}  # fmt: skip


def test_a_finished_study_is_sound(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(capsys, code=0)
    assert found["warnings"] == found["damages"] == found["waiting"] == []
    jobs = 1 + 3 + 2  # the warm-up, three methods, two trials; the choice among these has their models
    assert found["accuracies"] == jobs * 7 * 3  # members, splits


CLOCK = ("timing.parquet", "times.csv", "jobs.csv", "report.html", "results/tiny/manifest.json")  # what has times


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of data and results that are the same whenever they are made."""
    found = [path for top in ("data", "results") for path in (folder / top).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if not str(path).endswith(CLOCK)}


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", slow_but([*DAMAGES][::12], DAMAGES))
def test_each_damage_is_found_and_mended_by_its_command(
    name: str, study: Path, once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command leaves the very bytes of the sound study."""
    plant, file, words, command = DAMAGES[name]
    plant()
    found = verdict(capsys)["damages"]
    assert [(d["file"], d["command"].replace("results/tiny/settings.json", "C")) for d in found] == [
        (str(file), f"clusterfl {command}")
    ]
    assert words in found[0]["problem"]
    assert contents(study) != contents(once)
    assert main(shlex.split(found[0]["command"])[1:]) == 0
    assert contents(study) == contents(once)


def test_several_damages_come_in_the_order_of_the_chain(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What follows from a damaged file is mended after it, and what only waits for it is no damage."""
    flipped(IFCA / "models.safetensors")
    changed(RUN / "partition.parquet", cell("transform", "rotate180"))
    cut(RUN / "distance/loss.parquet")
    found = verdict(capsys)
    files = [RUN / "partition.parquet", RUN / "distance/loss.parquet", IFCA / "models.safetensors"]
    assert sorted(d["file"] for d in found["damages"]) == sorted(map(str, files))
    assert found["damages"][0]["file"] == str(files[0])
    assert {"federate fedavg digits seed 0", "warmup short digits seed 0", "report"} <= set(found["waiting"])
    assert found["accuracies"] == 0  # all of it comes from the damaged partition
    for damage in found["damages"]:
        assert main(shlex.split(damage["command"])[1:]) == 0
    verdict(capsys, code=0)


def test_an_input_that_is_another_by_now(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warm-up that was run again has other content: what follows is of the former one."""
    distance, place = RUN / "distance/loss.manifest.json", str(WARMUP / "clients")
    manifest = read_json(distance)
    write_json(distance, manifest | {"inputs": manifest["inputs"] | {place: "0123456789abcdef"}})
    write_json(WARMUP / "manifest.json", read_json(WARMUP / "manifest.json") | {"code": "0123456789abcdef"})
    found = verdict(capsys)
    assert [d["file"] for d in found["damages"]] == [str(RUN / "distance/loss.parquet")]
    assert f"{WARMUP / 'clients'} has changed since this was made from it" in found["damages"][0]["problem"]
    assert (
        "1 result made by other code than is installed, that of clusterfl.pipeline.stages.warmup"
        in found["warnings"][0]
    )
    assert found["waiting"] == []  # the distance that is there is what follows was made from


@pytest.mark.slow
def test_damaged_times(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No manifest lists them, for they have a clock; each byte is found nevertheless."""
    times, plan = IFCA / "timing.parquet", verify.named("tiny")
    whole = times.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 12):
        data = bytearray(whole)
        data[place] ^= 1 << int(place) % 8
        times.write_bytes(data)
        found = verify.verify(plan, plan.part(methods=["ifca"]), sample=0)
        seen = [d for d in found.damages if d.file == str(times)] + [w for w in found.warnings if str(times) in w]
        assert seen, f"byte {place} of {len(whole)}"
    (damage,) = [d for d in verdict(capsys)["damages"] if d["file"] == str(times)]
    subprocess.run(damage["command"], shell=True, check=True)
    verdict(capsys, code=0)


def of_other_code(*jobs: Any) -> None:
    for job in jobs:
        place = manifest_path(job.first)
        write_json(place, read_json(place) | {"code": "0123456789abcdef"})


@pytest.mark.slow
def test_results_of_other_code_are_taken_over(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the quickest of a kind has the same bytes again; what hasn't, or is damaged, is left as it is."""
    jobs = {str(job): job for job in verify.named("tiny").jobs()}
    own = {name: job for name, job in jobs.items() if job.stage not in ("download", "report")}
    of_other_code(*own.values())
    models, distance = RUN / "methods/fedavg/models.safetensors", RUN / "distance/loss.parquet"
    changed(models, cell("theta", 0.5))  # as other code may have made it
    whole = distance.read_bytes()
    cut(distance)
    found = adopt(verify.named("tiny"))
    left = dict(line.split(": ", 1) for line in found.left)
    assert left.keys() == {f"{name} digits seed 0" for name in ("federate fedavg", "distance loss", "cluster lcfl")}
    assert "other bytes (models.safetensors of federate fedavg" in left["federate fedavg digits seed 0"]
    assert "is damaged" in left["distance loss digits seed 0"] and "can't be read" in left["cluster lcfl digits seed 0"]
    assert set(found.taken) == own.keys() - left.keys() == {name for name, job in own.items() if is_done(job)}
    distance.write_bytes(whole)
    capsys.readouterr()
    assert main(["verify", "tiny", "--adopt", "--sample", "0"]) == 0
    said = capsys.readouterr().out
    assert f"2 results taken over, {len(own) - 3 + 2} were of the present code already, 1 left as they are" in said
    assert not list(Path("results").rglob(".adopt*"))


@pytest.mark.slow
def test_other_code_versions_and_no_times_are_no_damage(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("results/tiny/manifest.json")
    manifest = read_json(place)
    write_json(place, manifest | {"code": "0123456789abcdef", "versions": manifest["versions"] | {"pandas": "0.1"}})
    Path("results/tiny/timing.parquet").unlink()
    code, version, times = verdict(capsys, code=0)["warnings"]
    assert code.startswith("1 result made by other code than is installed, that of clusterfl.pipeline.stages.report")
    assert version.startswith("1 result made with pandas 0.1; ")
    assert "results/tiny/timing.parquet" in times


@pytest.mark.slow
def test_settings_that_a_run_keeps(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("results/tiny/settings.json")
    whole = place.read_bytes()
    write_json(place, read_json(place) | {"title": "another"})
    (damage,) = verdict(capsys, "--config", "config.yaml")["damages"]
    assert (damage["file"], damage["command"]) == (str(place), "clusterfl run --config config.yaml")
    assert "other settings found" in damage["problem"]
    cut(place)
    for arguments in (("tiny",), ("--config", "config.yaml")):
        (damage,) = verdict(capsys, *arguments)["damages"]
        assert damage["file"] == str(place) and "can't be read as JSON" in damage["problem"]
        assert "rebuild it" not in damage["problem"]  # beside the command, which is another
    assert main(shlex.split(damage["command"])[1:]) == 0
    assert place.read_bytes() == whole
    verdict(capsys, "--config", "config.yaml", code=0)


def test_where_modules_and_data_are_looked_for_is_no_other_setting(study: Path) -> None:
    """Also not after a run by the settings that an earlier one kept, which lie in another folder."""
    plan = Plan.from_files([Path("config.yaml")])
    write_json(plan.snapshot, read_json(plan.snapshot) | {"modules": ["results/tiny"], "mirror": "/data"})
    assert not list(verify._other_settings(plan))
    cut(plan.snapshot)
    (said,) = verify._other_settings(plan)
    assert said.startswith("can't be read as JSON") and "rebuild it" not in said


def test_a_part_of_a_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flipped(IFCA / "models.safetensors")
    found = verdict(capsys, "tiny", "--method", "fedavg", "--sample", "2", code=0)
    assert (found["results"], found["accuracies"]) == (3, 2 * 3)
    assert verdict(capsys, "tiny", "--method", "fedavg", "--sample", "0", code=0)["accuracies"] == 0
    verdict(capsys, "tiny", "--method", "ifca")


def test_a_study_that_was_never_run(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_yaml(Path("config.yaml"), tiny())
    assert main(["verify"]) == 1
    (damage, summary) = capsys.readouterr().out.splitlines()
    assert damage.startswith(
        "results/tiny: never run: none of its 12 results exists; rebuild it: clusterfl run --config"
    )
    assert summary.startswith("study 'tiny': 1 damage")


def test_an_unknown_name_is_reported_the_nearest(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("tinny", "did you mean 'tiny'? allowed: tiny"), ("../tiny", "no study '../tiny'")):
        assert main(["verify", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["verify", "tiny", "--config", "config.yaml"]) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.slow
def test_commands_take_a_finished_study_by_name_or_folder(
    study: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the settings that it was run with, whatever has become of its configuration; and as JSON."""

    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    wanted = said("summary")
    Path("config.yaml").unlink()
    for name in ("tiny", "results/tiny", "./results/tiny/", os.fspath(study / "results/tiny")):
        assert said("summary", name) == wanted
    found = json.loads(said("summary", "tiny", "--json"))
    assert found["page"] == "results/tiny/report.html" and found["findings"]["digits"][0] in wanted
    assert {row["method"] for row in found["rows"]} == {"fedavg", "ifca", "lcfl", "swept"}
    assert found["rows"][0]["accuracy_std"] is None  # of one seed
    table = said("assign", "tiny", "--method", "ifca").splitlines()
    clients = json.loads(said("assign", "results/tiny", "--method", "ifca", "--json"))
    assert [*clients[0]] == table[0].split() and len(clients) == 1
    Path("results/tiny/summary.parquet").unlink()
    assert main(["report", "results/tiny"]) == 0 and Path("results/tiny/summary.parquet").exists()
    for words in (["summary"], ["report"], ["assign"]):
        assert main([*words, "tiny", "--config", "config.yaml"]) == 2
        assert "both STUDY ('tiny') and --config given" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["summary", os.fspath(study / "results/tiny")]) == 2
    assert f"change the folder first: cd {study}" in capsys.readouterr().err


def test_a_line_for_each_damage_and_a_summary(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (IFCA / "rounds.parquet").unlink()
    assert main(["verify", "tiny"]) == 1
    damage, summary = capsys.readouterr().out.splitlines()
    command = f"clusterfl federate --config results/tiny/settings.json {SEED} --method ifca"
    assert damage == f"{IFCA}/rounds.parquet: is missing; rebuild it: {command}"
    assert summary.startswith("study 'tiny': 1 damage (12 results, ")


# By hand.


def test_the_sample_has_each_model_before_a_second_client_of_any() -> None:
    labels = np.array([0, 0, 0, 0, 1, -1, 2, 1])
    assert sorted(labels[chosen(labels, 3)]) == [0, 1, 2]
    assert sorted(labels[chosen(labels, 5)]) == [0, 0, 1, 1, 2]
    assert chosen(labels, 99).tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert len(chosen(labels, 0)) == len(chosen(np.full(3, -1), 4)) == 0


def test_tolerances() -> None:
    """One of 30 samples may be another on another machine, two of 150; none on the same."""
    said = pd.DataFrame({"n": [30, 30, 150, 150, 5], "correct": [20.0, 20, 100, 100, 3], "loss": [0.5] * 5})
    n, loss = said["n"].to_numpy(), np.array([0.5, 0.5, 0.5, 0.5, 0.51])
    correct = np.array([21.0, 22, 102, 103, 3])
    assert equal(said, n, correct, loss, same=False).tolist() == [True, False, True, False, False]
    assert equal(said, n, said["correct"].to_numpy(), loss, same=True).tolist() == [True] * 4 + [False]
    assert not equal(said, n, correct, loss, same=True).any()


def test_the_tests_that_the_page_names_are_there() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = [line for line in text.partition("| fault |")[2].splitlines()[2:] if line.startswith("| ")]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(slow\))?", row) for row in rows]
    assert len(named) > 10 and all(named)
    slow = {
        (file, node.name): "pytest.mark.slow" in map(ast.unparse, node.decorator_list)
        for file in {file for row in named for file, _, _ in row}
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    for file, function, said in (found for row in named for found in row):
        assert slow[file, function] == bool(said), function
