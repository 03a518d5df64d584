"""CLoVE's own rules: matching, choosing K, early stopping, newcomers, ablations."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, write_yaml
from federations import beginning, changed, engine, images, norm_and_dropout, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import silhouette_score
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import load_federation
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.methods.clove import Vectors, kmeans, match, select_k, ward
from clusterfl.methods.ifca import scattered
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages.common import arrays as stored
from clusterfl.pipeline.stages.common import engine_of, read_state
from clusterfl.simulation import loop
from clusterfl.simulation.evaluation import newcomer_labels, newcomer_losses
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State
from clusterfl.storage.store import write_tensors

SIZES = (40,) * 8


def make(**options):
    return METHODS["clove"](**({"clusters": 2} | options))


def run(used, method, **how):
    return loop.run(method, loop.context(used), used, **how)


def late(old, context, state, round_):
    """Return who takes part: the last two clients, one of each group, only when the assignments have ended."""
    return old(context, state, round_)[: 6 if round_ < 8 else 8]


def test_match_by_hand():
    """Group 0 (clients 0, 2) loses 3 on model 0 and 4 on model 1; group 1 (client 1) 1 and 9.

    Each group's best model is 0; the totals are 3 + 9 and 4 + 1, so group 1 gets model 0.
    """
    losses = np.array([[1.0, 2.0], [1.0, 9.0], [2.0, 2.0]])
    assert match(losses, [0, 1, 0]).tolist() == [1, 0, 1]
    assert match(losses, [7, -3, 7]).tolist() == [1, 0, 1]  # any names


@settings(max_examples=60)
@given(arrays(float, (7, 4), elements=st.floats(0, 10)), arrays(int, 7, elements=st.integers(0, 3)))
def test_match_is_the_cheapest_of_all(losses, groups):
    found = match(losses, groups)
    names = np.unique(groups)
    assert len({(g, k) for g, k in zip(groups, found, strict=True)}) == len(names) == len(np.unique(found))
    every = (dict(zip(names, chosen, strict=True)) for chosen in permutations(range(4), len(names)))
    least = min(sum(losses[i, chosen[g]] for i, g in enumerate(groups)) for chosen in every)
    assert losses[np.arange(7), found].sum() == pytest.approx(least)


def test_permuting_models_permutes_the_assignment():
    rng = np.random.default_rng(0)
    losses, groups, order = rng.random((9, 3)), rng.integers(0, 3, 9), np.array([2, 0, 1])
    np.testing.assert_array_equal(order[match(losses[:, order], groups)], match(losses, groups))


def test_more_groups_than_models_are_refused():
    with pytest.raises(UserError, match="3 groups for 2 models"):
        match(np.zeros((3, 2)), [0, 1, 2])


@pytest.mark.parametrize("clusterer", [kmeans, ward])
def test_clusterers_of_vectors(clusterer):
    rng = np.random.default_rng(1)
    vectors = np.repeat(10 * np.eye(3), 5, axis=0) + 0.1 * rng.random((15, 3))
    np.testing.assert_array_equal(clusterer(vectors, 3, 0), np.repeat([0, 1, 2], 5))
    twins = np.repeat(rng.random((3, 3)), 4, axis=0)
    assert len(np.unique(clusterer(twins, 3, 0).reshape(3, 4), axis=1).T) == 1  # equal vectors, equal labels
    assert (clusterer(np.ones((4, 3)), 1, 0) == 0).all()
    assert clusterer(np.ones((1, 3)), 3, 0).tolist() == [0]
    assert (kmeans(np.ones((4, 3)), 3, 0) == 0).all()  # one distinct vector


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_groups_is_found(k, seed):
    rng = np.random.default_rng(seed)
    vectors = np.repeat(5 * np.eye(6)[:k], 6, axis=0) + 0.2 * rng.random((6 * k, 6))
    assert select_k(vectors, 10) == select_k(vectors, 10, margin=1.1) == k
    assert select_k(vectors, 2) == 2


def test_the_margin_keeps_the_smaller_number():
    """By scikit-learn's silhouettes: 3 groups are a little better than 2, by less than a tenth."""
    vectors = np.array([[0.0], [0.1], [3.0], [3.1], [9.0], [9.1]]) * [[1.0, 0.0]]
    scores = [silhouette_score(vectors, labels) for labels in ([0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2])]
    ratio = scores[1] / scores[0]
    assert ratio > 1
    assert select_k(vectors, 3, margin=ratio - 0.01) == 3 and select_k(vectors, 3, margin=ratio + 0.01) == 2
    losses = np.column_stack([vectors, np.zeros(6)])  # on three models
    for margin, number in ((ratio - 0.01, 3), (ratio + 0.01, 2)):
        state = State(torch.zeros(3, 1), np.full(6, -1), Vectors(losses, np.full((3, 3), np.nan)))
        found = make(clusters=3, choose_k=True, margin=margin)._choice(SimpleNamespace(seed=0), state, np.arange(6))
        assert len(set(found.tolist())) == number


