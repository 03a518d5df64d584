"""The studies of LCFL's and RR-Cluster's tables: sound, as the papers have it, reduced only where they say."""

from __future__ import annotations

import csv
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files

import pytest
from conftest import ROOT

from clusterfl.config import loading
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan

FOLDER = ROOT / "workflow/studies"
PAPER_OF = {"lcfl": "lcfl", "rr_cluster": "rr_cluster"}


@lru_cache
def plan(name: str, lite: bool = False) -> Plan:
    return Plan.from_files([FOLDER / f"{name}.yaml", *([FOLDER / f"{name}.lite.yaml"] if lite else [])])


def settings(name: str, federation: str, method: str, lite: bool = False, stage: str = "federate") -> dict:
    return plan(name, lite).job(stage, federation, 0, method).settings


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("name", PAPER_OF)
def test_every_cell_of_the_claims_is_run_or_said_to_be_absent(name, lite):
    claims = plan(name, lite).study.claims
    rows = csv.DictReader((files("clusterfl.claims") / "data" / f"{PAPER_OF[name]}.csv").read_text().splitlines())
    for row in rows:
        cell = f"{row['dataset']}/{row['setting']}"
        if cell in claims.cells:
            place = claims.cells[cell]
            method = claims.names.get(row["method"], row["method"]) + place.suffix
            if method in plan(name, lite).on(place.federation).methods:
                continue
        where = f"{cell}/{row['method']}"
        assert any(fnmatchcase(where, glob) for glob in claims.absent), where


@pytest.mark.parametrize("name", PAPER_OF)
def test_the_reduced_study_keeps_methods_and_asks_for_the_cpu(name):
    paper, lite = plan(name).study, plan(name, True).study
    assert (lite.study, lite.engine.device) == (f"{name}-lite", "cpu")
    assert lite.seeds.runs == [0, 1, 2] and lite.score == paper.score
    for federation in lite.federations:
        before, after = plan(name).on(federation).methods, plan(name, True).on(federation).methods
        assert set(before) <= set(after)
        for method in before:  # K, start, first round, B, budget, delta, accounting
            job, own = settings(name, federation, method, True), settings(name, federation, method)
            assert (job["method"], job["options"], job["clustering"]) == (
                own["method"],
                own["options"],
                own["clustering"],
            )
            if "privacy" in own:
                assert job["privacy"] == own["privacy"] | {"clip": 0.3}
            if federation != "shakespeare":
                assert job.get("rebalance") == own.get("rebalance")
            changed = {k for k in own["training"] if own["training"][k] != job["training"][k]}
            assert changed <= {"lcfl": {"rounds", "epochs"}, "rr_cluster": {"rounds", "epochs", "learning_rate"}}[name]


LCFL = {  # participation, rate, epochs, rounds, k, warm-up participation: Table I, released configuration
    "rotmnist-1200": (1.0, 0.02, 10, 65, 4, 1.0),
    "rotmnist-2400": (1.0, 0.02, 10, 65, 4, 1.0),
    "femnist": (0.3, 0.03, 5, 105, 10, 0.6),
    "femnist-k5": (0.3, 0.03, 5, 105, 5, 0.6),
    "rotcifar10": (0.1, 0.03, 5, 205, 2, 0.6),
    "rotcifar10-static": (0.1, 0.03, 5, 205, 2, 0.6),
}


@pytest.mark.parametrize("federation", LCFL)
def test_lcfl_has_the_released_hyperparameters(federation):
    participation, rate, epochs, rounds, k, wider = LCFL[federation]
    assert set(plan("lcfl").study.federations) == set(LCFL)
    assert plan("lcfl").study.seeds.runs == [0, 1, 2, 3, 4]
    cifar = federation.startswith("rotcifar10")
    for method in ("fedavg", "local", "ifca", "lcfl"):
        job = settings("lcfl", federation, method)
        training = job["training"]
        assert (training["participation"], training["learning_rate"], training["epochs"]) == (
            participation,
            rate,
            epochs,
        )
        assert (training["batch_size"], training["rounds"], training["weights"]) == (20, rounds, "uniform")
        assert (training["optimizer"], training["momentum"], training["weight_decay"]) == ("sgd", 0, 0)
        assert (training["schedule"], training["decay"]) == (("participation", 0.99) if cifar else ("constant", 1))
        assert "stale" in training["evaluations"]
        assert training["divisor"] == ("ratio" if method == "lcfl" else "participants")
        assert job["model"]["model"] == ("lcfl-cifar-cnn" if cifar else "lcfl-cnn")
    ifca = settings("lcfl", federation, "ifca")["options"]
    assert (ifca["clusters"], ifca["start"], ifca["first_round"]) == (k, "identical", "random")
    assert settings("lcfl", federation, "lcfl")["options"] == {"start": "common", "sampling": "clusters"}
    cluster = settings("lcfl", federation, "loss", stage="cluster")
    assert (cluster["clusters"], cluster["options"]["method"], cluster["options"]["init"]) == (
        k,
        "alternate",
        "heuristic",
    )
    distance = settings("lcfl", federation, "loss", stage="distance")
    # AutoAugment's images where the released code has them; elsewhere the same job as `data: all`
    assert distance["data"] == ("augmented" if federation == "rotcifar10" else "all")
    assert ("seed" in distance) == (federation == "rotcifar10")
    warmup = settings("lcfl", federation, "released", stage="warmup")["training"]
    assert (warmup["rounds"], warmup["participation"]) == (5, wider)
    score = plan("lcfl").study.score
    assert (score.evaluation, score.average, score.smooth, score.ddof) == ("stale", "samples", 2, 1)


