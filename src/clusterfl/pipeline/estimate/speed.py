"""Speed of this machine for each kind of work, measured with the actual parts on a study's own data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ...engine import batches
from ...engine.engine import Engine
from ...engine.training import Training
from ...simulation import loop
from ...simulation.method import Method
from ...storage.digest import of_file
from ...storage.store import write_tensors
from .rounds import Needs
from .startup import forget_peak, peak

SECONDS = 0.5  # about how long each kind of work is measured


class Speed:
    """Seconds for one unit of each kind of work, of the engines that `make` returns."""

    def __init__(self, make: Callable[[], Engine]):
        self.make, self.memory = make, 0.0  # bytes used in measuring
        self.steps: dict[tuple[Any, ...], float] = {}  # for a sample in a step, by the settings that affect it
        began = perf_counter()
        with self._watched() as engine:
            self.engine, self.layout = perf_counter() - began, engine.layout
            self.passing, self.sample = _forward(engine)  # for a forward pass, and for each of its samples
            self.merged = _merge(engine)  # for a model's update on the server

    def of(self, needs: Needs, threads: int = 1) -> float:
        """Return the seconds of a job's rounds; the clients' work is divided among `threads` processes."""
        t = needs.training.on_clients()
        key = (
            t.batch_size,
            t.epochs,
            t.steps,
            t.optimizer,
            t.momentum > 0,
            t.proximal > 0,
            t.lookahead > 0,
            t.weight_decay > 0,
        )
        if key not in self.steps:
            with self._watched() as engine:
                self.steps[key] = _step(engine, t)
        clients = needs.steps * self.steps[key] + self.scoring(needs.passes, needs.samples)
        return clients / threads + needs.merged * self.merged + needs.seconds

    def scoring(self, passes: float, samples: float) -> float:
        """Return the seconds of forward passes."""
        return self.passing * passes + self.sample * samples

    @contextmanager
    def _watched(self) -> Iterator[Engine]:
        forget_peak()
        before = peak()
        with self.make() as engine:
            yield engine
        self.memory = max(self.memory, peak() - before)


def measured(work: Callable[[int], object], most: int) -> tuple[int, float]:
    """Return n and the seconds of ``work(n)``, the lesser of two tries; n doubles up to `most` while time allows."""
    n, began = 1, perf_counter()
    while True:
        tries = []
        for _ in range(2):  # the first one includes set-up
            start = perf_counter()
            work(n)
            tries.append(perf_counter() - start)
        if n >= most or perf_counter() - began + 4 * min(tries) > SECONDS:
            return n, min(tries)
        n = min(2 * n, most)


def pairs(work: Callable[[int], object], most: int) -> float:
    """Return the seconds of ``work(most)``, extrapolated with the square from the largest n that time allows."""
    n, seconds = measured(work, most)
    return seconds * (most / n) ** 2


def storage(folder: Path) -> float:
    """Return the seconds to write and digest one byte."""
    numbers = np.random.default_rng(0).random(1 << 20, dtype=np.float32)

    def keep(n: int) -> None:
        write_tensors(folder / "numbers.safetensors", {"numbers": numbers})
        of_file(folder / "numbers.safetensors")

    return measured(keep, 1)[1] / numbers.nbytes


def figure(folder: Path, clients: int) -> tuple[float, float]:
    """Return the seconds and bytes of a report's figure with this many clients."""
    from ...report import canvas, cluster_figures

    labels = np.arange(clients) % 4
    distance = np.abs(labels[:, None] - labels).astype(float)
    _, seconds = measured(
        lambda n: canvas.save(cluster_figures.heat_map(distance, labels, labels, "gap"), folder, "map"), 1
    )
    return seconds, float(sum(path.stat().st_size for path in folder.glob("map.*")))


def _some(engine: Engine, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n clients, evenly spaced among all, and their numbers of samples."""
    chosen = np.unique(np.linspace(0, engine.federation.clients - 1, n).astype(np.int64))
    return chosen, engine.federation.splits["train"].sizes[chosen]


def _step(engine: Engine, training: Training) -> float:
    theta = engine.initial()[None]

    def train(n: int) -> None:
        engine.train(theta, np.zeros(n, dtype=np.int64), _some(engine, n)[0], training=training)

    n, seconds = measured(train, engine.federation.clients)
    sizes = _some(engine, n)[1]
    return seconds / float((batches.steps_of(sizes, training) * batches.batch_rows(sizes, training)).sum())


def _forward(engine: Engine) -> tuple[float, float]:
    """Return the seconds of a forward pass and of a sample, from one model on n clients and n models on one each."""
    theta = engine.initial()

    def score(n: int, models: int) -> None:
        engine.own_scores(theta.expand(models, -1), np.arange(n) % models, _some(engine, n)[0], "train")

    n, seconds = measured(lambda n: score(n, 1), engine.federation.clients)
    sample = seconds / float(_some(engine, n)[1].sum())
    n, seconds = measured(lambda n: score(n, n), engine.federation.clients)
    return max(0.0, seconds / n - sample * float(_some(engine, n)[1].mean())), sample


def _merge(engine: Engine) -> float:
    method, context = Method(), loop.context(engine)
    state, one = method.begin(context), np.zeros(1, dtype=np.int64)
    update = engine.train(state.theta, one, one, training=Training(steps=1))
    return measured(lambda n: method.merge(context, state, update, one, np.ones(1)), 1)[1]
