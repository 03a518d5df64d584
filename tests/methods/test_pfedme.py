"""pFedMe: a round by hand, the slow obvious loop, what it costs, planted groups, newcomers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import (
    cnn,
    engine,
    first_layer_on,
    images,
    mlp,
    noise,
    norm_and_dropout,
    slow_but,
    uneven,
    whole_models,
)
from test_contract import SIZES, numbers, same
from test_personal import accuracies_of_planted_groups, assert_a_newcomer_has_the_common_model, run
from torch import nn

from clusterfl.data.augment import Draws
from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.engine import batches
from clusterfl.engine.envelope import Envelope
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.pfedme import PFedMe
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, Method
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_a_round_by_hand(backend):
    """Loss (a - y)^2 from 0; rates 1/4, lambda = 2, K = 2; client 0 has y = 2 once, client 1 y = -2 thrice.

    Client 0: theta <- theta - (2 (theta - 2) + 2 (theta - w)) / 4 leads from 0 to 1 and stays there; w goes half way,
    eta lambda = 1/2, to 1/2. Its second mini-batch: 1 - (-2 + 1) / 4 = 5/4, stays; w = 1/2 + 3/8 = 7/8. Client 1 is its
    mirror image. The mean of one mini-batch each: (1/2 - 3/2) / 4 = -1/4, of two (7/8 - 21/8) / 4 = -7/16; beta = 2
    goes twice as far.
    """
    x, y = np.ones((4, 1), dtype=np.float32), np.array([2.0, -2, -2, -2], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1]))
    for steps, own, theta in ((1, 1.0, -0.25), (2, 1.25, -0.4375)):
        for beta in (0.0, 1.0, 2.0):
            settings = {"rounds": 1, "steps": steps, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
            with engine(one, federation, **settings) as used:
                used.initial = lambda index=0: torch.zeros(1)
                state, record = run(PFedMe(pull=2.0, own_steps=2, beta=beta), used)
            np.testing.assert_allclose(state.personal.rows[:, 0], [own, -own], rtol=1e-6)
            np.testing.assert_allclose(state.theta[0], [beta * theta], rtol=1e-6)
    history = Record.table(record.history)
    np.testing.assert_allclose(history["loss"][history["round"] == 1], [0.75**2] * 2, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_pfllibs_scores_are_those_of_the_common_model(beta):
    """Each round of the run without the option scores its own models; both train the same common one."""
    with engine(federation=uneven(SIZES), rounds=3, participation=0.5, epochs=1) as used:
        own, _ = run(PFedMe(beta=beta), used)
        commons = []
        state, record = run(
            PFedMe(beta=beta, overwritten=True), used, save=lambda c: commons.append(c.state.theta[:].clone())
        )
        m = len(SIZES)
        scores = [used.scores(theta, np.arange(m), "test") for theta in commons]
    assert torch.equal(state.theta[:], own.theta[:])
    assert torch.equal(state.personal.rows[:], state.theta[:].expand(m, -1))
    assert not torch.equal(own.personal.rows[:], state.personal.rows[:])
    history = Record.table(record.history)
    for round_, score in enumerate(scores, 1):
        test = (history["split"] == "test") & (history["round"] == round_)
        np.testing.assert_array_equal(history["correct"][test], score.correct[:, 0])
    if not beta:
        assert torch.equal(commons[0], commons[-1])


def plain(module, row, used, client, round_, method, rate):
    """Return a client's own model and its local one, by PyTorch's SGD with the pull written as a loss."""
    layout, train, data = used.layout, used.federation.splits["train"], used.worker.data["train"]
    sizes, ids, training = train.sizes[[client]], used.federation.ids[[client]], used.training
    many = batches.steps_of(sizes, training)
    index = batches.schedule(used.seed, ids, sizes, round_, training, many)[0]
    layout.load(module, row)
    local = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=training.learning_rate, momentum=training.momentum)
    for step in range(int(many[0])):
        places = torch.as_tensor(train.offsets[client] + index[step][index[step] >= 0])
        x = data.take(places)
        for _ in range(method.own_steps):
            optimizer.zero_grad()
            away = sum((p - local[name]).square().sum() for name, p in module.named_parameters())
            loss = nn.functional.cross_entropy(module(x), data.targets(places, x)) + method.pull / 2 * away
            loss.backward()
            optimizer.step()
        for name, p in module.named_parameters():
            local[name] = local[name] - rate * method.pull * (local[name] - p.detach())
    own = layout.flatten(module).detach().clone()
    return own, torch.cat([local[name].flatten() for name in local])


@pytest.mark.parametrize(
    "backend, momentum",
    slow_but(
        [("dense, on data", 0.0)],
        [(form, momentum) for form in ("dense", "dense, on data", "stacked", "loop") for momentum in (0.0, 0.5)],
    ),
)
def test_it_is_the_slow_obvious_loop(backend, momentum, monkeypatch):
    """Each participant alone in plain PyTorch; who isn't drawn keeps what it has; beta times the mean on the server.

    A centre is where its client began, so it has coordinates in the client's data, too.
    """
    backend, _, on_data = backend.partition(", ")
    first_layer_on(on_data or "on inputs", monkeypatch)
    settings = {"rounds": 3, "epochs": 2, "participation": 0.6, "batch_size": 4, "momentum": momentum}
    method = PFedMe(pull=0.8, own_steps=3, rate=0.5, beta=1.5)
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(method, used)
        m, sizes = used.federation.clients, used.federation.splits["train"].sizes
        theta, own, module = used.initial(0), used.initial(0).repeat(m, 1), mlp()
        for round_ in (1, 2, 3):
            clients, changes = Method().sample(loop.context(used), state, round_), []
            for client in clients:
                own[client], local = plain(module, theta, used, client, round_, method, 0.5)
                changes.append(local.double() - theta)
            share = torch.as_tensor(sizes[clients] / sizes[clients].sum())
            theta = (theta.double() + 1.5 * (share[:, None] * torch.stack(changes)).sum(0)).float()
        torch.testing.assert_close(state.theta[0], theta, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.personal.rows[:], own, rtol=1e-4, atol=1e-5)
        expected = used.own_scores(own, np.arange(m), np.arange(m), "test")
    history = Record.table(record.history)
    last = (history["round"] == 3) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss, rtol=1e-4, atol=1e-5)


def test_forms_agree_as_clients_end_one_after_another():
    """Of one, three and five mini-batches: each is pulled to its own centre, whoever still trains beside it."""
    found = []
    for backend in ("loop", "stacked", "dense"):
        with engine(federation=uneven((3, 10, 19)), backend=backend, epochs=1, batch_size=4) as used:
            ids, kept = np.arange(3), whole_models(used)
            given = {"beside": Envelope(2.0, 3, 0.2), "personal": kept, "needs": frozenset({"updates"})}
            update = used.train(torch.stack([used.initial(k) for k in ids]), ids, ids, **given)
            found.append(torch.cat([update.rows[:], kept.rows], dim=1))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_all_steps_on_a_mini_batch_are_on_the_same_augmented_images(backend):
    """Two steps without a pull on each, in plain PyTorch: the images are those of the mini-batch, not of the step."""
    data = noise((3, 5), (3, 32, 32), inputs=Inputs(augment="crop-flip"), dtype=np.uint8)
    settings = {"epochs": 2, "batch_size": 2, "learning_rate": 0.001}
    with engine(nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)), data, backend=backend, **settings) as used:
        module, row, ids, kept = used.factory(), used.initial(0), np.arange(2), whole_models(used)
        used.train(row[None], 0 * ids, ids, beside=Envelope(0.0, 2, 1.0), personal=kept)
        train = data.splits["train"]
        index = batches.schedule(used.seed, ids, train.sizes, 1, used.training)
        for i in ids:
            used.layout.load(module, row)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.001)
            for step, places in enumerate(index[i]):
                own = torch.as_tensor(places[places >= 0])
                if not len(own):
                    continue
                draws = Draws(used.seed, (*(torch.full_like(own, n) for n in (int(i), 1, step)), own))
                x = used.worker.data["train"].take(own + int(train.offsets[i]), draws)
                for _ in range(2):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(x), torch.as_tensor(train.y)[own + train.offsets[i]]).backward()
                    optimizer.step()
            expected = used.layout.flatten(module)
            assert (expected - row).abs().max() > 1e-3
            torch.testing.assert_close(kept.rows[i], expected, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_sent_as_trained():
    """They have no centre. Each of two steps on a mini-batch counts it in the model's counter of batches."""
    with engine(norm_and_dropout, images(), epochs=2) as used:
        ids, kept = np.arange(used.federation.clients), whole_models(used)
        given = {"beside": Envelope(1.0, 2, 0.1), "personal": kept, "needs": frozenset({"updates"})}
        update = used.train(used.initial(0)[None], 0 * ids, ids, **given)
    assert update.rows[:, -1].tolist() == kept.rows[:, -1].tolist() == update.steps.tolist() == [4] * 5


