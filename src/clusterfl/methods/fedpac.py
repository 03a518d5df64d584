"""FedPAC: a common base whose features are pulled to common class centres; each client's head is a mixture of heads.

Paper: Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
2023, arXiv 2306.11867, Algorithm 1. A client trains first only its head, then only the base, and sends both. Client i
receives the mixture of heads that minimises ``sum_j a_j^2 V_j + |sum_j a_j (h_i - h_j)|^2``, where h_j are client j's
mean features by class times the classes' shares, and V_j is the variance of its features over its number of samples,
both under the base that it received.

In TsingZ0/PFLlib, which other papers use for their tables, weights are in the order of the selected clients, but heads
in that of a second random draw: wrong heads are mixed, also with full participation (``mismatched``). Moreover, a mixed
head overwrites the client's before the next one is mixed, so later mixtures contain earlier mixtures instead of heads
(``overwritten``).
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
    """Run FedAvg on all layers but the last, with features pulled to class centres; mix last layers for each client."""

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    asks: ClassVar[str] = "each one's last layer, and sums of features by class"
    own: ClassVar[type | None] = Prototypes
    pull: Annotated[
        float, Field(ge=0, description="lambda, factor of the mean squared distance to the class centre in the loss")
    ] = 1.0  # fmt: skip
    head_epochs: Annotated[int, Field(gt=0, description="epochs of training the head alone, before the base")] = 1
    head_rate: Annotated[
        float | None, Field(gt=0, description="learning rate of the head (authors: 0.1); null: the base's (PFLlib)")
    ] = None  # fmt: skip
    means: Annotated[
        Literal["samples", "uniform"],
        Field(description="weight of a client in a class centre: its samples of the class (authors), or 1 (PFLlib)"),
    ] = "samples"
    rescaled: Annotated[
        bool, Field(description="when the smallest shares are dropped, the rest is rescaled to 1 (authors; not PFLlib)")
    ] = True  # fmt: skip
    mismatched: Annotated[
        bool, Field(description="heads are in another random order than their shares (PFLlib): wrong ones are mixed")
    ] = False  # fmt: skip
    overwritten: Annotated[
        bool, Field(description="a mixed head replaces the client's before the next one is mixed (PFLlib)")
    ] = False  # fmt: skip

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from lacks_features(known)

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: the head."""
        if context.head is None or isinstance(context.head, str):  # in an estimate, which builds no network
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
        """See `Method.alone`: the head's training."""
        rate = self.head_rate or training.learning_rate
        return training.model_copy(update={"epochs": self.head_epochs, "steps": None, "learning_rate": rate})

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """See `Method.prepare`: clients train their heads alone."""
        base = [name for name in context.tensors if name not in set(self.keeps(context))]
        context.survey.trained(state, clients, round_, self.alone(context.training), base)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; then compute the class centres and mix the heads."""
        sound = np.flatnonzero(~update.dropped)
        moments = context.survey.moments(state, update.clients[sound]) if len(sound) else None
        super().merge(context, state, update, target, weights)
        if moments is None or update.moments is None:
            return
        state.own.centres = update.moments.centres(~update.dropped, self.means == "samples")
        self._mix(context, state, update.round, update.clients[sound], shares(moments))

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: FedProto's prototypes, sums of features under the received base, a head each way."""
        return participations * ((5 - 1 / max(1, rounds)) * of_prototypes(context) + 1)

    def _mix(self, context: Context, state: State, round_: int, clients: Ids, share: Array) -> None:
        """Give each client the mixture of the clients' heads by its row of `share` [m, m]."""
        import torch

        assert state.personal is not None
        if self.rescaled:
            share = share / share.sum(axis=1, keepdims=True)
        if self.mismatched:
            clients = streams.generator(context.seed, "mismatched heads", round_).permutation(clients)
        heads = state.personal.of(clients)
        state.personal.rows[torch.as_tensor(clients)] = mixtures(heads, share, self.overwritten)  # type: ignore[index]
        context.survey.counted(down=heads.numel(), up=heads.numel())
