"""Methods whose labels don't change: FedAvg, local training, the oracle, and the second half of one-shot methods.

FedAvg: McMahan et al. 2017, Algorithm 1. Local: every client trains on alone from the common initial model.
Oracle: FedAvg inside the planted groups; the bound that clustering can reach.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from ..errors import UserError
from .base import Context, Ids, Method, State, check_labels, draw


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
        row = context.common if self.start == "common" else context.initial(0)
        assert row is not None
        theta = context.allocate(models, len(row))
        theta[:] = row
        if self.start == "members":
            assert context.members is not None
            rows = context.members()
            for k in range(models):
                theta[k] = rows[torch.as_tensor(self.labels == k)].double().mean(0)
        return {"theta": theta, "labels": self.labels.copy()}

    def sample(self, state: State, round_: int) -> Ids:
        """See `Method.sample`."""
        if self.sampling == "clients":
            return super().sample(state, round_)
        clusters = [np.flatnonzero(self.labels == k) for k in np.unique(self.labels)]
        return np.sort(np.concatenate([draw(self.context, members, round_) for members in clusters]))


def fedavg(context: Context) -> Method:
    """Train one model for all clients."""
    return Method(context)


def local(context: Context) -> Method:
    """Train a model for each client, never averaged, from a common start."""
    method = Fixed(context, np.arange(context.clients))
    method.models_sent = method.updates_sent = 0
    return method


def oracle(context: Context) -> Method:
    """Run FedAvg inside the planted groups."""
    if context.true_cluster is None:
        raise UserError("method 'oracle' needs planted groups; this partition has none: drop it, or use 'rotated'")
    return Fixed(context, check_labels(context.true_cluster, context.clients, "the partition"))
