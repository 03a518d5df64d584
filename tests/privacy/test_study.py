"""The blocks in a study: what the stages write, what the report shows, what `check` says."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import put, tiny

import clusterfl
from clusterfl.errors import UserError
from clusterfl.models import MODELS
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, read_table, read_tensors

BLOCK = {"clip": 0.1, "epsilon": 8, "delta": 1e-2, "accounting": "theorem-4.2"}


def study():
    settings = tiny() | {"warmups": {}, "distances": {}, "clusterings": {}, "baseline": "ifca"}
    settings["training"] |= {"weights": "uniform"}
    ifca = {"method": "ifca", "clusters": 2}
    settings["methods"] = {
        "ifca": ifca,
        "rr": ifca | {"rebalance": {"minimum": 3}, "privacy": BLOCK},
        "rr-inf": ifca | {"rebalance": {"minimum": 3}, "privacy": BLOCK | {"epsilon": math.inf}},
        "dp-fedavg": {"method": "fedavg", "training": {"participation": 0.5}, "privacy": BLOCK | {"epsilon": 2}},
        "proven": ifca | {"privacy": {"clip": 0.1, "epsilon": 8, "delta": 1e-2}},
        "noise": ifca | {"privacy": {"clip": 0.1, "accounting": "none", "identifier_noise": 0.3, "update_noise": 1}},
        "swept": ifca | {"sweep": {"rebalance": [{"minimum": 1}, {"minimum": 4}]}, "privacy": BLOCK},
    }
    # Tests change single values: the block that methods share must not be one object.
    return put(copy.deepcopy(settings), "federations.digits.partition.validation", 0.2)


@pytest.mark.slow
def test_a_study_with_privacy(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan.from_settings(study())
    for job in plan.jobs():
        execute(job)
    assert "choosing among trials by their score costs privacy that isn't counted" in capsys.readouterr().err
    job = plan.job("federate", "digits", 0, "rr")
    said = read_json(manifest_path(job.outputs["history"]))["privacy"]
    rounds = read_table(job.outputs["rounds"])
    assert said["accounting"] == "theorem-4.2" and said["delta"] == 1e-2 and said["sensitivity_updates"] == 0.2
    assert rounds["epsilon"][-1] == pytest.approx(8) == said["epsilon"] and (np.diff(rounds["epsilon"]) > 0).all()
    sizes = read_tensors(job.outputs["models"], ["rebalanced"])["rebalanced"]
    assert sizes.shape == (3, 2, 2) and (sizes[:, 1] >= 3).all() and (sizes.sum(axis=2) == 8).all()
    summary = read_table(Path("results/tiny/summary.parquet"))
    assert dict(zip(summary["method"], summary["epsilon"], strict=True)) == pytest.approx(
        {"ifca": math.nan, "rr": 8, "rr-inf": math.inf, "dp-fedavg": 2, "swept": 8, "proven": 8, "noise": math.nan},
        nan_ok=True,
    )
    assert dict(zip(summary["method"], summary["epsilon_proven"], strict=True)) == {
        "ifca": None, "rr": False, "rr-inf": False, "dp-fedavg": False, "swept": False, "proven": True, "noise": False
    }  # fmt: skip
    least = dict(zip(summary["method"], summary["epsilon_at_least"], strict=True))
    assert [name for name, value in least.items() if value > 0] == ["dp-fedavg"]  # there clients are drawn
    assert said["counted_by"] == "the bound as printed" and not said["proven"]
    swept = read_json(manifest_path(plan.job("federate", "digits", 0, "swept", 1).outputs["history"]))["privacy"]
    assert swept["not_counted"] == "the choice among trials by their scores"
    page = Path("results/tiny/report.html").read_text(encoding="utf-8")
    said = ("Each guarantee is of one run", "Not every method here has a guarantee", "true epsilon at least")
    assert all(text in page for text in said)
    columns = page[page.index('aria-label="Privacy of each method"') :].split("</thead>")[0]
    assert re.findall(r">([a-z ]+)</th>", columns)[:5] == ["method", "guarantee", "epsilon", said[2], "delta"]
    assert "where models of\nseveral seeds are published, epsilon and delta add up" in page
    promises = ("no: as printed by the paper", "no guarantee", "yes")
    assert all(f"<td>{text}</td>" in page for text in promises)
    assert "<h3>Rebalancing</h3>" in page and "<h3>Privacy</h3>" in page and "theorem-4.2" in page
    drawn = {path.stem for path in Path("results/tiny/figures").glob("*.svg")}
    assert {"epsilon-digits", "budgets-digits", "sizes-rr-digits", "sizes-rr-inf-digits", "sizes-swept-digits"} <= drawn


def test_methods_without_the_blocks_have_jobs_as_before() -> None:
    plan = Plan.from_settings(study())
    plain, wrapped = (plan.job("federate", "digits", 0, name) for name in ("ifca", "rr"))
    assert not {"rebalance", "privacy"} & plain.settings.keys()
    assert wrapped.settings["rebalance"] == {"minimum": 3} and wrapped.settings["privacy"]["clip"] == 0.1
    assert "clusterfl.privacy.wrapper" in wrapped.modules and "clusterfl.privacy.wrapper" not in plain.modules


@pytest.mark.parametrize(
    "place, value, said",
    [
        ("rr.privacy.accounting", "poisson", r"methods.rr.training.sampler: 'fixed', but privacy.accounting: poisson"),
        ("rr.training", {"diverged": "exclude"}, r"methods.rr.training.diverged: 'exclude' changes how many"),
        ("rr.training", {"largest_update": 0.1}, r"rr.training.largest_update: 0.1 isn't above privacy.clip: 0.1,"),
        ("rr.rebalance.minimum", 5, r"methods.rr.rebalance.minimum: 5 updates for each of 2 clusters, .*: 0 to 4"),
        ("swept.sweep.rebalance", [{"minimum": 1}, {"minimum": 9}], r"methods.swept.sweep.rebalance.minimum: 9 upd"),
        ("rr.privacy.noise_multiplier", 1.0, r"methods.rr.privacy: both: give either epsilon"),
        ("rr.privacy.sigma", 1.0, r"methods.rr.privacy.sigma: unknown key"),
        ("rr.rebalance.minimum", -1, r"methods.rr.rebalance.minimum: found -1; it should be greater"),
    ],
)  # fmt: skip
def test_what_settings_alone_tell_is_reported_by_check(place, value, said) -> None:
    with pytest.raises(UserError, match=said):
        Plan.from_settings(put(study(), f"methods.{place}", value))


def test_a_notebook_has_the_blocks_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan.from_settings(put(study(), "engine.backend", "auto"))
    job = plan.job("federate", "digits", 0, "rr")
    for one in plan.jobs([job]):
        execute(one)
    partition = dict(study()["federations"]["digits"]["partition"])
    federation = clusterfl.load("digits", partition.pop("scheme"), seed=0, **partition)
    blocks = {name: job.settings[name] for name in ("training", "rebalance", "privacy")}
    hidden = study()["model"]["hidden"]
    result = clusterfl.run(
        "ifca", federation, lambda: MODELS["mlp"]((1, 8, 8), 10, hidden=hidden), clusters=2, device="cpu", **blocks
    )
    kept = read_table(job.outputs["history"])
    for column in ("correct", "loss"):
        np.testing.assert_array_equal(result.history[column], kept[column])
    rounds = read_table(job.outputs["rounds"])
    np.testing.assert_array_equal(result.rounds["epsilon"], rounds["epsilon"])


def test_an_infinite_epsilon_stays_one_in_the_settings_of_jobs_and_in_the_snapshot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = put(tiny(), "methods.ifca.privacy", {"epsilon": float("inf"), "delta": 0.01, "clip": 1.0})
    put(study, "methods.ifca.training", {"weights": "uniform"})
    plan = Plan.from_settings(study)
    assert plan.job("federate", "digits", 0, "ifca").settings["privacy"]["epsilon"] == float("inf")
    plan.save()
    again = Plan.from_files([plan.snapshot]).job("federate", "digits", 0, "ifca")
    assert again.settings_digest == plan.job("federate", "digits", 0, "ifca").settings_digest
