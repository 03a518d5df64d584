"""Federations and networks of the benchmarks. They are made up: speed doesn't depend on what the samples show."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import outputs, sample_shape
from clusterfl.models import MODELS
from clusterfl.models.plain import two_convolutions

CLASSES = 10  # of the images
FILTERS = {"large-cnn": (32, 64, 512), "lcfl-cnn": (16, 32, 256)}  # filters of both convolutions, hidden units
FEATURES, GROUPS = 20, 4  # of the other federations, which have as many classes as groups


def network(name: str, federation: Federation) -> nn.Module:
    """Return a new network that fits a federation: a name of clusterfl's table, or ``large-cnn``.

    The latter is McMahan et al.'s for MNIST (AISTATS 2017, section 3), with padding; 1,663,370 parameters.
    """
    if name == "large-cnn":
        first, second, units = FILTERS[name]
        return two_convolutions(sample_shape(federation), outputs(federation), (first, second), 2, [units])
    module: nn.Module = MODELS[name](sample_shape(federation), outputs(federation))
    return module


def plain(name: str, federation: Federation) -> nn.Module:
    """Return a new network as its paper writes it, with ReLU before pooling, for the loop: the same numbers."""
    if name in FILTERS:
        first, second, units = FILTERS[name]
        channels, height, width = sample_shape(federation)
        return nn.Sequential(
            nn.Conv2d(channels, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), units), nn.ReLU(),
            nn.Linear(units, outputs(federation)),
        )  # fmt: skip
    return network(name, federation)


def images(clients: int, samples: int) -> Federation:
    """Return clients with random images of 28 x 28 bytes, their classes in turn."""
    count = clients * samples
    x = np.random.default_rng(0).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    return Federation.from_arrays(x, np.arange(count) % CLASSES, np.repeat(np.arange(clients), samples))


def planted(clients: int, samples: int) -> Federation:
    """Return clients with normal features whose classes follow the linear rule of the client's group, i mod 4."""
    x, outputs, owner = _planted(clients, samples)
    return Federation.from_arrays(x, outputs.argmax(axis=1), owner, true_cluster=owner % GROUPS)


def regression(clients: int, samples: int) -> Federation:
    """Return clients with normal features and one real target that follows the linear rule of the client's group."""
    x, outputs, owner = _planted(clients, samples)
    return Federation.from_arrays(x, outputs[:, 0], owner, true_cluster=owner % GROUPS)


def _planted(clients: int, samples: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), samples)
    x = rng.normal(size=(len(owner), FEATURES)).astype(np.float32)
    rules = rng.normal(size=(GROUPS, FEATURES, GROUPS)).astype(np.float32)
    outputs = np.empty((len(owner), GROUPS), dtype=np.float32)
    for group, rule in enumerate(rules):
        own = owner % GROUPS == group
        outputs[own] = x[own] @ rule
    return x, outputs, owner
