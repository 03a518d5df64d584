"""The snippets of the README and of the pages that it leads to run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import clusterfl
from clusterfl.cli import main
from clusterfl.pipeline.contract.part import examine
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.store import read_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def snippet(name: str) -> str:
    (found,) = re.findall(rf"<!-- snippet: {re.escape(name)} -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)
    return found


def test_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(compile(snippet("notebook.py"), "notebook.py", "exec"), found)
    assert found["result"].adjusted_rand_index() == 1
    assert found["result"].accuracy().iloc[-1] > 0.85
    assert list(found["result"].history) == [
        "round",
        "client",
        "cluster",
        "split",
        "evaluation",
        "n",
        "correct",
        "loss",
    ]


@pytest.mark.slow
def test_own_parts(tmp_path, monkeypatch):
    """An own method and an own distance and model, through the stages that they need."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine.py", "mine.yaml"):
        (tmp_path / name).write_text(snippet(name))
    files = [ROOT / "config.yaml", tmp_path / "mine.yaml"]
    plan = Plan.from_files(files)
    flags = ["--config", *map(str, files), "--federation", "rotated-digits", "--seed", "0"]
    assert main(["download", "digits"]) == 0
    for stage in (["partition"], ["warmup", "--warmup", "alone"], ["distance", "--distance", "squared"],
                  ["cluster", "--clustering", "squared"], ["federate", "--method", "sticky"]):  # fmt: skip
        assert main([*stage, *flags]) == 0
    run = tmp_path / "results/mine/rotated-digits/seed0"
    labels = read_table(run / "clusters/squared.parquet")["cluster"]
    assert len(np.unique(labels)) == 4
    history = read_table(run / "methods/sticky/history.parquet")
    final = (history["round"] == 30) & (history["split"] == "test")
    assert history["correct"][final].sum() / history["n"][final].sum() > 0.8
    # The file's code is part of the digests of what names it, and of nothing else.
    jobs = {name: plan.job("federate", "rotated-digits", 0, name) for name in ("sticky", "lcfl")}
    assert all("mine" in job.modules for job in jobs.values())  # the network is in that file as well
    assert "mine" not in plan.job("partition", "rotated-digits", 0).modules


def test_a_partition_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "halves.py").write_text(snippet("halves.py"))
    verdicts = examine("halves:halves")
    assert verdicts.sound, verdicts.outcomes
    federation = clusterfl.load("digits", "halves:halves", clients=6)
    assert federation.true_cluster.tolist() == [0, 1] * 3
    train = federation.splits["train"]
    for client in range(6):
        classes = train.y[train.of(np.array([client]))[0]]
        assert (classes // 5 == client % 2).all()


def test_a_sweep(tmp_path):
    """The default study with it has every trial as a job, and none of the methods that it replaces."""
    (tmp_path / "sweep.yaml").write_text(snippet("sweep.yaml"))
    plan = Plan.from_files([ROOT / "config.yaml", tmp_path / "sweep.yaml"])
    jobs = [str(job) for job in plan.jobs()]
    for method, trials in {"ifca": 6, "lcfl": 2}.items():
        found = [job for job in jobs if job.startswith(f"federate {method}, trial") and job.endswith("seed 2")]
        assert len(found) == trials
        assert f"select {method} rotated-digits seed 2" in jobs
        assert f"federate {method} rotated-digits seed 2" not in jobs


def test_files_of_the_tree_are_there():
    for name in re.findall(r"^([\w./-]+/?) {2,}", snippet_of_tree(), re.MULTILINE):
        place = ROOT / name if (ROOT / name).exists() else ROOT / "src/clusterfl" / name
        assert place.exists(), name


def snippet_of_tree() -> str:
    tree = (ROOT / "docs/layout.md").read_text(encoding="utf-8").split("```")[1]
    return re.sub(r"^ +", "", tree, flags=re.MULTILINE)
