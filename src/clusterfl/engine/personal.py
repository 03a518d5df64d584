"""Columns of a model that each client keeps: it starts from its own values, trains them, and may also send them.

Axes: M clients, C of them, P columns of a model's row, q of them kept. Torch isn't imported at module level, because
`simulation.state` imports this.
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
# The models that clients start from, those that they are given (they differ in the kept columns), or the model of this
# number.
Towards = Literal["start", "given"] | int


@dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of a row, as n ranges: ``bounds [n, 2]`` has the first column of each and the one after its last."""

    bounds: Ids

    @classmethod
    def of(cls, tensors: Mapping[str, slice], names: Collection[str]) -> Columns:
        """Return the columns of the tensors with these names; adjacent ranges are joined."""
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
        """The ranges as slices."""
        return [slice(start, stop) for start, stop in self.bounds.tolist()]

    def meet(self, part: slice) -> bool:
        """Return whether any of them is in `part`."""
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
        """Set these columns of ``rows [..., P]`` to zero; columns after the rows' end are ignored."""
        for part in self.slices:
            rows[..., part] = 0


@dataclass(frozen=True, eq=False)
class Personal:
    """What each client keeps: values of some columns, ``rows [M, q]``, changed in place.

    If they are `sent`, the update has the trained values minus those of the model that the client was given.
    """

    columns: Columns
    rows: Readable
    sent: bool = False

    @property
    def withheld(self) -> int:
        """How many numbers of a model a client doesn't send."""
        return 0 if self.sent else len(self.columns)

    def into(self, models: Tensor, clients: Ids) -> Tensor:
        """Return a copy of ``models [C, P]`` (or [1, P]) with the own values of `clients` [C], [C, P]."""
        import torch

        models = models.expand(len(clients), -1).clone(memory_format=torch.contiguous_format)
        self.columns.put(models, self.of(clients).to(models.device))
        return models

    def of(self, clients: Ids) -> Tensor:
        """Return the clients' own values, [C, q]."""
        import torch

        return self.rows[torch.as_tensor(clients)]

    def keep(self, clients: Ids, values: Tensor, sound: NDArray[np.bool_]) -> None:
        """Write the trained `values` [C, q] of the `sound` clients [C]."""
        import torch

        rows: Any = self.rows
        rows[torch.as_tensor(clients[sound])] = values[torch.as_tensor(np.flatnonzero(sound))]

    def at(self, rows: Readable) -> Personal:
        """Return the same with other `rows`, e.g. in shared memory."""
        return replace(self, rows=rows)
