"""The contract of a metric: a function of one input of all clients that returns distances [M, M]."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...clustering.metric import Input
from .check import REPRODUCIBLE, Check, Finding, GlobalDraws, drawn_in, fails, first_difference, written

CLIENTS, COLUMNS, SAMPLES, EQUAL = 7, 12, 20, (1, 4)  # clients 1 and 4 are equal
TOLERANCE = 1e-6  # relative to the largest distance: for sums in another order, and angles of 0 computed by cosines


class Samples(list[Any]):
    """Clients' samples, as `simulation.survey.Samples` without counting."""

    def reduced(self, function: Callable[..., Any]) -> list[Any]:
        """Return the function of each client's samples and classes."""
        return [function(*one) for one in self]


def given(kind: Input, clients: int = CLIENTS, equal: bool = False) -> Any:
    """Return a metric's input for this many clients; with `equal` two of them have equal data and models."""
    generator = np.random.default_rng(1)
    source = np.arange(clients)
    if equal:
        source[EQUAL[1]] = EQUAL[0]
    if kind == "samples":
        x = generator.normal(size=(clients, SAMPLES, COLUMNS)).astype(np.float32)
        y = generator.integers(0, 3, (clients, SAMPLES))
        return Samples((x[i].copy(), y[i].copy()) for i in source)
    if kind == "losses":
        losses = generator.uniform(1, 3, (clients, clients)) - np.eye(clients) * 0.9
        return losses[np.ix_(source, source)].copy()
    return generator.normal(size=(clients, COLUMNS)).astype(np.float32)[source]


def permuted(values: Any, order: NDArray[np.int64], kind: Input) -> Any:
    """Return an input with the clients in another order."""
    if kind == "samples":
        return Samples(copy.deepcopy([values[i] for i in order]))
    return values[np.ix_(order, order)] if kind == "losses" else values[order]


@dataclass
class MetricCase:
    """A metric with options, and its distances between some clients."""

    metric: Callable[..., Any]
    options: dict[str, Any]
    kind: Input

    def of(self, values: Any) -> NDArray[np.float64]:
        """Return distances, converted as in stage distance."""
        return np.asarray(self.metric(values, **self.options), dtype=np.float64)

    @cached_property
    def first(self) -> tuple[NDArray[np.float64], Finding | None, Finding | None]:
        """Distances, and findings on draws from global generators and on inputs changed in place."""
        values = given(self.kind)
        distance, draws = drawn_in(lambda: self.of(values))
        return distance, draws, written(_arrays(given(self.kind)), _arrays(values))

    @property
    def distance(self) -> NDArray[np.float64]:
        """Distances [M, M]."""
        return self.first[0]


def _arrays(values: Any) -> dict[str, Any]:
    if not isinstance(values, list):
        return {"the input": values}
    return {f"{what} of client {i}": one[j] for i, one in enumerate(values) for j, what in enumerate(("x", "y"))}


def shape(case: MetricCase) -> Finding | None:
    """Hold that it returns numbers, a row and a column for each client."""
    found = case.distance.shape
    if found != (CLIENTS, CLIENTS):
        return fails(
            f"it returns shape {found} for {CLIENTS} clients; allowed: ({CLIENTS}, {CLIENTS}), the pairwise distances"
        )
    return None


def finite(case: MetricCase) -> Finding | None:
    """Hold that all distances are finite and none is negative."""
    bad = np.argwhere(~(np.isfinite(case.distance) & (case.distance >= 0)))
    if len(bad):
        i, j = bad[0]
        return fails(
            f"the distance of clients {i} and {j} is {case.distance[i, j]}; allowed: finite numbers, 0 or more: look "
            "for a division by 0, the root of a negative number, or a similarity that should be subtracted from 1"
        )
    return None


def diagonal(case: MetricCase) -> Finding | None:
    """Hold that a client is at distance 0 from itself."""
    bad = np.flatnonzero(np.diag(case.distance))
    if len(bad):
        return fails(
            f"client {bad[0]} is at distance {case.distance[bad[0], bad[0]]} from itself; allowed: 0; if this is "
            "rounding, use np.fill_diagonal(distance, 0)"
        )
    return None


def symmetric(case: MetricCase) -> Finding | None:
    """Hold that the distances from i to j and from j to i have the same bits."""
    bad = np.argwhere(case.distance != case.distance.T)
    if len(bad):
        i, j = bad[0]
        return fails(
            f"from client {i} to {j} it is {case.distance[i, j]}, from {j} to {i} {case.distance[j, i]}; clusterers "
            "need one number: return d + d.T, or (d + d.T) / 2"
        )
    return None


def same_twice(case: MetricCase) -> Finding | None:
    """Hold that a second call gives the same bits."""
    GlobalDraws(2)
    where = first_difference({"distance": case.distance}, {"distance": case.of(given(case.kind))})
    return None if where is None else fails(f"{where}, in two calls with the same input; {REPRODUCIBLE}")


def no_global_draws(case: MetricCase) -> Finding | None:
    """Hold that no global generator of random, NumPy or torch is drawn from, or seeded."""
    return case.first[1]


def input_unchanged(case: MetricCase) -> Finding | None:
    """Hold that it doesn't change its input in place."""
    return case.first[2]


def any_order(case: MetricCase) -> Finding | None:
    """Hold that distances don't depend on the order of clients."""
    order = np.random.default_rng(2).permutation(CLIENTS)
    moved, here = case.of(permuted(given(case.kind), order, case.kind)), case.distance[np.ix_(order, order)]
    bad = np.argwhere(np.abs(moved - here) > TOLERANCE * case.distance.max())
    if len(bad):
        a, b = bad[0]
        return fails(
            f"clients {order[a]} and {order[b]} are {here[a, b]} apart, and {moved[a, b]} if clients are in the order "
            f"{order.tolist()}; a distance may only depend on the two clients, not on their positions"
        )
    return None


def one_client(case: MetricCase) -> Finding | None:
    """Hold that a single client is at distance 0 from itself."""
    found = case.of(given(case.kind, 1))
    if found.shape != (1, 1) or found[0, 0] != 0:
        return fails(
            f"for one client it returns {found.tolist()}; allowed: [[0.0]]: it must work for any number of clients"
        )
    return None


def equal_clients(case: MetricCase) -> Finding | None:
    """Hold that two clients with equal data and models are at distance 0."""
    distance = case.of(given(case.kind, equal=True))
    found = distance[EQUAL]
    if not abs(found) <= TOLERANCE * distance.max():
        return fails(f"two clients with equal {case.kind} are {found} apart; allowed: 0: only their positions differ")
    return None


SHAPE = "returns a distance of every two clients"
CHECKS = (
    Check(SHAPE, shape),
    Check("returns finite numbers from 0 on", finite, (SHAPE,)),
    Check("has a zero diagonal", diagonal, (SHAPE,)),
    Check("is symmetric", symmetric, (SHAPE,)),
    Check("draws nothing from global generators", no_global_draws, (SHAPE,)),
    Check("changes no input", input_unchanged, (SHAPE,)),
    Check("gives the same numbers twice", same_twice, ("draws nothing from global generators", "changes no input")),
    Check("gives the same distances in any order of clients", any_order, ("gives the same numbers twice",)),
    Check("takes one client", one_client, ("has a zero diagonal",)),
    Check("puts equal clients together", equal_clients, (SHAPE,)),
)
