"""A split's samples on a device: stored bytes become a network's inputs when they are needed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from .augment import AUGMENTATIONS, Augmentation, Draws, Unchanged
from .federation import Federation, Split

AT_ONCE = 8192  # images augmented at a time when all are augmented
WHOLE_BYTES = 1 << 30  # a split up to this size is prepared once and kept, which saves small networks half of a step


class Prepared:
    """The samples of a split.

    Parameters
    ----------
    split
        The split.
    x, noise
        The pool's arrays, if they are on the device already.
    """

    def __init__(self, split: Split, x: Tensor | None = None, noise: Tensor | None = None):
        self.x = torch.as_tensor(split.pool.x) if x is None else x
        device = self.x.device
        self.noise = torch.as_tensor(split.pool.noise) if noise is None and split.pool.noise is not None else noise
        self.rows, self.y = (torch.as_tensor(part).to(device) for part in (split.rows, split.y))
        self.turns, self.noisy = (
            None if p is None else torch.as_tensor(p).to(device) for p in (split.turns, split.noise)
        )
        self.inputs = inputs = split.pool.inputs
        self.squash = split.name in inputs.squashed
        self.reconstructs = inputs.target == "input"
        self.fresh = inputs.noise == "fresh" and split.noise is not None and bool((split.noise >= 0).any())
        self.sigma = None if split.pool.sigma is None else torch.as_tensor(split.pool.sigma).to(device)
        # If only the noise is drawn in each step, the samples must be prepared in each step, too.
        drawn: Augmentation | None = Unchanged() if self.fresh else None
        self.augmentation = AUGMENTATIONS[inputs.augment] if inputs.augment != "none" else drawn
        self._check()

    def _check(self) -> None:
        shape, inputs = tuple(self.x.shape[1:]), self.inputs
        if self.reconstructs and not (self.x.dtype == torch.uint8 or self.x.is_floating_point()):
            raise UserError(
                f"inputs.target: 'input' is for images and features; the samples are whole numbers ({self.x.dtype}), "
                "which stand for words and can't be predicted by a squared error; use target: label"
            )
        if inputs.mean and len(inputs.mean) not in (1, shape[0] if shape else 1):
            raise UserError(
                f"inputs.mean has {len(inputs.mean)} numbers; samples of shape {shape} need 1"
                + (f" or {shape[0]}" if shape else "")
            )
        images = self.x.dtype == torch.uint8 and len(shape) == 3
        if inputs.augment != "none" and not (images and shape[0] == 3 and shape[1] == shape[2] >= 32):
            raise UserError(
                f"inputs.augment: '{inputs.augment}' is made for square colour images of 32 x 32 stored as bytes; the "
                f"samples have shape {shape} and are {self.x.dtype}; use augment: none"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample, as a network sees it."""
        return tuple(self._made(torch.zeros(1, dtype=torch.int64, device=self.rows.device)).shape[1:])

    def take(self, places: Tensor, draws: Draws | None = None) -> Tensor:
        """Return the samples at `places` (any shape), augmented if `draws` are given."""
        if draws is None and self.whole is not None:
            return rows_of(self.whole, places)
        x = self._made(places.reshape(-1), draws)
        return x.reshape(*places.shape, *x.shape[1:])

    def flat(self, places: Tensor) -> Tensor:
        """Return the samples at ``places [n]`` as numbers [n, d], without `inputs.mean` and `std`; words as indices.

        A table's columns are already encoded, and standardised if the settings say so.
        """
        x, inputs = self._made(places), self.inputs
        if inputs.mean:
            x = x * self._of_channels(inputs.std, x) + self._of_channels(inputs.mean, x)
        return x.reshape(len(x), -1).float()

    def view(self, places: Tensor) -> Tensor:
        """Return the samples at `places` like `take`; if they are consecutive, as a view that must not be changed."""
        first, last, number = int(places.view(-1)[0]), int(places.view(-1)[-1]), places.numel()
        if self.whole is None or last - first != number - 1 or not bool((places.view(-1).diff() == 1).all()):
            return self.take(places)
        return self.whole[first : last + 1].view(*places.shape, *self.whole.shape[1:])

    def targets(self, places: Tensor, x: Tensor) -> Tensor:
        """Return the targets of the samples `x` at `places`: their labels, or the samples themselves."""
        return x if self.reconstructs else self.y[places]

    def _made(self, places: Tensor, draws: Draws | None = None) -> Tensor:
        """Prepare the samples at ``places [n]``."""
        x = self._scaled(self.pictures(places, draws))
        if self.noisy is not None:
            self._add_noise(x, self.noisy[places], draws if self.fresh else None)
        if self.augmentation is not None:
            x = self.augmentation.finish(x, draws)
        return x

    def pictures(self, places: Tensor, draws: Draws | None = None) -> Tensor:
        """Return the samples at ``places [n]`` as stored, but rotated and, with draws, augmented."""
        x = self.x.index_select(0, self.rows[places])
        if self.turns is not None:
            turns = self.turns[places]
            for quarter in (1, 2, 3):
                chosen = turns == quarter
                if chosen.any():
                    x[chosen] = torch.rot90(x[chosen], quarter, (-2, -1))
        if draws is not None and self.augmentation is not None:
            x = self.augmentation.train(x, draws)
        return x

    def _add_noise(self, x: Tensor, row: Tensor, draws: Draws | None) -> None:
        """Add to the samples ``x [n, ...]`` their rows of the noise, or, with draws, new noise; row -1 gets none."""
        there = torch.nonzero(row >= 0).view(-1)
        if draws is None:
            assert self.noise is not None
            x.index_add_(0, there, self.noise.index_select(0, row[there]))
        else:
            assert self.sigma is not None
            sigma = self.sigma[row[there]].view(-1, *[1] * (x.ndim - 1))
            x.index_add_(0, there, draws.normal(there, tuple(x.shape[1:])).mul_(sigma))

    def _scaled(self, x: Tensor) -> Tensor:
        inputs = self.inputs
        if x.dtype == torch.uint8:
            x = x.float()
            if inputs.scale == "unit":
                x /= 255
            if self.squash:
                x /= 255
        elif not x.is_floating_point():
            x = x.long()
        if inputs.mean:
            x = x if x.is_floating_point() else x.float()
            x = x.sub_(self._of_channels(inputs.mean, x)).div_(self._of_channels(inputs.std, x))
        return x

    def _of_channels(self, values: list[float], x: Tensor) -> Tensor:
        """Return the values, one per channel of samples ``x [n, ...]`` or one for all, in a shape that broadcasts."""
        return torch.tensor(values, device=x.device).reshape((-1, *[1] * (x.ndim - 2)) if x.ndim > 2 else (-1,))

    def take_all(self) -> Tensor:
        """Return all samples, [N, ...]."""
        return self.take(torch.arange(len(self), device=self.rows.device))

    @cached_property
    def whole(self) -> Tensor | None:
        """All samples, if they are few enough to be prepared once and kept."""
        size = 4 * len(self) * math.prod(self.x.shape[1:])
        return self._made(torch.arange(len(self), device=self.rows.device)) if 0 < size <= WHOLE_BYTES else None

    def ready(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x, index`` such that ``x[index]`` are the samples at `places`, each prepared once."""
        if self.whole is not None:
            return self.whole, places
        distinct, index = torch.unique(places, return_inverse=True)
        return self.take(distinct), index


def augmented_once(federation: Federation, seed: int) -> Federation:
    """Return the federation with each training image augmented once, drawn with `seed`.

    The draws are those of a round 0, which training never has. Evaluations then use these images.
    """
    split, pool = federation.splits["train"], federation.splits["train"].pool
    if pool.inputs.augment == "ifca":
        raise UserError(
            "data: 'augmented' can't be had with inputs.augment: ifca, whose crops have another size than the images; "
            "use data: all"
        )
    data, made = Prepared(split), []
    client = np.searchsorted(split.offsets, np.arange(len(split)), "right") - 1
    counters = np.stack([federation.ids[client], *np.zeros((2, len(split)), np.int64), np.arange(len(split))])
    counters[3] -= split.offsets[client]
    for start in range(0, len(split), AT_ONCE):
        part = torch.arange(start, min(start + AT_ONCE, len(split)))
        made.append(data.pictures(part, Draws(seed, tuple(torch.as_tensor(c)[part] for c in counters))).numpy())
    grown = replace(pool, x=np.concatenate([pool.x, *made]))
    rows = len(pool.x) + np.arange(len(split))
    splits = {name: replace(other, pool=grown) for name, other in federation.splits.items()}
    splits["train"] = replace(splits["train"], rows=rows, turns=None)
    return replace(federation, splits=splits)


def rows_of(x: Tensor, places: Tensor) -> Tensor:
    """Return ``x[places]``, in a third of the time."""
    return x.index_select(0, places.reshape(-1)).view(*places.shape, *x.shape[1:])


def samples_of(split: Split) -> NDArray[Any]:
    """Return a split's samples as a network sees them in evaluation, [N, ...]."""
    return Prepared(split).take_all().numpy()


def sample_shape(federation: Federation) -> tuple[int, ...]:
    """Return the shape of one sample as a network sees it."""
    return Prepared(federation.splits["train"]).shape


def outputs(federation: Federation) -> int:
    """Return a network's number of outputs: the classes, 1 for regression, or the size of a sample."""
    reconstructed = federation.splits["train"].pool.inputs.target == "input"
    return math.prod(sample_shape(federation)) if reconstructed else federation.classes or 1


def on_device(splits: Any, device: torch.device) -> dict[str, Prepared]:
    """Return every split of a federation on a device, which holds their shared arrays once."""
    pool = next(iter(splits.values())).pool
    x = torch.as_tensor(pool.x).to(device)
    noise = None if pool.noise is None else torch.as_tensor(pool.noise).to(device)
    found = {name: Prepared(split, x, noise) for name, split in splits.items()}
    for prepared in found.values():
        prepared.whole  # noqa: B018 (made before processes are forked, so that they share it)
    return found
