"""A run of fewer rounds is the beginning of a longer one, to the bit: what scale ``prefix`` stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import tiny
from federations import slow_but

from clusterfl.methods import METHODS
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan

SHORT, LONG = 4, 9
OPTIONS = {  # that let something happen within so few rounds
    "cfl": {"eps_mean": 10.0, "eps_max": 1e-6, "first_split": 2},
    "clove": {"clusters": 2, "stable_rounds": 2},
    "fedgwc": {"epsilon": 0.5},
    "fedprox": {"proximal": 0.1},
    "fedavgm": {"server_momentum": 0.5},
    "fedala": {"window": 2, "spread": 1.0},  # weights settle in few passes
    "per-fedavg": {"twice": True},  # one full batch is no pair
}


def made(name: str, rounds: int) -> dict[str, pd.DataFrame]:
    """Run a method and return its tables."""
    settings: dict[str, Any] = tiny() | {"study": f"rounds{rounds}", "baseline": None}
    share = 1.0 if name == "cfl" else 0.75  # it splits a cluster only if all its members take part
    settings["training"] |= {"rounds": rounds, "participation": share, "schedule": "round", "decay": 0.9}
    block: dict[str, Any] = {"method": name} | OPTIONS.get(name, {})
    if "clusters" in METHODS.options(name).model_fields:
        block["clusters"] = 2
    if METHODS[name].one_shot:
        block["clustering"] = "lcfl"
    settings["methods"] = {"one": block}
    if "diffnorm" in settings["distances"]:
        settings["distances"] = {"loss": settings["distances"]["loss"]}
        settings["clusterings"] = {"lcfl": settings["clusterings"]["lcfl"]}
    plan = Plan.from_settings(settings)
    job = plan.job("federate", "digits", 0, "one")
    for each in plan.jobs([job]):
        execute(each, needed=True)
    return {key: pd.read_parquet(job.outputs[key]) for key in ("history", "rounds", "clusters")}


# Those whose rounds have a memory of their own, or a rule of when to split.
QUICK = ["ifca", "cfl"]


@pytest.mark.parametrize("name", slow_but(QUICK, METHODS))
def test_rounds_do_not_depend_on_how_many_come_after(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short, long = made(name, SHORT), made(name, LONG)
    if name == "cfl":
        assert short["clusters"]["cluster"].nunique() > 1  # it splits before the short run ends
    for key, table in short.items():
        seconds = [column for column in table if "second" in column]
        whole = long[key][long[key]["round"] <= SHORT].drop(columns=seconds)
        assert table["round"].max() == SHORT or name == "local", key
        pd.testing.assert_frame_equal(
            table.drop(columns=seconds).reset_index(drop=True), whole.reset_index(drop=True), check_exact=True
        )
