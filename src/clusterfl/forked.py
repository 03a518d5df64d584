"""What a forked process does first."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent, of the number `parent`, ends; elsewhere than on Linux it lives on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def compute_with_one_thread() -> None:
    """Let this process compute with one thread: those its parent has used are not in it, and it would wait for them."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    torch.set_num_threads(1)  # also of MKL, which is inside torch, where threadpoolctl doesn't find it
