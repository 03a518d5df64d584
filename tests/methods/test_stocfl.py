"""StoCFL: rounds by hand, the slow obvious loop, which clusters merge, planted groups, costs, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import engine, mlp, slow_but, uneven
from test_ditto import one, plain
from torch import nn

from clusterfl import api
from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods.stocfl import Groups, StoCFL
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method
from clusterfl.simulation.model_rows import take_models
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State


def run(method, used, **how):
    return loop.run(method, loop.context(used), used, **how)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_two_rounds_by_hand(backend):
    """Loss (a - y)^2, rate 1/4: a step leads half way to y, and lambda = 1 adds (w - a) / 4. Targets 2, -2 (three
    times), 1; all begins at 0.

    First updates are 1, -1, 1/2: clients 0 and 2 merge. Round 1: 1, -1, 1/2, whose means are 3/4 and -1; w is
    (1 - 3 + 1/2) / 5 = -.3. Round 2, cluster models: from 3/4 to 11/8 - .2625 = 1.1125 and 7/8 - .2625 = .6125, mean
    .8625; from -1 to -1.5 + .175 = -1.325. w: .85, -1.15, .35, mean (.85 - 3.45 + .35) / 5 = -.45.

    In turns, round 1: w goes 0, 1, -1/2, 1/4; mean (1 - 3/2 + 1/4) / 5 = -.05.
    """
    x, y = np.ones((5, 1), dtype=np.float32), np.array([2.0, -2, -2, -2, 1], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1, 2]))
    settings = {"steps": 1, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
    gradient = {"pull": 1.0, "anchor_epochs": 1, "anchor_batch": "full"}
    for rounds, relay, theta in (
        (1, False, [-0.3, 0.75, -1]),
        (2, False, [-0.45, 0.8625, -1.325]),
        (1, True, [-0.05, 0.75, -1]),
    ):
        with engine(one, federation, rounds=rounds, **settings) as used:
            used.initial = lambda index=0: torch.zeros(1)
            state, _ = run(StoCFL(relay=relay, **gradient), used)
        assert state.labels.tolist() == [1, 2, 1]
        np.testing.assert_allclose(state.theta[:, 0], theta, rtol=1e-6)
        np.testing.assert_allclose(state.own.directions[:, 0], [1, -1, 0.5], rtol=1e-6)


def cosine(a, b):
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
@pytest.mark.parametrize("options", [{}, {"means": "participants", "relay": True}, {"tau": 0.8, "pull": 0.0}])
def test_it_is_the_slow_obvious_loop(backend, options):
    """Sets of clients, each with a model; every training in plain PyTorch, the penalty written as a loss."""
    settings = {"rounds": 5, "epochs": 1, "participation": 0.5, "batch_size": 4}
    method = StoCFL(**{"pull": 0.5, "anchor_epochs": 2, "tau": 0.3} | options)
    with engine(federation=uneven((12, 10, 25, 7, 16, 40)), backend=backend, **settings) as used:
        state, _ = run(method, used)
        sizes, module, layout = used.federation.splits["train"].sizes, mlp(), used.layout
        first = common = used.initial(0)
        psi, clusters, models = {}, [], []
        train = lambda row, i, round_, anchor, **more: plain(  # noqa: E731
            module, row, layout, used, i, round_, Training(**settings | more), anchor
        )
        for round_ in range(1, 6):
            drawn = Method().sample(loop.context(used), state, round_).tolist()
            for i in drawn:
                if i not in psi:
                    psi[i] = train(first, i, 0, first, epochs=2).double() - first.double()
                    clusters.append({i})
                    models.append(None)
            there = [c for c in clusters if c & set(drawn)]
            mine = [sorted(c & set(drawn) if method.means == "participants" else c) for c in there]
            means = [torch.stack([psi[i] for i in c]).mean(0) for c in mine]
            pairs = [(cosine(means[a], means[b]), a, b) for a in range(len(there)) for b in range(a)]
            for value, a, b in sorted(pairs, reverse=True):
                one, other = (next(c for c in clusters if there[i] <= c) for i in (a, b))
                if value < method.tau or one is other:
                    continue
                at, gone = sorted((clusters.index(one), clusters.index(other)), key=lambda k: min(clusters[k]))
                larger = gone if len(clusters[gone]) > len(clusters[at]) else at
                kept = models[larger] if models[larger] is not None else models[gone if larger == at else at]
                clusters[at], models[at] = one | other, kept
                del clusters[gone], models[gone]
            models = [common if row is None else row for row in models]
            moved, spread, going, total = list(models), [], common, sum(sizes[i] for i in drawn)
            for k, members in enumerate(clusters):
                part = [i for i in sorted(members) if i in drawn]
                rows = [train(models[k], i, round_, common, proximal=method.pull).double() for i in part]
                if part:
                    moved[k] = (sum(sizes[i] * r for i, r in zip(part, rows, strict=True)) / sizes[part].sum()).float()
            for i in drawn:
                row = train(going if method.relay else common, i, round_, common)
                going = row
                spread.append(sizes[i] * row.double())
            models, common = moved, (sum(spread) / total).float()
        torch.testing.assert_close(state.theta[0], common, rtol=1e-4, atol=1e-5)
        seen = set(psi)
        for i in seen:
            torch.testing.assert_close(state.own.directions[i].double(), psi[i], rtol=1e-4, atol=1e-5)
        for members, row in zip(clusters, models, strict=True):
            (label,) = set(state.labels[sorted(members)].tolist())
            assert set(np.flatnonzero(state.labels == label).tolist()) == members
            torch.testing.assert_close(state.theta[label], row, rtol=1e-4, atol=1e-5)
        assert len(state.theta) == 1 + len(clusters)
        assert set(np.flatnonzero(state.labels > 0).tolist()) == seen


def groups(directions, clusters, labels, models):
    theta = torch.arange(float(models))[:, None].clone()
    rows = torch.tensor(directions, dtype=torch.float32)
    return State(theta, np.array(labels), Groups(np.array(clusters), rows))


@pytest.fixture(name="context")
def _context():
    with engine(federation=uneven((10,) * 4)) as used:
        yield loop.context(used)


def test_the_larger_clusters_model_stays_and_who_is_absent_moves_too(context):
    """Clients 1, 2 and 3 are one cluster, 0 another; 0 and 3 meet: all have the three's model."""
    context = replace(context, parameter_columns=2)
    state = groups([[1, 0]] * 4, [0, 1, 1, 1], [1, 2, 2, 2], 3)
    found = StoCFL().assign(context, state, 2, np.array([0, 3]), None)
    assert found.start.tolist() == [1, 1] and state.labels.tolist() == [1, 1, 1, 1]
    assert state.own.cluster.tolist() == [0, 0, 0, 0] and state.theta[:, 0].tolist() == [0, 2]


