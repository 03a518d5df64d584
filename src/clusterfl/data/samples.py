"""What a dataset's function returns, and what a partition's function gets of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..storage.store import read_tensors

SPLITS = ("train", "validation", "test")
Table = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Samples:
    """A dataset, N samples in their official order.

    A function that returns a plain pair ``x, y`` will do where there is nothing more to say.
    """

    x: NDArray[Any]  # [N, ...]: uint8 images [N, channels, height, width], whole numbers (tokens), or real features
    y: NDArray[Any]  # [N]: classes 0, 1, ... as integers, or real targets
    test: NDArray[np.bool_] | None = None  # [N]: the publisher's test part, where there is one
    owner: NDArray[np.int64] | None = None  # [N]: natural client (writer, role, user), 0, 1, ...; -1 = nobody
    group: NDArray[np.int64] | None = None  # [N]: natural group (product domain, planted model), 0, 1, ...
    names: NDArray[Any] | None = None  # of the owners 0, 1, ..., where they are new clients of a study


@dataclass(frozen=True)
class Labels:
    """What a partition is drawn from: everything but the samples themselves.

    `train` and `test` are rows (positions in the dataset, ascending) that are dealt out apart from one another, each
    client getting some of both. Where a study's test data are a share of each client's own samples, all rows are in
    `train` and `test` is empty; the share is cut later.
    """

    y: NDArray[Any]  # [N]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    owner: NDArray[np.int64] | None = None  # [N]
    group: NDArray[np.int64] | None = None  # [N]

    @property
    def classes(self) -> int:
        """Number of classes.

        Raises
        ------
        UserError
            If the targets are real numbers.
        """
        if self.y.dtype.kind not in "iu":
            raise UserError(
                f"this partition goes by classes, but the targets are real numbers ({self.y.dtype}); use iid, "
                "quantity or natural"
            )
        return int(self.y.max()) + 1 if len(self.y) else 0

    def parts(self) -> list[NDArray[np.int64]]:
        """Return the rows that are dealt out apart: training, and testing where there are any."""
        return [rows for rows in (self.train, self.test) if len(rows)]


def read_samples(path: Path, *names: str) -> Samples:
    """Read a dataset; of its arrays only the named ones if some are named (the others are empty)."""
    return Samples(**{"x": np.empty(0), "y": np.empty(0)} | read_tensors(path, names))
