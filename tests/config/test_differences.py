"""Blocks that differ on a federation: what runs there, with which settings, and how problems are reported."""

from __future__ import annotations

import copy
import os

import pandas as pd
import pytest
import yaml

from clusterfl.cli import main
from clusterfl.config import loading
from clusterfl.config.blocks import differing
from clusterfl.config.study import Study
from clusterfl.errors import UserError
from clusterfl.pipeline import jobs
from clusterfl.pipeline.jobs import MIRROR, Plan

TWO = {
    "study": "two",
    "seeds": {"runs": [0]},
    "model": {"model": "mlp", "hidden": [4]},
    "training": {"rounds": 3, "epochs": 1},
    "federations": {
        "plain": {"dataset": "digits", "partition": {"scheme": "rotated", "clients": 8}},
        "other": {
            "dataset": "digits",
            "partition": {"scheme": "rotated", "clients": 6, "angles": [0, 180]},
            "warmups": {"short": {"rounds": 2}},
            "clusterings": {"loss": {"clusters": 3}},
            "methods": {"ifca": {"clusters": 2, "training": {"learning_rate": 0.5}}},
            "only": ["ifca", "lcfl"],
        },
    },
    "warmups": {"short": {"rounds": 1}},
    "distances": {"loss": {"metric": "loss", "warmup": "short"}},
    "clusterings": {"loss": {"clusterer": "hierarchical", "distance": "loss", "clusters": 4}},
    "methods": {
        "fedavg": {"method": "fedavg"},
        "ifca": {"method": "ifca", "clusters": 4, "training": {"batch_size": 5}},
        "lcfl": {"method": "lcfl", "clustering": "loss"},
    },
    "baseline": "fedavg",
}


def other(**changes):
    """The study with changes of its second federation."""
    settings = copy.deepcopy(TWO)
    settings["federations"]["other"] |= changes
    return settings


def test_jobs_have_the_settings_of_their_federation():
    plan = Plan.from_settings(TWO)
    plain, changed = (plan.job("federate", name, 0, "ifca").settings for name in ("plain", "other"))
    assert (plain["options"]["clusters"], changed["options"]["clusters"]) == (4, 2)
    assert [s["training"]["learning_rate"] for s in (plain, changed)] == [0.1, 0.5]
    assert [s["training"]["batch_size"] for s in (plain, changed)] == [5, 5]
    found = {name: plan.job("cluster", name, 0, "loss").settings["clusters"] for name in ("plain", "other")}
    assert found == {"plain": 4, "other": 3}
    warmups = {name: plan.job("warmup", name, 0, "short").settings["training"]["rounds"] for name in found}
    assert warmups == {"plain": 1, "other": 2}


def test_a_method_has_its_own_network_or_by_null_that_of_the_federation():
    settings = other(model={"model": "mlp", "hidden": [6]}, methods={"ifca": {"model": None}})
    settings["methods"]["ifca"]["model"] = {"model": "mlp", "hidden": [5, 5]}
    plan = Plan.from_settings(settings)
    found = {
        (job.federation, job.name): job.settings["model"]["options"]["hidden"]
        for job in plan.jobs()
        if job.stage in ("federate", "warmup")
    }
    assert found == {
        ("plain", "fedavg"): [4],
        ("plain", "ifca"): [5, 5],
        ("plain", "lcfl"): [4],
        ("plain", "short"): [4],
        ("other", "ifca"): [6],
        ("other", "lcfl"): [6],
        ("other", "short"): [6],
    }
    before = Plan.from_settings(TWO)
    for name in ("fedavg", "lcfl"):  # the others' results stay
        ours, theirs = (one.job("federate", "plain", 0, name).settings_digest for one in (plan, before))
        assert ours == theirs


def test_only_the_named_methods_run_there():
    jobs = [(j.federation, j.name) for j in Plan.from_settings(TWO).jobs() if j.stage == "federate"]
    assert set(jobs) == {
        ("plain", "fedavg"),
        ("plain", "ifca"),
        ("plain", "lcfl"),
        ("other", "ifca"),
        ("other", "lcfl"),
    }
    with pytest.raises(UserError, match="--method: 'fedavg' isn't in the configuration; allowed: ifca, lcfl"):
        Plan.from_settings(TWO).job("federate", "other", 0, "fedavg")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"methods": {"ifka": {}}}, "federations.other.methods.ifka: there is no block 'ifka'; did you mean 'ifca'?"),
        ({"methods": {}, "only": ["lfcl"]}, "federations.other.only: there is no block 'lfcl'; did you mean 'lcfl'?"),
        ({"only": []}, "federations.other.only: found []; needs at least 1 entry"),
        ({"methods": {"fedavg": {}}}, "federations.other.methods.fedavg: it doesn't run there; add it to"),
        ({"methods": {"ifca": {"method": "clove"}}}, "ifca.method is the same on all federations"),
        (
            {"methods": {"ifca": {"clusters": 9}}},
            "federations.other.methods.ifca.clusters: 9 clusters for 6 clients",
        ),
        ({"methods": {"ifca": {"cluster": 2}}}, "federations.other.methods.ifca.cluster: unknown key (value 2)"),
        ({"clusterings": {"loss": {"clusters": 0}}}, "federations.other.clusterings.loss.clusters: found 0"),
        ({"warmups": {"short": {"rounds": 3}}}, "methods.lcfl: 3 rounds, but the warm-up 'short' alone has 3"),
    ],
)
def test_problems_are_reported_where_they_are_written(changes, said):
    with pytest.raises(UserError) as caught:
        loading.load(other(**changes))
    assert said in str(caught.value)
    assert "1 problem;" in str(caught.value)


