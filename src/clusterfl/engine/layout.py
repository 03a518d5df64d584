"""A model as one row of numbers: parameters first, buffers last. P columns in all, the first p are parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Layout:
    """Where each tensor of a module lies in its row."""

    def __init__(self, module: nn.Module):
        self.parameters = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        self.buffers = [(name, tuple(b.shape)) for name, b in module.named_buffers()]
        self.parameter_columns = sum(math.prod(shape) for _, shape in self.parameters)  # p
        self.columns = self.parameter_columns + sum(math.prod(shape) for _, shape in self.buffers)  # P

    def _slices(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        start = 0
        for name, shape in [*self.parameters, *self.buffers]:
            yield name, shape, slice(start, start + math.prod(shape))
            start += math.prod(shape)

    def tensors(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views into ``rows [..., P]`` by name, each of shape ``[..., *shape]``."""
        return {name: rows[..., part].view((*rows.shape[:-1], *shape)) for name, shape, part in self._slices()}

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's parameters and buffers as a row [P] of float32 (counters are exact below 2^24)."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        names = [name for name, _ in [*self.parameters, *self.buffers]]
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in names])

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Write ``row [P]`` into the module."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, shape, part in self._slices():
                tensors[name].copy_(row[part].view(shape))
