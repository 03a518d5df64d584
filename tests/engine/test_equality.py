"""Every form of training against the slow, obvious one in float64, for every network and every option."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import reference
import torch
from federations import (
    OPTIONS,
    Residual,
    cnn,
    engine,
    first_layer_on,
    images,
    mlp,
    noise,
    norm_and_dropout,
    slow_but,
    uneven,
)
from reference import agree, trained
from torch import nn

from clusterfl import streams
from clusterfl.data.inputs import Inputs
from clusterfl.data.prepared import outputs, sample_shape
from clusterfl.engine import batches, dense, work
from clusterfl.engine.modules import Sum
from clusterfl.errors import UserError
from clusterfl.models import MODELS

SIZES = (3, 10, 21, 7, 16, 1)  # with batches of 10: short last ones, one of a single sample; clients of one sample


def penalised():
    """A chain of which two layers have L2 penalties of their own, the first one among them."""
    made = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    made.weight_decays = {"0.weight": 0.3, "2.bias": 0.2}
    return made


@pytest.fixture(params=["on inputs", "on data"])
def way(request, monkeypatch):
    """The first layer's form for all clients, whatever the rule would choose."""
    first_layer_on(request.param, monkeypatch)
    return request.param


FACTORIES = {
    "mlp": mlp,
    "linear": lambda: nn.Linear(5, 3),
    "no bias": lambda: nn.Linear(5, 3, bias=False),
    "deep": lambda: nn.Sequential(
        nn.Linear(5, 9, bias=False), nn.Tanh(), nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.Linear(4, 3)
    ),
    "penalised": penalised,
    "sum": lambda: Sum([mlp(), mlp()]),
    "sum of penalised ones": lambda: Sum([penalised(), mlp()]),
    "sum of others": lambda: Sum(
        [nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 9, bias=False), nn.Tanh(), nn.Linear(9, 4), nn.Linear(4, 3))]
    ),
}


@pytest.mark.parametrize("factory", slow_but(["mlp"], ["mlp", "penalised", "sum of penalised ones"]))
@pytest.mark.parametrize("option", OPTIONS)
def test_dense_with_each_option(way, factory, option):
    if way == "on data" and OPTIONS[option].get("optimizer") == "adam":
        pytest.skip("Adam isn't linear: never in the coordinates of the data")
    with engine(FACTORIES[factory], uneven(SIZES), **OPTIONS[option]) as used:
        assert used.backend == "dense"
        agree(used)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_short_batches_are_left_out_in_every_form(backend):
    with engine(mlp, uneven((13, 25, 10, 39)), backend=backend, short_batches="drop", momentum=0.5) as used:
        assert trained(used).steps.tolist() == [used.training.epochs * n for n in (1, 2, 1, 3)]
        agree(used)


@pytest.mark.parametrize("factory", ["linear", "no bias", "deep", "sum", "sum of others"])
def test_dense_with_each_chain(way, factory):
    with engine(FACTORIES[factory], uneven(SIZES), momentum=0.5, weight_decay=0.01) as used:
        assert used.backend == "dense"
        agree(used)


SQUARED = {
    "one number": (nn.Linear(5, 1), noise(SIZES, 5, 1)),
    "a sample": (
        nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 6), nn.Unflatten(1, (1, 2, 3))),
        noise(SIZES, (1, 2, 3), inputs=Inputs(target="input")),
    ),
}


@pytest.mark.parametrize("module, federation", SQUARED.values(), ids=SQUARED)
def test_dense_with_squared_errors(way, module, federation):
    """Of one real number, and of all numbers of a sample, which come as an image."""
    with engine(module, federation, proximal=0.1) as used:
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
    # A sample in a step is 2 x 60 x 8 = 960 multiplications on inputs; of 24 samples' coordinates 2 x 24 x 8 = 384, and
    # (2 x 8 + 24) x 24 x 60 = 57,600 once. A fifth is saved from 57,600 / (0.8 x 960 - 384) = 150 samples on.
    assert kinds(60, (24,), batch_size=8, epochs=6) == [0]  # 144
    assert kinds(60, (24,), batch_size=8, epochs=7) == [24]  # 168


def test_augmented_images_are_never_taken_as_coordinates():
    inputs = Inputs(augment="crop-flip", mean=[0.5], std=[0.5])
    federation = noise((3, 5), (3, 32, 32), 3, inputs=inputs, dtype=np.uint8)
    whole = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, 3))
    with engine(whole, federation, epochs=8, batch_size=2, learning_rate=0.001) as used:
        assert not dense.kinds(used.worker, np.array([3, 5]), used.training).any()
        agree(used)


QUICK = ["plain", "all", "adam, proximal, decay", "steps"]
EACH = [(name, option) for name in ("cnn", "norm", "mlp") for option in OPTIONS]


@pytest.mark.parametrize("name, option", slow_but([e for e in EACH if e[0] == "mlp" or e[1] in QUICK], EACH))
def test_loop_with_each_option(name, option):
    if name == "norm" and OPTIONS[option].get("optimizer") == "adam":
        pytest.skip("a bias before batch normalisation has the gradient 0, of which Adam makes rounding alone")
    factory, federation = {"cnn": (cnn, images), "norm": (norm_and_dropout, images), "mlp": (mlp, uneven)}[name]
    with engine(factory, federation(), backend="loop", **OPTIONS[option]) as used:
        agree(used)


