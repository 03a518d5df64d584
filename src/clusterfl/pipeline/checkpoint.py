"""Checkpoints: a job that was killed resumes from its last one and ends with the same bits.

A checkpoint is in the job's folder under ``results/STUDY/.work/``, never inside a declared output, because Snakemake
deletes outputs before it runs a job again. It is used only with the same settings, code, inputs and versions.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..engine import processor
from ..errors import Stopped, UserError
from ..storage.manifest import verified, write_manifest
from ..storage.store import Columns, read_json, read_table, read_tensors, write_table, write_tensors

SECONDS = "CLUSTERFL_CHECKPOINT"  # environment variable: seconds between two checkpoints
DEFAULT = 120.0
SHARE = 0.02  # the most of a job's time that writing checkpoints may take
SAVE, STOP = signal.SIGUSR1, (signal.SIGTERM, signal.SIGINT)  # write a checkpoint after this step; and then end


class Worked(NamedTuple):
    """What a process spent on a job, up to now or to its last checkpoint."""

    seconds: float
    date: int  # start, in seconds since 1970
    host: str
    peak_bytes: int  # peak memory of this process or of one of its workers


@dataclass
class Saved:
    """What a job needs to resume after a number of steps: arrays, rows and tables by name."""

    step: int
    tensors: Mapping[str, Any]
    tables: Mapping[str, Columns] = field(default_factory=dict)


@dataclass
class Unfinished:
    """The checkpoint of one job.

    Parameters
    ----------
    folder
        The folder in which each checkpoint has a folder, named by its step; None: no checkpoints.
    identity
        Facts of the checkpoint's manifest: the job's identity, and digests of what its result depends on.
    seconds
        Time between two checkpoints; by default the environment variable CLUSTERFL_CHECKPOINT, or 120. More if writing
        one takes longer than 2 % of that; 0: after every step.
    machine
        As from `processor.record`: a checkpoint of another branch is refused, because the job would end with bits that
        neither machine reproduces.
    """

    folder: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = field(default_factory=lambda: _seconds())
    machine: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._due = time.monotonic() + self.seconds
        self._signal: int | None = None
        self._began, self._before = time.time(), list[Worked]()

    def worked(self) -> list[Worked]:
        """Return what each process has spent on the job, in order: those up to the checkpoint, then this one."""
        seconds = time.time() - self._began
        return [*self._before, Worked(seconds, int(self._began), platform.node(), _peak_bytes())]

    def read(self, arrays: Callable[[Path], Mapping[str, Any]] = read_tensors) -> Saved | None:
        """Return the last checkpoint, or None; if it is damaged or of other settings, code or inputs, that is printed.

        `arrays` reads the file of arrays.

        Raises
        ------
        UserError
            If it was written on another branch.
        """
        for folder in reversed(self._written()):
            try:
                found = self._read(folder, arrays)
            except (UserError, KeyError, TypeError, ValueError) as error:
                self._say(f"checkpoint not used, the job starts again: {str(error).split(';')[0]}")
                return None
            manifest = read_json(folder / "manifest.json")
            there = manifest.get("machine", {})
            again = f"continue on that machine, or delete {self.folder} to start again here"
            processor.same_branch(f"the checkpoint {folder}", there, self.machine, again)
            self._before = [Worked(*row) for row in manifest.get("worked", [])]
            self._say(f"resuming after step {found.step}, from {folder}")
            return found
        return None

    def _read(self, folder: Path, arrays: Callable[[Path], Mapping[str, Any]]) -> Saved:
        path = folder / "arrays.safetensors"
        manifest = verified(path, self.identity)
        tables = {}
        for name in manifest["tables"]:
            verified(folder / f"{name}.parquet", self.identity)
            tables[name] = read_table(folder / f"{name}.parquet")
        return Saved(int(manifest["step"]), arrays(path), tables)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block a signal leads to a checkpoint at the next call of `at`; SIGTERM or SIGINT then end the job.

        After SIGUSR1 the job continues. A second SIGTERM or SIGINT ends it at once.
        """
        if self.folder is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (SAVE, *STOP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def at(self, step: int, make: Callable[[], Saved]) -> None:
        """Write a checkpoint if one is due; `make` returns it.

        Raises
        ------
        Stopped
            After writing, if SIGTERM or SIGINT was received.
        """
        if self.folder is None or (self._signal is None and time.monotonic() < self._due):
            return
        kept, number, self._signal = self._write(step, make), self._signal, None
        if number in STOP:
            where = f"the same command resumes from {self.folder}" if kept else "no checkpoint could be written"
            raise Stopped(f"stopped by {signal.Signals(number).name} after step {step}; {where}", number)

    def _write(self, step: int, make: Callable[[], Saved]) -> bool:
        """Write a checkpoint and delete the previous one; return False if it can't be written, e.g. on a full disk."""
        assert self.folder is not None
        began, folder = time.monotonic(), self.folder / f"{step:08d}"
        try:
            saved = make()
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed while writing
            write_tensors(folder / "arrays.safetensors", saved.tensors)
            for name, columns in saved.tables.items():
                write_table(folder / f"{name}.parquet", columns)
            facts = {**self.identity, "machine": self.machine, "step": step, "tables": sorted(saved.tables)}
            facts["worked"] = self.worked()
            write_manifest(folder / "manifest.json", sorted(folder.iterdir()), facts)
        except (UserError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._say(f"no checkpoint after step {step}: {error}")
            return False
        finally:
            took = time.monotonic() - began
            self._due = time.monotonic() + (max(self.seconds, took / SHARE) if self.seconds else 0.0)
        for other in set(self._steps()) - {folder}:
            shutil.rmtree(other, ignore_errors=True)
        return True

    @property
    def step(self) -> int:
        """The step of the last checkpoint, even if it can't be used; 0 if there is none."""
        return max((int(folder.name) for folder in self._written()), default=0)

    def _written(self) -> list[Path]:
        """Return the folders of the complete checkpoints, in the order of steps."""
        return [folder for folder in self._steps() if (folder / "manifest.json").exists()]

    def _steps(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*")) if self.folder is not None else []

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; stop at once for a second SIGTERM or SIGINT."""
        if number in STOP:
            if self._signal in STOP:
                raise KeyboardInterrupt
            sys.stderr = _Patient(sys.stderr)  # its reader may have received the same signal and ended
            self._say(f"{signal.Signals(number).name}: a checkpoint follows after this step; a second one ends at once")
        if number in STOP or self._signal is None:
            self._signal = number

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _Patient:
    """A stream whose errors are ignored: its reader may have ended, or a signal may have interrupted a write."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, ignoring errors."""
        with contextlib.suppress(OSError, RuntimeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, ignoring errors."""
        with contextlib.suppress(OSError, RuntimeError):
            self._stream.flush()


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _seconds() -> float:
    given = os.environ.get(SECONDS, "")
    try:
        found = float(given or DEFAULT)
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise UserError(f"{SECONDS}='{given}': give the seconds between two checkpoints, 0 or more, e.g. 120")
    return found
