"""pFedMe: each client trains its own model near a local copy of the common one, and sends the local copy.

Paper: Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv 2006.08848,
Algorithm 1. On each mini-batch a participant takes K steps of its own model theta on the loss plus
``lambda / 2 |theta - w_i|^2``, then one step of its local model, ``w_i <- w_i - eta lambda (w_i - theta)``
(`engine.envelope`). The server adds beta times the mean change of the w_i to the common model. Theta is scored.

In the authors' code (CharlieDinh/pFedMe), and in TsingZ0/PFLlib, which other papers use for their tables, theta begins
a round at the common model. PFLlib's beta is 0 by default: then its common model never changes. Its own models are the
same tensors as those that the next round's common model is written to, before anything is scored (``overwritten``).
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
from ..storage.blocks import blocks
from .fedper import averages_models
from .fixed import changed

if TYPE_CHECKING:
    from ..engine.envelope import Envelope
    from ..engine.update import Update


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Average local models; each client is scored on its own model, which is trained near the local one."""

    sends_kept: ClassVar[bool] = True  # the whole common model is sent; nothing of a client's own
    apart: ClassVar[bool] = True
    pull: Annotated[
        float, Field(gt=0, description="lambda in the term lambda/2 |theta - w|^2 (PFLlib: 1; authors: 15 or 20)")
    ] = 1.0  # fmt: skip
    own_steps: Annotated[int, Field(gt=0, description="K, own model's steps on each mini-batch (both codes)")] = 5
    rate: Annotated[
        float | None,
        Field(
            gt=0,
            description="eta, rate of the local model, which goes eta lambda of the way to the own one; null: the "
            "learning rate, as for the own model",
        ),
    ] = None
    beta: Annotated[
        float,
        Field(ge=0, description="factor on the server's step (authors: 1 or 2; PFLlib's default 0: no step at all)"),
    ] = 1.0
    overwritten: Annotated[
        bool,
        Field(description="after each round the common model replaces all clients' own, and is scored (PFLlib)"),
        "later",
    ] = False

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
        """See `Method.merge`: with beta 0 the common model doesn't change; it may replace clients' own models."""
        if self.beta:
            super().merge(context, state, update, target, weights)
        if self.overwritten:
            assert state.personal is not None
            common = state.personal.columns.taken(state.theta[0])
            for part in blocks(context.clients, 4 * len(common)):
                clients = np.arange(context.clients)[part]
                state.personal.keep(clients, common.expand(len(clients), -1), np.ones(len(clients), dtype=bool))
