"""Whether a part of the user's drew from NumPy's global generator, whose numbers no seed of a run decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def numpy_state() -> Any:
    """Return what NumPy's global generator draws from next."""
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["gauss"]


@contextlib.contextmanager
def watched(say: Callable[[str], None]) -> Iterator[None]:
    """Let work be done, then call `say` with a sentence if it drew from NumPy's global generator, or seeded it.

    Only that one, from which scikit-learn draws where it gets no seed: the one of `random` is drawn from by packages
    when they are imported, that of torch is set from streams wherever a network is made or trained.
    """
    before = numpy_state()
    yield
    if numpy_state() != before:
        say(
            "NumPy's global generator was drawn from or seeded, so these numbers may be others each time: give "
            "scikit-learn random_state=context.seed, and draw from clusterfl.streams.generator(context.seed, purpose); "
            "of parts of your own `clusterfl test my_module:Part` says which does it"
        )
