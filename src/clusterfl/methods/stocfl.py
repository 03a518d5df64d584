"""StoCFL: clusters merge by the directions of clients' first updates; their models are pulled to a common one.

Paper: Zeng, Hu, Liu, Yu, Wang and Xu, Stochastic Clustered Federated Learning, arXiv 2303.00897. A client that takes
part for the first time trains the initial model (the anchor); the resulting update represents it. Two clusters with
participants merge if the cosine of their mean representations is at least tau. Participants train their cluster's model
theta on their loss + ``lambda / 2 |theta - w|^2``, and also the common model w, which is averaged over all of them.

As released (dunzeng/StoCFL, MIT): means are over the round's participants only (``means: participants``), and within a
round the common model is passed from client to client, each training the previous one's result (``relay``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering.distances import cosine_distance
from ..engine.training import Training
from ..errors import Unsound
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from ..simulation.model_rows import take_models
from ..simulation.state import ROWS
from ..storage.blocks import too_many
from .fedper import averages_models
from .fixed import changed, ratio_of_few

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.task import Towards
    from ..engine.update import Update
    from ..storage.row_store import Rows

COMMON = 0  # the row of the common model


@dataclass
class Groups:
    """What the server keeps: each client's cluster, named by its first member, and its representation [M, p]."""

    cluster: Ids  # [M]; -1: not seen yet
    directions: Rows = field(metadata=ROWS)


