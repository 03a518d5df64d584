"""The one loop that trains every method.

Axes: M clients, m participants, K models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine import memory
from ..engine.engine import Engine
from ..engine.personal import Columns, Personal
from ..engine.processes import one_thread
from ..engine.update import Update
from ..errors import Diverged, Unsound, UserError
from ..storage.blocks import blocks
from ..storage.row_store import Rows
from . import participation, returned, server
from .assignment import Assignment, Trainings, trainings
from .evaluation import evaluate, held_out, record_local, remember_initial
from .ledger import Ledger
from .measured import Measured
from .method import Context, Method, prepared
from .record import Record
from .state import Ids, Scored, State
from .survey import Survey

Progress = Callable[[int, str], None]


@dataclass
class Checkpoint:
    """A run at a round's end: all that is needed to resume it with bit-identical results."""

    round: int
    state: State
    record: Record
    beside: dict[str, Rows] = field(default_factory=dict)  # further rows, kept by the caller of `run`


def context(engine: Engine, **extra: Any) -> Context:
    """Return what a method may know, from an engine."""
    federation = engine.federation
    return Context(
        clients=federation.clients,
        sizes=federation.splits["train"].sizes,
        seed=engine.seed,
        training=engine.training,
        initial=engine.initial,
        allocate=engine.allocate,
        parameter_columns=engine.layout.parameter_columns,
        survey=Survey(engine),
        words=federation.words,
        copies=engine.copies,
        classes=federation.classes,
        head=engine.worker.head,
        tensors={name: columns for name, _, columns in engine.layout.slices()},
        frozen=engine.layout.frozen,
        true_cluster=federation.true_cluster,
        **extra,
    )


