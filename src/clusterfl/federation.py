"""The data of M clients as arrays: samples grouped by client, with offsets.

Axes: M clients, N samples of a split, then the shape of one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import UserError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """The samples of one split: ``x [N, ...]``, ``y [N]``, client i owning rows ``offsets[i]:offsets[i + 1]``."""

    x: NDArray[Any]
    y: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client, [M]."""
        return np.diff(self.offsets)

    def rows(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of `clients`, one client after another, and for each row the position in `clients`."""
        sizes = self.sizes[clients]
        owner = np.repeat(np.arange(len(clients)), sizes)
        first = np.cumsum(sizes) - sizes
        rows = np.arange(int(sizes.sum())) - np.repeat(first, sizes) + np.repeat(self.offsets[clients], sizes)
        return rows, owner


@dataclass(frozen=True)
class Federation:
    """Clients and their data. Client i of the arrays is the client with the i-th smallest id."""

    splits: Mapping[str, Split]
    ids: NDArray[np.int64]
    true_cluster: NDArray[np.int64] | None
    classes: int  # number of classes; 0 for regression

    @property
    def clients(self) -> int:
        """M, the number of clients."""
        return len(self.ids)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.splits["train"].x.shape[1:]

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike,
        split: ArrayLike | None = None,
        true_cluster: ArrayLike | None = None,
    ) -> Federation:
        """Group samples by client and split.

        Parameters
        ----------
        x : [N, ...]
            Samples, in any order; integers stay integers (token ids), everything else becomes float32.
        y : [N]
            Classes 0, 1, ... as integers, or real targets.
        client : [N]
            Id of the client that holds each sample. A sample held by several clients appears several times.
        split : [N], optional
            ``train``, ``validation`` or ``test``; all ``train`` if not given.
        true_cluster : [N], optional
            Planted group of the sample's client, where known; -1 = unknown.

        Raises
        ------
        UserError
            If shapes differ, a number is NaN or infinite, a class is negative, a split unknown, or a client has no
            training sample.
        """
        x, y, client = np.asarray(x), np.asarray(y), np.asarray(client)
        split = np.full(len(client), "train") if split is None else np.asarray(split).astype(str)
        _check(x, y, client, split)
        x = x if x.dtype.kind in "iu" else x.astype(np.float32, copy=False)
        y = y.astype(np.int64 if y.dtype.kind in "iub" else np.float32, copy=False)
        ids = np.unique(client)
        position = np.searchsorted(ids, client)
        splits = {}
        for name in SPLITS:
            rows = np.flatnonzero(split == name)
            rows = rows[np.argsort(position[rows], kind="stable")]
            sizes = np.bincount(position[rows], minlength=len(ids))
            splits[name] = Split(x[rows], y[rows], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        empty = np.flatnonzero(splits["train"].sizes == 0)
        if len(empty):
            raise UserError(
                f"client {ids[empty[0]]} ({len(empty)} of {len(ids)}) has no training sample; "
                "every member needs one: use fewer clients, a smaller test share, or drop the client"
            )
        groups = None
        if true_cluster is not None:
            groups = np.full(len(ids), -1, dtype=np.int64)
            groups[position] = np.asarray(true_cluster)
            groups = groups if (groups >= 0).any() else None
        classes = int(y.max(initial=-1)) + 1 if y.dtype.kind == "i" else 0
        return cls(splits, ids.astype(np.int64), groups, classes)


def _check(x: NDArray[Any], y: NDArray[Any], client: NDArray[Any], split: NDArray[Any]) -> None:
    if not len(x) == len(y) == len(client) == len(split) or len(x) == 0:
        raise UserError(
            f"x, y, client and split need the same number of rows, at least one; found {len(x)}, {len(y)}, "
            f"{len(client)} and {len(split)}"
        )
    for name, values in (("x", x), ("y", y)):
        if values.dtype.kind not in "iufb":
            raise UserError(f"{name} holds {values.dtype}; numbers are needed: encode texts first")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
            raise UserError(
                f"{name} has NaN or infinity in row {row} (client {client[row]}); "
                "replace or drop such samples, then make the data again"
            )
    if y.dtype.kind in "iu" and y.min() < 0:
        raise UserError(f"y has the negative class {y.min()}; classes are 0, 1, 2, ...")
    unknown = sorted(set(np.unique(split).tolist()) - set(SPLITS))
    if unknown:
        raise UserError(f"unknown split '{unknown[0]}'; allowed: {', '.join(SPLITS)}")
