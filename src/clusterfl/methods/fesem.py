"""FeSEM: clients join the centre nearest to their own last model, centres are the means of their clients' models.

Long, Xie, Shen, Zhou, Wang and Jiang, Multi-center federated learning, World Wide Web 2023, arXiv 2108.08647 (earlier
Xie et al., arXiv 2005.01026): stochastic expectation maximisation of ``sum_i |w_i - centre(i)|^2``. Three variants:

- ``flexcfl`` (the default): as released with FlexCFL (morningD/FlexCFL), without the slip of ``single``. A participant
  joins the centre nearest, over all parameters, to the model that it trained last, and trains from this centre, which
  becomes the mean of its participants' models of the round. A client that never trained has the one initial model.
- ``single``: the same, but the centre becomes the model of one of them, drawn in each round. That code, whose numbers
  CLoVE prints, does so by a slip: it pairs m updates with a list of one weight, so the others are left out.
- ``kmeans``: as in the paper. After each round k-means runs, from the current centres until it converges, over the last
  models of all clients that have trained, by all parameters or those of one tensor (`layer`); a centre is the mean of
  its members' models. The paper's regulariser is ``proximal`` under `training`; the attention weights in the authors'
  first code are in no text that we know, and aren't implemented.

With ``start: random`` the centres are K independent initial models, as in FlexCFL. Independent networks are much
farther apart than local training moves a client, so all clients join the centre nearest to their common initial model,
and stay there: one cluster for the whole run. ``start: clients`` is k-means++ (Arthur and Vassilvitskii 2007) on the
models of the first round, which all participants train from the initial model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..clustering.distances import gaps
from ..errors import choices
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from ..simulation.state import ROWS
from ..storage.blocks import blocks
from .fixed import ratio_of_few

if TYPE_CHECKING:
    from ..engine.update import Update
    from ..storage.row_store import Rows

PASSES = 100  # of k-means, at most
PLAIN = {"average": "models", "divisor": "participants", "server_learning_rate": 1.0, "server_momentum": 0.0}


def nearest(theta: Any, centres: Any) -> Any:
    """Return the nearest centre of each model, by Euclidean distance, the first one on ties.

    Parameters
    ----------
    theta : [m, P]
        Models; read a block at a time, so they may be in a file.
    centres : [K, P]
        Centres.

    Returns
    -------
    [m], of the same kind (numpy or torch) as the models.
    """
    found = np.zeros(len(theta), dtype=np.int64)
    for part in blocks(len(theta), 8 * centres.shape[1]):
        found[part] = _gaps(theta[part], centres).argmin(axis=1)
    if hasattr(theta, "detach"):
        import torch

        return torch.as_tensor(found)
    return found


def _gaps(theta: Any, centres: Any) -> NDArray[np.float64]:
    """Return the distances [m, K]."""
    rows, others = (np.asarray(part[:], dtype=np.float64) for part in (theta, centres))
    return gaps(rows, others)


@dataclass
class LastModels:
    """The clients' last models, and who has trained."""

    seen: NDArray[np.bool_]  # [M]
    models: Rows = field(metadata=ROWS)  # [M, P]


