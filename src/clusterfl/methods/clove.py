"""CLoVE: cluster the vectors of the participants' losses on all models, then match clusters to models.

Paper: arXiv 2506.22427, Algorithm 1 (K known) and Algorithm 2 (K unknown). Each round, until the clustering is stable:
a participant's losses on the K models are its vector; k-means groups the vectors; with ``cost[c, j]`` the sum over
group c of the losses on model j, each group trains the model that a least-cost assignment of groups to models gives it.
A model without a group keeps its parameters. State averaging includes batch normalisation's running statistics. Option
II (gradient averaging) is ``average: gradients`` under `training`. A participant with a loss that is NaN or infinite
has no vector: with ``diverged: exclude`` it is left out of the round, else the run stops.

Where the paper leaves a choice open, the released code's is the default here: the first round assigns at random, the
initial models are independent, k-means starts once from k-means++ with the run's seed. K unknown: the code accepts a
larger K only if its silhouette exceeds 1.10 times the best so far (``margin: 1.1``); Algorithm 2 has no such margin
(``margin: 1.0``, the default). The code measures a newcomer's losses on its test data; here they are measured on its
training data, if it has any.

Early stopping (``stable_rounds``; line 15 and Section 3): once the clustering is stable, that round's models and
centroids are stored. A client that has no model by then gets the model whose centroid is nearest to its losses on the
stored models. Later models can't be used for this: their losses keep falling, away from the centroids.

Ablations of the paper: no matching (``matching: order``), Ward's clustering (``clusterer: ward``) and square roots of
the losses (``losses: root``, the variant that its theory covers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering import renumbered
from ..errors import Unsound, UserError
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Problem, Reveals, State, choose
from ..simulation.state import ROWS
from ..storage.blocks import blocks, too_many
from .ifca import Choices, SeveralModels

if TYPE_CHECKING:
    from ..storage.row_store import Rows


def kmeans(vectors: NDArray[np.float64], k: int, seed: int) -> Ids:
    """Return k-means labels [m] of ``vectors [m, K]`` by scikit-learn: one start by k-means++.

    Equal vectors have equal labels; there are at most as many clusters as distinct vectors. The result depends on the
    order of the rows (participants are ordered by id), but not on the number of threads.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = min(k, len(np.unique(vectors, axis=0)))
    with threadpool_limits(1):
        return renumbered(KMeans(k, n_init=1, random_state=seed).fit(vectors).labels_)


def ward(vectors: NDArray[np.float64], k: int, seed: int = 0) -> Ids:
    """Return the labels [m] of Ward's agglomerative clustering of ``vectors [m, K]``. Draws nothing."""
    from sklearn.cluster import AgglomerativeClustering

    if len(vectors) < 2:
        return np.zeros(len(vectors), dtype=np.int64)
    return renumbered(AgglomerativeClustering(min(k, len(vectors)), linkage="ward").fit_predict(vectors))


def match(losses: Any, groups: Any) -> Ids:
    """Return each client's model: groups are assigned to models, one to one, with the least total loss.

    Parameters
    ----------
    losses : [m, K]
        ``losses[i, k]`` is the mean loss of model k on client i's data.
    groups : [m]
        Labels of at most K groups, any integers.

    Returns
    -------
    [m], models 0 to K - 1. Of several assignments of least cost, SciPy's first.
    """
    from scipy.optimize import linear_sum_assignment

    losses, (names, position) = np.asarray(losses, dtype=np.float64), np.unique(groups, return_inverse=True)
    if len(names) > losses.shape[1]:
        raise UserError(f"{len(names)} groups for {losses.shape[1]} models; each group needs a model of its own")
    cost = np.zeros((len(names), losses.shape[1]))
    np.add.at(cost, position, losses)
    return np.asarray(linear_sum_assignment(cost)[1])[position]


def select_k(losses: Any, k_max: int, margin: float = 1.0) -> int:
    """Return the number of groups for which Ward's clustering of the loss vectors has the best silhouette.

    Parameters
    ----------
    losses : [m, K]
        Loss vectors.
    k_max
        Largest number tried; more than m - 1 have no silhouette.
    margin
        A larger number is taken only if its silhouette exceeds `margin` times the best so far.

    Returns
    -------
    2 to k_max; 1 where no silhouette is defined: fewer than three clients, or all vectors equal.
    """
    from sklearn.metrics import silhouette_score

    vectors = np.asarray(losses, dtype=np.float64)
    distinct = len(np.unique(vectors, axis=0))
    found, best = 1, -np.inf
    for k in range(2, min(k_max, len(vectors) - 1, distinct) + 1):
        score = silhouette_score(vectors, ward(vectors, k))
        if found == 1 or score > margin * best:
            found, best = k, score
    return found


def check_vectors(vectors: NDArray[np.float64], clients: Ids) -> None:
    """Raise `Unsound` with those of `clients` [m] that have NaN or infinity in their vectors [m, K]."""
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise Unsound(clients[bad])


