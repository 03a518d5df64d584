"""Losses that several jobs measure: whatever their number, the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, measured_briefly, put, tiny, write_yaml

from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.estimate.estimate import Estimate
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.digest import of_file
from clusterfl.storage.store import read_table


def settings(shards: int = 1) -> dict[str, Any]:
    study = put(tiny(), "distances.loss.shards", shards)
    put(study, "distances.loss.data", "all")
    for name in ("fedavg", "local", "ifca", "lcfl-diffnorm"):
        put(study, f"methods.{name}", ...)
    put(study, "clusterings.lcfl-diffnorm", ...)
    put(study, "distances.diffnorm", ...)
    return put(study, "baseline", ...)


def run(folder: Path, shards: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_yaml(folder / "config.yaml", settings(shards))
    assert main(["run", "--federation", "digits"]) == 0
    return folder / "results/tiny/digits/seed0"


def test_the_number_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {shards: run(tmp_path / str(shards), shards, monkeypatch) for shards in (1, 3, 8)}
    parts = [read_table(found[3] / f"losses/loss/{n}/losses.parquet")["losses"].shape for n in (1, 2, 3)]
    assert parts == [(8, 3), (8, 3), (8, 2)]
    names = [p.relative_to(found[1]) for p in found[1].rglob("*.parquet") if "timing" not in p.name]
    names.append(Path("methods/lcfl/models.safetensors"))
    for shards in (3, 8):
        assert {n: of_file(found[shards] / n) for n in names} == {n: of_file(found[1] / n) for n in names}
    assert main(["verify", "tiny", "--federation", "digits"]) == 0


def test_verify_finds_a_damaged_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = run(tmp_path / "study", 2, monkeypatch) / "losses/loss/2/losses.parquet"
    place.write_bytes(place.read_bytes()[:-9])
    capsys.readouterr()
    assert main(["verify", "tiny", "--federation", "digits"]) == 1
    said = capsys.readouterr().out
    command = (
        "clusterfl losses --config results/tiny/settings.json --federation digits --seed 0 --distance loss --shard 2"
    )
    assert str(place.relative_to(tmp_path / "study")) in said and command in said
    assert main(command.split()[1:]) == 0 and main(["verify", "tiny", "--federation", "digits"]) == 0


def test_more_shards_than_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "config.yaml", settings(9))
    assert main(["run"]) == 2


@pytest.mark.parametrize(
    "block, why",
    [
        ({"metric": "loss", "warmup": "short", "shards": 2, "landmarks": 4}, "landmarks make that cheap"),
        ({"metric": "parameters", "warmup": "short", "shards": 2}, "this metric needs no losses"),
    ],
)
def test_shards_of_nothing_to_share(block: dict[str, Any], why: str) -> None:
    with pytest.raises(
        UserError, match=f"distances.loss.shards: 2 jobs would share the measuring of losses, but {why}"
    ):
        Plan.from_settings(put(settings(), "distances.loss", block))


@pytest.mark.parametrize(
    "shards, shard, said",
    [
        (1, 1, "has no shards"),
        (3, None, "--shard: is missing"),
        (3, 4, "'4' isn't one of them; distance 'loss' has shards 1 to 3"),
    ],
)
def test_unknown_shards(shards: int, shard: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Plan.from_settings(settings(shards)).job("losses", "digits", 0, "loss", shard)


@pytest.mark.slow
def test_the_workflow_plans_a_job_for_each(tmp_path: Path) -> None:
    write_yaml(tmp_path / "config.yaml", settings(4))
    for name in ("Snakefile", "workflow"):
        (tmp_path / name).symlink_to(ROOT / name)
    listed = subprocess.run(["snakemake", "--dry-run", "--cores", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    counts = dict(line.split()[:2] for line in listed.stdout.splitlines() if len(line.split()) == 2)
    assert counts["losses"] == "4" and counts["distance"] == "1"


def test_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measured_briefly(monkeypatch)
    rows = Estimate(Plan.from_files([write_yaml(tmp_path / "config.yaml", settings(4))])).rows
    assert [row.name for row in rows if row.stage == "losses"] == [f"loss, shard {n}" for n in (1, 2, 3, 4)]
    assert all(row.seconds is not None and row.seconds > 0 for row in rows)
