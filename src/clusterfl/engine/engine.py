"""The engine: trains many clients, measures losses, adds up updates. The only place that is allowed to be clever.

Axes: M clients, m participants, K models, P columns of a model's row (the first p are parameters).

On the CPU every number is the same whatever the chunk size, the number of workers and the order of processing:
each process uses one thread, a client's batches have a shape that depends on the client alone, and sums run in one
fixed order.
"""

from __future__ import annotations

import copy
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import streams
from ..errors import UserError
from ..federation import Federation
from ..rows import Readable, Rows, RowStore, allocate
from ..training import Training
from . import batches, bits, loop, stacked
from .task import ChunkResult, Ids, Scores, Task
from .worker import Factory, Worker

CACHE_BYTES = 8 << 20  # a stacked chunk's parameters should stay in a core's cache


@dataclass
class Update:
    """A round's result. Rows are in the order of `clients`; sums are [K, P] in float64."""

    clients: Ids
    start: Ids  # z: the model each client started from
    steps: Ids  # optimiser steps taken
    round: int = 1
    norms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [m], Euclidean; NaN or inf: diverged
    dropped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))  # [m] left out of all sums
    parts: list[Ids] = field(default_factory=list)  # positions among the clients, in the order of all sums
    server_seconds: float = 0.0  # spent adding updates up
    sums: Rows | None = None
    rows: Rows | None = None  # deltas [m, P]; only with needs = {"updates"}
    last_gradient: Rows | None = None  # [m, p], only with needs = {"last_gradient"}
    curves: NDArray[np.float32] | None = None  # [m, steps], only with needs = {"curves"}; NaN where no step was taken
    local: dict[str, Scores] = field(default_factory=dict)  # scores of the trained models


