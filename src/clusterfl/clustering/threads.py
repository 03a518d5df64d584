"""One thread for numpy's linear algebra, whose last bits may depend on the number of threads."""

from __future__ import annotations

from functools import cache
from typing import Any


def numpy_alone() -> Any:
    """Let numpy compute with one thread, as `threadpool_limits(1)` does, without its 2.8 ms to find thread pools.

    Not for SciPy or scikit-learn: thread pools of libraries loaded after the first call aren't known here.
    """
    return _known().limit(limits=1)


@cache
def _known() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
