"""FedPer: all clients share the first layers, each keeps the last ones.

Paper: Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers, arXiv 1912.00818,
Algorithms 1 and 2. A client puts its own head on the server's base, trains both together, and sends only the base; the
server's mean is weighted by samples. The paper draws an initial head for each client; TsingZ0/PFLlib, which other
papers use for their tables, gives all clients copies of one (``heads``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..engine.personal import Columns, Personal
from ..simulation.method import Context, Known, Method, Problem, State


def layers_of(context: Context) -> dict[str, list[str]]:
    """Return the names of each layer's tensors, buffers included; only layers with parameters, from first to last."""
    found: dict[str, list[str]] = {}
    for name, columns in context.tensors.items():
        layer = name.rpartition(".")[0]
        if columns.start < context.parameter_columns or layer in found:
            found.setdefault(layer, []).append(name)
    return found


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """Run FedAvg on the first layers; each client keeps the last ones."""

    layers: Annotated[int, Field(gt=0, description="number of layers, counted from the last, that clients keep")] = 1
    tensors: Annotated[
        list[str] | None,
        Field(min_length=1, description="names of tensors or layers that clients keep instead of the last layers"),
    ] = None
    heads: Annotated[
        Literal["common", "independent"],
        Field(description="all clients begin with the same head (PFLlib), or each with one of its own (paper)"),
    ] = "common"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from averages_models(known)
        if known.context is None:
            return
        there = layers_of(known.context)
        if missing := list(absent(known.context, self.tensors)):
            yield from missing
        elif set(self.keeps(known.context)).issuperset(known.context.tensors):
            option, what = ("tensors", "all") if self.tensors else ("layers", f"the last {self.layers}")
            yield Problem(
                option,
                f"of a model of {len(there)} layer{'s' * (len(there) != 1)} clients would keep {what} and share none; "
                "allowed: fewer than it has, or method: local, which shares nothing",
            )

    def keeps(self, context: Context) -> Collection[str]:
        """See `Method.keeps`."""
        there = layers_of(context)
        if self.tensors is None:
            return [name for layer in list(there)[-self.layers :] for name in there[layer]]
        return list(dict.fromkeys(name for given in self.tensors for name in there.get(given, [given])))

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        if self.heads == "independent":
            columns = Columns.of(context.tensors, self.keeps(context))
            rows = context.allocate(context.clients, len(columns))
            for i in range(context.clients):
                rows[i] = columns.taken(context.initial(i))
            state.personal = Personal(columns, rows)
        return state


def absent(context: Context, tensors: Collection[str] | None) -> Iterator[Problem]:
    """Yield a problem of the option `tensors` for its first name that is neither a tensor nor a layer."""
    names = list(context.tensors)
    wrong = [name for name in tensors or () if name not in {*layers_of(context), *names}]
    for name in wrong[:1]:
        sentence = f"the model has no tensor and no layer '{name}'; it has the tensors {', '.join(names)}"
        yield Problem("tensors", sentence)


def averages_models(known: Known) -> Iterator[Problem]:
    """Yield a problem for ``average: gradients``: what clients keep would never be trained."""
    if known.training.average == "gradients":
        sentence = (
            "'gradients' lets the server alone take steps, so what clients keep would stay untrained; allowed: models"
        )
        yield Problem("training.average", sentence)
