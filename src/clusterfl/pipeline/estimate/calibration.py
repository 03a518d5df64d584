"""How long the engine takes, on this machine, for a sample of training, a forward pass, a merged model, a byte.

Measured with the real engine on a study's own clients, model and settings. M clients, P columns of a model's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from ...engine import batches, memory
from ...engine.engine import Engine
from ...engine.training import Training
from ...simulation import loop
from ...simulation.method import Method
from ...storage.digest import of_file
from ...storage.store import write_tensors
from .counting import Kind, Tally
from .startup import forget_peak, peak

TRIES = 3


@dataclass
class Speed:
    """Seconds of one unit of each kind of work."""

    engine: float  # loading a federation and making its engine
    training: dict[Kind, float] = field(default_factory=dict)  # a sample in a step
    forward: tuple[float, float] = (0.0, 0.0)  # a pass of a model over some samples, and each of those
    merge: float = 0.0  # a model's update on the server
    part: int = 1  # clients whose updates one process adds up
    memory: float = 0.0  # bytes that all of this took beyond what was there before
    whole: float = 0.0  # seconds that all of this took

    def of(self, tally: Tally, threads: int = 1) -> float:
        """Return the seconds of what was counted; the processes share what clients do."""
        clients = sum(seconds * tally.get(kind, 0.0) for kind, seconds in self.training.items())
        clients += self.forward[0] * tally["passes"] + self.forward[1] * tally["samples"]
        return clients / threads + self.merge * tally["merged"] + tally["seconds"]


def typical(work: Callable[[int], object], most: int, limit: float) -> tuple[int, float, float]:
    """Return n, the seconds of ``work(n)``, and how they grow with n: as ``n ** exponent``.

    n doubles from 1 to `most`, as long as `limit` seconds allow; seconds are the least of some tries, at least two: the
    first of a size makes things ready for it, and other programs only ever slow it down.
    """
    began, n, sizes, times = perf_counter(), 1, [], []
    while True:
        tries: list[float] = []
        while len(tries) < 2 or (len(tries) < TRIES and sum(tries) < limit / 4):
            start = perf_counter()
            work(n)
            tries.append(perf_counter() - start)
        sizes.append(n)
        times.append(min(tries))
        if n == most or perf_counter() - began + 4 * times[-1] > limit:
            break
        n = min(2 * n, most)
    grown = len(sizes) > 1 and times[-1] > times[-2]
    exponent = np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2]) if grown else 1.0
    return n, times[-1], max(1.0, float(exponent))


def grown(work: Callable[[int], object], most: int, limit: float) -> float:
    """Return the seconds of ``work(most)``: measured, or from fewer with the exponent that was seen."""
    n, seconds, exponent = typical(work, most, limit)
    return seconds * float((most / n) ** exponent)


def speed(make: Callable[[], Engine], kinds: Iterable[Kind], limit: float) -> Speed:
    """Measure an engine.

    Parameters
    ----------
    make
        Makes it.
    kinds
        Of training; they share `limit` seconds with the forward passes.
    """
    forget_peak()
    before, began = peak(), perf_counter()
    kinds = list(kinds)
    share = limit / (len(kinds) + 2)
    with make() as engine:
        found = Speed(perf_counter() - began, part=engine.part)
        for kind in kinds:
            found.training[kind] = _training(engine, kind, share)
        found.forward = _forward(engine, share)
        found.merge = _merge(engine)
    found.memory, found.whole = peak() - before, perf_counter() - began
    return found


def _some(engine: Engine, n: int) -> np.ndarray:
    """Return n clients, evenly from all."""
    return np.unique(np.linspace(0, engine.federation.clients - 1, n).astype(np.int64))


def _training(engine: Engine, kind: Kind, limit: float) -> float:
    training = Training.model_validate_json(kind.training)
    sizes = engine.federation.splits["train"].sizes
    kept = memory.begin(training, len(sizes), engine.layout.parameter_columns, engine.allocate, {})

    def train(n: int) -> None:
        theta = engine.allocate(n if kind.apart else 1, engine.layout.columns)
        theta[:] = engine.initial()
        start = np.arange(n) if kind.apart else np.zeros(n, dtype=np.int64)
        chosen = _some(engine, n)
        engine.train(theta, start, chosen, needs=kind.needs, score=kind.score, training=training, kept=kept)

    train(1)  # the first call makes things ready
    n, seconds, _ = typical(train, engine.federation.clients, limit)
    of = sizes[_some(engine, n)]
    return seconds / int((batches.steps_of(of, training) * batches.batch_rows(of, training)).sum())


def _forward(engine: Engine, limit: float) -> tuple[float, float]:
    clients = engine.federation.clients

    def pass_all(n: int) -> None:
        engine.own_scores(engine.initial()[None], np.zeros(n, dtype=np.int64), _some(engine, n), "train")

    def pass_each(n: int) -> None:
        theta = engine.initial().expand(n, -1)
        engine.own_scores(theta, np.arange(n), _some(engine, n), "train")

    pass_all(1)
    n, together, _ = typical(pass_all, clients, limit / 2)
    many, each, _ = typical(pass_each, clients, limit / 2)
    samples = [int(engine.federation.splits["train"].sizes[_some(engine, k)].sum()) for k in (n, many)]
    a, b = np.linalg.lstsq(np.array([[1, samples[0]], [many, samples[1]]]), np.array([together, each]), rcond=None)[0]
    return max(0.0, float(a)), max(0.0, float(b))


def _merge(engine: Engine) -> float:
    method = Method(loop.context(engine, 0))
    state, one = method.begin(), np.zeros(1, dtype=np.int64)
    update = engine.train(state["theta"], one, one, training=Training(steps=1))

    def merge(n: int) -> None:
        method.merge(state, update, one, np.ones(1))

    return typical(merge, 1, 0.1)[1]


def storage(folder: Path) -> float:
    """Return the seconds that a byte takes to be written and its digest to be found."""
    numbers = np.random.default_rng(0).random(1 << 20, dtype=np.float32)

    def keep(n: int) -> None:
        write_tensors(folder / "numbers.safetensors", {"numbers": numbers})
        of_file(folder / "numbers.safetensors")

    return typical(keep, 1, 0.2)[1] / numbers.nbytes
