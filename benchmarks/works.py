"""The works, in one table, and how each becomes rows of the result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training

from . import made
from .loop import Local, LoopProcess
from .measure import alone, command_seconds, in_turn, memory_is_known, timed

GIGABYTES, SECONDS = "GB", "s"
REPEAT = 3  # runs of the smaller sizes, of which the median counts
WARM = 64  # clients of a run that isn't counted


@dataclass
class Row:
    """A line of the result.

    `value` is ours and `reference` the loop's, the limit or the smaller federation's. With a loop, `ratio` is the
    median of the pairs' own ratios, between `ratio_min` and `ratio_max`; `seconds` and `loop_seconds` are medians of
    what was run, which `part` describes.
    """

    work: str
    what: str
    group: str
    unit: str
    value: float
    reference: float
    ratio: float
    bar: float
    part: str
    seconds: float | None = None
    loop_seconds: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    pairs: int | None = None

    @property
    def met(self) -> bool:
        """Whether the ratio is within the bar."""
        return self.ratio <= self.bar


@dataclass
class Point:
    """A size of a work whose time and memory are followed as clients become more."""

    work: str
    clients: int
    seconds: float
    gigabytes: float


@dataclass
class Bench:
    """What the works share: how often and with how many processes they run, and what they found."""

    pairs: int = 5
    workers: int = 2
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @cached_property
    def loop(self) -> LoopProcess:
        """The process of the plain loop."""
        return LoopProcess()

    def close(self) -> None:
        """End the loop's process, if there is one."""
        if "loop" in self.__dict__:
            self.loop.close()


