"""A model as one row of numbers: parameters first, buffers last. P columns in all, the first p are parameters.

What belongs to a model is what its ``state_dict`` has. A buffer registered with ``persistent=False`` is a constant of
the network, such as a mask: it isn't sent, and a model is always loaded beside its first values.
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
EXACT = 1 << 24  # whole numbers up to here are exact in float32


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
        Buffers that don't belong to the model, by name.
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
        """Return the layout of a module; its ``weight_decays`` are the penalties.

        Raises
        ------
        UserError
            If no parameter can be trained, one has no shape yet, or a number can't be sent as float32.
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
            raise UserError(f"the model's weight_decays name '{min(unknown)}', which is none of its parameters")
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
        """Return the module's parameters as an optimiser takes them, grouped by their L2 penalty."""
        found: dict[float, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            found.setdefault(weight_decay + self.penalties.get(name, 0.0), []).append(parameter)
        return [{"params": parameters, "weight_decay": decay} for decay, parameters in found.items()]

    def decay(self, weight_decay: float, device: torch.device | str = "cpu") -> Tensor | None:
        """Return the L2 penalty of each parameter column, [p], or None if there is none."""
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
        """Write ``row [P]`` into the module, and its constants as they were."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, shape, part in self.slices():
                tensors[name].copy_(row[part].view(shape))
            for name, values in self.constants.items():
                owner, _, last = name.rpartition(".")
                module.get_submodule(owner)._buffers[last] = values.clone()

    def changed(self, module: nn.Module) -> str | None:
        """Return the name of a constant that a module no longer has as it was, or None."""
        now = dict(module.named_buffers())
        return next((name for name, values in self.constants.items() if not _equal(values, now.get(name))), None)


def _equal(values: Tensor, others: Tensor | None) -> bool:
    """Return whether two tensors are the same numbers, NaN among them."""
    if others is None or values.shape != others.shape or values.dtype != others.dtype:
        return False
    others = others.to(values.device)
    return bool(((values == others) | ((values != values) & (others != others))).all())


def _check_numbers(name: str, values: Tensor) -> None:
    """Raise an error unless float32 holds a tensor's numbers, and differences of models are numbers, too."""
    said = f"the model's '{name}' has"
    if values.is_complex():
        raise UserError(
            f"{said} complex numbers; models are sent as real ones: keep real and imaginary part as two parameters, "
            "and make one of them by torch.complex"
        )
    way = "; if it is a buffer that stays as it is, register it with persistent=False, and it is kept out of models"
    bad = values[~values.isfinite()]
    if len(bad):
        raise UserError(
            f"{said} {bad[0]} before it is trained ({len(bad)} of {values.numel()} numbers); allowed: finite "
            f"numbers{way}"
        )
    if not values.is_floating_point() and values.dtype != torch.bool:
        large = values[values.abs() > EXACT]
        if len(large):
            raise UserError(f"{said} {large[0]}; models are sent as float32, exact for whole numbers to {EXACT}{way}")
