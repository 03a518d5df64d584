"""The engine: trains many clients together, measures losses and sums updates. Code optimised for speed is only here.

Axes: M clients, m participants, K models, P columns of a model's row (the first p are parameters).

On a CPU the results have the same bits for every chunk size, number of workers and order of processing: each process
uses one thread, the shape of a client's batches depends on that client alone, and sums are taken in a fixed order.
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

PART_NUMBERS = 3 << 20  # numbers (clients x columns) that one task trains and sums, at most
PART_CLIENTS = 4, 1024  # the fewest and the most clients of one task
PARTS = 4  # on a CPU a round has a multiple of this many tasks, which suits two and four processes


class Engine(Scoring):
    """Trains and scores models on a federation.

    Parameters
    ----------
    factory
        Makes a new module, e.g. a class or ``lambda: nn.Linear(2, 1)``; or a module, which is copied and whose
        layers are initialised again.
    federation, training
        Data and settings.
    newcomers
        Clients that no method trains with; their splits are called ``newcomer.train`` and so on.
    seed
        Seed of the clients' shuffles and of what a module draws in training.
    model_seed
        Seed of the initial models; `seed` if not given.
    device
        A torch device; ``auto`` is CUDA if there is one, else the CPU.
    backend
        ``dense`` (clients together, gradients written by hand), ``stacked`` (together, by `torch.func`), ``loop`` (one
        after another) or ``auto``: dense for a chain of linear layers or a sum of such chains; loop for models with
        convolutions on a CPU, where it is faster, and for models that can't be stacked; else stacked.
    chunk
        The most clients trained together; chosen from the model's size if not given. Always one if `bits` finds that a
        client's results would depend on the other clients of the chunk.
    workers
        Processes on a CPU; ignored on other devices.
    precision
        Of matrix products and convolutions on CUDA: ``tf32`` rounds their factors to 10 bits of mantissa.
    copies
        A model is the sum of the outputs of this many modules.

    Raises
    ------
    UserError
        If the device or backend isn't available, or the model can't be trained on the federation's samples.
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
        # Before the first round: who is too small may not be drawn until late.
        batches.check_sizes(federation.ids, federation.splits["train"].sizes, training)
        self.worker.tune()
        self.layout = self.worker.layout
        self._asked = backend
        if backend != "auto":
            self.backend  # noqa: B018 (raises an error now if this backend isn't possible)
        self.chunk = chunk
        self.workers = workers if self.device.type == "cpu" else 1
        if self.device.type == "cpu":
            processor.check()
            self.worker.alone = not bits.sound(self.layout.matrices, *self.worker.sample(bits.ROWS))
        self._processes = Processes(self.worker, self.workers)
        self._files = tempfile.TemporaryDirectory(dir=scratch())

    @cached_property
    def _choice(self) -> tuple[str, str]:
        # Only when something is trained: importing torch.func takes nearly a second.
        return choose(self._asked, self.worker)

    @property
    def backend(self) -> str:
        """The training backend in use: dense, stacked or loop."""
        return self._choice[0]

    @property
    def reason(self) -> str:
        """Why this backend was chosen."""
        return self._choice[1]

    @property
    def part(self) -> int:
        """The most clients whose updates one task sums before they are added to the total: it fixes the sums' order."""
        fewest, most = PART_CLIENTS
        if self.device.type != "cpu":
            module = torch.get_device_module(self.device)
            # PyTorch's cached memory from earlier rounds counts as used by the device, but we can use it.
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
        """Switch to the data that clients have in a round; return whether they differ from the current data."""
        wanted = self._whole.at(round_)
        if wanted is self.federation:
            return False
        self._processes.close()  # new ones will be forked with the new data
        self.federation = wanted
        self.worker.enter(wanted)
        return True

    def initial(self, index: int = 0) -> Tensor:
        """Return the index-th initial model as a row [P]; each index has its own random stream.

        Raises
        ------
        UserError
            If a buffer registered with ``persistent=False`` isn't the same each time the model is made.
        """
        with streams.torch_stream(self.model_seed, "model", index):
            module = self.factory()
        if drawn := self.layout.changed(module):
            raise UserError(
                f"the model's buffer '{drawn}' has other values each time the model is made, but persistent=False says "
                "that it is a constant; register it without persistent=False, and each model keeps its own"
            )
        return self.layout.flatten(module)

    def allocate(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Rows:
        """Return zeros [rows, columns], in a file if they are large, so that memory use doesn't grow with M."""
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

        An update that has NaN or infinity, or whose norm exceeds ``training.largest_update``, is dropped: it is left
        out of the sums.

        Parameters
        ----------
        theta : [K, P]
            Models.
        start, target : [m]
            z, the model each client starts from, and y, the one its update is added to (z if not given).
        clients : [m]
            Participants, as ascending positions in the federation; with `shares` a client is repeated for each model
            that it trains.
        round_
            Number of the round, a key of every random draw together with the client's id. Negative: an evaluation
            after that round, whose draws differ from those of training.
        weights : [m]
            Weights of the updates in the sums; 1 if not given.
        needs
            ``updates`` keeps every update (on disk if large) instead of the sums; ``last_gradient`` and ``curves``
            keep these. With ``scores`` no update is kept or summed.
        participations : [m]
            Rounds each client took part in before, for ``schedule: participation``; 0 if not given.
        score
            Splits on which each trained model is scored.
        training
            Settings in place of the engine's own.
        clip
            Euclidean norm that longer updates are scaled down to; one with NaN or infinity becomes zeros and counts.
        effort : [m]
            Epochs (or steps) that each client does, if not those of the settings.
        factors : [m]
            Each update is multiplied by its factor before it is sent; if that is NaN or infinite, so is every number.
        kept
            Memory of all clients' optimisers (`memory`), with ``optimizer_state: kept``; changed in place. None: every
            client has a new optimiser.
        personal
            Columns that clients keep: each starts from its own values, and the trained values are written back in
            place. In the update they are zeros unless `Personal.sent`. With ``scores`` nothing is written.
        features
            How the features, the inputs of the model's head, are used in training.
        fixed
            Names of tensors that aren't trained, in addition to those that the model has frozen.
        turns
            Names of the tensors trained in each of several trainings, one after another, while the other parameters
            don't change. Each training follows the settings, with a new optimiser and the same mini-batches. Empty:
            one training of all tensors.
        towards
            What the proximal term pulls to: the model that a client starts from, with its own columns (``start``), the
            model that it is given (``given``), or the model of this number.
        beside
            What clients train in addition to what they send, from the models that they are given. `Envelope`: K steps
            on each mini-batch, and a centre, whose change they send. `Lockstep`: a second model, changed in place in
            its rows. The trained model, or the mix of both models, is written to `personal`, which must have all
            columns; it isn't what the clients start from.
        shares : [N]
            Weight of each sample's loss, float32: all samples of the first of `clients`, then those of the next. A
            mini-batch's loss is the weighted sum divided by its number of samples. None: every weight is 1.
        free
            Names of tensors that the proximal term doesn't pull.

        Raises
        ------
        UserError
            If the arguments can't be combined, see `beside`, or one client's training doesn't fit into memory.
        """
        training, m = (training or self.training).on_clients(), len(clients)
        if not m:
            nothing = self.allocate(len(theta), self.layout.columns, torch.float64)
            return Update(clients, start, np.zeros(0, np.int64), round_, sums=nothing)
        alongside.check(beside, training, bool(turns), features, kept or {}, needs)
        if shares is not None and (personal is not None or features is not None or beside is not None or kept):
            raise UserError(
                "clients that train several models on weighted losses can't keep tensors or optimiser states, use "
                "features, or train a model beside; allowed: optimizer_state: fresh and none of these"
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
        """Return a number for each client, [m]; only clients with equal numbers may be trained together."""
        if self.backend != "dense":
            return np.zeros(len(sizes), dtype=np.int64)
        return dense.kinds(self.worker, sizes, training, towards, paired=isinstance(beside, Lockstep))

    def personalise(
        self, theta: Rows, labels: Ids, clients: Ids, round_: int, participations: Ids, score: Sequence[str],
        training: Training | None = None, personal: Personal | None = None, features: Features | None = None,
        fixed: frozenset[str] = frozenset(), turns: Sequence[frozenset[str]] = (),
    ) -> dict[str, Scores]:  # fmt: skip
        """Return the scores [m] of each client's model after ``personalised_steps`` of training on its data, by split.

        Nothing is stored: models, kept columns and the kept optimiser states don't change, and new optimisers are used;
        with ``lookahead`` they are plain SGD at that rate. Arguments as in `train`; `labels` [m] are the models that
        clients start from.
        """
        training = training or self.training
        few = {"average": "models", "steps": training.personalised_steps, "epochs": None}
        few |= {"optimizer_state": "fresh", "lookahead": 0.0}
        if training.lookahead:  # like the first step of a pair
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
        """Let `clients` [m] mix the columns that they keep with those of the models ``theta[start]`` they are given.

        Parameters
        ----------
        round_
            The models' round, a key of the draws together with the client's id.
        weights : [M, q]
            Each client's weights of the given model's values, from which it continues to learn.
        settled : [M]
            Whether a client has learned weights before.
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
        """Return the weighted sums [K, P], in float64, of an update's rows, in the order in which `train` sums them.

        `target` and `weights` are [m]; dropped updates are left out. `models` is K.
        """
        assert update.rows is not None
        sums, seen = self.allocate(models, self.layout.columns, torch.float64), set[int]()
        for part in update.parts:
            found: Sums = {}
            work.add_up(found, update.rows[torch.as_tensor(part)], target[part], weights[part], update.dropped[part])
            join(sums, found, seen)
        return sums
