"""FedDrift: a client whose loss has risen gets a new model; models that do about as well on each other's data merge.

Paper: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, Federated Learning under Distributed Concept Drift, AISTATS 2023,
arXiv 2206.00799. All clients begin with one model. Once every time step (some rounds) participants send their losses on
all models. Each takes the best model, unless its loss is more than delta above the client's best loss a step before:
then the client trains a copy of it, alone, for some steps. The other models merge by complete linkage up to a threshold
on the distance ``max(L_ij - L_ii, L_ji - L_jj, 0)``, with L_ij the loss of model i on the data of j's clients.
FedDrift-Eager: clients that drift in the same step share one new model, and no models merge.

The released code (microsoft/FedDrift, MIT) compares accuracies, not losses (``measure: errors``), and trains models on
their clients' data of all steps so far; here clients have only the current round's data. Both measure before a step's
first round of training, so the second step is compared with losses of the untrained model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..clustering.linkage import hierarchical
from ..errors import Unsound
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, Reveals, State
from ..simulation.model_rows import take_models


@dataclass
class Steps:
    """What the server keeps of clients and models."""

    losses: NDArray[np.float64]  # [M], each client's best loss (or error) in its last step; NaN: not measured yet
    until: Ids  # [M], the step when a client's isolation ends; 0: it isn't isolated
    used: Ids  # [K], uses of a model, by clients and steps; those of models merged into it included
    last: Ids  # [K], the last step in which it was used


@dataclass(frozen=True, kw_only=True)
class FedDrift(Method):
    """Give clients whose loss rises new models, and merge models that do about as well on each other's data."""

    reveals: ClassVar[Reveals] = "losses"
    own: ClassVar[type | None] = Steps
    delta: Annotated[float, Field(gt=0, description="drift: a client's least loss rises by more than this")] = 0.5
    merge_delta: Annotated[
        float | None, Field(gt=0, description="distance up to which models merge; null: delta (released)")
    ] = None  # fmt: skip
    step_rounds: Annotated[
        int, Field(gt=0, description="rounds per time step; in the first of them clients choose models")
    ] = 2
    isolation: Annotated[int, Field(gt=0, description="W, steps for which a client trains its new model alone")] = 1
    models: Annotated[
        int, Field(gt=0, description="most models; then a new one replaces the unused one least recently used, if any")
    ] = 10
    eager: Annotated[
        bool, Field(description="FedDrift-Eager: clients that drift in the same step share a new model; none merge")
    ] = False
    measure: Annotated[
        Literal["losses", "errors"],
        Field(
            description="what is compared: mean losses (paper), or shares of wrong predictions, 1 minus the accuracies "
            "(released)"
        ),
        "later",
    ] = "losses"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if self.measure == "errors" and known.numbers:
            yield Problem("measure", "errors, but real numbers are predicted, not classes; allowed: losses")

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`: models come and go, and a model may belong to one client only."""
        return False

    def unprotected(self) -> str | None:
        """See `Method.unprotected`."""
        return "models that one client trains alone"

    def begin(self, context: Context) -> State:
        """See `Method.begin`: one model, used by all."""
        state, m = super().begin(context), context.clients
        state.own = Steps(np.full(m, np.nan), np.zeros(m, np.int64), np.array([m]), np.array([0]))
        return state

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`: in each step's first round, except the first step's, models are chosen, made, merged."""
        step, place = divmod(round_ - 1, self.step_rounds)
        if not place:
            measured = losses() if self.measure == "losses" else losses.errors()
            bad = ~np.isfinite(measured).any(axis=1)
            if bad.any():
                raise Unsound(clients[bad])
            if step:
                self._step(context, state, step, clients, np.where(np.isnan(measured), np.inf, measured))
            else:
                state.own.losses[clients] = measured[:, 0]  # of the one model
        return Assignment(state.labels[clients])

    def _step(self, context: Context, state: State, step: int, clients: Ids, measured: NDArray[np.float64]) -> None:
        """Let participants choose models by their losses [m, K], then merge models and drop those merged away."""
        own: Steps = state.own
        own.until[own.until <= step] = 0
        free = np.flatnonzero(np.isin(np.arange(len(own.used)), state.labels[own.until > 0], invert=True))
        moved = own.until[clients] == 0
        choice = state.labels[clients].copy()
        choice[moved] = free[measured[moved][:, free].argmin(axis=1)]
        state.labels[clients] = choice
        best = measured[np.arange(len(clients)), choice]
        new = np.flatnonzero(moved & (best > own.losses[clients] + self.delta))
        own.losses[clients] = best
        self._grow(context, state, step, clients[new], choice[new])
        # A reused row held another model when losses were measured, and now belongs to its new client alone.
        free = np.setdiff1d(free, state.labels[own.until > 0])
        into = np.arange(len(own.used))
        if not self.eager:
            into[free] = free[self._merging(context, state, clients, measured, free)]
            self._merge_models(state, into)
        np.add.at(own.used, into[state.labels], 1)
        state.labels = into[state.labels]
        own.last[state.labels] = step
        kept = np.unique(into)
        if len(kept) == len(state.theta):
            return  # the participants have these models already
        take_models(context, state, kept)
        state.labels, own.used, own.last = np.searchsorted(kept, state.labels), own.used[kept], own.last[kept]

    def _grow(self, context: Context, state: State, step: int, drifted: Ids, parents: Ids) -> None:
        """Give each drifted client a copy of the model that was best for it."""
        own: Steps = state.own
        for number, (client, parent) in enumerate(zip(drifted.tolist(), parents.tolist(), strict=True)):
            if self.eager and number:
                state.labels[client] = state.labels[drifted[0]]
                continue
            rows = np.arange(len(own.used))
            unused = np.setdiff1d(rows, state.labels)
            if len(rows) >= self.models and not len(unused):
                return
            if len(rows) < self.models:
                take_models(context, state, np.append(rows, parent))
                own.used, own.last, place = np.append(own.used, 0), np.append(own.last, 0), len(rows)
            else:
                place = int(unused[own.last[unused].argmin()])
                rows[place] = parent
                take_models(context, state, rows)
                own.used[place] = 0
            own.last[place], state.labels[client] = step, place
            own.until[client] = 0 if self.eager else step + self.isolation

    def _merging(
        self, context: Context, state: State, clients: Ids, measured: NDArray[np.float64], free: Ids
    ) -> Ids:  # fmt: skip
        """Return, for each of the `free` models, the position among these of the model it merges into, maybe itself."""
        into, labels, sizes = np.arange(len(free)), state.labels[clients], context.sizes[clients].astype(np.float64)
        there = np.array([k for k, model in enumerate(free) if (labels == model).any()], dtype=np.int64)
        if len(there) < 2:
            return into
        of = [np.average(measured[labels == free[k]], axis=0, weights=sizes[labels == free[k]]) for k in there]
        loss = np.stack(of)[:, free[there]].T  # [i, j]: of model i on the data of j's participants
        worse = loss - np.diag(loss)[:, None]
        distance = np.maximum(np.maximum(worse, worse.T), 0)
        groups = hierarchical(distance, linkage="complete", threshold=self.merge_delta or self.delta)
        into[there] = there[[int(np.argmax(groups == g)) for g in groups]]
        return into

    def _merge_models(self, state: State, into: Ids) -> None:
        """Replace each model that others merge into by their mean, weighted by how often they were used."""
        import torch

        own: Steps = state.own
        for model in np.unique(into):
            parts = np.flatnonzero(into == model)
            if len(parts) > 1:
                total = torch.zeros(state.theta.shape[1], dtype=torch.float64)
                for part in parts.tolist():
                    total += float(own.used[part]) * state.theta[part].double()
                state.theta[int(model)] = (total / float(own.used[parts].sum())).float()
                own.used[model] = own.used[parts].sum()
