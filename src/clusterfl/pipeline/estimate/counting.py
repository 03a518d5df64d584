"""What a job's rounds need, found by the real loop on an engine that counts and computes nothing.

The method, its sampling, the ledger of bytes and the writing of tables are the real ones; models have one column, and
losses are made up. So a count takes milliseconds a round. Axes: M clients, m participants, K models, P columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.federation import Federation
from ...engine import batches, memory
from ...engine.engine import Engine, Update
from ...engine.parameter_layout import Layout
from ...engine.task import Scores
from ...engine.training import Training
from ...engine.worker import NEWCOMER
from ...errors import UserError
from ...methods import METHODS
from ...simulation import loop
from ...simulation.method import Ids, Method, State
from ...storage.row_store import Readable, Rows
from ...storage.store import read_table, write_table
from ..execute import is_done
from ..jobs import Job
from ..stages.federate import by_class

Tally = dict[Any, float]  # by `Kind`: samples trained on; by name: see `count`
CLIENT_ROUNDS = 20_000  # counted at most; what is beyond them goes on as their second half did
ON_SERVER = {"rounds", "participation", "sampler", "weights", "divisor", "server_learning_rate", "server_momentum",
             "diverged", "largest_update", "evaluate_every", "evaluations", "personalised_steps", "faults"}  # fmt: skip


class Kind(NamedTuple):
    """Calls of `Engine.train` whose work is alike."""

    training: str  # JSON of what clients do
    needs: frozenset[str]
    score: tuple[str, ...]
    apart: bool  # every client starts from a model of its own


class Counting(Engine):
    """An engine that counts what it is asked for.

    Parameters
    ----------
    federation, newcomers, training
        As `Engine`.
    columns
        P, which only bytes are counted by.
    alike
        Losses are the same for all clients in all rounds (those of training: one for even, one for odd clients), so
        that a method settles at once; else drawn at random.
        A cost that both give is known beforehand.
    """

    def __init__(
        self,
        federation: Federation,
        newcomers: Federation | None,
        training: Training,
        columns: int,
        alike: bool = False,
    ):
        self.federation, self.newcomers, self.training, self.alike = federation, newcomers, training, alike
        self.seed = self.model_seed = 0
        self.layout = Layout([("one", (1,))])
        self.layout.columns = columns
        self.sizes = {name: split.sizes for name, split in federation.splits.items()}
        if newcomers is not None:
            self.sizes |= {NEWCOMER + name: split.sizes for name, split in newcomers.splits.items()}
        self.tally: Tally = defaultdict(float)
        self.random = np.random.default_rng(0)

    def initial(self, index: int = 0) -> Tensor:
        """Return a row [1] instead of the model's."""
        return torch.full((1,), float(index))

    def allocate(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Rows:
        """See `Engine.allocate`."""
        return torch.zeros(rows, columns, dtype=dtype)

    def train(
        self, theta: Rows, start: Ids, clients: Ids, round_: int = 1, *, target: Ids | None = None,
        weights: NDArray[np.float64] | None = None, needs: frozenset[str] = frozenset(),
        participations: Ids | None = None, score: Sequence[str] = (), training: Training | None = None,
        clip: float = math.inf, effort: Ids | None = None, factors: NDArray[np.float64] | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> Update:  # fmt: skip
        """Count the samples of all steps, and return an update of one column."""
        training, m = (training or self.training).on_clients(), len(clients)
        sizes = self.sizes["train"][clients]
        steps = batches.steps_of(sizes, training, effort)
        apart = len(np.unique(start)) > max(1, m // 2)
        kind = Kind(training.model_dump_json(exclude=ON_SERVER), needs, tuple(score), apart)
        self.tally[kind] += int((steps * batches.batch_rows(sizes, training)).sum())
        update = Update(clients, start, steps, round_, np.ones(m), np.zeros(m, dtype=bool))
        update.local = {split: self._made_up(self.sizes[split][clients]) for split in score}
        if "updates" in needs:
            update.rows = torch.as_tensor(self.random.normal(size=(m, 1)), dtype=torch.float32)
        elif "scores" not in needs:
            update.sums = self.allocate(len(theta), 1, torch.float64)
        if "scores" not in needs:
            self.tally["merged"] += len(np.unique(start if target is None else target))
        if "last_gradient" in needs:
            update.last_gradient = torch.as_tensor(self.random.normal(size=(m, 1)), dtype=torch.float32)
        if "curves" in needs:
            update.curves = self.random.random((m, int(steps.max(initial=0))), dtype=np.float32)
            if self.alike:  # two kinds of clients, so that what looks for kinds finds them
                update.curves[:] = (clients % 2)[:, None]
        return update

    def reduce(self, update: Update, target: Ids, weights: NDArray[np.float64], models: int) -> Rows:
        """See `Engine.reduce`."""
        return self.allocate(models, 1, torch.float64)

    def scores(
        self, theta: Readable, clients: Ids, split: str, progress: Callable[[int], None] = lambda done: None,
        models: Ids | None = None,
    ) -> Scores:  # fmt: skip
        """Count a forward pass of each model over the clients' samples."""
        n, number = self.sizes[split][clients], len(theta) if models is None else len(models)
        passed(self.tally, number, number * int(n.sum()))
        return self._made_up(n, number)

    def own_scores(self, theta: Readable, labels: Ids, clients: Ids, split: str) -> Scores:
        """Count a forward pass of each model that some client has."""
        n = self.sizes[split][clients]
        passed(self.tally, len(np.unique(labels)), int(n.sum()))
        return self._made_up(n)

    def correct(self, row: Tensor, split: str, rows: Ids) -> NDArray[np.float64]:
        """Count a forward pass."""
        passed(self.tally, 1, len(rows))
        return np.rint(self.random.random(len(rows)))

    def _made_up(self, n: Ids, *models: int) -> Scores:
        loss = self.random.random((len(n), *models))
        if self.alike:
            loss[:] = np.arange(loss.shape[1]) if models else 1.0
        correct = np.rint((loss.T * n).T) if self.federation.classes else np.full_like(loss, np.nan)
        return Scores(n, correct, loss)


def passed(tally: Tally, passes: int, samples: int) -> None:
    """Add forward passes of a model each, and all samples in them."""
    tally["passes"] += passes
    tally["samples"] += samples


Make = Callable[[Training, bool], Counting]


def count(job: Job, make: Make, folder: Path) -> tuple[Tally, bool]:
    """Return what a job of stage warmup or federate needs, and whether it sends the same whatever losses it sees.

    Besides the kinds of training: ``passes`` of a model over some samples, ``samples`` passed; ``merged``, models that
    got updates; ``sent``, bytes to and from the clients; ``models``, K; ``kept``, rows [P] that are stored;
    ``rows`` of the history; ``disk``, bytes of everything else; ``seconds`` of the loop and of writing the tables.

    Parameters
    ----------
    job
        Its rounds beyond `CLIENT_ROUNDS` aren't counted.
    make
        Makes the engine, see `Counting`, for some settings and losses that are alike or not.
    folder
        For the tables.
    """
    training = Training(**job.settings["training"])
    first = 1 + (_rounds(job.upstream["warmup.common"]) if "clusters" in job.inputs else 0)
    every, rounds = training.evaluate_every, max(0, training.rounds - first + 1)
    most = min(rounds, every * max(2, CLIENT_ROUNDS // (make(training, False).federation.clients * every)))

    def counted(rounds: int, alike: bool = False) -> Tally:
        return _count(job, make(training.model_copy(update={"rounds": first - 1 + rounds}), alike), first, folder)

    found = counted(most)
    try:
        known = counted(most, alike=True)["sent"] == found["sent"]
    except UserError:  # the method can't go on with such losses
        known = False
    if rounds > most:
        half = most // every // 2 * every
        before = counted(half)
        for key in found:
            found[key] += (rounds - most) / (most - half) * max(0, found[key] - before[key])
    return found, known


def _rounds(job: Job) -> int:
    return int(job.settings["training"]["rounds"])


def _count(job: Job, engine: Counting, first: int, folder: Path) -> Tally:
    began, tally = perf_counter(), engine.tally
    if job.stage == "warmup":
        method, needs = Method(loop.context(engine, 0)), {"updates"}
        needs |= {"last_gradient"} if job.settings["gradients"] else set()
    else:
        context = loop.context(engine, 0, **(_given(job, engine) if "clusters" in job.inputs else {}))
        method, needs = METHODS[job.settings["method"]](context, **job.settings["options"]), set()
    state, record = loop.run(method, engine, first_round=first, needs=frozenset(needs))
    tables = {name: loop.Record.table(getattr(record, name)) for name in ("history", "rounds", "clusters")}
    if job.stage == "warmup":
        tables.pop("clusters")
        tally["kept"] = engine.federation.clients * (1 + job.settings["gradients"])
    else:
        tables["classes"] = by_class(engine, state)
    for name, table in tables.items():
        write_table(folder / f"{name}.parquet", table)
        tally["disk"] += (folder / f"{name}.parquet").stat().st_size
    for name, value in state.items():
        if name in memory.NAMES and job.stage == "federate":
            continue  # only a warm-up's result has it
        if isinstance(value, np.ndarray):
            tally["disk"] += value.nbytes
        else:
            tally["kept"] += len(value) * (value.dtype.itemsize // 4)
    tally["models"] = len(state["theta"])
    tally["beside"] = sum(len(v) for name, v in state.items() if name != "theta" and not isinstance(v, np.ndarray))
    tally["rows"] = len(tables["history"].get("round", ()))
    tally["sent"] = sum(row["bytes_down"] + row["bytes_up"] for row in record.rounds)
    tally["seconds"] = perf_counter() - began
    return tally


def _given(job: Job, engine: Counting) -> dict[str, Any]:
    """Return what a one-shot method continues from: its clustering if that is there, else made-up clusters."""
    cluster, clients = job.upstream["clusters"], engine.federation.clients
    if is_done(cluster):
        table = read_table(job.inputs["clusters"])
        labels = table["cluster"][np.argsort(table["client"])]
    else:
        number = cluster.settings["clusters"]
        number = cluster.settings["most"] if isinstance(number, str) else number
        labels = np.arange(clients) % number
        if engine.alike:  # other clusters: one of them large
            labels = np.where(np.arange(clients) < number, labels, 0)
    warmup: State = {"theta": torch.zeros(1, 1), "participations": np.zeros(clients, dtype=np.int64)}
    for split in ("validation", "test"):
        zeros = np.zeros(clients)
        warmup |= {f"stale.{split}.correct": zeros, f"stale.{split}.loss": zeros}
    return {"clustering": labels, "warmup": warmup, "members": lambda: torch.zeros(clients, 1)}
