"""One process at a time in a folder: others wait, and say for whom."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from .store import cannot_write


@contextlib.contextmanager
def locked(folder: Path, doing: str) -> Iterator[bool]:
    """Keep other processes out of a folder, which may be deleted while it is locked.

    The system lets go of the lock when its holder ends, however it ends. Where a file system has no locks, nobody is
    kept out; that is told.

    Parameters
    ----------
    folder
        Made if it isn't there.
    doing
        What its holder does, for the line that those who wait print, e.g. "fetching the same files".

    Yields
    ------
    Whether another process had the folder when this one came.
    """
    waited = False
    while True:
        lock = _opened(folder)
        with lock:
            waited = _wait(lock, folder, doing) or waited
            if _is(lock, folder / ".lock"):
                lock.truncate(0)
                lock.write(f"process {os.getpid()} on {platform.node()}")
                lock.flush()
                yield waited
                return
        # Its holder deleted the folder when it was done: begin anew with another file.


@contextlib.contextmanager
def only_while_locked(folder: Path, doing: str) -> Iterator[bool]:
    """Do as `locked`, and delete the folder, then its parent if that is empty, when the block ends well."""
    with locked(folder, doing) as waited:
        yield waited
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _opened(folder: Path) -> TextIOWrapper:
    for _ in range(100):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return open(folder / ".lock", "a+", encoding="utf-8")
        except FileNotFoundError:  # another process has just deleted the folder
            continue
        except OSError as error:
            raise cannot_write(folder, error) from error
    raise FileNotFoundError(folder)


def _wait(lock: TextIOWrapper, folder: Path, doing: str) -> bool:
    """Take the lock; return whether another process had it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read() or "another process"
        print(f"{folder}: waiting for {holder}, which is {doing}", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return True
    except OSError as error:  # ENOLCK, EOPNOTSUPP: as on some network file systems
        print(f"{folder}: can't be locked ({error}); make sure that no other process works there", file=sys.stderr)
    return False


def _is(lock: TextIOWrapper, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
