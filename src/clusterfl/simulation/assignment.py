"""A round's assignment: which models each participant trains, on which samples, and which model its update is added to.

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
    """Which models a round's participants start from, train and update.

    Parameters
    ----------
    start : [m]
        The model that each participant starts from; this becomes its label.
    target : [m], optional
        The model that its update is added to, if that isn't the one it starts from.
    shares : [N, K], optional
        The weight of each sample's loss in each model's training, one participant's samples after another's. A
        participant then trains every model, not only its label's, and each update is added to that model's sum.
    trains : [m, K], optional
        With `shares`: which models a participant trains, if not all.
    blends : [m, K], optional
        Each participant starts from the mean of all models by these shares, which add up to 1; its update is the
        difference to that mean. For methods that need `updates` and merge them themselves.
    given : [m, P], optional
        The model that each participant starts from, instead of its label's. The rest is as with `blends`, but only one
        model is sent, and the round may change all models.
    """

    start: Ids
    target: Ids | None = None
    shares: NDArray[np.float64] | None = None
    trains: NDArray[np.bool_] | None = None
    blends: NDArray[np.float64] | None = None
    given: Rows | None = None


@dataclass(frozen=True)
class Trainings:
    """The trainings of a round: who trains which model with what weight on each sample, and where the update goes."""

    clients: Ids  # [t]
    start: Ids  # [t]
    target: Ids | None  # [t]; None: labels, which may yet change
    shares: NDArray[np.float32] | None = None  # of all samples of the first training, then of the second, and so on
    blends: NDArray[np.float64] | None = None  # [t, K]; `start` are its rows
    given: Rows | None = None  # [t, P]; `start` are its rows

    def begun(self, theta: Rows) -> Rows:
        """Return the models whose rows `start` refers to; ``theta [K, P]`` are the state's."""
        if self.given is not None:
            return self.given
        return theta if self.blends is None else blended(theta, self.blends).float()


def blended(theta: Rows, shares: NDArray[np.float64]) -> Tensor:
    """Return the means [t, P], in float64, of the models ``theta [K, P]`` weighted by ``shares [t, K]``."""
    import torch

    rows = []
    for own in shares:
        row = torch.zeros(theta.shape[1], dtype=torch.float64)
        for k, share in enumerate(own.tolist()):
            row += share * theta[k].double()
        rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0, theta.shape[1], dtype=torch.float64)


def trainings(found: Assignment, clients: Ids, sizes: Ids) -> Trainings:
    """Return an assignment's trainings, client by client, of `clients` [m] with `sizes` [m] samples."""
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
