"""FedPAC: a base for all, its features pulled to common centres of classes; each client's head is a mixture of heads.

Paper: Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
2023, arXiv 2306.11867, Algorithm 1. A client trains its head alone, then the base alone, and sends both. Of the heads
client i is given the mixture that minimises ``sum_j a_j^2 V_j + |sum_j a_j (h_i - h_j)|^2``, where h_j are its classes'
mean features times their shares and V_j is the variance of its features over its number of samples, both by the base
that it was given.

In TsingZ0/PFLlib, whose code the tables of others are made with, weights are in the order of the selected clients, but
heads in that of a second random draw: wrong heads are mixed, also with full participation (``mismatched``). And a mixed
head is written into the client's model before the next is mixed, from the models: of the heads that come before it in
that order it gets their mixtures (``overwritten``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..engine.training import Training
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from .fedper import layers_of
from .fedproto import Prototypes, lacks_features, of_prototypes
from .heads import Array, mixtures, shares

if TYPE_CHECKING:
    from ..engine.features import Features
    from ..engine.update import Update


@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Run FedAvg on all layers but the last with features pulled to common centres; mix last layers for each client."""

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    asks: ClassVar[str] = "each one's last layer, and sums of features by class"
    own: ClassVar[type | None] = Prototypes
    pull: Annotated[
        float, Field(ge=0, description="lambda, of the mean squared distance to the class's centre in the base's loss")
    ] = 1.0  # fmt: skip
    head_epochs: Annotated[int, Field(gt=0, description="of training the head alone, before the base")] = 1
    head_rate: Annotated[
        float | None, Field(gt=0, description="rate of the head (authors: 0.1); null: that of the base (PFLlib)")
    ] = None  # fmt: skip
    means: Annotated[
        Literal["samples", "uniform"],
        Field(description="clients that have a class count by its samples (authors), or all the same (PFLlib)"),
    ] = "samples"
    rescaled: Annotated[
        bool, Field(description="shares add up to 1 when the smallest are left out (authors), or to less (PFLlib)")
    ] = True  # fmt: skip
    mismatched: Annotated[
        bool, Field(description="heads are in another random order than their shares (PFLlib): wrong ones are mixed")
    ] = False  # fmt: skip
    overwritten: Annotated[
        bool, Field(description="a head is mixed from heads of which those before it are mixed already (PFLlib)")
    ] = False  # fmt: skip

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from lacks_features(known)

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: the head."""
        if context.head is None or isinstance(context.head, str):  # in an estimate, which makes no network
            return list(layers_of(context).values())[-1]
        return context.head.tensors

    def fixed(self, context: Context) -> Collection[str]:
        """See `Method.fixed`: the head, which was trained before."""
        return self.keeps(context)

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        state.own = Prototypes()
        return state

    def features(self, context: Context, state: State) -> Features | None:
        """See `Method.features`."""
        from ..engine.features import Features, centred

        return Features(centred(state.own.centres), self.pull, "trained")

    def alone(self, training: Training) -> Training:
        """See `Method.alone`: the head's."""
        rate = self.head_rate or training.learning_rate
        return training.model_copy(update={"epochs": self.head_epochs, "steps": None, "learning_rate": rate})

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """See `Method.prepare`: clients train their heads alone."""
        base = [name for name in context.tensors if name not in set(self.keeps(context))]
        context.survey.trained(state, clients, round_, self.alone(context.training), base)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`: and centres and heads."""
        sound = np.flatnonzero(~update.dropped)
        moments = context.survey.moments(state, update.clients[sound]) if len(sound) else None
        super().merge(context, state, update, target, weights)
        if moments is None or update.moments is None:
            return
        state.own.centres = update.moments.centres(~update.dropped, self.means == "samples")
        self._mix(context, state, update.round, update.clients[sound], shares(moments))

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: as FedProto's prototypes, those of the given base, and a head up and one down."""
        return participations * ((5 - 1 / max(1, rounds)) * of_prototypes(context) + 1)

    def _mix(self, context: Context, state: State, round_: int, clients: Ids, share: Array) -> None:
        """Give each client the mixture of the clients' heads with its row of `share` [m, m]."""
        import torch

        assert state.personal is not None
        if self.rescaled:
            share = share / share.sum(axis=1, keepdims=True)
        if self.mismatched:
            clients = streams.generator(context.seed, "mismatched heads", round_).permutation(clients)
        heads = state.personal.of(clients)
        state.personal.rows[torch.as_tensor(clients)] = mixtures(heads, share, self.overwritten)  # type: ignore[index]
        context.survey.counted(down=heads.numel(), up=heads.numel())
