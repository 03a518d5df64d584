"""APFL: each client mixes its own model with its version of the common one, and learns the mixing share.

Paper: Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, arXiv 2003.13461, Algorithm 1. A participant
trains its version w of the common model, which it sends, and, on the same mini-batches, its own model v on the loss of
``alpha v + (1 - alpha) w`` (`engine.lockstep`); this mix is scored. Alpha takes one gradient step per round.

The authors' code (MLOPTPSU/FedTorch) mixes outputs instead of parameters. In TsingZ0/PFLlib, which other papers use for
their tables, v is trained on its own loss and replaced by the mix after each round, and alpha, initially 1, takes a
step on every mini-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..simulation.method import Context, Known, Method, Problem, State
from ..simulation.state import ROWS
from ..storage.blocks import blocks
from .fedper import averages_models

if TYPE_CHECKING:
    from ..engine.lockstep import Lockstep
    from ..storage.row_store import Rows


@dataclass
class Mixed:
    """What clients keep besides the mix that they are scored on."""

    own_models: Rows = field(metadata=ROWS)  # [M, P], v
    alpha: NDArray[np.float64]  # [M]


@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """Run FedAvg; each client is scored on a mix of its own model with the common one as it trained that."""

    sends_kept: ClassVar[bool] = True  # the whole common model is sent; nothing of a client's own
    apart: ClassVar[bool] = True
    own: ClassVar[type | None] = Mixed
    alpha: Annotated[
        float, Field(ge=0, le=1, description="initial share of the own model in the mix (authors: .5; PFLlib: 1)")
    ] = 0.5  # fmt: skip
    adapts: Annotated[
        Literal["round", "step", "never"],
        Field(
            description="when alpha takes a step: on a round's first mini-batch (authors), on each (PFLlib), or never"
        ),
    ] = "round"
    rate: Annotated[
        float | None, Field(gt=0, description="step size for alpha; null: the learning rate (both codes)")
    ] = None  # fmt: skip
    shrink: Annotated[
        float, Field(ge=0, description="s in the term s/2 alpha^2 of alpha's loss (both codes: .02; paper: none)")
    ] = 0.0  # fmt: skip
    gradient: Annotated[
        Literal["mix", "own"],
        Field(
            description="the loss that the own model is trained on: the mix's (paper), or its own; with own, the mix "
            "replaces the own model after each round (PFLlib)"
        ),
    ] = "mix"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        training = known.training
        if training.lookahead:
            yield Problem("training.lookahead", f"{training.lookahead:g}, but APFL takes no steps in pairs; allowed: 0")
        if training.optimizer_state == "kept":
            sentence = "'kept', but two models would have to share what a client keeps; allowed: fresh"
            yield Problem("training.optimizer_state", sentence)
        for name, ineffective in {
            "rate": self.adapts == "never" and self.rate is not None,
            "shrink": self.adapts == "never" and self.shrink > 0,
        }.items():
            if ineffective:
                sentence = f"{getattr(self, name):g}, but with adapts: never alpha takes no step; omit it"
                yield Problem(name, f"{sentence}, or set adapts: round or step")

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: a whole model, the mix."""
        return tuple(context.tensors)

    def begin(self, context: Context) -> State:
        """See `Method.begin`: own models are copies of the common one."""
        state = super().begin(context)
        columns = state.theta.shape[1]
        rows = context.allocate(context.clients, columns)
        for part in blocks(context.clients, 4 * columns):
            rows[part] = state.theta[0]
        state.own = Mixed(rows, np.full(context.clients, self.alpha))
        return state

    def beside(self, context: Context, state: State) -> Lockstep:
        """See `Method.beside`: two models in lockstep."""
        from ..engine.lockstep import Lockstep

        kept: Mixed = state.own
        apart = self.gradient == "own"
        return Lockstep(kept.own_models, kept.alpha, self.adapts, self.rate, self.shrink, apart)
