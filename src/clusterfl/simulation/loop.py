"""The one loop that trains every method, and what it records.

Axes: M clients, m participants, K models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine import batches, memory
from ..engine.engine import Engine, Update
from ..engine.task import Scores
from ..engine.worker import NEWCOMER
from ..errors import Diverged, Unsound, UserError
from ..storage.row_store import Rows
from . import participation
from .method import Context, Ids, Method, State

BYTES_PER_NUMBER = 4  # models and losses travel as float32, labels as int32
Progress = Callable[[int, str], None]


@dataclass
class Record:
    """The tables of a run, as lists of columns' parts."""

    history: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def table(parts: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        """Return parts (dicts of equally long columns) as one dict of columns."""
        if not parts:
            return {}
        return {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}

    def tables(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the tables that have rows, by name."""
        return {name: self.table(parts) for name, parts in vars(self).items() if parts}

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> Record:
        """Return what `tables` gave as a record, the history in a part for each round, split and evaluation."""
        found = cls(**{name: [dict(table)] for name, table in tables.items()})
        if found.history:
            table = found.history[0]
            keys = [table[name] for name in ("round", "split", "evaluation")]
            new = np.any([key[1:] != key[:-1] for key in keys], axis=0)
            bounds = [0, *(np.flatnonzero(new) + 1).tolist(), len(keys[0])]
            found.history = [{n: column[i:j] for n, column in table.items()} for i, j in pairwise(bounds)]
        return found


@dataclass
class Checkpoint:
    """A run at a round's end: all that is needed to go on and end with the same bits."""

    round: int
    state: State
    record: Record


def context(engine: Engine, seed: int, **extra: Any) -> Context:
    """Return what a method may know, from an engine."""
    federation = engine.federation
    return Context(
        clients=federation.clients,
        sizes=federation.splits["train"].sizes,
        seed=seed,
        training=engine.training,
        initial=engine.initial,
        allocate=engine.allocate,
        parameter_columns=engine.layout.parameter_columns,
        tensors={name: columns for name, _, columns in engine.layout.slices()},
        true_cluster=federation.true_cluster,
        **extra,
    )


class Ledger:
    """What a round costs. Clients that were asked for their losses have the models; others receive theirs."""

    def __init__(self, engine: Engine, method: Method, state: State, attendance: participation.Attendance):
        self.engine, self.method, self.state, self.attendance = engine, method, state, attendance
        self.clients = attendance.clients  # without those whose losses were found to be unsound
        self.factors = participation.factors(engine.training.faults, engine.seed, engine.federation.ids)
        self.calls = self.counted = 0  # of `losses`; those of an earlier try to assign were paid for
        self.model_bytes = engine.layout.columns * BYTES_PER_NUMBER
        self.asked = np.zeros(engine.federation.clients, dtype=bool)
        self.sent = state["theta"]  # the models that those were asked about
        self.down = self.up = self.forwards = 0
        self.began, self.elsewhere = perf_counter(), 0.0  # seconds that are the clients', not the server's

    def losses(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `methods.base.Losses`."""
        began = perf_counter()
        theta = self.state["theta"] if theta is None else theta
        lost = self.attendance.lost if clients is None else self.attendance.lost[:0]
        clients = self.clients if clients is None else clients
        self.calls, self.sent = self.calls + 1, theta
        if self.calls > self.counted:
            self.counted = self.calls
            self.down += (len(clients) + int((~self.asked[lost]).sum())) * len(theta) * self.model_bytes
            self.asked[clients] = self.asked[lost] = True
            self.up += len(clients) * (len(theta) if self.method.sends_losses else 1) * BYTES_PER_NUMBER
            self.forwards += int(self.engine.federation.splits["train"].sizes[clients].sum()) * len(theta)
        measured = self.engine.losses(theta, clients)
        if self.factors is not None:
            bad = ~np.isfinite(self.factors[clients])
            measured[bad] = self.factors[clients[bad], None]
        self.elsewhere += perf_counter() - began
        return measured

    def leave_out(self, clients: Ids) -> None:
        """Go on without participants whose losses are unsound; what the others were asked for isn't counted again."""
        self.clients, self.calls = np.setdiff1d(self.clients, clients), 0

    @property
    def unsound(self) -> int:
        """How many participants were left out for their losses."""
        return len(self.attendance.clients) - len(self.clients)

    def trained(self, update: Update, began: float) -> None:
        """Count the models that went to the participants and back, and the losses of their steps if these are needed.

        `began` is when their training did.
        """
        if self.method.communicates:
            reached = np.concatenate([update.clients, self.attendance.lost])
            if self.sent is not self.state["theta"]:  # measured on models kept from an earlier round
                self.asked[:] = False
            self.down += int((~self.asked[reached]).sum()) * self.model_bytes
            self.up += len(update.clients) * self.model_bytes
        if "curves" in self.method.needs:
            self.up += int(update.steps.sum()) * BYTES_PER_NUMBER
        self.elsewhere += perf_counter() - began - update.server_seconds

    def wasted_steps(self) -> int:
        """Return the local steps of those whose work is lost."""
        lost, work = self.attendance.lost, self.attendance.work
        if work is None:
            return 0
        sizes = self.engine.federation.splits["train"].sizes[lost]
        return int(batches.steps_of(sizes, self.method.training, work[lost]).sum())

    def server_seconds(self) -> float:
        """Return the time since the round's start that wasn't the clients'."""
        return perf_counter() - self.began - self.elsewhere


def run(
    method: Method,
    engine: Engine,
    *,
    first_round: int = 1,
    needs: frozenset[str] = frozenset(),
    observe: Callable[[int, State, Update], None] = lambda round_, state, update: None,
    progress: Progress = lambda done, text: None,
    resume: Checkpoint | None = None,
    save: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> tuple[State, Record]:
    """Run a method's rounds ``first_round .. training.rounds``.

    Parameters
    ----------
    method, engine
        What to run and on what.
    first_round
        1, or the first round after a warm-up.
    needs
        What `observe` needs of the updates, besides what the method needs.
    observe
        Called after each round's training with the round, the state before merging, and the update.
    progress
        Called after each round with its number and a few words.
    resume
        Where to go on: what `save` was given at the end of a round of an earlier run with the same settings.
    save
        Called at each round's end. What it gets is the run's own and changes in the next round.

    Returns
    -------
    The final state (flat, named arrays) and the record.
    """
    if resume is not None:
        state, record = resume.state, resume.record
        first_round = resume.round + 1
    else:
        state, record = _begin(method, engine), Record()
        if first_round == 1:
            _evaluate(record, engine, method, state, 0)
    for round_ in range(first_round, engine.training.rounds + 1):
        try:
            _round(method, engine, state, record, round_, needs | method.needs, observe)
        except Diverged as error:
            error.record = record
            raise
        if round_ % engine.training.evaluate_every == 0 or round_ == engine.training.rounds:
            _evaluate(record, engine, method, state, round_)
        progress(round_, _words(record))
        save(Checkpoint(round_, state, record))
    return state, record


def _begin(method: Method, engine: Engine) -> State:
    state = method.begin()
    clients = engine.federation.clients
    state["participations"] = np.zeros(clients, dtype=np.int64)
    state["last_label"] = np.full(clients, -1, dtype=np.int64)  # of the last participation; -1 = none yet
    if "stale" in engine.training.evaluations:
        _remember_initial(state, engine)
    earlier = method.context.warmup or {}
    columns = engine.layout.parameter_columns
    state |= memory.begin(method.training, clients, columns, engine.allocate, earlier)
    return state | {n: v.copy() for n, v in earlier.items() if n == "participations" or n.startswith("stale.")}


def _round(
    method: Method, engine: Engine, state: State, record: Record, round_: int, needs: frozenset[str],
    observe: Callable[[int, State, Update], None],
) -> None:  # fmt: skip
    """Let one round happen: `state` and `record` are changed."""
    drawn, began = method.sample(state, round_), perf_counter()
    ids, most = engine.federation.ids, method.training.most
    attendance = participation.attendance(engine.training.faults, most, engine.seed, round_, drawn, ids)
    ledger = Ledger(engine, method, state, attendance)
    clients = _assign(ledger, round_)
    weights, training_began = method.weights(clients), perf_counter()
    update = engine.train(
        state["theta"], state["labels"][clients], clients, round_,
        target=_target(state)[clients], weights=weights, needs=needs,
        participations=state["participations"][clients],
        score=_held_out(engine) if {"local", "stale"} & set(engine.training.evaluations) else (),
        training=method.training, clip=method.clip,
        effort=None if attendance.work is None else attendance.work[clients],
        factors=None if ledger.factors is None else ledger.factors[clients], kept=memory.of(state),
    )  # fmt: skip
    ledger.trained(update, training_began)
    try:
        _check_updates(engine, update)
        observe(round_, state, update)
        _merge(method, engine, state, update, weights)
    except Diverged:
        _record_round(record, engine, state, update, ledger)  # it was paid for
        raise
    server_seconds = ledger.server_seconds()
    state["participations"][clients] += 1
    state["last_label"][clients] = state["labels"][clients]
    _record_round(record, engine, state, update, ledger)
    _record_local(record, engine, state, update)
    seconds = {"seconds": perf_counter() - began, "server_seconds": server_seconds}
    record.timing.append({"round": round_} | seconds)


def _assign(ledger: Ledger, round_: int) -> Ids:
    """Let the method assign the participants, whose losses are sound; the state is changed. Return who these are.

    With ``diverged: exclude`` the others are left out as if they hadn't been drawn.
    """
    engine, method, state = ledger.engine, ledger.method, ledger.state
    while len(ledger.clients):
        try:
            state.update(method.assign(state, ledger.clients, ledger.losses))
            break
        except Unsound as error:
            found = engine.federation.ids[error.clients]
            if engine.training.diverged == "stop":
                raise Diverged(
                    f"round {round_}: the losses of client {found[0]} on the models are NaN or infinite "
                    f"({participation.listed(found, len(ledger.clients))}); training diverged: lower the "
                    "learning rate, or set diverged: exclude to go on without such clients"
                ) from error
            ledger.leave_out(error.clients)
    return ledger.clients


def _merge(method: Method, engine: Engine, state: State, update: Update, weights: NDArray[np.float64]) -> None:
    """Let the method look at the updates and merge those that aren't excluded: `state` and `update` are changed."""
    state.update(method.regroup(state, update))
    target = _target(state)[update.clients]
    if update.sums is None:
        update.sums = engine.reduce(update, target, weights, len(state["theta"]))
    kept = ~update.dropped
    state.update(method.merge(state, update, target[kept], weights[kept]))
    _check_finite(state, target[kept], update.round)
    state.pop("target", None)


def _target(state: State) -> Ids:
    """Return y [M]: the model each client's update is added to, its label unless a method says otherwise."""
    target: Ids = state["target"] if "target" in state else state["labels"]
    return target


def _held_out(engine: Engine) -> list[str]:
    return [name for name in ("validation", "test") if len(engine.federation.splits[name])]


def _check_updates(engine: Engine, update: Update) -> None:
    """Stop for updates that diverged, unless they are to be excluded."""
    bad = np.flatnonzero(update.dropped)
    if not len(bad) or engine.training.diverged == "exclude":
        return
    ids = engine.federation.ids[update.clients[bad]]
    norm = update.norms[bad[0]]
    what = f"is {norm:.3g} long, more than largest_update ({engine.training.largest_update:g})"
    raise Diverged(
        f"round {update.round}: the update of client {ids[0]} "
        f"{what if np.isfinite(norm) else 'is NaN or infinite'} "
        f"({participation.listed(ids, len(update.clients))}); training diverged: lower the learning "
        "rate, or set diverged: exclude to go on without such updates"
    )


def _check_finite(state: State, target: Ids, round_: int) -> None:
    touched = np.unique(target)
    bad = [int(k) for k in touched if not bool(state["theta"][int(k)].isfinite().all())]
    if bad:
        raise Diverged(
            f"round {round_}: model {bad[0]} became NaN or infinite ({len(bad)} of {len(touched)} models); "
            "training diverged: lower the learning rate"
        )


def _record_round(record: Record, engine: Engine, state: State, update: Update, ledger: Ledger) -> None:
    participated = np.zeros(engine.federation.clients, dtype=bool)
    participated[update.clients] = True
    record.rounds.append(
        {
            "round": update.round,
            "bytes_down": ledger.down,
            "bytes_up": ledger.up,
            "local_steps": int(update.steps.sum()) + ledger.wasted_steps(),
            "client_forwards": ledger.forwards,
            "clusters": len(np.unique(state["labels"][state["labels"] >= 0])),
            "excluded": int(update.dropped.sum()) + ledger.unsound,
            "epsilon": ledger.method.spent(update.round),
            **(
                {}
                if engine.training.faults is None
                else {n: getattr(ledger.attendance, n) for n in participation.COUNTED}
            ),
        }
    )
    record.clusters.append(
        {
            "round": np.full(len(participated), update.round),
            "client": engine.federation.ids,
            "cluster": np.array(state["labels"]),
            "participated": participated,
        }
    )


def _evaluate(record: Record, engine: Engine, method: Method, state: State, round_: int) -> None:
    """Score each labelled client's current cluster model on all splits that have samples, and what else is asked."""
    clients = np.flatnonzero(state["labels"] >= 0)
    labels, ids = state["labels"][clients], engine.federation.ids[clients]
    for split, data in engine.federation.splits.items():
        if len(clients) and len(data):
            scores = engine.own_scores(state["theta"], labels, clients, split)
            _append(record, round_, ids, labels, split, "aggregated", scores)
    if "personalised" in engine.training.evaluations and len(clients):
        found = engine.personalise(
            state["theta"], labels, clients, round_, state["participations"][clients], _held_out(engine),
            method.training,
        )  # fmt: skip
        for split, scores in found.items():
            _append(record, round_, ids, labels, split, "personalised", scores)
    if "newcomer" in engine.training.evaluations:
        _evaluate_newcomers(record, engine, method, state, round_)


def _evaluate_newcomers(record: Record, engine: Engine, method: Method, state: State, round_: int) -> None:
    """Score, on their test data, the model that each newcomer is given."""
    if engine.newcomers is None:
        raise UserError(
            "evaluations: 'newcomer' asked for, but this partition has no newcomers; set partition.newcomers, or leave "
            "it away"
        )
    labels = newcomer_labels(engine, method, state)[0]
    placed = np.flatnonzero(labels >= 0)
    test = NEWCOMER + "test"
    if len(placed) and len(engine.newcomers.splits["test"]):
        scores = engine.own_scores(state["theta"], labels[placed], placed, test)
        _append(record, round_, engine.newcomers.ids[placed], labels[placed], "test", "newcomer", scores)


def newcomer_labels(engine: Engine, method: Method, state: State) -> tuple[Ids, NDArray[np.float64]]:
    """Return the model of each newcomer (-1 = none) and the losses that decided, on `Method.placing`: [m], [m, K]."""
    assert engine.newcomers is not None
    if not method.places:
        m, k = len(engine.newcomers.splits["train"].sizes), len(state["theta"])
        return np.full(m, -1), np.full((m, k), np.nan)
    losses = newcomer_losses(engine, method.placing(state))
    return method.place(state, losses), losses


def newcomer_losses(engine: Engine, theta: Rows) -> NDArray[np.float64]:
    """Return each newcomer's mean loss on each model, [m, K].

    Losses are on a newcomer's training data; on its test data where it has no other.
    """
    assert engine.newcomers is not None
    sizes = engine.newcomers.splits["train"].sizes
    losses = np.full((len(sizes), len(theta)), np.nan)
    for split, clients in (("train", np.flatnonzero(sizes > 0)), ("test", np.flatnonzero(sizes == 0))):
        if len(clients):
            losses[clients] = engine.losses(theta, clients, NEWCOMER + split)
    return losses


def _append(
    record: Record, round_: int, ids: Ids, labels: Ids, split: str, evaluation: str, scores: Scores
) -> None:  # fmt: skip
    record.history.append(
        {
            "round": np.full(len(ids), round_),
            "client": ids,
            "cluster": labels,
            "split": np.full(len(ids), split),
            "evaluation": np.full(len(ids), evaluation),
            "n": scores.n,
            "correct": scores.correct,
            "loss": scores.loss,
        }
    )


def _remember_initial(state: State, engine: Engine) -> None:
    """Let the initial model's scores stand for those of a client's last model, before it first takes part."""
    clients, theta, labels = np.arange(engine.federation.clients), state["theta"], state["labels"]
    if (labels < 0).any():  # which model a client starts from isn't known yet
        theta, labels = engine.initial(0)[None], np.zeros_like(clients)
    for split in _held_out(engine):
        scores = engine.own_scores(theta, labels, clients, split)
        state[f"stale.{split}.correct"], state[f"stale.{split}.loss"] = scores.correct, scores.loss


def _record_local(record: Record, engine: Engine, state: State, update: Update) -> None:
    """Record the trained models' scores, and those of the models that the participants trained the time before.

    The latter is LCFL's published protocol: a client scores the model it has before it downloads another.
    """
    clients, evaluations = update.clients, engine.training.evaluations
    labels, ids = state["labels"][clients], engine.federation.ids[clients]
    for split, local in update.local.items():
        if "local" in evaluations:
            _append(record, update.round, ids, labels, split, "local", local)
        if "stale" in evaluations:
            correct, loss = state[f"stale.{split}.correct"], state[f"stale.{split}.loss"]
            _append(record, update.round, ids, labels, split, "stale", Scores(local.n, correct[clients], loss[clients]))
            correct[clients], loss[clients] = local.correct, local.loss


def _words(record: Record) -> str:
    """Return the newest test accuracy, or for regression the loss, in words for progress lines."""
    for part in reversed(record.history):
        if part["split"][0] == "test" and part["evaluation"][0] == "aggregated":
            total = part["n"].sum()
            if not total:
                return ""
            if np.isnan(part["correct"]).all():
                return f"test loss {np.nansum(part['loss'] * part['n']) / total:.4g}"
            return f"test accuracy {100 * np.nansum(part['correct']) / total:.1f} %"
    return ""
