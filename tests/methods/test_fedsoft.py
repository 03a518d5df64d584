"""FedSoft: counts and a round by hand, the slow obvious loop, what it costs, planted groups, newcomers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import beginning, cnn, engine, images, mlp, slow_but, uneven
from test_contract import SIZES, numbers, same
from test_fedem import batches_of
from test_personal import run
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fedsoft import FedSoft, counted
from clusterfl.metrics import adjusted_rand_index
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, Method, SampleLosses
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


def test_counts_by_hand():
    """Of three samples model 1 is best on two, one of them since model 0 diverged; ties go to the first."""
    values = np.array([[1.0, 2.0, 3.0], [np.nan, 5.0, 6.0], [4.0, 3.0, 9.0], [2.0, 2.0, 2.0], [np.inf, np.nan, np.inf]])
    owner, sizes = np.array([0, 0, 0, 1, 2]), np.array([3, 1, 1])
    found = counted(SampleLosses(values, owner, owner, sizes), 0.01)
    np.testing.assert_allclose(found, [[1, 2, 0.03], [1, 0.01, 0.01], [np.nan] * 3])


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_a_round_by_hand(backend):
    """y = a x, loss (a - y)^2, centres 0 and 4, client 0 with y = 0, 0, 0, 4 (u = 3/4, 1/4), client 1 with y = 4 twice.

    Sigma = 1/8: client 1 counts 1/4 and 2 samples, u = 1/9 and 8/9, so it is pulled to 32/9, client 0 to 1. Both begin
    at 0, rate 1/4, lambda = 1/2: gradient -2 of mean y 1 and pull (0 - 1) / 2, to 5/8; client 1 -8 and -16/9, to 22/9.
    """
    x, y = np.ones((6, 1), np.float32), np.array([0.0, 0, 0, 4, 4, 4])
    federation = Federation.from_arrays(x, y, np.array([0, 0, 0, 0, 1, 1]))
    settings = {"rounds": 1, "steps": 1, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
    with engine(one, federation, **settings) as used:
        used.initial = lambda index=0: torch.zeros(1)
        method = beginning(FedSoft(clusters=2, pull=0.5, least=0.125), torch.tensor([[0.0], [4.0]]))
        state, record = run(method, used)
    own = np.array([5 / 8, 22 / 9])
    np.testing.assert_allclose(state.personal.rows[:, 0], own, rtol=1e-6)
    counts = np.array([[3, 1], [0.25, 2]])
    np.testing.assert_allclose(state.own.counts, counts)
    np.testing.assert_allclose(state.theta[:, 0], own @ counts / counts.sum(0), rtol=1e-6)
    assert state.labels.tolist() == [0, 1]
    history = Record.table(record.history)
    expected = [(3 * own[0] ** 2 + (own[0] - 4) ** 2) / 4, (own[1] - 4) ** 2]
    np.testing.assert_allclose(history["loss"][history["round"] == 1], expected, rtol=1e-5)


def plain(used, rounds, method):
    """FedSoft in plain PyTorch, the pull written as a sum over centres: centres [K, P], own models [M, P], counts."""
    train, layout, module = used.federation.splits["train"], used.layout, used.factory()
    centres = [used.initial(k) for k in range(method.clusters)]
    own = used.initial(0).repeat(used.federation.clients, 1)
    counts, last = np.zeros((len(own), method.clusters)), np.zeros(len(own))
    for round_ in range(1, rounds + 1):
        clients = Method().sample(loop.context(used), None, round_)
        for client in clients:
            places = torch.arange(*train.offsets[client : client + 2].tolist())
            x = used.worker.data["train"].take(places)
            y = used.worker.data["train"].targets(places, x)
            if not last[client] or round_ - last[client] >= method.interval:
                losses = []
                for row in centres:
                    layout.load(module, row)
                    with torch.no_grad():
                        losses.append(nn.functional.cross_entropy(module.eval()(x), y, reduction="none").numpy())
                best = np.argmin(losses, axis=0)
                for k in range(method.clusters):
                    counts[client, k] = (best == k).sum() or method.least * len(y)
                last[client] = round_
            shares = counts[client] / counts[client].sum()
            layout.load(module.train(), own[client])
            optimizer = torch.optim.SGD(module.parameters(), lr=used.training.learning_rate)
            pulls = [layout.tensors(row) for row in centres]
            for _, inputs, targets in batches_of(used, client, round_):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(inputs), targets)
                for share, centre in zip(shares, pulls, strict=True):
                    away = sum((p - centre[name]).square().sum() for name, p in module.named_parameters())
                    loss = loss + method.pull / 2 * share * away
                loss.backward()
                optimizer.step()
            own[client] = layout.flatten(module).detach()
        weights = torch.as_tensor(counts[clients] / counts[clients].sum(axis=0))
        centres = [(weights[:, k, None] * own[clients].double()).sum(0).float() for k in range(method.clusters)]
    return torch.stack(centres), own, counts


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
@pytest.mark.parametrize("interval", slow_but([2], [1, 2]))
def test_it_is_the_slow_obvious_loop(backend, interval):
    settings = {"rounds": 4, "epochs": 2, "participation": 0.6, "batch_size": 4}
    method = FedSoft(clusters=3, pull=0.5, interval=interval, least=0.01)
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(method, used)
        centres, own, counts = plain(used, 4, method)
        expected = used.own_scores(own, np.arange(6), np.arange(6), "test")
    np.testing.assert_array_equal(state.own.counts, counts)
    torch.testing.assert_close(state.theta, centres, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.personal.rows[:], own, rtol=1e-4, atol=1e-5)
    history, taken = Record.table(record.history), state.labels >= 0
    last = (history["round"] == 4) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss[taken], rtol=1e-4, atol=1e-5)


FORMS = {"dense": (mlp, lambda: uneven(SIZES)), "loop": (cnn, images)}


@pytest.mark.parametrize("form", slow_but(["dense"], FORMS))
def test_no_bit_depends_on_the_cut(form):
    factory, data = FORMS[form]
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(factory, data(), rounds=2, momentum=0.5, participation=0.6, learning_rate=0.05, **cut) as used:
            found.append(numbers(*run(FedSoft(clusters=3), used)))
    for other in found[1:]:
        same(found[0], other)


@pytest.mark.parametrize("interval", [1, 2])
def test_what_a_round_costs(interval):
    """All centres down, one model up; passes and counts only in rounds that have some."""
    with engine(federation=uneven(SIZES), rounds=4, epochs=1) as used:
        rounds = Record.table(run(FedSoft(clusters=3, interval=interval), used)[1].rounds)
        m, size = len(SIZES), 4 * used.layout.columns
    counting = np.arange(4) % interval == 0
    np.testing.assert_array_equal(rounds["bytes_down"], 3 * m * size)
    np.testing.assert_array_equal(rounds["bytes_up"], m * size + counting * 4 * m * 3)
    np.testing.assert_array_equal(rounds["client_forwards"], counting * 3 * sum(SIZES))


@pytest.mark.slow
def test_planted_groups_get_models_of_their_own():
    """Two groups whose classes follow opposite rules, in five seeds."""
    for seed in range(5):
        data, accuracies = uneven((40,) * 8, seed=seed, tests=40), []
        with engine(federation=data, rounds=30, seed=seed, evaluate_every=30) as used:
            state, record = run(FedSoft(clusters=2), used)
            for table in (record, run(METHODS["fedavg"](), used)[1]):
                history = Record.table(table.history)
                last = (history["round"] == 30) & (history["split"] == "test")
                accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert adjusted_rand_index(data.true_cluster, state.labels) == 1
        assert accuracies[0] > accuracies[1] + 0.3, accuracies


def test_who_is_not_drawn_or_sends_nothing_sound_keeps_its_own_model():
    bad = {"corrupt": [2, 5]}
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, diverged="exclude", faults=bad) as used:
        state, _ = run(FedSoft(clusters=2), used)
        drawn = np.setdiff1d(Method().sample(loop.context(used), state, 1), [2, 5])
        moved = (state.personal.rows[:] != used.initial(0)).any(dim=1).numpy()
    np.testing.assert_array_equal(np.flatnonzero(moved), drawn)
    assert state.theta.isfinite().all()


def test_a_newcomer_has_the_centre_of_least_loss():
    with engine(rounds=2, evaluations=["aggregated", "newcomer"], newcomers=uneven((12, 14), seed=1)) as used:
        state, record = run(FedSoft(clusters=2), used)
        labels = used.losses(state.theta, np.arange(2), "newcomer.train").argmin(axis=1)
        scores = used.own_scores(state.theta, labels, np.arange(2), "newcomer.test")
    history = Record.table(record.history)
    rows = (history["evaluation"] == "newcomer") & (history["round"] == 2)
    np.testing.assert_array_equal(history["loss"][rows], scores.loss)


def test_what_it_cant_do_is_refused():
    found = {p.option: p.sentence for p in FedSoft(clusters=2).check(Known(Training(divisor="all")))}
    assert "'all' is of one centre" in found["training.divisor"]
    (problem,) = FedSoft(clusters=2).check(Known(Training(average="gradients", batch_size="full", steps=1)))
    assert problem.option == "training.average" and "allowed: models" in problem.sentence
    refused = {"on how many of its samples": (None, Privacy(clip=0.1, noise_multiplier=1.0, delta=1e-3))}
    refused["doesn't assign"] = (Rebalance(minimum=2), None)
    for said, given in refused.items():
        used = engine(federation=uneven(SIZES), rounds=1, weights="uniform")
        with used, pytest.raises(UserError, match=said):
            run(wrap(FedSoft(clusters=2), "fedsoft", *given), used)
