"""Small federations for checking parts: clients of different sizes, one with a single sample, in two planted groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ...data.federation import Federation
from ...engine.engine import Engine
from ...engine.training import Training

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)  # training samples of each client
FEATURES, CLASSES, TESTS, HIDDEN, SEED = 5, 3, 6, 8, 3
NEWCOMERS = (12, 12, 12, 12)
Column = NDArray[Any]
Columns = tuple[Column, Column, Column, Column, Column]


def columns(sizes: tuple[int, ...] = SIZES, groups: int = 2, seed: int = 0) -> Columns:
    """Return samples, classes, clients, splits and planted groups, a row for each sample.

    The classes of the second group follow the rule of the first with the opposite sign.
    """
    generator = np.random.default_rng(seed)
    rule = generator.normal(size=(FEATURES, CLASSES))
    count = np.array(sizes) + TESTS
    client = np.repeat(np.arange(len(sizes)), count)
    group = client % groups
    x = generator.normal(size=(len(client), FEATURES)).astype(np.float32)
    y = np.argmax(np.where(group == 0, 1, -1)[:, None] * (x @ rule), axis=1)
    split = np.concatenate([np.repeat(["train", "test"], [size, TESTS]) for size in sizes])
    return x, y, client, split, group


def mixed(given: Columns) -> Columns:
    """Return the rows in an order in which clients alternate; each client's own rows stay in order."""
    client = given[2]
    turn = np.array([int((client[:row] == client[row]).sum()) for row in range(len(client))])
    order = np.lexsort((-client, turn))
    x, y, client, split, group = (column[order] for column in given)
    return x, y, client, split, group


def network() -> nn.Module:
    """Return the network that methods train."""
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def engine(
    given: Columns | None = None, chunk: int | None = None, workers: int = 1, copies: int = 1, **training: Any
) -> Engine:  # fmt: skip
    """Return an engine for a federation's columns, with newcomers of the same groups."""
    settings = Training(**({"rounds": 3, "epochs": 1} | training))
    members = Federation.from_arrays(*(columns() if given is None else given))
    newcomers = Federation.from_arrays(*columns(NEWCOMERS))
    return Engine(
        network, members, settings, SEED, device="cpu", newcomers=newcomers, chunk=chunk, workers=workers, copies=copies
    )  # fmt: skip
