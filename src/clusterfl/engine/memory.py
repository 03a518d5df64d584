"""Memory: clients' optimiser states, kept between rounds with ``optimizer_state: kept``. M clients, p parameters.

By name, as in a run's state: for SGD the momentum buffers, ``client_velocity [M, p]``; for Adam the two moments,
``client_mean`` and ``client_square [M, p]``, and the number of steps taken, ``client_steps [M]``. All are zero before a
client's first training, so that its first step is that of a new optimiser: ``v = m 0 + g`` (torch.optim.SGD).

The memory belongs to the client, whatever model the client is given. Only training changes it; if an update is left out
of the sums, the client's memory doesn't change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..storage.blocks import blocks
from ..storage.row_store import Rows
from .training import Training

ROWS = {"sgd": ("client_velocity",), "adam": ("client_mean", "client_square")}  # [M, p] in float32
STEPS = "client_steps"  # [M], of Adam
NAMES = frozenset({STEPS, *(name for names in ROWS.values() for name in names)})


def begin(
    training: Training, clients: int, parameters: int, allocate: Callable[..., Rows], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the memory before the first round: a copy of the `earlier` run's, or zeros for what it doesn't have."""
    if training.optimizer_state == "fresh":
        return {}
    found: dict[str, Any] = {}
    for name in ROWS[training.optimizer]:
        found[name] = allocate(clients, parameters)
        for part in blocks(clients, 4 * parameters) if name in earlier else ():
            found[name][part] = earlier[name][part]
    if training.optimizer == "adam":
        found[STEPS] = np.array(earlier.get(STEPS, np.zeros(clients)), dtype=np.int64)
    return found


def rows_of(memory: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the memory's arrays [M, p], by name."""
    return {name: rows for name, rows in memory.items() if name != STEPS}


def keep(
    memory: Mapping[str, Any],
    rows: Mapping[str, Tensor],
    clients: NDArray[np.int64],
    steps: NDArray[np.int64],
    sound: NDArray[np.bool_],
) -> None:
    """Write the optimiser states of some clients after training into the memory, in place.

    Parameters
    ----------
    rows : [C, p] each
        The states, by name.
    clients, steps, sound : [C]
        Positions in the federation, steps taken, and whether to write: False for updates that are left out.
    """
    chosen = torch.as_tensor(np.flatnonzero(sound))
    for name, values in rows.items():
        memory[name][torch.as_tensor(clients[sound])] = values[chosen]
    if STEPS in memory and rows:
        memory[STEPS][clients[sound]] += steps[sound]
