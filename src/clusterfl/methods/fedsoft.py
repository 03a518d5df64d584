"""FedSoft: a model for each client, pulled to K centres by the share of its samples that each centre fits best.

Paper: Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022, arXiv
2112.06053, Algorithm 1. A participant counts the samples n_k on which centre k has the least loss; ``u_k = n_k / n``,
or sigma if there are none. It trains its own model on its loss + ``lambda / 2 sum_k u_k |w - c_k|^2`` and sends it;
centre k becomes the mean of the participants' models weighted by these counts. So one training serves all centres.

The authors' code (ycruan/FedSoft) fails at its first estimate, a call with an argument that the function doesn't take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..engine.personal import Towards
from ..engine.training import Training
from ..errors import Unsound
from ..simulation.assignment import blended
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, SampleLosses, State
from .fedper import averages_models
from .fixed import changed

if TYPE_CHECKING:
    from ..engine.update import Update

Array = NDArray[np.float64]


@dataclass
class Importance:
    """What FedSoft keeps: each client's counts of samples by centre, [M, K], and the round they are from, 0: none."""

    counts: Array
    counted: Ids  # [M]


def counted(losses: SampleLosses, least: float) -> Array:
    """Count, [m, K], on how many of each client's samples each model has the least loss, the first on ties.

    A count of 0 is replaced by `least` times its samples. A sample without a finite loss makes its client's row NaN.
    """
    values = np.where(np.isnan(losses.values), np.inf, losses.values)
    best = np.eye(values.shape[1])[values.argmin(axis=1)]
    best[~np.isfinite(values).any(axis=1)] = np.nan
    found = losses.sums(best)
    return np.where(found == 0, least * losses.sizes[:, None], found)


@dataclass(frozen=True, kw_only=True)
class FedSoft(Method):
    """Train a model for each client near K centres; these are means of all, weighted by the samples they fit best."""

    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    asks: ClassVar[str] = "on how many of its samples each model is best"
    sends_kept: ClassVar[bool] = True
    own: ClassVar[type | None] = Importance
    departs: ClassVar[str] = "goes on from each client's own model, which is pulled to the mean"
    clusters: Annotated[int, Field(gt=0, description="K, the number of centres")]
    pull: Annotated[float, Field(gt=0, description="lambda of the pull to the centres (authors: .01, .1 or 1)")] = 0.1
    interval: Annotated[
        int,
        Field(
            gt=0,
            description="tau, rounds after which a client counts again (authors' program: 2, their default: 1)",
        ),
    ] = 1
    least: Annotated[
        float, Field(gt=0, lt=1, description="sigma, the share of samples used in place of 0 (authors)")
    ] = 0.0001  # fmt: skip

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: a participant's model goes to all centres, so there is nothing to rebalance."""
        return False

    def towards(self, context: Context, state: State) -> Towards:
        """See `Method.towards`: the blend that a client is given; it starts from its own model."""
        return "given"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from averages_models(known)
        if known.training.divisor != "participants":
            sentence = f"'{known.training.divisor}' is of one centre for each client; allowed: participants"
            yield Problem("training.divisor", sentence)

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, proximal=self.pull)

    def begin(self, context: Context) -> State:
        """See `Method.begin`: independent centres; all clients begin with the first one."""
        import torch

        models = torch.stack([context.initial(k) for k in range(self.clusters)])
        own = Importance(np.zeros((context.clients, self.clusters)), np.zeros(context.clients, dtype=np.int64))
        return State(models, np.full(context.clients, -1, dtype=np.int64), own)

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: a whole model."""
        return tuple(context.tensors)

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: clients without counts, or with old ones, count; all are pulled to all centres."""
        own: Importance = state.own
        last = own.counted[clients]
        due = clients[(last == 0) | (round_ - last >= self.interval)]
        if len(due):
            found = counted(losses.samples(due), self.least)
            lost = np.isnan(found).any(axis=1)
            if lost.any():
                raise Unsound(due[lost])
            own.counts[due], own.counted[due] = found, round_
        context.survey.counted(0, len(due) * self.clusters)
        shares = own.counts[clients] / own.counts[clients].sum(axis=1, keepdims=True)
        return Assignment(shares.argmax(axis=1), blends=shares)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`: each centre becomes the mean of the participants' models weighted by their counts."""
        import torch

        kept = np.flatnonzero(~update.dropped)
        if update.rows is None or not len(kept):  # no participants, or none with a sound update
            return
        counts = state.own.counts[update.clients[kept]]
        many = weights[:, None] * counts / context.sizes[update.clients[kept]][:, None]
        given = state.own.counts[update.clients] / state.own.counts[update.clients].sum(axis=1, keepdims=True)
        sums = torch.zeros(state.theta.shape, dtype=torch.float64)
        for i, own in zip(kept.tolist(), many.tolist(), strict=True):
            row = blended(state.theta, given[i : i + 1])[0].float().double() + update.rows[i].double()
            for k, weight in enumerate(own):
                sums[k] += weight * row
        centres = np.arange(len(state.theta))
        mean = sums / torch.as_tensor(many.sum(axis=0))[:, None] - state.theta[torch.as_tensor(centres)].double()
        context.step(state, centres, mean, update.round)

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: counts in the rounds when clients count, all centres but one in the other rounds."""
        counting = -(-rounds // self.interval) / max(1, rounds)
        others = (1 - counting) * (self.clusters - 1) * columns
        return participations * (counting * self.clusters + others)
