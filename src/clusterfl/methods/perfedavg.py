"""Per-FedAvg: a common model from which one step on a client's own data leads to a good one.

Paper: Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, arXiv 2002.07948, Algorithm 1 in its first-order form: a client's
local step is ``w <- w - beta grad(w - alpha grad(w, D), D')`` on two batches. Clients score the model after a step of
rate alpha on their own training data: `evaluations: [aggregated, personalised]`.

TsingZ0/PFLlib, which other papers use for their tables, has alpha = beta, and its server lets each client train twice a
round (``twice``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ..engine.training import Training
from ..simulation.method import Method
from .fixed import changed


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """Run FedAvg towards a model from which one step on a client's own data leads to a good one."""

    ahead: Annotated[
        float | None,
        Field(gt=0, description="alpha, rate of the step ahead and of adaptation; null: the learning rate (PFLlib)"),
    ] = None
    adaptation: Annotated[int, Field(gt=0, description="adaptation steps before the personalised evaluation")] = 1
    twice: Annotated[
        bool,
        Field(description="clients do all their epochs, or steps, twice a round (PFLlib's server calls them twice)"),
    ] = False

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        given = {"epochs": training.epochs, "steps": training.steps}
        times = {name: 2 * number for name, number in given.items() if number} if self.twice else {}
        ahead = self.ahead or training.learning_rate
        return changed(training, lookahead=ahead, personalised_steps=self.adaptation, **times)
