"""Losses that an evaluation measured: the next round's are the same bits, and aren't measured again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, uneven

from clusterfl.engine.task import Scores
from clusterfl.engine.worker import Worker
from clusterfl.methods.clove import CLoVE
from clusterfl.methods.ifca import IFCA
from clusterfl.simulation import loop
from clusterfl.simulation.measured import Measured
from clusterfl.simulation.method import Method
from clusterfl.simulation.state import State

SIZES = (3, 10, 25, 7, 16, 40)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Splits and (client, model) pairs that are scored, of each job in this process."""
    found, score, own = [], Worker.score_models, Worker.score_own

    def counted(worker, theta, models, split, clients, *more):
        found.append((split, len(models) * len(clients)))
        return score(worker, theta, models, split, clients, *more)

    def counted_own(worker, theta, labels, split, clients, *more):
        found.append((split, len(clients)))
        return own(worker, theta, labels, split, clients, *more)

    monkeypatch.setattr(Worker, "score_models", counted)
    monkeypatch.setattr(Worker, "score_own", counted_own)
    return found


@pytest.mark.parametrize("factory", [mlp, cnn, norm_and_dropout])
def test_known_losses_are_not_measured(factory, passes):
    bits_and_passes(factory, 1, passes)


@pytest.mark.parametrize("factory", [mlp, cnn])
def test_two_processes(factory):
    bits_and_passes(factory, 2, [])


def bits_and_passes(factory, workers, passes):
    federation = uneven(SIZES) if factory is mlp else images(6)
    with engine(factory, federation, workers=workers) as used:
        theta, clients = torch.stack([used.initial(k) for k in range(3)]), np.array([0, 1, 3, 4, 5])
        labels = np.array([2, -1, 0, 0, 2])  # the second has none, and nobody the model 1
        whole, there = used.losses(theta, clients), labels >= 0
        known = np.full(5, np.nan)
        known[there] = used.own_scores(theta, labels[there], clients[there], "train").loss
        passes.clear()
        assert np.array_equal(used.losses(theta, clients, own=(labels, known)), whole)
        if workers == 1:
            assert sum(pairs for _, pairs in passes) == 5 * 3 - (0 if used.worker.several else 4)
        known[0] = 7.0  # what is said to be known is taken, unless all are computed side by side
        assert used.losses(theta, clients, own=(labels, known))[0, 2] == (whole[0, 2] if used.worker.several else 7.0)


METHODS = [IFCA(clusters=2), CLoVE(clusters=3, first_round="losses"), CLoVE(clusters=2, stable_rounds=2)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"evaluate_every": 2}, {"participation": 0.5}])
def test_runs_have_the_same_bits_without(method, options, passes, monkeypatch):
    settings = {"federation": uneven(SIZES), "rounds": 4, "epochs": 1, **options}
    found, pairs = [], []
    for on in (True, False):
        if not on:
            monkeypatch.setattr(Measured, "of", lambda *given: None)
        passes.clear()
        with engine(**settings) as used:
            state, record = loop.run(method, loop.context(used), used)
        pairs.append(sum(number for split, number in passes if split == "train"))
        tables = {name: one for name, one in record.tables().items() if name != "timing"}
        found.append((state.theta.numpy(), state.labels, state.own.losses, tables))
    np.testing.assert_equal(*found)
    assert pairs[0] < pairs[1]


def test_hand_arithmetic_of_what_is_spared(passes):
    """Six clients, three models, four rounds: each round's losses are 18, of which 6 are known from round 2 on."""
    with engine(federation=uneven(SIZES), rounds=4, epochs=1) as used:
        loop.run(CLoVE(clusters=3, first_round="losses"), loop.context(used), used)
    train = sum(pairs for split, pairs in passes if split == "train")
    assert train == 18 + 3 * (18 - 6) + 4 * 6  # losses of round 1, of the others; evaluations


@dataclass(frozen=True, kw_only=True)
class Shaken(Method):
    """Moves its models in place before it asks for losses, as no method here does."""

    reveals: ClassVar = "losses"

    def begin(self, context):
        return State(torch.stack([context.initial(k) for k in range(2)]), np.arange(context.clients) % 2)

    def assign(self, context, state, round_, clients, losses):
        state.theta.numpy()[0] += 0.01  # of which PyTorch knows nothing
        measured = losses()
        with engine(federation=uneven(SIZES)) as other:
            assert np.array_equal(measured, other.losses(state.theta, clients))
        return super().assign(context, state, round_, clients, losses)


def test_models_that_moved_since_are_measured():
    with engine(federation=uneven(SIZES), rounds=2, epochs=1) as used:
        loop.run(Shaken(), loop.context(used), used)


def test_where_nothing_is_known():
    theta, labels = torch.zeros(2, 3), np.array([0, -1])
    scores = Scores(np.array([4]), np.array([2.0]), np.array([0.5]))
    state = State(theta, labels)
    known = Measured.of(state, np.array([0]), scores)
    assert known is not None and known.own(theta.clone(), np.array([0, 1]))[0].tolist() == [0, -1]
    assert known.own(theta + 1e-9, np.array([0])) is None
    assert known.own(torch.zeros(2, 3)[:, :2], np.array([0])) is None
    state.mixture = np.ones((2, 2)) / 2
    assert Measured.of(state, np.array([0]), scores) is None
