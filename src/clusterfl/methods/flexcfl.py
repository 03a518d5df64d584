"""FlexCFL, formerly FedGroup: cluster a sample of the clients by the directions of their first updates, once.

Papers: Duan et al., FedGroup, arXiv 2010.06870, and Flexible Clustered Federated Learning for Client-Level Data
Distribution Shift, arXiv 2108.09749. Before the first round some clients train the one initial model for some steps.
Each update is described by its cosines to the K main directions of all these updates (EDC, `clustering.directions`),
k-means groups these descriptions, and a group's model is the plain mean of its members' pre-trained models. Any other
client trains the initial model in the same way when it first takes part, and joins the group whose mean first update is
nearest to its own, by cosine. Groups don't change afterwards.

As released (morningD/FlexCFL): 20 K clients, 50 steps, k-means of at most 20 iterations. Its k-means leaves the number
of starts to scikit-learn, which took 10 until version 1.3 and takes 1 since (``starts``). Not implemented: moving
clients whose data change, MADC, random centres, and averaging between groups, whose rate is 0 there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..clustering import renumbered
from ..clustering.directions import decomposed_cosines
from ..engine.training import Training
from ..errors import Unsound
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from ..simulation.state import ROWS
from .fixed import ratio_of_few

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.update import Update
    from ..storage.row_store import Rows

ITERATIONS = 20  # of k-means, at most


def grouped(vectors: NDArray[np.float64], k: int, starts: int, seed: int) -> Ids:
    """Return k-means labels [m] of ``vectors [m, q]``: at most k groups; equal vectors share one, for q = 0 all do."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = min(k, len(np.unique(vectors, axis=0))) if vectors.shape[1] else 1
    if k == 1:
        return np.zeros(len(vectors), dtype=np.int64)
    with threadpool_limits(1):
        model = KMeans(k, n_init=starts, max_iter=ITERATIONS, random_state=seed)
        return renumbered(model.fit(vectors).labels_)


@dataclass
class Directions:
    """Each group's mean first update, ``first [K, P]``; zeros: a group without members."""

    first: Rows = field(metadata=ROWS)


@dataclass(frozen=True, kw_only=True)
class FlexCFL(Method):
    """Cluster clients by the directions of their first updates, then run FedAvg in each cluster."""

    own: ClassVar[type | None] = Directions
    settles: ClassVar[bool] = True
    asks: ClassVar[str] = "each client's first update"
    clusters: Annotated[int, Field(gt=0, description="K, the number of groups")]
    sampled: Annotated[
        int, Field(gt=0, description="clients per group that train before the first round (released: 20)")
    ] = 20
    pretraining: Annotated[int, Field(gt=0, description="steps of this training (released: 50)")] = 50
    starts: Annotated[
        int, Field(gt=0, description="k-means starts; the best result counts (released: 10; newer scikit-learn: 1)")
    ] = 10

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if known.clients is not None and self.sampled * self.clusters < known.clients:
            yield from ratio_of_few(known)

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: a client gets its group once."""
        return False

    def begin(self, context: Context) -> State:
        """Let a sample of the clients train the initial model, group them, and average in each group."""
        ranks = np.argsort(streams.hashed(context.seed, "pre-training", np.arange(context.clients)), kind="stable")
        clients = np.sort(ranks[: self.sampled * self.clusters])
        initial = context.initial(0)
        theta, first = (context.allocate(self.clusters, len(initial)) for _ in range(2))
        labels = np.full(context.clients, -1, dtype=np.int64)
        update = self._pretrained(context, clients)
        labels[clients] = self._groups(context, update)
        for k in range(self.clusters):
            mean = _mean(update, np.flatnonzero(labels[clients] == k), len(initial))
            first[k], theta[k] = mean, initial + mean
        return State(theta, labels, Directions(first))

    def _pretrained(self, context: Context, clients: Ids) -> Update:
        few: Training = context.training.model_copy(update={"steps": self.pretraining, "epochs": None})
        return context.survey.updates(context.initial(0), clients, few)

    def _groups(self, context: Context, update: Update) -> Ids:
        """Return the groups [m] of the clients that have trained; -1 for those whose training diverged."""
        from ..storage.row_store import Selected

        assert update.rows is not None
        labels, sound = np.full(len(update.clients), -1, dtype=np.int64), np.flatnonzero(~update.dropped)
        if len(sound):
            rows = Selected(update.rows, sound, slice(context.parameter_columns))
            vectors = decomposed_cosines(rows, self.clusters)
            labels[sound] = grouped(vectors, self.clusters, self.starts, context.seed)
        return labels

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: a client without a group first trains the initial model and joins the nearest group."""
        new = clients[state.labels[clients] < 0]
        if len(new):
            update = self._pretrained(context, new)
            state.labels[new] = self._nearest(context, state, update)  # kept even if other updates are unsound
            if update.dropped.any():
                raise Unsound(new[update.dropped])
        return Assignment(state.labels[clients])

    def _nearest(self, context: Context, state: State, update: Update) -> Ids:
        """Return the group [m] whose mean first update is nearest to each update, by cosine; -1 for a diverged one."""
        assert update.rows is not None
        p, found = context.parameter_columns, np.full(len(update.clients), -1, dtype=np.int64)
        ways = np.stack([_unit(state.own.first[k][:p]) for k in range(self.clusters)])
        there = np.flatnonzero(ways.any(axis=1))
        for i in np.flatnonzero(~update.dropped).tolist():
            cosines = (ways[there] * _unit(update.rows[i][:p])).sum(axis=1)
            found[i] = there[cosines.argmax()] if len(there) else 0
        return found


def _unit(row: Rows) -> NDArray[np.float64]:
    values = np.asarray(row, dtype=np.float64)
    length = float(np.sqrt(np.square(values).sum()))
    return values / length if length else values


def _mean(update: Update, members: Ids, columns: int) -> Tensor:
    """Return the mean update [P] of some clients, zeros if there are none; read one by one: they may be in a file."""
    import torch

    assert update.rows is not None
    total = torch.zeros(columns, dtype=torch.float64)
    for i in members.tolist():
        total += update.rows[i].double()
    return (total / max(1, len(members))).float()
