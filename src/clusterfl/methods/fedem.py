"""FedEM: each client's data are a mixture of K distributions, each with a model; it predicts by a mixture of these.

Paper: Marfoq, Neglia, Bellet, Kameni and Vidal, Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS
2021, arXiv 2108.10252, Algorithm 1. A participant receives all models and computes, for each sample, the responsibility
of each model, ``q_k ~ pi_k exp(-loss of model k)`` (E step); its shares pi become the means of q (M step); it trains
every model on losses weighted by q. The server averages each model over all participants. Shares never leave the
client, which predicts ``sum_k pi_k softmax(model k)``.

In the authors' code (omarfoq/FedEM) optimisers persist for the whole run, with momentum and a penalty; and if only some
clients take part, the mean is over all clients, with the old models for those that didn't.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import Unsound
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, SampleLosses, State

Array = NDArray[np.float64]
STEPS = 50  # E and M steps for the shares of a client that never trained
SCORED = ("aggregated", "newcomer")


def responsibilities(shares: Array, losses: SampleLosses, odds: Array | float = 0.0) -> Array:
    """Return the responsibility of each of K models for each of N samples, [N, K] with rows that add up to 1.

    ``q_k ~ shares_k exp(odds_k - loss_k)``. A loss of NaN counts as infinite; a row without a finite one is NaN.

    Parameters
    ----------
    shares : [m, K]
        The models' shares in each client's data.
    losses
        Of N samples of m clients.
    odds : [N, K]
        Terms that are added to the logarithms.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        likely = np.log(shares)[losses.owner] - np.where(np.isnan(losses.values), np.inf, losses.values) + odds
        found = np.exp(likely - likely.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class FedEM(Method):
    """Train K models, each on every participant's samples, weighted by its responsibilities; predict by mixtures."""

    clusters: Annotated[int, Field(gt=0, description="K, the number of models (paper: 3)")]

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: a participant's updates go to all models, so there is nothing to rebalance."""
        return False

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        training = known.training
        if training.optimizer_state == "kept":
            sentence = "'kept' is one optimiser for each client, and participants train several models; allowed: fresh"
            yield Problem("training.optimizer_state", sentence)
        if training.divisor != "participants":
            sentence = f"'{training.divisor}' counts one update of each client, and each sends one for every model"
            yield Problem("training.divisor", f"{sentence}; allowed: participants")
        if others := [name for name in training.evaluations if name not in SCORED]:
            sentence = f"'{others[0]}' scores one model of each client, and here predictions are of all models together"
            yield Problem("training.evaluations", f"{sentence}; allowed: {', '.join(SCORED)}")

    def unprotected(self) -> str:
        """See `Method.unprotected`: one clip doesn't bound how much one client changes all sums together."""
        return "an update of every model, on shares of its samples"

    def begin(self, context: Context) -> State:
        """See `Method.begin`: independent models, as equal ones would stay equal; equal shares."""
        import torch

        models = torch.stack([context.initial(k) for k in range(self.clusters)])
        shares = np.full((context.clients, self.clusters), 1 / self.clusters)
        return State(models, np.full(context.clients, -1, dtype=np.int64), mixture=shares)

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: an E and an M step; a client's label is its largest share's model, the first on ties."""
        assert state.mixture is not None
        measured = losses.samples()
        found = responsibilities(state.mixture[clients], measured, self.odds(state, measured))
        lost = np.unique(measured.owner[np.isnan(found).any(axis=1)])
        if len(lost):
            raise Unsound(clients[lost])
        state.mixture[clients] = measured.sums(found) / measured.sizes[:, None]
        self.sent(context, state, clients, measured, found)
        return Assignment(state.mixture[clients].argmax(axis=1), shares=found)

    def odds(self, state: State, losses: SampleLosses) -> Array | float:
        """Return terms [N, K] added to the log-likelihoods, besides losses and shares."""
        return 0.0

    def sent(self, context: Context, state: State, clients: Ids, losses: SampleLosses, found: Array) -> None:
        """Process, and count, what participants send of their responsibilities [N, K] besides updates."""

    def blend(self, state: State, losses: SampleLosses) -> Array:
        """See `Method.blend`: E and M steps that start from equal shares, with the models fixed."""
        shares = np.full((len(losses.sizes), self.clusters), 1 / self.clusters)
        for _ in range(STEPS):
            found = responsibilities(shares, losses, self.odds(state, losses))
            shares = losses.sums(found) / losses.sizes[:, None]
        return shares
