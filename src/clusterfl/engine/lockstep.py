"""Two models in lockstep: beside the one that a client sends, a second one takes steps on the same mini-batches.

What counts is a mix of the two, ``m = a v + (1 - a) w``, with w the sent model, v the second one and a the second one's
share in it (Deng, Kamani and Mahdavi, arXiv 2003.13461). By the chain rule the loss of the mix has the gradient
``a grad f(m)`` for v, and the slope ``<v - w, grad f(m)>`` for a. Both models take steps of the settings' optimiser,
each with a memory of its own.

Axes: M clients, C of them, P columns of a model's row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..storage.row_store import Readable

Ids = NDArray[np.int64]
Moves = Literal["never", "round", "step"]


@dataclass(frozen=True, eq=False)
class Lockstep:
    """How clients train two models; `rows` and `share` are changed in place as their training ends.

    With `apart` the second model takes gradients of its own loss, the share's slope is ``<v - w, a grad f(v) +
    (1 - a) grad f(w)>`` for the v and w after their step, and the mix takes v's place when the training ends.
    """

    rows: Readable  # [M, P], v
    share: NDArray[np.float64]  # [M], a
    moves: Moves = "round"  # when the share takes a step: never, on a round's first mini-batch, on every one
    rate: float | None = None  # of the share's steps; None: the clients' learning rates
    shrink: float = 0.0  # s, of the term s / 2 a^2 in the share's loss
    apart: bool = False
    steps: ClassVar[int] = 1  # on each mini-batch
    times: ClassVar[int] = 2  # that a model is trained on each mini-batch

    def at(self, rows: Readable) -> Lockstep:
        """Return the same with its rows at another place."""
        return replace(self, rows=rows)

    def keep(self, clients: Ids, rows: Tensor, share: NDArray[np.float64], sound: NDArray[np.bool_]) -> None:
        """Write the trained `rows` [C, P] and `share` [C] of those clients whose updates aren't left out."""
        kept: Any = self.rows
        kept[torch.as_tensor(clients[sound])] = rows[torch.as_tensor(np.flatnonzero(sound))]
        self.share[clients[sound]] = share[sound]


def _itself(gradient: Tensor) -> Tensor:
    return gradient


class Pairs:
    """The two models of some clients, neighbours among the rows of a chunk: 2i is the sent one, 2i + 1 the second one.

    Rows, gradients and points are [2C, P], or those of the clients that still train: ``first`` is the row with which
    these begin. A number is made of its own pair alone, by products and sums that are rounded one by one.
    """

    def __init__(self, lockstep: Lockstep, clients: Ids, rate: NDArray[np.float64], device: torch.device):
        self.lockstep, own = lockstep, rate if lockstep.rate is None else np.full(len(clients), lockstep.rate)
        self.second = lockstep.rows[torch.as_tensor(clients)].to(device)
        self.share = torch.as_tensor(lockstep.share[clients], dtype=torch.float64, device=device)
        self.rate = torch.as_tensor(own, dtype=torch.float64, device=device)
        self.slope: Tensor  # [c], or with `apart` what it is a product with, [c, P]

    def begin(self, start: Tensor, second: Tensor) -> Tensor:
        """Return the rows with which the training begins: `second`, and what both rows of a pair are in `start`."""
        rows = start.clone(memory_format=torch.contiguous_format)
        rows[1::2] = second
        return rows

    def mixed(self, rows: Tensor, first: int = 0) -> Tensor:
        """Return the mixes, [c, P]."""
        share = self.share[first // 2 :, None].float()
        return rows[1::2] * share + rows[::2] * (1 - share)

    def points(self, rows: Tensor, first: int = 0) -> Tensor:
        """Return where gradients are taken."""
        if self.lockstep.apart:
            return rows
        found = rows.clone()
        found[1::2] = self.mixed(rows, first)
        return found

    def judge(
        self, gradient: Tensor, rows: Tensor, step: int, first: int = 0, dual: Callable[[Tensor], Tensor] = _itself
    ) -> None:
        """Make gradients at the points those of the rows, in place, and see where the share goes in this step.

        `dual` makes of a gradient what products are taken with, where rows are in other coordinates than models.
        """
        share = self.share[first // 2 :, None]
        if self._moves(step):
            slope = dual(gradient)
            if self.lockstep.apart:
                self.slope = share * slope[1::2].double() + (1 - share) * slope[::2].double()
            else:
                self.slope = ((rows[1::2] - rows[::2]).double() * slope[1::2].double()).sum(1)
        if not self.lockstep.apart:
            gradient[1::2] *= share.float()

    def follow(self, rows: Tensor, step: int, first: int = 0) -> None:
        """Take the share's step after the rows took theirs; it stays between 0 and 1."""
        if self._moves(step):
            share, slope = self.share[first // 2 :], self.slope
            if self.lockstep.apart:
                slope = ((rows[1::2] - rows[::2]).double() * slope).sum(1)
            share -= self.rate[first // 2 :] * (slope + self.lockstep.shrink * share)
            share.clamp_(0, 1)

    def ended(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixes and the second models after the training, [C, P] each."""
        mixed = self.mixed(rows)
        return mixed, mixed if self.lockstep.apart else rows[1::2]

    def _moves(self, step: int) -> bool:
        return self.lockstep.moves == "step" or (self.lockstep.moves == "round" and step == 0)
