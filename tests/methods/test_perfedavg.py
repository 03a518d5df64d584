"""Per-FedAvg: pairs of steps by hand, the released switch, what is refused, planted groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, uneven
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods.perfedavg import PerFedAvg
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


def run(used, **options):
    return loop.run(PerFedAvg(**options), loop.context(used), used)


def test_a_pair_of_steps_by_hand():
    """Loss (w x - y)^2 with x = 1, w = 0, y = 1 in every batch; alpha = .1, beta = .2.

    The gradient at 0 is -2, so one looks ahead to .2; there it is 2 (.2 - 1) = -1.6; from 0: w = .32. With the next
    pair: .32 - .1 x 2 (.32 - 1) = .456, gradient -1.088, w = .32 + .2176 = .5376. Adapted by a step of alpha:
    .5376 + .1 x 2 x .4624 = .63008, loss .36992^2.
    """
    x, y = np.ones((6, 1), dtype=np.float32), np.ones(6, dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.zeros(6, dtype=int), np.array(["train"] * 4 + ["test"] * 2))
    settings = {"rounds": 1, "batch_size": 2, "learning_rate": 0.2, "evaluations": ["aggregated", "personalised"]}
    for epochs, options, expected in (
        (1, {}, 0.32),
        (1, {"twice": True}, 0.5376),
        (2, {}, 0.5376),
    ):
        with engine(one, federation, epochs=epochs, **settings) as used:
            used.initial = lambda index=0: torch.zeros(1)
            state, record = run(used, ahead=0.1, **options)
        np.testing.assert_allclose(state.theta[0], [expected], rtol=1e-5)
    history = Record.table(record.history)
    last = (history["round"] == 1) & (history["evaluation"] == "personalised")
    np.testing.assert_allclose(history["loss"][last], [0.36992**2], rtol=1e-4)
    assert Record.table(record.rounds)["local_steps"].tolist() == [4]


@pytest.mark.parametrize("own", [{"momentum": 0.5}, {"optimizer": "adam"}])
def test_adaptation_is_plain_descent_whatever_the_optimiser(own):
    """From 0, as above: .1 x 2 = .2, then .2 + .1 x 1.6 = .36; momentum would lead to .2 + .1 (1.6 + 1) = .46."""
    x, y = np.ones((3, 1), dtype=np.float32), np.ones(3, dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.zeros(3, dtype=int), np.array(["train"] * 2 + ["test"]))
    with engine(one, federation, rounds=0, learning_rate=0.2, evaluations=["personalised"], **own) as used:
        used.initial = lambda index=0: torch.zeros(1)
        _, record = run(used, ahead=0.1, adaptation=2)
    history = Record.table(record.history)
    np.testing.assert_allclose(history["loss"][history["evaluation"] == "personalised"], [0.64**2], rtol=1e-5)


def test_without_looking_ahead_it_is_fedavg_on_every_second_batch():
    """In the limit of a small alpha: the first of a pair changes nothing."""
    with engine(rounds=1, steps=2, epochs=None, batch_size="full") as used:
        ahead, _ = run(used, ahead=1e-12)
    with engine(rounds=1, steps=1, epochs=None, batch_size="full") as used:
        plain, _ = loop.run(loop.Method(), loop.context(used), used)
    torch.testing.assert_close(ahead.theta, plain.theta, rtol=0, atol=1e-6)


def test_twice_doubles_epochs_or_steps():
    assert PerFedAvg(twice=True).settings(Training(epochs=3)).epochs == 6
    assert PerFedAvg(twice=True).settings(Training(steps=4)).steps == 8
    found = PerFedAvg().settings(Training(epochs=3, learning_rate=0.02))
    assert (found.epochs, found.lookahead, found.personalised_steps) == (3, 0.02, 1)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"steps": 1, "epochs": None}, "in pairs"),
        ({"epochs": 1, "batch_size": "full"}, "set more steps or epochs"),
        ({"average": "gradients", "batch_size": "full", "steps": 1, "epochs": None}, "lookahead"),
    ],
)
def test_what_it_cant_do_is_refused_when_settings_are_checked(settings, words):
    with pytest.raises(UserError, match=words):
        PerFedAvg().settings(Training(**settings))


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.slow)])
def test_adaptation_is_better_from_its_model(seeds):
    """Two groups of opposite rules: no model is good for both; a few own steps make its one better."""
    for seed in seeds:
        settings = {"rounds": 30, "evaluations": ["aggregated", "personalised"], "learning_rate": 0.1, "seed": seed}
        with engine(federation=uneven((60,) * 8, seed=seed, tests=40), **settings) as used:
            _, record = run(used, ahead=0.5, adaptation=5)
        history = Record.table(record.history)
        last = (history["round"] == 30) & (history["split"] == "test")
        hits = {
            e: history["correct"][last & (history["evaluation"] == e)].sum() / 320
            for e in ("aggregated", "personalised")
        }
        assert hits["personalised"] > hits["aggregated"] + 0.1, hits
