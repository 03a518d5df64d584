"""The stages on a small study: same bytes however the work is cut, and the same numbers as in a notebook."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import undrawn

import clusterfl
from clusterfl.cli import main
from clusterfl.config import loading
from clusterfl.pipeline import revisions
from clusterfl.pipeline.execute import execute, is_done
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.store import read_table, read_tensors

SMALL = {
    "study": "small",
    "seeds": {"runs": [0, 3]},
    "model": {"model": "mlp", "hidden": [8]},
    "training": {"rounds": 4, "participation": 0.6, "evaluate_every": 2, "epochs": 2},
    "federations": {
        "turned": {
            "dataset": "digits",
            "partition": {"scheme": "rotated", "clients": 12, "angles": [0, 180], "validation": 0.1},
        }
    },
    "warmups": {"two": {"rounds": 2}},
    "distances": {
        "loss": {"metric": "loss", "warmup": "two", "data": "all"},
        "gradcos": {"metric": "gradient-cosine", "warmup": "two"},
    },
    "clusterings": {
        "loss": {"clusterer": "hierarchical", "distance": "loss", "clusters": 2},
        "gradcos": {"clusterer": "spectral", "distance": "gradcos", "clusters": "silhouette"},
    },
    "methods": {
        "fedavg": {"method": "fedavg"},
        "local": {"method": "local"},
        "ifca": {"method": "ifca", "clusters": 2},
        "lcfl": {"method": "lcfl", "clustering": "loss"},
        "members": {"method": "lcfl", "clustering": "gradcos", "start": "members"},
    },
}


def study(folder: Path, **changes) -> Plan:
    """Write the study into a folder and return its plan."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(SMALL | changes))
    return Plan.from_settings(loading.read([path]), [path])


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every result but times and the report."""
    files = [p for p in folder.rglob("*") if p.is_file() and "timing" not in p.name]
    skipped = ("report.html", "tables", "figures", "config.yaml", "settings.json")
    kept = [p for p in files if not any(s in p.relative_to(folder).parts for s in skipped)]
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in kept
        if p != folder / "results/small/manifest.json"
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The study, run stage by stage by the command line."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        undrawn(patch)
        study(folder)
        assert main(["run"]) == 0
    return folder


@pytest.mark.usefixtures("without_figures")
@pytest.mark.slow
def test_same_bytes_however_the_work_is_cut(done, tmp_path, monkeypatch):
    """Chunks of 2 clients in 2 workers, all models in files, jobs in the opposite order where they are independent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
    monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", 20_000)  # a few models
    plan = study(tmp_path, engine={"chunk": 2})
    waiting = list(plan.jobs())[::-1]
    while waiting:
        job = next(j for j in waiting if all(p.exists() for p in j.inputs.values()))
        execute(job, threads=2, chunk=2)
        waiting.remove(job)
    one, other = digests(done), digests(tmp_path)
    del one["results/small/study.json"], other["results/small/study.json"]  # it holds the chunk that was asked for
    assert len(one) > 80
    assert one == other


def test_nothing_is_done_twice(done, monkeypatch, capsys):
    monkeypatch.chdir(done)
    before = digests(done)
    assert main(["run"]) == 0
    assert capsys.readouterr().err == ""
    assert digests(done) == before
    plan = Plan.from_settings(loading.read([Path("config.yaml")]), [Path("config.yaml")])
    assert all(is_done(job) for job in plan.jobs())


def test_a_new_revision_asks_for_what_uses_the_part_and_all_that_follows(done, monkeypatch):
    """Also where what the part made would have the same bytes as before, so that its inputs tell nothing."""
    monkeypatch.chdir(done)
    monkeypatch.setitem(revisions.REVISIONS, "metric loss", 2)
    plan = Plan.from_settings(loading.read([Path("config.yaml")]), [Path("config.yaml")])
    stale = {(job.stage, job.name) for job in plan.jobs() if not is_done(job)}
    assert stale == {("distance", "loss"), ("cluster", "loss"), ("federate", "lcfl"), ("report", None)}
    uses = [job for job in plan.jobs() if job.stage == "distance" and job.name == "loss"]
    now = [job.code_digest for job in uses]
    monkeypatch.setitem(revisions.REVISIONS, "metric loss", 1)
    assert not {job.code_digest for job in uses} & set(now)  # by which Snakemake sees it