def test_lcfl_as_its_text_has_it():
    for federation in ("rotmnist-1200", "rotmnist-2400", "rotcifar10", "femnist"):
        for method in ("fedavg-paper", "local-paper", "ifca-paper", "lcfl-paper"):
            training = settings("lcfl", federation, method)["training"]
            assert (training["schedule"], training["decay"]) == ("round", 0.99)
            assert training["learning_rate"] == (0.03 if federation == "femnist" else 0.02)
        assert settings("lcfl", federation, "ifca-paper")["options"]["clusters"] == 10
        warmup = settings("lcfl", federation, "paper", stage="warmup")["training"]
        assert (warmup["rounds"], warmup["steps"], warmup["epochs"], warmup["batch_size"]) == (1, 10, None, "full")
        assert (warmup["participation"], warmup["schedule"]) == (1.0, "constant")
        assert settings("lcfl", federation, "paper", stage="cluster")["clusters"] == 10
        assert settings("lcfl", federation, "paper", stage="distance")["data"] == "train"


def test_the_discrepancies_of_lcfl_are_one_difference_each():
    job = {m: settings("lcfl", "rotmnist-1200", m, True) for m in ("lcfl", "lcfl-ten", "lcfl-train", "lcfl-k10")}
    assert all(
        j["training"] == job["lcfl"]["training"] and j["options"] == job["lcfl"]["options"] for j in job.values()
    )
    released = settings("lcfl", "rotmnist-1200", "released", True, "warmup")
    ten = settings("lcfl", "rotmnist-1200", "ten", True, "warmup")
    assert ten["training"] == released["training"] | {"rounds": 10} and released["training"]["rounds"] == 5
    distance = {n: settings("lcfl", "rotmnist-1200", n, True, "distance") for n in ("loss", "loss-train")}
    assert distance["loss-train"] == distance["loss"] | {"data": "train"}
    clusters = {n: settings("lcfl", "rotmnist-1200", n, True, "cluster") for n in ("loss", "loss-k10")}
    assert clusters["loss-k10"] == clusters["loss"] | {"clusters": 10}
    local = {m: settings("lcfl", "femnist", m, True) for m in ("local", "local-alone")}
    trained = {"participation": 1.0, "evaluations": ["aggregated", "local", "stale"]}
    assert local["local-alone"] == local["local"] | {"training": local["local"]["training"] | trained}
    side = plan("lcfl", True).study.claims.discrepancies["local-loop"].released
    assert (side.method, side.score) == ("local-alone", {"evaluation": "local", "smooth": 1})


BUDGETS = {"2": 2, "4": 4, "8": 8, "16": 16, "32": 32, "inf": float("inf")}


@pytest.mark.parametrize("lite", [False, True])
def test_rr_cluster_has_its_budgets_and_minima(lite):
    study = plan("rr_cluster", lite)
    for minimum, prefix in ((4, "rr-ifca-b4"), (6, "rr-ifca-b6"), (8, "rr-ifca"), (None, "dp-ifca")):
        for name, epsilon in BUDGETS.items():
            job = settings("rr_cluster", "fashion-balanced", f"{prefix}-eps{name}", lite)
            privacy = study.on("fashion-balanced").methods[f"{prefix}-eps{name}"].privacy
            assert (privacy.epsilon, privacy.delta, privacy.accounting) == (epsilon, 1e-3, "theorem-4.2")
            assert (privacy.sensitivity, privacy.identifier_share) == ("paper", 0.5)
            assert job.get("rebalance") == (minimum and {"minimum": minimum})
            assert (job["options"]["clusters"], job["training"]["participation"]) == (4, 0.064)
            assert (job["training"]["weights"], job["training"]["sampler"]) == ("uniform", "fixed")
    for name in ("easy", "hard"):
        job = settings("rr_cluster", f"linear-balanced-{name}", "rr-ifca", lite)
        assert job["rebalance"] == {"minimum": 10} and "privacy" not in job and job["training"]["rounds"] == 100


def test_rr_clusters_training_at_the_papers_scale():
    training = settings("rr_cluster", "fashion-imbalanced", "dp-fedavg-eps4")["training"]
    assert (training["learning_rate"], training["epochs"], training["rounds"]) == (1e-3, 20, 100)
    assert plan("rr_cluster").study.methods["dp-fedavg-eps4"].privacy.clip == 0.1


def test_the_sensitivities_of_rr_cluster_are_one_difference():
    for epsilon in (4, 8):
        own, joint = (
            settings("rr_cluster", "fashion-balanced", f"rr-ifca{s}-eps{epsilon}", True) for s in ("", "-joint")
        )
        assert joint == own | {"privacy": own["privacy"] | {"sensitivity": "joint"}}


def test_null_in_a_later_file_drops_a_block(tmp_path):
    (tmp_path / "a.yaml").write_text("federations: {x: {base: a, model: {model: mlp}}, y: {base: b}}\nmirror: here")
    (tmp_path / "b.yaml").write_text("federations: {y: null, x: {model: null}}\nmirror: null")
    merged = loading.read([tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert merged == {"federations": {"x": {"base": "a"}}, "mirror": None}  # null in the place of a value stays one
    (tmp_path / "b.yaml").write_text("federations: {z: null}")  # nothing to drop: reported, not passed over
    base = FOLDER / "reduced/model-collapse.yaml"
    with pytest.raises(UserError, match=r"federations\.z: found None"):
        loading.load(loading.read([base, tmp_path / "b.yaml"]))
