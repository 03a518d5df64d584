"""What a dataset's function returns, and the part of it that a partition's function gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..storage.store import read_tensors

SPLITS = ("train", "validation", "test")
TEXTS = ("classes", "columns", "categories")  # arrays of texts, stored as Unicode code points
Table = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Samples:
    """A dataset, N samples in their official order.

    A dataset's function may also return a plain pair ``x, y``.
    """

    x: NDArray[Any]  # [N, ...]: uint8 images [N, channels, height, width], whole numbers (tokens), or real features
    y: NDArray[Any]  # [N]: classes 0, 1, ... as integers, or real targets
    test: NDArray[np.bool_] | None = None  # [N]: the publisher's test part, if there is one
    owner: NDArray[np.int64] | None = None  # [N]: natural client (writer, role, user), 0, 1, ...; -1 = nobody
    group: NDArray[np.int64] | None = None  # [N]: natural group (product domain, planted model), 0, 1, ...
    names: NDArray[Any] | None = None  # of the owners 0, 1, ..., if they are new clients of a study
    classes: NDArray[np.str_] | None = None  # names of the classes 0, 1, ..., if labels are texts
    # If a table has columns of categories, x [N, d] holds their codes, and `encoding` makes a network's inputs.
    columns: NDArray[np.str_] | None = None  # [d]: the columns' names
    sizes: NDArray[np.int64] | None = None  # [d]: how many categories a column has; 0: it holds numbers
    categories: NDArray[np.str_] | None = None  # [sum of sizes]: their names, one column's after another's

    def tensors(self) -> Table:
        """Return the arrays that are present, in the form that `read_samples` reads."""
        found = {name: array for name, array in vars(self).items() if array is not None}
        return found | {name: _letters(found[name]) for name in TEXTS if name in found}

    def categories_of(self, column: int) -> NDArray[np.str_]:
        """Return the names of a column's categories; none for a column of numbers."""
        assert self.sizes is not None and self.categories is not None
        end = int(self.sizes[: column + 1].sum())
        return self.categories[end - int(self.sizes[column]) : end]


@dataclass(frozen=True)
class Labels:
    """What a partition is drawn from: everything but the samples themselves.

    `train` and `test` are rows (positions in the dataset, ascending) that are dealt out separately; each client gets
    some of both. If a study's test data are a share of each client's own samples, all rows are in `train` and `test` is
    empty; the share is split off later.
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
        """Return the rows that are dealt out separately: training, and test if there are any."""
        return [rows for rows in (self.train, self.test) if len(rows)]


def read_samples(path: Path, *names: str) -> Samples:
    """Read a dataset, or only the named arrays of it (x and y are empty if not named)."""
    found = read_tensors(path, names)
    found |= {name: _texts(found[name]) for name in TEXTS if name in found}
    return Samples(**{"x": np.empty(0), "y": np.empty(0)} | found)


def _letters(texts: NDArray[np.str_]) -> NDArray[np.uint32]:
    """Return texts as Unicode code points, [n, length of the longest], padded with 0."""
    return np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), -1)


def _texts(letters: NDArray[np.uint32]) -> NDArray[np.str_]:
    found: NDArray[np.str_] = np.ascontiguousarray(letters).view(f"<U{letters.shape[1]}").reshape(-1)
    return found
