"""Parameters with requires_grad False: no form of the engine trains them, nothing is sent of them, none is noisy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, slow_but, uneven
from reference import agree, trained
from torch import nn

from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method
from clusterfl.simulation.record import Record

FROZEN = {mlp: "1.", Residual: "first.", cnn: "0."}
SETTINGS = ["plain", "momentum, penalty", "adam", "proximal", "average of gradients"]


def frozen(factory, start):
    """Return a factory of the same network with the parameters frozen whose names start so."""

    def make():
        module = factory()
        module.weight_decays = {}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.startswith(start))
        return module

    return make


@pytest.mark.parametrize("name", slow_but(["plain", "adam"], SETTINGS))
@pytest.mark.parametrize(
    "factory, backend", [(mlp, "auto"), (mlp, "stacked"), (mlp, "loop"), (Residual, "auto"), (cnn, "loop")]
)
def test_training_is_that_of_pytorch(factory, backend, name):
    federation = uneven() if factory is not cnn else images()
    with engine(frozen(factory, FROZEN[factory]), federation, backend=backend, **OPTIONS[name]) as used:
        update = trained(used)
        agree(used, update)
        stay = [columns for own, _, columns in used.layout.slices() if own in used.layout.frozen]
        assert stay
        for columns in stay:
            assert not update.rows[:, columns].any() and not update.last_gradient[:, columns].any()


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


def test_what_is_frozen_and_kept_is_not_sent_either_way():
    """FedPer never sends the last layer: that it is frozen, too, saves nothing more."""
    up = []
    for start in ("nothing", "3."):
        with engine(frozen(mlp, start), rounds=1) as used:
            _, record = loop.run(METHODS["fedper"](), loop.context(used), used)
            up.append(Record.table(record.rounds)["bytes_up"][0])
            columns = {name: part.stop - part.start for name, _, part in used.layout.slices()}
    assert up == [6 * 4 * (columns["1.weight"] + columns["1.bias"])] * 2


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


@pytest.mark.slow
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
