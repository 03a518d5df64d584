"""Scores of models on clients' data after some rounds, on newcomers' data, and of the models that participants trained.

Axes: M clients, m participants or newcomers, K models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine.engine import Engine
from ..engine.features import centred
from ..engine.task import Scores
from ..engine.update import Update
from ..engine.worker import NEWCOMER
from ..errors import UserError
from ..storage.row_store import Rows
from .measured import Measured
from .method import Context, Ids, Method, SampleLosses
from .record import Record
from .returned import check_labels, hook
from .state import Scored, State


def held_out(engine: Engine) -> list[str]:
    """Return the splits that no client trains on."""
    return [name for name in ("validation", "test") if len(engine.federation.splits[name])]


def evaluate(
    record: Record, engine: Engine, method: Method, context: Context, state: State, round_: int
) -> Measured | None:
    """Score each labelled client's current model on all splits that have samples, and make the other `evaluations`.

    Return the losses on training data, if there are any and the method has clients measure losses.
    """
    measured = None
    clients = np.flatnonzero(state.labels >= 0)
    labels, ids = state.labels[clients], engine.federation.ids[clients]
    for split, data in engine.federation.splits.items():
        if len(clients) and len(data):
            scores = engine.own_scores(
                state.theta, labels, clients, split, state.personal, centred(state.nearest),
                None if state.mixture is None else state.mixture[clients],
            )  # fmt: skip
            record.score(round_, ids, labels, split, "aggregated", scores)
            if split == "train" and method.reveals != "nothing":
                measured = Measured.of(state, clients, scores)
    if "personalised" in engine.training.evaluations and len(clients):
        turns = tuple(frozenset(names) for names in method.turns(context, round_))
        found = engine.personalise(
            state.theta, labels, clients, round_, state.participations[clients], held_out(engine),
            context.training, state.personal, method.features(context, state), frozenset(method.fixed(context)), turns,
        )  # fmt: skip
        for split, scores in found.items():
            record.score(round_, ids, labels, split, "personalised", scores)
    if "newcomer" in engine.training.evaluations:
        _evaluate_newcomers(record, engine, method, state, round_)
    return measured


def _evaluate_newcomers(record: Record, engine: Engine, method: Method, state: State, round_: int) -> None:
    """Score, on their test data, the model that each newcomer is given."""
    if engine.newcomers is None:
        raise UserError(
            "evaluations: 'newcomer' is set, but this partition has no newcomers; set partition.newcomers, or remove "
            "'newcomer'"
        )
    labels = newcomer_labels(engine, method, state)[0]
    placed = np.flatnonzero(labels >= 0)
    test = NEWCOMER + "test"
    if len(placed) and len(engine.newcomers.splits["test"]):
        mixture = None if state.mixture is None else method.blend(state, _samples(engine, state.theta, placed))
        scores = engine.own_scores(state.theta, labels[placed], placed, test, mixture=mixture)
        record.score(round_, engine.newcomers.ids[placed], labels[placed], "test", "newcomer", scores)


def newcomer_labels(engine: Engine, method: Method, state: State) -> tuple[Ids, NDArray[np.float64]]:
    """Return the model [m] of each newcomer (-1 = none) and its losses [m, K] on the models of `Method.placing`."""
    assert engine.newcomers is not None
    if not method.places:
        m, k = len(engine.newcomers.splits["train"].sizes), len(state.theta)
        return np.full(m, -1), np.full((m, k), np.nan)
    losses = newcomer_losses(engine, method.placing(state))
    found, name = method.recognise(state, partial(described, engine)), "recognise"
    if found is None:
        found, name = method.place(state, losses), "place"
    check_labels(found, len(state.theta), engine.newcomers.ids, hook(method, name))
    return found, losses


def described(
    engine: Engine, theta: Tensor, function: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[Any]]
) -> list[NDArray[Any]]:
    """See `simulation.asking.Described`, for newcomers: on training samples, or on test samples if there are none."""
    assert engine.newcomers is not None
    sizes = engine.newcomers.splits["train"].sizes
    found: dict[int, NDArray[Any]] = {}
    for split, clients in (("train", np.flatnonzero(sizes > 0)), ("test", np.flatnonzero(sizes == 0))):
        for client, z in zip(clients.tolist(), engine.features(theta, clients, NEWCOMER + split), strict=True):
            found[client] = function(z.numpy(), np.full(len(z), -1))
    return [found[client] for client in range(len(sizes))]


def newcomer_losses(engine: Engine, theta: Rows) -> NDArray[np.float64]:
    """Return each newcomer's mean loss on each model, [m, K].

    Losses are on a newcomer's training data, or on its test data if it has no other.
    """
    assert engine.newcomers is not None
    sizes = engine.newcomers.splits["train"].sizes
    losses = np.full((len(sizes), len(theta)), np.nan)
    for split, clients in (("train", np.flatnonzero(sizes > 0)), ("test", np.flatnonzero(sizes == 0))):
        if len(clients):
            losses[clients] = engine.losses(theta, clients, NEWCOMER + split)
    return losses


def _samples(engine: Engine, theta: Rows, clients: Ids) -> SampleLosses:
    """Return the losses on some newcomers' training samples, or on test samples where one has no others."""
    assert engine.newcomers is not None
    train, test = (engine.newcomers.splits[name] for name in ("train", "test"))
    values, classes, sizes = [], [], np.where(train.sizes > 0, train.sizes, test.sizes)[clients]
    for client in clients:
        split = train if train.sizes[client] else test
        values.append(engine.losses_of_samples(theta, np.array([client]), NEWCOMER + split.name))
        classes.append(split.y[split.of(np.array([client]))[0]])
    owner = np.repeat(np.arange(len(clients)), sizes)
    return SampleLosses(np.concatenate(values), owner, np.concatenate(classes), sizes)


def remember_initial(state: State, engine: Engine) -> None:
    """Use the initial model's scores as those of a client's last model until it first takes part."""
    clients, theta, labels = np.arange(engine.federation.clients), state.theta, state.labels
    if (labels < 0).any():  # which model a client starts from isn't known yet
        theta, labels = engine.initial(0)[None], np.zeros_like(clients)
    for split in held_out(engine):
        scores = engine.own_scores(theta, labels, clients, split)
        state.stale[split] = Scored(scores.correct, scores.loss)


def record_local(record: Record, engine: Engine, state: State, update: Update) -> None:
    """Record the scores of the models just trained, and of those from the participants' previous participation.

    The latter is LCFL's published protocol: a client scores the model it has before it downloads another.
    """
    clients, evaluations = update.clients, engine.training.evaluations
    labels, ids = state.labels[clients], engine.federation.ids[clients]
    for split, local in update.local.items():
        if "local" in evaluations:
            record.score(update.round, ids, labels, split, "local", local)
        if "stale" in evaluations:
            last = state.stale[split]
            before = Scores(local.n, last.correct[clients], last.loss[clients])
            record.score(update.round, ids, labels, split, "stale", before)
            last.correct[clients], last.loss[clients] = local.correct, local.loss
