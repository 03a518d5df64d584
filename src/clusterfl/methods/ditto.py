"""Ditto: a common model by FedAvg, and for each client a model of its own that is pulled to the common one.

Paper: Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv
2012.04235, Algorithm 1. A participant trains its own model v on its loss + ``lambda / 2 |v - w|^2``, where w is the
common model it received, and then w itself, which it sends. Clients are scored on their own models.

The authors' code (litian96/ditto) takes as many steps for both, on the same mini-batches. In TsingZ0/PFLlib, which
other papers use for their tables, lambda is 0 by default, and the own model has its own number of epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from ..engine.training import Training
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from .fedper import averages_models


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """Run FedAvg; each client trains, and is scored on, a model of its own that is pulled to the common one."""

    sends_kept: ClassVar[bool] = True  # the whole common model is sent; nothing of a client's own
    apart: ClassVar[bool] = True
    pull: Annotated[
        float,
        Field(
            ge=0,
            description="lambda in the term lambda/2 |v - w|^2 of the own model's loss (authors: .1, 1 or 2; PFLlib's "
            "default: 0, local training)",
        ),
    ] = 0.1
    own_epochs: Annotated[
        int | None,
        Field(gt=0, description="epochs of the own model; null: the common one's epochs, or steps (authors)"),
    ] = None
    own_rate: Annotated[
        float | None, Field(gt=0, description="learning rate of the own model; null: the common one's (both codes)")
    ] = None  # fmt: skip

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: a whole model."""
        return tuple(context.tensors)

    def alone(self, training: Training) -> Training:
        """See `Method.alone`."""
        own = {"proximal": self.pull, "learning_rate": self.own_rate or training.learning_rate}
        many = {} if self.own_epochs is None else {"epochs": self.own_epochs, "steps": None}
        return training.model_copy(update=own | many | {"optimizer_state": "fresh"})

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """See `Method.prepare`: participants train their own models."""
        context.survey.trained(state, clients, round_, self.alone(context.training), towards="given")