@dataclass
class Vectors(Choices):
    """What CLoVE keeps; the last three fields are None without early stopping."""

    centroids: NDArray[np.float64]  # [K, K], of each model's group; NaN: none
    recent: Ids | None = None  # [M, stable_rounds] labels, the newest last; -1: none yet
    stable: bool | None = None
    stable_theta: Rows | None = field(default=None, metadata=ROWS)  # [K, P], the models in the round of stability


@dataclass(frozen=True, kw_only=True)
class CLoVE(SeveralModels):
    """Cluster the participants' vectors of losses, and match the groups to models."""

    reveals: ClassVar[Reveals] = "losses"
    own: ClassVar[type | None] = Vectors
    clusters: Annotated[int, Field(gt=0, description="K, the number of models; with choose_k, the largest possible")]
    choose_k: Annotated[
        bool, Field(description="the number of groups is unknown: each round takes the one with the best silhouette")
    ] = False
    margin: Annotated[
        float,
        Field(ge=1, description="more groups are taken if their silhouette exceeds this x the best so far; code: 1.1"),
    ] = 1.0
    start: Annotated[
        Literal["random", "identical"], Field(description="independent initial models or copies of one")
    ] = "random"
    first_round: Annotated[
        Literal["random", "losses"],
        Field(description="how the first round assigns: at random (supervised experiments) or by loss (unsupervised)"),
    ] = "random"
    clusterer: Annotated[Literal["kmeans", "ward"], Field(description="for the loss vectors; ward is an ablation")] = (
        "kmeans"
    )
    matching: Annotated[
        Literal["assignment", "order"],
        Field(description="groups to models at the least cost, or (an ablation) in the order of their first client"),
    ] = "assignment"
    losses: Annotated[
        Literal["plain", "root"], Field(description="vectors of losses, or of their square roots (as in the theory)")
    ] = "plain"
    stable_rounds: Annotated[
        int,
        Field(
            ge=0,
            description="early stopping: assignments end once every participant has had the same model for this many "
            "of its rounds in a row (code: 3); 0 = never",
        ),
    ] = 0

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if known.clients is not None and (self.choose_k or self.clusterer == "ward"):
            instead = "use clusterer: kmeans with choose_k: false, which compares clients with means"
            problem = too_many(known.training.participants(known.clients), instead)
            if problem:
                yield Problem("choose_k" if self.choose_k else "clusterer", problem)

    def unprotected(self) -> str | None:
        """See `Method.unprotected`."""
        return "its models of earlier rounds, by stable_rounds" if self.stable_rounds else None

    def _own(self, context: Context) -> Vectors:
        found = Vectors(super()._own(context).losses, np.full((self.clusters, self.clusters), np.nan))
        if self.stable_rounds:
            found.recent, found.stable = np.full((context.clients, self.stable_rounds), -1), False
            found.stable_theta = context.allocate(self.clusters, len(context.initial(0)))
        return found

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: once stable, clients keep their models, and only those without one measure losses."""
        own: Vectors = state.own
        if own.stable:
            return Assignment(self._stay(state, clients, losses))
        found = super().assign(context, state, round_, clients, losses)
        if own.recent is not None:
            own.recent[clients] = np.column_stack([own.recent[clients, 1:], found.start])
            own.stable = bool((own.recent[clients] == found.start[:, None]).all())
            if own.stable:
                assert own.stable_theta is not None
                theta = state.theta
                for part in blocks(len(theta), theta.shape[1] * theta.dtype.itemsize):
                    own.stable_theta[part] = theta[part]
        return found

    def _stay(self, state: State, clients: Ids, losses: Losses) -> Ids:
        """Return the participants' labels; a client without one gets one from its losses on the stored models."""
        labels = state.labels[clients]
        new = clients[labels < 0]
        if len(new):
            measured = losses(state.own.stable_theta, new)
            check_vectors(measured, new)
            labels[labels < 0] = self.place(state, measured)
        return labels

    def _choice(self, context: Context, state: State, clients: Ids) -> Ids:
        own: Vectors = state.own
        vectors = self._vectors(own.losses[clients])
        check_vectors(vectors, clients)
        k = select_k(vectors, self.clusters, self.margin) if self.choose_k else self.clusters
        groups = {"kmeans": kmeans, "ward": ward}[self.clusterer](vectors, k, context.seed)
        labels = match(vectors, groups) if self.matching == "assignment" else groups
        own.centroids[:] = np.nan
        for model in np.unique(labels):
            own.centroids[model] = vectors[labels == model].mean(axis=0)
        return labels

    def _vectors(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.sqrt(np.maximum(losses, 0)) if self.losses == "root" else losses  # noise may have made them negative

    def placing(self, state: State) -> Rows:
        """Return the models of the round of stability, which the centroids belong to; before it, the current ones."""
        if not state.own.stable:
            return state.theta
        kept: Rows = state.own.stable_theta
        return kept

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """Return the model whose group in the last clustering has the nearest centroid; before any, of least loss."""
        known = np.flatnonzero(np.isfinite(state.own.centroids).all(axis=1))
        if not len(known):
            return np.asarray(choose(losses))
        gaps = self._vectors(losses)[:, None] - state.own.centroids[known][None]
        return known[np.argmin(np.square(gaps).sum(axis=2), axis=1)]