def test_the_most_similar_clusters_merge_first(context):
    """Cosines of 0 and 1, 1 and {2, 3}, 0 and {2, 3} are .995, .918 and .874. Of 0 and 1, and of them and {2, 3}, which
    are as many, the first one's model stays. If {2, 3} merged with one of them first, its model would.
    """
    context = replace(context, parameter_columns=2)
    state = groups([[1, 0], [1, 0.1], [0.9, 0.5], [0.9, 0.5]], [0, 1, 2, 2], [1, 2, 3, 3], 4)
    StoCFL(tau=0.8).assign(context, state, 2, np.arange(3), None)
    assert state.labels.tolist() == [1] * 4 and state.theta[:, 0].tolist() == [0, 1]


def test_means_are_over_all_members_or_over_participants(context):
    """Client 1 alone looks as client 0 does; the mean of 1 and 2 is at cosine 1 / sqrt(2) from it."""
    context = replace(context, parameter_columns=2)
    for means, merged in (("members", False), ("participants", True)):
        state = groups([[1, 0], [1, 0], [0, 1], [0, 0]], [0, 1, 1, -1], [1, 2, 2, 0], 3)
        StoCFL(tau=0.8, means=means).assign(context, state, 2, np.array([0, 1]), None)
        assert (state.labels[0] == state.labels[2]) == merged
        assert state.labels[3] == 0  # not seen yet


