"""k-FED: k-means in one round. Clients cluster their samples, the server clusters the centres that they send.

Paper: Dennis, Li and Smith, Heterogeneity for the Win: One-Shot Federated Clustering, ICML 2021, arXiv 2103.00697,
Algorithms 1 and 2. Here it groups clients: each sample counts for the server's cluster of its client's nearest own
centre, the client joins the cluster of most of its samples (the smallest number on ties), and FedAvg runs in each
cluster. The paper clusters samples; with k' = 1 a client is a point, the mean of its samples.

A client's k-means is that of Awasthi and Sheffet (2012): samples are projected on their first k' right singular
vectors, where k-means++ draws k' of them. For each one, the mean of the samples that are three times as near to it as
to any other is a start of Lloyd's iterations, in the original space. The server begins with the first client's
centres, adds the centre farthest from those chosen until there are k, and iterates over all centres.

The released code (metastableB/kfed) draws without a seed, from numpy's global state and a randomised decomposition;
here the decomposition is exact, and draws are from a seeded stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..clustering import renumbered
from ..clustering.distances import gaps
from ..clustering.threads import numpy_alone
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from .fixed import begin_with

Points = NDArray[np.float64]
NEARER = 3  # times as near to one centre as to any other


def lloyd(x: Points, centres: Points) -> Points:
    """Return k-means centres [k, d] of ``x [n, d]`` by scikit-learn, from given ones; empty clusters are relocated."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return np.asarray(KMeans(len(centres), init=centres, n_init=1).fit(x).cluster_centers_)


def plus_plus(x: Points, k: int, draws: np.random.Generator) -> Points:
    """Return up to k of the points ``x [n, d]``, drawn by k-means++; fewer where all others are copies."""
    found = [int(draws.integers(len(x)))]
    while len(found) < k:
        squares = gaps(x, x[found]).min(axis=1) ** 2
        if not squares.any():
            break
        found.append(int(draws.choice(len(x), p=squares / squares.sum())))
    return x[found]


def awasthi_sheffet(x: Points, k: int, draws: np.random.Generator) -> Points:
    """Return at most k centres of ``x [n, d]``; the points themselves if there are at most k."""
    if len(x) <= k:
        return x
    with numpy_alone():
        ways = np.linalg.svd(x, full_matrices=False)[2][:k]
    flat = np.einsum("nd,kd->nk", x, ways)
    distances = gaps(flat, plus_plus(flat, k, draws))  # [n, k]
    others = np.stack([np.delete(distances, r, axis=1).min(axis=1, initial=np.inf) for r in range(distances.shape[1])])
    near = others >= NEARER * distances.T  # a drawn point has distance 0 to itself: no row is empty
    starts = np.stack([flat[chosen].mean(axis=0) for chosen in near])
    return lloyd(x, np.einsum("rk,kd->rd", starts, ways))


def server(centres: Points, first: int, k: int) -> Ids:
    """Return the cluster of each of all clients' ``centres [c, d]``, of which the first client sent `first`.

    At most k clusters; fewer where no more centres differ.
    """
    chosen = list(range(min(first, k)))
    while len(chosen) < k:
        away = gaps(centres, centres[chosen]).min(axis=1)
        if not away.any():
            break
        chosen.append(int(away.argmax()))
    return gaps(centres, lloyd(centres, np.unique(centres[chosen], axis=0))).argmin(axis=1)


@dataclass(frozen=True, kw_only=True)
class KFED(Method):
    """Cluster clients by k-means over the centres of their samples, once, then run FedAvg in each cluster."""

    settles: ClassVar[bool] = True
    asks: ClassVar[str] = "centres of each client's samples"
    clusters: Annotated[int, Field(gt=0, description="k, the number of clusters of the federation")]
    local_clusters: Annotated[int, Field(gt=0, description="k', the number of centres of each client")] = 1
    local: Annotated[
        Literal["awasthi-sheffet", "plain"],
        Field(description="start of a client's k-means: the paper's, or k-means++ in the original space"),
    ] = "awasthi-sheffet"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if self.local_clusters > self.clusters:
            yield Problem(
                "local_clusters",
                f"{self.local_clusters} centres of each client for {self.clusters} clusters in all; allowed: 1 to "
                f"{self.clusters}",
            )
        if known.words:
            yield Problem(
                "",
                "k-means takes means of samples, and means of the numbers of words or characters say nothing; use a "
                "method that goes by models or losses, such as ifca, clove or lcfl",
            )

    def begin(self, context: Context) -> State:
        """See `Method.begin`: every client sends its centres and how many of its samples are nearest to each."""

        def reduced(x: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
            points, draws = x.astype(np.float64), streams.generator(context.seed, "k-fed")
            if self.local == "plain" and len(points) > self.local_clusters:
                centres = lloyd(points, plus_plus(points, self.local_clusters, draws))
            else:
                centres = awasthi_sheffet(points, self.local_clusters, draws)
            nearest = gaps(points, centres).argmin(axis=1)
            return np.column_stack([centres, np.bincount(nearest, minlength=len(centres))])

        found = context.survey.samples.reduced(reduced)
        groups = server(np.concatenate(found)[:, :-1], len(found[0]), self.clusters)
        votes = np.zeros((context.clients, self.clusters))
        np.add.at(
            votes, (np.repeat(np.arange(len(found)), list(map(len, found))), groups), np.concatenate(found)[:, -1]
        )
        return begin_with(context, renumbered(votes.argmax(axis=1)))
