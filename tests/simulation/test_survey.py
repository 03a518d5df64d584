"""What clients are asked for apart from rounds: what they answer, what that costs, and where it is recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federations import engine, images, mlp, norm_and_dropout, uneven

from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.prepared import samples_of
from clusterfl.engine.engine import Engine
from clusterfl.engine.personal import Columns, Personal
from clusterfl.engine.training import Training
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State
from clusterfl.simulation.survey import Survey
from clusterfl.simulation.warm_up import warm_up

SIZES = (3, 10, 25, 7)
STEPS = Training(steps=4, epochs=None, learning_rate=0.05)


def test_samples_are_the_clients_own_and_all_of_them_are_counted():
    with engine(federation=uneven(SIZES)) as used:
        data, samples = used.federation.splits["train"], Survey(used).samples
        x, y = samples[2]
        np.testing.assert_array_equal(x, samples_of(data)[13:38])
        np.testing.assert_array_equal(y, data.y[13:38])
        assert samples.sent == 25 * 5 + 25
        assert [len(labels) for _, labels in samples] == list(SIZES) and len(samples) == 4
        assert samples.sent == 25 * 6 + 45 * 6
        with pytest.raises(IndexError):
            samples[4]


def test_of_a_reduction_only_the_result_is_sent():
    with engine(federation=uneven(SIZES)) as used:
        survey = Survey(used)
        means = survey.samples.reduced(lambda x, y: x.mean(axis=0))
        np.testing.assert_array_equal(means[1], survey.samples._of(1)[0].mean(axis=0))
    assert survey.spent() == {"bytes_down": 0, "bytes_up": 4 * 4 * 5, "local_steps": 0, "client_forwards": 0}
    assert not any(survey.spent().values())


@pytest.mark.parametrize("kind", ["pixels", "features"])
def test_samples_are_from_before_normalisation(kind):
    """A picture of one channel, or a row of features, with one mean and one deviation for each."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (6, 2, 4, 4)).astype(np.uint8) if kind == "pixels" else draw.normal(size=(6, 2))
    given = Inputs(mean=[0.4, 0.1], std=[0.3, 2.0])
    federation = Federation.from_arrays(x, np.zeros(6, int), np.repeat([0, 1], 3), inputs=given)
    size = 32 if kind == "pixels" else 2
    with Engine(lambda: mlp(size, 2), federation, Training(), device="cpu") as used:
        found, _ = Survey(used).samples[1]
    expected = x[3:].reshape(3, -1) / (255 if kind == "pixels" else 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_updates_are_those_of_training_alone_from_one_model():
    """As of a round 0 with new optimisers; asked for twice, or beside others, a client answers the same."""
    momentum = STEPS.model_copy(update={"momentum": 0.9, "optimizer_state": "kept"})
    with engine(federation=uneven(SIZES)) as used:
        theta, survey = used.initial(3), Survey(used)
        update = survey.updates(theta, np.array([0, 2, 3]), momentum)
        alone = survey.updates(theta, np.array([2]), momentum)
        plain = momentum.model_copy(update={"optimizer_state": "fresh"})
        by_hand = used.train(
            theta[None], np.zeros(1, int), np.array([2]), 0, needs=frozenset({"updates"}), training=plain
        )
        assert torch.equal(update.rows[1], alone.rows[0]) and torch.equal(alone.rows[0], by_hand.rows[0])
        assert survey.spent() == {
            "bytes_down": 4 * 4 * used.layout.columns, "bytes_up": 4 * 4 * used.layout.columns, "local_steps": 16,
            "client_forwards": 0,
        }  # fmt: skip


@pytest.mark.parametrize("asks", ["summed", "trained"])
def test_further_trainings_are_at_each_clients_own_rate(asks):
    """By 0, 2 and 1 earlier participations .1, .025 and .05, of clients that aren't the first ones."""
    decaying = {"schedule": "participation", "decay": 0.5, "epochs": 1}
    clients, before = np.array([1, 2, 3]), np.array([5, 0, 2, 1])
    with engine(federation=uneven(SIZES), **decaying) as used:
        theta, columns = used.initial(0), Columns(np.array([[0, used.layout.columns]]))
        state = State(theta[None], np.zeros(4, dtype=np.int64), participations=before)
        state.last_label, state.personal = np.full(4, -1), Personal(columns, theta.repeat(4, 1))
        if asks == "summed":
            found = Survey(used).summed(theta, state, clients, 2, used.training, np.ones(3)).sums[0]
        else:
            Survey(used).trained(state, clients, 2, used.training)
            found = state.personal.rows[1:] - theta
        expected = []
        for client in clients:
            plain = Training(epochs=1, learning_rate=0.1 * 0.5 ** int(before[client]))
            needs = frozenset({"updates"})
            one = used.train(theta[None], np.zeros(1, int), np.array([client]), 2, needs=needs, training=plain)
            expected.append(one.rows[0].to(found.dtype))
    expected = torch.stack(expected)
    torch.testing.assert_close(found, expected.sum(0) if asks == "summed" else expected, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class Asking(Method):
    """FedAvg that asks all clients before round 1, and one client in round 2."""

    def begin(self, context):
        context.survey.samples.reduced(lambda x, y: x[0])
        context.survey.updates(context.initial(0), np.arange(context.clients), STEPS)
        return super().begin(context)

    def assign(self, context, state, round_, clients, losses):
        if round_ == 2:
            context.survey.samples.reduced(lambda x, y: x[0])
        return super().assign(context, state, round_, clients, losses)


def test_costs_are_recorded_with_their_round_and_change_no_number():
    settings = {"federation": uneven(SIZES), "rounds": 3, "epochs": 1}
    with engine(**settings) as used:
        plain, without = loop.run(Method(), loop.context(used), used)
        asking, record = loop.run(Asking(), loop.context(used), used)
        size = 4 * used.layout.columns
    assert torch.equal(plain.theta, asking.theta)
    one, two = (Record.table(found.rounds) for found in (without, record))
    extra = {key: (two[key] - one[key]).tolist() for key in ("bytes_down", "bytes_up", "local_steps")}
    assert extra == {"bytes_down": [4 * size, 0, 0], "bytes_up": [4 * size + 80, 80, 0], "local_steps": [16, 0, 0]}
    assert (one["client_forwards"] == two["client_forwards"]).all()


@pytest.mark.parametrize("faults", [None, {"dropout": 0.4}])
def test_deltas_are_what_the_last_participation_changed(faults):
    """Buffers aren't in them; who never sent an update has zeros. So it is with last gradients."""
    settings = {"rounds": 6, "participation": 0.4, "epochs": 1, "faults": faults}
    settings["diverged"] = "stop" if faults is None else "exclude"
    last = {}

    def observe(round_, state, update):
        for i, client in enumerate(update.clients.tolist()):
            last[client] = update.rows[i][:columns].clone(), update.last_gradient[i].clone()

    with engine(norm_and_dropout, images(), **settings) as used:
        columns = used.layout.parameter_columns
        assert columns < used.layout.columns
        warm = warm_up(used, gradients=True, deltas=True)
        needs = frozenset({"updates", "last_gradient"})
        loop.run(Method(), loop.context(used), used, needs=needs, observe=observe)
    assert len(last) > 0 and warm.deltas.shape == (5, columns)
    for client in range(5):
        delta, gradient = last.get(client, (torch.zeros(columns), torch.zeros(columns)))
        assert torch.equal(warm.deltas[client], delta) and torch.equal(warm.gradients[client], gradient)
    without = warm_up_without(settings)
    assert without.deltas is None and without.gradients is None


def warm_up_without(settings):
    with engine(norm_and_dropout, images(), **settings) as used:
        return warm_up(used)
