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