def run(
    method: Method,
    context: Context,
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
    method, context, engine
        What to run, what it may know, and what trains.
    first_round
        1, or the first round after a warm-up.
    needs
        What `observe` needs of the updates, besides what the method needs.
    observe
        Called after each round's training with the round, the state before merging, and the update.
    progress
        Called after each round with its number and a short text.
    resume
        Where to resume: the checkpoint that `save` got in an earlier run with the same settings.
    save
        Called at each round's end. Its checkpoint isn't a copy: the next round changes it.

    Returns
    -------
    The final state and the record.

    Raises
    ------
    UserError
        If the method can't do what is asked, see `Method.check`.
    """
    # The server's steps, too, use one thread: threads that wait for each other slow down other jobs on the same cores.
    with one_thread(engine.device):
        context, measured = prepared(method, _entered(context, engine, first_round)), None
        returned.check_constant(method, context)
        if resume is not None:
            state, record = resume.state, resume.record
            first_round = resume.round + 1
        else:
            record = Record()
            try:
                state = _begin(method, context, engine)
            except Diverged as error:
                error.record = record
                raise
            if first_round == 1:
                measured = evaluate(record, engine, method, context, state, 0)
        running = _Running(method, context, engine, state, record, needs | method.needs, observe, measured)
        for round_ in range(first_round, engine.training.rounds + 1):
            try:
                running.enter(round_)
                running.round(round_)
            except Diverged as error:
                error.record = record
                raise
            if round_ % engine.training.evaluate_every == 0 or round_ == engine.training.rounds:
                running.measured = evaluate(record, engine, method, context, state, round_)
            progress(round_, record.newest())
            save(Checkpoint(round_, state, record))
    return state, record


def _entered(context: Context, engine: Engine, round_: int) -> Context:
    """Give clients the data that they have in a round, and return the context with what has changed."""
    if not engine.enter(round_):
        return context
    context.survey.follow()
    return replace(context, true_cluster=engine.federation.true_cluster)


def _begin(method: Method, context: Context, engine: Engine) -> State:
    """Return the state before the first round, with a warm-up's participations, optimisers and scores carried over."""
    state, earlier = method.begin(context), context.warmup
    said = returned.hook(method, "begin")
    returned.check_state(state, engine.layout.columns, engine.federation.ids, said)
    returned.check_finite(state.theta, "theta", said)
    returned.check_declared(state.own, method.own, said)
    columns = engine.layout.parameter_columns
    kept = {} if earlier is None else earlier.optimizers
    state.optimizers = memory.begin(context.training, context.clients, columns, engine.allocate, kept)
    if state.personal is None:
        state.personal = _personal(method, context, engine, state)
    if "stale" in engine.training.evaluations:
        remember_initial(state, engine)
    if earlier is not None:
        state.participations = earlier.participations.copy()
        state.stale |= {split: Scored(s.correct.copy(), s.loss.copy()) for split, s in earlier.stale.items()}
    return state


def _personal(method: Method, context: Context, engine: Engine, state: State) -> Personal | None:
    """Return what clients keep before the first round: the columns of the models that they start from."""
    names = method.keeps(context)
    if not names:
        return None
    if context.training.average == "gradients":
        raise UserError(
            "training.average: 'gradients' lets the server alone take steps, so what clients keep would never be "
            "trained; allowed: models"
        )
    columns, labels = Columns.of(context.tensors, names), state.labels
    rows, initial = engine.allocate(context.clients, len(columns)), engine.initial(0)[None]
    for part in blocks(context.clients, 4 * engine.layout.columns):
        models = state.theta[torch.as_tensor(labels[part].clip(min=0))]
        models = torch.where(torch.as_tensor(labels[part] < 0)[:, None], initial, models)
        rows[part] = columns.taken(models)
    return Personal(columns, rows, method.sends_kept)


@dataclass
class _Running:
    """A run in progress: its rounds change `state` and `record`."""

    method: Method
    context: Context
    engine: Engine
    state: State
    record: Record
    needs: frozenset[str]  # of the method and of `observe`
    observe: Callable[[int, State, Update], None]
    measured: Measured | None  # losses measured since the last round, on the current data

    def enter(self, round_: int) -> None:
        """Switch to the round's data, if clients' data change with it."""
        before, self.context = self.context, _entered(self.context, self.engine, round_)
        if self.context is not before:
            self.measured = None
        if self.engine.federation.begins == round_ > 1:
            self.method.drifted(self.context, self.state)
            self._check_state("drifted", round_)

    def round(self, round_: int) -> None:
        """Run one round."""
        method, context, engine, state = self.method, self.context, self.engine, self.state
        drawn, began = method.sample(context, state, round_), perf_counter()
        returned.check_drawn(drawn, context.clients, returned.hook(method, "sample", round_))
        ids, training = engine.federation.ids, context.training
        attendance = participation.attendance(training.faults, training.most, engine.seed, round_, drawn, ids)
        said = returned.hook(method, "turns", round_)
        turns = returned.check_turns(method.turns(context, round_), context.tensors, said)
        ledger = Ledger(engine, method, context, state, attendance, turns, self.measured)
        self.measured = None
        assignment = self._assign(ledger, round_)
        clients = ledger.clients
        if len(clients):
            method.prepare(context, state, round_, clients)
            self._check_state("prepare", round_)
        found = trainings(assignment, clients, context.sizes[clients])
        weights, training_began = method.weights(context, found.clients), perf_counter()
        returned.check_weights(weights, len(found.clients), returned.hook(method, "weights", round_))
        towards = method.towards(context, state)
        returned.check_towards(towards, len(state.theta), returned.hook(method, "towards", round_))
        features, beside = method.features(context, state), method.beside(context, state)
        update = engine.train(
            found.begun(state.theta), found.start, found.clients, round_,
            target=found.start if found.target is None else found.target, weights=weights,
            needs=self.needs, participations=state.participations[found.clients],
            score=held_out(engine) if {"local", "stale"} & set(engine.training.evaluations) else (),
            training=training, clip=method.clip,
            effort=None if attendance.work is None else attendance.work[found.clients],
            factors=None if ledger.factors is None else ledger.factors[found.clients], kept=state.optimizers,
            personal=state.personal if beside or not method.apart else None, features=features,
            fixed=frozenset(method.fixed(context)), turns=turns, towards=towards,
            beside=beside, shares=None if found.shares is None else torch.as_tensor(found.shares),
            free=frozenset(method.free(context)),
        )  # fmt: skip
        ledger.trained(update, training_began, features, 1 if found.blends is None else len(state.theta))
        try:
            whose = f"round {update.round}: the update of client {{}}"
            participation.check_updates(update, engine.federation.ids, engine.training, whose)
            self.observe(round_, state, update)
            self._merge(update, found, weights)
        except Diverged:
            self._record(update, ledger)  # its costs have been incurred
            raise
        server_seconds = ledger.server_seconds()
        state.participations[clients] += 1
        state.last_label[clients] = state.labels[clients]
        self._record(update, ledger)
        record_local(self.record, engine, state, update)
        seconds = {"seconds": perf_counter() - began, "server_seconds": server_seconds}
        self.record.timing.append({"round": round_} | seconds)

    def _assign(self, ledger: Ledger, round_: int) -> Assignment:
        """Let the method assign the participants with finite losses: ``ledger.clients``; their labels change.

        With ``diverged: exclude`` the others are left out as if they hadn't been drawn.
        """
        ids = self.engine.federation.ids
        while len(ledger.clients):
            try:
                found = self.method.assign(self.context, self.state, round_, ledger.clients, ledger)
            except Unsound as error:
                unsound = ids[error.clients]
                if self.engine.training.diverged == "stop":
                    raise Diverged(
                        f"round {round_}: the losses of client {unsound[0]} on the models are NaN or infinite "
                        f"({participation.listed(unsound, len(ledger.clients))}); training diverged: lower the "
                        "learning rate, or set diverged: exclude to go on without such clients"
                    ) from error
                ledger.leave_out(error.clients)
                continue
            said = returned.hook(self.method, "assign", round_)
            self._check_state("assign", round_)
            returned.check_assignment(found, len(self.state.theta), ids[ledger.clients], said)
            sizes, columns = self.context.sizes[ledger.clients], self.engine.layout.columns
            returned.check_rows(found, len(self.state.theta), sizes, columns, said)
            self.state.labels[ledger.clients] = found.start
            return found
        return Assignment(self.state.labels[ledger.clients])

    def _merge(self, update: Update, found: Trainings, weights: NDArray[np.float64]) -> None:
        """Let the method read the updates and merge those that aren't excluded: state and `update` are changed."""
        method, context, state = self.method, self.context, self.state
        method.regroup(context, state, update)
        self._check_state("regroup", update.round)
        target = state.labels[update.clients] if found.target is None else found.target
        if len(target) and target.min() < 0:
            ids, said = self.engine.federation.ids[update.clients], returned.hook(method, "regroup", update.round)
            returned.check_labels(target, len(state.theta), ids, said, 0)
        if update.sums is None:
            update.sums = self.engine.reduce(update, target, weights, len(state.theta))
        common = Columns.of(context.tensors, method.common(context))
        if len(common):
            server.pool(update.sums, common)
        kept = ~update.dropped
        method.merge(context, state, update, target[kept], weights[kept])
        self._check_state("merge", update.round)
        _check_finite(state, target[kept] if found.given is None else state.labels, update.round)

    def _check_state(self, hook: str, round_: int) -> None:
        """Raise an error if a hook left an invalid state, e.g. a label without a model."""
        said = returned.hook(self.method, hook, round_)
        returned.check_state(self.state, self.engine.layout.columns, self.engine.federation.ids, said)

    def _record(self, update: Update, ledger: Ledger) -> None:
        """Record who took part and what the round cost."""
        labels, ids = self.state.labels, self.engine.federation.ids
        asked = self.context.survey.spent()
        participated = np.zeros(len(ids), dtype=bool)
        participated[update.clients] = True
        faults = {} if self.engine.training.faults is None else vars(ledger.attendance)
        self.record.rounds.append(
            {
                "round": update.round,
                "bytes_down": ledger.down + asked["bytes_down"],
                "bytes_up": ledger.up + asked["bytes_up"],
                "local_steps": int(update.steps.sum()) + ledger.wasted_steps() + asked["local_steps"],
                "client_forwards": ledger.forwards + asked["client_forwards"],
                "clusters": len(np.unique(labels[labels >= 0])),
                "excluded": len(np.unique(update.clients[update.dropped])) + ledger.unsound,
                "epsilon": self.method.spent(self.context, update.round),
                **{name: faults[name] for name in participation.COUNTED if faults},
            }
        )
        self.record.clusters.append(
            {
                "round": np.full(len(participated), update.round),
                "client": ids,
                "cluster": np.array(labels),
                "participated": participated,
            }
        )


def _check_finite(state: State, target: Ids, round_: int) -> None:
    touched = np.unique(target)
    bad = [int(k) for k in touched if not bool(state.theta[int(k)].isfinite().all())]
    if bad:
        raise Diverged(
            f"round {round_}: model {bad[0]} became NaN or infinite ({len(bad)} of {len(touched)} models); "
            "training diverged: lower the learning rate"
        )