@pytest.mark.parametrize("option", slow_but(["all", "adam with penalty", "steps"], OPTIONS))
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
    "fedgwc-cnn": {"features": (3, 16, 16)},
    "lenet5": {"features": (1, 12, 12)},
    "flexcfl-mlp": {"features": (1, 4, 4)},
    "flexcfl-cnn": {"features": (1, 8, 8)},
    "flexcfl-mnist-cnn": {"features": (1, 4, 4)},
    "rr-cnn": {"features": (1, 16, 16)},
    "char-lstm": {"features": 6, "dtype": np.int16, "options": {"characters": 20, "size": 3, "units": 5}},
}  # fmt: skip


# So often normalised that float32's rounding grows to parts of a hundred: a step of theirs has a test of its own.
DEEP = {"mobilenet-v2": 52, "resnet": 20}  # layers of batch normalisation


@pytest.mark.parametrize("name", slow_but(["mobilenet-v2"], DEEP))
def test_a_step_of_deep_networks_is_torchs_own(name):
    """Dropout draws from the stream of the client and the round; running statistics move with the parameters."""
    federation = noise((4, 5), (3, 32, 32), dtype=np.uint8, inputs=Inputs(mean=[0.5], std=[0.3]))
    factory = partial(MODELS[name], sample_shape(federation), outputs(federation))
    with engine(factory, federation, batch_size="full", epochs=1, learning_rate=0.01) as used:
        assert used.backend == "loop"
        row = used.initial(0)
        update = used.train(row[None], np.array([0]), np.array([1]), reference.ROUND, needs=frozenset({"updates"}))
        module, split = reference.module_of(used, row, torch.float32).train(), federation.splits["train"]
        found = update.rows[0]
        counters = [name for name, _ in used.layout.buffers if name.endswith("num_batches_tracked")]
        assert len(counters) == DEEP[name]
        with streams.torch_stream(used.seed, "module", 1, reference.ROUND):
            order = batches.schedule(used.seed, federation.ids[1:], split.sizes[1:], reference.ROUND, used.training)
            places = torch.as_tensor(split.offsets[1] + order[0, 0][order[0, 0] >= 0])
            x, y = used.worker.data["train"].take(places), torch.as_tensor(split.y)[places]
            nn.functional.cross_entropy(module(x), y).backward()
        torch.optim.SGD(module.parameters(), lr=0.01).step()
        expected = used.layout.flatten(module) - row
    assert float((found - expected).norm()) < 0.05 * float(expected.norm())
    columns = {name: part for name, _, part in used.layout.slices()}
    assert all(found[columns[name]].item() == 1 for name in counters)


def test_a_batch_of_one_sample_is_reported_where_batches_are_normalised():
    normalised = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    said = pytest.raises(UserError, match="client 1 has a batch of one sample")
    with engine(normalised, uneven((10, 11)), batch_size=5) as used, said:
        trained(used)


def test_every_network_is_there():
    assert set(NETWORKS) | set(DEEP) == set(MODELS)


TOGETHER = ["stacked", "loop"]
FORMS = dict.fromkeys(NETWORKS, TOGETHER) | {
    "linear": ["dense", "stacked", "loop"],
    "mlp": ["dense", "stacked", "loop"],
    "clove-autoencoder": ["dense", "stacked", "loop"],
    "flexcfl-mlp": ["dense", "stacked", "loop"],
    "clove-cifar-cnn": ["loop"],  # batch normalisation and dropout
    "flexcfl-mnist-cnn": ["loop"],  # dropout, as the next
    "textcnn": ["loop"],
    "char-lstm": ["loop"],  # torch.func has no rule for an LSTM
}


# The others are large: 1 to 5 s of the processor each.
SOON = ["linear", "mlp", "flexcfl-mlp", "lcfl-cnn", "textcnn", "char-lstm", "lenet5"]


@pytest.mark.parametrize("name", slow_but(SOON, NETWORKS))
def test_every_network_in_every_form_that_it_has(name):
    network = dict(NETWORKS[name])
    options, federation = network.pop("options", {}), noise((3, 9, 5), **network)
    factory = partial(MODELS[name], sample_shape(federation), outputs(federation), **options)
    with engine(factory, federation) as used:
        assert [form for form in work.FORMS if not work.FORMS[form].obstacle(used.worker)] == FORMS[name]
    settings = {"batch_size": 4, "epochs": 2, "momentum": 0.5, "proximal": 0.1, "learning_rate": 0.05}
    for form in FORMS[name]:
        with engine(factory, federation, backend=form, **settings) as used:
            update = trained(used)
            agree(used, update)
            # Scores, of models with buffers that training has moved.
            theta = torch.stack([used.initial(int(update.start[i])) + update.rows[i] for i in (0, 1)])
            correct, loss = reference.scores(used, theta, update.clients, "train")
            scored = used.scores(theta, update.clients, "train")
            np.testing.assert_allclose(scored.loss, loss, rtol=1e-5)
            np.testing.assert_array_equal(scored.correct, correct)
            own = used.own_scores(theta, update.start, update.clients, "train")
            np.testing.assert_array_equal(own.loss, scored.loss[update.clients, update.start])
            np.testing.assert_array_equal(own.correct, scored.correct[update.clients, update.start])