FORMS = {"dense": (mlp, uneven), "loop": (cnn, images), "normalised, dropout": (norm_and_dropout, images)}


@pytest.mark.parametrize("pull", [1e-12, 10.0])
@pytest.mark.parametrize("form", slow_but(["dense", "loop"], FORMS))
def test_one_step_a_mini_batch_that_the_local_model_follows_is_fedavg(form, pull):
    """K = 1 and eta lambda = 1: then the local model is the own one at each step's start, and no pull has an effect."""
    factory, data = FORMS[form]
    settings = {"rounds": 2, "epochs": 2, "participation": 0.6, "learning_rate": 0.05}
    with engine(factory, data(), **settings) as used:
        state, record = run(PFedMe(pull=pull, own_steps=1, rate=1 / pull), used)
        other, plain_record = run(METHODS["fedavg"](), used)
    torch.testing.assert_close(state.theta, other.theta, rtol=1e-5, atol=1e-6)
    steps = [Record.table(r.rounds)["local_steps"].tolist() for r in (record, plain_record)]
    assert steps[0] == steps[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_bit_depends_on_the_cut(form):
    factory, data = FORMS[form]
    data = uneven(SIZES) if form == "dense" else data()
    settings = {"rounds": 2, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1, "learning_rate": 0.05}
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(factory, data, **settings, **cut) as used:
            found.append(numbers(*run(PFedMe(), used)))
    for other in found[1:]:
        same(found[0], other)


def test_steps_are_counted_and_bytes_are_fedavgs():
    with engine(federation=uneven(SIZES), rounds=2, epochs=3) as used:
        tables = [Record.table(run(method, used)[1].rounds) for method in (PFedMe(own_steps=4), METHODS["fedavg"]())]
    np.testing.assert_array_equal(tables[0]["local_steps"], 4 * tables[1]["local_steps"])
    for name in ("bytes_up", "bytes_down", "client_forwards"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name])