def test_no_number_where_no_silhouette_is_defined():
    assert select_k(np.ones((5, 3)), 4) == select_k(np.eye(2), 2) == select_k(np.ones((1, 2)), 2) == 1


def test_clove_equals_its_steps():
    """Algorithm 1 by its pure functions: the first round at random, then k-means and matching of measured losses."""
    with engine(federation=uneven(SIZES), rounds=3, epochs=1) as used:
        thetas = []
        state, record = run(used, make(), save=lambda c: thetas.append(c.state.theta.clone()))
        np.testing.assert_array_equal(record.clusters[0]["cluster"], scattered(used.seed, np.arange(8), 2))
        for round_ in (1, 2):
            losses = used.losses(thetas[round_ - 1], np.arange(8))
            labels = match(losses, kmeans(losses, 2, used.seed))
            np.testing.assert_array_equal(record.clusters[round_]["cluster"], labels)
        np.testing.assert_array_equal(state.own.losses, losses)
        np.testing.assert_allclose(state.own.centroids[labels[0]], losses[labels == labels[0]].mean(axis=0))


@pytest.mark.parametrize(
    "options",
    [{"matching": "order"}, {"clusterer": "ward"}, {"losses": "root"}, {"choose_k": True, "clusters": 5}],
    ids=lambda o: next(iter(o)),
)
def test_ablations_find_the_groups(options):
    with engine(federation=uneven(SIZES), rounds=8) as used:
        state, _ = run(used, make(**options))
    assert adjusted_rand_index(used.federation.true_cluster, state.labels) == 1


def test_ablations_differ_where_they_should():
    """Without matching the first group always has model 0; with it the group keeps the model that it trained."""
    with engine(federation=uneven(SIZES), rounds=6) as used:
        plain = [run(used, make(matching="order"))[1].clusters[r]["cluster"] for r in range(1, 6)]
    assert all(labels[0] == 0 for labels in plain)


def test_early_stopping_after_three_equal_rounds():
    """Assignments end two rounds after their last change; from then on one model is sent and no loss asked for."""
    with engine(federation=uneven(SIZES), rounds=7) as used:
        state, record = run(used, make(stable_rounds=3))
        full, _ = run(used, make())
    labels = np.array([part["cluster"] for part in record.clusters])
    asked = [part["client_forwards"] > 0 for part in record.rounds]
    changes = [t for t in range(1, 7) if (labels[t] != labels[t - 1]).any()]
    last = max(changes, default=0)  # 0-based round of the last change
    assert asked == [False] + [True] * (last + 2) + [False] * (6 - last - 2) and not asked[-1]
    assert record.rounds[-1]["bytes_down"] == 8 * used.layout.columns * 4
    np.testing.assert_array_equal(state.labels, full.labels)