@dataclass(frozen=True)
class Work:
    """What all works have: their name, what they are in words, and the seconds that they take on two cores."""

    name: str
    what: str
    expected: float

    group = ""

    def possible(self) -> bool:
        """Return whether this machine can do it."""
        return True

    def run(self, bench: Bench) -> None:
        """Measure and add the rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compared(Work):
    """A work that the plain loop does as well, wholly or on a part of the clients.

    `clients` of the `whole` take part; the loop has the first `loop_clients` of them, where not all.
    """

    bar: float
    model: str
    whole: int
    clients: int
    data: made.Data = made.images
    samples: int = 50
    loop_clients: int | None = None
    pairs: int | None = None  # instead of those asked for
    copies: int = 1  # of the network, whose outputs are added up

    unit = ""

    def part(self) -> str:
        """Return what is run, in words."""
        ours = "all clients" if self.clients == self.whole else f"{self.clients:,} of {self.whole:,} clients"
        return ours if self.loop_clients is None else f"{ours}; the loop {self.loop_clients:,} of them"

    def units(self, clients: int) -> int:
        """Return how many units so many clients are."""
        return clients

    def training(self) -> Training:
        """Return the engine's settings."""
        return Training()

    def sides(self, used: Engine, loop: LoopProcess) -> tuple[Callable[[], object], Callable[[], float]]:
        """Return our side, to be timed, and the loop's, which tells its seconds."""
        raise NotImplementedError

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        federation = self.data(self.clients, self.samples)
        module, theirs = made.network(self.model, federation), self.loop_clients or self.clients
        bench.loop.hold(made.plain(self.model, federation), *arrays(federation, theirs))
        with Engine(
            module, federation, self.training(), device="cpu", workers=bench.workers, copies=self.copies
        ) as used:
            ours, loop = self.sides(used, bench.loop)
            found = np.array(in_turn(lambda: timed(ours), loop, self.pairs or bench.pairs))
        per_unit = 1e3 * found / [self.units(self.clients), self.units(theirs)]
        ratios, (seconds, loop_seconds) = per_unit[:, 0] / per_unit[:, 1], np.median(found, axis=0)
        value, reference = np.median(per_unit, axis=0)
        bench.rows.append(
            Row(
                self.name, self.what, self.group, self.unit, value, reference, float(np.median(ratios)), self.bar,
                self.part(), seconds, loop_seconds, ratios.min(), ratios.max(), len(ratios),
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Round(Compared):
    """One round of FedAvg: everybody trains from one model, the models are averaged."""

    local: Local = field(default_factory=Local)

    group, unit = "training", "ms per client and round"

    def training(self) -> Training:
        """See `Compared.training`."""
        return Training(**asdict(self.local))

    def sides(self, used: Engine, loop: LoopProcess) -> tuple[Callable[[], object], Callable[[], float]]:
        """See `Compared.sides`."""
        start = used.initial(0)
        return partial(fedavg, used, start), partial(loop.train, self.local)


@dataclass(frozen=True)
class Losses(Compared):
    """The losses of models on clients."""

    models: int = 10
    whole_models: int = 10

    group, unit = "losses", "ms per model and client"

    def part(self) -> str:
        """See `Compared.part`."""
        models = "all models" if self.models == self.whole_models else f"{self.models} of {self.whole_models} models"
        return f"{models} on {super().part()}"

    def units(self, clients: int) -> int:
        """See `Compared.units`."""
        return self.models * clients

    def sides(self, used: Engine, loop: LoopProcess) -> tuple[Callable[[], object], Callable[[], float]]:
        """See `Compared.sides`."""
        theta, clients = torch.stack([used.initial(k) for k in range(self.models)]), np.arange(self.clients)
        return partial(used.losses, theta, clients), partial(loop.losses, self.models)


def fedavg(used: Engine, start: Tensor, **options: Any) -> Tensor:
    """Return the mean [P], weighed by samples, of the models that all clients trained from ``start [P]``.

    `options` are those of `Engine.train`.
    """
    clients = np.arange(used.federation.clients)
    weights = used.federation.splits["train"].sizes.astype(np.float64)
    sums = used.train(start[None], np.zeros_like(clients), clients, weights=weights, **options).sums
    assert sums is not None
    return start + (sums[0] / weights.sum()).float()


def arrays(federation: Federation, clients: int) -> tuple[list[Any], list[Any]]:
    """Return the first clients' samples and targets as the loop takes them."""
    data = federation.splits["train"]
    cuts = data.offsets[1:clients]
    end = data.offsets[clients]
    x = samples_of(data)[:end]
    if data.pool.inputs.target == "input":
        return np.split(x, cuts), np.split(x.reshape(end, -1), cuts)
    y = data.y[:end] if federation.classes else data.y[:end, None]
    return np.split(x, cuts), np.split(y, cuts)


@dataclass(frozen=True)
class Alone(Work):
    """Rounds of a method in a process of their own; `options` are those of `clusterfl.run`."""

    model: str
    data: str
    samples: int
    limit: float  # GB
    options: dict[str, Any]

    def possible(self) -> bool:
        """See `Work.possible`."""
        return memory_is_known()

    def measure(self, bench: Bench, clients: int, repeat: int = 1, warm: int = 0) -> tuple[float, float]:
        """Return the median of the seconds, and the peak of memory in GB, with so many clients."""
        seconds, peak = alone(
            "rounds", data=self.data, samples=self.samples, model=self.model, clients=clients, warm=warm,
            workers=bench.workers, repeat=repeat, **self.options,
        )  # fmt: skip
        return median(seconds), peak

    def add_memory(self, bench: Bench, clients: int, seconds: float, peak: float) -> None:
        """Add the row of the memory."""
        part = f"all {clients:,} clients"
        row = Row(
            self.name, self.what, "memory", GIGABYTES, peak, self.limit, peak / self.limit, 1.0, part, seconds,
        )  # fmt: skip
        bench.rows.append(row)


@dataclass(frozen=True)
class Memory(Alone):
    """The peak of memory in one round."""

    clients: int = 2400

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        self.add_memory(bench, self.clients, *self.measure(bench, self.clients))


@dataclass(frozen=True)
class Models(Work):
    """The peak of memory in LCFL's warm-up and distance, many clients against fewer: 15 % may be added."""

    group, fewer, most, bar = "memory", 160, 640, 1.15

    def possible(self) -> bool:
        """See `Work.possible`."""
        return memory_is_known()

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        found = [alone("models", clients=clients, workers=bench.workers) for clients in (self.fewer, self.most)]
        (_, reference), ((seconds,), peak) = found
        part = f"{self.most} clients against {self.fewer}; losses on 2 samples of each"
        row = Row(
            self.name, self.what, self.group, GIGABYTES, peak, reference, peak / reference, self.bar, part, seconds,
        )  # fmt: skip
        bench.rows.append(row)


@dataclass(frozen=True)
class Growth(Alone):
    """Time and memory as clients become more: both at the last of the sizes, the time against the one before."""

    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    bar: float = 1.3

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        *_, fewer, most = self.sizes
        found = {size: self.measure(bench, size, 1 if size == most else REPEAT, WARM) for size in self.sizes}
        bench.points += [Point(self.name, size, *point) for size, point in found.items()]
        self.add_memory(bench, most, *found[most])
        value, reference = (1e3 * found[size][0] / size for size in (most, fewer))
        bench.rows.append(
            Row(
                f"{self.name}-time", f"{self.what}: time by client against {fewer:,} clients", "growth",
                "ms per client", value, reference, value / reference, self.bar, f"all {most:,} clients", found[most][0],
            )
        )  # fmt: skip


@dataclass(frozen=True)
class StartUp(Work):
    """The seconds of a command, from start to exit, in a folder where everything it needs is there."""

    limit: float
    command: list[str]
    before: list[list[str]] = field(default_factory=list)

    group = "start-up"

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        with TemporaryDirectory(prefix="clusterfl-benchmark-") as name:
            folder = Path(name)
            (folder / "config.yaml").write_text((Path(__file__).with_name("study.yaml")).read_text(), encoding="utf-8")
            for arguments in [*self.before, self.command]:  # the last one is its warm-up
                command_seconds(_clusterfl(arguments), folder, 1)
            seconds = median(command_seconds(_clusterfl(self.command), folder, bench.pairs))
        part = f"median of {bench.pairs} runs of the whole command"
        row = Row(
            self.name, self.what, self.group, SECONDS, seconds, self.limit, seconds / self.limit, 1.0, part, seconds,
        )  # fmt: skip
        bench.rows.append(row)


@dataclass(frozen=True)
class Whole(Work):
    """The seconds of shell commands that users wait for, in a folder made by `clusterfl init`."""

    limit: float
    command: str
    before: str = "true"

    group = "whole"

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        start = f"export PATH={shlex.quote(places)} EVIDENCE={shlex.quote(str(EVIDENCE))}; "
        with TemporaryDirectory(prefix="clusterfl-benchmark-") as name:
            folder = Path(name)
            command_seconds(_clusterfl(["init", "."]), folder, 1)
            command_seconds(["bash", "-ec", start + self.before], folder, 1)
            (seconds,) = command_seconds(["bash", "-ec", start + self.command], folder, 1)
        row = Row(self.name, self.what, self.group, SECONDS, seconds, self.limit, seconds / self.limit, 1.0,
                  f"one run of: {self.command}", seconds)  # fmt: skip
        bench.rows.append(row)


def _clusterfl(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "clusterfl.cli", *arguments]


EVIDENCE = Path(__file__).parents[1] / "docs/reproduction/evidence"
RUN = ["--federation", "digits", "--seed", "0"]
STAGES = [
    ["download", "digits"],
    ["partition", *RUN],
    ["warmup", "--warmup", "one", *RUN],
    ["distance", "--distance", "loss", *RUN],
    ["cluster", "--clustering", "lcfl", *RUN],
]
MLP, LARGE, TINY = "MLP 784-200-10", "CNN of 1,663,370 parameters", "LCFL's CNN of 417,482 parameters"
ROUND, PAIRS = (
    "one FedAvg round, batch 20, 5 epochs, {}, 200 clients x 50 images: {}",
    "200 models on 200 clients x 50 images, LCFL's distance: {}",
)
BRIEF = Local(learning_rate=0.1, batch_size=10)
ONE_ROUND = {"rounds": 1, "epochs": 1, "batch_size": 20, "learning_rate": 0.01}
TEN_ROUNDS = {"rounds": 10, "epochs": 1, "batch_size": 10, "learning_rate": 0.1, "evaluate_every": 10}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "ifca": {"method": "ifca", "clusters": made.GROUPS},
    "clove": {"method": "clove", "clusters": made.GROUPS, "first_round": "losses"},
    "local": {"method": "local"},
}
LANDMARKS = {
    "method": "lcfl",
    "landmarks": 32,
    "clusters": made.GROUPS,
    "clusterer": "hierarchical",
    "warmup": TEN_ROUNDS | {"rounds": 1, "epochs": 5},
    "training": TEN_ROUNDS,
}

WORKS: list[Work] = [
    Round("round-mlp-sgd", ROUND.format("SGD", MLP), 15, 0.25, "mlp", 200, 200),
    Round("round-mlp-adam", ROUND.format("Adam", MLP), 25, 0.30, "mlp", 200, 200, local=Local("adam", 0.001)),
    Round("round-mlp-momentum", ROUND.format("momentum .9", MLP), 20, 0.30, "mlp", 200, 200,
          local=Local(momentum=0.9)),
    Round("round-large-cnn", ROUND.format("SGD", LARGE), 50, 0.42, "large-cnn", 200, 24),
    Round("round-lcfl-cnn", ROUND.format("SGD", TINY), 40, 0.42, "lcfl-cnn", 200, 48),
    Round("round-lcfl-cnn-full", ROUND.format("SGD", TINY), 50, 0.42, "lcfl-cnn", 200, 200, pairs=1),
    Round("round-regression", "one FedAvg round, batch 10, 5 epochs, SGD, 10,000 clients x 20 samples: linear "
          "regression of 20 features", 20, 0.05, "linear", 10_000, 10_000, made.regression, 20, 1_000, local=BRIEF),
    Round("round-logistic", "one FedAvg round, batch 10, 5 epochs, SGD, 10,000 clients x 20 images: logistic "
          "regression 784-10", 30, 0.05, "linear", 10_000, 10_000, made.images, 20, 1_000, local=BRIEF),
    Losses("losses-large-cnn", PAIRS.format(LARGE), 30, 0.33, "large-cnn", 200, 25, models=8, whole_models=200),
    Losses("losses-lcfl-cnn", PAIRS.format(TINY), 25, 0.33, "lcfl-cnn", 200, 25, models=16, whole_models=200),
    Losses("losses-mlp", PAIRS.format(MLP), 15, 0.42, "mlp", 200, 200, models=40, whole_models=200),
    Losses("losses-assignment", f"10 models on 1,000 clients x 50 (IFCA's and CLoVE's assignment): {MLP}", 20, 0.42,
           "mlp", 1_000, 1_000),
    Losses("losses-clove-cnn", "10 models on 25 clients x 500 (the same in CLoVE's studies): CLoVE's CNN", 25, 0.42,
           "clove-cnn", 25, 25, samples=500),
    *(
        Memory(f"memory-{method}", f"one round of {method}, batch 20, 1 epoch, 2,400 clients x 25 images: {TINY}", 45,
               "lcfl-cnn", "images", 25, 3.0, options | {"training": ONE_ROUND})
        for method, options in METHODS.items()
    ),
    Models("memory-lcfl", "memory of LCFL's warm-up (1 epoch on 10 images) and distance with 640 clients against 160: "
           f"{TINY}", 80),
    *(
        Growth(f"many-{method}", f"10 rounds of {method}, batch 10, 1 epoch, 100,000 clients x 20 samples: logistic "
               "regression 20-4", 50, "linear", "planted", 20, 6.0, METHODS[method] | {"training": TEN_ROUNDS})
        for method in ("fedavg", "ifca", "clove")
    ),
    Growth("many-lcfl", "LCFL by 32 landmarks: warm-up of 5 epochs, distances, clusters, 9 rounds, batch 10, 1 epoch, "
           "100,000 clients x 20 samples: logistic regression 20-4", 180, "linear", "planted", 20, 6.0, LANDMARKS),
    StartUp("start-help", "clusterfl --help", 2, 0.3, ["--help"]),
    StartUp("start-federate", "stage federate without a round, torch imported", 25, 3.0,
            ["federate", "--method", "fedavg", *RUN], STAGES[:2]),
    StartUp("start-cluster", "stage cluster, which needs no torch", 20, 1.0, STAGES[-1], STAGES[:-1]),
    Whole("study-snakemake", "the default study by Snakemake, on two cores", 60, 50, "snakemake --cores 2 --quiet all"),
    Whole("study-run", "the default study, two jobs at a time", 45, 30, "clusterfl run --jobs 2"),
    Whole("study-verify", "every file of the default study checked", 55, 6, "clusterfl verify digits",
          "clusterfl run --jobs 2"),
    Whole("claims", "verdicts on all printed numbers, from the committed evidence", 15, 10,
          'clusterfl claims --from "$EVIDENCE"'),
    Whole("claims-page", "the page over all studies, from the committed evidence", 35, 20,
          'clusterfl site --from "$EVIDENCE" --out page'),
]  # fmt: skip
