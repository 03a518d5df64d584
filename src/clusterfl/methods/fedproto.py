"""FedProto: every client has a model of its own; what is shared are prototypes, the mean features of each class.

Paper: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, FedProto: Federated Prototype Learning across Heterogeneous Clients,
AAAI 2022, arXiv 2105.00243, Algorithm 1. A client's loss pulls its features towards the common prototypes, and what it
predicts is the class of the nearest one.

In TsingZ0/PFLlib, whose code the tables of others are made with, a client's prototypes are means over the mini-batches
of its round, of features that still move (``moving``), and each client that has a class counts the same (``uniform``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..simulation.method import Context, Ids, Known, Problem, State
from .fixed import Local

if TYPE_CHECKING:
    from ..engine.features import Features
    from ..engine.update import Update


@dataclass
class Prototypes:
    """What the server has found."""

    centres: NDArray[np.float32] | None = None  # [classes, d]; NaN: no client had that class


def lacks_features(known: Known) -> Iterator[Problem]:
    """Yield why there are no features of classes, where that is known."""
    if known.training.average == "gradients":
        sentence = "'gradients' takes one gradient of each client, and features are those of trained models"
        yield Problem("training.average", f"{sentence}; allowed: models")
    if known.headless is not None:
        yield Problem(
            "",
            f"features are what goes into a network's last layer, by classes, and this network has none: "
            f"{known.headless}; use data with classes and a network with layers before a last linear one, such as mlp "
            "or clove-cnn, or methods without features, such as local or fedavg",
        )


def of_prototypes(context: Context) -> int:
    """Return how many numbers the prototypes of all classes are, as far as the network is known."""
    return 0 if context.head is None or isinstance(context.head, str) else context.classes * (1 + context.head.features)


@dataclass(frozen=True, kw_only=True)
class FedProto(Local):
    """Train a model for each client, its features pulled towards the mean features that all have of a class."""

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    own: ClassVar[type | None] = Prototypes
    pull: Annotated[
        float, Field(ge=0, description="lambda, of the mean squared distance to the class's prototype in the loss")
    ] = 1.0  # fmt: skip
    moving: Annotated[
        bool,
        Field(
            description="prototypes are of features while the model moves, over all mini-batches of a round (PFLlib), "
            "or of all samples by the trained model"
        ),
    ] = False
    means: Annotated[
        Literal["samples", "uniform"],
        Field(description="clients that have a class count by its samples (paper), or all the same (PFLlib)"),
    ] = "samples"
    prediction: Annotated[
        Literal["nearest", "head"], Field(description="of the nearest prototype, or by the last layer")
    ] = "nearest"  # fmt: skip

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from lacks_features(known)

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        state.own = Prototypes()
        return state

    def features(self, context: Context, state: State) -> Features | None:
        """See `Method.features`."""
        from ..engine.features import Features, centred

        gather: Literal["moving", "trained"] = "moving" if self.moving else "trained"
        return Features(centred(state.own.centres), self.pull, gather, self.prediction == "nearest")

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: up of every class at most, and down from the second round on."""
        return participations * (2 - 1 / max(1, rounds)) * of_prototypes(context)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`."""
        super().merge(context, state, update, target, weights)
        assert update.moments is not None or not len(update.clients)
        if update.moments is not None and len(target):
            state.own.centres = update.moments.centres(~update.dropped, self.means == "samples")
            state.nearest = state.own.centres if self.prediction == "nearest" else None
