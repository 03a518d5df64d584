"""FLUX: FedAvg for some rounds, clusters by moments of clients' features, once, and FedAvg in each cluster.

Paper: Fenoglio, Li, Barbiero, Lane, Langheinrich and Gjoreski, FLUX: Efficient Descriptor-Driven Clustered Federated
Learning under Arbitrary Distribution Shifts, NeurIPS 2025. After the common rounds a client computes its samples'
features (the last layer's inputs) with the common model, projects them onto a few random directions, and sends their
mean and standard deviation, over all samples and by class. DBSCAN groups these descriptors, with eps at the elbow of
the distances to nearest neighbours. A newcomer without labels joins the cluster nearest in the first two moments.

As released (dariofenoglio98/FLUX, MIT): each kind of moment is scaled to 0..1 over all clients; the moments of a class
of which a client has at most one sample are -1; a client that DBSCAN labels noise is a cluster of its own. The
release's PCA also subtracts the mean of the points whose main directions it takes (``centred``), which are uniform up
to 1.02 times the clients' largest feature. Not implemented: the release's rule for when to cluster, by accuracies on
held-out data, and clusters that change later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..clustering.density import dbscan
from ..clustering.distances import gaps, parameter_distance
from ..clustering.elbow import elbow
from ..clustering.threads import numpy_alone
from ..simulation.method import Context, Described, Ids, Known, Method, Problem, State
from ..simulation.model_rows import append_copies
from ..simulation.state import ROWS
from ..storage.blocks import too_many
from .fedproto import lacks_features
from .flexcfl import grouped

if TYPE_CHECKING:
    from ..engine.update import Update
    from ..storage.row_store import Rows

Points = NDArray[np.float64]
POINTS = 200  # points of uniform noise; features are projected onto their main directions
REACH = 1.02  # in the release, the points' upper bound is this x the largest feature
ABSENT = -1.0  # in the release, the moments of a class of which a client has at most one sample


@dataclass
class Descriptors:
    """What newcomers are placed by; all None before the clustering."""

    ways: Points | None = None  # [d, q], the directions
    origin: Points | None = None  # [q], subtracted from means; also None if features aren't centred
    bounds: Points | None = None  # [2, 2] least and largest mean, and standard deviation, over all clients
    centroids: Points | None = None  # [K, 2q], scaled moments over all samples, none by class
    common: Rows | None = field(default=None, metadata=ROWS)  # [1, P], the model whose features are described


def directions(features: int, count: int, draws: np.random.Generator) -> tuple[Points, Points]:
    """Return the main directions [d, q] of uniform noise, which are roughly random, and its mean [d].

    q is `count`, at most d and at most `POINTS`. The noise is between 0 and 1: with another upper bound directions are
    the same, and the mean is that many times it.
    """
    noise = draws.uniform(size=(POINTS, features))
    middle = noise.mean(axis=0)
    with numpy_alone():
        return np.linalg.svd(noise - middle, full_matrices=False)[2][:count].T.copy(), middle


def moments(z: Points, y: Ids, classes: int) -> Points:
    """Return mean and standard deviation of ``z [n, q]``, then each class's means, then their deviations, [2 + 2C, q].

    NaN: there is at most one sample. Samples without labels have no classes: `classes` is 0.
    """
    lacking = np.full(z.shape[1], np.nan)
    parts = [z[y == c] for c in range(classes)]
    means = [part.mean(axis=0) if len(part) > 1 else lacking for part in parts]
    spreads = [part.std(axis=0) if len(part) > 1 else lacking for part in parts]
    return np.stack([z.mean(axis=0), z.std(axis=0), *means, *spreads])


def shifted(every: Points, origin: Points | None, classes: int) -> Points:
    """Return moments [..., 2 + 2C, q] of features with another origin [q]: it is subtracted from their means."""
    if origin is None:
        return every
    is_mean = np.r_[True, False, np.full(classes, True), np.full(classes, False)]
    return every - np.where(is_mean[:, None], origin, 0.0)


def scaled(moment: Points, bounds: Points) -> Points:
    """Scale moments [..., g, q] so that the bounds [g, 2] of each kind become 0 and 1."""
    low, width = bounds[:, :1], bounds[:, 1:] - bounds[:, :1]
    return (moment - low) / np.where(width > 0, width, 1)


def _means(every: Points) -> Points:
    """Return the means [g, q] over the clients of ``every [M, g, q]`` that have them; NaN: none."""
    there = ~np.isnan(every)
    total = np.where(there, every, 0.0).sum(axis=0)
    return np.divide(total, there.sum(axis=0), out=np.full(total.shape, np.nan), where=there.any(axis=0))


@dataclass(frozen=True, kw_only=True)
class FLUX(Method):
    """Run FedAvg for some rounds, cluster the clients by moments of their features, and continue in each cluster."""

    own: ClassVar[type | None] = Descriptors
    asks: ClassVar[str] = "moments of the features of each client's samples, by class"
    common_rounds: Annotated[int, Field(gt=0, description="rounds of FedAvg before the clustering (released: 3)")] = 1
    components: Annotated[
        int | None, Field(gt=0, description="q, random directions for features; null: as many as classes (released)")
    ] = None
    describe: Annotated[
        Literal["classes", "samples"],
        Field(description="moments over all samples and by class, or over all samples alone"),
    ] = "classes"
    absent: Annotated[
        Literal["marked", "mean"],
        Field(
            description="moments of a class of which a client has at most one sample: -1 (released), or the other "
            "clients' mean (ours)"
        ),
    ] = "marked"
    eps_scale: Annotated[float, Field(gt=0, description="factor on the elbow's distance, for DBSCAN")] = 1.0
    clusters: Annotated[
        int | None, Field(gt=0, description="K, for k-means instead of DBSCAN (released: if K is known)")
    ] = None
    centred: Annotated[
        bool,
        Field(
            description="subtract from features the mean of the uniform points that directions are from (released), "
            "or not (ours)"
        ),
        "later",
    ] = False

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from lacks_features(known)
        rounds = known.training.rounds
        if self.common_rounds >= rounds:
            yield Problem("common_rounds", f"{self.common_rounds} of {rounds} rounds leave none for the clusters; "
                          f"allowed: 1 to {rounds - 1}, or more training.rounds")  # fmt: skip
        problem = None if self.clusters else too_many(known.clients, "or give clusters, for k-means")
        if problem:
            yield Problem("clusters", problem)

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        state.own = Descriptors()
        return state

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; after the last common round the clients are clustered."""
        super().merge(context, state, update, target, weights)
        if update.round == self.common_rounds:
            state.labels = self._found(context, state)
            append_copies(context, state, np.zeros(int(state.labels.max()), dtype=np.int64))

    def _found(self, context: Context, state: State) -> Ids:
        """Return the cluster [M] of each client, and keep what newcomers are placed by."""
        classes = context.classes if self.describe == "classes" else 0
        assert context.head is not None and not isinstance(context.head, str)
        ways, middle = directions(context.head.features, self._count(context), streams.generator(context.seed, "flux"))

        def described(z: Points, y: NDArray[Any]) -> Points:
            found = moments(np.einsum("nd,dq->nq", z, ways), y, classes).ravel()
            return np.append(found, z.max()) if self.centred else found

        sent = np.stack(context.survey.features(state.theta[0], np.arange(context.clients), described))
        every = sent[:, : (2 + 2 * classes) * ways.shape[1]].reshape(len(sent), -1, ways.shape[1])  # [M, 2 + 2C, q]
        origin = REACH * sent[:, -1].max() * np.einsum("d,dq->q", middle, ways) if self.centred else None
        every = shifted(every, origin, classes)
        instead = ABSENT if self.absent == "marked" else np.nan_to_num(_means(every))
        every = np.where(np.isnan(every), instead, every)
        bounds = np.stack([every.min(axis=(0, 2)), every.max(axis=(0, 2))], axis=1)
        points = scaled(every, bounds).reshape(len(every), -1)
        labels = self._clustered(context, points)
        centroids = [points[labels == k, : 2 * ways.shape[1]].mean(axis=0) for k in range(labels.max() + 1)]
        common = context.allocate(1, state.theta.shape[1])
        common[0] = state.theta[0]
        state.own = Descriptors(ways, origin, bounds[:2], np.stack(centroids), common)
        return labels

    def _count(self, context: Context) -> int:
        return self.components or context.classes

    def _clustered(self, context: Context, points: Points) -> Ids:
        """Return the cluster of each of the scaled descriptors [M, D]."""
        if self.clusters:
            return grouped(points, self.clusters, 10, context.seed)
        if len(points) == 1:
            return np.zeros(1, dtype=np.int64)
        distance = parameter_distance(points)
        nearest = np.sort((distance + np.diag(np.full(len(points), np.inf))).min(axis=1))
        eps = max(float(nearest[elbow(nearest)]) * self.eps_scale, np.finfo(np.float64).tiny)
        return dbscan(distance, eps=eps, min_samples=2, noise="own")

    def recognise(self, state: State, described: Described) -> Ids | None:
        """See `Method.recognise`: the cluster of the nearest centroid, by the moments of all samples."""
        own: Descriptors = state.own
        if own.common is None:
            return None
        assert own.ways is not None and own.bounds is not None and own.centroids is not None
        ways, origin, bounds = own.ways, own.origin, own.bounds

        def reduced(z: Points, y: NDArray[Any]) -> Points:
            found = moments(np.einsum("nd,dq->nq", z, ways), y, 0)
            return scaled(shifted(found, origin, 0), bounds).reshape(-1)

        return gaps(np.stack(described(own.common[0], reduced)), own.centroids).argmin(axis=1)

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: once, a model to each client, and its moments back."""
        classes = context.classes if self.describe == "classes" else 0
        return context.clients * (columns + 2.0 * (1 + classes) * self._count(context) + self.centred)
