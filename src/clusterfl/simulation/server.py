"""What the server does with a cluster's mean update. K models, p parameters of P columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..engine.personal import Columns
from ..engine.training import Training
from .state import State

if TYPE_CHECKING:  # see `simulation.method`
    from torch import Tensor

    from ..storage.row_store import Rows


def step(
    training: Training,
    state: State,
    touched: NDArray[np.int64],
    mean: Tensor,
    p: int,
    round_: int,
    allocate: Callable[..., Rows],
    frozen: Columns,
) -> None:
    """Apply mean updates to the models ``state.theta[touched]``, in place.

    With ``average: models`` this is SGD with momentum on the mean update: ``v <- m v + mean; theta <- theta + rate v``
    (FedAvgM: Hsu, Qi and Brown, arXiv 1909.06335). With ``average: gradients`` the mean update is the negative mean
    gradient, on which the local optimiser of the settings takes its step (CLoVE, arXiv 2506.22427, option II).
    To buffers, the columns from `p` on, the plain mean is added; `frozen` columns don't change.

    Parameters
    ----------
    touched : [t]
        The models that have participants; the optimiser's memory of the others stays as it is.
    mean : [t, P]
        Mean updates, float64.
    allocate
        Makes the optimiser's memory, zeros [K, p].
    """
    import torch

    rows = torch.as_tensor(touched)
    before = state.theta[rows].double()

    def memory(name: str) -> Rows:
        if getattr(state, name) is None:
            setattr(state, name, allocate(len(state.theta), p, torch.float64))
        found: Rows = getattr(state, name)
        return found

    rate, momentum, direction = training.server_learning_rate, training.server_momentum, mean[:, :p]
    if training.average == "gradients":
        rate, momentum = float(training.rates(round_, np.zeros(1))[0]), training.momentum
        direction = direction - training.weight_decay * before[:, :p]
        frozen.clear(direction)
    if training.average == "gradients" and training.optimizer == "adam":
        direction = _adam(direction, rows, memory("server_mean"), memory("server_square"), state)
    elif momentum:
        velocity = memory("server_velocity")
        velocity[rows] = momentum * velocity[rows] + direction
        direction = velocity[rows]
    state.theta[rows] = (before + torch.cat([rate * direction, mean[:, p:]], dim=1)).float()


def share(state: State, common: Columns, moved: int) -> None:
    """Copy the common columns, and the server's momentum there, from model `moved` to all models."""
    for rows in (state.theta, state.server_velocity):
        if rows is not None:
            _put(rows, common, common.taken(rows[moved]))


def pool(sums: Rows, common: Columns) -> None:
    """In the columns common to all models, replace each row of ``sums [K, P]`` by the sum over all rows."""
    import torch

    total = torch.zeros(len(common), dtype=torch.float64)
    for k in range(len(sums)):
        total += common.taken(sums[k])
    _put(sums, common, total)


def _put(rows: Rows, columns: Columns, values: Tensor) -> None:
    for k in range(len(rows)):  # one by one: they may be in a file
        row = rows[k]
        columns.put(row, values)
        rows[k] = row


def _adam(direction: Tensor, rows: Tensor, mean: Rows, square: Rows, state: State) -> Tensor:
    """Return Adam's direction with PyTorch's defaults; each model counts its own steps."""
    import torch

    if state.server_steps is None:
        state.server_steps = np.zeros(len(mean), dtype=np.int64)
    count = state.server_steps
    count[rows.numpy()] += 1
    mean[rows] = 0.9 * mean[rows] + 0.1 * direction
    square[rows] = 0.999 * square[rows] + 0.001 * direction.square()
    first, second = (
        torch.as_tensor([1 - math.pow(beta, n) for n in count[rows.numpy()].tolist()], dtype=torch.float64)[:, None]
        for beta in (0.9, 0.999)
    )
    return (mean[rows] / first) / ((square[rows] / second).sqrt() + 1e-8)
