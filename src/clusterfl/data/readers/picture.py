"""Decoding of one image file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import UserError


def decoded(path: Path, size: int | None, colour: str) -> NDArray[np.uint8]:
    """Return an image as uint8 [channels, height, width], with a `size` scaled and cropped to a square of it."""
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":  # Pillow would clip all above 255 to white
                raise UserError(f"{path} has more than 8 bits a channel (mode {image.mode}); save it with 8 bits")
            shown = image.convert("L" if colour == "grey" else "RGB")
    except FileNotFoundError as error:
        raise UserError(f"there is no image {path}; put it there, or leave its row out") from error
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} can't be read as an image ({error}); get it again, or leave its row out") from error
    if size is not None:
        shown = ImageOps.fit(shown, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(shown)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
