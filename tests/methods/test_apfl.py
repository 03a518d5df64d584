"""APFL: rounds by hand, the slow obvious loop, what it costs, planted groups, newcomers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import Residual, changed, cnn, engine, images, mlp, norm_and_dropout, slow_but, uneven
from test_contract import SIZES, numbers, same
from test_personal import accuracies_of_planted_groups, assert_a_newcomer_has_the_common_model, run
from torch import nn
from torch.func import functional_call

from clusterfl.data.federation import Federation
from clusterfl.engine import batches
from clusterfl.engine.features import Features
from clusterfl.engine.lockstep import Lockstep
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.methods.apfl import APFL
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, Method
from clusterfl.simulation.record import Record


def one():
    return nn.Linear(1, 1, bias=False)


def by_hand(method, backend, rounds, steps=1):
    """Return the state after rounds from 0: client 0 has y = 2 once, client 1 y = -2 thrice; rate 1/4."""
    x, y = np.ones((4, 1), dtype=np.float32), np.array([2.0, -2, -2, -2], dtype=np.float32)
    federation = Federation.from_arrays(x, y, np.array([0, 1, 1, 1]))
    settings = {"rounds": rounds, "steps": steps, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
    with engine(one, federation, **settings) as used:
        used.initial = lambda index=0: torch.zeros(1)
        state, record = run(method, used)
    return state, Record.table(record.history)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_two_rounds_by_hand(backend):
    """Loss (a - y)^2, gradient 2 (a - y), from v = w = 0; alpha = 1/2, of rate 1/16.

    Client 0, round 1: m = 0 has the gradient -4. w <- 0 + 4/4 = 1; v <- 0 + 1/2 4/4 = 1/2; alpha stays, since v - w
    was 0. m = (1/2 + 1) / 2 = 3/4. Client 1 is its mirror image. Common: (1 - 3) / 4 = -1/2.

    Client 0, round 2: w = -1/2, v = 1/2, m = 0, gradient -4. w <- -1/2 + 5/4 = 3/4; v <- 1/2 + 1/2 = 1; the slope of
    alpha is 1 (-4): alpha <- 1/2 + 4/16 = 3/4. m = 3/4 + 3/16 = 15/16. Client 1: w = v = -1/2 = m, gradient 3:
    w <- -1/2 - 3/4 = -5/4, v <- -1/2 - 3/8 = -7/8, alpha stays; m = -17/16. Common: -1/2 + (5/4 - 3 3/4) / 4 = -3/4.
    """
    method = APFL(alpha=0.5, rate=0.0625)
    expected = {1: ([0.5, -0.5], [0.5, 0.5], [0.75, -0.75], -0.5)}
    expected[2] = ([1.0, -0.875], [0.75, 0.5], [15 / 16, -17 / 16], -0.75)
    for rounds, (own, alpha, mixed, theta) in expected.items():
        state, history = by_hand(method, backend, rounds)
        np.testing.assert_allclose(state.own.own_models[:, 0], own, rtol=1e-6)
        np.testing.assert_allclose(state.own.alpha, alpha, rtol=1e-6)
        np.testing.assert_allclose(state.personal.rows[:, 0], mixed, rtol=1e-6)
        np.testing.assert_allclose(state.theta[0], [theta], rtol=1e-6)
    losses = history["loss"][history["round"] == 2]
    np.testing.assert_allclose(losses, [(2 - 15 / 16) ** 2, (2 - 17 / 16) ** 2], rtol=1e-5)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_own_gradients_by_hand(backend):
    """Two steps of client 0 from v = w = 0, then two from v = 3/2, w = -3/4, with alpha = 1/2 of rate 1/8, shrink = 2.

    Steps half the way to 2: v = w = 1, alpha <- 1/2 - (0 + 2 1/2) / 8 = 3/8; v = w = 3/2, alpha <- 3/8 - 3/4 / 8 =
    9/32. m = 3/2, which becomes v. Client 1 is its mirror image; common: (3/2 - 9/2) / 4 = -3/4. Then w = -3/4 goes to
    5/8, of gradient -11/2, and v = 3/2 to 7/4, of gradient -1. The slope is (7/4 - 5/8) (-9/32 - 23/32 11/2).
    """
    method = APFL(gradient="own", adapts="step", rate=0.125, shrink=2.0)
    state, _ = by_hand(method, backend, 1, steps=2)
    np.testing.assert_allclose(state.own.alpha, [9 / 32] * 2, rtol=1e-6)
    np.testing.assert_allclose(state.own.own_models[:, 0], [1.5, -1.5], rtol=1e-6)
    np.testing.assert_allclose(state.theta[0], [-0.75], rtol=1e-6)
    v, w, alpha = 1.5, -0.75, 9 / 32
    for _ in range(2):
        gv, gw = 2 * (v - 2), 2 * (w - 2)
        v, w = v - gv / 4, w - gw / 4
        alpha = min(1.0, max(0.0, alpha - ((v - w) * (alpha * gv + (1 - alpha) * gw) + 2 * alpha) / 8))
    state, _ = by_hand(method, backend, 2, steps=2)
    mixed = alpha * v + (1 - alpha) * w
    for found in (state.own.own_models[0], state.personal.rows[0]):
        np.testing.assert_allclose(found, [mixed], rtol=1e-6)
    np.testing.assert_allclose(state.own.alpha[0], alpha, rtol=1e-6)


def plain(module, w, v, alpha, used, client, round_, method):
    """Return what a client's training makes of w, v and alpha: PyTorch's optimisers and derivatives, in float64.

    For the mix the loss is a function of v and alpha, and PyTorch finds both derivatives itself.
    """
    layout, train, data, training = (
        used.layout,
        used.federation.splits["train"],
        used.worker.data["train"],
        used.training,
    )
    sizes, ids = train.sizes[[client]], used.federation.ids[[client]]
    many = batches.steps_of(sizes, training)
    index = batches.schedule(used.seed, ids, sizes, round_, training, many)[0]
    w, v = (row.double().clone().requires_grad_() for row in (w, v))
    share = torch.tensor(float(alpha), dtype=torch.float64, requires_grad=True)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[training.optimizer]
    extra = {"momentum": training.momentum} if training.momentum else {}
    steppers = [kind([row], lr=training.learning_rate, weight_decay=training.weight_decay, **extra) for row in (w, v)]
    rate = method.rate or training.learning_rate
    for step in range(int(many[0])):
        places = torch.as_tensor(train.offsets[client] + index[step][index[step] >= 0])
        x = data.take(places)
        x, y = x.double(), data.targets(places, x)

        def loss(row, x=x, y=y):
            return nn.functional.cross_entropy(functional_call(module, layout.tensors(row), (x,)), y)

        apart = method.gradient == "own"
        (gw,) = torch.autograd.grad(loss(w), w)
        gv, slope = torch.autograd.grad(
            loss(v if apart else share * v + (1 - share) * w.detach()), [v, share], allow_unused=True
        )
        w.grad, v.grad = gw.clone(), gv.clone()
        for stepper in steppers:
            stepper.step()
        with torch.no_grad():
            if apart:
                slope = (v - w) @ (share * gv + (1 - share) * gw)
            if method.adapts == "step" or (method.adapts == "round" and not step):
                share.sub_(rate * (slope + method.shrink * share)).clamp_(0, 1)
    with torch.no_grad():
        mixed = share * v + (1 - share) * w
    return w.detach(), mixed if method.gradient == "own" else v.detach(), share.item(), mixed


FORMS = {
    "paper": APFL(alpha=0.3, rate=0.5),
    "never": APFL(alpha=0.3, adapts="never"),
    "each step": APFL(adapts="step", rate=0.05, shrink=0.3),
    "PFLlib": APFL(alpha=1.0, adapts="step", shrink=0.02, gradient="own"),
}
SETTINGS = {
    "plain": {},
    "momentum, penalty": {"momentum": 0.5, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
}
CASES = [(b, f, s) for b in ("dense", "stacked", "loop") for f in FORMS for s in SETTINGS]
QUICK = [("dense", "paper", "plain"), ("dense", "PFLlib", "plain"), ("stacked", "each step", "adam")]


@pytest.mark.parametrize(("backend", "form", "settings"), slow_but(QUICK, CASES))
def test_it_is_the_slow_obvious_loop(backend, form, settings):
    """Each participant alone in plain PyTorch, in float64; who isn't drawn keeps what it has."""
    method, settings = (
        FORMS[form],
        {"rounds": 3, "epochs": 2, "participation": 0.6, "batch_size": 4, **SETTINGS[settings]},
    )
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(method, used)
        m, sizes, module = used.federation.clients, used.federation.splits["train"].sizes, mlp().double()
        theta, alpha = used.initial(0).double(), np.full(m, method.alpha)
        own, mixed = theta.repeat(m, 1), theta.repeat(m, 1)
        for round_ in (1, 2, 3):
            clients, models = Method().sample(loop.context(used), state, round_), []
            for client in clients:
                w, own[client], alpha[client], mixed[client] = plain(
                    module, theta, own[client], alpha[client], used, client, round_, method
                )
                models.append(w)
            theta = torch.as_tensor(sizes[clients] / sizes[clients].sum()) @ torch.stack(models)
        near = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(state.theta[0].double(), theta, **near)
        torch.testing.assert_close(state.own.own_models[:].double(), own, **near)
        torch.testing.assert_close(state.personal.rows[:].double(), mixed, **near)
        np.testing.assert_allclose(state.own.alpha, alpha, **near)
        assert (np.ptp(alpha) == 0) == (method.adapts == "never")
        expected = used.own_scores(state.personal.rows[:], np.arange(m), np.arange(m), "test")
    history = Record.table(record.history)
    last = (history["round"] == 3) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss, rtol=1e-6)


