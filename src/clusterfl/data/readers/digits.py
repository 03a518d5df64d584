"""The 1,797 handwritten 8 x 8 digits that ship inside scikit-learn: real data without a download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (test part), UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49; licence CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digits(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return pixels as uint8 ``[1797, 1, 8, 8]``, scaled from 0..16 to 0..255, and the digits ``[1797]``.

    A dataset's function may keep files in `folder`; this one needs none.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # 0..16 -> 0..255, so that the common rule "uint8 is divided by 255" gives shades from 0 to 1.
    return np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64)
