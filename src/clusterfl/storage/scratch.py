"""A folder for a process's large temporary files, deleted at its end, or by a later process if it was killed."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

PREFIX, LOCK = "clusterfl-", ".lock"


@lru_cache(1)
def scratch() -> Path:
    """Return this process's folder, made in the temporary folder (TMPDIR)."""
    parent = Path(tempfile.gettempdir())
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    # A lock, not a process number: containers that share a disk may use the same numbers. The file gets its name when
    # the lock is held, so that no process finds it unlocked. Forked workers hold the lock as well.
    lock = os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    with contextlib.suppress(OSError):  # on a file system without locks no folder is swept
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / f"{LOCK}.new", folder / LOCK)
    atexit.register(_delete, folder, os.getpid())
    return folder


def _sweep(parent: Path) -> None:
    """Delete the folders left by this user's killed processes."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            with open(folder / LOCK, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


def _delete(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
