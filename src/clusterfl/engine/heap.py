"""What the C library does with memory that a step has freed.

By default glibc gives large blocks back to the system at once, and the next step's are pages that the system must find
and fill with zeros: with networks of several million parameters a fifth to a third of a step (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
BLOCK, FREE = 32 << 20, 64 << 20  # bytes, at least
BLOCKS, FREES = 3, 12  # of a model's bytes
MOST = (1 << 31) - 1  # an int of C
ASKED = ("MALLOC_", "GLIBC_TUNABLES")  # beginnings of environment variables by which a user settles it


def keep(model_bytes: int, environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Let this process, and those that it forks, keep freed memory for the next step, where its C library is glibc.

    Blocks of up to three models come from the heap, whose end is given back where more than twelve models are free. It
    changes no number, and a process's largest memory hardly, since what is kept was in use.

    Returns
    -------
    Largest block and free bytes that were asked for; None where the library has no such options, or the environment
    has them.
    """
    if sys.platform != "linux" or any(name.startswith(ASKED) for name in environment):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return None
    block, free = (min(MOST, max(least, n * model_bytes)) for least, n in ((BLOCK, BLOCKS), (FREE, FREES)))
    for option, value in ((MMAP_THRESHOLD, block), (TRIM_THRESHOLD, free)):
        library.mallopt(option, value)
    return block, free
