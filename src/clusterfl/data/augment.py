"""Augmentation and noise, drawn from streams for each sample and step: chunks and devices don't change the draws.

Augmentations are for colour images.

========================  ==========================================================================================
``crop-flip``             padding by 4 zeros, a crop of the old size, a horizontal flip (FedGWC and much else)
``autoaugment``           AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019) by torchvision's own operations
                          (LCFL's dynamic CIFAR-10)
``ifca``                  crops of 24 x 24, flips, contrast; every image, test images too (cropped at the centre), is
                          standardised to mean 0 and standard deviation 1 (the TensorFlow tutorial that IFCA follows).
                          The tutorial also shifts the brightness of the whole image, which the standardisation undoes,
                          so that is left out here. Contrast isn't: TensorFlow's `adjust_contrast` scales each channel
                          around its own mean, so a factor changes the channels relative to one another.
========================  ==========================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import streams


@dataclass(frozen=True)
class Draws:
    """The stream of each of n samples: counters [n] such as client, round, step and the sample's position."""

    seed: int
    counters: tuple[Tensor, ...]

    @cached_property
    def _common(self) -> Tensor:
        """The part of the stream that all of a sample's draws share, [n]."""
        return streams.hashed_on_device(self.seed, "augment", *self.counters)

    def below(self, limit: int, number: int) -> Tensor:
        """Return for each sample a random integer from 0 to ``limit - 1``, [n]; `number` distinguishes its draws."""
        bits = streams.counted(self._common, torch.full_like(self._common[:1], number))
        return (bits & ((1 << 62) - 1)) % limit

    def uniform(self, number: int) -> Tensor:
        """Return for each sample a random number from 0 to 1, [n] in float32."""
        return self.below(1 << 24, number).float() / (1 << 24)

    def normal(self, chosen: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return numbers from N(0, 1) for the `chosen` samples, [len(chosen), *shape] in float32, see `quantiles`."""
        size = math.prod(shape)
        fours = torch.arange(-(-size // 4), device=chosen.device)
        counters = (counter[chosen, None] for counter in self.counters)
        bits = streams.hashed_on_device(self.seed, "fresh noise", *counters, fours).view(torch.int16)[:, :size]
        # `index_select` by int32 is the fastest.
        return _by_bits(chosen.device).index_select(0, bits.int().bitwise_and_(0xFFFF).reshape(-1)).view(-1, *shape)


@lru_cache(maxsize=1)
def quantiles() -> Tensor:
    """Return 2^16 equally likely numbers that approximate N(0, 1), ascending, in float32.

    They are the normal quantiles at (i + 1/2) / 2^16, scaled to variance 1 (by 2e-5): a table, because logarithms and
    cosines have other bits on other devices. Their distribution function is within 2^-17 of the normal one; the largest
    number is 4.3.
    """
    normal, count = NormalDist(), 1 << 16
    half = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count // 2)])
    values = np.concatenate([half, -half[::-1]])
    return torch.as_tensor((values / np.sqrt(np.square(values).mean())).astype(np.float32))


@lru_cache(maxsize=8)
def _by_bits(device: torch.device) -> Tensor:
    """Return `quantiles` on a device, ordered so that a signed 16-bit number, read as unsigned, is the index."""
    return quantiles().roll(1 << 15).to(device)


class Augmentation(Protocol):
    """The interface of the augmentations that `inputs.augment` names."""

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Return training images, uint8 [n, 3, height, width], augmented."""
        ...

    def finish(self, x: Tensor, draws: Draws | None) -> Tensor:
        """Return scaled and normalised images as the network gets them; without draws in evaluation."""
        ...


def crop(x: Tensor, top: Tensor, left: Tensor, size: int, mirrored: Tensor) -> Tensor:
    """Crop each image to a square of `size` at its own place, [n, channels, size, size], some mirrored left to right.

    Parameters
    ----------
    x : [n, channels, height, width]
        Images.
    top, left : [n]
        First row and column of the square.
    mirrored : [n]
        True where the square is mirrored.
    """
    # Squares are views of the image and of its mirror image, so that one indexing copies whole rows of pixels.
    squares = torch.stack([x, x.flip(-1)], 1).unfold(3, size, 1).unfold(4, size, 1)
    column = torch.where(mirrored, x.shape[-1] - size - left, left)
    return squares[torch.arange(len(x), device=x.device), mirrored.long(), :, top, column]


class CropFlip:
    """Padding, crop and flip."""

    def train(self, x: Tensor, draws: Draws) -> Tensor:  # noqa: D102
        size = x.shape[-1]
        padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
        return crop(padded, draws.below(9, 0), draws.below(9, 1), size, draws.below(2, 2) == 1)

    def finish(self, x: Tensor, draws: Draws | None) -> Tensor:  # noqa: D102
        return x


class AutoAugment:
    """torchvision's operations and policies, applied to groups of images that drew the same."""

    @cached_property
    def _parts(self) -> tuple[Any, Any, Any, Any]:
        from .readers.vision import torchvision

        torchvision()  # first, because it repairs the import
        from torchvision.transforms import InterpolationMode, autoaugment

        policy = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
        space = policy._augmentation_space(10, (32, 32))
        return policy.policies, space, autoaugment._apply_op, InterpolationMode.NEAREST

    def train(self, x: Tensor, draws: Draws) -> Tensor:  # noqa: D102
        policies, space, apply, nearest = self._parts
        which = draws.below(len(policies), 0)
        for slot in (0, 1):
            chance, negative = draws.below(1 << 30, 1 + slot), draws.below(2, 3 + slot) == 1
            for policy in which.unique().tolist():
                name, probability, level = policies[policy][slot]
                values, signed = space[name]
                strength = float(values[level]) if level is not None else 0.0
                drawn = (which == policy) & (chance < probability * (1 << 30))
                for sign in (False, True) if signed else (None,):
                    chosen = drawn if sign is None else drawn & (negative == sign)
                    if chosen.any():
                        size = -strength if sign else strength
                        x[chosen] = apply(x[chosen], name, size, nearest, None)
        return x

    def finish(self, x: Tensor, draws: Draws | None) -> Tensor:  # noqa: D102
        return x


class Ifca:
    """Crops of 24 x 24, flips, contrast, standardisation."""

    size = 24
    contrast = (0.2, 1.8)  # range of the factor (TensorFlow's CIFAR-10 tutorial)

    def train(self, x: Tensor, draws: Draws) -> Tensor:  # noqa: D102
        room = x.shape[-1] - self.size + 1
        return crop(x, draws.below(room, 0), draws.below(room, 1), self.size, draws.below(2, 2) == 1)

    def finish(self, x: Tensor, draws: Draws | None) -> Tensor:  # noqa: D102
        if draws is None:
            first = (x.shape[-1] - self.size) // 2
            x = x[..., first : first + self.size, first : first + self.size]
        else:
            low, high = self.contrast
            means = x.mean((-2, -1), keepdim=True)
            x = (x - means) * (low + (high - low) * draws.uniform(3))[:, None, None, None] + means
        flat = x.flatten(1)
        deviation = flat.std(1, correction=0).clamp(min=flat.shape[1] ** -0.5)  # TensorFlow's guard for flat images
        return (x - flat.mean(1)[:, None, None, None]) / deviation[:, None, None, None]


class Unchanged:
    """No augmentation, for training samples with only their noise drawn in each step."""

    def train(self, x: Tensor, draws: Draws) -> Tensor:  # noqa: D102
        return x

    def finish(self, x: Tensor, draws: Draws | None) -> Tensor:  # noqa: D102
        return x


AUGMENTATIONS: dict[str, Augmentation] = {"crop-flip": CropFlip(), "autoaugment": AutoAugment(), "ifca": Ifca()}
