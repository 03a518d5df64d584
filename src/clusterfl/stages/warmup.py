"""Stage warm-up: rounds of FedAvg from one model; each client's model of its last participation is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import simulation
from ..engine import Engine, Update
from ..methods.base import Method, State
from ..store import write_tensors
from . import Facts, Work
from .common import engine, facts, write_record

SHARD_BYTES = 64 << 20


def run(work: Work) -> Facts:
    """Write the clients' models in shards, the common model, and the rounds' tables.

    A client that never took part keeps the initial model. Who takes part when is known in advance, so each client's
    model is written once, when it is final.
    """
    with engine(work) as used, work.progress("warm-up", used.training.rounds) as progress:
        method = Method(simulation.context(used, used.seed))
        kept = _Kept(used, method, work.settings["gradients"])
        needs = frozenset({"updates", "last_gradient"} if kept.gradients is not None else {"updates"})
        state, record = simulation.run(method, used, needs=needs, observe=kept.observe, progress=progress)
        write_record(work, record)
        common = {"theta": state["theta"].numpy(), "participations": state["participations"]}
        write_tensors(work.outputs["common"], common)
        kept.write(work)
        return facts(used) | {"bytes_per_model": used.layout.columns * simulation.BYTES_PER_NUMBER}


class _Kept:
    """The clients' models [M, P], and their last gradients [M, p] where a distance needs them."""

    def __init__(self, used: Engine, method: Method, gradients: bool):
        clients = used.federation.clients
        self.ids = used.federation.ids
        self.rows = used.allocate(clients, used.layout.columns)
        self.rows[:] = used.initial(0)
        self.gradients = used.allocate(clients, used.layout.parameter_columns) if gradients else None
        self.last = np.zeros(clients, dtype=np.int64)
        for round_ in range(1, used.training.rounds + 1):
            self.last[method.sample({}, round_)] = round_

    def observe(self, round_: int, state: State, update: Update) -> None:
        """Keep the models of the clients that take part for the last time."""
        assert update.rows is not None
        final = np.flatnonzero(self.last[update.clients] == round_)
        clients = torch.as_tensor(update.clients[final])
        start = torch.as_tensor(update.start[final])
        self.rows[clients] = state["theta"][start] + update.rows[torch.as_tensor(final)]
        if self.gradients is not None and update.last_gradient is not None:
            self.gradients[clients] = update.last_gradient[torch.as_tensor(final)]

    def write(self, work: Work) -> None:
        """Write the rows in shards of about 64 MB."""
        folder, written = work.outputs["clients"], set()
        per_shard = max(1, SHARD_BYTES // (4 * self.rows.shape[1]))
        for number, first in enumerate(range(0, len(self.rows), per_shard)):
            part = slice(first, first + per_shard)
            tensors: dict[str, Any] = {"client": self.ids[part], "theta": self.rows[part].numpy()}
            if self.gradients is not None:
                tensors["last_gradient"] = self.gradients[part].numpy()
            written.add(folder / f"{number:05d}.safetensors")
            write_tensors(folder / f"{number:05d}.safetensors", tensors)
        for left in set(folder.glob("*.safetensors")) - written:
            left.unlink()  # an earlier run wrote more shards
