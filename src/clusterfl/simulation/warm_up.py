"""The warm-up of one-shot methods: rounds of FedAvg, after which every client's own model is kept.

One round with many epochs is the paper's warm-up (each client trains alone for T steps: LCFL, arXiv 2407.09360,
Algorithm 1); several rounds are the released code's. A client's model is that of its last participation; a client
that never took part keeps the initial model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..engine.engine import Engine
from ..engine.update import Update
from ..storage.blocks import blocks
from ..storage.row_store import Rows
from . import loop
from .method import Method, draw
from .record import Record
from .state import State


@dataclass
class WarmUp:
    """The result of a warm-up: M clients' models, the common state, and the rounds' tables."""

    theta: Rows  # [M, P]
    gradients: Rows | None  # [M, p], of each client's last mini-batch
    deltas: Rows | None  # [M, p], the update of each client's last participation; zeros if it never took part
    state: State  # theta [1, P], participations [M], scores of the clients' last models if they are evaluated
    record: Record


CLIENTS = ("clients.theta", "clients.gradients", "clients.deltas")  # what a checkpoint has besides a method's state


def warm_up(
    engine: Engine,
    gradients: bool = False,
    deltas: bool = False,
    progress: loop.Progress = lambda done, text: None,
    resume: loop.Checkpoint | None = None,
    save: Callable[[loop.Checkpoint], None] = lambda checkpoint: None,
) -> WarmUp:
    """Run the engine's rounds of FedAvg and keep the clients' models.

    The sampling stream determines in advance who takes part when, so each client's model is stored once, when it is
    final, and never all models of a round at a time. A client that never sent a sound update keeps the initial model,
    and is clustered by it. `resume` and `save` are as in `loop.run`; their checkpoints hold the clients' models in
    `beside`.
    """
    method, context, clients = Method(), loop.context(engine), engine.federation.clients
    last = np.zeros(clients, dtype=np.int64)
    for round_ in range(1, engine.training.rounds + 1):
        last[draw(context, np.arange(clients), round_)] = round_
    # If updates may be lost, each sound one is stored until the next, as a client's last one may not arrive.
    lossy = engine.training.faults is not None or engine.training.diverged == "exclude"
    if resume is not None:
        theta, kept, changes = (resume.beside.get(name) for name in CLIENTS)
    else:
        theta = engine.allocate(clients, engine.layout.columns)
        theta[np.arange(clients) if lossy else np.flatnonzero(last == 0)] = engine.initial(0)
        p = engine.layout.parameter_columns
        kept, changes = (engine.allocate(clients, p) if wanted else None for wanted in (gradients, deltas))
    assert theta is not None

    def keep(round_: int, state: State, update: Update) -> None:
        if not len(update.clients):  # with sampler: poisson
            return
        assert update.rows is not None
        final = np.flatnonzero(~update.dropped if lossy else last[update.clients] == round_)
        for part in blocks(len(final), 4 * engine.layout.columns):
            rows, positions = torch.as_tensor(update.clients[final[part]]), torch.as_tensor(final[part])
            theta[rows] = state.theta[torch.as_tensor(update.start[final[part]])] + update.rows[positions]
            if kept is not None and update.last_gradient is not None:
                kept[rows] = update.last_gradient[positions]
            if changes is not None:
                changes[rows] = update.rows[positions][:, : engine.layout.parameter_columns]

    needs = frozenset({"updates", "last_gradient"} if gradients else {"updates"})
    own = {name: rows for name, rows in zip(CLIENTS, (theta, kept, changes), strict=True) if rows is not None}
    state, record = loop.run(
        method, context, engine, needs=needs, observe=keep, progress=progress, resume=resume,
        save=lambda made: save(replace(made, beside=own)),
    )  # fmt: skip
    return WarmUp(theta, kept, changes, state, record)
