"""Works that get a process of their own, so that its memory is theirs: ``python -m benchmarks.alone WORK OPTIONS``.

OPTIONS are JSON; the seconds of each repetition are printed as a JSON list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from clusterfl import api as notebook
from clusterfl.data.federation import Federation
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.pipeline.stages.distance import measure
from clusterfl.simulation.warm_up import warm_up

from . import made
from .measure import timed


def rounds(
    *, data: str, samples: int, model: str, clients: int, warm: int, workers: int, repeat: int, **options: Any
) -> list[float]:
    """Return the seconds of a method's rounds, with the evaluations before and after them, as users run it.

    So many `warm` clients do them once before. In this process, so that the workers, which are forked from it, have
    all modules that they need; 0 = nobody. `options` are those of `clusterfl.run`.
    """

    def seconds(count: int, processes: int, times: int) -> list[float]:
        federation: Federation = getattr(made, data)(count, samples)
        network = partial(made.network, model, federation)
        run = partial(notebook.run, federation=federation, model=network, workers=processes, device="cpu", **options)
        return [timed(run) for _ in range(times)]

    if warm:
        seconds(warm, 1, 1)
    return seconds(clients, workers, repeat)


def models(*, clients: int, workers: int) -> list[float]:
    """Return the seconds of LCFL's warm-up, after which every client has a model, and of its distance."""
    federation, few = made.images(clients, 10), made.images(clients, 2)
    network = partial(made.network, "lcfl-cnn", federation)
    settings = Training(rounds=1, epochs=1, batch_size=10, learning_rate=0.01)

    def run() -> None:
        with Engine(network, federation, settings, device="cpu", workers=workers) as used:
            warm = warm_up(used)
            with Engine(network, few, Training(), device="cpu", workers=workers) as scoring:
                measure(scoring, warm.theta, "loss", {})

    return [timed(run)]


WORKS: dict[str, Callable[..., list[float]]] = {"rounds": rounds, "models": models}

if __name__ == "__main__":
    print(json.dumps(WORKS[sys.argv[1]](**json.loads(sys.argv[2]))))
