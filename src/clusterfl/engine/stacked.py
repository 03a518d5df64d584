"""Training of several clients at once: their parameters stacked in one tensor, gradients by `torch.func`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from .optimizers import make_optimizer
from .task import ChunkResult, Task

if TYPE_CHECKING:
    from .worker import Worker

# Layers whose stacked form is known to give the loop's numbers: no buffers that training changes, no draws.
STACKABLE = (
    nn.Conv1d, nn.Conv2d, nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.Flatten, nn.Unflatten, nn.Identity,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.LogSoftmax, nn.Softmax,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Sequential,
)  # fmt: skip


def obstacle(module: nn.Module) -> str | None:
    """Return why a module can't be trained in the stacked form, or None."""
    for name, part in module.named_modules():
        leaf = next(part.children(), None) is None
        if leaf and not isinstance(part, STACKABLE):
            return f"{type(part).__name__}{f' ({name})' if name else ''} has no stacked form known to equal the loop"
    return None


def train_chunk(worker: Worker, task: Task) -> ChunkResult:
    """Train the clients of one chunk together. Equal to `loop.train_chunk` up to rounding.

    The chunk is in the order of growing step counts, so the clients that still train in a step are its tail.
    """
    layout, training, device = worker.layout, worker.training, worker.device
    p = layout.parameter_columns
    start = task.start.to(device)
    theta, buffers = start[:, :p].clone(), start[:, p:]
    gradients = vmap(grad_and_value(worker.loss_of_row))
    optimizer = make_optimizer(training, theta)
    rate = task.rate.to(device)[:, None]
    x, y = worker.samples("train")
    curves = torch.full((len(theta), task.index.shape[1]), float("nan"))
    last = torch.zeros_like(theta) if task.keep_gradient else None
    for step in range(task.index.shape[1]):
        first = int((task.steps <= step).sum())
        index = task.index[first:, step].to(device)  # [c, rows], -1 = no sample
        present = index >= 0
        weight = present / present.sum(1, keepdim=True)
        rows = torch.where(present, index + task.offset[first:, None].to(device), 0)
        gradient, loss = gradients(theta[first:], buffers[first:], x[rows], y[rows], weight.to(theta.dtype))
        curves[first:, step] = loss.cpu()
        if last is not None:
            last[first:] = gradient
        if training.weight_decay:
            gradient = gradient + training.weight_decay * theta[first:]
        if training.proximal:
            gradient = gradient + training.proximal * (theta[first:] - start[first:, :p])
        optimizer.step(theta, gradient, rate[first:], first)
    delta = torch.cat([theta - start[:, :p], torch.zeros_like(buffers)], dim=1)
    return ChunkResult(delta.cpu(), curves, None if last is None else last.cpu())


def row_loss(worker: Worker, row: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum of one client's sample losses; padded samples weigh nothing."""
    tensors = worker.layout.tensors(torch.cat([row, buffers]))
    return (worker.sample_losses(functional_call(worker.module, tensors, (x,)), y) * weight).sum()