def test_who_is_not_drawn_or_sends_nothing_sound_keeps_its_own_model():
    bad = {"corrupt": [2, 5]}
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, diverged="exclude", faults=bad) as used:
        state, _ = run(PFedMe(), used)
        drawn = np.setdiff1d(Method().sample(loop.context(used), state, 1), [2, 5])
        moved = (state.personal.rows[:] != used.initial(0)).any(dim=1).numpy()
    np.testing.assert_array_equal(np.flatnonzero(moved), drawn)


@pytest.mark.slow
def test_planted_groups_get_models_of_their_own():
    """Two groups whose classes follow opposite rules: one model can't follow both."""
    for accuracies in accuracies_of_planted_groups(PFedMe()):
        assert accuracies[0] > accuracies[1] + 0.2, accuracies


def test_a_newcomer_has_the_common_model():
    assert_a_newcomer_has_the_common_model(PFedMe())


def test_what_it_cant_do_is_refused():
    found = {p.option: p.sentence for p in PFedMe(pull=20).check(Known(Training(lookahead=0.1)))}
    assert "0.1, but" in found["training.lookahead"] and "allowed: 0" in found["training.lookahead"]
    assert "0.1 x 20 = 2" in found["rate"] and "allowed: up to 0.05" in found["rate"]
    (problem,) = PFedMe().check(Known(Training(average="gradients", batch_size="full", steps=1)))
    assert problem.option == "training.average" and "allowed: models" in problem.sentence
    with engine() as used, pytest.raises(UserError, match="combined with turns, lookahead or average: gradients"):
        theta, turns = used.initial(0)[None], (frozenset(["1.weight"]),)
        used.train(theta, np.zeros(1, int), np.zeros(1, int), turns=turns, beside=Envelope(1.0, 2, 0.1))
