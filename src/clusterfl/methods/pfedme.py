"""pFedMe: each client's model is near a local one, which is near the common one; the client sends the local one.

Paper: Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848,
Algorithm 1. On each mini-batch a participant takes K steps of its own model theta on the loss plus
``lambda / 2 |theta - w_i|^2``, then its local model one, ``w_i <- w_i - eta lambda (w_i - theta)`` (`engine.envelope`).
The server moves by beta times the mean of what w_i moved. What is scored is theta.

In the authors' code (CharlieDinh/pFedMe), and in TsingZ0/PFLlib, whose code the tables of others are made with, theta
begins a round at the common model. PFLlib's beta is 0 unless it is given: then its common model never moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..engine.training import Training
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from .fedper import averages_models
from .fixed import changed

if TYPE_CHECKING:
    from ..engine.envelope import Envelope
    from ..engine.update import Update


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Average local models, each of which follows its client's own; that is trained near it, and scored."""

    sends_kept: ClassVar[bool] = True  # all of the common model is; nothing of a client's own
    apart: ClassVar[bool] = True
    pull: Annotated[
        float, Field(gt=0, description="lambda, of the term lambda/2 |theta - w|^2 (PFLlib: 1; authors: 15)")
    ] = 1.0  # fmt: skip
    own_steps: Annotated[int, Field(gt=0, description="K, of the own model on each mini-batch (both codes)")] = 5
    rate: Annotated[
        float | None,
        Field(
            gt=0,
            description="eta, of the local model, which goes eta lambda of the way to the own one; null: the learning "
            "rate, which is the own one's",
        ),
    ] = None
    beta: Annotated[
        float,
        Field(ge=0, description="factor on the server's step (authors: 1 or 2; PFLlib's default 0: no step at all)"),
    ] = 1.0

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        training, rate = known.training, self.rate or known.training.learning_rate
        if training.lookahead:
            yield Problem("training.lookahead", f"{training.lookahead:g}, but steps here aren't in pairs; allowed: 0")
        if rate * self.pull > 1:
            sentence = f"rate x pull is {rate:g} x {self.pull:g} = {rate * self.pull:g}: the local model would go "
            yield Problem("rate", f"{sentence}beyond the own one; allowed: up to {1 / self.pull:g} with this pull")

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, server_learning_rate=self.beta) if self.beta else training

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: a whole model."""
        return tuple(context.tensors)

    def beside(self, context: Context, state: State) -> Envelope:
        """See `Method.beside`: steps with a centre."""
        from ..engine.envelope import Envelope

        return Envelope(self.pull, self.own_steps, self.rate or context.training.learning_rate)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`: with beta 0 the common model stays."""
        if self.beta:
            super().merge(context, state, update, target, weights)
