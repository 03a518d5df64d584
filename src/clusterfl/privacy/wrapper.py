"""Wrapping a method in rebalancing and privacy, as its settings say.

RR-Cluster (Yang, Hu, Kim and Li, arXiv 2508.06183, Algorithms 1 and 2) is IFCA with both: noisy identifiers, then
rebalancing, then noisy sums of clipped updates. Axes: m participants, K models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from .. import streams
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from .around import Wrapper
from .private import Private
from .rebalancing import rebalance
from .settings import Privacy, Rebalance, unbalanced


def wrap(
    method: Method,
    name: str,
    rebalancing: Rebalance | None = None,
    privacy: Privacy | None = None,
    trial: bool = False,
) -> Method:
    """Return a method wrapped in rebalancing and privacy, where these are given.

    Parameters
    ----------
    name
        The method's name in messages.
    trial
        Whether it is one of several trials, the best of which is chosen by scores; no accounting here counts the
        privacy loss of this choice.
    """
    moves = rebalancing is not None and rebalancing.minimum > 0
    if privacy is not None:
        method = Private(inner=method, name=name, block=privacy, rebalanced=moves, trial=trial)
    return method if rebalancing is None else Rebalanced(inner=method, name=name, block=rebalancing)


@dataclass(frozen=True, kw_only=True)
class Rebalanced(Wrapper):
    """RR-Cluster's rebalancing: updates move from large clusters to small ones; the models they start from don't."""

    block: Rebalance

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        minimum, training = self.block.minimum, known.training
        problem = unbalanced(self.block, training)
        if problem:
            yield Problem("rebalance", problem)
        if not self.assigns:
            yield Problem(
                "rebalance",
                f"method '{self.name}' doesn't assign clients to models in each round, so there is nothing to "
                "rebalance; allowed: methods that do, such as ifca, clove, and fesem with variant: flexcfl",
            )
        elif minimum and training.divisor == "ratio":
            yield Problem(
                "rebalance",
                "divisor: ratio divides by the size of a cluster before rebalancing; allowed: participants, all, "
                "expected",
            )
        elif not problem and known.clients is not None and (models := self.models(known)) is not None:
            drawn = training.participants(known.clients)
            if models * minimum > drawn:
                yield Problem(
                    "rebalance.minimum",
                    f"{minimum} updates for each of {models} clusters, but a round has {drawn} participants; allowed: "
                    f"0 to {drawn // models}",
                )

    def begin(self, context: Context) -> State:
        """Return the inner state with an array for each round's sizes before and after, 0 at first."""
        state = super().begin(context)
        state.rebalanced = np.zeros((context.training.rounds, 2, len(state.theta)), dtype=np.int64)
        return state

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Let the method assign, then move updates until each model has at least the minimum."""
        found, models = super().assign(context, state, round_, clients, losses), len(state.theta)
        before = found.start if found.target is None else found.target
        after = rebalance(before, models, self.block.minimum, streams.generator(context.seed, "rebalance", round_))
        assert state.rebalanced is not None
        state.rebalanced[round_ - 1] = [np.bincount(labels, minlength=models) for labels in (before, after)]
        return replace(found, target=after)
