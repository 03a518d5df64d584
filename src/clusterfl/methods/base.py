"""The hooks of a method, with their defaults: one model for all, everybody takes part, weighted mean.

Axes: M clients, m participants, K models, P columns of a model's row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import streams
from ..engine import Training, Update
from ..errors import UserError

Ids = NDArray[np.int64]
State = dict[str, Any]  # named arrays: theta, labels, participations, ... and what the method owns
Losses = Callable[[], NDArray[np.float64]]  # measures the participants' losses [m, K] when called


@dataclass(frozen=True)
class Context:
    """What a method may know of the run.

    `initial(index)` makes the index-th initial model's row [P]; `allocate(rows, columns)` makes zeros, on disk when
    they are large. `true_cluster [M]` is for the oracle only. `clustering [M]` and `common` (a row [P], and the
    participations [M] so far) come from the warm-up of a one-shot method.
    """

    clients: int
    sizes: Ids  # [M] training samples
    seed: int  # of the sampling streams
    training: Training
    initial: Callable[[int], Tensor]
    allocate: Callable[..., Tensor]
    parameter_columns: int  # p: the columns beyond are buffers
    true_cluster: Ids | None = None
    clustering: Ids | None = None
    common: Tensor | None = None
    members: Callable[[], Tensor] | None = None  # the clients' models [M, P] after the warm-up
    participations: Ids | None = None


class Method:
    """A federated method. Override the hooks that differ; `clusterfl.simulation` calls them in this order."""

    needs: frozenset[str] = frozenset()  # of "updates", "curves", "last_gradient"
    models_sent = 1  # models that a participant downloads in a round
    updates_sent = 1  # updates that it uploads
    assigns_by_loss = False  # whether participants evaluate all models in a round (counted as cost)

    def __init__(self, context: Context):
        self.context = context

    def begin(self) -> State:
        """Return the state before the first round: ``theta [K, P]`` and ``labels [M]`` (-1 = none yet)."""
        theta = self.context.initial(0)[None].clone()
        return {"theta": theta, "labels": np.zeros(self.context.clients, dtype=np.int64)}

    def sample(self, state: State, round_: int) -> Ids:
        """Return who takes part, ascending: a share of all clients, without replacement."""
        return draw(self.context, np.arange(self.context.clients), round_)

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """Set ``labels`` of the participants, the model each starts from; ``target`` if its update goes elsewhere."""
        return state

    def regroup(self, state: State, update: Update) -> State:
        """Look at the updates; may rewrite ``target``, or split clusters."""
        return state

    def weights(self, clients: Ids) -> NDArray[np.float64]:
        """Return the weight of each participant's update, [m]."""
        if self.context.training.weights == "uniform":
            return np.ones(len(clients))
        return self.context.sizes[clients].astype(np.float64)

    def merge(self, state: State, update: Update, target: Ids, weights: NDArray[np.float64]) -> State:
        """Add each cluster's weighted mean update to its model; a cluster without participants keeps its model."""
        assert update.sums is not None
        models = len(state["theta"])
        divisor: NDArray[Any]
        if self.context.training.divisor == "ratio":
            members = np.bincount(state["labels"][state["labels"] >= 0], minlength=models)
            divisor = self.context.training.participation * members
        else:
            divisor = np.bincount(target, weights=weights, minlength=models)
        touched = np.unique(target)
        if len(touched):
            step = update.sums[touched] / torch.as_tensor(divisor[touched], dtype=torch.float64)[:, None]
            state = self._server_step(state, torch.as_tensor(touched), step)
        return state

    def _server_step(self, state: State, touched: Tensor, step: Tensor) -> State:
        """Apply the server optimiser, SGD with momentum on the mean update (FedAvgM: Hsu et al. 2019)."""
        training, p = self.context.training, self.context.parameter_columns
        if training.server_momentum:
            if "server_velocity" not in state:
                state["server_velocity"] = self.context.allocate(len(state["theta"]), p, torch.float64)
            velocity = state["server_velocity"]
            velocity[touched] = training.server_momentum * velocity[touched] + step[:, :p]
            step = torch.cat([velocity[touched], step[:, p:]], dim=1)
        step[:, :p] *= training.server_learning_rate
        theta = state["theta"]
        theta[touched] = (theta[touched].double() + step).to(theta.dtype)
        return state


def draw(context: Context, members: Ids, round_: int) -> Ids:
    """Return a share of `members`, at least one, ascending: those with the smallest keyed hashes.

    Equal to a draw without replacement; whether a client is drawn depends on the members, not on their order.
    """
    count = max(1, round(context.training.participation * len(members)))
    if count >= len(members):
        return np.sort(members)
    bits = streams.hashed(context.seed, "sample", round_, members)
    return np.sort(members[np.argsort(bits, kind="stable")[:count]])


def check_labels(labels: Ids, clients: int, source: str) -> Ids:
    """Return labels [M] as they are, or say what is wrong with them."""
    if len(labels) != clients:
        raise UserError(f"{source} has {len(labels)} clients, the federation has {clients}")
    if labels.min() < 0:
        raise UserError(f"{source} leaves client {int(np.argmin(labels))} without a cluster; every client needs one")
    return labels.astype(np.int64)
