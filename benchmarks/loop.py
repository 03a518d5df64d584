"""The plain PyTorch loop over clients that everything is compared with, and the process in which it runs.

What a careful reader of the FedAvg paper would write (McMahan et al., AISTATS 2017, Algorithm 1): one module, whose
parameters are set before each client's turn, one optimiser of torch.optim, whose state is emptied then, data that are
tensors already. Nothing of clusterfl is imported here, and the loop has a process of its own, so none of the engine's
settings of torch or of its libraries reach it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, library, nn
from torch.nn.functional import cross_entropy, mse_loss

Clients = list[tuple[Tensor, Tensor]]  # of each client its samples [n, ...] and its classes [n] or targets [n, 1]
Shuffle = Callable[[int, int, int], Tensor]  # of (client, epoch, n): an order of its n samples


@dataclass(frozen=True)
class Local:
    """What each client does in a round; the names are those of `clusterfl.engine.training.Training`."""

    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    batch_size: int = 20
    epochs: int = 5


def shuffled(client: int, epoch: int, n: int) -> Tensor:
    """Return a random order of n samples."""
    return torch.randperm(n)


def train(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Let every client train from `start` and return the mean of their models, weighed by samples.

    `start` and the result have the order and shapes of the module's parameters.
    """
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters, local)
    mean = [torch.zeros_like(p) for p in parameters]
    samples = sum(len(y) for _, y in clients)
    module.train()
    for client, (x, y) in enumerate(clients):
        load(parameters, start)
        optimizer.state.clear()
        for batch in batches(client, len(y), local, shuffle):
            optimizer.zero_grad()
            loss_of(module(x[batch]), y[batch]).backward()
            optimizer.step()
        add(mean, parameters, len(y) / samples)
    return mean


def batches(client: int, n: int, local: Local, shuffle: Shuffle) -> Iterator[Tensor]:
    """Yield the mini-batches of a client's round, each the numbers of its samples."""
    for epoch in range(local.epochs):
        yield from shuffle(client, epoch, n).split(local.batch_size)


def optimizer_of(parameters: list[nn.Parameter], local: Local) -> torch.optim.Optimizer:
    """Return the optimiser of some parameters."""
    if local.optimizer == "adam":
        return torch.optim.Adam(parameters, local.learning_rate)
    return torch.optim.SGD(parameters, local.learning_rate, local.momentum)


@torch.no_grad()
def add(total: list[Tensor], parameters: Sequence[Tensor], share: float) -> None:
    """Add a share of a model to a sum of models."""
    for one, parameter in zip(total, parameters, strict=True):
        one.add_(parameter, alpha=share)


@torch.inference_mode()
def losses(module: nn.Module, clients: Clients, models: list[list[Tensor]]) -> Tensor:
    """Return the mean loss of each model on each client, [m, K]: one forward pass for each pair."""
    module.eval()
    parameters = list(module.parameters())
    found = torch.empty(len(clients), len(models))
    for k, model in enumerate(models):
        load(parameters, model)
        for i, (x, y) in enumerate(clients):
            found[i, k] = loss_of(module(x), y)
    return found


@torch.no_grad()
def load(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give parameters other values."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def loss_of(output: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of a network's output."""
    return mse_loss(output.reshape(y.shape), y) if y.is_floating_point() else cross_entropy(output, y)


class LoopProcess:
    """The loop in a process of its own, with one thread; it keeps the module and the clients it was given last."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin)

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()

    def hold(self, module: nn.Module, x: list[NDArray[np.float32]], y: list[NDArray[Any]]) -> None:
        """Give it a module and the samples and targets of its clients."""
        self._pool.submit(_hold, pickle.dumps(module), x, y).result()

    def train(self, local: Local) -> float:
        """Return the seconds of a round from the module's own parameters."""
        return self.timed(train, local, shuffled)

    def timed(self, function: Callable[..., object], *arguments: Any) -> float:
        """Return the seconds of ``function(module, clients, start, *arguments)`` with what it holds."""
        return self._pool.submit(_timed, function, arguments).result()

    def losses(self, models: int) -> float:
        """Return the seconds for the losses of so many models on all clients."""
        return self._pool.submit(_losses, models).result()


_kept: list[Any] = []  # what would vanish otherwise
_held: tuple[nn.Module, Clients, list[Tensor]]


def _begin() -> None:
    # What the engine's process has set for the libraries, who read it at their first product, isn't for the loop.
    for said in os.environ.pop("CLUSTERFL_CHOSEN", "").split()[1:]:
        os.environ.pop(said.partition("=")[0], None)
    torch.set_num_threads(1)
    _kept.append(_operators())


def _operators() -> Any:
    """Name operators without which torchvision's wheel doesn't import beside a PyTorch for the CPU."""
    operators = library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators


def _hold(module: bytes, x: list[NDArray[np.float32]], y: list[NDArray[Any]]) -> None:
    global _held
    made: nn.Module = pickle.loads(module)
    clients = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(x, y, strict=True)]
    _held = made, clients, [p.detach().clone() for p in made.parameters()]


def _timed(function: Callable[..., object], arguments: tuple[Any, ...]) -> float:
    began = perf_counter()
    function(*_held, *arguments)
    return perf_counter() - began


def _losses(models: int) -> float:
    module, clients, start = _held
    rows = [[value + 1e-3 * k for value in start] for k in range(models)]
    began = perf_counter()
    losses(module, clients, rows)
    return perf_counter() - began