@dataclass(frozen=True, kw_only=True)
class StoCFL(Method):
    """Merge clusters by the directions of their clients' first updates; pull their models to a common one."""

    own: ClassVar[type | None] = Groups
    asks: ClassVar[str] = "each client's first update, and updates of a common model"
    departs: ClassVar[str] = "pulls its clusters' models to a common one"
    tau: Annotated[
        float,
        Field(ge=-1, le=1, description="least cosine of two clusters' mean representations at which they merge"),
    ] = 0.5
    pull: Annotated[
        float, Field(ge=0, description="lambda in the term lambda/2 |theta - w|^2 (released: .05)")
    ] = 0.05  # fmt: skip
    anchor_epochs: Annotated[
        int,
        Field(gt=0, description="epochs of a client's training of the initial model (README: 20)"),
    ] = 20
    anchor_batch: Annotated[
        Annotated[int, Field(gt=0)] | Literal["full"] | None,
        Field(description="batch size for it; null: that of training; full, with one epoch: the gradient is used"),
    ] = None
    means: Annotated[
        Literal["members", "participants"],
        Field(
            description="a cluster's mean is over all its clients seen so far, or over those of the round (released)"
        ),
    ] = "members"
    relay: Annotated[
        bool, Field(description="the common model is passed from client to client within a round (released)")
    ] = False  # fmt: skip

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: clusters merge, regardless of their size."""
        return False

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        if known.training.divisor == "expected":
            sentence = "'expected' counts models, and clusters merge; allowed: participants, ratio, all"
            yield Problem("training.divisor", sentence)
        yield from ratio_of_few(known)
        if known.clients is not None:
            drawn = known.training.participants(known.clients)
            problem = too_many(drawn, "draw fewer in a round, by training.participation")
            if problem:
                yield Problem("training.participation", problem)

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, proximal=self.pull)

    def begin(self, context: Context) -> State:
        """Return the common model, which every client has until its first participation."""
        state = super().begin(context)
        directions = context.allocate(context.clients, context.parameter_columns)
        state.own = Groups(np.full(context.clients, -1, dtype=np.int64), directions)
        return state

    def alone(self, training: Training) -> Training:
        """See `Method.alone`: training of the common model."""
        return training.model_copy(update={"proximal": 0.0})

    def towards(self, context: Context, state: State) -> Towards:
        """See `Method.towards`."""
        return COMMON

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: new clients get a representation, and clusters with participants merge."""
        own: Groups = state.own
        new = clients[own.cluster[clients] < 0]
        if len(new):
            self._see(context, own, new)
        labels = self._merged(context, state, clients)
        fresh = np.unique(own.cluster[clients][labels[clients] == COMMON])
        if len(fresh) or not np.array_equal(labels, state.labels):
            kept = np.unique(np.append(labels, COMMON))
            take_models(context, state, np.append(kept, np.full(len(fresh), COMMON)))
            state.labels = np.searchsorted(kept, labels)
            for row, name in enumerate(fresh.tolist(), len(kept)):
                state.labels[own.cluster == name] = row
        return Assignment(state.labels[clients])

    def _see(self, context: Context, own: Groups, new: Ids) -> None:
        """Let new clients train the initial model; each one becomes a cluster."""
        import torch

        batch = context.training.batch_size if self.anchor_batch is None else self.anchor_batch
        many = {"epochs": self.anchor_epochs, "steps": None, "batch_size": batch}
        few = self.alone(context.training).model_copy(update=many)
        update = context.survey.updates(context.initial(0), new, few)
        assert update.rows is not None
        for i in np.flatnonzero(~update.dropped).tolist():
            own.directions[torch.as_tensor(new[[i]])] = update.rows[i][None, : context.parameter_columns]
            own.cluster[new[i]] = new[i]
        if update.dropped.any():
            raise Unsound(new[update.dropped])

    def _merged(self, context: Context, state: State, clients: Ids) -> Ids:
        """Merge clusters and return the model of each client, [M]; the common one if its cluster has none yet.

        Pairs are merged in order of decreasing cosine; a merged cluster continues with the larger one's model.
        """
        import torch

        from ..storage.row_store import Selected

        own, labels = state.own, state.labels.copy()
        names = np.unique(own.cluster[clients])
        if len(names) < 2:
            return labels
        members = clients if self.means == "participants" else np.flatnonzero(own.cluster >= 0)
        means = context.allocate(len(names), context.parameter_columns, torch.float64)
        for row, name in enumerate(names):
            means[row] = _mean(own.directions, members[own.cluster[members] == name])
        cosines = 1 - cosine_distance(Selected(means, np.arange(len(names)), slice(None)))
        i, j = np.triu_indices(len(names), 1)
        order = np.argsort(-cosines[i, j], kind="stable")
        firsts = names.copy()  # the merged cluster that each of these is part of
        for pair in order[cosines[i, j][order] >= self.tau].tolist():
            one, other = sorted((firsts[i[pair]], firsts[j[pair]]))
            if one == other:
                continue
            mine, theirs = own.cluster == one, own.cluster == other
            models = [k for k in (labels[one], labels[other]) if k != COMMON] or [COMMON]
            labels[mine | theirs] = models[-1] if mine.sum() < theirs.sum() else models[0]
            own.cluster[theirs], firsts[firsts == other] = one, one
        return labels

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; then the participants' mean change is added to the common model."""
        super().merge(context, state, update, target, weights)
        clients = update.clients[~update.dropped]
        if not len(clients):
            return
        mean = self._moved(context, state, update.round, clients, weights)
        if mean is not None:
            context.step(state, np.array([COMMON]), mean, update.round)

    def _moved(
        self, context: Context, state: State, round_: int, clients: Ids, weights: NDArray[np.float64]
    ) -> Tensor | None:  # fmt: skip
        """Return the mean change [1, P] that the clients make of the common model; None: all diverged."""
        training, survey = self.alone(context.training), context.survey
        if not self.relay:
            update = survey.summed(state.theta[COMMON], state, clients, round_, training, weights)
            assert update.sums is not None
            total = weights[~update.dropped].sum()
            return update.sums[:] / total if total else None
        theta, total = state.theta[COMMON].double(), 0.0
        change = sums = 0 * theta
        for i in range(len(clients)):
            here = slice(i, i + 1)
            given = (theta + change).float()
            update = survey.summed(given, state, clients[here], round_, training, np.ones(1))
            if not update.dropped.any():
                assert update.sums is not None
                change = given.double() - theta + update.sums[0]
                sums, total = sums + weights[i] * change, total + weights[i]
        return sums[None] / total if total else None

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: the common model to each participant and back; the survey counts first updates."""
        return 2.0 * columns * participations


def _mean(rows: Rows, members: Ids) -> Tensor:
    """Return the mean [p] of some rows, read one by one: they may be in a file."""
    import torch

    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for i in members.tolist():
        total += rows[i].double()
    return total / len(members)
