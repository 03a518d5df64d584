"""Tasks of worker processes and their results. C clients, P columns of a model's row, p of them parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..storage.row_store import Readable
from .beside import Beside
from .envelope import Envelope
from .features import Features, Moments
from .lockstep import Lockstep, Pairs
from .personal import Personal, Towards
from .training import Training

Ids = NDArray[np.int64]
Sums = dict[int, Tensor]  # weighted sums of updates by target, [P] in float64


def elsewhere(training: Training, towards: Towards) -> bool:
    """Return whether the proximal term pulls clients to models other than those that they start from."""
    return training.proximal > 0 and towards != "start"


@dataclass
class Task:
    """The training of some clients: everything a worker needs except the data."""

    training: Training
    theta: Readable  # [K, P] models
    start: Ids  # [C] the model each starts from
    target: Ids  # [C] the one its update is added to
    weight: NDArray[np.float64]  # [C] of each update in the sum
    clients: Ids  # [C] positions in the federation
    ids: Ids  # [C]
    sizes: Ids  # [C] training samples
    steps: Ids  # [C] optimiser steps of one model
    rate: NDArray[np.float64]  # [C] learning rates
    round: int
    needs: frozenset[str]  # see `Engine.train`
    score: Sequence[str]  # splits on which the trained models are scored
    clip: float  # norm that longer updates are scaled down to; infinite: no clipping
    factor: NDArray[np.float64]  # [C] by which updates are multiplied; if not finite, it replaces all their numbers
    memory: Mapping[str, Readable]  # [M, p] each, of the clients' optimisers; empty: new ones. See `memory`
    taken: Ids  # [C] steps that the optimisers took in earlier rounds
    personal: Personal | None = None  # columns that the clients keep
    features: Features | None = None  # how features are used, if they are
    fixed: frozenset[str] = frozenset()  # names of tensors that aren't trained
    turns: tuple[frozenset[str], ...] = ()  # names of the tensors trained in each turn; empty: all at once
    towards: Towards = "start"  # what the proximal term pulls to
    beside: Beside | None = None  # what the clients train in addition to what they send
    shares: Tensor | None = None  # [N] weights of samples' losses
    begins: Ids | None = None  # [C] position of each client's first sample in `shares`
    free: frozenset[str] = frozenset()  # names of tensors that the proximal term doesn't pull

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def repeats(self) -> int:
        """Steps on each mini-batch."""
        return 1 if self.beside is None else self.beside.steps

    @property
    def wants_gradient(self) -> bool:
        """Whether the last mini-batch's gradient is needed, in addition to the update or as the update."""
        return "last_gradient" in self.needs or self.training.average == "gradients"

    def given(self, device: torch.device) -> Tensor:
        """Return the models that the clients are given, [C, P]; read-only, since rows may share memory."""
        models, which = np.unique(self.start, return_inverse=True)
        rows = self.theta[torch.as_tensor(models)].to(device)
        return rows.expand(len(self), -1) if len(models) == 1 else rows[torch.as_tensor(which, device=device)]

    def rows(self, device: torch.device) -> Tensor:
        """Return the models that the clients start from, [C, P], with the columns that they keep; read-only."""
        rows = self.given(device)
        return rows if self.personal is None else self.personal.into(rows, self.clients)

    def anchors(self, device: torch.device) -> Tensor:
        """Return the models that the proximal term pulls to, [C, P]; read-only."""
        if isinstance(self.towards, int):
            return self.theta[torch.as_tensor([self.towards])].to(device).expand(len(self), -1)
        return self.given(device) if self.towards == "given" else self.rows(device)

    def begun_as(self, columns: slice) -> Ids:
        """Return a number for each client, [C], equal only for those that start from the same values in `columns`."""
        own = self.personal is not None and self.personal.columns.meet(columns)
        return np.arange(len(self)) if own else self.start

    def pulled_as(self, columns: slice) -> Ids:
        """Return a number for each client, [C], equal only for those pulled to the same values in `columns`."""
        if isinstance(self.towards, int):
            return np.zeros(len(self), dtype=np.int64)
        return self.start if self.towards == "given" else self.begun_as(columns)

    def rates(self, device: torch.device) -> Tensor:
        """Return the learning rates, [C, 1]."""
        return torch.as_tensor(self.rate, dtype=torch.float32, device=device)[:, None]

    def memories(self, device: torch.device) -> dict[str, Tensor]:
        """Return copies of the clients' optimiser states, [C, p] each, by name."""
        clients = torch.as_tensor(self.clients)
        return {name: rows[clients].to(device) for name, rows in self.memory.items()}

    @property
    def lockstep(self) -> Lockstep | None:
        """The settings for training two models, if the clients do that."""
        return self.beside if isinstance(self.beside, Lockstep) else None

    @property
    def envelope(self) -> Envelope | None:
        """The settings for training with a centre, if the clients do that."""
        return self.beside if isinstance(self.beside, Envelope) else None

    def paired(self, device: torch.device) -> tuple[Task, Pairs | None]:
        """Return the task with two rows for each client, and its `Pairs`; or itself and None without lockstep."""
        if self.lockstep is None:
            return self, None
        pairs = Pairs(self.lockstep, self.clients, self.rate, device)
        return self.of(np.repeat(np.arange(len(self)), 2)), pairs

    def tails(self) -> list[int]:
        """Return, for each step, the first client that still trains; clients must be in ascending order of steps."""
        found: list[int] = np.searchsorted(self.steps, np.arange(self.steps[-1]), side="right").tolist()
        return found

    def of(self, part: Any) -> Task:
        """Return the task of the clients in `part`, an index of [C]."""
        arrays = ["start", "target", "weight", "clients", "ids", "sizes", "steps", "rate", "factor", "taken"]
        arrays += [] if self.begins is None else ["begins"]
        return replace(self, **{name: getattr(self, name)[part] for name in arrays})

    def cut(self, most: int) -> Iterator[tuple[slice, Task]]:
        """Yield slices of at most `most` clients, in order, and their tasks."""
        for first in range(0, len(self), most):
            part = slice(first, min(first + most, len(self)))
            yield part, self.of(part)


