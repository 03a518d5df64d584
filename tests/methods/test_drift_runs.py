"""Runs on federations that change: data, scores and groups of the round; the same bits however cut, and on resume."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from federations import engine, slow_but
from test_contract import numbers, same
from test_stocfl import network

from clusterfl import api
from clusterfl.methods import METHODS
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.checkpoint import Unfinished
from clusterfl.pipeline.stages.common import keeping, resumed
from clusterfl.report import measures
from clusterfl.simulation import loop
from clusterfl.simulation.loop import Checkpoint
from clusterfl.simulation.record import Record

EVENTS = [{"round": 3, "clients": 0.5, "move": "next"}, {"round": 5, "transform": "swap(0,1)", "clients": 0.25}]
METHODS_RUN = {
    "ifca": {"clusters": 3},
    "clove": {"clusters": 3},
    "oracle": {},
    "fesem": {"clusters": 2},
    "stocfl": {"anchor_epochs": 2},
    "ditto": {},
    "apfl": {"adapts": "step"},
    "feddrift": {"step_rounds": 2, "delta": 0.1},
}


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("digits"))
        return api.load(clients=12, angles=[0, 90, 180], drift=EVENTS, limit={"train": 30, "test": 10})


def run(name, used, **how):
    return loop.run(METHODS[name](**METHODS_RUN.get(name, {})), loop.context(used), used, **how)


SETTINGS = {"rounds": 6, "epochs": 1, "evaluations": ["aggregated", "local", "stale", "personalised"]}


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_it_is_a_run_on_each_phases_federation_after_the_other(name, data):
    """Engines that know of no drift, each with the data of a phase, go on from where the one before ended."""
    with engine(network, data, **SETTINGS) as used:
        whole = numbers(*run(name, used))
    at = None
    for first, last in ((1, 2), (3, 4), (5, 6)):
        alone = replace(data.at(first), later=())
        kept = []
        with engine(network, alone, **SETTINGS | {"rounds": last}) as used:
            state, record = run(name, used, resume=at, save=kept.append)
        at = Checkpoint(last, state, record)
    found = numbers(state, record)
    same(whole, found)


@pytest.mark.parametrize("name", slow_but(["feddrift"], METHODS_RUN))
def test_the_same_bits_however_cut_and_on_resume(name, data, tmp_path):
    settings = SETTINGS | {"participation": 0.6}

    def keep(checkpoint):
        keeping(Unfinished(tmp_path / str(checkpoint.round), seconds=0))(checkpoint)

    with engine(network, data, **settings) as used:
        whole = numbers(*run(name, used, save=keep))
        same(whole, numbers(*run(name, used)))  # though clients have their last data when it begins
    with engine(network, data, **settings, chunk=2, workers=2) as used:
        same(whole, numbers(*run(name, used)))
    for round_ in (1, 2, 3, 4, 5):
        with engine(network, data, **settings) as used:
            start = resumed(Unfinished(tmp_path / str(round_), seconds=0), METHODS[name].own)
            same(whole, numbers(*run(name, used, resume=start)))


def test_clients_are_scored_on_the_data_of_the_round(data):
    thetas = []
    with engine(network, data, rounds=6, epochs=1) as used:
        _, record = run("fedavg", used, save=lambda c: thetas.append(c.state.theta[:].clone()))
    history = Record.table(record.history)
    for round_ in range(1, 7):
        with engine(network, data.at(round_), rounds=1) as alone:
            ids = np.arange(12)
            expected = alone.own_scores(thetas[round_ - 1], np.zeros(12, np.int64), ids, "test")
        rows = (history["round"] == round_) & (history["split"] == "test")
        np.testing.assert_array_equal(history["loss"][rows], expected.loss)
        np.testing.assert_array_equal(history["correct"][rows], expected.correct)


def test_the_oracle_follows_the_planted_groups(data):
    """A new group goes on from the model that most of its clients had."""
    thetas = []
    with engine(network, data, rounds=6, epochs=1) as used:
        _, record = run("oracle", used, save=lambda c: thetas.append(c.state.theta[:].clone()))
    labels = Record.table(record.clusters)["cluster"].reshape(6, 12)
    for round_ in range(1, 7):
        np.testing.assert_array_equal(labels[round_ - 1], data.at(round_).true_cluster)
    assert [len(theta) for theta in thetas[:4]] == [3] * 4
    groups = int(data.at(5).true_cluster.max()) + 1
    assert len(thetas[4]) == groups > 3
    # In round 5 nobody has trained a new group's model before: train it from its parent by hand.
    new, before = 3, thetas[3]
    members = np.flatnonzero(labels[4] == new)
    parent = np.bincount(labels[3][members]).argmax()
    with engine(network, data.at(5), rounds=6, epochs=1) as alone:
        update = alone.train(
            before,
            np.full(len(members), parent),
            members,
            5,
            weights=alone.federation.splits["train"].sizes[members].astype(float),
        )
        total = alone.federation.splits["train"].sizes[members].sum()
        expected = before[parent].double() + update.sums[int(parent)] / total
    torch.testing.assert_close(thetas[4][new], expected.float(), rtol=1e-6, atol=1e-7)


def test_samples_that_are_asked_for_are_those_of_the_round(data):
    with engine(network, data, rounds=6) as used:
        context = loop.context(used)
        before = context.survey.samples[0][1].copy()
        entered = loop._entered(context, used, 5)
        after = [entered.survey.samples[i][1] for i in range(12)]
    y, offsets = data.at(5).splits["train"].y, data.splits["train"].offsets
    for i in range(12):
        np.testing.assert_array_equal(after[i], y[offsets[i] : offsets[i + 1]])
    np.testing.assert_array_equal(before, data.splits["train"].y[: offsets[1]])
    np.testing.assert_array_equal(entered.true_cluster, data.at(5).true_cluster)


def test_the_reports_index_is_by_the_groups_of_the_round(data):
    with engine(network, data, rounds=6, epochs=1) as used:
        _, record = run("ifca", used)
    clusters = pd.DataFrame(Record.table(record.clusters))
    phases = tuple((r, pd.Series(data.at(r).true_cluster, index=data.ids)) for r in (1, 3, 5))
    planted = measures.Planted(phases[-1][1], pd.DataFrame(), phases)
    found = measures._by_round(clusters, planted)
    assert found["round"].tolist() == list(range(1, 7))
    for round_, value in zip(found["round"], found["ari"], strict=True):
        labels = clusters[clusters["round"] == round_].sort_values("client")["cluster"]
        assert value == pytest.approx(adjusted_rand_index(data.at(round_).true_cluster, labels))


def test_from_python_the_index_is_of_the_last_round(data):
    found = api.run("oracle", data, network, training={"rounds": 6, "epochs": 1})
    assert found.adjusted_rand_index() == 1
    np.testing.assert_array_equal(found.true_cluster, data.at(6).true_cluster)
