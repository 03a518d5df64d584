"""Transforms of samples that a partition names: exact, so that only names are stored and never pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

# Counter-clockwise quarter turns, as in Rotated MNIST.
ROTATIONS = {0: "none", 90: "rotate90", 180: "rotate180", 270: "rotate270"}


def transform(x: NDArray[Any], names: NDArray[Any]) -> NDArray[Any]:
    """Apply to each sample of ``x [N, ..., height, width]`` the transform named in ``names [N]``."""
    result = x.copy()
    for name in np.unique(names):
        rows = names == name
        angle = next((a for a, n in ROTATIONS.items() if n == name), None)
        if angle is None:
            raise UserError(f"unknown transform '{name}'; allowed: {', '.join(ROTATIONS.values())}")
        if angle:
            if x.ndim < 3 or x.shape[-1] != x.shape[-2]:
                raise UserError(f"'{name}' needs square images; the samples have shape {x.shape[1:]}")
            result[rows] = np.rot90(x[rows], angle // 90, axes=(-2, -1))
    return result


def scaled(x: NDArray[Any]) -> NDArray[Any]:
    """Return uint8 images as float32 between 0 and 1; anything else as it is."""
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x
