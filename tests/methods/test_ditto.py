"""Ditto: rounds by hand, the slow obvious loop, what it costs, planted groups, newcomers, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, slow_but, uneven
from test_contract import SIZES, numbers, same
from test_personal import accuracies_of_planted_groups, assert_a_newcomer_has_the_common_model, run
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine import batches, dense
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.ditto import Ditto
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, Method
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


def test_two_rounds_by_hand():
    """Loss (a - y)^2, gradient 2 (a - y), one step a round from a = 0; client 0 has y = 2 once, client 1 y = -2 thrice.

    The common model steps with rate 1/4, half way to y: 1 and -1 in round 1, mean (1 - 3) / 4 = -1/2. The own ones step
    with rate 1/8 by 2 (v - y) + 2 (v - w), lambda = 2; w is 0 then: v = 1/2 and -1/2. Round 2, w = -1/2. Client 0:
    1/2 - (2 (-3/2) + 2 (1)) / 8 = 5/8. Client 1: -1/2 - (2 (3/2) + 0) / 8 = -7/8. Common: from -1/2 to 3/4 and -5/4,
    mean (3/4 - 15/4) / 4 = -3/4.
    """
    x, y = np.ones((4, 1), dtype=np.float32), np.array([2.0, -2, -2, -2], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1]))
    for rounds, own, theta in ((1, [0.5, -0.5], -0.5), (2, [0.625, -0.875], -0.75)):
        for backend in ("dense", "stacked", "loop"):
            settings = {"rounds": rounds, "steps": 1, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
            with engine(one, federation, **settings) as used:
                used.initial = lambda index=0: torch.zeros(1)
                state, record = run(Ditto(pull=2.0, own_rate=0.125), used)
            np.testing.assert_allclose(state.personal.rows[:, 0], own, rtol=1e-6)
            np.testing.assert_allclose(state.theta[0], [theta], rtol=1e-6)
    history = Record.table(record.history)
    last = history["round"] == 2
    np.testing.assert_allclose(history["loss"][last], [(0.625 - 2) ** 2, (-0.875 + 2) ** 2], rtol=1e-5)


def plain(module, row, layout, used, client, round_, training, anchor):
    """Return a model trained by PyTorch's own SGD on the client's mini-batches, pulled to the row `anchor`."""
    layout.load(module, row)
    pulls, train, data = layout.tensors(anchor), used.federation.splits["train"], used.worker.data["train"]
    sizes, ids = train.sizes[[client]], used.federation.ids[[client]]
    many = batches.steps_of(sizes, training)
    index = batches.schedule(used.seed, ids, sizes, round_, training, many)[0]
    optimizer = torch.optim.SGD(module.parameters(), lr=training.learning_rate)
    for step in range(int(many[0])):
        places = torch.as_tensor(train.offsets[client] + index[step][index[step] >= 0])
        x = data.take(places)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), data.targets(places, x))
        away = sum((p - pulls[name]).square().sum() for name, p in module.named_parameters())
        (loss + training.proximal / 2 * away).backward()
        optimizer.step()
    return layout.flatten(module).detach().clone()


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
@pytest.mark.parametrize("own_epochs", [None, 1])
def test_it_is_the_slow_obvious_loop(backend, own_epochs):
    """Each participant's two trainings in plain PyTorch, the penalty written as a loss; others keep what they have."""
    settings = {"rounds": 3, "epochs": 2, "participation": 0.6, "batch_size": 4}
    method = Ditto(pull=0.5, own_epochs=own_epochs, own_rate=0.07)
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(method, used)
        m, sizes = used.federation.clients, used.federation.splits["train"].sizes
        theta, own, module = used.initial(0), used.initial(0).repeat(m, 1), mlp()
        mine = Training(**settings | {"epochs": own_epochs or 2, "proximal": 0.5, "learning_rate": 0.07})
        for round_ in (1, 2, 3):
            clients, changes = Method().sample(loop.context(used), state, round_), []
            for client in clients:
                own[client] = plain(module, own[client], used.layout, used, client, round_, mine, theta)
                changes.append(
                    plain(module, theta, used.layout, used, client, round_, used.training, theta).double() - theta
                )
            share = torch.as_tensor(sizes[clients] / sizes[clients].sum())
            theta = (theta.double() + (share[:, None] * torch.stack(changes)).sum(0)).float()
        torch.testing.assert_close(state.theta[0], theta, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.personal.rows[:], own, rtol=1e-4, atol=1e-5)
        expected = used.own_scores(own, np.arange(m), np.arange(m), "test")
    history, rounds = Record.table(record.history), Record.table(record.rounds)
    last = (history["round"] == 3) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss, rtol=1e-4, atol=1e-5)
    assert (rounds["bytes_up"] == 4 * used.layout.columns * len(clients)).all()
    assert (rounds["bytes_down"] == rounds["bytes_up"]).all()