def test_models_are_kept_a_block_at_a_time(monkeypatch):
    """Five models of which two fit in a block: they may lie in files because they don't fit in memory."""

    class Kept:
        def __init__(self, rows, columns):
            self.rows, self.found = torch.zeros(rows, columns), []

        def __setitem__(self, place, values):
            self.found.append(len(values))
            self.rows[place] = values

    with engine(federation=uneven(SIZES)) as used:
        monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", 2 * 4 * used.layout.columns)
        method, context = make(clusters=5, stable_rounds=1), replace(loop.context(used), allocate=Kept)
        state = method.begin(context)
        method.assign(context, state, 1, np.arange(8), lambda: pytest.fail("the first round asks for no losses"))
    assert state.own.stable and state.own.stable_theta.found == [2, 2, 1]
    assert torch.equal(state.own.stable_theta.rows, state.theta)


def test_after_stopping_a_new_client_gets_the_nearest_centroid():
    with engine(federation=uneven(SIZES), rounds=9, participation=1.0) as used:
        state, record = run(used, changed(make(stable_rounds=2), sample=late))
    assert state.own.stable
    assert (record.clusters[6]["cluster"][6:] == -1).all()
    assert record.rounds[7]["client_forwards"] == 2 * 80 and record.rounds[8]["client_forwards"] == 0
    # Down go the two models of the round of stability to each of the two, then to all eight the model that they train.
    assert [r["bytes_down"] / used.layout.columns / 4 for r in record.rounds[6:]] == [6, 2 * 2 + 8, 8]
    assert adjusted_rand_index(used.federation.true_cluster, state.labels) == 1


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The job of CLoVE with early stopping on the default study's federation, for seeds 2 and 3."""
    study = yaml.safe_load((ROOT / "config.yaml").read_text())
    study |= {"seeds": {"runs": [2, 3]}, "warmups": {}, "distances": {}, "clusterings": {}, "baseline": None}
    study |= {"methods": {"clove": {"method": "clove", "clusters": 4, "stable_rounds": 3}}, "engine": {"device": "cpu"}}
    folder = tmp_path_factory.mktemp("digits")
    with contextlib.chdir(folder):
        write_yaml(folder / "study.yaml", study)
        plan = Plan.from_files([Path("study.yaml")])
        jobs = [plan.job("federate", "rotated-digits", seed, "clove") for seed in (2, 3)]
        for upstream in [jobs[0].upstream["samples"], *(job.upstream["partition"] for job in jobs)]:
            execute(upstream)
        return [(job, load_federation(job.inputs["samples"], job.inputs["partition"], Inputs())[0]) for job in jobs]


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_long_after_stability_clients_are_given_back_their_own_model(digits, which):
    """By the models and centroids of that round (Algorithm 1, line 15). Losses on today's models lie far from these."""
    job, federation = digits[which]
    with engine_of(job.settings, federation, Training(**job.settings["training"]), federation) as used:
        method = METHODS["clove"](**job.settings["options"])
        saved = {}
        state, record = run(used, method, save=lambda made: saved.setdefault(made.round, made.state.theta.clone()))
        labels, _ = newcomer_labels(used, method, state)
        today = method.place(state, newcomer_losses(used, state.theta))
    stable = max(part["round"] for part in record.rounds if part["client_forwards"])  # the last with losses
    assert torch.equal(state.own.stable_theta, saved[stable - 1]) and stable < 20
    assert (labels == state.labels).all()
    assert (today == state.labels).mean() < 0.95


def test_a_run_goes_on_after_stability_with_the_kept_models(tmp_path):
    """From a checkpoint after the round of stability: a client that comes later is placed as without a stop."""
    with engine(federation=uneven(SIZES), rounds=9) as used:
        method = changed(make(stable_rounds=2), sample=late)

        def save(made):
            if made.round == 7:
                write_tensors(tmp_path / "state.safetensors", stored(made.state))
                record.append(Record.of(made.record.tables()))

        record = []
        whole, _ = run(used, method, save=save)
        state = read_state(tmp_path / "state.safetensors", method.own)
        assert state.own.stable and isinstance(state.own.stable_theta, torch.Tensor)
        again, _ = run(used, method, resume=loop.Checkpoint(7, state, record[0]))
    again, whole = again.arrays(), whole.arrays()
    assert again.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(np.asarray(again[name]), np.asarray(whole[name]), err_msg=name)


