"""Local optimisers over the rows of many clients, in PyTorch's update rules. C clients, p parameters."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from ..training import Training


class RowOptimizer(Protocol):
    """Takes one step in place for the clients ``first:`` of a chunk."""

    def step(self, theta: Tensor, gradient: Tensor, rate: Tensor, first: int) -> None:
        """Update ``theta[first:]`` [c, p] with ``gradient`` [c, p] and ``rate`` [c, 1]."""


class SGD:
    """``v <- m v + g; w <- w - rate v`` (torch.optim.SGD without dampening)."""

    def __init__(self, training: Training, like: Tensor):
        self.momentum = training.momentum
        self.velocity = torch.zeros_like(like) if self.momentum else None

    def step(self, theta: Tensor, gradient: Tensor, rate: Tensor, first: int) -> None:
        """See `RowOptimizer`."""
        if self.velocity is not None:
            gradient = self.velocity[first:].mul_(self.momentum).add_(gradient)
        theta[first:].addcmul_(rate, gradient, value=-1)


class Adam:
    """Kingma and Ba 2015, with PyTorch's defaults (betas .9 and .999, eps 1e-8)."""

    def __init__(self, training: Training, like: Tensor):
        self.mean, self.square, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def step(self, theta: Tensor, gradient: Tensor, rate: Tensor, first: int) -> None:
        """See `RowOptimizer`. Clients that still train have taken the same number of steps."""
        self.count += 1
        mean = self.mean[first:].lerp_(gradient, 0.1)
        square = self.square[first:].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        denominator = square.sqrt().div_(math.sqrt(1 - 0.999**self.count)).add_(1e-8)
        theta[first:].sub_(rate / (1 - 0.9**self.count) * (mean / denominator))


def make_optimizer(training: Training, like: Tensor) -> RowOptimizer:
    """Return the optimiser of the settings for clients' parameters of the shape of `like` [C, p]."""
    return Adam(training, like) if training.optimizer == "adam" else SGD(training, like)
