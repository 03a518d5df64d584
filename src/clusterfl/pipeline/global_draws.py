"""Detects draws of a user's part from NumPy's global generator, which doesn't depend on a run's seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def numpy_state() -> Any:
    """Return the state of NumPy's global generator, comparable with ==."""
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["gauss"]


@contextlib.contextmanager
def watched(say: Callable[[str], None]) -> Iterator[None]:
    """After the block, call `say` with a sentence if it drew from NumPy's global generator, or seeded it.

    Only this generator is checked, from which scikit-learn draws without a seed: packages draw from that of `random`
    when they are imported, and that of torch is set from streams whenever a network is made or trained.
    """
    before = numpy_state()
    yield
    if numpy_state() != before:
        say(
            "NumPy's global generator was drawn from or seeded, so these numbers may differ each time: give "
            "scikit-learn random_state=context.seed, and draw from clusterfl.streams.generator(context.seed, purpose); "
            "of parts of your own `clusterfl test my_module:Part` says which does it"
        )
