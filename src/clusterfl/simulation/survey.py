"""Requests to clients besides a round's training, e.g. for a function of their samples or an update of a model.

Their cost is counted and recorded with the round in which they are made; requests before round 1 count in round 1.
Faults (`training.faults`) occur only in rounds, not in these requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.prepared import Prepared
from ..engine.engine import Engine
from ..engine.features import Moments
from ..engine.mixing import Mixed, Mixing
from ..engine.task import Towards
from ..engine.training import Training
from ..engine.update import Update
from . import participation
from .ledger import BYTES_PER_NUMBER
from .state import Ids, State

if TYPE_CHECKING:
    from torch import Tensor

    from ..storage.row_store import Readable

PLAIN = {"average": "models", "optimizer_state": "fresh"}
BEFORE = 0  # the round number of training before round 1, for the clients' draws


class Samples:
    """The training samples of M clients, as numbers; those that leave a client are counted."""

    def __init__(self, data: Prepared, offsets: Ids):
        self.data, self.offsets, self.sent = data, offsets, 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return a client's samples [n, d] and labels [n]; all of them leave the client."""
        if not 0 <= client < len(self):
            raise IndexError(client)
        x, y = self._of(client)
        self.sent += x.size + y.size
        return x, y

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
        return (self[client] for client in range(len(self)))

    def reduced(self, function: Callable[[NDArray[np.float32], NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
        """Return ``function(x [n, d], y [n])`` of each client: only the result leaves it."""
        found = [function(*self._of(client)) for client in range(len(self))]
        self.sent += sum(part.size for part in found)
        return found

    def _of(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        places = self.places(client)
        return self.data.flat(places).cpu().numpy(), self.data.y[places].cpu().numpy()

    def places(self, client: int) -> Tensor:
        """Return where a client's samples are among those of all clients."""
        import torch

        return torch.arange(*self.offsets[client : client + 2].tolist(), device=self.data.rows.device)


class Survey:
    """Requests to an engine's clients; see `simulation.asking.Survey`."""

    def __init__(self, engine: Engine):
        self.engine, self.updated, self.steps = engine, 0, 0
        self.down, self.up = 0, 0  # numbers received and sent besides models and samples
        self.received, self.seen = 0, 0  # models received without sending an update; samples that went through a model
        self.samples = Samples(engine.worker.data["train"], engine.federation.splits["train"].offsets)

    def follow(self) -> None:
        """Use the data that clients have in the current round."""
        self.samples.data = self.engine.worker.data["train"]

    def updates(self, theta: Tensor, clients: Ids, training: Training) -> Update:
        """See `simulation.asking.Survey`."""
        update = self.engine.train(
            theta[None], np.zeros_like(clients), clients, BEFORE,
            needs=frozenset({"updates"}), training=training.model_copy(update=PLAIN),
        )  # fmt: skip
        whose = "the update of client {}, asked for apart from rounds,"
        participation.check_updates(update, self.engine.federation.ids, training, whose)
        self.updated += len(clients)
        self.steps += int(update.steps.sum())
        return update

    def summed(
        self, theta: Tensor, state: State, clients: Ids, round_: int, training: Training, weights: NDArray[np.float64]
    ) -> Update:  # fmt: skip
        """See `simulation.asking.Survey`."""
        update = self.engine.train(
            theta[None], np.zeros_like(clients), clients, round_, weights=weights,
            participations=state.participations[clients], training=training.model_copy(update=PLAIN),
        )  # fmt: skip
        whose = f"round {round_}: the update of client {{}} of one more model"
        participation.check_updates(update, self.engine.federation.ids, training, whose)
        self.updated += len(clients)
        self.steps += int(update.steps.sum())
        return update

    def mixed(
        self, state: State, clients: Ids, round_: int, weights: Readable, settled: NDArray[np.bool_], mixing: Mixing,
        beside: int = 0,
    ) -> Mixed:  # fmt: skip
        """See `simulation.asking.Survey`."""
        assert state.personal is not None
        start = state.labels[clients]
        found = self.engine.mixed(state.theta, start, clients, round_, state.personal, weights, settled, mixing)
        self.received += beside
        self.seen += int(found.seen.sum())
        return found

    def trained(
        self, state: State, clients: Ids, round_: int, training: Training, fixed: Collection[str] = (),
        towards: Towards = "start",
    ) -> None:  # fmt: skip
        """See `simulation.asking.Survey`."""
        assert state.personal is not None
        update = self.engine.train(
            state.theta, state.labels[clients], clients, round_, participations=state.participations[clients],
            training=training, personal=replace(state.personal, sent=False), fixed=frozenset(fixed), towards=towards,
        )  # fmt: skip
        whose = f"round {round_}: what client {{}} keeps, trained apart,"
        participation.check_updates(update, self.engine.federation.ids, training, whose)
        self.steps += int(update.steps.sum())

    def features(
        self, theta: Tensor, clients: Ids, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """See `simulation.asking.Survey`."""
        data, found = self.samples, []
        for client, z in zip(clients.tolist(), self.engine.features(theta, clients, "train"), strict=True):
            found.append(function(z.numpy(), data.data.y[data.places(client)].cpu().numpy()))
            self.seen += len(z)
        self.received += len(clients)
        self.counted(0, sum(part.size for part in found))
        return found

    def moments(self, state: State, clients: Ids) -> Moments:
        """See `simulation.asking.Survey`: a client sends a count and mean for each of its classes, and one variance."""
        found = self.engine.moments(state.theta, state.labels[clients], clients)
        self.counted(0, int((found.counts > 0).sum()) * (1 + found.sums.shape[2]) + len(clients))
        self.seen += int(found.counts.sum())
        return found

    def counted(self, down: int, up: int) -> None:
        """See `simulation.asking.Survey`."""
        self.down, self.up = self.down + down, self.up + up

    def spent(self) -> dict[str, int]:
        """Return the costs since the last call, as they are recorded."""
        columns = self.engine.layout.columns
        found = {
            "bytes_down": ((self.updated + self.received) * columns + self.down) * BYTES_PER_NUMBER,
            "bytes_up": (self.updated * columns + self.samples.sent + self.up) * BYTES_PER_NUMBER,
            "local_steps": self.steps,
            "client_forwards": self.seen,
        }
        self.updated = self.steps = self.samples.sent = self.received = self.seen = self.down = self.up = 0
        return found
