"""Works that get a process of their own, so that its memory is theirs: ``python -m benchmarks.alone WORK OPTIONS``.

OPTIONS are JSON; the seconds of each repetition are printed as a JSON list.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np

from clusterfl import simulation
from clusterfl.engine import Engine, Training
from clusterfl.federation import Federation
from clusterfl.methods import METHODS

from . import made
from .measure import timed


def rounds(
    *, method: str, options: dict[str, Any], model: str, data: str, clients: int, samples: int,
    training: dict[str, Any], workers: int, repeat: int,
) -> list[float]:  # fmt: skip
    """Return the seconds of a method's rounds, evaluations before and after them included."""
    federation: Federation = getattr(made, data)(clients, samples)
    settings = Training(evaluate_every=max(1, training["rounds"]), **training)
    with Engine(partial(made.network, model, federation), federation, settings, device="cpu", workers=workers) as used:
        few = np.arange(min(clients, 64))
        used.train(used.initial(0)[None], 0 * few, few)  # starts the workers
        checked = METHODS.options(method)(**options).model_dump()

        def run() -> None:
            simulation.run(METHODS[method](simulation.context(used, 0), **checked), used)

        return [timed(run) for _ in range(repeat)]


if __name__ == "__main__":
    work = {"rounds": rounds}[sys.argv[1]]
    print(json.dumps(work(**json.loads(sys.argv[2]))))
