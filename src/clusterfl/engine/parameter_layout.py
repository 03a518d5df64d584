"""A model as one row of numbers: parameters first, buffers last. P columns in all, the first p are parameters.

A model consists of what is in its ``state_dict``. A buffer registered with ``persistent=False`` is a constant of the
network, such as a mask: it isn't sent, and loading a model resets it to its first values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..errors import UserError

Shapes = Sequence[tuple[str, tuple[int, ...]]]
EXACT = 1 << 24  # float32 holds all whole numbers up to this one exactly


class Layout:
    """Where each named tensor lies in a row.

    Parameters
    ----------
    parameters, buffers
        Names and shapes.
    penalties
        The parameters' own L2 penalties, by name.
    frozen
        Names of the parameters that no training changes.
    constants
        Buffers that aren't part of the row, by name.
    """

    def __init__(
        self, parameters: Shapes, buffers: Shapes = (), penalties: dict[str, float] | None = None,
        frozen: frozenset[str] = frozenset(), constants: Mapping[str, Tensor] | None = None,
    ):  # fmt: skip
        self.parameters, self.buffers, self.penalties = parameters, buffers, penalties or {}
        self.frozen, self.constants = frozen, constants or {}
        self.parameter_columns = sum(math.prod(shape) for _, shape in parameters)  # p
        self.columns = self.parameter_columns + sum(math.prod(shape) for _, shape in buffers)  # P

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module; its attribute ``weight_decays``, if any, has the penalties.

        Raises
        ------
        UserError
            If no parameter can be trained, one has no shape yet, a number can't be sent as float32, or the module's
            ``weight_decays`` name an unknown parameter.
        """
        lazy = [name for name, p in module.named_parameters() if isinstance(p, UninitializedParameter)]
        if lazy:
            raise UserError(
                f"the model's '{lazy[0]}' has no shape before it sees data; use a layer whose sizes are given, e.g. "
                "nn.Linear(inputs, outputs) for nn.LazyLinear(outputs)"
            )
        frozen = frozenset(name for name, p in module.named_parameters() if not p.requires_grad)
        if len(frozen) == len(list(module.parameters())):
            found = f"all {len(frozen)} have requires_grad False" if frozen else "it has none"
            raise UserError(f"the model has no parameter that can be trained: {found}; at least one is needed")
        parameters = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        kept = module.state_dict().keys()
        buffers = [(name, tuple(b.shape)) for name, b in module.named_buffers() if name in kept]
        constants = {name: b.detach().clone() for name, b in module.named_buffers() if name not in kept}
        for name, values in [*module.named_parameters(), *module.named_buffers()]:
            if name not in constants:
                _check_numbers(name, values.detach())
        penalties: dict[str, float] = getattr(module, "weight_decays", {})
        unknown = penalties.keys() - {name for name, _ in parameters}
        if unknown:
            raise UserError(f"the model's weight_decays name '{min(unknown)}', which isn't one of its parameters")
        return cls(parameters, buffers, penalties, frozen, constants)

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """The shapes of parameters that are matrices."""
        return [(shape[0], shape[1]) for _, shape in self.parameters if len(shape) == 2]

    def slices(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        """Yield the name, the shape and the columns of each tensor, parameters first."""
        start = 0
        for name, shape in [*self.parameters, *self.buffers]:
            yield name, shape, slice(start, start + math.prod(shape))
            start += math.prod(shape)

    def groups(self, module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """Return the module's parameters as an optimiser's parameter groups, one for each L2 penalty."""
        found: dict[float, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            found.setdefault(weight_decay + self.penalties.get(name, 0.0), []).append(parameter)
        return [{"params": parameters, "weight_decay": decay} for decay, parameters in found.items()]

    def decay(self, weight_decay: float, device: torch.device | str = "cpu") -> Tensor | None:
        """Return the L2 penalty of each parameter column, [p], or None if all are 0."""
        if not (weight_decay or any(self.penalties.values())):
            return None
        parts = [
            torch.full((math.prod(shape),), weight_decay + self.penalties.get(name, 0.0), device=device)
            for name, shape in self.parameters
        ]
        return torch.cat(parts)

    def tensors(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views into ``rows [..., P]`` by name, each of shape ``[..., *shape]``."""
        return {name: rows[..., part].view((*rows.shape[:-1], *shape)) for name, shape, part in self.slices()}

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's parameters and buffers as a row [P] of float32."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        names = [name for name, _ in [*self.parameters, *self.buffers]]
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in names])

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Write ``row [P]`` into the module, and reset its constants."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, shape, part in self.slices():
                tensors[name].copy_(row[part].view(shape))
            for name, values in self.constants.items():
                owner, _, last = name.rpartition(".")
                module.get_submodule(owner)._buffers[last] = values.clone()

    def changed(self, module: nn.Module) -> str | None:
        """Return the name of a constant whose value in the module has changed, or None."""
        now = dict(module.named_buffers())
        return next((name for name, values in self.constants.items() if not _equal(values, now.get(name))), None)


def _equal(values: Tensor, others: Tensor | None) -> bool:
    """Return whether two tensors have equal values; NaN equals NaN."""
    if others is None or values.shape != others.shape or values.dtype != others.dtype:
        return False
    others = others.to(values.device)
    return bool(((values == others) | ((values != values) & (others != others))).all())


def _check_numbers(name: str, values: Tensor) -> None:
    """Raise an error unless a tensor's values are real, finite and, if whole numbers, exact in float32."""
    said = f"the model's '{name}' has"
    if values.is_complex():
        raise UserError(
            f"{said} complex numbers; models are sent as real numbers: keep real and imaginary part as two parameters "
            "and combine them with torch.complex"
        )
    way = "; if it is a constant buffer, register it with persistent=False, which keeps it out of the model"
    bad = values[~values.isfinite()]
    if len(bad):
        raise UserError(
            f"{said} {bad[0]} before training ({len(bad)} of {values.numel()} numbers); allowed: finite numbers{way}"
        )
    if not values.is_floating_point() and values.dtype != torch.bool:
        large = values[values.abs() > EXACT]
        if len(large):
            raise UserError(
                f"{said} {large[0]}; models are sent as float32, exact for whole numbers up to {EXACT}{way}"
            )
