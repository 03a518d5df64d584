"""Set-up of a forked process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # on which a job saves a checkpoint
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def begin(parent: int) -> None:
    """Ignore signals, end when the process `parent` ends, and compute with one thread."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _die_with(parent)
    _compute_with_one_thread()


def _die_with(parent: int) -> None:
    """Let this process be killed when its parent ends; only possible on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _compute_with_one_thread() -> None:
    """Compute with one thread: a forked process doesn't have its parent's threads, and would wait for them."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    torch.set_num_threads(1)  # also of MKL, which is inside torch, where threadpoolctl doesn't find it
