"""Federations and networks of the benchmarks. They are made up: speed doesn't depend on what the samples show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.prepared import outputs, sample_shape
from clusterfl.models import MODELS
from clusterfl.models.plain import two_convolutions

CLASSES = 10  # of the images
WORDS, LENGTH, TOPICS = 32_000, 200, 4  # as AG News
CHARACTERS, LINE = 80, 80  # as Shakespeare's
FILTERS = {"large-cnn": (32, 64, 512), "lcfl-cnn": (16, 32, 256)}  # filters of both convolutions, hidden units
Data = Callable[[int, int], Federation]  # of clients, and samples of each
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
    made = network(name, federation)
    if type(made) is not nn.Sequential:
        return made
    layers = list(made)
    for place, (first, second) in enumerate(pairwise(layers)):
        if isinstance(first, nn.MaxPool2d) and isinstance(second, nn.ReLU):
            layers[place : place + 2] = second, first
    return nn.Sequential(*layers)


def images(
    clients: int, samples: int, shape: tuple[int, ...] = (1, 28, 28), classes: int = CLASSES,
    target: Literal["label", "input"] = "label",
) -> Federation:  # fmt: skip
    """Return clients with random images of bytes, their classes in turn; or the images themselves as targets."""
    count = clients * samples
    x = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    client = np.repeat(np.arange(clients), samples)
    return Federation.from_arrays(x, np.arange(count) % classes, client, inputs=Inputs(target=target))


def texts(clients: int, samples: int, length: int, words: int, classes: int) -> Federation:
    """Return clients with random words, from 1, the classes of the texts in turn."""
    count = clients * samples
    x = np.random.default_rng(0).integers(1, words, (count, length), dtype=np.int64)
    return Federation.from_arrays(x, np.arange(count) % classes, np.repeat(np.arange(clients), samples))


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
