"""What a method can ask of clients: losses in a round, and apart from rounds their samples, updates and features.

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
    """Losses of K models on each of N training samples of m clients: client by client, what never leaves these."""

    values: NDArray[np.float64]  # [N, K]
    owner: Ids  # [N] positions among the m clients
    classes: NDArray[Any]  # [N], or the numbers that are to be predicted
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
    """Measures, when called, the losses of models on clients' training data; what it costs is counted."""

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """Return means [m, K], of the state's models if no ``theta [K, P]`` is given, of the participants' data."""

    def samples(self, clients: Ids | None = None) -> SampleLosses:
        """Return participants' losses on the state's models, sample by sample, for what they compute themselves.

        All participants are asked if no `clients` are given.
        """


class Samples(Protocol):
    """The training samples of all M clients, before any normalisation; what leaves a client is counted."""

    def __len__(self) -> int: ...
    def __getitem__(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return a client's samples [n, d] and labels [n], which all leave it."""

    def reduced(self, function: Callable[[NDArray[np.float32], NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
        """Return ``function(x [n, d], y [n])`` of each client, computed there: only that leaves it."""


class Described(Protocol):
    """Returns ``function(z [n, d], y [n])`` of each of some clients, computed there, of its samples' features."""

    def __call__(
        self, theta: Tensor, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Features are what goes into the last layer of the model `theta` [P]; of whom labels aren't known, y is -1."""


class Survey(Protocol):
    """What clients can be asked for besides a round's training and losses; what it costs them is counted."""

    @property
    def samples(self) -> Samples:
        """The clients' samples."""

    def follow(self) -> None:
        """Look at the samples that clients have by now."""

    def updates(self, theta: Tensor, clients: Ids, training: Training) -> Update:
        """Return the updates, in `Update.rows`, of `clients` [m] that each train the model `theta` [P] by itself.

        Their optimisers are new ones, and a client draws the same whenever it is asked.
        """

    def summed(
        self, theta: Tensor, state: State, clients: Ids, round_: int, training: Training, weights: NDArray[np.float64]
    ) -> Update:  # fmt: skip
        """Let a round's `clients` [m] train the model `theta` [P], too; their weighted sum is `Update.sums` [1, P].

        They draw the round's mini-batches, their optimisers are new ones, and those whose update is dropped are no part
        of the sum.
        """

    def mixed(
        self, state: State, clients: Ids, round_: int, weights: Readable, settled: NDArray[np.bool_], mixing: Mixing,
        beside: int = 0,
    ) -> Mixed:  # fmt: skip
        """Let `clients` mix what they keep with what the models of that round have there; see `Engine.mixed`.

        `beside` of them are sent a model for that, which the others have.
        """

    def trained(
        self, state: State, clients: Ids, round_: int, training: Training, fixed: Collection[str] = (),
        towards: Towards = "start",
    ) -> None:  # fmt: skip
        """Let `clients` train what they keep, from the models that they have; all else, `fixed`, stays as it is.

        Their optimisers are new ones, and they send nothing. The proximal term pulls to where they start, or to the
        models that they are given (`towards`).
        """

    def features(
        self, theta: Tensor, clients: Ids, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Return ``function(z [n, d], y [n])`` of each client, computed there: only that leaves it.

        z are its samples' features, what goes into the last layer, by the model `theta` [P], which it is sent.
        """

    def moments(self, state: State, clients: Ids) -> Moments:
        """Return the sums, which `clients` send, of their samples' features by the models that they were given."""

    def counted(self, down: int, up: int) -> None:
        """Count numbers that clients receive and send besides."""

    def spent(self) -> dict[str, int]:
        """Return, by the names of `rounds.parquet`, what was asked for since the last call."""
