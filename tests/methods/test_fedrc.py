"""FedRC: responsibilities by hand, the slow obvious loop, what it costs, planted groups under label skew, newcomers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, noise, slow_but, uneven
from test_contract import SIZES, numbers, same
from test_fedem import plain
from test_personal import run
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fedem import FedEM, responsibilities
from clusterfl.methods.fedrc import FedRC, LabelSums, common_labels
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation.method import Known, SampleLosses
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State


def test_how_common_a_label_is_by_hand():
    """Sums of two clients for two models and two labels: model 0 has 3 + 0 and 0 + 1, so (3/4, 1/4); model 1 none."""
    sums = np.array([[[3.0, 0], [0, 0]], [[0, 1], [0, 0]]])
    np.testing.assert_allclose(common_labels(sums), [[0.75, 0.25], [0.5, 0.5]])


def test_responsibilities_by_hand():
    """C = (3/4, 1/4) of model 0 and (1/4, 3/4) of model 1, equal losses and shares: label 0 is 3 times as likely of 1.

    With e^-loss of 1 and 1/3 for label 1, model 0: 1 / (1/4) = 4, model 1: 1/3 / (3/4) = 4/9, so 9 to 1.
    """
    sums = np.array([[[3.0, 1], [1, 3]]])
    state = State(torch.zeros(2, 1), np.zeros(1, dtype=np.int64), LabelSums(sums, sums))
    values, owner = np.array([[1.0, 1.0], [0.0, np.log(3)]]), np.zeros(2, dtype=np.int64)
    losses = SampleLosses(values, owner, np.array([0, 1]), np.array([2]))
    found = responsibilities(np.array([[0.5, 0.5]]), losses, FedRC(clusters=2).odds(state, losses))
    np.testing.assert_allclose(found, [[0.25, 0.75], [0.9, 0.1]])


def odds(last, y):
    """Return minus the logarithm of C for labels `y`, from what each client last found and its labels."""
    if not last:
        return 0.0
    models, found = next(iter(last.values()))[0].shape[1], []
    for k in range(models):
        counts = np.full(3, 0.0)
        for responsible, labels in last.values():
            for i, label in enumerate(labels):
                counts[label] += responsible[i, k]
        counts = np.maximum(counts, 1e-8)
        found.append(-np.log(counts[y] / counts.sum()))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
def test_it_is_the_slow_obvious_loop(backend):
    settings = {"rounds": 4, "epochs": 2, "participation": 0.6, "batch_size": 4}
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, _ = run(FedRC(clusters=3), used)
        rows, shares = plain(used, 4, 3, odds)
        other, _ = plain(used, 4, 3)
    torch.testing.assert_close(state.theta, rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.mixture, shares, rtol=1e-4)
    assert (rows - other).abs().max() > 1e-3  # FedEM is another method


def test_no_bit_depends_on_the_cut():
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(federation=uneven(SIZES), rounds=3, epochs=1, participation=0.6, **cut) as used:
            found.append(numbers(*run(FedRC(clusters=3), used)))
    for other in found[1:]:
        same(found[0], other)


def test_the_first_round_is_fedems():
    with engine(federation=uneven(SIZES), rounds=1, epochs=1) as used:
        first, second = (run(method(clusters=3), used)[0] for method in (FedRC, FedEM))
    torch.testing.assert_close(first.theta, second.theta, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(first.mixture, second.mixture, rtol=1e-12)


def test_what_a_round_costs():
    """As FedEM, and for each model and class a number up and one down."""
    with engine(federation=uneven(SIZES), rounds=2, epochs=1, participation=0.5) as used:
        tables = [Record.table(run(method(clusters=2), used)[1].rounds) for method in (FedRC, FedEM)]
        many = used.training.participants(len(SIZES))
    for name in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name] + 4 * many * 2 * 3)
    for name in ("local_steps", "client_forwards"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name])


def skewed(seed, clients=12, samples=60, tests=60, classes=4, features=6):
    """Two groups that name classes differently; a client has three quarters of its samples from one pair of classes."""
    rng = np.random.default_rng(seed)
    centres, parts = 2 * rng.normal(size=(classes, features)), []
    for i in range(clients):
        group, pair = i % 2, i // 2 % 2
        for split, n in (("train", samples), ("test", tests)):
            likely = np.where(np.arange(classes) // 2 == pair, 0.375, 0.125)
            true = rng.choice(classes, n, p=likely)
            x = centres[true] + rng.normal(size=(n, features))
            y = true if group == 0 else (true + 1) % classes
            parts.append((x, y, np.full(n, i), np.full(n, split), np.full(n, group)))
    return Federation.from_arrays(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@pytest.mark.slow
def test_planted_groups_are_found_though_labels_are_skewed_and_models_are_too_many():
    """Of four models two are used, one for each rule, whatever clients' labels are, in five seeds."""
    for seed in range(5):
        data = skewed(seed)
        with engine(lambda: nn.Linear(6, 4), data, rounds=40, seed=seed, evaluate_every=40) as used:
            state, record = run(FedRC(clusters=4), used)
            _, fedavg = run(METHODS["fedavg"](), used)
        assert adjusted_rand_index(data.true_cluster, state.labels) == 1, seed
        accuracies = []
        for table in (record, fedavg):
            history = Record.table(table.history)
            last = (history["round"] == 40) & (history["split"] == "test")
            accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert accuracies[0] > accuracies[1] + 0.2, accuracies


def test_newcomers_go_by_their_labels_too_unless_all_are_as_common():
    """Model 0 loses less on its samples, all of label 0, which are nine times as common there as with model 1."""
    values, owner = np.log([[1.0, 2.0]] * 3), np.zeros(3, dtype=np.int64)
    losses = SampleLosses(values, owner, np.zeros(3), np.array([3]))
    state = State(torch.zeros(2, 1), np.zeros(1, dtype=np.int64), LabelSums(*np.array([[[[9.0, 1], [1, 9]]]] * 2)))
    ours, authors = (FedRC(clusters=2, equal_labels=equal).blend(state, losses) for equal in (False, True))
    np.testing.assert_array_equal(authors, FedEM(clusters=2).blend(state, losses))
    assert ours[0, 0] < 0.01 < 0.99 < authors[0, 0]


def test_numbers_are_refused():
    (problem,) = FedRC(clusters=2).check(Known(Training(), numbers=True))
    assert "allowed: data with classes, or method fedem" in problem.sentence
    used = engine(lambda: nn.Linear(5, 1), noise(SIZES, outputs=1), rounds=1)
    with used, pytest.raises(UserError, match="real numbers are predicted"):
        run(FedRC(clusters=2), used)
