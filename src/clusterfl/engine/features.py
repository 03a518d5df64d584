"""Features, the inputs of a network's last layer (its head): pulled to class centres in training, summed by class.

Axes: C clients, d features of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Head:
    """A network's head: its last layer, which is linear."""

    name: str  # of the module
    tensors: tuple[str, ...]  # names of its parameters
    features: int  # d


def find(module: nn.Module, x: Tensor) -> Head | str:
    """Return the head of a module that takes ``x [2, ...]``, or a sentence that says why it has none."""
    parts = {
        name: part for name, part in module.named_modules() if next(part.parameters(recurse=False), None) is not None
    }
    calls: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        return lambda part, inputs: calls.append((name, inputs[0] if inputs else None))

    handles = [part.register_forward_pre_hook(note(name)) for name, part in parts.items()]
    try:
        with torch.inference_mode():
            module(x)
    finally:
        for handle in handles:
            handle.remove()
    name, given = calls[-1] if calls else ("", None)
    last = parts.get(name)
    if not isinstance(last, nn.Linear) or given is None or given.ndim != 2:
        return f"its last layer, '{name}', is {type(last).__name__}, not a linear one on a vector for each sample"
    if [called for called, _ in calls].count(name) > 1:
        return f"its last layer, '{name}', is used more than once"
    if len(parts) == 1:
        return f"its last layer, '{name}', is its only one, and features would be the samples themselves"
    tensors = tuple(f"{name}.{own}" if name else own for own, _ in last.named_parameters(recurse=False))
    return Head(name, tensors, last.in_features)


@contextmanager
def watched(module: nn.Module, head: Head) -> Iterator[list[Tensor]]:
    """Yield a list whose one entry is the input of the module's head, [n, d], after each call of the module."""
    found: list[Tensor] = []

    def note(part: nn.Module, inputs: Any) -> None:
        found[:] = inputs[:1]

    handle = module.get_submodule(head.name).register_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


@dataclass(frozen=True, eq=False)
class Features:
    """How clients use features in training.

    With ``pull`` above 0 a sample's loss has the further term ``pull / d |f - c|^2``, for its features f and the centre
    c of its class; it is 0 for a class without a centre. If `predicts`, a trained model is scored by the class of the
    nearest centre.
    """

    centres: Tensor | None = None  # [classes, d]; NaN: the class has none
    pull: float = 0.0
    # Sums by class: over the mini-batches' features during training, or over all samples' with the trained model.
    gather: Literal["nothing", "moving", "trained"] = "nothing"
    predicts: bool = False

    @property
    def pulls(self) -> bool:
        """Whether features are pulled to centres."""
        return self.centres is not None and self.pull > 0

    @property
    def nearest(self) -> Tensor | None:
        """The centres, if they predict."""
        return self.centres if self.predicts else None

    def to(self, device: torch.device) -> Features:
        """Return the same on a device."""
        return self if self.centres is None else replace(self, centres=self.centres.to(device))

    def _away(self, features: Tensor, y: Tensor) -> Tensor:
        assert self.centres is not None
        centre = self.centres[y]
        return torch.where(centre.isnan(), 0.0, features - centre)

    def losses(self, features: Tensor, y: Tensor) -> Tensor:
        """Return the further term of each sample's loss, [...], for ``features [..., d]`` and ``y [...]``."""
        return self.pull * self._away(features, y).square().mean(-1)

    def gradients(self, features: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of `losses` with respect to the features, [..., d]."""
        return self._away(features, y) * (2 * self.pull / features.shape[-1])


def centred(centres: NDArray[np.float32] | None) -> Tensor | None:
    """Return centres as a tensor, if there are any."""
    return None if centres is None else torch.as_tensor(centres)


@dataclass
class Moments:
    """Sums over each client's samples in float64: counts and features by class, and the features' squares."""

    counts: Tensor  # [C, classes]
    sums: Tensor  # [C, classes, d]
    squares: Tensor  # [C], over all classes and features; 0 if gathered during training

    @classmethod
    def none(cls, clients: int, classes: int, features: int, device: torch.device | str = "cpu") -> Moments:
        """Return sums over no samples."""
        shapes = (clients, classes), (clients, classes, features), (clients,)
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))

    def add(self, first: int, features: Tensor, y: Tensor, present: Tensor) -> None:
        """Add mini-batches of the clients ``first:``.

        Parameters
        ----------
        features : [c, rows, d]
        y, present : [c, rows]
            Classes, and whether a row is a sample, not padding.
        """
        there = present.double()
        self.counts[first:].scatter_add_(1, y, there)
        at = y[:, :, None].expand(-1, -1, features.shape[2])
        self.sums[first:].scatter_add_(1, at, features.detach().double() * there[:, :, None])

    def of(self, part: slice) -> Moments:
        """Return views of the sums of some clients."""
        return Moments(self.counts[part], self.sums[part], self.squares[part])

    def put(self, part: Any, found: Moments) -> None:
        """Write the sums `found` of the clients at `part`, an index of [C]."""
        for name in ("counts", "sums", "squares"):
            getattr(self, name)[part] = getattr(found, name).cpu()

    def centres(self, sound: NDArray[np.bool_], by_samples: bool) -> NDArray[np.float32]:
        """Return each class's mean features over the `sound` [C] clients, [classes, d]; NaN if no client has the class.

        Weighted `by_samples`, or the plain mean of the means of the clients that have the class.
        """
        chosen = torch.as_tensor(np.flatnonzero(sound))
        counts, sums = self.counts[chosen], self.sums[chosen]
        if not by_samples:
            counts, sums = (counts > 0).double(), self.means[chosen].nan_to_num()
        return (sums.sum(0) / counts.sum(0)[:, None]).float().numpy()

    @property
    def means(self) -> Tensor:
        """The mean features of each class, [C, classes, d]; NaN if a client has no sample of it."""
        return self.sums / self.counts[:, :, None]
