"""FedALA: a client mixes the upper layers of the common model with its own, by weights that it learns.

Paper: Zhang, Hua, Wang, Song, Xue, Ma and Guan, FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
AAAI 2023, arXiv 2212.01197, Algorithm 1. A client begins a round with the common model's lower layers and, element by
element, ``own + (common - own) w`` in the last tensors; `engine.mixing` describes how w is learned. It then trains and
sends the whole model.

In TsingZ0/PFLlib, which other papers use for their tables, all clients receive each round's model, mix it, whether or
not they are drawn for the next round, and are scored on the mixed model (``everyone``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..engine.personal import Columns
from ..simulation.method import Context, Ids, Known, Method, Problem, State
from ..simulation.state import ROWS
from ..storage.blocks import blocks
from .fedper import averages_models

if TYPE_CHECKING:
    from ..engine.update import Update
    from ..storage.row_store import Rows


@dataclass
class Weights:
    """What clients have learned."""

    weights: Rows = field(metadata=ROWS)  # [M, q], the common model's weight in each element of the mixed one
    settled: NDArray[np.bool_]  # [M] whether the weights have been learned at least once


@dataclass(frozen=True, kw_only=True)
class FedALA(Method):
    """Run FedAvg from models whose last tensors each client mixes with its own, by weights that it learns."""

    sends_kept: ClassVar[bool] = True
    own: ClassVar[type | None] = Weights
    tensors: Annotated[
        int, Field(gt=0, description="number of parameter tensors, counted from the last, that clients mix")
    ] = 2
    rate: Annotated[float, Field(gt=0, description="eta, learning rate of the mixing weights")] = 1.0
    share: Annotated[
        float, Field(gt=0, le=1, description="share of its training samples on which a client learns the weights")
    ] = 0.8  # fmt: skip
    spread: Annotated[
        float,
        Field(gt=0, description="first learning ends once the last losses' standard deviation is below this"),
    ] = 0.1
    window: Annotated[int, Field(gt=1, description="number of these losses, one per pass")] = 10
    passes: Annotated[
        int, Field(gt=0, description="most passes of a client's first learning (PFLlib: no limit); later it does one")
    ] = 1000  # fmt: skip
    everyone: Annotated[
        bool,
        Field(
            description="all clients receive each round's model and mix it (PFLlib), or only participants, at the "
            "beginning of their round (Algorithm 1)"
        ),
    ] = True

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        if known.context is not None and self.tensors > len(names := parameters(known.context)):
            sentence = f"{self.tensors} of the model's parameter tensors, which are {len(names)}: {', '.join(names)}"
            yield Problem("tensors", f"{sentence}; allowed: 1 to {len(names)}")

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`."""
        return parameters(context)[-self.tensors :]

    def begin(self, context: Context) -> State:
        """See `Method.begin`: the common model has weight 1."""
        state, columns = super().begin(context), len(Columns.of(context.tensors, self.keeps(context)))
        rows = context.allocate(context.clients, columns)
        for part in blocks(context.clients, 4 * columns):
            rows[part] = 1
        state.own = Weights(rows, np.zeros(context.clients, dtype=bool))
        return state

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """See `Method.prepare`."""
        if not self.everyone:
            self._mix(context, state, round_ - 1, clients)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`."""
        super().merge(context, state, update, target, weights)
        # A round without participants changes nothing; with privacy its model is noise, which hides that nobody came.
        if self.everyone and (len(update.clients) or context.own_draws):
            everybody = np.arange(context.clients)
            self._mix(context, state, update.round, everybody, beside=context.clients - len(update.clients))

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: models sent to clients that aren't drawn."""
        return columns * (rounds * context.clients - participations) if self.everyone else 0.0

    def _mix(self, context: Context, state: State, round_: int, clients: Ids, beside: int = 0) -> None:
        """Let clients mix their tensors with those of the model after round `round_`, and learn weights."""
        import torch

        from ..engine.mixing import Mixing

        assert state.personal is not None
        batch = context.training.batch_size
        size = int(context.sizes.max()) if batch == "full" else int(batch)
        mixing = Mixing(self.rate, self.share, size, self.spread, self.window, self.passes)
        own: Weights = state.own
        found = context.survey.mixed(state, clients, round_, own.weights, own.settled, mixing, beside)
        rows, where = state.personal.rows, torch.as_tensor(clients)
        rows[where], own.weights[where] = found.values, found.weights  # type: ignore[index]
        own.settled[clients] = found.settled


def parameters(context: Context) -> list[str]:
    """Return the names of the model's parameter tensors, without buffers."""
    return [name for name, columns in context.tensors.items() if columns.start < context.parameter_columns]
