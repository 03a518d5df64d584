"""What a round does with its participants: which models each trains, on what of its samples, and where updates go.

Axes: m participants, K models, N samples of all participants, t trainings of a model by a participant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # see `simulation.method`
    from torch import Tensor

    from ..storage.row_store import Rows

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """What a round does with its participants.

    Parameters
    ----------
    start : [m]
        The model that each trains from: its label from now on.
    target : [m], optional
        The model that its update is added to, where that isn't the one it starts from.
    shares : [N, K], optional
        How much of each sample's loss counts in each model's training, one participant's samples after another's. Then
        a participant trains every model, its label's and all others, and each update is added to the model's own sum.
    trains : [m, K], optional
        Which models a participant trains, if not all; with `shares`.
    blends : [m, K], optional
        A participant is given the mean of all models by these shares, which add up to 1; its update is how far it went
        from there. Of methods that need `updates` and merge them themselves.
    given : [m, P], optional
        Models that participants are given, each its own, in place of their labels'; all else as with `blends`, but that
        it is one model that is sent, and that all models may be others after the round.
    """

    start: Ids
    target: Ids | None = None
    shares: NDArray[np.float64] | None = None
    trains: NDArray[np.bool_] | None = None
    blends: NDArray[np.float64] | None = None
    given: Rows | None = None


@dataclass(frozen=True)
class Trainings:
    """The trainings of a round: by whom, of which model, and where the update goes; what of its samples counts."""

    clients: Ids  # [t]
    start: Ids  # [t]
    target: Ids | None  # [t]; None: labels, which may yet change
    shares: NDArray[np.float32] | None = None  # of all samples of the first training, then of the next one's
    blends: NDArray[np.float64] | None = None  # [t, K]; `start` are its rows
    given: Rows | None = None  # [t, P]; `start` are its rows

    def begun(self, theta: Rows) -> Rows:
        """Return the models that `start` are rows of, where the state's are ``theta [K, P]``."""
        if self.given is not None:
            return self.given
        return theta if self.blends is None else blended(theta, self.blends).float()


def blended(theta: Rows, shares: NDArray[np.float64]) -> Tensor:
    """Return the means of the models ``theta [K, P]`` by ``shares [t, K]``, [t, P], in float64, each by itself."""
    import torch

    rows = []
    for own in shares:
        row = torch.zeros(theta.shape[1], dtype=torch.float64)
        for k, share in enumerate(own.tolist()):
            row += share * theta[k].double()
        rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0, theta.shape[1], dtype=torch.float64)


def trainings(found: Assignment, clients: Ids, sizes: Ids) -> Trainings:
    """Return the trainings of an assignment of `clients` [m], who have `sizes` [m] samples: client by client."""
    if found.blends is not None:
        return Trainings(clients, np.arange(len(clients)), found.target, None, found.blends)
    if found.given is not None:
        return Trainings(clients, np.arange(len(clients)), found.target, given=found.given)
    if found.shares is None:
        return Trainings(clients, found.start, found.target)
    here = np.ones((len(clients), found.shares.shape[1]), dtype=bool) if found.trains is None else found.trains
    who, model = np.nonzero(here)
    ends = np.cumsum(sizes)
    parts = [found.shares[ends[i] - sizes[i] : ends[i], k] for i, k in zip(who, model, strict=True)]
    shares = np.concatenate([np.zeros(0), *parts]).astype(np.float32)
    return Trainings(clients[who], model, model, shares)