@dataclass
class Scores:
    """Results of models on clients' data, each [m] or [m, K]: samples, correct predictions, mean loss."""

    n: NDArray[np.int64]
    correct: NDArray[np.float64]
    loss: NDArray[np.float64]

    @classmethod
    def none(cls, n: Ids, *models: int) -> Scores:
        """Return scores that are all missing, arrays [m] or [m, K]."""
        return cls(n, np.full((len(n), *models), np.nan), np.full((len(n), *models), np.nan))


@dataclass
class Trained:
    """The result of some clients' training; other fields than `delta` only if they are needed."""

    delta: Tensor  # [C, P]
    curves: Tensor | None = None  # [C, steps] losses, NaN beyond a client's own steps
    last_gradient: Tensor | None = None  # [C, p]
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # [C, p] each, of the clients' optimisers
    moments: Moments | None = None  # of the features during training
    own: Tensor | None = None  # [C, P] models that the clients keep, with a model beside the sent one
    second: Tensor | None = None  # [C, P] models trained in lockstep with those that are sent
    share: Tensor | None = None  # [C] of the second models in the mix

    @classmethod
    def of_pairs(cls, pairs: Pairs, rows: Tensor, start: Tensor, curves: Tensor | None, clients: int) -> Trained:
        """Return the result of the first `clients` pairs; `rows`, `start` and `curves` are [2C, ...]."""
        mixed, second = pairs.ended(rows)
        delta, curves = (rows - start)[::2], None if curves is None else curves[::2][:clients]
        return cls(delta[:clients], curves, own=mixed[:clients], second=second[:clients], share=pairs.share[:clients])

    def of(self, part: slice) -> Trained:
        """Return views of the results of the clients in `part`."""
        names = ("curves", "last_gradient", "own", "second", "share")
        rows = {name: None if getattr(self, name) is None else getattr(self, name)[part] for name in names}
        moments = None if self.moments is None else self.moments.of(part)
        memory = {name: values[part] for name, values in self.memory.items()}
        return Trained(self.delta[part], memory=memory, moments=moments, **rows)


@dataclass
class Result:
    """The result of a task; fields with a default only if they are needed."""

    norm: NDArray[np.float64]  # [C] Euclidean, of the updates and, without clipping, of what isn't sent
    unsound: NDArray[np.bool_]  # [C] whether the change was NaN, infinite or too long: what is kept stays as it was
    sums: Sums = field(default_factory=dict)
    delta: Tensor | None = None  # [C, P]
    curves: NDArray[np.float32] | None = None  # [C, steps]
    last_gradient: Tensor | None = None  # [C, p]
    scores: dict[str, Scores] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)  # [C, p] each, of the clients' optimisers
    personal: Tensor | None = None  # [C, q] trained columns that the clients keep
    second: Tensor | None = None  # [C, P] models trained in lockstep with those that are sent
    share: NDArray[np.float64] | None = None  # [C] of the second models in the mix
    moments: Moments | None = None  # of features by class
