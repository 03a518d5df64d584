"""Element-wise mixing of some columns of two models, by weights that a client learns on a part of its data.

``mixed = own + (received - own) * w``, and ``w <- clip(w - rate gradient * (received - own), 0, 1)`` with the loss's
gradient at the mixed model, per mini-batch: the local aggregation of Zhang et al., AAAI 2023, arXiv 2212.01197.

Axes: C clients, P columns of a model's row, q of them mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import streams
from .loop import batch_of_one
from .personal import Personal
from .task import Ids
from .worker import Worker


@dataclass(frozen=True)
class Mixing:
    """How weights are learned."""

    rate: float
    share: float  # of a client's samples that are used: consecutive ones from a random start
    batch_size: int  # the samples aren't shuffled
    spread: float  # in a client's first learning, passes end once the last losses' standard deviation is below this
    window: int  # number of these losses, one for each pass: that of its last mini-batch
    passes: int  # the most passes of the first learning; later ones take one pass


@dataclass
class Mixed:
    """What clients have learned."""

    values: Tensor  # [C, q] mixed columns
    weights: Tensor  # [C, q]
    settled: NDArray[np.bool_]  # [C] whether weights have been learned
    seen: Ids  # [C] number of forward passes of samples

    @classmethod
    def empty(cls, clients: int, columns: int) -> Mixed:
        """Return an instance to be filled."""
        values, weights = torch.empty(clients, columns), torch.empty(clients, columns)
        return cls(values, weights, np.zeros(clients, dtype=bool), np.zeros(clients, dtype=np.int64))

    def put(self, part: Ids, found: Mixed) -> None:
        """Write the results `found` of the clients at positions `part`."""
        where = torch.as_tensor(part)
        self.values[where], self.weights[where] = found.values, found.weights
        self.settled[part], self.seen[part] = found.settled, found.seen


def learn(
    worker: Worker, received: Tensor, clients: Ids, round_: int, personal: Personal, weights: Tensor,
    settled: NDArray[np.bool_], mixing: Mixing,
) -> Mixed:  # fmt: skip
    """Return what clients learn; see `Engine.mixed`. Each client is computed alone, so its bits depend on no other."""
    found = Mixed.empty(len(clients), len(personal.columns))
    own = personal.of(clients)
    for i, client in enumerate(clients.tolist()):
        found.settled[i] = settled[i]
        found.values[i], found.weights[i] = own[i], weights[i]
        if not torch.equal(personal.columns.taken(received[i]), own[i]):  # else there is nothing to mix
            one = _Client(worker, received[i].to(worker.device), personal, own[i], weights[i], int(client), round_)
            with batch_of_one(one.id, mixing.batch_size):
                found.seen[i] = one.learn(mixing, first=not settled[i])
            found.values[i], found.weights[i], found.settled[i] = one.mixed(), one.weights, True
    return found


class _Client:
    """A client's model and its weights."""

    def __init__(
        self, worker: Worker, received: Tensor, personal: Personal, own: Tensor, weights: Tensor, client: int,
        round_: int,
    ):  # fmt: skip
        self.worker, self.client, self.id = worker, client, int(worker.federation.ids[client])
        self.own, self.weights = own.to(worker.device), weights.to(worker.device).clone()
        self.away = personal.columns.taken(received) - self.own
        self.round, self.parameters = round_, dict(worker.tuned.named_parameters())
        self.tensors = [
            (name, part) for name, _, part in worker.layout.slices() if personal.columns.meet(part)
        ]  # fmt: skip
        worker.layout.load(worker.tuned, received)

    def mixed(self) -> Tensor:
        """Return the mixed columns, [q]."""
        return self.own + self.away * self.weights

    def learn(self, mixing: Mixing, first: bool) -> int:
        """Learn the weights, in one pass or, if `first`, until they settle; return the number of forward passes."""
        worker, losses = self.worker, list[float]()
        batches = self._samples(mixing)
        worker.tuned.train()
        with streams.torch_stream(worker.seed, "mixing", self.id, self.round):
            while len(losses) < mixing.passes:
                for places in batches:
                    loss = self._step(places, mixing.rate)
                losses.append(float(loss))  # once per pass, because this waits for a GPU
                if not first or (len(losses) > mixing.window and np.std(losses[-mixing.window :]) < mixing.spread):
                    break
        worker.tuned.eval()
        return len(losses) * sum(map(len, batches))

    def _samples(self, mixing: Mixing) -> list[Tensor]:
        """Return the mini-batches, as positions in the training split."""
        begin, end = self.worker.splits["train"].offsets[self.client : self.client + 2].tolist()
        many = max(1, int(mixing.share * (end - begin)))
        draws = streams.generator(self.worker.seed, "mixed samples", self.id, self.round)
        first = begin + int(draws.integers(end - begin - many + 1))
        return list(torch.arange(first, first + many, device=self.worker.device).split(mixing.batch_size))

    def _step(self, places: Tensor, rate: float) -> Tensor:
        """Take a step on a mini-batch and return its loss before the step."""
        worker, mixed, done = self.worker, self.mixed(), 0
        with torch.no_grad():
            for name, part in self.tensors:
                own = self.parameters[name]
                own.copy_(mixed[done : done + part.stop - part.start].view(own.shape))
                done += part.stop - part.start
        x = worker.data["train"].take(places)
        y = worker.data["train"].targets(places, x)
        loss = worker.sample_losses(worker.tuned(worker.shaped(x)), y).mean()
        wanted = [self.parameters[name] for name, _ in self.tensors]
        gradients: Any = torch.autograd.grad(loss, wanted)
        gradient = torch.cat([each.reshape(-1) for each in gradients])
        self.weights = (self.weights - rate * (gradient * self.away)).clamp_(0, 1)
        return loss.detach()
