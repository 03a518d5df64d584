"""What a round costs its clients: bytes received and sent, and forward passes over their data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ..engine import batches
from ..engine.engine import Engine
from ..engine.features import Features
from ..engine.personal import Columns
from ..engine.update import Update
from ..storage.row_store import Rows
from . import participation
from .measured import Measured
from .method import Context, Ids, Method, SampleLosses
from .participation import Attendance
from .state import State

BYTES_PER_NUMBER = 4  # models and losses travel as float32, labels as int32


class Ledger:
    """What a round costs. Clients that measured losses already have the models; the others receive theirs."""

    def __init__(
        self, engine: Engine, method: Method, context: Context, state: State, attendance: Attendance,
        turns: Sequence[Collection[str]] = (), measured: Measured | None = None,
    ):  # fmt: skip
        self.engine, self.method, self.training = engine, method, context.training
        self.state, self.attendance, self.measured = state, attendance, measured
        self.clients = attendance.clients  # without those whose losses were found to be unsound
        self.factors = participation.factors(engine.training.faults, engine.seed, engine.federation.ids)
        self.several = 1  # models that each participant trained, on average, rounded
        self.calls = self.counted = 0  # requests for losses; those of an earlier try to assign were counted then
        kept = 0 if state.personal is None else state.personal.withheld
        self.model_bytes = (engine.layout.columns - kept) * BYTES_PER_NUMBER
        self.common_bytes = len(Columns.of(context.tensors, method.common(context))) * BYTES_PER_NUMBER
        beside = method.beside(context, state)
        self.times = max(1, len(turns)) * (1 if beside is None else beside.times)  # steps on each mini-batch
        self.still_bytes = still(method, context, turns) * BYTES_PER_NUMBER
        self.asked = np.zeros(engine.federation.clients, dtype=bool)  # clients that received `sent`
        self.sent = state.theta  # the models whose losses were measured
        self.down = self.up = self.forwards = 0
        self.began, self.elsewhere = perf_counter(), 0.0  # the latter: seconds of clients' work, not the server's

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `simulation.asking.Losses`."""
        began = perf_counter()
        theta = self.state.theta if theta is None else theta
        clients = self._count(theta, clients, len(theta) if self.method.reveals == "losses" else 1)
        own = None if self.measured is None else self.measured.own(theta, clients)
        personal = None if self.method.apart else self.state.personal
        measured = self.engine.losses(theta, clients, personal=personal, own=own)
        if self.factors is not None:
            bad = ~np.isfinite(self.factors[clients])
            measured[bad] = self.factors[clients[bad], None]
        self.elsewhere += perf_counter() - began
        return measured

    def errors(self, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `simulation.asking.Losses`."""
        began, theta = perf_counter(), self.state.theta
        clients = self._count(theta, clients, len(theta))
        personal = None if self.method.apart else self.state.personal
        found = self.engine.scores(theta, clients, "train", personal=personal)
        sound = np.isfinite(found.loss)
        if self.factors is not None:
            sound &= np.isfinite(self.factors[clients])[:, None]
        self.elsewhere += perf_counter() - began
        return np.where(sound, 1 - found.correct / found.n[:, None], np.nan)

    def samples(self, clients: Ids | None = None) -> SampleLosses:
        """See `simulation.asking.Losses`."""
        began, train = perf_counter(), self.engine.federation.splits["train"]
        clients = self._count(self.state.theta, clients, 0)
        places, owner = train.of(clients)
        measured = self.engine.losses_of_samples(self.state.theta, clients)
        self.elsewhere += perf_counter() - began
        return SampleLosses(measured, owner, train.y[places], train.sizes[clients])

    def _count(self, theta: Rows, clients: Ids | None, sent: int) -> Ids:
        """Count the models that go to clients, their forward passes, and the numbers they send (`sent` each).

        Returns the clients: all participants if none are given. Then the models also go to those whose work is lost.
        """
        lost = self.attendance.lost if clients is None else self.attendance.lost[:0]
        clients = self.clients if clients is None else clients
        self.calls, self.sent = self.calls + 1, theta
        if self.calls > self.counted:
            self.counted = self.calls
            models = len(theta) * self.model_bytes - (len(theta) - 1) * self.common_bytes
            self.down += (len(clients) + int((~self.asked[lost]).sum())) * models
            self.asked[clients] = self.asked[lost] = True
            self.up += len(clients) * sent * BYTES_PER_NUMBER
            self.forwards += int(self.engine.federation.splits["train"].sizes[clients].sum()) * len(theta)
        return clients

    def leave_out(self, clients: Ids) -> None:
        """Leave out participants with unsound losses; what the other participants did so far isn't counted again."""
        self.clients, self.calls = np.setdiff1d(self.clients, clients), 0

    @property
    def unsound(self) -> int:
        """How many participants were left out because of their losses."""
        return len(self.attendance.clients) - len(self.clients)

    def trained(self, update: Update, began: float, features: Features | None = None, models: int = 1) -> None:
        """Count the models that went to the participants and back, and the losses of their steps if these are needed.

        A participant counts once for each model that it trained; one whose work is lost counts as often as the others.
        For each of its classes a client sends the class's number and mean features; it receives both for each centre.

        `began` is when the training began; `models` is how many models go to each participant that doesn't have them.
        """
        self.several = max(1, round(len(update.clients) / max(1, len(self.clients))))
        reached = np.concatenate([update.clients, np.repeat(self.attendance.lost, self.several)])
        if features is not None and features.centres is not None:
            there = int((~features.centres.isnan().any(1)).sum())
            self.down += len(reached) * there * (1 + features.centres.shape[1]) * BYTES_PER_NUMBER
        if update.moments is not None:
            self.up += int((update.moments.counts > 0).sum()) * (1 + update.moments.sums.shape[2]) * BYTES_PER_NUMBER
        if self.method.communicates:
            if self.sent is not self.state.theta:  # measured on models kept from an earlier round
                self.asked[:] = False
            self.down += int((~self.asked[reached]).sum()) * models * self.model_bytes
            self.up += len(update.clients) * (self.model_bytes - self.still_bytes)
        if "curves" in self.method.needs:
            self.up += int(update.steps.sum()) * BYTES_PER_NUMBER
        self.elsewhere += perf_counter() - began - update.server_seconds

    def wasted_steps(self) -> int:
        """Return the local steps of those whose work is lost."""
        lost, work = self.attendance.lost, self.attendance.work
        if work is None:
            return 0
        sizes = self.engine.federation.splits["train"].sizes[lost]
        return self.times * self.several * int(batches.steps_of(sizes, self.training, work[lost]).sum())

    def server_seconds(self) -> float:
        """Return the time since the round's start, without the clients' work."""
        return perf_counter() - self.began - self.elsewhere


def still(method: Method, context: Context, turns: Sequence[Collection[str]]) -> int:
    """Return how many numbers of an update are zeros, and not sent: frozen ones, and those that no turn trains."""
    kept = method.keeps(context)  # those of them that aren't sent are counted elsewhere
    names = set(context.frozen) if method.sends_kept else context.frozen.difference(kept)
    if turns:
        parameters = {name for name, columns in context.tensors.items() if columns.start < context.parameter_columns}
        names |= parameters.difference(kept, *turns)
    return len(Columns.of(context.tensors, names))
