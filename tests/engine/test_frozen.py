"""Parameters with requires_grad False: no form of the engine trains them, nothing is sent of them, none is noisy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from federations import Residual, cnn, engine, images, mlp, uneven
from torch import nn

from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method
from clusterfl.simulation.record import Record

FROZEN = {mlp: "1.", Residual: "first.", cnn: "0."}
SETTINGS = {
    "plain": {},
    "momentum, penalty": {"momentum": 0.9, "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "proximal": {"proximal": 0.5},
    "average of gradients": {"steps": 1, "average": "gradients"},
}


def frozen(factory, start):
    """Return a factory of the same network with the parameters frozen whose names start so."""

    def make():
        module = factory()
        module.weight_decays = {}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.startswith(start))
        return module

    return make


def plainly(module, x, y, steps, learning_rate, proximal=0.0, momentum=0.0, weight_decay=0.0, optimizer="sgd", **other):
    """Train with PyTorch's own optimiser, on all samples in each step, and return the last gradient [p]."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    given = {"momentum": momentum} if optimizer == "sgd" else {}
    before = copy.deepcopy(module)
    steps_of = kind(
        [p for p in module.parameters() if p.requires_grad], lr=learning_rate, weight_decay=weight_decay, **given
    )
    module.train()
    for _ in range(steps):
        module.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]
        for own, old in zip(module.parameters(), before.parameters(), strict=True):
            if own.grad is not None:
                own.grad.add_(own.detach() - old.detach(), alpha=proximal)
        steps_of.step()
    return torch.cat([one.reshape(-1) for one in found])


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "factory, backend", [(mlp, "auto"), (mlp, "stacked"), (mlp, "loop"), (Residual, "auto"), (cnn, "loop")]
)
def test_training_is_that_of_pytorch(factory, backend, name):
    federation = uneven() if factory is not cnn else images()
    settings = {"batch_size": "full", "steps": 3, "epochs": None, "learning_rate": 0.1} | SETTINGS[name]
    with engine(frozen(factory, FROZEN[factory]), federation, backend=backend, **settings) as used:
        ids = np.arange(used.federation.clients)
        needs = frozenset({"updates", "last_gradient"})
        found = used.train(used.initial()[None], np.zeros_like(ids), ids, needs=needs)
        split, stay = (
            used.federation.splits["train"],
            [c for n, _, c in used.layout.slices() if n in used.layout.frozen],
        )
        assert stay
        for i in ids:
            module = frozen(factory, FROZEN[factory])()
            used.layout.load(module, used.initial())
            rows = split.of(np.array([i]))[0]
            x, y = torch.as_tensor(np.asarray(split.pool.x[split.rows[rows]])), torch.as_tensor(split.y[rows])
            last = plainly(module, x.float(), y, **settings)
            wanted = -last if "average" in settings else used.layout.flatten(module) - used.initial()
            assert torch.allclose(found.rows[i], wanted, atol=2e-5), i
            assert torch.allclose(found.last_gradient[i], last, atol=2e-5), i
            for columns in stay:
                assert not found.rows[i, columns].any() and not found.last_gradient[i, columns].any()


@pytest.mark.parametrize(
    "settings",
    [
        {"average": "gradients", "weight_decay": 0.1},
        {"average": "gradients", "optimizer": "adam", "weight_decay": 0.1},
        {"average": "gradients", "momentum": 0.9},
        {"server_momentum": 0.9, "weight_decay": 0.1},
    ],
)
@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_the_server_leaves_it_alone(backend, settings):
    """A penalty of its own (`weight_decays`), or of the server's steps, moves nothing that is frozen."""
    whole = {"batch_size": "full", "steps": 1, "epochs": None, "rounds": 3}

    def penalised():
        module = frozen(mlp, "1.")()
        module.weight_decays = {"1.weight": 0.5, "3.weight": 0.5}
        return module

    with engine(penalised, backend=backend, **whole, **settings) as used:
        state, _ = loop.run(Method(), loop.context(used), used)
        for name, _, columns in used.layout.slices():
            assert torch.equal(state.theta[0, columns], used.initial()[columns]) == (name in used.layout.frozen)


