"""The hooks of a method, with their defaults: one model for all, everybody takes part, weighted mean.

Axes: M clients, m participants, K models, P columns of a model's row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import streams
from ..engine.engine import Update
from ..engine.training import Training
from ..errors import UserError
from ..storage.blocks import blocks
from ..storage.row_store import Readable, Rows
from . import server

Ids = NDArray[np.int64]
State = dict[str, Any]  # named arrays: theta, labels, participations, ... and what the method owns


class Losses(Protocol):
    """Measures, when called, the mean losses [m, K] of models on clients' training data; what it costs is counted."""

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """Take the state's models if no ``theta [K, P]`` is given, and the participants if no `clients` are."""


@dataclass(frozen=True)
class Context:
    """What a method may know of the run.

    `initial(index)` makes the index-th initial model's row [P]; `allocate(rows, columns)` makes zeros, on disk when
    they are large. `true_cluster [M]` is for the oracle only. `clustering [M]`, `warmup` (its final state: ``theta``
    [1, P], ``participations`` [M], ...) and `members` (its clients' models) are what a one-shot method continues.
    """

    clients: int
    sizes: Ids  # [M] training samples
    seed: int  # of the sampling streams
    training: Training
    initial: Callable[[int], Tensor]
    allocate: Callable[..., Rows]
    parameter_columns: int  # p: the columns beyond are buffers
    tensors: Mapping[str, slice] = field(default_factory=dict)  # the columns of each parameter and buffer
    true_cluster: Ids | None = None
    clustering: Ids | None = None
    warmup: State | None = None
    members: Callable[[], Readable] | None = None  # [M, P]


class Method:
    """A federated method. Override the hooks that differ; `clusterfl.simulation.loop` calls them in this order."""

    needs: frozenset[str] = frozenset()  # of "updates", "curves", "last_gradient"
    communicates = True  # whether participants receive a model and send an update
    places = True  # whether it has a model for a client that never trained
    sends_losses = False  # whether they send their losses to the server, or only which model they chose
    # What the server learns of a participant besides its update: nothing, choice (of a model), losses; or anything
    # else, in a word, which keeps the method from being made private.
    reveals = "nothing"
    assigns = False  # whether each round assigns its participants, and merges by where their updates go
    clip = math.inf  # Euclidean norm that updates are shortened to
    # Whether what is drawn for a client may depend on nothing but this client (with privacy).
    own_draws = False
    merges_all = False  # whether models that got no update are merged, too, their sums being zeros or noise

    def __init__(self, context: Context):
        self.context = context
        self.training = context.training  # a method may replace some of the settings

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
        if self.training.weights == "uniform":
            return np.ones(len(clients))
        return self.context.sizes[clients].astype(np.float64)

    def merge(self, state: State, update: Update, target: Ids, weights: NDArray[np.float64]) -> State:
        """Add each cluster's weighted mean update to its model.

        A cluster without participants keeps its model, unless the method `merges_all`.

        Parameters
        ----------
        state
            As it is before the round's updates are added.
        update
            With the sums [K, P] of weighted updates.
        target, weights : [m]
            y, the model each update is added to, and its weight; without the updates that were dropped.
        """
        assert update.sums is not None
        models = len(state["theta"])
        divisor: NDArray[Any]
        if self.training.divisor == "ratio":
            members = np.bincount(state["labels"][state["labels"] >= 0], minlength=models)
            divisor = self.training.participation * members
        elif self.training.divisor == "all":
            divisor = np.full(models, weights.sum())
        elif self.training.divisor == "expected":
            divisor = np.full(models, self.training.participation * self.context.clients / models)
        else:
            divisor = np.bincount(target, weights=weights, minlength=models)
        touched = np.flatnonzero(divisor) if self.merges_all else np.unique(target)
        for part in blocks(len(touched), 4 * 8 * state["theta"].shape[1]):  # a step needs four such arrays of float64
            rows = touched[part]
            mean = update.sums[torch.as_tensor(rows)] / torch.as_tensor(divisor[rows], dtype=torch.float64)[:, None]
            p = self.context.parameter_columns
            server.step(self.training, state, rows, mean, p, update.round, self.context.allocate)
        return state

    def placing(self, state: State) -> Rows:
        """Return the models [K, P] that the losses given to `place` are measured on: today's by default."""
        theta: Rows = state["theta"]
        return theta

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """Return the model of each client that never trained, from its losses [m, K]; -1 where there is none for it.

        Not called where `places` is false. The default is the model of least loss, the first one on ties.
        """
        return np.asarray(choose(losses))

    def spent(self, round_: int) -> float:
        """Return the privacy loss epsilon of all rounds up to this one; NaN where nothing is guaranteed."""
        return math.nan

    def facts(self) -> dict[str, Any]:
        """Return what a result's manifest says of the method."""
        return {}


def choose(losses: Any) -> Any:
    """Return for each client the model of least loss; the first one on ties.

    Parameters
    ----------
    losses : [m, K]
        ``losses[i, k]`` is the mean loss of model k on client i's data; NaN counts as infinite.

    Returns
    -------
    [m], of the same kind (numpy or torch) as the input.
    """
    if isinstance(losses, torch.Tensor):
        return torch.as_tensor(choose(losses.detach().cpu().numpy()))
    losses = np.asarray(losses, dtype=np.float64)
    return np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=1)


def draw(context: Context, members: Ids, round_: int, count: int | None = None) -> Ids:
    """Return `count` of the `members`, a share if not given, ascending, by keyed hashes; no order matters.

    With ``sampler: fixed`` those with the smallest hashes, at least one: a draw without replacement. With ``poisson``
    those whose own hash, as a share of all, is below `participation`: each by itself, perhaps nobody.
    """
    if context.training.sampler == "poisson":
        if count is not None:
            raise UserError(
                "training.sampler: 'poisson' draws each client by itself, and this method wants as many of each "
                "cluster in every round; set sampler: fixed"
            )
        shares = streams.uniform(context.seed, "sample", round_, members)
        return np.sort(members[shares < context.training.participation])
    count = context.training.participants(len(members)) if count is None else count
    if count >= len(members):
        return np.sort(members)
    bits = streams.hashed(context.seed, "sample", round_, members)
    return np.sort(members[np.argsort(bits, kind="stable")[:count]])


def append_copies(context: Context, state: State, models: Ids) -> None:
    """Append copies of `models` to the rows of ``theta`` and of the server optimiser's memory: clusters that split."""
    for name in {"theta", *server.MEMORY} & state.keys():
        old = state[name]
        grown = context.allocate(len(old) + len(models), old.shape[1], old.dtype)
        for part in blocks(len(old), old.shape[1] * old.dtype.itemsize):
            grown[part] = old[part]
        for row, model in enumerate(models.tolist(), len(old)):
            grown[row] = old[model]
        state[name] = grown
    if "server_steps" in state:
        state["server_steps"] = np.append(state["server_steps"], state["server_steps"][models])


def check_labels(labels: Ids, clients: int, source: str) -> Ids:
    """Return labels [M] as they are, or say what is wrong with them."""
    if len(labels) != clients:
        raise UserError(f"{source} has {len(labels)} clients, the federation has {clients}")
    if labels.min() < 0:
        raise UserError(f"{source} leaves client {int(np.argmin(labels))} without a cluster; every client needs one")
    return labels.astype(np.int64)