def test_a_problem_of_the_shared_block_is_no_problem_where_it_differs():
    settings = other(methods={"ifca": {"clusters": 2}})
    settings["methods"]["ifca"]["clusters"] = 7  # of 8 clients on plain, of 6 on the other
    loading.load(settings)


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_the_report_has_what_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(TWO))
    assert main(["run", "--config", "two.yaml"]) == 0
    summary = pd.read_parquet("results/two/summary.parquet")
    assert list(zip(summary["federation"], summary["method"], strict=True)) == [
        ("other", "ifca"), ("other", "lcfl"), ("plain", "fedavg"), ("plain", "ifca"), ("plain", "lcfl"),
    ]  # fmt: skip
    assert list(summary["clusters_mean"][summary["method"] == "lcfl"]) == [3, 4]
    assert set(pd.read_csv("results/two/tables/differences.csv")["federation"]) == {"plain"}


def test_parts_of_a_study():
    plan = Plan.from_settings(TWO)
    named = [(j.federation, j.name) for j in plan.part(methods=["lcfl"])]
    assert named == [("plain", "lcfl"), ("other", "lcfl")]
    stages = [j.stage for j in plan.jobs(plan.part(federations=["other"], methods=["lcfl"], seeds=[0]))]
    assert stages == ["download", "partition", "warmup", "distance", "cluster", "federate"]
    several = [(j.federation, j.name) for j in plan.part(methods=["lcfl", "fedavg"], federations=["plain", "other"])]
    assert several == [("plain", "fedavg"), ("plain", "lcfl"), ("other", "lcfl")]
    assert [j.name for j in plan.part(places=[("other", "ifca"), ("plain", "nothing")])] == ["ifca"]
    with pytest.raises(UserError, match="--method: 'lfcl' isn't in the configuration"):
        plan.part(methods=["lfcl"])
    with pytest.raises(UserError, match="study 'two' has no run with --federation other and --method fedavg"):
        plan.part(federations=["other"], methods=["fedavg"])


def test_a_kept_plan_is_given_again_while_its_files_stay(tmp_path, monkeypatch):
    """What Snakemake's jobs are forked with: nothing is checked twice, and what changes is read."""
    monkeypatch.setattr(jobs, "_KEPT", {})
    monkeypatch.delenv(MIRROR, raising=False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(TWO | {"mirror": "/somewhere"}))
    assert Plan.from_files([file]) is not Plan.from_files([file])
    kept = Plan.keep([file])
    monkeypatch.setenv(MIRROR, "/elsewhere")
    assert Plan.from_files(["two.yaml"]) is kept
    assert os.environ[MIRROR] == "/somewhere"
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    assert Plan.from_files([file]) is not kept
    monkeypatch.chdir(tmp_path)
    file.write_text(yaml.safe_dump(TWO | {"seeds": {"runs": [7]}}))
    assert Plan.from_files([file]).study.seeds.runs == [7]
    file.unlink()
    with pytest.raises(UserError, match=r"two\.yaml"):
        Plan.from_files([file])


def test_a_table_is_a_part(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = {"mnist/rotated-1200": {"federation": "plain"}, "mnist/rotated-2400": {"federation": "other"}}
    settings = TWO | {"claims": {"paper": "lcfl", "cells": cells}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(settings))
    for table, found in {"II": "plain", "III": "other"}.items():
        assert main(["jobs", "--config", "two.yaml", "--table", table, "--files"]) == 0
        names = {"plain": ["fedavg", "ifca", "lcfl"], "other": ["ifca", "lcfl"]}[found]
        files = [f"results/two/{found}/seed0/methods/{name}/history.parquet" for name in names]
        assert capsys.readouterr().out.split() == files
    assert main(["jobs", "--config", "two.yaml", "--table", "IV"]) == 2
    assert "--table: nothing of lcfl is from 'IV'; did you mean 'Table II" in capsys.readouterr().err


def test_a_part_may_be_named_several_times(tmp_path, monkeypatch, capsys):
    """The last name alone would have counted, without a word."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(TWO))
    names = ["--federation", "plain", "--federation", "other", "--method", "lcfl", "--seed", "0", "--seed", "0"]
    assert main(["jobs", "--config", "two.yaml", *names, "--files"]) == 0
    files = [f"results/two/{place}/seed0/methods/lcfl/history.parquet" for place in ("other", "plain")]
    assert capsys.readouterr().out.split() == files
    assert main(["jobs", "--config", "two.yaml", *names, "--seed", "7"]) == 2
    assert "--seed: '7' isn't in the configuration" in capsys.readouterr().err


@pytest.mark.parametrize("federation", TWO["federations"])
def test_a_study_on_a_federation_is_what_its_settings_there_say(federation: str) -> None:
    """Blocks that stay as they are aren't checked again; the study is the same as if they were."""
    study = loading.load(TWO)
    there, checked = study.on(federation), Study.model_validate(differing(study.model_dump(), federation))
    assert there == checked and there.model_dump_json() == checked.model_dump_json()
    assert there.on(federation) == there
    assert list(there.methods) == (["fedavg", "ifca", "lcfl"] if federation == "plain" else ["ifca", "lcfl"])
