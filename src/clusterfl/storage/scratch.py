"""A folder for a process's own large files, deleted at its end; of processes that were killed, by the next one."""

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
    """Return this process's folder, under what TMPDIR names."""
    parent = Path(tempfile.gettempdir())
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    # A lock, not a process number: two containers that share a disk have numbers of their own. It is renamed when it is
    # held, so that nobody finds it free in between. Forked workers hold it, too.
    lock = os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: then nothing is ever swept
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / f"{LOCK}.new", folder / LOCK)
    atexit.register(_delete, folder, os.getpid())
    return folder


def _sweep(parent: Path) -> None:
    """Delete the folders of this user's processes that were killed."""
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
