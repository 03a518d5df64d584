"""Columns of a model that each client keeps: it starts from its own and trains them; it may send them, too.

Axes: M clients, C of them, P columns of a model's row, q of them kept. No torch at the top: a run's state has these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from ..storage.row_store import Readable

Ids = NDArray[np.int64]
# The models that clients start from, or those that they are given (they differ in what clients keep), or the model of
# that number.
Towards = Literal["start", "given"] | int


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of a row, as runs of neighbours: ``bounds [n, 2]`` has the first of each, and the one behind it."""

    bounds: Ids

    @classmethod
    def of(cls, tensors: Mapping[str, slice], names: Collection[str]) -> Columns:
        """Return the columns of the tensors with these names, neighbours joined."""
        found: list[list[int]] = []
        for start, stop in sorted((tensors[name].start, tensors[name].stop) for name in names):
            if found and found[-1][1] == start:
                found[-1][1] = stop
            else:
                found.append([start, stop])
        return cls(np.array(found, dtype=np.int64).reshape(-1, 2))

    def __len__(self) -> int:
        return int(np.diff(self.bounds).sum())

    @property
    def slices(self) -> list[slice]:
        """The runs of neighbours."""
        return [slice(start, stop) for start, stop in self.bounds.tolist()]

    def meet(self, part: slice) -> bool:
        """Return whether any of them is among other columns."""
        return any(one.start < part.stop and part.start < one.stop for one in self.slices)

    def taken(self, rows: Tensor) -> Tensor:
        """Return these columns of ``rows [..., P]``, [..., q]."""
        import torch

        return torch.cat([rows[..., part] for part in self.slices], dim=-1)

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Write ``values [..., q]`` into these columns of ``rows [..., P]``."""
        done = 0
        for part in self.slices:
            rows[..., part] = values[..., done : done + part.stop - part.start]
            done += part.stop - part.start

    def clear(self, rows: Tensor) -> None:
        """Make these columns of ``rows [..., P]`` zeros; rows of parameters alone may end before the last."""
        for part in self.slices:
            rows[..., part] = 0


@dataclass(frozen=True, eq=False)
class Personal:
    """What each client keeps: values of some columns, ``rows [M, q]``, changed in place.

    Those that are `sent` are part of its update: how far they are, trained, from those of the model it was given.
    """

    columns: Columns
    rows: Readable
    sent: bool = False

    @property
    def withheld(self) -> int:
        """How many numbers of a model clients never send."""
        return 0 if self.sent else len(self.columns)

    def into(self, models: Tensor, clients: Ids) -> Tensor:
        """Return copies of ``models [C, P]``, or of one for all, with the clients' own values; `clients` are [C]."""
        import torch

        models = models.expand(len(clients), -1).clone(memory_format=torch.contiguous_format)
        self.columns.put(models, self.of(clients).to(models.device))
        return models

    def of(self, clients: Ids) -> Tensor:
        """Return what the clients keep, [C, q]."""
        import torch

        return self.rows[torch.as_tensor(clients)]

    def keep(self, clients: Ids, values: Tensor, sound: NDArray[np.bool_]) -> None:
        """Write the trained `values` [C, q] of those clients whose updates aren't left out."""
        import torch

        rows: Any = self.rows
        rows[torch.as_tensor(clients[sound])] = values[torch.as_tensor(np.flatnonzero(sound))]

    def at(self, rows: Readable) -> Personal:
        """Return the same with its rows at another place."""
        return replace(self, rows=rows)
