"""Locks: of a folder, so that one process at a time works in it, and of a study, to show who runs it.

A study is run by one Snakemake, or by any number of `clusterfl run`, which share the jobs. Snakemake plans once and
deletes a job's outputs before it begins, so no other process may run the same study meanwhile. Snakemake's own lock
isn't used: a killed run leaves it behind, it excludes studies that only share data, and the first run that ends removes
the others' locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import pwd
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path

from ..errors import UserError
from .store import cannot_write

RUNNING = ".running"  # the file in the folder of a study that is being run
TRIES, PAUSE = 5, 0.02  # how often a claim that may be shared is tried, and the seconds between two tries
HOLDER = re.compile(r"process (\d+) on (\S+)")


@contextlib.contextmanager
def locked(folder: Path, doing: str) -> Iterator[bool]:
    """Lock a folder, which may be deleted inside the block; other processes wait.

    The system releases the lock when its holder ends, in whatever way. On a file system without locks a warning is
    printed, and no process waits.

    Parameters
    ----------
    folder
        Made if it doesn't exist.
    doing
        What the holder does, for the message of waiting processes, e.g. "fetching the same files".

    Yields
    ------
    Whether this process had to wait.
    """
    waited = False
    while True:
        lock = _opened(folder / ".lock")
        with lock:
            waited = _wait(lock, folder, doing) or waited
            if _is(lock, folder / ".lock"):
                lock.truncate(0)
                lock.write(_me())
                lock.flush()
                yield waited
                return
        # The last holder deleted the folder: try again with a new file.


@contextlib.contextmanager
def only_while_locked(folder: Path, doing: str) -> Iterator[bool]:
    """As `locked`; if the block ends without an error, delete the folder, and its parent if that is empty."""
    with locked(folder, doing) as waited:
        yield waited
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


@contextlib.contextmanager
def claimed(path: Path, doing: str, refusal: str, shared: bool = False) -> Iterator[None]:
    """Lock a file inside the block and write this process into it; other processes get an error and don't wait.

    Parameters
    ----------
    path
        The file; deleted by its last holder.
    doing
        The command of this process.
    refusal
        The other processes' error message, with the fields holder, process and host.
    shared
        Whether several processes that all set this may hold the file.

    Raises
    ------
    UserError
        If another process holds the file.
    """
    refused = 0
    while True:
        with _opened(path) as file:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                refused += 1
                if shared and refused < TRIES:  # the last of those who share it excludes all others while it deletes it
                    time.sleep(PAUSE)
                    continue
                raise UserError(_refused(file, refusal)) from None
            except OSError as error:
                _no_locks(path, error)
            if not _is(file, path):
                continue  # its last holder has deleted it
            if not shared:
                file.truncate(0)
            file.write(f"{_me()}: {doing}\n")
            file.flush()
            owner = os.getpid()
            try:
                yield
            finally:
                if os.getpid() == owner:  # not in a forked child, which holds the lock as well
                    with contextlib.suppress(OSError):  # an error: other processes hold it
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink()
            return


def _me() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"process {os.getpid()} on {platform.node()} of {user}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"


def _refused(file: TextIOWrapper, refusal: str) -> str:
    file.seek(0)
    holders = [
        line for line in file.read().splitlines() if (found := HOLDER.match(line)) and _may_live(*found.groups())
    ]
    found = HOLDER.match(holders[-1]) if holders else None
    process, host = found.groups() if found else ("N", "its machine")
    return refusal.format(holder="; ".join(holders) or "another process", process=process, host=host)


def _may_live(process: str, host: str) -> bool:
    """Return whether a process exists; True for one on another machine, where this can't be checked."""
    if host != platform.node():
        return True
    with contextlib.suppress(PermissionError):
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
    return True


def _opened(path: Path) -> TextIOWrapper:
    for _ in range(100):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return open(path, "a+", encoding="utf-8")
        except FileNotFoundError:  # another process has just deleted the folder
            continue
        except OSError as error:
            raise cannot_write(path.parent, error) from error
    raise FileNotFoundError(path)


def _wait(lock: TextIOWrapper, folder: Path, doing: str) -> bool:
    """Take the lock; return whether another process held it before."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read() or "another process"
        print(f"{folder}: waiting for {holder}, which is {doing}", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return True
    except OSError as error:  # ENOLCK, EOPNOTSUPP: as on some network file systems
        _no_locks(folder, error)
    return False


def _no_locks(path: Path, error: OSError) -> None:
    print(f"{path} can't be locked ({error}); make sure that no other process works there", file=sys.stderr)


def _is(lock: TextIOWrapper, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def running(study: Path, datasets: Iterable[Path], doing: str, shared: bool = False) -> Iterator[None]:
    """Claim, inside the block, a study's folder and those of the datasets that the run will fetch.

    Parameters
    ----------
    study, datasets
        The folders.
    doing
        The command, for the other processes' message.
    shared
        Whether several processes that all set this may run the study.

    Raises
    ------
    UserError
        If another process has one of the folders; the message says which, since when, and what to do.
    """
    wait = "wait until that ends, or end it as with Ctrl-C (kill -INT {process} on {host}); what it finished is kept"
    refusals = {
        study: f"study '{study.name}' is being run in this folder by {{holder}}; {wait}, and the same command "
        "continues. Other studies may run here at the same time"
    }
    for folder in sorted(set(datasets)):
        refusals[folder] = (
            f"{folder} is being fetched for another study by {{holder}}; start again when its download is done: both "
            "studies run at the same time then"
        )
    with contextlib.ExitStack() as claims:
        for folder, refusal in refusals.items():
            claims.enter_context(claimed(folder / RUNNING, doing, refusal, shared))
        yield