def test_place_by_hand():
    def after(*centroids):
        return State(torch.zeros(3, 1), np.zeros(3), Vectors(np.zeros((3, 3)), np.array(centroids)))

    method, root = make(clusters=3), make(clusters=3, losses="root")
    state = after([1.0, 4.0, 9.0], [np.nan] * 3, [4.0, 1.0, 1.0])
    losses = np.array([[1.0, 4.0, 8.0], [4.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    assert method.place(state, losses).tolist() == [0, 2, 2]
    assert root.place(state, np.square(losses)).tolist() == [0, 2, 2]
    # What noise made negative counts as 0: (0, 3, 4) is 1 + 1 + 25 from the first, 16 + 4 + 9 from the last.
    assert root.place(state, np.array([[-16.0, 9, 16]])).tolist() == [0]
    assert method.place(after(*[[np.nan] * 3] * 3), losses).tolist() == [0, 1, 0]  # none yet: least loss


@pytest.mark.slow
def test_linear_regression_is_clustered_within_three_rounds():
    """The paper's linear case: right in round 2 for most seeds, where one start of k-means finds the groups."""
    rng = np.random.default_rng(0)
    theta, clients = rng.normal(size=(3, 20)), 12
    x = rng.normal(size=(clients, 200, 20))
    y = np.einsum("cnd,cd->cn", x, theta[np.arange(clients) % 3])
    owner = np.repeat(np.arange(clients), 200)
    federation = Federation.from_arrays(x.reshape(-1, 20), y.ravel(), owner, true_cluster=owner % 3)
    tuned = Training(rounds=5, epochs=25, batch_size=50, learning_rate=0.05)
    found = []
    for seed in range(4):
        with Engine(lambda: nn.Linear(20, 1, bias=False), federation, tuned, seed, device="cpu") as used:
            _, record = run(used, make(clusters=3))
        found.append([adjusted_rand_index(federation.true_cluster, part["cluster"]) for part in record.clusters])
    found = np.array(found)
    assert (found[:, 2:] == 1).all() and (found[:, 0] < 0.5).all() and (found[:, 1] == 1).sum() >= 2, found


def test_diverged_losses_are_reported():
    with engine(federation=uneven(SIZES)) as used:
        method, context = make(), loop.context(used)
        state = method.begin(context)
        state.labels[:] = 0
        with pytest.raises(Diverged, match=r"client 5 .* NaN or infinite"):
            measured = np.ones((8, 2))
            measured[5, 1] = np.inf
            method.assign(context, state, 1, np.arange(8), lambda: measured)


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_running_statistics_are_averaged_too(average):
    """A cluster has the plain mean of its members' statistics, whatever step the server takes."""
    form = {"steps": 1, "batch_size": "full", "average": average} if average == "gradients" else {"epochs": 1}
    with engine(norm_and_dropout, images(), rounds=1, weights="uniform", **form) as used:
        theta = torch.stack([used.initial(0), used.initial(1)])
        state, record = run(used, beginning(make(), theta))
        labels = record.clusters[0]["cluster"]
        clients = np.arange(5)
        rows = used.train(theta, labels, clients, needs=frozenset({"updates"})).rows
    p = used.layout.parameter_columns
    for k in (0, 1):
        mean = theta[k] + rows[torch.as_tensor(labels == k)].mean(0)
        torch.testing.assert_close(state.theta[k, p:], mean[p:])
        assert not torch.equal(state.theta[k, p:], theta[k, p:])


def test_only_the_last_clustering_places_newcomers():
    """With two participants of one group there is one centroid, and the other model's old one is gone."""
    with engine(federation=uneven(SIZES)) as used:
        method, context = make(), loop.context(used)
        state = method.begin(context)
        state.labels[:] = 0
        rows = {4: np.array([[1.0, 5.0]] * 2 + [[5.0, 1.0]] * 2), 2: np.array([[1.0, 4.0]] * 2)}
        for count in (4, 2):
            method.assign(context, state, 1, np.arange(count), lambda count=count: rows[count])
    assert state.own.centroids.tolist()[0] == [1, 4] and np.isnan(state.own.centroids[1]).all()
    assert method.place(state, np.array([[5.0, 1.0]])).tolist() == [0]
