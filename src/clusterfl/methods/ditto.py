"""Ditto: a common model by FedAvg, and a model of each client's own that is pulled to it.

Paper: Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv
2012.04235, Algorithm 1. A participant trains its own model on its loss + ``lambda / 2 |v - w|^2``, with w the common
model that it was given, and then, for the server, the common one. What is scored is its own.

The authors' code (litian96/ditto) takes as many steps for both, on the same mini-batches. In TsingZ0/PFLlib, whose code
the tables of others are made with, lambda is 0 unless it is given, and the own model has epochs of its own.
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

    sends_kept: ClassVar[bool] = True  # all of the common model is; nothing of a client's own
    apart: ClassVar[bool] = True
    pull: Annotated[
        float,
        Field(
            ge=0,
            description="lambda, of the term lambda/2 |v - w|^2 in the own model's loss (authors: .1, 1 or 2; PFLlib's "
            "default: 0, local training)",
        ),
    ] = 0.1
    own_epochs: Annotated[
        int | None,
        Field(gt=0, description="of the own model; null: as many epochs, or steps, as the common one's (authors)"),
    ] = None
    own_rate: Annotated[
        float | None, Field(gt=0, description="rate of the own model; null: the learning rate (both codes)")
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
