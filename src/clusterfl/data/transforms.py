"""Transforms of samples, by name: a partition stores the name, never pixels.

A name is a chain such as ``rotate90+noise(0.5)``. Whatever the chain's order, the steps are done in this one: blur,
rotation, scaling and normalisation (the federation's `inputs`), noise; labels are changed independently.

============================  =====================================================================================
``none``                      nothing
``rotate90``, ``180``, ``270``  quarter turns counter-clockwise, as in Rotated MNIST; images must be square
``blur(radius)``              Pillow's Gaussian blur of the stored image (FedGWC's blurred domain)
``noise(sigma)``              adds N(0, sigma^2) to every number after normalisation (FedGWC's noisy domain); a
                              partition stores ``noise(sigma,seed)``, so that runs have their own noise; it is drawn
                              once for each sample, or in each training step: `inputs.noise`
``swap(a,b)``                 labels a and b exchanged (concept shift)
``relabel(p0,p1,...)``        label c becomes p_c; p is a permutation
``flipped(p0,p1,...)``        wrong labels of a faulty client: c becomes p_c, or C - 1 - c without p
============================  =====================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..errors import UserError

# Counter-clockwise quarter turns, as in Rotated MNIST.
ROTATIONS = {0: "none", 90: "rotate90", 180: "rotate180", 270: "rotate270"}
TURNS = {name: angle // 90 for angle, name in ROTATIONS.items()}
FLIP = "flipped"
FORMS = "none, rotate90, rotate180, rotate270, blur(radius), noise(sigma), swap(a,b), relabel(p0,p1,...), joined by '+'"


@dataclass(frozen=True)
class Transform:
    """A parsed chain."""

    turns: int = 0  # quarter turns counter-clockwise
    blur: float = 0.0  # radius in pixels
    noise: float = 0.0  # sigma
    noise_seed: int = 0
    labels: tuple[tuple[str, tuple[int, ...]], ...] = ()  # ("swap", (a, b)) or ("relabel", p), in the chain's order

    @property
    def flipped(self) -> bool:
        """Whether its labels are flipped, i.e. wrong."""
        return any(word == FLIP for word, _ in self.labels)


@lru_cache(maxsize=4096)
def parse(name: str) -> Transform:
    """Parse a transform's name.

    Raises
    ------
    UserError
        If a step is unknown, impossible, or given twice.
    """
    turns, blur, noise, seed = 0, 0.0, 0.0, 0
    labels: list[tuple[str, tuple[int, ...]]] = []
    for step in name.split("+"):
        found = re.fullmatch(r"\s*([a-z]+\d*)\s*(?:\(([^()]*)\))?\s*", step)
        word, inside = found.groups() if found else ("", None)
        values = _numbers(inside)
        if word in TURNS and inside is None:
            turns += TURNS[word]
        elif word == "blur" and len(values) == 1 and values[0] > 0 and not blur:
            blur = values[0]
        elif word == "noise" and len(values) in (1, 2) and values[0] > 0 and _whole(values[1:]) and not noise:
            noise, seed = values[0], int(values[1]) if len(values) == 2 else 0
        elif word == "swap" and len(values) == 2 and _whole(values) and min(values) >= 0 and values[0] != values[1]:
            labels.append((word, (int(values[0]), int(values[1]))))
        elif word in ("relabel", FLIP) and values and sorted(values) == list(range(len(values))):
            labels.append((word, tuple(map(int, values))))
        elif word == FLIP and inside is None:
            labels.append((word, ()))
        else:
            raise UserError(f"unknown transform '{step}' in '{name}'; allowed: {FORMS}; blur and noise once each")
    return Transform(turns % 4, blur, noise, seed, tuple(labels))


def _numbers(inside: str | None) -> list[float]:
    try:
        values = [float(part) for part in (inside or "").split(",") if inside]
    except ValueError:
        return []
    return values if np.isfinite(values).all() else []


def _whole(values: list[float]) -> bool:
    return all(v == int(v) for v in values)


def relabelled(y: NDArray[Any], names: NDArray[Any], classes: int) -> NDArray[Any]:
    """Return the labels ``y [N]`` after the label steps of each sample's transform ``names [N]``."""
    result = y.copy()
    for name in np.unique(names):
        steps = parse(str(name)).labels
        if not steps:
            continue
        rows = names == name
        for word, step in steps:
            table = np.arange(classes)
            every = word == "relabel" or (word == FLIP and step)
            if y.dtype.kind == "f" or max(step, default=0) >= classes or (every and len(step) != classes):
                raise UserError(
                    f"transform '{name}' doesn't fit the labels: they are "
                    f"{'real numbers' if y.dtype.kind == 'f' else f'0 to {classes - 1}'}"
                )
            if word == "swap":
                table[list(step)] = step[::-1]
            else:
                table[:] = step or table[::-1].copy()
            result[rows] = table[result[rows]]
    return result


def blurred(images: NDArray[np.uint8], radius: float) -> NDArray[np.uint8]:
    """Return images ``[n, channels, height, width]`` after Pillow's Gaussian blur."""
    from PIL import Image, ImageFilter

    blur = ImageFilter.GaussianBlur(radius)
    # Pillow also blurs each channel separately, so planes can be blurred one by one.
    planes = images.reshape(-1, *images.shape[-2:])
    return np.stack([np.asarray(Image.fromarray(plane).filter(blur)) for plane in planes]).reshape(images.shape)


def noise(transform: Transform, sample: int, client: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the noise of one client's sample, from its own stream."""
    drawn = streams.generator(transform.noise_seed, "noise", sample, client).standard_normal(shape, dtype=np.float32)
    return drawn * np.float32(transform.noise)
