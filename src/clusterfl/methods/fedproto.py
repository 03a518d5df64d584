"""FedProto: every client has its own model; clients share only prototypes, the mean features of each class.

Paper: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, FedProto: Federated Prototype Learning across Heterogeneous Clients,
AAAI 2022, arXiv 2105.00243, Algorithm 1. A client's loss pulls its features towards the common prototypes; it predicts
the class of the nearest prototype.

In TsingZ0/PFLlib, which other papers use for their tables, a client's prototypes are means over its round's
mini-batches, while the model is changing (``moving``), and all clients with a class have equal weight (``uniform``).
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
    """Yield why there can be no features by class, where that is known."""
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
    """Return how many numbers the prototypes of all classes consist of; 0 if the network isn't known."""
    return 0 if context.head is None or isinstance(context.head, str) else context.classes * (1 + context.head.features)


@dataclass(frozen=True, kw_only=True)
class FedProto(Local):
    """Train a model for each client, its features pulled towards all clients' mean features of each class."""

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    own: ClassVar[type | None] = Prototypes
    pull: Annotated[
        float, Field(ge=0, description="lambda, factor of the mean squared distance to the prototype in the loss")
    ] = 1.0  # fmt: skip
    moving: Annotated[
        bool,
        Field(
            description="prototypes are means over all mini-batches of a round while the model changes (PFLlib), or "
            "over all samples with the trained model"
        ),
    ] = False
    means: Annotated[
        Literal["samples", "uniform"],
        Field(description="weight of a client in a prototype: its samples of the class (paper), or 1 (PFLlib)"),
    ] = "samples"
    prediction: Annotated[
        Literal["nearest", "head"], Field(description="the class of the nearest prototype, or by the last layer")
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
        """See `Method.besides`: at most all classes' prototypes, up, and from the second round on also down."""
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
