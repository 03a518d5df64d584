"""Local optimisers over the rows of many clients, in PyTorch's update rules. C clients, p parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .memory import ROWS
from .personal import Columns
from .task import Task
from .training import Training

CONSTANTS: dict[str, Any] = {  # of Adam: PyTorch's defaults
    "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip


class RowOptimizer(Protocol):
    """Takes steps in place for the clients ``first:`` of a chunk; `memory` has arrays [C, p] by name, see `memory`."""

    memory: dict[str, Tensor]

    def step(self, theta: Tensor, gradient: Tensor, first: int) -> None:
        """Update ``theta[first:]`` [c, p] with ``gradient`` [c, p]."""


class SGD:
    """``v <- m v + g; w <- w - rate v`` (torch.optim.SGD without dampening)."""

    def __init__(self, task: Task, like: Tensor, rate: Tensor, memory: Mapping[str, Tensor]):
        self.momentum, self.rate = task.training.momentum, rate
        self.memory = _rows(ROWS["sgd"], like, memory) if self.momentum else {}
        self.velocity = self.memory.get("client_velocity")

    def step(self, theta: Tensor, gradient: Tensor, first: int) -> None:
        """See `RowOptimizer`."""
        if self.velocity is not None:
            gradient = self.velocity[first:].mul_(self.momentum).add_(gradient)
        theta[first:].addcmul_(self.rate[first:], gradient, value=-1)


class Adam:
    """Adam (Kingma and Ba 2015) with PyTorch's defaults, by the kernel of ``torch.optim.Adam(fused=True)``.

    Each client is a separate tensor for the kernel, so its bits don't depend on its position in the chunk.
    """

    def __init__(self, task: Task, like: Tensor, rate: Tensor, memory: Mapping[str, Tensor]):
        self.rates = rate.flatten().tolist()
        self.memory = _rows(ROWS["adam"], like, memory)
        self.mean, self.square = self.memory.values()
        self.counts = torch.as_tensor(task.taken, dtype=torch.float32, device=like.device)  # exact below 2^24

    def step(self, theta: Tensor, gradient: Tensor, first: int) -> None:
        """See `RowOptimizer`."""
        self.counts[first:] += 1
        theta_rows, gradients, counts = theta[first:].unbind(), gradient.unbind(), self.counts[first:].unbind()
        means, squares = self.mean[first:].unbind(), self.square[first:].unbind()
        for rate in set(self.rates[first:]):
            chosen = [i for i, own in enumerate(self.rates[first:]) if own == rate]
            torch._fused_adam_(
                [theta_rows[i] for i in chosen], [gradients[i] for i in chosen], [means[i] for i in chosen],
                [squares[i] for i in chosen], [], [counts[i] for i in chosen],
                lr=rate, weight_decay=0.0, **CONSTANTS,
            )  # fmt: skip


class Ahead:
    """Steps in pairs: a plain step ahead, then a step of `inner` from the start, with the gradient found ahead.

    If a client's number of steps is odd, the last one isn't taken.
    """

    def __init__(self, inner: RowOptimizer, rate: float, tails: list[int]):
        self.inner, self.rate, self.tails, self.taken = inner, rate, tails, 0
        self.before: Tensor  # rows before the step ahead
        self.memory = inner.memory

    def step(self, theta: Tensor, gradient: Tensor, first: int) -> None:
        """See `RowOptimizer`."""
        number, self.taken = self.taken, self.taken + 1
        if number % 2:
            theta[first:] = self.before
            self.inner.step(theta, gradient, first)
            return
        paired = self.tails[number + 1] if number + 1 < len(self.tails) else len(theta)
        self.before = theta[paired:].clone()
        theta[paired:].sub_(gradient[paired - first :] * self.rate)  # no fused operation: the same rounding everywhere


class OfModule:
    """``torch.optim.SGD`` or ``Adam`` on a module's parameters, by the kernels that they use with ``fused=True``.

    PyTorch's own classes import its compiler when the first one is made: 1.6 s in each process that trains.

    Parameters
    ----------
    training
        The optimiser and its settings.
    groups
        Parameters and their L2 penalty, as `parameter_layout.Layout.groups` returns them.
    rate
        Learning rate.
    """

    def __init__(self, training: Training, groups: list[dict[str, Any]], rate: float):
        self.training, self.groups, self.rate = training, groups, rate
        # The optimiser's state by name (see `memory`) and parameter; for Adam also each parameter's step count.
        self.memory: dict[str, dict[Tensor, Tensor]] = {name: {} for name in ROWS[training.optimizer]}
        self.counts: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update each parameter that has a gradient."""
        take = self._adam if self.training.optimizer == "adam" else self._sgd
        for group in self.groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                take(moved, [parameter.grad for parameter in moved], group["weight_decay"])

    def _sgd(self, parameters: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        velocity, momentum = self.memory["client_velocity"], self.training.momentum
        first = momentum != 0 and not any(parameter in velocity for parameter in parameters)
        if momentum:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter not in velocity:
                    velocity[parameter] = torch.empty_like(gradient) if first else torch.zeros_like(gradient)
        torch._fused_sgd_(
            parameters, gradients, [velocity[one] for one in parameters] if momentum else [], weight_decay=decay,
            momentum=momentum, lr=self.rate, dampening=0.0, nesterov=False, maximize=False, is_first_step=first,
        )  # fmt: skip

    def _adam(self, parameters: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        for parameter in parameters:
            if parameter not in self.counts:
                self.counts[parameter] = torch.zeros((), device=parameter.device)
            for rows in self.memory.values():
                if parameter not in rows:
                    rows[parameter] = torch.zeros_like(parameter, requires_grad=False)
        means, squares = ([rows[one] for one in parameters] for rows in self.memory.values())
        counts = [self.counts[one] for one in parameters]
        torch._foreach_add_(counts, 1)
        torch._fused_adam_(
            parameters, gradients, means, squares, [], counts, weight_decay=decay, lr=self.rate, **CONSTANTS
        )


def make_optimizer(task: Task, like: Tensor, rate: Tensor) -> RowOptimizer:
    """Return the optimiser of a task for parameters like `like` [C, p] and learning rates [C, 1].

    It continues from the optimiser states that the clients keep, if any.
    """
    training = task.training
    kind = Adam if training.optimizer == "adam" else SGD
    found: RowOptimizer = kind(task, like, rate, task.memories(like.device))
    return Ahead(found, training.lookahead, task.tails()) if training.lookahead else found


def _rows(names: tuple[str, ...], like: Tensor, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return rows [C, p] for each name, from `memory`, or zeros like `like`."""
    return {name: memory[name] if name in memory else torch.zeros_like(like) for name in names}


def regularise(
    gradient: Tensor, theta: Tensor, start: Tensor, decay: Tensor | None, training: Training, free: Columns
) -> None:  # fmt: skip
    """Add the gradients of the L2 penalty and the proximal term to ``gradient [c, p]``, in place.

    `decay` is [p]; the proximal term pulls to ``start [c, p]``, except in the columns `free`.
    """
    if decay is not None:
        gradient.addcmul_(theta, decay)
    if training.proximal:
        away = theta - start
        free.clear(away)
        gradient.add_(away, alpha=training.proximal)
