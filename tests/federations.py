"""Small federations and engines that several tests use."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine import batches, dense
from clusterfl.engine.engine import Engine
from clusterfl.engine.personal import Columns, Personal
from clusterfl.engine.training import Training

# Settings of training, each of which every form of the engine takes.
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


def uneven(sizes=(3, 10, 25, 7, 16, 40), features=5, classes=3, groups=2, seed=0, tests=6) -> Federation:
    """Clients of different sizes in planted groups whose classes follow opposite rules."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(features, classes))
    x, y, client, split, group = [], [], [], [], []
    for i, n in enumerate(sizes):
        features_i = rng.normal(size=(n + tests, features)).astype(np.float32)
        sign = 1 if i % groups == 0 else -1
        x.append(features_i)
        y.append(np.argmax(sign * features_i @ weights, axis=1))
        client.append(np.full(n + tests, i))
        split.append(np.repeat(["train", "test"], [n, tests]))
        group.append(np.full(n + tests, i % groups))
    return Federation.from_arrays(*map(np.concatenate, (x, y, client, split, group)))


def images(clients=5, samples=12, seed=0, groups=1) -> Federation:
    """Clients with noise images of 1 x 8 x 8 and random classes, in planted groups that mean nothing."""
    rng = np.random.default_rng(seed)
    n = clients * samples
    split = np.tile(np.repeat(["train", "test"], [samples - 4, 4]), clients)
    return Federation.from_arrays(
        rng.normal(size=(n, 1, 8, 8)), rng.integers(0, 3, n), np.repeat(np.arange(clients), samples), split,
        np.repeat(np.arange(clients) % groups, samples),
    )  # fmt: skip


def noise(sizes, features=5, outputs=3, seed=0, inputs=None, dtype=np.float32) -> Federation:
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


def mlp(features=5, classes=3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))


def norm_and_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3)
    )


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


def slow_but(quick, cases):
    """Return the cases, marked as slow but for the quick ones, which stand for all in `make test`."""
    assert all(one in cases for one in quick), "a quick case is none of the cases"
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(*(one if isinstance(one, tuple) else [one]), marks=marks[one in quick]) for one in cases]


def engine(factory=mlp, federation=None, **options) -> Engine:
    """An engine whose extra options are split between the training settings and the engine's own."""
    names = ("backend", "chunk", "workers", "seed", "newcomers", "device", "copies")
    own = {k: options.pop(k) for k in names if k in options}
    return Engine(factory, federation or uneven(), Training(**options), **{"seed": 3, "device": "cpu", **own})


def whole_models(used) -> Personal:
    """Return a whole model of each client's own, all zeros, as methods keep that train one beside the common model."""
    m, columns = used.federation.clients, used.layout.columns
    return Personal(Columns(np.array([[0, columns]])), torch.zeros(m, columns), sent=True)


def first_layer_on(way, monkeypatch):
    """Train first layers "on inputs" or "on data", in the coordinates of each client's samples, whatever pays."""
    rows = {"on inputs": np.zeros_like, "on data": lambda sizes: batches.padded_rows(sizes, 4)}[way]
    monkeypatch.setattr(dense, "kinds", lambda worker, sizes, *_, **__: rows(sizes))


def changed(method, **hooks):
    """Return a method some of whose hooks are others: each takes the hook that it replaces, then its arguments."""

    def instead(old, new):
        return lambda self, *given: new(partial(old, self), *given)

    kind = type(method)
    made = type(kind.__name__, (kind,), {name: instead(getattr(kind, name), new) for name, new in hooks.items()})
    return made(**{one.name: getattr(method, one.name) for one in fields(method)})


def beginning(method, theta):
    """Return a method whose first models are these, [K, P]."""

    def begin(old, context):
        state = old(context)
        state.theta = theta.clone()
        return state

    return changed(method, begin=begin)
