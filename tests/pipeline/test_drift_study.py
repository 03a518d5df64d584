"""A study on a federation that changes, from settings to report: checked, run, verified, described, assigned to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import undrawn, write_yaml

from clusterfl.cli import main
from clusterfl.data import drift
from clusterfl.metrics import adjusted_rand_index
from clusterfl.storage.store import read_table

RUN = Path("results/moving/moving-digits/seed0")
DRIFT = [{"round": 3, "clients": 0.5, "move": "next"}, {"round": 5, "clients": 0.25, "transform": "swap(0,1)"}]


def settings(**changes):
    partition = {"scheme": "rotated", "clients": 12, "angles": [0, 180], "newcomers": 2, "drift": DRIFT}
    return {
        "study": "moving",
        "seeds": {"runs": [0]},
        "training": {"rounds": 6, "epochs": 2, "learning_rate": 0.05},
        "federations": {"moving-digits": {"dataset": "digits", "partition": partition}},
        "warmups": {"short": {"rounds": 1}},
        "distances": {"loss": {"metric": "loss", "warmup": "short"}},
        "clusterings": {"two": {"distance": "loss", "clusterer": "kmedoids", "clusters": 2}},
        "methods": {
            "oracle": {"method": "oracle"},
            "ifca": {"method": "ifca", "clusters": 2},
            "lcfl": {"method": "lcfl", "clustering": "two"},
        },
    } | changes


@pytest.fixture(scope="module", autouse=True)
def _once(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("moving"))
    write_yaml(Path("config.yaml"), settings())
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        assert main(["run"]) == 0
    yield
    os.chdir(before)


@pytest.mark.slow
def test_it_is_verified_on_the_data_of_the_last_round(capsys):
    assert main(["verify", "moving"]) == 0
    assert "study 'moving': sound" in capsys.readouterr().out


def test_the_reports_numbers_are_by_the_groups_of_the_round():
    """The oracle's index is 1 in all rounds, and IFCA's is that of its labels with the groups of the round."""
    table = read_table(RUN / "partition.parquet")
    agreement = pd.read_csv("results/moving/tables/agreement.csv")
    assert (agreement[agreement["method"] == "oracle"]["ari"] == 1).all()
    own = agreement[agreement["method"] == "ifca"].set_index("round")["ari"]
    clusters = pd.DataFrame(read_table(RUN / "methods/ifca/clusters.parquet"))
    for round_ in range(1, 7):
        now = pd.DataFrame(drift.at(table, round_)).query("role == 'member'").groupby("client")["true_cluster"].first()
        found = clusters[clusters["round"] == round_].set_index("client")["cluster"]
        assert own[round_] == pytest.approx(adjusted_rand_index(now[found.index], found))
    members = pd.read_csv("results/moving/tables/members.csv")
    first, last = (
        pd.DataFrame(drift.at(table, r)).query("role == 'member'").groupby("client")["true_cluster"].first()
        for r in (1, 6)
    )
    assert (first != last).any()
    for kind, groups in (("clustering", first), ("method", last)):
        one = members[members["kind"] == kind].drop_duplicates("client").set_index("client")["group"]
        np.testing.assert_array_equal(one, groups[one.index])


@pytest.mark.slow
def test_describe_says_what_becomes_of_it(capsys):
    assert main(["describe", "moving-digits", "--config", "config.yaml"]) == 0
    said = capsys.readouterr().out
    assert "From round 3 on 5 of 10 members have other data; groups then: " in said
    assert "From round 5 on 2 of 10 members have other data; groups then: " in said
    assert main(["describe", "moving-digits", "--config", "config.yaml", "--json"]) == 0
    assert any("From round 3 on" in line for line in json.loads(capsys.readouterr().out)["remarks"])


def test_new_clients_are_placed_by_the_final_models(capsys):
    assert main(["assign", "moving", "--federation", "moving-digits", "--seed", "0", "--method", "ifca"]) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"warmups": {"short": {"rounds": 3}}},
            "the warm-up 'short' has 3 rounds, .* allowed: a drift from round 4 on",
        ),
        ({"training": {"rounds": 4}}, r"drift.1.round: 5, but method 'ifca' has 4 rounds; allowed: 2 to 4"),
    ],
)
def test_drifts_that_no_round_sees_are_refused(changes, said, capsys):
    write_yaml(Path("other.yaml"), settings(**changes))
    assert main(["check", "--config", "other.yaml"]) != 0

    assert re.search(said, capsys.readouterr().err)
