"""What a round does with its participants: which models each trains, on what of its samples, and where updates go.

Axes: m participants, K models, N samples of all participants, t trainings of a model by a participant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

if TYPE_CHECKING:  # see `simulation.method`
    from torch import Tensor

    from ..storage.row_store import Rows

Ids = NDArray[np.int64]


class BadLabels(UserError):
    """Labels that are none; raised before they do harm elsewhere."""


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


def check_assignment(found: Any, models: int, clients: Ids, method: str, round_: int) -> None:
    """Raise an error unless a method's `assign` gave each of the participants, `clients` [m], one of the models."""
    where = f"in round {round_},"
    if not isinstance(found, Assignment):
        raise BadLabels(
            f"method '{method}': assign, {where} gives {_kind(found)}; allowed: an Assignment of whole numbers 0 to "
            f"{models - 1}, a model's row in state.theta for each participant: return Assignment(labels)"
        )
    for hook, labels in (("assign", found.start), ("assign (target)", found.target)):
        if labels is None and hook != "assign":
            continue
        if not isinstance(labels, np.ndarray):
            raise BadLabels(
                f"method '{method}': {hook}, {where} gives {_kind(labels)} as labels; allowed: an array of "
                f"{len(clients)} whole numbers 0 to {models - 1}: make one by np.array(labels, dtype=np.int64)"
            )
        check_labels(labels, models, clients, f"method '{method}': {hook}, {where}", 0)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of the type {type(value).__name__}"


def check_labels(labels: Any, models: int, clients: Ids, hook: str, least: int = -1) -> None:
    """Raise an error unless `hook` gives each of `clients` the number of one of the models, from `least` on."""
    found = np.asarray(labels)
    allowed = f"allowed: whole numbers 0 to {models - 1}, a model's row in state.theta"
    allowed += ", or -1 before a client has a model" if least < 0 else ""
    if found.shape != clients.shape:
        raise BadLabels(
            f"{hook} gives labels of shape {found.shape} for {len(clients)} clients; one for each is needed: "
            f"return an array of shape {clients.shape}"
        )
    if found.dtype not in (np.int64, np.int32):  # torch takes no others for rows
        raise BadLabels(
            f"{hook} gives labels of {found.dtype}, e.g. {found[0]}; {allowed}: convert them with astype(np.int64)"
        )
    bad = np.flatnonzero((found < least) | (found >= models))
    if len(bad):
        raise BadLabels(
            f"{hook} gives label {found[bad[0]]} to client {clients[bad[0]]} ({len(bad)} of {len(clients)}), of "
            f"{models} models; {allowed}: count from 0, and append a model before it is used"
        )


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
