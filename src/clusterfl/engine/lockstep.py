"""Two models in lockstep: a client trains the model that it sends and a second model on the same mini-batches.

The client uses a mix of the two, ``m = a v + (1 - a) w``: w is the sent model, v the second one and a its share (Deng,
Kamani and Mahdavi, arXiv 2003.13461). By the chain rule the loss of the mix has the gradient ``a grad f(m)`` for v, and
the derivative ``<v - w, grad f(m)>`` for a. Both models take steps of the settings' optimiser, each with its own state.

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
    """The settings for training two models; `rows` and `share` are changed in place when training ends.

    With `apart` the second model follows the gradient of its own loss, the share's derivative is ``<v - w, a grad f(v)
    + (1 - a) grad f(w)>``, with the differences v - w after the step, and the mix replaces v when training ends.
    """

    rows: Readable  # [M, P], v
    share: NDArray[np.float64]  # [M], a
    moves: Moves = "round"  # when the share takes a step: never, on a round's first mini-batch, on every mini-batch
    rate: float | None = None  # learning rate of the share; None: the clients' learning rates
    shrink: float = 0.0  # s, of the term s / 2 a^2 in the share's loss
    apart: bool = False
    steps: ClassVar[int] = 1  # of one model on each mini-batch
    times: ClassVar[int] = 2  # steps of both models on each mini-batch

    def at(self, rows: Readable) -> Lockstep:
        """Return the same with other `rows`, e.g. in shared memory."""
        return replace(self, rows=rows)

    def keep(self, clients: Ids, rows: Tensor, share: NDArray[np.float64], sound: NDArray[np.bool_]) -> None:
        """Write the trained `rows` [C, P] and `share` [C] of the `sound` clients [C]."""
        kept: Any = self.rows
        kept[torch.as_tensor(clients[sound])] = rows[torch.as_tensor(np.flatnonzero(sound))]
        self.share[clients[sound]] = share[sound]


def _itself(gradient: Tensor) -> Tensor:
    return gradient


class Pairs:
    """The two models of some clients in consecutive rows of a chunk: 2i is the sent one, 2i + 1 the second one.

    Rows, gradients and points are [2C, P], or [2c, P] for the clients that still train, which begin at row ``first``.
    Each pair is computed only from its own numbers, and every product and sum is rounded separately.
    """

    def __init__(self, lockstep: Lockstep, clients: Ids, rate: NDArray[np.float64], device: torch.device):
        self.lockstep, own = lockstep, rate if lockstep.rate is None else np.full(len(clients), lockstep.rate)
        self.second = lockstep.rows[torch.as_tensor(clients)].to(device)
        self.share = torch.as_tensor(lockstep.share[clients], dtype=torch.float64, device=device)
        self.rate = torch.as_tensor(own, dtype=torch.float64, device=device)
        self.slope: Tensor  # [c] the share's derivative, or with `apart` the mixed gradients, [c, P]

    def begin(self, start: Tensor, second: Tensor) -> Tensor:
        """Return the rows [2C, P] at the start of training: `start`, with odd rows replaced by `second` [C, P]."""
        rows = start.clone(memory_format=torch.contiguous_format)
        rows[1::2] = second
        return rows

    def mixed(self, rows: Tensor, first: int = 0) -> Tensor:
        """Return the mixes, [c, P]."""
        share = self.share[first // 2 :, None].float()
        return rows[1::2] * share + rows[::2] * (1 - share)

    def points(self, rows: Tensor, first: int = 0) -> Tensor:
        """Return the points at which gradients are evaluated, [2c, P]."""
        if self.lockstep.apart:
            return rows
        found = rows.clone()
        found[1::2] = self.mixed(rows, first)
        return found

    def judge(
        self, gradient: Tensor, rows: Tensor, step: int, first: int = 0, dual: Callable[[Tensor], Tensor] = _itself
    ) -> None:
        """Convert gradients at the points to those of the rows, in place, and compute the share's derivative.

        `dual` converts gradients for dot products with rows, if these are in other coordinates than models.
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
        """Take the share's step, after that of the rows; the share is clipped to [0, 1]."""
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