class Engine:
    """Trains and scores models on a federation.

    Parameters
    ----------
    factory
        Makes a new module, e.g. a class or ``lambda: nn.Linear(2, 1)``; or a module, which is then copied and its
        layers are initialised anew.
    federation, training
        Data and settings.
    newcomers
        Clients that no method trains with; their splits are called ``newcomer.train`` and so on.
    seed
        Of the clients' shuffles and of what a module draws in training.
    model_seed
        Of the initial models; `seed` if not given.
    device
        ``auto`` takes CUDA where there is one.
    backend
        ``stacked``, ``loop`` or ``auto``: stacked wherever a model has that form, except for convolutions on a CPU,
        where the loop is faster.
    chunk
        Clients per chunk; chosen from the model's size if not given.
    workers
        Processes on a CPU.
    """

    def __init__(
        self,
        factory: Factory | nn.Module,
        federation: Federation,
        training: Training,
        seed: int = 0,
        model_seed: int | None = None,
        device: str = "auto",
        backend: Literal["auto", "stacked", "loop"] = "auto",
        chunk: int | None = None,
        workers: int = 1,
        newcomers: Federation | None = None,
    ):
        self.federation, self.training, self.seed, self.newcomers = federation, training, seed, newcomers
        self.model_seed = seed if model_seed is None else model_seed
        self.device = _device(device)
        self.factory = _factory(factory)
        self.worker = Worker(self.factory, federation, newcomers, seed, self.device)
        _check_model(self.worker)
        self.layout = self.worker.layout
        self._asked = backend
        if backend != "auto":
            self.backend  # noqa: B018 (what isn't possible is told now)
        self.chunk = chunk or self._chunk_size()
        self.workers = workers if self.device.type == "cpu" else 1
        if self.device.type == "cpu":
            bits.check()
        self._pool: Any = None
        self._files = tempfile.TemporaryDirectory(prefix="clusterfl-")

    @cached_property
    def _choice(self) -> tuple[str, str]:
        # Not before something trains: torch.func takes nearly a second to import what it needs.
        return _backend(self._asked, self.worker)

    @property
    def backend(self) -> str:
        """The form of training: stacked or loop."""
        return self._choice[0]

    @property
    def reason(self) -> str:
        """Why that form was chosen."""
        return self._choice[1]

    def _chunk_size(self) -> int:
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            return max(1, min(4096, free // (16 * 4 * self.layout.columns)))
        return max(4, min(256, CACHE_BYTES // (3 * 4 * self.layout.columns)))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and delete the temporary files."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
            self._pool = None
        self._files.cleanup()

    def initial(self, index: int = 0) -> Tensor:
        """Return the row [P] of the index-th initial model; each index draws from a stream of its own."""
        with streams.torch_stream(self.model_seed, "model", index):
            return self.layout.flatten(self.factory())

    def allocate(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Rows:
        """Return zeros [rows, columns], in a file when they are large, so that memory doesn't grow with M."""
        return allocate(rows, columns, dtype, self._files.name)

    def train(
        self,
        theta: Rows,
        start: Ids,
        clients: Ids,
        round_: int = 1,
        *,
        target: Ids | None = None,
        weights: NDArray[np.float64] | None = None,
        needs: frozenset[str] = frozenset(),
        participations: Ids | None = None,
        score: Sequence[str] = (),
        training: Training | None = None,
    ) -> Update:
        """Let `clients` train, each from its model, and return their updates.

        Parameters
        ----------
        theta : [K, P]
            Models.
        start, target : [m]
            z, the model each client starts from, and y, the one its update is added to (z if not given).
        clients : [m]
            Participants, ascending positions in the federation.
        round_
            Number of the round; with the client's id it keys every draw. Negative: an evaluation after that round,
            whose draws are others than those of training.
        weights : [m]
            Weights of the updates in the sums; 1 if not given.
        needs
            ``updates`` keeps every update (on disk when large) instead of the sums; ``last_gradient`` and ``curves``
            keep those. ``scores`` alone: no update is kept or added up.
        participations : [m]
            Rounds each client took part in before, for ``schedule: participation``.
        score
            Splits on which each trained model is scored.
        training
            Settings in place of the engine's own.

        An update that is NaN, infinite or longer than ``training.largest_update`` is dropped: left out of the sums.
        """
        training, m = (training or self.training).on_clients(), len(clients)
        if not m:
            nothing = self.allocate(len(theta), self.layout.columns, torch.float64)
            return Update(clients, start, np.zeros(0, np.int64), round_, sums=nothing)
        sizes = self.federation.splits["train"].sizes[clients]
        steps = batches.steps_of(sizes, training)
        update = Update(clients, start, steps, round_, np.zeros(m), np.zeros(m, dtype=bool))
        if "updates" in needs:
            update.rows = self.allocate(m, self.layout.columns)
        elif "scores" not in needs:
            update.sums = self.allocate(len(theta), self.layout.columns, torch.float64)
        if "last_gradient" in needs:
            update.last_gradient = self.allocate(m, self.layout.parameter_columns)
        if "curves" in needs:
            update.curves = np.full((m, int(steps.max())), np.nan, dtype=np.float32)
        for split in score:
            update.local[split] = _unscored(self.worker.splits[split].sizes[clients])
        target = start if target is None else target
        weight = torch.ones(m, dtype=torch.float64) if weights is None else torch.as_tensor(weights)
        rates = training.rates(round_, np.zeros(m) if participations is None else participations)
        parts = update.parts = batches.chunks(sizes, self.federation.ids[clients], training, self.chunk)
        tasks = (
            self._task(training, theta, start, clients, sizes, steps, rates, part, round_, needs, score)
            for part in parts
        )
        for part, result in zip(parts, self._map(_train, ((t, self.backend) for t in tasks)), strict=True):
            began = perf_counter()
            self._gather(update, part, result, target, weight, training.largest_update)
            update.server_seconds += perf_counter() - began
        return update

    def personalise(
        self, theta: Rows, labels: Ids, clients: Ids, round_: int, participations: Ids, score: Sequence[str],
        training: Training | None = None,
    ) -> dict[str, Scores]:  # fmt: skip
        """Return the scores of each client's own model after ``personalised_steps`` of training on its data.

        Nothing is kept: the models stay as they are. Arguments as `train`; `labels` are the models that they start
        from.
        """
        training = training or self.training
        few = {"average": "models", "steps": training.personalised_steps, "epochs": None}
        update = self.train(
            theta, labels, clients, -round_,
            needs=frozenset({"scores"}), participations=participations, score=score,
            training=training.model_copy(update=few),
        )  # fmt: skip
        return update.local

    def _task(
        self, training: Training, theta: Rows, start: Ids, clients: Ids, sizes: Ids, steps: Ids,
        rates: NDArray[np.float64], part: Ids, round_: int, needs: frozenset[str], score: Sequence[str],
    ) -> Task:  # fmt: skip
        chosen = clients[part]
        ids = self.federation.ids[chosen]
        offset = self.federation.splits["train"].offsets[chosen]
        index = batches.schedule(self.seed, ids, sizes[part], round_, training)
        return Task(
            training=training,
            start=theta[torch.as_tensor(start[part])],
            ids=ids,
            round=round_,
            rate=torch.as_tensor(rates[part], dtype=torch.float32),
            steps=torch.as_tensor(steps[part]),
            offset=torch.as_tensor(offset),
            index=torch.as_tensor(index),
            keep_gradient="last_gradient" in needs,
            score=score,
            clients=chosen,
            send_delta="scores" not in needs,
        )

    def _gather(
        self, update: Update, part: Ids, result: ChunkResult, target: Ids, weight: Tensor, largest: float
    ) -> None:
        positions = torch.as_tensor(part)
        if len(result.norm):
            update.norms[part] = result.norm
            update.dropped[part] = ~(result.norm <= largest)  # NaN, too
        if update.rows is not None:
            update.rows[positions] = result.delta
        elif update.sums is not None:
            _add(update.sums, result.delta, target[part], weight[positions], update.dropped[part])
        if update.last_gradient is not None and result.last_gradient is not None:
            update.last_gradient[positions] = result.last_gradient
        if update.curves is not None:
            update.curves[part, : result.curves.shape[1]] = result.curves.numpy()
        for split, scores in result.scores.items():
            kept = update.local[split]
            kept.correct[part], kept.loss[part] = scores.correct, scores.loss

    def reduce(self, update: Update, target: Ids, weights: NDArray[np.float64], models: int) -> Rows:
        """Return the sums [K, P] of kept updates, in the very order in which they are summed while streaming."""
        assert update.rows is not None
        sums = self.allocate(models, self.layout.columns, torch.float64)
        for chunk in update.parts:
            rows, weight = update.rows[torch.as_tensor(chunk)], torch.as_tensor(weights[chunk])
            _add(sums, rows, target[chunk], weight, update.dropped[chunk])
        return sums

    def losses(self, theta: Readable, clients: Ids, split: str = "train") -> NDArray[np.float64]:
        """Return ``L [m, K]``, the mean loss of each model of ``theta [K, P]`` on each client's data."""
        return self.scores(theta, clients, split).loss

    def scores(
        self, theta: Readable, clients: Ids, split: str, progress: Callable[[int], None] = lambda done: None
    ) -> Scores:
        """Return the scores of every model on every client, arrays [m, K] (``n`` is [m])."""
        found = self._score_groups(theta, np.arange(len(theta)), split, [clients] * len(theta), progress)
        columns = [np.stack([getattr(s, f) for s in found], axis=1) for f in ("correct", "loss")]
        return Scores(self.worker.splits[split].sizes[clients], *columns)

    def own_scores(self, theta: Readable, labels: Ids, clients: Ids, split: str) -> Scores:
        """Return the scores of each client's own model, ``theta[labels[i]]`` for ``clients[i]``, arrays [m]."""
        models = np.unique(labels)
        groups = [np.flatnonzero(labels == k) for k in models]
        result = _unscored(self.worker.splits[split].sizes[clients])
        found = self._score_groups(theta, models, split, [clients[group] for group in groups])
        for group, scores in zip(groups, found, strict=True):
            result.correct[group], result.loss[group] = scores.correct, scores.loss
        return result

    def _score_groups(
        self, theta: Readable, models: Ids, split: str, groups: list[Ids],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Scores]:  # fmt: skip
        """Return the scores of each of `models`, rows of `theta`, on its group of clients."""
        step = max(1, min(64, len(models) // (4 * self.workers)))
        cuts = [slice(i, i + step) for i in range(0, len(models), step)]
        tasks = ((theta[torch.as_tensor(models[cut])], split, groups[cut]) for cut in cuts)
        found: list[Scores] = []
        for part in self._map(Worker.score_models, tasks):
            found += part
            progress(len(found))
        return found

    def correct(self, row: Tensor, split: str, rows: Ids) -> NDArray[np.float64]:
        """Return whether the model ``row [P]`` is right on each of the split's `rows`, as 0 and 1."""
        with torch.inference_mode(), _one_thread(self.device):
            return self.worker.forward(row, split, torch.as_tensor(rows, device=self.device))[1].numpy()

    def _map(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Call ``work(worker, *task)`` for each task, in this process or in several; results come in order."""
        if self.workers == 1:
            with _one_thread(self.device):
                yield from (work(self.worker, *task) for task in tasks)
            return
        if self._pool is None:
            # Forked, so that the workers share the data; they are kept for all rounds.
            self._pool = torch.multiprocessing.get_context("fork").Pool(self.workers, _begin, (self.worker,))
        waiting: deque[Any] = deque()
        for task in tasks:
            waiting.append(self._pool.apply_async(_call, (work, task)))
            if len(waiting) > 2 * self.workers:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


_worker: Worker | None = None


def _begin(worker: Worker) -> None:
    global _worker
    _worker = worker
    torch.set_num_threads(1)


def _call(work: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    return work(_worker, *task)


def _train(worker: Worker, task: Task, backend: str) -> ChunkResult:
    """Train one chunk and score its models where asked."""
    result = (stacked if backend == "stacked" else loop).train_chunk(worker, task)
    if task.training.average == "gradients":
        assert result.last_gradient is not None
        # Itself rather than the step that it made: no rounding at the models' magnitude.
        p, decay = worker.layout.parameter_columns, worker.layout.decay(0.0)
        result.delta[:, :p] = -result.last_gradient
        if decay is not None:
            result.delta[:, :p] -= decay * task.start[:, :p]
        result.last_gradient = result.last_gradient if task.keep_gradient else None
    for split in task.score:
        models = task.start + result.delta
        parts = worker.score_models(models, split, [task.clients[i : i + 1] for i in range(len(models))])
        columns = (np.concatenate([getattr(s, f) for s in parts]) for f in ("n", "correct", "loss"))
        result.scores[split] = Scores(*columns)
    if task.send_delta:
        result.norm = np.array([float(torch.linalg.vector_norm(row)) for row in result.delta])
    else:
        result.delta = torch.empty(0)
    return result


def _one_thread(device: torch.device) -> AbstractContextManager[None]:
    return bits.one_thread() if device.type == "cpu" else nullcontext()


def _unscored(n: Ids) -> Scores:
    return Scores(n, np.full(len(n), np.nan), np.full(len(n), np.nan))


def _add(sums: Rows, delta: Tensor, target: Ids, weight: Tensor, dropped: NDArray[np.bool_]) -> None:
    """Add weighted updates to their targets' sums, one after another: chunks change no bit."""
    # One pass over memory each, in float64: 49 µs against 174 µs of index_add_ for 159,010 columns.
    for k, row, w, left_out in zip(target.tolist(), delta, weight.tolist(), dropped.tolist(), strict=True):
        if not left_out:
            total = sums[k].add_(row, alpha=w)
            if isinstance(sums, RowStore):  # whose rows are copies
                sums[k] = total


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"device: '{name}' asked for, but torch {torch.__version__} finds no CUDA device; use 'auto' or 'cpu'"
        )
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device: '{name}' is none that torch knows; use 'auto', 'cpu' or 'cuda'") from error


def _factory(model: Factory | nn.Module) -> Factory:
    """Return a function that makes the module anew, with fresh initial values."""
    if not isinstance(model, nn.Module):
        return model
    for name, part in model.named_modules():
        if next(part.parameters(recurse=False), None) is not None and not hasattr(part, "reset_parameters"):
            raise UserError(
                f"the module '{name or type(part).__name__}' has parameters but no reset_parameters(), so it can't be "
                "initialised from a stream; pass a function that makes the model instead of the model"
            )

    def make() -> nn.Module:
        fresh = copy.deepcopy(model)
        for part in fresh.modules():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
        return fresh

    return make


def _check_model(worker: Worker) -> None:
    """Run one sample through the model, so that a misfit is told before training."""
    federation = worker.federation
    data = worker.data["train"]
    first = torch.arange(min(2, len(data)), device=worker.device)
    x = data.take(first)
    y = data.targets(first, x)
    whole = ""
    if not x.is_floating_point():
        largest = int(federation.splits["train"].pool.x.max())
        x.view(-1)[0] = largest  # or a later batch would be the first to show that it doesn't fit
        whole = f"; whole numbers are tokens, so store features as real numbers or take {largest + 1} tokens or more"
    try:
        with torch.inference_mode():
            output = worker.module(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UserError(
            f"the model {type(worker.module).__name__} can't take samples of shape {tuple(x.shape[1:])}: {error}{whole}"
        ) from error
    expected = federation.classes or 1
    if federation.classes and (output.ndim != 2 or output.shape[1] < expected):
        raise UserError(
            f"the model returns shape {tuple(output.shape)} for two samples; {expected} classes need (2, {expected})"
        )
    if not federation.classes and output.numel() != y.numel():
        raise UserError(
            f"the model returns shape {tuple(output.shape)} for two targets; {y[0].numel()} "
            f"number{'s' if y[0].numel() > 1 else ''} each {'are' if y[0].numel() > 1 else 'is'} needed"
        )


def _backend(asked: str, worker: Worker) -> tuple[str, str]:
    """Choose the form of training and say why; recorded in the results' manifest."""
    if asked == "loop":
        return asked, "asked for"
    with _one_thread(worker.device):
        problem = stacked.obstacle(worker)
    if asked == "stacked" and problem:
        raise UserError(f"backend: stacked isn't possible: {problem}; use 'auto' or 'loop'")
    if asked == "stacked":
        return asked, "asked for"
    if asked != "auto":
        raise UserError(f"backend: '{asked}'; allowed: auto, stacked, loop")
    if problem:
        return "loop", problem
    if worker.device.type == "cuda":
        return "stacked", "CUDA device"
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in worker.module.modules()):
        return "loop", "convolutions on a CPU: grouped ones are slower and their bits depend on the group"
    return "stacked", "no convolutions"
