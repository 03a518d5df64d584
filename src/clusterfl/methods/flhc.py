"""FL+HC: FedAvg for some rounds, hierarchical clustering of all clients' updates, once, and FedAvg in each cluster.

Paper: Briggs, Fan and Andras, Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on
Non-IID Data, IJCNN 2020, arXiv 2004.11791, Algorithm 1. After n rounds every client, drawn or not, trains the common
model once more and sends its update. Clusters merge as long as their distance is below a threshold; each one continues
from the common model with its own members, a share of which is drawn in each round.

The paper compares Manhattan, Euclidean and cosine distances. Not implemented: Ward's linkage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering.distances import cosine_distance, manhattan_distance, parameter_distance
from ..clustering.linkage import hierarchical
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from ..simulation.model_rows import append_copies
from ..storage.blocks import too_many
from .fixed import draw_in_clusters, threshold_or_clusters

if TYPE_CHECKING:
    from ..engine.update import Update

DISTANCES = {"manhattan": manhattan_distance, "euclidean": parameter_distance, "cosine": cosine_distance}


@dataclass(frozen=True, kw_only=True)
class FLHC(Method):
    """Run FedAvg for some rounds, cluster the clients by their updates, and continue FedAvg in each cluster."""

    asks: ClassVar[str] = "each client's update after the common rounds"
    threshold: Annotated[
        float | None,
        Field(ge=0, description="clusters at most this far apart merge, in units of the distance"),
    ] = None
    clusters: Annotated[
        int | None, Field(gt=0, description="K, the number of clusters, instead of a threshold (ours)")
    ] = None
    common_rounds: Annotated[int, Field(gt=0, description="n, rounds of FedAvg before the clustering (ours)")] = 1
    distance: Annotated[
        Literal["manhattan", "euclidean", "cosine"], Field(description="distance of updates; the paper compares all")
    ] = "manhattan"
    linkage: Annotated[
        Literal["average", "complete", "single"],
        Field(description="distance between clusters: the mean, largest or least of their members' distances"),
    ] = "complete"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from threshold_or_clusters(self, "how far apart clusters may be that merge")
        rounds = known.training.rounds
        if self.common_rounds >= rounds:
            yield Problem("common_rounds", f"{self.common_rounds} of {rounds} rounds leave none for the clusters; "
                          f"allowed: 1 to {rounds - 1}, or more training.rounds")  # fmt: skip
        problem = too_many(known.clients, "FL+HC compares the updates of all clients")
        if problem:
            yield Problem("", problem)

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """See `Method.sample`: a share of each cluster."""
        return draw_in_clusters(context, state.labels, round_)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; after the last common round the clients are clustered."""
        super().merge(context, state, update, target, weights)
        if update.round == self.common_rounds:
            state.labels = self._found(context, state)
            append_copies(context, state, np.zeros(int(state.labels.max()), dtype=np.int64))

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: a model to each client and its update, once."""
        return 2.0 * columns * context.clients

    def _found(self, context: Context, state: State) -> Ids:
        """Return the cluster [M] of each client; clients whose update isn't sound stay in the first one."""
        from ..storage.row_store import Selected

        update = context.survey.updates(state.theta[0], np.arange(context.clients), context.training)
        sound = np.flatnonzero(~update.dropped)
        labels = np.zeros(context.clients, dtype=np.int64)
        if len(sound):
            assert update.rows is not None
            rows = Selected(update.rows, sound, slice(context.parameter_columns))
            k = None if self.clusters is None else min(self.clusters, len(sound))
            distance = DISTANCES[self.distance](rows)
            labels[sound] = hierarchical(distance, k, linkage=self.linkage, threshold=self.threshold)
        return labels