@pytest.mark.parametrize("form", slow_but(["mlp"], ["mlp", "cnn", "normalised"]))
def test_without_a_pull_it_is_local_training_beside_fedavg(form):
    """Bit for bit; batch normalisation's running statistics are each model's own."""
    factory, data = {"mlp": (mlp, uneven), "cnn": (cnn, images), "normalised": (norm_and_dropout, images)}[form]
    with engine(factory, data(), rounds=3, epochs=1, participation=0.6) as used:
        state, _ = run(Ditto(pull=0), used)
        local, fedavg = (run(METHODS[name](), used)[0] for name in ("local", "fedavg"))
    assert torch.equal(state.personal.rows[:], local.theta[:])
    assert torch.equal(state.theta, fedavg.theta)


def test_a_strong_pull_keeps_own_models_at_the_common_one():
    """With rate x lambda = 1 each step leads to w, less the loss's gradient: v - w = -rate g, however far v was."""
    with engine(rounds=4, batch_size="full", epochs=None, steps=3) as used:
        state, _ = run(Ditto(pull=1e4, own_rate=1e-4), used)
        before, _ = loop.run(Method(), replace(loop.context(used), training=used.training), used)
        moved = torch.linalg.vector_norm(state.theta[0] - used.initial(0))
    assert torch.equal(state.theta, before.theta)
    away = torch.linalg.vector_norm(state.personal.rows[:] - state.theta[0], dim=1)
    assert (away < moved).all()  # no further than the common model went in its last round


@pytest.mark.parametrize("epochs, start, given", [(4, 0, 0), (5, 20, 0), (6, 20, 20)])
def test_a_pull_to_another_model_is_one_more_product_of_all_samples(epochs, start, given):
    """Of 20 samples: 19,200 E on inputs; with coordinates 6,400 E and 60 x 20 x (2 x 8 + 20), or (3 x 8 + 20)."""
    with engine(lambda: mlp(60), uneven((20,), features=60), epochs=epochs, proximal=0.1, batch_size=10) as used:
        assert dense.kinds(used.worker, np.array([20]), used.training).tolist() == [start]
        assert dense.kinds(used.worker, np.array([20]), used.training, "given").tolist() == [given]


def test_steps_of_both_models_are_counted():
    with engine(federation=uneven(SIZES), rounds=2, epochs=3) as used:
        steps = {n: Record.table(run(Ditto(own_epochs=n), used)[1].rounds)["local_steps"] for n in (None, 1)}
    epoch = sum(-(-n // 10) for n in SIZES)
    assert (steps[None] == 6 * epoch).all() and (steps[1] == 4 * epoch).all()


def test_who_is_not_drawn_keeps_its_own_model():
    data = uneven(SIZES)
    with engine(federation=data, rounds=1, participation=0.5) as used:
        state, _ = run(Ditto(), used)
        drawn = Method().sample(loop.context(used), state, 1)
    still = (state.personal.rows[:] == used.initial(0)).all(dim=1).numpy()
    np.testing.assert_array_equal(np.flatnonzero(~still), drawn)


@pytest.mark.slow
def test_planted_groups_get_models_of_their_own():
    """Two groups whose classes follow opposite rules: one model can't follow both."""
    for accuracies in accuracies_of_planted_groups(Ditto(), Ditto(pull=1.0)):
        assert min(accuracies[:2]) > accuracies[2] + 0.2, accuracies


def test_a_newcomer_has_the_common_model():
    assert_a_newcomer_has_the_common_model(Ditto())


def test_noise_is_on_all_that_is_sent_and_on_no_own_model():
    privacy = Privacy(clip=0.1, epsilon=4, delta=1e-3, accounting="replace-one")
    rows = []
    for method in (Ditto(), METHODS["fedavg"]()):
        with engine(federation=uneven(SIZES), rounds=2, epochs=1, weights="uniform") as used:
            rows.append(run(wrap(method, "m", None, privacy), used)[0])
    assert torch.equal(rows[0].theta, rows[1].theta)
    with engine(federation=uneven(SIZES), rounds=1, epochs=1, weights="uniform") as used:
        noisy = run(wrap(Ditto(), "m", None, privacy), used)[0]
        without = run(Ditto(), used)[0]
    assert torch.equal(
        noisy.personal.rows[:], without.personal.rows[:]
    )  # in round 1 both are pulled to the initial one


@pytest.mark.slow
def test_the_pull_has_the_same_bits_in_other_chunks():
    settings = {"federation": uneven(SIZES), "rounds": 2, "momentum": 0.5, "weight_decay": 0.01}
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(**settings, **cut) as used:
            found.append(numbers(*run(Ditto(), used)))
    for other in found[1:]:
        same(found[0], other)


def test_what_it_cant_do_is_refused():
    (problem,) = Ditto().check(Known(Training(average="gradients", batch_size="full", steps=1)))
    assert problem.option == "training.average" and "allowed: models" in problem.sentence
    with engine() as used, pytest.raises(UserError, match="proximal term pulls to each turn's start; allowed"):
        theta = used.initial(0)[None]
        used.train(theta, np.zeros(1, int), np.zeros(1, int), turns=(frozenset(["1.weight"]),), towards="given")
