"""The process that Snakemake's run keeps ready: it has imported what the jobs need, and forks one for each command.

A fork has its caller's arguments, working folder, environment, open files, limits and cores, and gets the caller's
signals; it is killed with its caller, as the caller's own process would be. The process refuses a command, which then
does its job itself, if

- variables of its environment differ that libraries may have read when they were imported, or
- a source file has changed since it was imported, the package's or a user's.

The process ends when the run that started it has ended and no job is left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .handing import LENGTH, READY, address

FEWEST = 3  # jobs of a run from which on the process saves time
# What Snakemake gives a rule of one thread, and what differs between jobs without any library's reading it at import.
THREADS = dict.fromkeys(
    ["OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
     "NUMEXPR_NUM_THREADS"], "1",
)  # fmt: skip
OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TMP", "TEMP", "TEMPDIR", "TMPDIR", READY})


def begin(jobs: int, config: Path) -> Callable[[], None] | None:
    """Start the process for a run of so many jobs, and let commands that are started from now on find it.

    Parameters
    ----------
    jobs
        How many the run has; for fewer than `FEWEST` no process is started.
    config
        The settings that they read.

    Returns
    -------
    A function that ends the process and waits until it has ended; it also ends when this process does. None if none
    was started.
    """
    folder = Path(tempfile.mkdtemp(prefix="clusterfl."))  # nobody else may enter it
    if jobs < FEWEST or not hasattr(os, "fork") or len(address(folder).partition(os.pathsep)[0]) > 100:
        folder.rmdir()
        return None
    theirs, ours = os.pipe()  # never written to: the process sees it closed when this one ends
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(1024)  # before anything is imported, so that the first commands wait for it
    with listening:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(listening.fileno()), str(theirs), str(config)],
            env=os.environ | THREADS, stdin=subprocess.DEVNULL, start_new_session=True,
            pass_fds=[listening.fileno(), theirs],
        )  # fmt: skip
    os.close(theirs)
    os.environ[READY] = address(folder)

    def end() -> None:
        os.environ.pop(READY, None)
        os.close(ours)
        process.wait()

    return end


@dataclass
class Ready:
    """The process: what it listens to, and the jobs that it has forked, by process and by caller."""

    folder: Path
    listening: socket.socket
    lifeline: int
    environment: Mapping[str, str]
    sources: Mapping[str, int]
    jobs: dict[int, socket.socket] = field(default_factory=dict)

    def serve(self) -> None:
        """Fork for whoever asks, until the run has ended and no job is left."""
        woken, waking = socket.socketpair()
        waking.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno())
        self.own = [self.listening, woken, waking]
        self.watched = selectors.DefaultSelector()
        self.watched.register(self.listening, selectors.EVENT_READ, self._accept)
        self.watched.register(self.lifeline, selectors.EVENT_READ, self._close)
        self.watched.register(woken, selectors.EVENT_READ, lambda: self._reap(woken))
        while self.jobs or self.listening.fileno() >= 0:
            for key, _ in self.watched.select():
                key.data()

    def _close(self) -> None:
        """Take no more commands: the run has ended."""
        self.watched.unregister(self.lifeline)
        self.watched.unregister(self.listening)
        self.listening.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        try:
            caller, _ = self.listening.accept()
        except OSError:
            return  # closed meanwhile
        caller.settimeout(60)
        streams: list[int] = []
        try:
            head, streams, _, _ = socket.recv_fds(caller, LENGTH.size, 3)
            request = json.loads(_received(caller, LENGTH.unpack(head)[0]))
            if len(streams) == 3 and self._fits(request["environment"]):
                self._fork(caller, request, streams)
                return
        except (OSError, ValueError):
            pass  # whoever asked is gone, or isn't a command of ours
        finally:
            for stream in streams:
                os.close(stream)
        caller.close()

    def _fits(self, environment: Mapping[str, str]) -> bool:
        wanted = {name: text for name, text in environment.items() if name not in OWN}
        return wanted == self.environment and self.sources == sources()

    def _fork(self, caller: socket.socket, request: Mapping[str, Any], streams: list[int]) -> None:
        parent = os.getpid()
        process = os.fork()
        if not process:
            signal.set_wakeup_fd(-1)
            for other in [*self.own, *self.jobs.values(), caller]:
                other.close()
            _work(parent, request, streams)
        self.jobs[process] = caller
        self.watched.register(caller, selectors.EVENT_READ, lambda: self._hear(process))

    def _hear(self, process: int) -> None:
        """Pass a caller's signals on; kill the job of a caller that is gone."""
        caller = self.jobs.get(process)
        if caller is None:
            return  # it has ended meanwhile
        try:
            numbers = caller.recv(64)
        except OSError:
            numbers = b""
        if not numbers:
            self.watched.unregister(caller)
        with contextlib.suppress(ProcessLookupError):
            for number in numbers or [signal.SIGKILL]:
                os.kill(process, number)

    def _reap(self, woken: socket.socket) -> None:
        """Report to the waiting callers how their jobs ended."""
        woken.recv(1024)
        while self.jobs:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            caller = self.jobs.pop(process)
            with contextlib.suppress(KeyError):
                self.watched.unregister(caller)
            with caller, contextlib.suppress(OSError):
                caller.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _received(caller: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = caller.recv(size - len(found))
        if not part:
            raise ConnectionResetError
        found += part
    return bytes(found)


def _work(parent: int, request: Mapping[str, Any], streams: list[int]) -> NoReturn:
    """Take over the settings of the caller's process, run its command, and end."""
    code: Any = 1
    try:
        _stand_on(streams)
        from ..engine.forked import SIGNALS
        from ..engine.forked import begin as first
        from .program import main

        os.setsid()  # what a terminal sends reaches the caller alone, who hands it on
        first(parent)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in request["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"] | {k: v for k, v in CHOSEN.items() if k not in request["environment"]})
        os.environ.pop(READY, None)
        tempfile.tempdir = None  # looked up again
        os.umask(request["mask"])
        for kind, limits in request["limits"]:
            resource.setrlimit(kind, tuple(limits))
        os.nice(request["niceness"] - os.nice(0))
        if request["cores"] is not None:
            os.sched_setaffinity(0, request["cores"])
        sys.argv = ["clusterfl", *request["arguments"]]
        code = main(request["arguments"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _stand_on(streams: list[int]) -> None:
    """Make files standard input, output and error, as Python does when it starts."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    files = [sys.stdin, sys.stdout, sys.stderr]
    kinds = [(file.encoding, file.errors) for file in files]
    for number, (encoding, errors) in enumerate(kinds):
        lines = number == 2 or os.isatty(number)
        files[number] = open(number, "rw"[number > 0], 1 if lines and number else -1, encoding, errors, closefd=False)  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = files


def sources() -> dict[str, int]:
    """Return when imported modules' source files changed last: of all but the standard library and installed ones."""
    installed = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    here = str(Path(__file__).parents[1]) + os.sep
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and (file.startswith(here) or not file.startswith(installed)):
            with contextlib.suppress(OSError):
                found[file] = os.stat(file).st_mtime_ns
    return found


CHOSEN: dict[str, str] = {}  # variables that were set when libraries were imported


def _load(config: Path) -> None:
    """Import what the jobs need, and find their plan and the digests of their code, which are remembered."""
    from ..pipeline.estimate import startup
    from ..pipeline.jobs import Plan

    for module in ("clusterfl.pipeline.execute", "clusterfl.engine.forked", "clusterfl.cli.program"):
        importlib.import_module(module)
    jobs = list(Plan.keep([config]).jobs())
    startup.load(sorted({module for job in jobs for module in startup.imports(job)}))
    for job in jobs:
        job.code_digest  # noqa: B018 (for what it remembers)


def _main(folder: str, listening: str, lifeline: str, config: str) -> None:
    began = dict(os.environ)
    try:
        _load(Path(config))
        CHOSEN.update({name: text for name, text in os.environ.items() if began.get(name) != text})
        environment = {name: text for name, text in began.items() if name not in OWN}
        with socket.socket(fileno=int(listening)) as heard:
            Ready(Path(folder), heard, int(lifeline), environment, sources()).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
