"""A method that wraps another one and delegates to it: the base of rebalancing and privacy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..engine.training import Training
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, State
from ..simulation.returned import check_assignment, check_state, hook

if TYPE_CHECKING:
    from ..engine.beside import Beside
    from ..engine.features import Features
    from ..engine.task import Towards
    from ..engine.update import Update
    from ..simulation.asking import Described
    from ..storage.row_store import Rows


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method):
    """A method that delegates to another one."""

    inner: Method
    name: str

    KINDS: ClassVar = (
        "needs",
        "reveals",
        "communicates",
        "sends_kept",
        "apart",
        "one_shot",
        "splits",
        "own",
        "copies",
    )

    def __post_init__(self) -> None:
        for kind in self.KINDS:
            object.__setattr__(self, kind, getattr(self.inner, kind))

    @property
    def assigns(self) -> bool:
        """See `Method.assigns`."""
        return self.inner.assigns

    @property
    def places(self) -> bool:
        """See `Method.places`."""
        return self.inner.places

    @property
    def clip(self) -> float:
        """See `Method.clip`."""
        return self.inner.clip

    def inside(self, context: Context) -> Context:
        """Return the context that the inner method gets."""
        return context

    def models(self, known: Known) -> int | None:
        """Return how many models the inner method begins with, if known."""
        if isinstance(self.inner, Wrapper):
            return self.inner.models(known)
        if known.context is not None:
            state = self.inner.begin(known.context)
            check_state(state, None, np.arange(known.context.clients), hook(self, "begin"))
            return len(state.theta)
        found: int | None = getattr(self.inner, "clusters", None)
        return found

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from self.inner.check(known)

    def unprotected(self) -> str | None:
        """See `Method.unprotected`."""
        return self.inner.unprotected()

    def settings(self, training: Training) -> Training:
        """See `Method.settings`."""
        return self.inner.settings(training)

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        return self.inner.begin(self.inside(context))

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`."""
        return self.inner.keeps(self.inside(context))

    def features(self, context: Context, state: State) -> Features | None:
        """See `Method.features`."""
        return self.inner.features(self.inside(context), state)

    def fixed(self, context: Context) -> Collection[str]:
        """See `Method.fixed`."""
        return self.inner.fixed(self.inside(context))

    def alone(self, training: Training) -> Training | None:
        """See `Method.alone`."""
        return self.inner.alone(training)

    def towards(self, context: Context, state: State) -> Towards:
        """See `Method.towards`."""
        return self.inner.towards(self.inside(context), state)

    def beside(self, context: Context, state: State) -> Beside | None:
        """See `Method.beside`."""
        return self.inner.beside(self.inside(context), state)

    def free(self, context: Context) -> Collection[str]:
        """See `Method.free`."""
        return self.inner.free(self.inside(context))

    def turns(self, context: Context, round_: int) -> Sequence[Collection[str]]:
        """See `Method.turns`."""
        return self.inner.turns(self.inside(context), round_)

    def common(self, context: Context) -> Collection[str]:
        """See `Method.common`."""
        return self.inner.common(self.inside(context))

    def drifted(self, context: Context, state: State) -> None:
        """See `Method.drifted`."""
        self.inner.drifted(self.inside(context), state)

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """See `Method.sample`."""
        return self.inner.sample(self.inside(context), state, round_)

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """See `Method.assign`."""
        found = self.inner.assign(self.inside(context), state, round_, clients, losses)
        check_assignment(found, len(state.theta), clients, hook(self, "assign", round_))
        return found

    def prepare(self, context: Context, state: State, round_: int, clients: Ids) -> None:
        """See `Method.prepare`."""
        self.inner.prepare(self.inside(context), state, round_, clients)

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """See `Method.regroup`."""
        self.inner.regroup(self.inside(context), state, update)

    def weights(self, context: Context, clients: Ids) -> NDArray[np.float64]:
        """See `Method.weights`."""
        return self.inner.weights(self.inside(context), clients)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`."""
        self.inner.merge(self.inside(context), state, update, target, weights)

    def placing(self, state: State) -> Rows:
        """See `Method.placing`."""
        return self.inner.placing(state)

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """See `Method.place`."""
        return self.inner.place(state, losses)

    def recognise(self, state: State, described: Described) -> Ids | None:
        """See `Method.recognise`."""
        return self.inner.recognise(state, described)

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`."""
        return self.inner.besides(self.inside(context), columns, participations, rounds)

    def spent(self, context: Context, round_: int) -> float:
        """See `Method.spent`."""
        return self.inner.spent(self.inside(context), round_)

    def facts(self, context: Context) -> dict[str, Any]:
        """See `Method.facts`."""
        return self.inner.facts(self.inside(context))
