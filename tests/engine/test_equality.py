"""Every form of training against the slow, obvious one in float64, for every network and every option.

The tolerance. float32 rounds to 6e-8; a gradient is a sum of up to some hundred products, and some ten steps add up to
an update. So updates, gradients and losses agree to 1e-4 of the largest number among them; measured are 2e-5 with batch
normalisation, which divides by a deviation, and 7e-6 elsewhere. Adam divides a gradient by its own size, which makes
an error of a gradient near zero as large as a step: its learning rate is small here, and its errors are 4e-6.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import reference
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, uneven
from torch import nn
from torch.testing import assert_close as close

from clusterfl.data.inputs import Inputs
from clusterfl.engine import batches, dense, work
from clusterfl.federation import Federation
from clusterfl.models import MODELS

ROUND = 4
SHARE = 1e-4
SIZES = (3, 10, 21, 7, 16, 1)  # with batches of 10: short last ones, one of a single sample; clients of one sample
OPTIONS = {
    "plain": {},
    "one epoch": {"epochs": 1},
    "one sample a step": {"batch_size": 1, "epochs": 1, "learning_rate": 0.03},
    "momentum": {"momentum": 0.9},
    "penalty": {"weight_decay": 0.1},
    "momentum, penalty": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "adam with penalty": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1},
    "adam, proximal, decay": {"optimizer": "adam", "proximal": 0.1, "schedule": "participation", "decay": 0.5,
                              "learning_rate": 0.01},
    "proximal": {"proximal": 0.5},
    "all": {"proximal": 0.5, "momentum": 0.5, "weight_decay": 0.01, "schedule": "round", "decay": 0.9},
    "steps": {"steps": 7, "epochs": None},
    "batches larger than a client": {"batch_size": 32},
    "full batches": {"batch_size": "full"},
    "one full gradient": {"batch_size": "full", "epochs": 1},
    "average of gradients": {"batch_size": "full", "steps": 1, "average": "gradients", "weight_decay": 0.1},
    "rate by round": {"schedule": "round", "decay": 0.5},
    "rate by participation": {"schedule": "participation", "decay": 0.5},
}  # fmt: skip


def penalised():
    """A chain of which two layers have L2 penalties of their own, the first one among them."""
    made = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    made.weight_decays = {"0.weight": 0.3, "2.bias": 0.2}
    return made


class Residual(nn.Module):
    """No chain and no convolution: trained by torch.func."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(5, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.last = nn.Linear(8, 3, bias=False)
        self.weight_decays = {"second.weight": 0.3}

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(self.norm(x + nn.functional.silu(self.second(x))))


def clients_of(sizes, features=5, outputs=3, seed=0, inputs=None, dtype=np.float32) -> Federation:
    """Clients of the given sizes with noise of a shape; classes, or targets that are real numbers if outputs is 1."""
    rng, n, shape = np.random.default_rng(seed), sum(sizes), np.atleast_1d(features)
    x = rng.normal(size=(n, *shape)) / np.sqrt(np.prod(shape)) if dtype is np.float32 else None
    if dtype is np.uint8:
        x = rng.integers(0, 256, (n, *shape)).astype(dtype)
    elif dtype is np.int16:  # words, with padding among them
        x = rng.integers(0, 20, (n, *shape)).astype(dtype)
    y = rng.integers(0, outputs, n) if outputs > 1 else rng.normal(size=n)
    if outputs > 1:
        y[0] = outputs - 1  # so that every class counts
    return Federation.from_arrays(x, y, np.repeat(np.arange(len(sizes)), sizes), inputs=inputs)


def trained(used, needs=("updates", "curves", "last_gradient"), clients=None, starts=2):
    clients = np.arange(used.federation.clients) if clients is None else np.asarray(clients)
    theta = torch.stack([used.initial(k) for k in range(starts)])
    return used.train(theta, clients % starts, clients, ROUND, needs=frozenset(needs), participations=clients)