@pytest.mark.parametrize("chunk, workers", [(1, 1), (2, 2)])
def test_the_same_bits_however_work_is_cut(chunk, workers):
    found = []
    for given in ({}, {"chunk": chunk, "workers": workers}):
        with engine(frozen(mlp, "1."), rounds=2, **given) as used:
            found.append(loop.run(Method(), loop.context(used), used)[0].theta)
    assert torch.equal(*found)


def test_what_is_frozen_is_not_sent_up():
    counted = []
    for factory in (mlp, frozen(mlp, "1.")):
        with engine(factory, rounds=1) as used:
            _, record = loop.run(Method(), loop.context(used), used)
            counted.append(Record.table(record.rounds))
            columns = {name: part.stop - part.start for name, _, part in used.layout.slices()}
    assert counted[0]["bytes_down"][0] == counted[1]["bytes_down"][0]
    saved = 6 * 4 * (columns["1.weight"] + columns["1.bias"])  # of six clients
    assert counted[0]["bytes_up"][0] - counted[1]["bytes_up"][0] == saved


@pytest.mark.parametrize("name", ["apfl", "fpfc", "fedala", "fedper"])
def test_nor_by_methods_whose_clients_keep_some(name):
    """Whether kept tensors are sent (APFL) or not (FedPer)."""
    method, up = METHODS[name](), []
    for start in ("nothing", "1."):
        with engine(frozen(mlp, start), rounds=1) as used:
            _, record = loop.run(method, loop.context(used), used)
            up.append(Record.table(record.rounds)["bytes_up"][0])
            columns = {name: part.stop - part.start for name, _, part in used.layout.slices()}
    assert up[0] - up[1] == 6 * 4 * (columns["1.weight"] + columns["1.bias"])


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize("start", ["1.", "3."])
def test_fedpac_trains_what_is_left(start, backend):
    """It trains the head and then the rest, of which one is frozen."""
    with engine(frozen(mlp, start), rounds=2, backend=backend) as used:
        state, _ = loop.run(METHODS["fedpac"](), loop.context(used), used)
        models = state.personal.into(state.theta[torch.zeros(6, dtype=torch.int64)], np.arange(6))
        for name, _, columns in used.layout.slices():
            assert torch.equal(models[0, columns], used.initial()[columns]) == (name in used.layout.frozen)


def test_noise_leaves_it_alone():
    """All that is frozen is as it was; all else has the very noise that it has beside parameters that are trained."""
    block = Privacy(epsilon=8.0, delta=1e-5, clip=0.1, accounting="poisson")
    moved = []
    for factory in (mlp, frozen(mlp, "1.")):
        with engine(
            factory,
            rounds=1,
            sampler="poisson",
            participation=0.5,
            learning_rate=1e-12,
            weights="uniform",
            divisor="expected",
        ) as used:
            state, _ = loop.run(wrap(Method(), "fedavg", None, block), loop.context(used), used)
            moved.append({n: state.theta[0, c] - used.initial()[c] for n, _, c in used.layout.slices()})
    for name in moved[0]:
        assert moved[0][name].abs().max() > 0.01
        assert torch.equal(moved[1][name], torch.zeros_like(moved[1][name]) if name[0] == "1" else moved[0][name])


@pytest.mark.parametrize(
    "factory, says",
    [
        (nn.Flatten, "the model has no parameter that can be trained: it has none; at least one is needed"),
        (frozen(mlp, ""), "no parameter that can be trained: all 4 have requires_grad False"),
        (
            lambda: nn.Sequential(nn.LazyLinear(3)),
            "the model's '0.weight' has no shape before it",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(factory, says):
    with pytest.raises(UserError, match=says):
        engine(factory)