@dataclass(frozen=True, kw_only=True)
class FeSEM(Method):
    """Let clients join the centre nearest to their own last model."""

    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    own: ClassVar[type | None] = LastModels
    clusters: Annotated[int, Field(gt=0, description="K, the number of centres")]
    variant: Annotated[
        Literal["flexcfl", "single", "kmeans"],
        Field(
            description="a centre follows its round's participants (flexcfl), one of them (single: what FlexCFL's code "
            "does), or k-means over all last models (paper)"
        ),
    ] = "flexcfl"
    start: Annotated[
        Literal["random", "clients"],
        Field(description="independent initial models (FlexCFL), or models of the first round drawn by k-means++"),
    ] = "random"
    layer: Annotated[
        str | None,
        Field(description="the one parameter tensor to compare, such as the last weight matrix; null: all of them"),
    ] = None

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: k-means uses whole models, whichever centre an update goes to."""
        return self.variant != "kmeans"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if self.variant == "flexcfl":
            yield from ratio_of_few(known)
        if known.context is not None and self.layer is not None and self.layer not in known.context.tensors:
            tensors = known.context.tensors
            yield Problem("layer", f"'{self.layer}' is no parameter of this model; {choices(tensors, self.layer)}")
        divisor = known.training.divisor
        if self.variant == "single" and divisor != "participants":
            sentence = f"'single' divides by nothing; divisor is '{divisor}', set it to 'participants'"
            yield Problem("variant", sentence)
        for name, only in PLAIN.items() if self.variant == "kmeans" else ():
            if (found := getattr(known.training, name)) != only:
                sentence = f"'{found}' has no effect on centres that are means of models"
                yield Problem(f"training.{name}", f"{sentence}; allowed with variant: kmeans: {only}")

    def unprotected(self) -> str | None:
        """See `Method.unprotected`."""
        return (
            "updates: each client's last model, by whose distances to the centres it is assigned, and which remembers "
            "in which rounds its client was drawn, as no accounting of draws allows"
        )

    def _columns(self, context: Context) -> slice:
        """Return the columns that are compared."""
        return slice(context.parameter_columns) if self.layer is None else context.tensors[self.layer]

    def begin(self, context: Context) -> State:
        """Return K independent centres, and for all clients one initial model that isn't a centre."""
        import torch

        own = context.initial(self.clusters if self.start == "random" and self.clusters > 1 else 0)
        models = context.allocate(context.clients, len(own))
        for part in blocks(context.clients, 4 * len(own)):
            models[part] = own
        theta = torch.stack([context.initial(k) for k in range(self.clusters)])
        unknown, seen = np.full(context.clients, -1, dtype=np.int64), np.zeros(context.clients, dtype=bool)
        return State(theta, unknown, LastModels(seen, models))

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Let each participant join the centre nearest to its own last model."""
        if self._warms_up(state):
            return Assignment(np.zeros(len(clients), dtype=np.int64))
        return Assignment(self._nearest(context, state, clients))

    def _warms_up(self, state: State) -> bool:
        """Return whether nobody has trained yet and the clients' models are going to be the centres."""
        return self.start == "clients" and not state.own.seen.any()

    def _nearest(self, context: Context, state: State, clients: Ids) -> Ids:
        from ..storage.row_store import Selected

        columns = self._columns(context)
        centres = Selected(state.theta, np.arange(self.clusters), columns)[:]
        return np.asarray(nearest(Selected(state.own.models, clients, columns), centres))

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """Keep the participants' models."""
        import torch

        kept = np.flatnonzero(~update.dropped)
        for part in blocks(len(kept), 4 * len(state.theta[0])):
            assert update.rows is not None
            clients, rows = update.clients[kept[part]], update.rows[torch.as_tensor(kept[part])]
            began = state.theta[torch.as_tensor(state.labels[clients])]
            state.own.models[torch.as_tensor(clients)] = began + rows

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """Move the centres: by their participants' updates, or to the means of their members."""
        first = self._warms_up(state)
        own, labels = state.own, state.labels
        own.seen[update.clients[~update.dropped]] = True
        members = np.flatnonzero(own.seen)
        if not len(members) or not (first or self.variant == "kmeans"):
            if self.variant == "single":
                target, weights = self._single(context, update, target)
            super().merge(context, state, update, target, weights)
            return
        if first:
            for k, client in enumerate(self._drawn(context, own.models, members)):
                state.theta[k] = own.models[client]
            labels[members] = -1  # of no centre yet
        for _ in range(PASSES):
            before = labels[members].copy()
            labels[members] = self._nearest(context, state, members)
            self._recentre(context, state, members)
            if np.array_equal(before, labels[members]):
                break

    def _single(self, context: Context, update: Update, target: Ids) -> tuple[Ids, NDArray[np.float64]]:
        """Replace each centre's sum by one of its updates; return the centres with updates, and weights of 1."""
        assert update.rows is not None and update.sums is not None
        order = streams.generator(context.seed, "single updates", update.round).permutation(len(target))
        centres, at = np.unique(target[order], return_index=True)
        sound = np.flatnonzero(~update.dropped)
        for k, i in zip(centres.tolist(), sound[order[at]].tolist(), strict=True):
            update.sums[k] = update.rows[i].double()
        return centres, np.ones(len(centres))

    def _recentre(self, context: Context, state: State, members: Ids) -> None:
        """Move each centre to the weighted mean of its members' models; one without members doesn't move."""
        import torch

        labels, weights = state.labels[members], self.weights(context, members)
        for k in np.unique(labels).tolist():
            total = torch.zeros(len(state.theta[0]), dtype=torch.float64)
            for i in np.flatnonzero(labels == k).tolist():  # one by one: they may be in a file
                total += weights[i] * state.own.models[int(members[i])].double()
            state.theta[k] = (total / weights[labels == k].sum()).float()

    def _drawn(self, context: Context, models: Rows, members: Ids) -> list[int]:
        """Draw K of the members by k-means++: each with probability by its squared distance to the nearest so far."""
        from ..storage.row_store import Selected

        draws, columns = streams.generator(context.seed, "centres"), self._columns(context)
        found = [int(draws.choice(members))]
        squares, rows = np.full(len(members), np.inf), Selected(models, members, columns)
        while len(found) < min(self.clusters, len(members)):
            newest = models[found[-1]][None, columns]
            for part in blocks(len(members), 8 * newest.shape[1]):
                squares[part] = np.minimum(squares[part], _gaps(rows[part], newest)[:, 0] ** 2)
            if not squares.any():
                break  # all that are left are copies
            found.append(int(draws.choice(members, p=squares / squares.sum())))
        return found