def agree(used, update=None, least=1e-4):
    """Compare an engine's training with the reference, where at least `least` was learnt."""
    update = trained(used) if update is None else update
    theta = torch.stack([used.initial(k) for k in range(int(update.start.max()) + 1)])
    plain = reference.train(used, theta, update.start, update.clients, ROUND, update.clients)
    for found, expected in (
        (update.rows[:], plain.updates),
        (update.last_gradient[:], plain.last_gradient),
        (torch.as_tensor(update.curves), torch.as_tensor(plain.curves)),
    ):
        largest = float(expected.nan_to_num().abs().max())
        assert largest >= least
        # An update is a difference of models, rounded as they are: to 6e-8 of their numbers in each step.
        floor = 1e-6 * max(1, float(theta.abs().max()))
        close(found.double(), expected, rtol=SHARE, atol=SHARE * largest + floor, equal_nan=True)


@pytest.fixture(params=["on inputs", "on data"])
def way(request, monkeypatch):
    """The first layer's form for all clients, whatever the rule would choose."""
    rows = (lambda sizes: 0 * sizes) if request.param == "on inputs" else (lambda sizes: batches.padded_rows(sizes, 4))
    monkeypatch.setattr(dense, "kinds", lambda worker, sizes, training: rows(sizes))
    return request.param


FACTORIES = {
    "mlp": mlp,
    "linear": lambda: nn.Linear(5, 3),
    "no bias": lambda: nn.Linear(5, 3, bias=False),
    "deep": lambda: nn.Sequential(
        nn.Linear(5, 9, bias=False), nn.Tanh(), nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.Linear(4, 3)
    ),
    "penalised": penalised,
}


@pytest.mark.parametrize("factory", ["mlp", "penalised"])
@pytest.mark.parametrize("option", OPTIONS)
def test_dense_with_each_option(way, factory, option):
    if way == "on data" and OPTIONS[option].get("optimizer") == "adam":
        pytest.skip("Adam isn't linear: never in the coordinates of the data")
    with engine(FACTORIES[factory], uneven(SIZES), **OPTIONS[option]) as used:
        assert used.backend == "dense"
        agree(used)


@pytest.mark.parametrize("factory", ["linear", "no bias", "deep"])
def test_dense_with_each_chain(way, factory):
    with engine(FACTORIES[factory], uneven(SIZES), momentum=0.5, weight_decay=0.01) as used:
        assert used.backend == "dense"
        agree(used)


@pytest.mark.parametrize("outputs", [1, 6])
def test_dense_with_squared_errors(way, outputs):
    """Of one real number, and of all numbers of a sample, which come as an image."""
    if outputs == 1:
        federation = clients_of(SIZES, 5, outputs)
        factory = partial(nn.Linear, 5, 1)
    else:
        federation = clients_of(SIZES, (1, 2, 3), 3, inputs=Inputs(target="input"))
        whole = [nn.Flatten(), nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 6), nn.Unflatten(1, (1, 2, 3))]
        factory = partial(nn.Sequential, *whole)
    with engine(factory if outputs == 1 else nn.Sequential(*whole), federation, proximal=0.1) as used:
        assert used.backend == "dense"
        agree(used)


def test_the_rule_for_the_first_layer():
    """Many steps on few samples of many numbers are taken in the coordinates of the data, but never with Adam."""

    def kinds(features, sizes=SIZES, **options):
        with engine(partial(mlp, features), uneven(sizes, features), **options) as used:
            found = dense.kinds(used.worker, np.array(sizes), used.training)
            assert (trained(used).steps > 0).all()
            agree(used)
        return found.tolist()

    assert kinds(60, epochs=10) == [4, 12, 24, 8, 16, 4]
    assert kinds(60, epochs=1, batch_size=1) == [0] * 6
    assert kinds(60, epochs=10, optimizer="adam", learning_rate=0.001) == [0] * 6
    mixed = kinds(60, (3, 90, 5, 80), epochs=2)  # both in one round
    assert min(mixed) == 0 < max(mixed)


