"""IFCA, the iterative federated clustering algorithm: each round every participant takes the model it loses least on.

Paper: Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1; with several local steps and models averaged it is
HypCluster (Mansour, Mohri, Ro and Suresh, arXiv 2002.10619). The losses are those on the client's training data. A
cluster without participants keeps its model. Ties go to the first minimum. A participant whose losses are all NaN or
infinite chooses nothing: with ``diverged: exclude`` it is left out of the round, else the run stops.

Model averaging is the default; gradient averaging is ``average: gradients`` under `training`, to which the paper's step
(a cluster's sum divided by all participants) adds ``divisor: all``.

Departures offered as options. The paper starts from independent random models; fl-sim (LCFL's code) starts from
identical copies. Their losses are equal, so something else has to decide the first assignment: a random draw
(``first_round: random``, CLoVE's rule), the least index (``ties: first``, as fl-sim's argmin settles exact ties), or a
little noise on each copy (``start_noise``). The released code for CIFAR-10 draws the initial models again until each
attracts a share of the participants (35 % of two models, 10 % of four): ``least_share``.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..errors import Unsound, UserError
from ..simulation.method import Context, Ids, Losses, Method, State, choose
from .start import start_problem

DRAWS = 1000  # of the initial models, before a least share is given up


class IFCA(Method):
    """See the module."""

    reveals = "choice"
    assigns = True

    def __init__(
        self,
        context: Context,
        clusters: int,
        start: str,
        first_round: str,
        least_share: float = 0.0,
        ties: str | None = None,
        start_noise: float | None = None,
    ):
        super().__init__(context)
        if clusters > context.clients:
            raise UserError(
                f"clusters: {clusters} models for {context.clients} clients; at most {context.clients} make sense"
            )
        problem = start_problem(clusters, start, first_round, ties, start_noise)
        if problem:
            raise UserError(problem)
        if least_share * clusters > 1 or (least_share and first_round == "random"):
            raise UserError(
                f"least_share: {least_share:g} of the participants for each of {clusters} models; it can be at most "
                f"1 / clusters = {1 / clusters:g}, and needs first_round: losses"
            )
        self.clusters, self.start, self.first_round, self.least_share = clusters, start, first_round, least_share
        self.start_noise, self.round = start_noise or 0.0, 0
        if least_share:
            self.reveals = "which initial models attract whom, by least_share"

    def begin(self) -> State:
        """Return K initial models; nobody has a label yet, nor losses."""
        clients = self.context.clients
        return {
            "theta": self._models(0),
            "labels": np.full(clients, -1, dtype=np.int64),
            "losses": np.full((clients, self.clusters), np.nan),  # each client's last ones
        }

    def _models(self, draw: int) -> torch.Tensor:
        if self.start == "identical":
            first = self.context.initial(0)
            return torch.stack([self._shaken(first, draw * self.clusters + k) for k in range(self.clusters)])
        return torch.stack([self.context.initial(draw * self.clusters + k) for k in range(self.clusters)])

    def _shaken(self, model: torch.Tensor, copy: int) -> torch.Tensor:
        """Return a copy of a model [P] with noise of its own; a tensor of zeros, and buffers, stay as they are."""
        if not self.start_noise:
            return model
        values = model.double().cpu().numpy().copy()
        draws = streams.generator(self.context.seed, "start noise", copy)
        for columns in self.context.tensors.values():
            if columns.start < self.context.parameter_columns:
                own = values[columns]
                scale = self.start_noise * math.sqrt(math.fsum(np.square(own)) / max(1, len(own)))  # fsum: same bits
                values[columns] = own + scale * draws.standard_normal(len(own))
        return torch.from_numpy(values).to(model)

    def sample(self, state: State, round_: int) -> Ids:
        """See `Method.sample`; the round is kept."""
        self.round = round_
        return super().sample(state, round_)

    def _is_first(self, state: State) -> bool:
        """Return whether nobody has chosen yet; with privacy, whether it's round 1, which tells of nobody."""
        return self.round == 1 if self.own_draws else bool((state["labels"] < 0).all())

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """Give each participant a model by its losses; in the first round at random if asked."""
        first = self._is_first(state)
        if first and self.first_round == "random":
            spread = drawn if self.own_draws else scattered
            state["labels"][clients] = spread(self.context.seed, clients, self.clusters)
            return state
        if first and self.least_share:
            self._draw_anew(state, clients, losses)
        else:
            state["losses"][clients] = losses()
        state["labels"][clients] = self._labels(state, clients)
        return state

    def _labels(self, state: State, clients: Ids) -> Ids:
        """Return the participants' models from their losses; who has no finite one is reported, not given model 0."""
        lost = ~np.isfinite(state["losses"][clients]).any(axis=1)
        if lost.any():
            raise Unsound(clients[lost])
        return np.asarray(choose(state["losses"][clients]))

    def _draw_anew(self, state: State, clients: Ids, losses: Losses) -> None:
        """Draw initial models until each is chosen by the least share of the participants."""
        for attempt in range(DRAWS):
            theta = self._models(attempt)
            measured = losses(theta)
            if np.bincount(choose(measured), minlength=self.clusters).min() >= self.least_share * len(clients):
                state["theta"], state["losses"][clients] = theta, measured
                return
        raise UserError(
            f"least_share: in {DRAWS} draws of {self.clusters} initial models none was such that each had "
            f"{self.least_share:g} of the participants; lower it"
        )


def drawn(seed: int, clients: Ids, models: int) -> Ids:
    """Return a uniformly drawn model for each client, from the client's own hash alone: others change nothing."""
    return (streams.hashed(seed, "first round", clients) % np.uint64(models)).astype(np.int64)


def scattered(seed: int, clients: Ids, models: int) -> Ids:
    """Return the models of `drawn`; then a client drawn at random moves into each empty model.

    CLoVE's first round (arXiv 2506.22427, released code). With fewer clients than models some stay empty.
    """
    labels = drawn(seed, clients, models)
    order = np.argsort(streams.hashed(seed, "first round, moved", clients), kind="stable")
    for k in range(models):
        counts: NDArray[np.int64] = np.bincount(labels, minlength=models)
        donors = order[counts[labels[order]] > 1]
        if counts[k] == 0 and len(donors):
            labels[donors[0]] = k
    return labels


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
    least_share: Annotated[
        float,
        Field(
            ge=0, description="initial models are drawn again until each is chosen by this share of the participants"
        ),
    ] = 0.0,
    ties: Annotated[
        Literal["first"] | None,
        Field(description="equal losses of identical initial models: the model with the least index (fl-sim)"),
        "later",
    ] = None,
    start_noise: Annotated[
        float | None,
        Field(
            ge=0,
            description="Gaussian noise on each identical initial model, as a share of each tensor's root mean square",
        ),
        "later",
    ] = None,
) -> Method:
    """Return IFCA."""
    return IFCA(context, clusters, start, first_round, least_share, ties, start_noise)