def test_files_are_as_documented(done):
    run = done / "results/small/turned/seed3"
    partition = read_table(run / "partition.parquet")
    assert list(partition) == ["sample", "client", "split", "role", "transform", "true_cluster"]
    assert set(partition["split"]) == {"train", "validation", "test"}
    history = read_table(run / "methods/lcfl/history.parquet")
    assert list(history) == ["round", "client", "cluster", "split", "evaluation", "n", "correct", "loss"]
    assert sorted(set(history["round"])) == [0, 2, 4]
    rounds = read_table(run / "methods/lcfl/rounds.parquet")
    costs = ["bytes_down", "bytes_up", "local_steps", "client_forwards"]
    assert list(rounds) == ["round", *costs, "clusters", "excluded", "epsilon"]
    timing = read_table(run / "methods/lcfl/timing.parquet")
    assert timing["round"].tolist() == [0, 3, 4]  # the whole job, then its own rounds
    assert (timing["server_seconds"][1:] < timing["seconds"][1:]).all() and timing["seconds"][1:].sum() < timing[
        "seconds"
    ][0]
    assert rounds["round"].tolist() == [1, 2, 3, 4]  # the warm-up's two rounds, then the method's own
    assert rounds["client_forwards"][1] == 12 * 1797 // 1  # 12 models on all 1,797 samples: metric data `all`
    assert read_table(run / "methods/lcfl/clusters.parquet")["round"].min() == 3
    classes = read_table(run / "methods/lcfl/classes.parquet")
    final = (history["round"] == 4) & (history["split"] == "test")
    assert classes["correct"].sum() == history["correct"][final].sum()
    assert classes["n"].sum() == history["n"][final].sum()
    models = read_tensors(run / "methods/ifca/models.safetensors")
    assert models["theta"].shape == (2, 64 * 8 + 8 + 8 * 10 + 10)
    assert {"labels", "participations", "last_label"} < set(models)
    clients = read_tensors(run / "warmup/two/clients/00000.safetensors")
    assert clients["theta"].shape[0] == clients["last_gradient"].shape[0] == 12
    distance = read_table(run / "distance/loss.parquet")["distance"]
    assert distance.shape == (12, 12)
    scores = read_table(run / "clusters/loss.scores.parquet")
    assert scores["k"].tolist() == [2] and scores["chosen"].tolist() == [True]
    scores = read_table(run / "clusters/gradcos.scores.parquet")
    assert list(scores) == ["k", "silhouette", "eigengap", "chosen"]
    assert scores["k"].tolist() == list(range(1, 11))
    assert scores["chosen"].tolist() == [k == 1 + np.nanargmax(scores["silhouette"]) for k in range(1, 11)]
    manifest = json.loads((run / "clusters/gradcos.manifest.json").read_text())
    clusters = read_table(run / "clusters/gradcos.parquet")["cluster"]
    assert manifest["k"] == scores["k"][scores["chosen"]][0] == manifest["clusters"] == len(set(clusters))


def test_manifests_say_where_a_file_comes_from(done):
    manifest = json.loads((done / "results/small/turned/seed0/methods/lcfl/manifest.json").read_text())
    identity = {key: manifest[key] for key in ("stage", "study", "federation", "seed", "name")}
    assert identity == {"stage": "federate", "study": "small", "federation": "turned", "seed": 0, "name": "lcfl"}
    assert set(manifest["files"]) == {
        "history.parquet", "classes.parquet", "rounds.parquet", "clusters.parquet", "models.safetensors",
    }  # fmt: skip
    assert manifest["backend"] == "dense" and manifest["versions"]["torch"]
    assert not {"host", "date", "seconds"} & set(manifest)


def test_a_method_s_own_network_trains_as_if_it_were_the_study_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, keys = {"model": "mlp", "hidden": [5]}, ("history", "clusters", "models")
    federations = SMALL["federations"] | {"same": SMALL["federations"]["turned"] | {"model": network}}
    methods = {"own": {"method": "ifca", "clusters": 2, "model": network}, "ifca": SMALL["methods"]["ifca"]}
    plan = study(tmp_path, federations=federations, methods=methods)
    own, same, other = (
        plan.job("federate", *place) for place in (("turned", 0, "own"), ("same", 0, "ifca"), ("turned", 0, "ifca"))
    )
    plan.save()
    for job in plan.jobs([own, same, other]):
        execute(job)
    assert [own.outputs[key].read_bytes() for key in keys] == [same.outputs[key].read_bytes() for key in keys]
    assert own.outputs["history"].read_bytes() != other.outputs["history"].read_bytes()
    part = ["--federation", "turned", "--method", "own", "--seed", "0"]
    assert main(["verify", "--config", "config.yaml", *part, "--sample", "12"]) == 0  # evaluated again by this network


def test_clusters_in_a_run_start_from_the_warm_up(done):
    """The one-shot method's first rounds are FedAvg's own, to the bit."""
    run = done / "results/small/turned/seed0/methods"
    lcfl, fedavg = (read_table(run / name / "history.parquet") for name in ("lcfl", "fedavg"))
    early = [h["round"] <= 2 for h in (lcfl, fedavg)]
    for column in ("client", "split", "n", "correct", "loss"):
        np.testing.assert_array_equal(lcfl[column][early[0]], fedavg[column][early[1]])


def test_a_notebook_gives_the_workflows_numbers(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from clusterfl.models import MODELS

    federation = clusterfl.load("digits", "rotated", seed=3, clients=12, angles=[0, 180], validation=0.1)
    result = clusterfl.run(
        "ifca", federation, lambda: MODELS["mlp"]((1, 8, 8), 10, hidden=[8]),
        clusters=2, seed=3, training=SMALL["training"],
    )  # fmt: skip
    kept = read_table(done / "results/small/turned/seed3/methods/ifca/history.parquet")
    for column in kept:
        np.testing.assert_array_equal(result.history[column].to_numpy(), kept[column])


def test_a_notebook_chooses_the_workflows_number_of_clusters(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from clusterfl.models import MODELS

    federation = clusterfl.load("digits", "rotated", seed=3, clients=12, angles=[0, 180], validation=0.1)
    result = clusterfl.run(
        "lcfl", federation, lambda: MODELS["mlp"]((1, 8, 8), 10, hidden=[8]), seed=3,
        training=SMALL["training"] | {"rounds": 3}, warmup={"rounds": 2, "epochs": 2},
        metric="gradient-cosine", clusterer="spectral", clusters="silhouette",
    )  # fmt: skip
    kept = read_table(done / "results/small/turned/seed3/clusters/gradcos.parquet")
    final = result.clusters[result.clusters["round"] == 3]
    np.testing.assert_array_equal(final["cluster"], kept["cluster"])


def test_jobs_are_commands_that_can_be_pasted(done, monkeypatch, capsys):
    monkeypatch.chdir(done)
    assert main(["jobs"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert "clusterfl federate --config config.yaml --federation turned --seed 3 --method ifca" in commands
    kept = digests(done)
    assert main(shlex.split(commands[-2])[1:]) == 0
    assert digests(done) == kept