def test_augmented_images_are_never_taken_as_coordinates():
    inputs = Inputs(augment="crop-flip", mean=[0.5], std=[0.5])
    federation = clients_of((3, 5), (3, 32, 32), 3, inputs=inputs, dtype=np.uint8)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, 3))
    with engine(whole, federation, epochs=8, batch_size=2, learning_rate=0.001) as used:
        assert not dense.kinds(used.worker, np.array([3, 5]), used.training).any()
        agree(used)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["cnn", "norm", "mlp"])
def test_loop_with_each_option(name, option):
    if name == "norm" and OPTIONS[option].get("optimizer") == "adam":
        pytest.skip("a bias before batch normalisation has the gradient 0, of which Adam makes rounding alone")
    factory, federation = {"cnn": (cnn, images), "norm": (norm_and_dropout, images), "mlp": (mlp, uneven)}[name]
    with engine(factory, federation(), backend="loop", **OPTIONS[option]) as used:
        agree(used)


@pytest.mark.parametrize("option", OPTIONS)
def test_stacked_with_each_option(option):
    with engine(Residual, uneven(SIZES), **OPTIONS[option]) as used:
        assert used.backend == "stacked"
        agree(used)


# Every network in the least shape that it takes, or nearly; the step is small enough for training to stay sound.
NETWORKS = {
    "linear": {"features": 5},
    "mlp": {"features": (1, 4, 4), "options": {"hidden": [7, 6]}},
    "lcfl-cnn": {"features": (1, 4, 4)},
    "lcfl-cifar-cnn": {"features": (3, 16, 16)},
    "ifca-cifar-cnn": {"features": (3, 8, 8)},
    "leaf-cnn": {"features": (1, 4, 8)},
    "clove-cnn": {"features": (1, 16, 16)},
    "clove-cifar-cnn": {"features": (3, 16, 16), "dtype": np.uint8},
    "clove-autoencoder": {"features": (1, 4, 4), "inputs": Inputs(target="input")},
    "clove-cifar-autoencoder": {"features": (3, 8, 8), "inputs": Inputs(target="input"), "dtype": np.uint8},
    "textcnn": {
        "features": 8, "dtype": np.int16, "options": {"words": 20, "size": 6, "filters": 5, "widths": [2, 3]},
    },
}  # fmt: skip


def forms(name):
    """Return the forms that train a network."""
    network = dict(NETWORKS[name])
    options = network.pop("options", {})
    federation = clients_of((3, 9, 5), **network)
    factory = partial(MODELS[name], federation.sample_shape, federation.outputs, **options)
    with engine(factory, federation) as used:
        return federation, factory, [form for form in work.FORMS if not work.FORMS[form].obstacle(used.worker)]


def test_every_network_is_there():
    assert set(NETWORKS) == set(MODELS)


EXPECTED = dict.fromkeys(("linear", "mlp", "clove-autoencoder"), ["dense", "stacked", "loop"]) | dict.fromkeys(
    ("clove-cifar-cnn", "textcnn"), ["loop"]
)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_in_every_form_that_it_has(name):
    federation, factory, found = forms(name)
    assert found == EXPECTED.get(name, ["stacked", "loop"])
    for form in found:
        with engine(
            factory, federation, backend=form, batch_size=4, epochs=2, momentum=0.5, proximal=0.1, learning_rate=0.05
        ) as used:
            update = trained(used)
            agree(used, update)
            # Scores, of models with buffers that training has moved.
            theta = torch.stack([used.initial(update.start[i]) + update.rows[i] for i in (0, 1)])
            correct, loss = reference.scores(used, theta, update.clients, "train")
            scored = used.scores(theta, update.clients, "train")
            np.testing.assert_allclose(scored.loss, loss, rtol=1e-5)
            np.testing.assert_array_equal(scored.correct, correct)
            own = used.own_scores(theta, update.clients % 2, update.clients, "train")
            np.testing.assert_array_equal(own.loss, scored.loss[update.clients, update.clients % 2])
            np.testing.assert_array_equal(own.correct, scored.correct[update.clients, update.clients % 2])
