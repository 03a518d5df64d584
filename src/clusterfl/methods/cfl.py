"""CFL: split a cluster in two when its mean update has nearly vanished but single updates haven't.

Sattler, Müller and Samek, Clustered Federated Learning, IEEE TNNLS 2021, arXiv 1910.01991, Algorithm 1; the numbers are
those of the released code (felisat/clustered-federated-learning), whose clients keep their optimisers for the whole run
(``optimizer_state: kept``, ``decays_before: 1``): both thresholds fit the updates under these settings.

All clients begin in one cluster. Near a stationary point of a cluster's common objective, where ``|mean of its updates|
< eps_mean`` while ``max |update| > eps_max``, the cluster is cut in two by the cosine similarities of its updates, and
each half continues from the parent's model with the mean of its own updates. The paper's halves are those whose largest
similarity across is least: what is left where the most similar clients are joined until there are two clusters, by
single linkage (``linkage: single``). The released code takes complete linkage. The paper splits only where these two
groups differ by more than the noise in their members' gradients (``gamma_max``); the released code always does.

The released code treats the positions that its clustering returns, which count from 0 inside the parent, as positions
in the whole federation (issue 2 there, open since 2021). From the second split on, a client may then be in several
clusters, each of which moves its model, or in none, and its model stops moving. ``upstream_index_bug`` reproduces this;
by default positions are mapped back to clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering.distances import cosine_distance
from ..clustering.linkage import hierarchical
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from ..simulation.model_rows import append_copies
from ..storage.blocks import blocks, too_many

if TYPE_CHECKING:
    from ..engine.update import Update

FEWEST = 3  # clients of a cluster that may be split


def bipartition(similarity: Any, linkage: Literal["complete", "single"] = "complete") -> Ids:
    """Return the labels [m], 0 or 1, of a linkage on negative similarities, cut in two; the first client has 0.

    Parameters
    ----------
    similarity : [m, m]
        Cosines of at least two clients' updates.
    linkage
        Single: no other halves have a smaller largest similarity across.
    """
    distance = 1 - np.asarray(similarity, dtype=np.float64)
    return hierarchical((distance + distance.T) / 2, k=2, linkage=linkage)


def separation(similarity: NDArray[np.float64], labels: Ids) -> float:
    """Return sqrt((1 - c) / 2), 0 to 1, with c the largest of ``similarity [m, m]`` between clients of other labels."""
    largest = similarity[labels[:, None] != labels].max()
    return float(np.sqrt(max(1 - largest, 0.0) / 2))


@dataclass
class Memberships:
    """Who is in which cluster, ``members [C, M]``; each client is in one, except with the bug."""

    members: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class CFL(Method):
    """Split a cluster in two when its common model has converged but its members' updates are still large."""

    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    own: ClassVar[type | None] = Memberships
    eps_mean: Annotated[
        float,
        Field(gt=0, description="a cluster may be split once its mean update is shorter than this (released: .4)"),
    ] = 0.4
    eps_max: Annotated[float, Field(gt=0, description="and once its longest update exceeds this (released: 1.6)")] = 1.6
    first_split: Annotated[int, Field(ge=1, description="the first round that may end with a split (released: 21)")] = (
        21
    )
    upstream_index_bug: Annotated[
        bool, Field(description="treat positions inside a cluster as clients, as the released code does")
    ] = False
    linkage: Annotated[
        Literal["complete", "single"],
        Field(description="of the cut: complete (released), or single, by the largest similarity across (paper)"),
        "later",
    ] = "complete"
    gamma_max: Annotated[
        float | None,
        Field(
            ge=0,
            lt=1,
            description="only cuts across which all cosines c have sqrt((1 - c) / 2) > gamma_max are made (paper); "
            "null: all (released)",
        ),
        "later",
    ] = None

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        problem = too_many(known.clients, "CFL compares the updates of all members of a cluster")
        if problem:
            yield Problem("", problem)
        divisor = known.training.divisor
        if self.upstream_index_bug and divisor != "participants":
            yield Problem(
                "upstream_index_bug",
                f"a client of two clusters has no size to divide by; divisor is '{divisor}', set it to 'participants'",
            )

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        state.own = Memberships(np.ones((1, context.clients), dtype=bool))
        return state

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """Split the clusters whose common model has converged while their members' updates are still large."""
        if update.round < self.first_split:
            return
        clusters: list[NDArray[np.bool_]] = []
        for members in state.own.members:
            clusters += self._halves(context, np.flatnonzero(members), update) or [members]
        if len(clusters) > len(state.own.members):
            state.own.members = np.stack(clusters)
            self._new_models(context, state)

    def _halves(self, context: Context, members: Ids, update: Update) -> list[NDArray[np.bool_]]:
        """Return the two halves, each a mask [M], if the cluster is to be split; all members must have taken part."""
        from ..storage.row_store import Selected

        position = np.full(context.clients, -1)
        position[update.clients[~update.dropped]] = np.flatnonzero(~update.dropped)
        if len(members) < FEWEST or (position[members] < 0).any():
            return []
        assert update.rows is not None
        deltas = Selected(update.rows, position[members], slice(context.parameter_columns))
        total, longest = np.zeros(context.parameter_columns), 0.0
        for part in blocks(len(deltas), 8 * len(total)):
            rows = deltas[part]
            total += rows.sum(axis=0)
            longest = max(longest, float(np.sqrt(np.square(rows).sum(axis=1)).max()))
        if np.linalg.norm(total / len(members)) >= self.eps_mean or longest <= self.eps_max:
            return []
        similarity = 1 - cosine_distance(deltas)
        labels = bipartition(similarity, self.linkage)
        if self.gamma_max is not None and separation(similarity, labels) <= self.gamma_max:
            return []
        found = []
        for half in (0, 1):
            inside = np.flatnonzero(labels == half)
            found.append(np.isin(np.arange(context.clients), inside if self.upstream_index_bug else members[inside]))
        return found

    def _new_models(self, context: Context, state: State) -> None:
        """Give clients that share a model with clients of other clusters a copy of it."""
        seen: dict[tuple[int, bytes], int] = {}
        taken, parents = set[int](), list[int]()
        labels = state.labels.copy()
        for client, column in enumerate(state.own.members.T):
            key = (int(state.labels[client]), column.tobytes())
            if key not in seen:
                new = key[0] in taken
                seen[key] = len(state.theta) + len(parents) if new else key[0]
                parents += [key[0]] if new else []
                taken.add(key[0])
            labels[client] = seen[key]
        append_copies(context, state, np.array(parents, dtype=np.int64))
        state.labels = labels

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; with the bug, a model of clients in several clusters gets each cluster's mean."""
        if not self.upstream_index_bug:
            super().merge(context, state, update, target, weights)
            return
        import torch

        assert update.sums is not None
        models = len(state.theta)
        present = np.bincount(target, weights=weights, minlength=models)
        _, first = np.unique(state.labels, return_index=True)
        inside = state.own.members[:, first].astype(np.float64)  # [C, K]
        total = inside @ present
        shares = np.divide(inside, total[:, None], out=np.zeros_like(inside), where=total[:, None] > 0)
        mixing = inside.T @ shares  # [K, K]: what a model's mean takes of each model's sum
        mixed = context.allocate(models, update.sums.shape[1], torch.float64)
        for k, row in enumerate(mixing):
            for other in np.flatnonzero(row).tolist():
                mixed[k] = mixed[k] + row[other] * update.sums[other]
        update.sums = mixed
        touched = np.flatnonzero(mixing.any(axis=1))
        super().merge(context, state, update, touched, np.ones(len(touched)))
