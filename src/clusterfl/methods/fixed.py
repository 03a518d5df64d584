"""Methods with fixed labels: FedAvg and its variants, local training, the oracle, and the rounds of one-shot methods.

FedAvg: McMahan et al., AISTATS 2017, Algorithm 1. FedAvgM: Hsu, Qi and Brown, arXiv 1909.06335. FedProx: Li et al.,
MLSys 2020, Algorithm 2. FairAvg: FedAvg with uniform weights, as FedGWC's released code calls it. Local: every client
trains alone. Oracle: FedAvg inside the planted groups; the bound that clustering can reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationError

from ..engine.training import Training
from ..errors import UserError
from ..simulation import returned
from ..simulation.method import Context, Ids, Known, Method, Problem, State, check_labels, draw
from ..simulation.model_rows import append_copies

Start = Literal["initial", "common", "members"]


def begin_with(context: Context, labels: Ids, start: Start = "initial") -> State:
    """Return the state before FedAvg inside given clusters.

    Parameters
    ----------
    labels : [M]
        The cluster of each client.
    start
        What each cluster's model begins as: ``initial``, the untrained model; ``common``, the warm-up's global model
        (LCFL's released code); ``members``, the mean of its members' warmed-up models.
    """
    import torch

    # -1, for noise, is left to the later check of the state, which knows the hook.
    returned.check_labels(labels, np.iinfo(np.int64).max, np.arange(context.clients), "what begin_with gets")
    models, row = int(labels.max()) + 1, context.initial(0)
    if start == "common":
        assert context.warmup is not None
        row = context.warmup.theta[0]
    theta = context.allocate(models, len(row))
    theta[:] = row
    if start == "members":
        assert context.members is not None
        rows = context.members()
        for k in np.unique(labels):
            members, total = np.flatnonzero(labels == k), torch.zeros(len(row), dtype=torch.float64)
            for i in members.tolist():  # one by one: never all of a cluster's models in memory
                total += rows[i]
            theta[int(k)] = total / len(members)
    return State(theta, labels.copy())


def draw_in_clusters(context: Context, labels: Ids, round_: int) -> Ids:
    """Return who takes part, ascending: a share of each cluster of ``labels [M]``, at least one."""
    clusters = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    return np.sort(np.concatenate([draw(context, members, round_) for members in clusters]))


def threshold_or_clusters(method: Method, threshold: str) -> Iterator[Problem]:
    """Yield a problem unless exactly one of a method's `threshold`, described in words, and `clusters` is given."""
    given = [key for key in ("threshold", "clusters") if getattr(method, key) is not None]
    if len(given) != 1:
        found = "neither threshold nor clusters" if not given else "both threshold and clusters"
        yield Problem("threshold", f"found {found}; give one: {threshold}, or their number")


def ratio_of_few(known: Known) -> Iterator[Problem]:
    """Yield a problem where a divisor counts clusters' clients, and who hasn't taken part isn't in one yet."""
    training = known.training
    if training.divisor == "ratio" and training.participation < 1:
        sentence = (
            "'ratio' counts a cluster's clients, and here who hasn't taken part yet is in none, so that the first "
            "round's steps would be 1 / participation times as long"
        )
        yield Problem("training.divisor", f"{sentence}; allowed: participants, or participation: 1")


def changed(training: Training, **settings: Any) -> Training:
    """Return settings of training with some of them replaced."""
    try:
        return Training(**(training.model_dump() | settings))
    except ValidationError as error:
        raise UserError(f"{', '.join(settings)}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Train one model for all clients."""


@dataclass(frozen=True, kw_only=True)
class FairAvg(Method):
    """Run FedAvg with the same weight for every client, regardless of its number of samples."""

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, weights="uniform")


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Method):
    """Run FedAvg with momentum on the server."""

    server_momentum: Annotated[
        float, Field(gt=0, lt=1, description="momentum of the server (default: a customary value)")
    ] = 0.9  # fmt: skip
    server_learning_rate: Annotated[float, Field(gt=0, description="factor on the server's step")] = 1.0

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        own = {"server_momentum": self.server_momentum, "server_learning_rate": self.server_learning_rate}
        return changed(training, **own)


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """Run FedAvg with a proximal term in the local loss."""

    proximal: Annotated[
        float,
        Field(
            gt=0, description="mu in the local term mu/2 |w - w_start|^2; the authors tune it among .001, .01, .1, 1"
        ),
    ] = 0.01

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, proximal=self.proximal)


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Train a model for each client, never averaged."""

    communicates: ClassVar[bool] = False  # so there is no model for a newcomer
    start: Annotated[
        Literal["common", "independent"],
        Field(description="one initial model for all clients (fl-sim) or one drawn for each (CLoVE)"),
    ] = "common"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        divisor, share = known.training.divisor, known.training.participation
        if divisor == "all" or (divisor != "participants" and share < 1):
            sentence = f"'{divisor}' would make a client's steps on its own model longer or shorter than it took them"
            yield Problem("training.divisor", f"{sentence}; allowed: participants")

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = begin_with(context, np.arange(context.clients))
        if self.start == "independent":
            for i in range(context.clients):
                state.theta[i] = context.initial(i)
        return state


@dataclass(frozen=True, kw_only=True)
class Oracle(Method):
    """Run FedAvg inside the planted groups."""

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        if known.context is not None and known.context.true_cluster is None:
            sentence = "method 'oracle' needs planted groups; this partition has none: drop it, or use 'rotated'"
            yield Problem("", sentence)

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        return begin_with(context, _planted(context))

    def drifted(self, context: Context, state: State) -> None:
        """See `Method.drifted`: a new group continues from the model that most of its clients had."""
        groups = _planted(context)
        for group in range(len(state.theta), int(groups.max()) + 1):
            had = state.labels[groups == group]
            parent = np.bincount(had).argmax() if len(had) else 0
            append_copies(context, state, np.array([parent]))
        state.labels = groups


def _planted(context: Context) -> Ids:
    assert context.true_cluster is not None
    return check_labels(context.true_cluster, context.clients, "the partition")
