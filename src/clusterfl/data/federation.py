"""The data of M clients as arrays: samples grouped by client, with offsets.

Axes: M clients, N samples of a split, then the shape of one sample. Samples are stored once, however many clients have
them and with whatever rotations; they become a network's inputs when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError
from .inputs import Inputs
from .samples import SPLITS


@dataclass(frozen=True)
class Pool:
    """What all splits share: samples as stored, noise to add, and how they become inputs."""

    x: NDArray[Any]  # [S, ...]: uint8 images, whole numbers (tokens) or float32 features
    noise: NDArray[np.float32] | None = None  # [R, ...], added after normalisation
    inputs: Inputs = field(default_factory=Inputs)
    sigma: NDArray[np.float32] | None = None  # [R], standard deviation of each row of the noise


@dataclass(frozen=True)
class Split:
    """The samples of one split, N of them, client i owning ``offsets[i]:offsets[i + 1]``."""

    name: str
    pool: Pool
    rows: NDArray[np.int64]  # [N] rows of the pool
    y: NDArray[Any]  # [N]
    offsets: NDArray[np.int64]  # [M + 1]
    turns: NDArray[np.int8] | None = None  # [N] quarter turns counter-clockwise
    noise: NDArray[np.int64] | None = None  # [N] rows of the pool's noise, -1 = none

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client, [M]."""
        return np.diff(self.offsets)

    def of(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the samples of `clients`, client by client, and their owners' positions there."""
        sizes = self.sizes[clients]
        owner = np.repeat(np.arange(len(clients)), sizes)
        first = np.cumsum(sizes) - sizes
        place = np.arange(int(sizes.sum())) - np.repeat(first, sizes) + np.repeat(self.offsets[clients], sizes)
        return place, owner


@dataclass(frozen=True)
class Federation:
    """Clients and their data. Client i of the arrays is the client with the i-th smallest id."""

    splits: Mapping[str, Split]
    ids: NDArray[np.int64]
    true_cluster: NDArray[np.int64] | None
    classes: int  # number of classes; 0 for regression and where samples are their own targets
    begins: int = 1  # the first round in which it is like this
    later: tuple[Federation, ...] = ()  # its later phases, by increasing `begins`: other turns, labels and groups

    def at(self, round_: int) -> Federation:
        """Return the federation in a round: clients, sizes and stored samples don't change; see `data.drift`."""
        return [self, *(phase for phase in self.later if phase.begins <= round_)][-1]

    @property
    def clients(self) -> int:
        """M, the number of clients."""
        return len(self.ids)

    @property
    def words(self) -> bool:
        """Whether samples are indices of words or characters, not images or measurements."""
        kind = self.splits["train"].pool.x.dtype
        return kind.kind in "iu" and kind != np.uint8

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike,
        split: ArrayLike | None = None,
        true_cluster: ArrayLike | None = None,
        inputs: Inputs | None = None,
    ) -> Federation:
        """Group samples by client and split.

        Parameters
        ----------
        x : [N, ...]
            Samples, in any order: bytes (uint8) are images and become numbers from 0 to 1, other integers stay
            integers (token ids), everything else becomes float32.
        y : [N]
            Classes 0, 1, ... as integers, or real targets.
        client : [N]
            Id of the client that holds each sample. A sample held by several clients appears several times.
        split : [N], optional
            ``train``, ``validation`` or ``test``; all ``train`` if not given.
        true_cluster : [N], optional
            Planted group of the sample's client, if known; -1 = unknown.
        inputs
            How samples become a network's inputs, and whether they are their own targets; the defaults if not given.

        Raises
        ------
        UserError
            If shapes differ, a number is NaN or infinite, a class is negative, a split unknown, or a client has no
            training sample.
        """
        x, y, client = np.asarray(x), np.asarray(y), np.asarray(client)
        split = np.full(len(client), "train") if split is None else np.asarray(split).astype(str)
        _check(x, y, client, split)
        pool = Pool(x if x.dtype.kind in "iu" else x.astype(np.float32, copy=False), inputs=inputs or Inputs())
        groups = None if true_cluster is None else np.asarray(true_cluster)
        return cls.from_rows(pool, np.arange(len(y)), y, client, split, groups)

    @classmethod
    def from_rows(
        cls,
        pool: Pool,
        rows: NDArray[np.int64],
        y: NDArray[Any],
        client: NDArray[Any],
        split: NDArray[Any],
        true_cluster: NDArray[Any] | None = None,
        turns: NDArray[np.int8] | None = None,
        noise: NDArray[np.int64] | None = None,
        classes: int | None = None,
        train: bool = True,
    ) -> Federation:
        """Group rows of a pool by client and split; every other array has one entry for each of `rows`.

        `classes` is the number of classes, needed if some may not occur in these labels. With `train` every client must
        have a training sample.
        """
        y = y.astype(np.int64 if y.dtype.kind in "iub" else np.float32, copy=False)
        ids = np.unique(client)
        position = np.searchsorted(ids, client)
        splits = {}
        for name in SPLITS:
            chosen = np.flatnonzero(split == name)
            chosen = chosen[np.argsort(position[chosen], kind="stable")]
            sizes = np.bincount(position[chosen], minlength=len(ids))
            offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            turned = None if turns is None else turns[chosen]
            noisy = None if noise is None else noise[chosen]
            splits[name] = Split(name, pool, rows[chosen], y[chosen], offsets, turned, noisy)
        empty = np.flatnonzero(splits["train"].sizes == 0)
        if len(empty) and train:
            raise UserError(
                f"client {ids[empty[0]]} ({len(empty)} of {len(ids)}) has no training sample; "
                "every member needs one: use fewer clients, a smaller test share, or drop the client"
            )
        groups = None
        if true_cluster is not None:
            groups = np.full(len(ids), -1, dtype=np.int64)
            groups[position] = true_cluster
            groups = groups if (groups >= 0).any() else None
        if y.dtype.kind != "i" or pool.inputs.target == "input":
            classes = 0
        elif classes is None:
            classes = int(y.max(initial=-1)) + 1
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
