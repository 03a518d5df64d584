"""What a forked process does first."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # which jobs answer by a checkpoint
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def begin(parent: int) -> None:
    """Leave signals to the parent, of the number `parent`, end with it, and compute with one thread."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _die_with(parent)
    _compute_with_one_thread()


def _die_with(parent: int) -> None:
    """Let this process be killed when its parent ends; elsewhere than on Linux it lives on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _compute_with_one_thread() -> None:
    """Let this process compute with one thread: those its parent has used are not in it, and it would wait for them."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    torch.set_num_threads(1)  # also of MKL, which is inside torch, where threadpoolctl doesn't find it
