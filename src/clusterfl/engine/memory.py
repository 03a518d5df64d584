"""What clients' optimisers keep from round to round, with ``optimizer_state: kept``. M clients, p parameters.

By name, as a run's state has it: the momentum buffers of SGD, ``client_velocity [M, p]``; of Adam the two moments,
``client_mean`` and ``client_square [M, p]``, and the number of steps taken, ``client_steps [M]``. Before a client first
trains all of it is zero, with which the first step is that of a new optimiser: ``v = m 0 + g`` (torch.optim.SGD).

It belongs to the client, whatever model the client is given. Only training changes it; an update that is left out of
the sums leaves it as it was.
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
    """Return the memory before the first round: a copy of what an `earlier` run left, zeros where it left none."""
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
    """Return the part of a memory that has a row for each client."""
    return {name: rows for name, rows in memory.items() if name != STEPS}


def keep(
    memory: Mapping[str, Any],
    rows: Mapping[str, Tensor],
    clients: NDArray[np.int64],
    steps: NDArray[np.int64],
    sound: NDArray[np.bool_],
) -> None:
    """Write what the optimisers of some clients hold after training into the memory, in place.

    Parameters
    ----------
    rows : [C, p] each
        By name.
    clients, steps, sound : [C]
        Positions in the federation, steps taken, and whose updates aren't left out.
    """
    chosen = torch.as_tensor(np.flatnonzero(sound))
    for name, values in rows.items():
        memory[name][torch.as_tensor(clients[sound])] = values[chosen]
    if STEPS in memory and rows:
        memory[STEPS][clients[sound]] += steps[sound]
