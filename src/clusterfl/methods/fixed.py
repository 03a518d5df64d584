"""Methods whose labels don't change: FedAvg and its kin, local training, the oracle, the rest of one-shot methods.

FedAvg: McMahan et al., AISTATS 2017, Algorithm 1. FedAvgM: Hsu, Qi and Brown, arXiv 1909.06335. FedProx: Li et al.,
MLSys 2020, Algorithm 2. FairAvg: FedAvg with uniform weights, as FedGWC's released code calls it. Local: every client
trains on alone. Oracle: FedAvg inside the planted groups; the bound that clustering can reach.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError

from ..engine.training import Training
from ..errors import UserError
from ..simulation.method import Context, Ids, Method, State, check_labels, draw


class Fixed(Method):
    """FedAvg inside given clusters.

    Parameters
    ----------
    labels : [M]
        The cluster of each client.
    start
        Where each cluster's model begins: ``initial``, the untrained model; ``common``, the warm-up's global model
        (LCFL's released code); ``members``, the mean of its members' warmed-up models.
    sampling
        Whether participants are drawn from all clients or in each cluster.
    """

    def __init__(
        self,
        context: Context,
        labels: Ids,
        start: Literal["initial", "common", "members"] = "initial",
        sampling: Literal["clients", "clusters"] = "clients",
    ):
        super().__init__(context)
        self.labels, self.start, self.sampling = labels, start, sampling

    def begin(self) -> State:
        """See `Method.begin`."""
        context, models = self.context, int(self.labels.max()) + 1
        row = context.initial(0)
        if self.start == "common":
            assert context.warmup is not None
            row = context.warmup["theta"][0]
        theta = context.allocate(models, len(row))
        theta[:] = row
        if self.start == "members":
            assert context.members is not None
            rows = context.members()
            for k in np.unique(self.labels):
                members, total = np.flatnonzero(self.labels == k), torch.zeros(len(row), dtype=torch.float64)
                for i in members.tolist():  # one after another: never all of a cluster's models in memory
                    total += rows[i]
                theta[int(k)] = total / len(members)
        return {"theta": theta, "labels": self.labels.copy()}

    def sample(self, state: State, round_: int) -> Ids:
        """See `Method.sample`."""
        if self.sampling == "clients":
            return super().sample(state, round_)
        clusters = [np.flatnonzero(self.labels == k) for k in np.unique(self.labels)]
        return np.sort(np.concatenate([draw(self.context, members, round_) for members in clusters]))


class Local(Fixed):
    """A model for each client, never averaged."""

    communicates = False
    places = False  # nobody else's model is for a newcomer

    def __init__(self, context: Context, start: str):
        super().__init__(context, np.arange(context.clients))
        self.independent = start == "independent"

    def begin(self) -> State:
        """See `Method.begin`."""
        state = super().begin()
        if self.independent:
            for i in range(self.context.clients):
                state["theta"][i] = self.context.initial(i)
        return state


def _with(context: Context, **settings: Any) -> Method:
    """Return FedAvg with some of its settings replaced."""
    method = Method(context)
    try:
        method.training = Training(**(context.training.model_dump() | settings))
    except ValidationError as error:
        raise UserError(f"{', '.join(settings)}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    return method


def fedavg(context: Context) -> Method:
    """Train one model for all clients."""
    return Method(context)


def fairavg(context: Context) -> Method:
    """Run FedAvg with the same weight for every client, however many samples it has."""
    return _with(context, weights="uniform")


def fedavgm(
    context: Context,
    *,
    server_momentum: Annotated[float, Field(gt=0, lt=1, description="of the server (default: customary)")] = 0.9,
    server_learning_rate: Annotated[float, Field(gt=0, description="factor on the server's step")] = 1.0,
) -> Method:
    """Run FedAvg with momentum on the server."""
    return _with(context, server_momentum=server_momentum, server_learning_rate=server_learning_rate)


def fedprox(
    context: Context,
    *,
    proximal: Annotated[
        float,
        Field(
            gt=0, description="mu of the local term mu/2 |w - w_start|^2; the authors tune it among .001, .01, .1, 1"
        ),
    ] = 0.01,
) -> Method:
    """Run FedAvg with a proximal term in the local loss."""
    return _with(context, proximal=proximal)


def local(
    context: Context,
    *,
    start: Annotated[
        Literal["common", "independent"],
        Field(description="one initial model for all clients (fl-sim) or one drawn for each (CLoVE)"),
    ] = "common",
) -> Method:
    """Train a model for each client, never averaged."""
    return Local(context, start)


def oracle(context: Context) -> Method:
    """Run FedAvg inside the planted groups."""
    if context.true_cluster is None:
        raise UserError("method 'oracle' needs planted groups; this partition has none: drop it, or use 'rotated'")
    return Fixed(context, check_labels(context.true_cluster, context.clients, "the partition"))
