"""FedALA: a round by hand, who mixes when, what it costs, planted groups, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, uneven
from test_contract import SIZES, numbers
from test_personal import run
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fedala import FedALA
from clusterfl.simulation.method import Known
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


def test_two_rounds_by_hand():
    """Loss (a - y)^2 from a = 0; rate 1/4, so that a step leads half way: a <- (a + y) / 2. eta = 1/10, one pass.

    Client 0 has y = 2, one sample: trained to 1. Client 1 has y = -2, three samples: to -1. The mean is
    (1 - 3) / 4 = -1/2. Both mix with w = 1: client 0 is at -1/2 and goes on to 1.25 if w stays; its gradient of w is
    2 (-1/2 - 2) (-1/2 - 1) = 7.5, so w = .25 and a = 1 - 1.5 x .25 = .625. Client 1: 2 (-1/2 + 2) (-1/2 + 1) = 1.5,
    w = .85, a = -1 + .5 x .85 = -.575. Round 2: a = 1.3125 and -1.2875; mean (1.3125 - 3 x 1.2875) / 4 = -.6375.
    """
    x, y = np.ones((4, 1), dtype=np.float32), np.array([2.0, -2, -2, -2], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1]))
    settings = {"steps": 1, "batch_size": "full", "learning_rate": 0.25}
    options = {"tensors": 1, "rate": 0.1, "passes": 1, "share": 1.0}
    for rounds, everyone, own, theta in (
        (1, True, [0.625, -0.575], -0.5),
        (1, False, [1.0, -1.0], -0.5),
        (2, False, [1.3125, -1.2875], -0.6375),
    ):
        with engine(one, federation, rounds=rounds, **settings) as used:
            used.initial = lambda index=0: torch.zeros(1)
            state, record = run(FedALA(everyone=everyone, **options), used)
        np.testing.assert_allclose(state.personal.rows[:, 0], own, rtol=1e-6)
        np.testing.assert_allclose(state.theta[0], [theta], rtol=1e-6)
        np.testing.assert_allclose(state.own.weights[:, 0], [0.25, 0.85] if own[0] != 1 else [1, 1], rtol=1e-6)
    assert Record.table(record.rounds)["client_forwards"].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"window": 2, "spread": 1e9}, 3),  # one more than the window: any spread will do
        ({"window": 4, "spread": 1e9}, 5),
        ({"window": 2, "spread": 1e-30, "passes": 7}, 7),  # none will
    ],
)
def test_weights_are_learned_until_the_last_losses_differ_little(options, passes):
    """Four samples go through the models in each pass, by steps so small that the losses go on falling."""
    x, y = np.ones((4, 1), dtype=np.float32), np.array([2.0, -2, -2, -2], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1]))
    with engine(one, federation, rounds=1, steps=1, batch_size="full", learning_rate=0.25) as used:
        _, record = run(FedALA(tensors=1, rate=1e-3, share=1.0, **options), used)
    assert Record.table(record.rounds)["client_forwards"].tolist() == [4 * passes]


def test_mixing_after_a_round_or_before_the_next_trains_the_same():
    """With all clients in each round, to the bit; only what is scored in between differs."""
    found = []
    for everyone in (True, False):
        with engine(federation=uneven(SIZES), rounds=3, epochs=1) as used:
            found.append(numbers(*run(FedALA(everyone=everyone), used)))
    np.testing.assert_array_equal(found[0]["theta"], found[1]["theta"])
    assert (found[0]["personal"] != found[1]["personal"]).any()


def test_weights_of_one_that_never_change_are_fedavg():
    """Steps too small for a float32: every client begins with the common model, and the mean is FedAvg's."""
    states = []
    for method in (FedALA(rate=1e-30), METHODS["fedavg"]()):
        with engine(federation=uneven(SIZES), rounds=3, epochs=1, participation=0.6) as used:
            states.append(run(method, used)[0])
    torch.testing.assert_close(states[0].theta, states[1].theta, rtol=1e-5, atol=1e-6)
    columns = states[0].personal.columns
    torch.testing.assert_close(
        states[0].personal.rows[:], columns.taken(states[0].theta[0]).repeat(len(SIZES), 1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("everyone", [True, False])
def test_models_are_counted_once_for_each_client_that_receives_them(everyone):
    with engine(federation=uneven(SIZES), rounds=3, epochs=1, participation=0.5) as used:
        state, record = run(FedALA(everyone=everyone), used)
        size, m = 4 * used.layout.columns, len(SIZES)
    rounds = Record.table(record.rounds)
    assert (rounds["bytes_down"] == size * (m if everyone else m // 2)).all()
    assert (rounds["bytes_up"] == size * (m // 2)).all()
    assert state.own.settled.all() or not everyone


@pytest.mark.slow
def test_planted_groups_get_layers_of_their_own():
    """Two groups whose classes follow opposite rules: one model can't follow both, mixed ones do."""
    for seed in range(5):
        with engine(federation=uneven((60,) * 8, seed=seed, tests=40), rounds=30, seed=seed) as used:
            accuracies = []
            for method in (FedALA(), FedALA(everyone=False), METHODS["fedavg"]()):
                history = Record.table(run(method, used)[1].history)
                last = (history["round"] == 30) & (history["split"] == "test")
                accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert min(accuracies[:2]) > accuracies[2] + 0.2, accuracies


def test_what_it_cant_do_is_refused():
    training = Training(average="gradients", batch_size="full", steps=1)
    (problem,) = FedALA().check(Known(training))
    assert problem.option == "training.average" and "allowed: models" in problem.sentence
    words = "tensors: 5 of the model's parameter tensors, which are 4: 1.weight, .* 3.bias; allowed: 1 to 4"
    with engine() as used, pytest.raises(UserError, match=words):
        run(FedALA(tensors=5), used)
