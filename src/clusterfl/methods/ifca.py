"""IFCA, the iterative federated clustering algorithm: each round every participant takes the model of least loss.

Paper: Ghosh, Chung, Yin and Ramchandran, NeurIPS 2020, Algorithm 1; with several local steps and models averaged it is
HypCluster (Mansour, Mohri, Ro and Suresh, arXiv 2002.10619). The losses are those on the client's training data. A
cluster without participants keeps its model. Ties go to the first minimum. A participant whose losses are all NaN or
infinite chooses no model: with ``diverged: exclude`` it is left out of the round, else the run stops.

Model averaging is the default; gradient averaging is ``average: gradients`` under `training`; the paper's step (a
cluster's sum divided by the number of all participants) also needs ``divisor: all``.

Departures offered as options. The paper starts from independent random models; fl-sim (LCFL's code) starts from
identical copies. Their losses are equal, so something else has to decide the first assignment: a random draw
(``first_round: random``, CLoVE's rule), the least index (``ties: first``, as fl-sim's argmin settles exact ties), or a
little noise on each copy (``start_noise``). The released code for CIFAR-10 redraws the initial models until each one is
chosen by a least share of the participants (35 % with two models, 10 % with four): ``least_share``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..errors import Unsound, UserError
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, Reveals, State, choose
from .fixed import ratio_of_few

if TYPE_CHECKING:
    from torch import Tensor

DRAWS = 1000  # of the initial models, after which a run with a least share stops with an error


@dataclass
class Choices:
    """What IFCA keeps: each client's last losses on the models, [M, K]; NaN before the first."""

    losses: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SeveralModels(Method):
    """Methods that give each participant one of K models, by its losses on all of them."""

    clusters: Annotated[int, Field(gt=0, description="K, the number of models")]
    start: Annotated[
        Literal["random", "identical"],
        Field(description="independent initial models (paper) or copies of one (fl-sim)"),
    ] = "random"
    first_round: Annotated[
        Literal["losses", "random"],
        Field(description="how the first round assigns: by loss (paper) or at random (CLoVE)"),
    ] = "losses"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from ratio_of_few(known)
        if self.start == "identical" and self.clusters > 1 and self.first_round == "losses" and not self._tell_apart():
            yield Problem(
                "",
                "start: identical makes all losses equal in the first round; set first_round: random, or, of method "
                "ifca, ties: first, which gives everybody the first model, or start_noise above 0",
            )

    def _tell_apart(self) -> bool:
        """Whether something distinguishes identical models in a first round that assigns by losses."""
        return False

    def begin(self, context: Context) -> State:
        """Return K initial models; nobody has a label yet, nor losses."""
        return State(self._models(context, 0), np.full(context.clients, -1, dtype=np.int64), self._own(context))

    def _own(self, context: Context) -> Choices:
        return Choices(np.full((context.clients, self.clusters), np.nan))

    def _models(self, context: Context, draw: int) -> Tensor:
        """Return the initial models [K, P] of draw number `draw`."""
        import torch

        if self.start == "identical":
            first = context.initial(0)
            return torch.stack([self._copy(context, first, draw * self.clusters + k) for k in range(self.clusters)])
        return torch.stack([context.initial(draw * self.clusters + k) for k in range(self.clusters)])

    def _copy(self, context: Context, model: Tensor, number: int) -> Tensor:
        """Return one of the identical models."""
        return model

    def _is_first(self, context: Context, state: State, round_: int) -> bool:
        """Return whether nobody has chosen yet; with privacy, whether it's round 1, which reveals nothing."""
        return round_ == 1 if context.own_draws else bool((state.labels < 0).all())

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Give each participant a model by its losses; with ``first_round: random``, at random in the first round."""
        first = self._is_first(context, state, round_)
        if first and self.first_round == "random":
            spread = drawn if context.own_draws else scattered
            return Assignment(spread(context.seed, clients, self.clusters))
        state.own.losses[clients] = self._first_losses(context, state, clients, losses) if first else losses()
        return Assignment(self._choice(context, state, clients))

    def _first_losses(self, context: Context, state: State, clients: Ids, losses: Losses) -> NDArray[np.float64]:
        """Return the participants' losses on the initial models, [m, K]."""
        return losses()

    def _choice(self, context: Context, state: State, clients: Ids) -> Ids:
        """Return the participants' models by their losses; raise `Unsound` for those without a finite loss."""
        lost = ~np.isfinite(state.own.losses[clients]).any(axis=1)
        if lost.any():
            raise Unsound(clients[lost])
        return np.asarray(choose(state.own.losses[clients]))


@dataclass(frozen=True, kw_only=True)
class IFCA(SeveralModels):
    """Give each participant the model with the least loss on its data."""

    reveals: ClassVar[Reveals] = "choice"
    own: ClassVar[type | None] = Choices
    least_share: Annotated[
        float,
        Field(
            ge=0,
            description="initial models are redrawn until each is chosen by this share of the participants or more",
        ),
    ] = 0.0
    ties: Annotated[
        Literal["first"] | None,
        Field(description="if identical initial models have equal losses: first takes the least index (fl-sim)"),
        "later",
    ] = None
    start_noise: Annotated[
        float | None,
        Field(
            ge=0,
            description="Gaussian noise on each identical initial model, as a share of each tensor's root mean square",
        ),
        "later",
    ] = None

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        if self.start_noise and self.start != "identical":
            yield Problem(
                "start_noise",
                f"{self.start_noise:g} is for copies of one model; set start: identical, or omit it",
            )
        yield from super().check(known)
        if self.least_share * self.clusters > 1 or (self.least_share and self.first_round == "random"):
            yield Problem(
                "least_share",
                f"{self.least_share:g} of the participants for each of {self.clusters} models; it can be at most "
                f"1 / clusters = {1 / self.clusters:g}, and needs first_round: losses",
            )

    def unprotected(self) -> str | None:
        """See `Method.unprotected`."""
        return "which initial model each client chooses, by least_share" if self.least_share else None

    def _tell_apart(self) -> bool:
        return bool(self.start_noise) or self.ties is not None

    def _copy(self, context: Context, model: Tensor, number: int) -> Tensor:
        """Return a copy of a model [P] with its own noise; tensors of zeros, and buffers, don't change."""
        if not self.start_noise:
            return model
        import torch

        values = model.double().cpu().numpy().copy()
        draws = streams.generator(context.seed, "start noise", number)
        for columns in context.tensors.values():
            if columns.start < context.parameter_columns:
                own = values[columns]
                scale = self.start_noise * math.sqrt(math.fsum(np.square(own)) / max(1, len(own)))  # fsum: same bits
                values[columns] = own + scale * draws.standard_normal(len(own))
        return torch.from_numpy(values).to(model)

    def _first_losses(self, context: Context, state: State, clients: Ids, losses: Losses) -> NDArray[np.float64]:
        """Draw initial models until each is chosen by at least `least_share` of the participants."""
        if not self.least_share:
            return losses()
        for attempt in range(DRAWS):
            theta = self._models(context, attempt)
            measured = losses(theta)
            if np.bincount(choose(measured), minlength=self.clusters).min() >= self.least_share * len(clients):
                state.theta = theta
                return measured
        raise UserError(
            f"least_share: in none of {DRAWS} draws of {self.clusters} initial models was each chosen by "
            f"{self.least_share:g} of the participants; lower it"
        )


def drawn(seed: int, clients: Ids, models: int) -> Ids:
    """Return a uniformly drawn model for each client, from its own hash alone: other clients have no influence."""
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
