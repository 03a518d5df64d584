"""IFCA, the iterative federated clustering algorithm: each round every participant takes the model it loses least on.

Paper: Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1, model averaging. The losses are those on the
client's training data. A cluster without participants keeps its model. Ties go to the first minimum.

Departures offered as options. The paper starts from independent random models; fl-sim (LCFL's code) starts from
identical copies, where rounding decides the first assignment: here that start needs `first_round: random`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..errors import UserError
from .base import Context, Ids, Losses, Method, State


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


class IFCA(Method):
    """See the module."""

    assigns_by_loss = True

    def __init__(self, context: Context, clusters: int, start: str, first_round: str):
        super().__init__(context)
        self.models_sent = self.clusters = clusters
        self.start, self.first_round = start, first_round

    def begin(self) -> State:
        """Return K initial models; nobody has a label yet."""
        count = self.clusters
        rows = [self.context.initial(0 if self.start == "identical" else k) for k in range(count)]
        return {
            "theta": torch.stack(rows),
            "labels": np.full(self.context.clients, -1, dtype=np.int64),
        }

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """Give each participant the model it loses least on; in the first round at random if asked."""
        labels: NDArray[np.int64]
        if self.first_round == "random" and (state["labels"] < 0).all():
            # Uniform, without leaving a model empty where there are enough participants: shuffle, deal out in turn.
            order = np.argsort(streams.hashed(self.context.seed, "first round", clients), kind="stable")
            labels = np.empty(len(clients), dtype=np.int64)
            labels[order] = np.arange(len(clients)) % self.clusters
        else:
            labels = choose(losses())
        state["labels"][clients] = labels
        return state


def ifca(
    context: Context,
    *,
    clusters: Annotated[int, Field(gt=0, description="K, the number of models")],
    start: Annotated[
        Literal["random", "identical"],
        Field(description="independent initial models (paper) or copies of one (fl-sim)"),
    ] = "random",
    first_round: Annotated[
        Literal["losses", "random"],
        Field(description="how the first round assigns: by loss (paper) or at random (CLoVE)"),
    ] = "losses",
) -> Method:
    """Return IFCA with model averaging."""
    if clusters > context.clients:
        raise UserError(
            f"clusters: {clusters} models for {context.clients} clients; at most {context.clients} make sense"
        )
    if start == "identical" and first_round == "losses":
        raise UserError("start: identical makes all losses equal in the first round; use it with first_round: random")
    return IFCA(context, clusters, start, first_round)
