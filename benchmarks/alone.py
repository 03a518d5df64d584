"""Works that get a process of their own, so that its memory is theirs: ``python -m benchmarks.alone WORK OPTIONS``.

OPTIONS are JSON; the seconds of each repetition are printed as a JSON list.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from clusterfl import simulation
from clusterfl.engine import Engine, Training
from clusterfl.federation import Federation
from clusterfl.methods import METHODS
from clusterfl.methods.base import Method

from . import made
from .measure import timed


def rounds(
    *, method: str, options: dict[str, Any], model: str, data: str, clients: int, samples: int,
    training: dict[str, Any], workers: int, repeat: int, warm: int,
) -> list[float]:  # fmt: skip
    """Return the seconds of a method's rounds, evaluations before and after them included.

    So many `warm` clients do them once before. In this process, so that the workers, which are forked from it, have
    all modules that they need; 0 = nobody.
    """
    settings = Training(evaluate_every=max(1, training["rounds"]), **training)
    checked = METHODS.options(method)(**options).model_dump()

    def seconds(count: int, processes: int, times: int) -> list[float]:
        federation: Federation = getattr(made, data)(count, samples)
        network = partial(made.network, model, federation)
        with Engine(network, federation, settings, device="cpu", workers=processes) as used:
            return [timed(lambda: simulation.run(make(used), used)) for _ in range(times)]

    def make(used: Engine) -> Method:
        found: Method = METHODS[method](simulation.context(used, 0), **checked)
        return found

    if warm:
        seconds(warm, 1, 1)
    return seconds(clients, workers, repeat)


if __name__ == "__main__":
    work = {"rounds": rounds}[sys.argv[1]]
    print(json.dumps(work(**json.loads(sys.argv[2]))))
