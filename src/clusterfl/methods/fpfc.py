"""FPFC: a model for each client, and a penalty on the distance of each pair of models, which fuses similar ones.

Paper: Yu, Liu, Wang and Sun, Clustered Federated Learning based on Nonconvex Pairwise Fusion, arXiv 2211.04218. ADMM
minimises ``sum_i f_i(w_i) + sum_i<j g(|w_i - w_j|)``, where g is the smoothed SCAD penalty. For each pair the server
has a difference theta and a dual v; clients train near ``zeta_i``, the mean over j of ``w_j + theta_ij - v_ij / rho``;
pairs with at least one participant are updated. Pairs whose theta has nearly vanished are in the same cluster.

A pair's step ends with ``theta = s d`` and ``v = rho (1 - s) d``, multiples of the same ``d = w_i - w_j + v / rho``, so
only d and the number s are stored.

As released (xueyu-ubc/FPFC) a pair of two participants is updated twice, and, for images, theta is zero for all pairs
without a participant (``twice``, ``forgets``); of a network it fuses the last layer and averages the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering.fusion import components, pairs_of, shrunk
from ..engine.personal import Columns, Towards
from ..engine.training import Training
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from ..simulation.state import ROWS
from ..storage.blocks import blocks, too_many
from .fedper import FedPer, absent, averages_models
from .fixed import changed

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.update import Update
    from ..storage.row_store import Rows

Array = NDArray[np.float64]
MOST_BYTES = 1 << 38  # limit for all pairs' differences
CACHE_BYTES = 4 << 20  # size of the pairs that are processed at a time
PLAIN = {"server_learning_rate": 1.0, "server_momentum": 0.0}  # plain means, no server optimiser


@dataclass
class Pairs:
    """What the server keeps: clients' models, and the differences of pairs i < j, in the order of i, then of j.

    N pairs; q columns of a model are fused, or are buffers of the fused layers.
    """

    sent: Rows = field(metadata=ROWS)  # [M, q] w, as the server has it
    near: Rows = field(metadata=ROWS)  # [M, q] zeta, as each client last received it
    gaps: Rows = field(metadata=ROWS)  # [N, f] d, of the f parameters among the q columns
    shares: Array  # [N] s
    lengths: Array  # [N] |theta|
    moved: NDArray[np.bool_]  # [N] whether it was updated in the last round


@dataclass(frozen=True, kw_only=True)
class FPFC(Method):
    """Train a model for each client; a penalty on the distances of all pairs fuses similar ones."""

    needs: ClassVar[frozenset[str]] = frozenset({"updates"})
    sends_kept: ClassVar[bool] = True
    ending: ClassVar[tuple[str, ...]] = ("means",)
    own: ClassVar[type | None] = Pairs
    departs: ClassVar[str] = "has a model for each client, fused with others by a penalty"
    fusion: Annotated[
        float, Field(gt=0, description="lambda, the penalty's slope (released: .4 for images, .6 for synthetic data)")
    ] = 0.4  # fmt: skip
    a: Annotated[float, Field(gt=2, description="models farther apart than a x lambda aren't pulled (released)")] = 3.7
    xi: Annotated[
        float, Field(gt=0, description="distance up to which the penalty is quadratic (READMEs: .001)")
    ] = 0.001  # fmt: skip
    rho: Annotated[float, Field(gt=0, description="ADMM's penalty parameter, and the pull on clients (released)")] = 1.0
    threshold: Annotated[
        float | None,
        Field(gt=0, description="pairs with |theta| up to this are in one cluster (released: .1); null: lambda"),
    ] = None
    layers: Annotated[
        int | None,
        Field(
            gt=0, description="number of layers fused, from the last; the others are averaged (released: 1); null: all"
        ),
    ] = None
    tensors: Annotated[
        list[str] | None,
        Field(min_length=1, description="names of tensors or layers that are fused instead of the last layers"),
    ] = None
    twice: Annotated[bool, Field(description="pairs of two participants are updated twice (released)")] = False
    forgets: Annotated[
        bool, Field(description="theta is zero for pairs without a participant in the last round (released, images)")
    ] = False  # fmt: skip
    means: Annotated[
        bool, Field(description="after the last round clients get their cluster's mean model (released, synthetic)")
    ] = False  # fmt: skip

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: clusters follow from models, so there is nothing to rebalance."""
        return False

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        if known.training.divisor != "participants":
            sentence = f"'{known.training.divisor}' is of clusters' updates; allowed: participants"
            yield Problem("training.divisor", sentence)
        for name, only in PLAIN.items():
            if (found := getattr(known.training, name)) != only:
                yield Problem(
                    f"training.{name}", f"{found:g}, but models here are no server's steps; allowed: {only:g}"
                )
        if (least := 1 / (self.a - 1)) >= self.rho:
            yield Problem(
                "rho", f"{self.rho:g} leaves a pair's step without a minimum; allowed: above 1/(a - 1) = {least:g}"
            )
        if self.xi > self.fusion:
            yield Problem(
                "xi", f"{self.xi:g} is beyond the slope's end, lambda; allowed: up to fusion = {self.fusion:g}"
            )
        if known.clients is not None:
            yield from self._too_many(known, known.clients)

    def _too_many(self, known: Known, clients: int) -> Iterator[Problem]:
        """Yield a problem if there are too many pairs, or if the model lacks a named tensor."""
        problem = too_many(clients, "FPFC has a difference of models for each pair")
        if problem:
            yield Problem("", problem)
        if known.context is None:
            return
        if missing := list(absent(known.context, self.tensors)):
            yield from missing
            return
        found = 4 * len(self._fused(known.context)) * (clients * (clients - 1) // 2)
        if found > MOST_BYTES:
            sentence = (
                f"the differences of all pairs of {clients} clients take {found} bytes; allowed: up to {MOST_BYTES}"
            )
            yield Problem("layers", f"{sentence}; fuse fewer layers (layers: 1), or take fewer clients")

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return changed(training, proximal=self.rho)

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`: the fused tensors."""
        if self.tensors is None and self.layers is None:
            return tuple(context.tensors)
        return FedPer(layers=self.layers or 1, tensors=self.tensors).keeps(context)

    def _fused(self, context: Context) -> Columns:
        """Return the columns of the fused parameters; they come before all buffers."""
        names = [name for name in self.keeps(context) if context.tensors[name].start < context.parameter_columns]
        return Columns.of(context.tensors, names)

    def free(self, context: Context) -> Collection[str]:
        """See `Method.free`: the averaged tensors."""
        return context.tensors.keys() - set(self.keeps(context))

    def towards(self, context: Context, state: State) -> Towards:
        """See `Method.towards`: zeta; a client starts from its own model."""
        return "given"

    def begin(self, context: Context) -> State:
        """See `Method.begin`: all models are equal, so there is one cluster."""
        state, clients = super().begin(context), context.clients
        own, fused = Columns.of(context.tensors, self.keeps(context)), len(self._fused(context))
        many = clients * (clients - 1) // 2
        sent, near = (context.allocate(clients, len(own)) for _ in range(2))
        for part in blocks(clients, 4 * len(own)):
            sent[part] = near[part] = own.taken(state.theta[0])
        shares = np.full(many, shrunk(np.zeros(1), self.fusion, self.a, self.xi, self.rho)[0])
        gaps = context.allocate(many, fused)
        state.own = Pairs(sent, near, gaps, shares, np.zeros(many), np.ones(many, dtype=bool))
        return state

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: each client is given zeta, with the common values in the averaged tensors."""
        import torch

        own: Pairs = state.own
        columns, fused = Columns.of(context.tensors, self.keeps(context)), own.gaps.shape[1]
        total = torch.zeros(fused, dtype=torch.float64)
        for part in blocks(context.clients, 8 * own.sent.shape[1]):
            total += own.sent[part][:, :fused].double().sum(0)
        models = context.allocate(len(clients), state.theta.shape[1])
        for row, client in enumerate(clients.tolist()):
            kept = own.sent[client].clone()  # buffers stay the client's own
            kept[:fused] = (total + self._pull(own, client, context.clients)) / context.clients
            own.near[client] = kept
            given = state.theta[0].clone()
            columns.put(given, kept)
            models[row] = given
        return Assignment(state.labels[clients], given=models)

    def _pull(self, own: Pairs, client: int, clients: int) -> Tensor:
        """Return the sum over j of ``theta_ij - v_ij / rho`` for client i, [f]."""
        import torch

        numbers, found = pairs_of(client, clients), torch.zeros(own.gaps.shape[1], dtype=torch.float64)
        share = own.shares[numbers]
        factor = share - (1 - share) if not self.forgets else np.where(own.moved[numbers], share, 0) - (1 - share)
        factor[:client] *= -1  # a pair's difference is its first client's model minus the other's
        for part in blocks(len(numbers), 16 * len(found), CACHE_BYTES):
            rows = own.gaps[torch.as_tensor(numbers[part])]
            found += torch.as_tensor(factor[part]) @ rows.double()
        return found

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`: store the models sent, update the pairs, and derive the clusters from these."""
        import torch

        kept = np.flatnonzero(~update.dropped)
        if update.rows is None or not len(kept):  # no participants, or none with a sound update
            return
        own: Pairs = state.own
        columns = Columns.of(context.tensors, self.keeps(context))
        rest = torch.zeros(state.theta.shape[1], dtype=torch.float64)
        for i, weight in zip(kept.tolist(), weights.tolist(), strict=True):
            row, client = update.rows[i].double(), int(update.clients[i])
            own.sent[client] = (own.near[client].double() + columns.taken(row)).float()
            rest += weight * row
        self._step(own, update.clients[kept], context.clients)
        common = (state.theta[0].double() + rest / weights.sum()).float()
        state.labels = components(
            own.lengths, context.clients, self.fusion if self.threshold is None else self.threshold
        )
        state.theta = self._centres(context, own, state.labels, common)
        if self.means and update.round == context.training.rounds:
            assert state.personal is not None
            for i, label in enumerate(state.labels.tolist()):
                values = columns.taken(state.theta[label])[None]
                state.personal.keep(np.array([i]), values, np.ones(1, dtype=bool))

    def _step(self, own: Pairs, clients: Ids, many: int) -> None:
        """Update the pairs that any of `clients` is in with the current w: first theta, then v."""
        import torch

        here = np.zeros(many, dtype=bool)
        here[clients] = True
        i, j = np.triu_indices(many, 1)
        own.moved = here[i] | here[j]
        numbers = np.flatnonzero(own.moved)
        again = self.twice & here[i] & here[j]
        fused = own.gaps.shape[1]
        for part in blocks(len(numbers), 16 * fused, CACHE_BYTES):
            n = numbers[part]
            apart = own.sent[torch.as_tensor(i[n])][:, :fused] - own.sent[torch.as_tensor(j[n])][:, :fused]
            rows = own.gaps[torch.as_tensor(n)]
            self._update(own, n, apart, rows)
            if again[n].any():
                which = np.flatnonzero(again[n])
                once = rows[torch.as_tensor(which)]
                self._update(own, n[which], apart[torch.as_tensor(which)], once)
                rows[torch.as_tensor(which)] = once
            own.gaps[torch.as_tensor(n)] = rows

    def _update(self, own: Pairs, numbers: Ids, apart: Tensor, rows: Tensor) -> None:
        """Update, in place, the differences ``rows [n, f]`` of the pairs `numbers`; `apart` are their w_i - w_j."""
        import torch

        rows.mul_(torch.as_tensor(1 - own.shares[numbers], dtype=torch.float32)[:, None]).add_(apart)
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).numpy()
        own.shares[numbers] = shrunk(lengths, self.fusion, self.a, self.xi, self.rho)
        own.lengths[numbers] = own.shares[numbers] * lengths

    def _centres(self, context: Context, own: Pairs, labels: Ids, common: Tensor) -> Rows:
        """Return each cluster's mean model [K, P], by the clients' weights; tensors not fused are from `common` [P]."""
        import torch

        weights, columns = (
            self.weights(context, np.arange(context.clients)),
            Columns.of(context.tensors, self.keeps(context)),
        )
        theta = context.allocate(int(labels.max()) + 1, len(common))
        for k in range(len(theta)):
            members = np.flatnonzero(labels == k)
            total = torch.zeros(len(columns), dtype=torch.float64)
            for i in members.tolist():
                total += weights[i] * own.sent[i].double()
            row = common.clone()
            columns.put(row, (total / weights[members].sum()).float())
            theta[k] = row
        return theta