@pytest.mark.parametrize("participation", [1.0, 0.25])
@pytest.mark.parametrize("seed", slow_but([0], range(5)))
def test_planted_rotations_are_found(seed, participation, tmp_path, monkeypatch):
    """The default study's federation: 40 clients, four rotations, and its network."""
    monkeypatch.chdir(tmp_path)
    federation = api.load(clients=40, seed=seed)
    settings = {"rounds": 2 if participation == 1 else 25, "participation": participation, "epochs": 1}
    with engine(network, federation, seed=seed, evaluate_every=99, **settings) as used:
        state, _ = run(StoCFL(), used)
    assert (state.labels > 0).all()
    assert adjusted_rand_index(federation.true_cluster, state.labels) == 1


def test_all_in_one_cluster_without_a_pull_is_fedavg_twice():
    with engine(federation=uneven(), rounds=3, epochs=1) as used:
        state, _ = run(StoCFL(tau=-1, pull=0.0), used)
        fedavg, _ = run(Method(), used)
    assert torch.equal(state.theta[1], fedavg.theta[0])
    torch.testing.assert_close(state.theta[0], fedavg.theta[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_a_pull_to_a_model_of_a_number(backend):
    """Pulled to the very model that all start from it is the usual pull; to another one, plain PyTorch with that."""
    settings = {"proximal": 0.7, "epochs": 2, "batch_size": 4}
    with engine(backend=backend, **settings) as used:
        theta = torch.stack([used.initial(k) for k in range(3)])
        clients, needs = np.arange(6), frozenset({"updates"})
        start = np.array([0, 2, 0, 2, 2, 0])
        found = used.train(theta, start, clients, needs=needs, towards=1)
        for i in clients:
            row = plain(mlp(), theta[start[i]], used.layout, used, i, 1, used.training, theta[1])
            torch.testing.assert_close(theta[start[i]] + found.rows[i], row, rtol=1e-4, atol=1e-5)
        usual = used.train(theta, np.full(6, 2), clients, needs=needs, towards="given")
        same = used.train(theta, np.full(6, 2), clients, needs=needs, towards=2)
    assert torch.equal(usual.rows[:], same.rows[:])


def test_models_are_taken_with_the_servers_memory(context):
    state = State(torch.arange(3.0)[:, None], np.zeros(4, dtype=np.int64))
    state.server_velocity, state.server_steps = torch.arange(3.0)[:, None] * 10, np.array([5, 6, 7])
    take_models(context, state, np.array([2, 0, 0]))
    assert state.theta[:, 0].tolist() == [2, 0, 0] and state.server_velocity[:, 0].tolist() == [20, 0, 0]
    assert state.server_steps.tolist() == [7, 5, 5]


def test_costs_by_hand():
    """Six clients of one cluster each draw two models and send two; at first one more, 20 epochs of ten a step."""
    with engine(federation=uneven(), rounds=2, epochs=1) as used:
        _, record = run(StoCFL(tau=1.0), used)
    rounds = Record.table(record.rounds)
    assert (rounds["bytes_up"] / 4 / used.layout.columns).tolist() == [18, 12]
    assert (rounds["bytes_down"] == rounds["bytes_up"]).all()
    steps = sum(-(-n // 10) for n in (3, 10, 25, 7, 16, 40))
    assert rounds["local_steps"].tolist() == [22 * steps, 2 * steps]


def test_who_was_not_seen_and_newcomers_may_have_the_common_model():
    options = {"evaluations": ["aggregated", "newcomer"], "newcomers": uneven((12, 14), seed=1)}
    with engine(federation=uneven((10,) * 8), rounds=1, participation=0.25, **options) as used:
        state, record = run(StoCFL(), used)
        common = used.own_scores(state.theta, np.zeros(8, np.int64), np.arange(8), "test")
    history = Record.table(record.history)
    last = (history["round"] == 1) & (history["split"] == "test") & (history["evaluation"] == "aggregated")
    unseen = state.labels == 0
    assert unseen.sum() == 6
    np.testing.assert_array_equal(history["loss"][last][unseen], common.loss[unseen])
    assert StoCFL().place(state, np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"average": "gradients", "batch_size": "full", "steps": 1}, "allowed: models"),
        ({"divisor": "expected", "weights": "uniform"}, "allowed: participants, ratio, all"),
    ],
)
def test_what_is_refused(settings, said):
    with engine(rounds=2, **settings) as used, pytest.raises(UserError, match=said):
        run(StoCFL(pull=0.0), used)