def normalised():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


NETS = {"dense": (mlp, uneven), "cnn": (cnn, images), "normalised": (normalised, images)}


@pytest.mark.parametrize("net", slow_but(["dense", "normalised"], NETS))
def test_the_common_model_is_fedavgs_and_the_mix_has_two_ends(net):
    """With alpha = 0 the mix is the trained common model, with alpha = 1 local training; buffers go with each."""
    factory, data = NETS[net]
    near = {"rtol": 1e-4, "atol": 1e-5}
    settings = {"rounds": 2, "epochs": 2, "learning_rate": 0.05}
    with engine(factory, data(), **settings) as used:
        fedavg, local = (run(METHODS[name](), used)[0] for name in ("fedavg", "local"))
        for method in (APFL(), APFL(alpha=1, adapts="never"), APFL(gradient="own", adapts="step")):
            state, _ = run(method, used)
            torch.testing.assert_close(state.theta, fedavg.theta, **near)
            if method.alpha == 1:
                torch.testing.assert_close(state.personal.rows[:], local.theta[:], **near)
                assert torch.equal(state.personal.rows[:], state.own.own_models[:])
    with engine(factory, data(), **settings | {"rounds": 1, "evaluations": ["aggregated", "local"]}) as used:
        history = Record.table(run(APFL(alpha=0, adapts="never"), used)[1].history)
    rows = (history["round"] == 1) & (history["split"] == "test")
    scored, sent = (history["loss"][rows & (history["evaluation"] == kind)] for kind in ("aggregated", "local"))
    np.testing.assert_allclose(scored, sent, rtol=1e-3 if net == "normalised" else 1e-6)


