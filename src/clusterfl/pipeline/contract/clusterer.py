"""The contract of a clusterer: a function ``(distance, k, seed, **options) -> labels [M]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...clustering import renumbered
from .check import REPRODUCIBLE, Check, Finding, GlobalDraws, drawn_in, fails, first_difference, note, written

GROUPS, MEMBERS = 4, 6


def blocks() -> NDArray[np.float64]:
    """Return distances [24, 24] of four groups, all different: 1 to 2 inside groups, 4 to 8 between them."""
    generator = np.random.default_rng(0)
    label = np.tile(np.arange(GROUPS), MEMBERS)
    noise = generator.uniform(0.5, 1, (len(label), len(label)))
    distance: NDArray[np.float64] = (noise + noise.T) * np.where(label[:, None] == label, 1.0, 4.0)
    np.fill_diagonal(distance, 0)
    return distance


@dataclass
class ClustererCase:
    """A clusterer with options, and its labels of clients in four groups."""

    clusterer: Callable[..., Any]
    options: dict[str, Any]

    def of(self, distance: NDArray[np.float64], k: int = GROUPS) -> NDArray[Any]:
        """Return labels."""
        return np.asarray(self.clusterer(distance, k=k, seed=0, **self.options))

    @cached_property
    def first(self) -> tuple[NDArray[Any], Finding | None, Finding | None]:
        """Labels, and findings on draws from global generators and on inputs changed in place."""
        distance = blocks()
        labels, draws = drawn_in(lambda: self.of(distance))
        return labels, draws, written({"distance": blocks()}, {"distance": distance})


def labels(case: ClustererCase) -> Finding | None:
    """Hold that it returns a whole number for each client."""
    found, clients = case.first[0], GROUPS * MEMBERS
    if found.shape != (clients,) or found.dtype.kind not in "iu":
        return fails(
            f"it returns {found.dtype} of shape {found.shape} for {clients} clients; allowed: whole numbers of shape "
            f"({clients},): one label for each"
        )
    return None


def from_zero(case: ClustererCase) -> Finding | None:
    """Hold that labels are 0, 1, 2, ... without gaps."""
    found = case.first[0]
    if found.min() < 0:
        noise = np.flatnonzero(found < 0)
        return fails(
            f"client {noise[0]} has label {found[noise[0]]} ({len(noise)} clients have negative ones), and all these "
            "would be one cluster; allowed: 0, 1, ...: assign each to the nearest cluster or to a cluster of its own, "
            "as `dbscan` does"
        )
    lacking = np.setdiff1d(np.arange(found.max() + 1), found)
    if len(lacking):
        return note(f"no client has label {lacking[0]} of 0 to {found.max()}; `renumbered` removes such gaps")
    return None


def number(case: ClustererCase) -> Finding | None:
    """Hold that it finds k clusters if there are k clear groups."""
    found = len(np.unique(case.first[0]))
    if found != GROUPS:
        return note(
            f"for {GROUPS} clear groups and k={GROUPS} it makes {found} clusters; right if it chooses the number itself"
        )
    return None


def one(case: ClustererCase) -> Finding | None:
    """Hold that with k = 1 all clients are in one cluster, and that a single client is a cluster."""
    found = len(np.unique(case.of(blocks(), 1)))
    if found != 1:
        return fails(
            f"with k=1 it makes {found} clusters; allowed: 1, which `settled` returns before anything is computed"
        )
    alone = case.of(np.zeros((1, 1)), 1)
    if alone.shape != (1,):
        return fails(f"for one client it returns shape {alone.shape}; allowed: (1,)")
    return None


def all_apart(case: ClustererCase) -> Finding | None:
    """Hold that with k = M every client is a cluster."""
    clients = GROUPS * MEMBERS
    found = len(np.unique(case.of(blocks(), clients)))
    if found != clients:
        return note(
            f"with k={clients}, the number of clients, it makes {found} clusters; right if it chooses the number itself"
        )
    return None


def same_twice(case: ClustererCase) -> Finding | None:
    """Hold that a second call with the same seed gives the same labels."""
    GlobalDraws(2)
    where = first_difference({"labels": case.first[0]}, {"labels": case.of(blocks())})
    return None if where is None else fails(f"{where}, in two calls with seed=0; {REPRODUCIBLE}")


def ties(case: ClustererCase) -> Finding | None:
    """Hold that it returns the same labels each time if all distances are equal."""
    equal = np.ones((6, 6)) - np.eye(6)
    found = []
    for seed in (1, 2):
        GlobalDraws(seed)
        found.append({"labels": case.of(equal.copy(), 3)})
    where = first_difference(*found)
    return None if where is None else fails(f"{where}, if all distances are 1; break ties by the order of clients")


def any_order(case: ClustererCase) -> Finding | None:
    """Hold that for clear groups the clusters don't depend on the order of clients."""
    distance = blocks()
    order, here = np.random.default_rng(3).permutation(len(distance)), renumbered(case.first[0])
    moved = np.empty(len(distance), dtype=np.int64)
    moved[order] = case.of(distance[np.ix_(order, order)])
    bad = np.flatnonzero(renumbered(moved) != here)
    if len(bad):
        return fails(
            f"client {bad[0]} is in another cluster if clients are in the order {order[:6].tolist()}...; clusters may "
            "only depend on distances, not on the clients' order"
        )
    return None


def no_global_draws(case: ClustererCase) -> Finding | None:
    """Hold that no global generator of random, NumPy or torch is drawn from, or seeded."""
    return case.first[1]


def input_unchanged(case: ClustererCase) -> Finding | None:
    """Hold that it doesn't change the distances in place."""
    return case.first[2]


LABELS = "returns a label for each client"
CHECKS = (
    Check(LABELS, labels),
    Check("counts labels from 0", from_zero, (LABELS,)),
    Check("finds as many clusters as there are", number, (LABELS,)),
    Check("puts all together for k = 1", one, (LABELS,)),
    Check("puts all apart for k = M", all_apart, (LABELS,)),
    Check("draws nothing from global generators", no_global_draws, (LABELS,)),
    Check("changes no input", input_unchanged, (LABELS,)),
    Check("gives the same labels twice", same_twice, ("draws nothing from global generators", "changes no input")),
    Check("settles ties", ties, ("gives the same labels twice",)),
    Check("gives the same clusters in any order of clients", any_order, ("gives the same labels twice",)),
)
