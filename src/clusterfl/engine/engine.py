"""The engine: trains many clients, measures losses, adds up updates. The only place that is allowed to be clever.

Axes: M clients, m participants, K models, P columns of a model's row (the first p are parameters).

On the CPU every number is the same whatever the chunk size, the number of workers and the order of processing:
each process uses one thread, a client's batches have a shape that depends on the client alone, and sums run in one
fixed order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import streams
from ..data.federation import Federation
from ..errors import UserError
from ..storage.row_store import Readable, Rows, allocate
from ..storage.scratch import scratch
from . import batches, bits, dense, memory, processor, work
from . import beside as alongside
from .beside import Beside
from .choice import choose
from .features import Features
from .lockstep import Lockstep
from .mixing import Mixed, Mixing, learn
from .modules import Factory, check, find_device, maker, summed
from .personal import Personal
from .processes import Processes
from .scoring import Scoring
from .task import Ids, Scores, Sums, Task, Towards
from .training import Training
from .update import Update, gather, join
from .worker import Worker

PART_NUMBERS = 3 << 20  # of parameters trained, and added up, by one task
PART_CLIENTS = 4, 1024  # the fewest and the most clients of one
PARTS = 4  # tasks of a round on a CPU, or a multiple of that: for two processes and for four


class Engine(Scoring):
    """Trains and scores models on a federation.

    Parameters
    ----------
    factory
        Makes a new module, e.g. a class or ``lambda: nn.Linear(2, 1)``; or a module, which is then copied and its
        layers are initialised again.
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
        ``dense`` (clients together, gradients written out), ``stacked`` (together, by `torch.func`), ``loop`` (one
        after another) or ``auto``: dense for a chain of linear layers, or a sum of some; of other models the
        loop where they have convolutions on a CPU, where it is faster, and stacked elsewhere.
    chunk
        Clients trained together at most; chosen from the model's size if not given. One where `bits` finds that
        neighbours would change bits.
    workers
        Processes on a CPU.
    precision
        Of products on CUDA: ``tf32`` rounds their factors to 10 bits.
    copies
        Of the module: a model is so many of them, whose outputs are added up.
    """

    def __init__(
        self,
        factory: Factory | nn.Module,
        federation: Federation,
        training: Training,
        seed: int = 0,
        model_seed: int | None = None,
        device: str = "auto",
        backend: Literal["auto", "dense", "stacked", "loop"] = "auto",
        chunk: int | None = None,
        workers: int = 1,
        newcomers: Federation | None = None,
        precision: Literal["float32", "tf32"] = "float32",
        copies: int = 1,
    ):
        self.federation, self.training, self.seed, self.newcomers = federation, training, seed, newcomers
        self._whole = federation
        self.model_seed = seed if model_seed is None else model_seed
        self.device = find_device(device)
        if self.device.type == "cuda":
            # PyTorch's own default lets convolutions round their factors.
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.factory, self.copies = summed(maker(factory), copies), copies
        self.worker = Worker(self.factory, federation, newcomers, seed, self.device)
        check(self.worker.module, federation, self.worker.data["train"])
        self.worker.tune()
        self.layout = self.worker.layout
        self._asked = backend
        if backend != "auto":
            self.backend  # noqa: B018 (what isn't possible is said now)
        self.chunk = chunk
        self.workers = workers if self.device.type == "cpu" else 1
        if self.device.type == "cpu":
            processor.check()
            self.worker.alone = not bits.sound(self.layout.matrices, *self.worker.sample(bits.ROWS))
        self._processes = Processes(self.worker, self.workers)
        self._files = tempfile.TemporaryDirectory(dir=scratch())

    @cached_property
    def _choice(self) -> tuple[str, str]:
        # Not before something trains: torch.func takes nearly a second to import what it needs.
        return choose(self._asked, self.worker)

    @property
    def backend(self) -> str:
        """The form of training: dense, stacked or loop."""
        return self._choice[0]

    @property
    def reason(self) -> str:
        """Why that form was chosen."""
        return self._choice[1]

    @property
    def part(self) -> int:
        """Clients whose updates are added up before they join the others': the sums' order depends on it."""
        fewest, most = PART_CLIENTS
        if self.device.type != "cpu":
            module = torch.get_device_module(self.device)
            # What PyTorch holds without using it since earlier rounds isn't free to the device, but it is to us.
            held = module.memory_reserved(self.device) - module.memory_allocated(self.device)
            free = module.mem_get_info(self.device)[0] + held
            return self.chunk or max(1, min(4 * most, free // (16 * 4 * self.layout.columns)))
        return max(fewest, min(most, (1 << (PART_NUMBERS // self.layout.columns).bit_length()) // 2))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes and delete the temporary files."""
        self._processes.close()
        self._files.cleanup()

    def enter(self, round_: int) -> bool:
        """Give clients the data that they have in a round; return whether these are others than before."""
        wanted = self._whole.at(round_)
        if wanted is self.federation:
            return False
        self._processes.close()  # the next ones are forked with the new data
        self.federation = wanted
        self.worker.enter(wanted)
        return True

    def initial(self, index: int = 0) -> Tensor:
        """Return the row [P] of the index-th initial model; each index draws from a stream of its own."""
        with streams.torch_stream(self.model_seed, "model", index):
            module = self.factory()
        if drawn := self.layout.changed(module):
            raise UserError(
                f"the model's buffer '{drawn}' has other values each time the model is made, and persistent=False says "
                "that it is a constant; register it without persistent=False, and each model keeps its own"
            )
        return self.layout.flatten(module)

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
        clip: float = math.inf,
        effort: Ids | None = None,
        factors: NDArray[np.float64] | None = None,
        kept: Mapping[str, Any] | None = None,
        personal: Personal | None = None,
        features: Features | None = None,
        fixed: frozenset[str] = frozenset(),
        turns: Sequence[frozenset[str]] = (),
        towards: Towards = "start",
        beside: Beside | None = None,
        shares: Tensor | None = None,
        free: frozenset[str] = frozenset(),
    ) -> Update:
        """Let `clients` train, each from its model, and return their updates.

        Parameters
        ----------
        theta : [K, P]
            Models.
        start, target : [m]
            z, the model each client starts from, and y, the one its update is added to (z if not given).
        clients : [m]
            Participants, ascending positions in the federation. With `shares` one may be there for several models.
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
        clip
            Euclidean norm that longer updates are shortened to; one with NaN or infinity becomes zeros and counts.
        effort : [m]
            Epochs (or steps) that each client does, if not those of the settings.
        factors : [m]
            What each update is times when it is sent; NaN or infinite: all its numbers are that.
        kept
            What all clients' optimisers keep (`memory`), with ``optimizer_state: kept``; changed in place. None: every
            client has a new one.
        personal
            Columns that clients keep: each starts from its own values, trained ones are written back in place, and in
            what it sends they are zeros. With ``scores`` nothing is written. None: no client keeps any.
        features
            What is done with what goes into the model's head.
        fixed
            Names of tensors that stay as they are, besides those that the model has frozen.
        turns
            Names of the tensors that are trained in each of several trainings, one after another, while the other
            parameters stay: each does what the settings say, with a new optimiser and the same mini-batches. None: one
            training of all.
        towards
            Where the proximal term pulls: to the model that a client starts from, with its own columns, to the one
            that it is given, or to the model of that number.
        beside
            What clients train beside what they send, from the models that they are given. An `Envelope`: K steps on
            each mini-batch, and a centre; they send how far that went. A `Lockstep`: a second model, which is written
            where it lies. What they trained, or the mix of both models, is written to `personal`, of all columns, and
            not started from.
        shares : [N]
            How much of a sample's loss counts, of all samples of the first of `clients`, then of the next one's, in
            float32; a mini-batch's loss is the sum of what counts over its number of samples. None: all of all.
        free
            Names of tensors that the proximal term doesn't pull.

        An update that is NaN, infinite or longer than ``training.largest_update`` is dropped: left out of the sums.
        """
        training, m = (training or self.training).on_clients(), len(clients)
        if not m:
            nothing = self.allocate(len(theta), self.layout.columns, torch.float64)
            return Update(clients, start, np.zeros(0, np.int64), round_, sums=nothing)
        alongside.check(beside, training, bool(turns), features, kept or {}, needs)
        if shares is not None and (personal is not None or features is not None or beside is not None or kept):
            raise UserError(
                "clients that train several models, each on shares of their samples' losses, keep nothing, neither "
                "tensors nor optimisers, and pull no features; allowed: optimizer_state: fresh and nothing of these"
            )
        fixed |= self.layout.frozen | (self.worker.unused if self.backend == "stacked" else frozenset())
        if turns:
            alongside.check_turns(training, towards, kept or {}, needs)
        sizes = self.federation.splits["train"].sizes[clients]
        batches.check_sizes(self.federation.ids[clients], sizes, training)
        steps, many = batches.steps_of(sizes, training, effort), max(1, len(turns))
        steps, passes = (steps, 1) if beside is None else (steps * beside.steps, beside.times // beside.steps)
        update = Update(clients, start, many * passes * steps, round_, np.zeros(m), np.zeros(m, dtype=bool))
        if "updates" in needs:
            update.rows = self.allocate(m, self.layout.columns)
        elif "scores" not in needs:
            update.sums = self.allocate(len(theta), self.layout.columns, torch.float64)
        if "last_gradient" in needs:
            update.last_gradient = self.allocate(m, self.layout.parameter_columns)
        if "curves" in needs:
            update.curves = np.full((m, many * int(steps.max())), np.nan, dtype=np.float32)
        if features is not None and features.gather != "nothing":
            update.moments = self._no_moments(m)
        for split in score:
            update.local[split] = Scores.none(self.worker.splits[split].sizes[clients])
        fold = PARTS if self.device.type == "cpu" else 1
        kinds = self._kinds(sizes, training, towards, beside)
        update.parts = batches.parts(sizes, self.federation.ids[clients], training, kinds, self.part, fold, steps)
        whole = Task(
            training, self._processes.shared(theta), start,
            start if target is None else target, np.ones(m) if weights is None else weights,
            clients, self.federation.ids[clients], sizes, steps,
            training.rates(round_, np.zeros(m) if participations is None else participations),
            round_, needs, score, clip, np.ones(m) if factors is None else factors,
            {name: self._processes.shared(rows) for name, rows in memory.rows_of(kept or {}).items()},
            (kept or {}).get(memory.STEPS, np.zeros(self.federation.clients, np.int64))[clients],
            None if beside else self._shared(personal), features, fixed, tuple(turns), towards,
            beside.at(self._processes.shared(beside.rows)) if isinstance(beside, Lockstep) else beside,
            None if shares is None else cast(Tensor, self._processes.shared(shares)),
            None if shares is None else np.cumsum(sizes) - sizes, free,
        )  # fmt: skip
        together = [[part] for part in update.parts]
        if self._processes.number == 1 and self.device.type == "cpu":
            fits = partial(work.fits, self.worker, whole, self.chunk)
            together = batches.together(update.parts, sizes, training, kinds, fits)
        tasks = ((whole.of(np.concatenate(own)), [*map(len, own)], self.backend, self.chunk) for own in together)
        results = (result for found in self._processes.map(work.train, tasks) for result in found)
        seen: set[int] = set()
        for part, result in zip(update.parts, results, strict=True):
            began = perf_counter()
            gather(update, part, result, training, seen)
            taken = steps[part] // 2 if training.lookahead else steps[part]  # by optimisers
            memory.keep(kept or {}, result.memory, clients[part], taken, ~result.unsound)
            if personal is not None and result.personal is not None:
                personal.keep(clients[part], result.personal, ~result.unsound)
            if isinstance(beside, Lockstep) and result.second is not None and result.share is not None:
                beside.keep(clients[part], result.second, result.share, ~result.unsound)
            update.server_seconds += perf_counter() - began
        return update

    def _kinds(self, sizes: Ids, training: Training, towards: Towards, beside: Beside | None) -> NDArray[np.int64]:
        """Return numbers [m] that are equal of clients that may be trained together."""
        if self.backend != "dense":
            return np.zeros(len(sizes), dtype=np.int64)
        return dense.kinds(self.worker, sizes, training, towards, paired=isinstance(beside, Lockstep))

    def personalise(
        self, theta: Rows, labels: Ids, clients: Ids, round_: int, participations: Ids, score: Sequence[str],
        training: Training | None = None, personal: Personal | None = None, features: Features | None = None,
        fixed: frozenset[str] = frozenset(), turns: Sequence[frozenset[str]] = (),
    ) -> dict[str, Scores]:  # fmt: skip
        """Return the scores of each client's own model after ``personalised_steps`` of training on its data.

        Nothing is kept: the models stay as they are, so do columns that clients keep, and what their optimisers do, for
        these steps are those of new ones; with ``lookahead`` they are such steps. Arguments as `train`; `labels` are
        the models that they start from.
        """
        training = training or self.training
        few = {"average": "models", "steps": training.personalised_steps, "epochs": None}
        few |= {"optimizer_state": "fresh", "lookahead": 0.0}
        if training.lookahead:  # as the steps ahead are
            few |= {"learning_rate": training.lookahead, "schedule": "constant", "decay": 1.0, "decays_before": 0}
            few |= {"optimizer": "sgd", "momentum": 0.0}
        update = self.train(
            theta, labels, clients, -round_,
            needs=frozenset({"scores"}), participations=participations, score=score,
            training=training.model_copy(update=few), personal=personal,
            features=features and replace(features, gather="nothing"), fixed=fixed, turns=turns,
        )  # fmt: skip
        return update.local

    def mixed(
        self, theta: Readable, start: Ids, clients: Ids, round_: int, personal: Personal, weights: Readable,
        settled: NDArray[np.bool_], mixing: Mixing,
    ) -> Mixed:  # fmt: skip
        """Let `clients` [m] mix columns that they keep with those of the models ``theta[start]`` that they are given.

        Parameters
        ----------
        round_
            That the models are of; with the client's id it keys the draws.
        weights : [M, q]
            Of each number of the models that are given; those of the clients are gone on from.
        settled : [M]
            Whose weights were learned before.
        """
        found, groups = Mixed.empty(len(clients), len(personal.columns)), self._groups(len(clients))
        kept = self._shared(personal)
        tasks = (
            (
                theta[torch.as_tensor(start[group])], clients[group], round_, kept,
                weights[torch.as_tensor(clients[group])], settled[clients[group]], mixing,
            )
            for group in groups
        )  # fmt: skip
        for group, one in zip(groups, self._processes.map(learn, tasks), strict=True):
            found.put(group, one)
        return found

    def reduce(self, update: Update, target: Ids, weights: NDArray[np.float64], models: int) -> Rows:
        """Return the sums [K, P] of kept updates, in the very order in which they are summed while streaming."""
        assert update.rows is not None
        sums, seen = self.allocate(models, self.layout.columns, torch.float64), set[int]()
        for part in update.parts:
            found: Sums = {}
            work.add_up(found, update.rows[torch.as_tensor(part)], target[part], weights[part], update.dropped[part])
            join(sums, found, seen)
        return sums