CUTS = NETS | {"normalised, dropout": (norm_and_dropout, images), "stacked": (Residual, uneven)}


@pytest.mark.slow
@pytest.mark.parametrize("form", CUTS)
def test_no_bit_depends_on_the_cut(form):
    factory, data = CUTS[form]
    data = uneven(SIZES) if data is uneven else data()
    settings = {"rounds": 2, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.1, "learning_rate": 0.05}
    for method in (APFL(alpha=0.3, adapts="step"), APFL(gradient="own", shrink=0.1)):
        found = []
        for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
            with engine(factory, data, **settings, **cut) as used:
                found.append(numbers(*run(method, used)))
        for other in found[1:]:
            same(found[0], other)


def test_two_passes_are_counted_and_bytes_are_fedavgs():
    with engine(federation=uneven(SIZES), rounds=2, epochs=3) as used:
        tables = [Record.table(run(method, used)[1].rounds) for method in (APFL(), METHODS["fedavg"]())]
    np.testing.assert_array_equal(tables[0]["local_steps"], 2 * tables[1]["local_steps"])
    for name in ("bytes_up", "bytes_down", "client_forwards"):
        np.testing.assert_array_equal(tables[0][name], tables[1][name])


def test_who_is_not_drawn_or_sends_nothing_sound_keeps_all_it_has():
    bad = {"corrupt": [2, 5]}
    settings = {"rounds": 1, "participation": 0.5, "diverged": "exclude", "faults": bad}
    with engine(federation=uneven(SIZES), **settings) as used:
        state, _ = run(APFL(adapts="step"), used)
        drawn = np.setdiff1d(Method().sample(loop.context(used), state, 1), [2, 5])
        for rows in (state.personal.rows, state.own.own_models):
            moved = (rows[:] != used.initial(0)).any(dim=1).numpy()
            np.testing.assert_array_equal(np.flatnonzero(moved), drawn)
    np.testing.assert_array_equal(np.flatnonzero(state.own.alpha != 0.5), drawn)


