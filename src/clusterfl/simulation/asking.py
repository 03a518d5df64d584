"""What a method can ask clients for: losses in a round and, besides, their samples, updates and features.

Axes: M clients, m participants, K models, P columns of a model's row. No torch is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..engine.training import Training
from .state import Ids, State

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.features import Moments
    from ..engine.mixing import Mixed, Mixing
    from ..engine.task import Towards
    from ..engine.update import Update
    from ..storage.row_store import Readable, Rows


@dataclass(frozen=True)
class SampleLosses:
    """Losses of K models on each of N training samples of m clients, client by client; they never leave the clients."""

    values: NDArray[np.float64]  # [N, K]
    owner: Ids  # [N] positions among the m clients
    classes: NDArray[Any]  # [N], or the numbers to predict
    sizes: Ids  # [m]

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums [m, K] over each client's samples of ``values [N, K]``."""
        # bincount adds one after another, so a client's sum doesn't depend on its neighbours.
        columns = [np.bincount(self.owner, weights=one, minlength=len(self.sizes)) for one in values.T]
        return np.stack(columns, axis=1)

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean losses, [m, K]."""
        return self.sums(self.values) / self.sizes[:, None]


class Losses(Protocol):
    """When called, measures the losses of models on clients' training data; what it costs is counted."""

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """Return mean losses [m, K]; the defaults are the state's models and all participants."""

    def errors(self, clients: Ids | None = None) -> NDArray[np.float64]:
        """Return the shares of samples that the state's models predict wrongly, [m, K], 0 to 1.

        NaN where a model's mean loss is NaN or infinite. All participants are asked if no `clients` are given.
        """

    def samples(self, clients: Ids | None = None) -> SampleLosses:
        """Return the losses of the state's models sample by sample, for what clients compute from them locally.

        All participants are asked if no `clients` are given.
        """


class Samples(Protocol):
    """The training samples of all M clients, without `inputs.mean` and `std`; numbers that leave a client are counted.

    A table's columns are already encoded, and standardised if the settings say so.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return a client's samples [n, d] and labels [n]; all of them leave the client."""

    def reduced(self, function: Callable[[NDArray[np.float32], NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
        """Return ``function(x [n, d], y [n])`` of each client, computed by the client: only the result leaves it."""


class Described(Protocol):
    """Returns ``function(z [n, d], y [n])`` of some clients' features z and labels y, computed by each client."""

    def __call__(
        self, theta: Tensor, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Features are the inputs of the last layer of the model `theta` [P]; unknown labels are -1."""


class Survey(Protocol):
    """Requests to clients besides a round's training and losses; what they cost the clients is counted."""

    @property
    def samples(self) -> Samples:
        """The clients' samples."""

    def follow(self) -> None:
        """Use the data that clients have in the current round, after these have changed."""

    def updates(self, theta: Tensor, clients: Ids, training: Training) -> Update:
        """Let each of `clients` [m] train the model `theta` [P]; its update is in `Update.rows`.

        Their optimisers are new ones, and a client draws the same mini-batches whenever it is asked.
        """

    def summed(
        self, theta: Tensor, state: State, clients: Ids, round_: int, training: Training, weights: NDArray[np.float64]
    ) -> Update:  # fmt: skip
        """Let a round's `clients` [m] also train the model `theta` [P]; `Update.sums` [1, P] is their weighted sum.

        They draw the round's mini-batches and use new optimisers. Updates that are dropped aren't part of the sum.
        """

    def mixed(
        self, state: State, clients: Ids, round_: int, weights: Readable, settled: NDArray[np.bool_], mixing: Mixing,
        beside: int = 0,
    ) -> Mixed:  # fmt: skip
        """Let `clients` mix the columns that they keep with those of the models that they receive; see `Engine.mixed`.

        `beside` of them are sent a model for this; the others have it already.
        """

    def trained(
        self, state: State, clients: Ids, round_: int, training: Training, fixed: Collection[str] = (),
        towards: Towards = "start",
    ) -> None:  # fmt: skip
        """Let `clients` train what they keep, from the models that they have; tensors in `fixed` don't change.

        Their optimisers are new ones, and they send nothing. The proximal term pulls to where they start, or to the
        models that they are given (`towards`).
        """

    def features(
        self, theta: Tensor, clients: Ids, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Return ``function(z [n, d], y [n])`` of each client, computed by the client: only the result leaves it.

        z are its samples' features, the inputs of the last layer of the model `theta` [P], which it is sent.
        """

    def moments(self, state: State, clients: Ids) -> Moments:
        """Return the sums by class that `clients` send of their samples' features under the models they were given."""

    def counted(self, down: int, up: int) -> None:
        """Count further numbers that clients receive (`down`) and send (`up`)."""

    def spent(self) -> dict[str, int]:
        """Return the costs since the last call, under the names of the columns of `rounds.parquet`."""