def test_an_own_model_that_diverges_is_no_sound_update():
    def begin(old, context):
        state = old(context)
        state.own.own_models[1] = torch.nan
        return state

    method = changed(APFL(), begin=begin)
    with engine(rounds=1) as used, pytest.raises(Diverged, match="client 1"):
        run(method, used)
    with engine(rounds=1, diverged="exclude") as used:
        state, record = run(method, used)
    assert Record.table(record.rounds)["excluded"].tolist() == [1]
    assert state.theta.isfinite().all() and state.own.alpha[1] == 0.5
    assert torch.equal(state.personal.rows[1], used.initial(0))


@pytest.mark.slow
def test_planted_groups_get_models_of_their_own():
    """Two groups whose classes follow opposite rules: one model can't follow both."""
    for accuracies in accuracies_of_planted_groups(APFL(), FORMS["PFLlib"]):
        assert min(accuracies[:2]) > accuracies[2] + 0.2, accuracies


def test_a_newcomer_has_the_common_model():
    assert_a_newcomer_has_the_common_model(APFL())


def test_what_it_cant_do_is_refused():
    def found(method, **settings):
        return {p.option: p.sentence for p in method.check(Known(Training(**settings)))}

    assert "0.1, but" in found(APFL(), lookahead=0.1)["training.lookahead"]
    assert "allowed: fresh" in found(APFL(), optimizer_state="kept", momentum=0.5)["training.optimizer_state"]
    gradients = found(APFL(), average="gradients", batch_size="full", steps=1)
    assert "allowed: models" in gradients["training.average"]
    never = found(APFL(adapts="never", rate=0.5, shrink=0.1))
    assert "0.5, but" in never["rate"] and "adapts: round or step" in never["shrink"]
    assert not found(APFL(), momentum=0.5, weight_decay=0.1, proximal=0.1, optimizer="sgd")
    with engine() as used:
        theta, first = used.initial(0)[None], np.zeros(1, int)
        two = Lockstep(theta.repeat(6, 1), np.full(6, 0.5))
        for given, text in (
            ({"turns": (frozenset(["1.weight"]),)}, "combined with turns, lookahead or average: gradients"),
            ({"training": Training(lookahead=0.1)}, "combined with turns, lookahead or average: gradients"),
            ({"features": Features()}, "can't use features"),
            ({"needs": frozenset(["last_gradient"])}, "send a last gradient"),
            ({"kept": {"client_velocity": torch.zeros(6, 5)}}, "keep optimiser states"),
            ({"shares": torch.ones(3)}, "train several models on weighted losses can't keep tensors"),
        ):
            with pytest.raises(UserError, match=text):
                used.train(theta, first, first, beside=two, **given)


def test_noise_is_on_all_that_is_sent_and_on_nothing_that_is_kept():
    privacy = Privacy(clip=0.1, epsilon=4, delta=1e-3, accounting="replace-one")
    settings = {"rounds": 1, "epochs": 1, "weights": "uniform"}
    with engine(federation=uneven(SIZES), **settings) as used:
        noisy, fedavg = (run(wrap(m, "m", None, privacy), used)[0] for m in (APFL(), METHODS["fedavg"]()))
        without = run(APFL(), used)[0]
    torch.testing.assert_close(noisy.theta, fedavg.theta, rtol=1e-5, atol=1e-6)
    assert (noisy.theta != without.theta).all()
    assert torch.equal(noisy.personal.rows[:], without.personal.rows[:])
    assert torch.equal(noisy.own.own_models[:], without.own.own_models[:])
