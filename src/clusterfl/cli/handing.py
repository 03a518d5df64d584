"""Hand a stage's command over to the process that Snakemake's run keeps ready (`forking`), if there is one.

That process has imported everything and forks; starting Python separately takes seconds before a job begins. The
command waits, passes signals on, and ends as its job does. It does the job itself if the other process refuses it: see
`forking`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..pipeline.chain import STAGES

READY = "CLUSTERFL_READY"  # environment variable: `address` of the process that is ready
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
LENGTH = struct.Struct("!I")
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def address(folder: Path) -> str:
    """Return what `READY` says: the socket in a folder, and which Python with which package listens there."""
    return os.pathsep.join([str(folder / "socket"), sys.prefix, str(Path(__file__).parent)])


def handed(arguments: list[str]) -> int | None:
    """Let the process that is ready run a command.

    Returns
    -------
    The command's exit code; None if there is no such process, or if it can't do this command.
    """
    ready, _, ours = os.environ.get(READY, "").partition(os.pathsep)
    if (
        not ready
        or arguments[:1] not in [[name] for name in STAGES]
        or ours != address(Path()).partition(os.pathsep)[2]
    ):
        return None
    heard = [number for number in HANDED_ON if signal.getsignal(number) != signal.SIG_IGN]
    try:
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(ready)
            _ask(other, arguments, heard)
            with _handing_on(other, heard):
                answer = _answer(other)
    except OSError:
        return None  # it has ended, and its jobs with it
    if answer is not None and answer < 0:  # end as the job did, so that the caller says the same of it
        with suppress(OSError):  # of SIGKILL there is no other
            signal.signal(-answer, signal.SIG_DFL)
        os.kill(os.getpid(), -answer)
    return answer


def _ask(other: socket.socket, arguments: list[str], heard: list[signal.Signals]) -> None:
    mask = os.umask(0)
    os.umask(mask)
    request = {
        "arguments": arguments,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "mask": mask,
        "ignored": [number for number in HANDED_ON if number not in heard],
        "limits": [(kind, resource.getrlimit(kind)) for kind in LIMITS],
        "niceness": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }
    text = json.dumps(request).encode()
    socket.send_fds(other, [LENGTH.pack(len(text))], [0, 1, 2])
    other.sendall(text)


def _answer(other: socket.socket) -> int | None:
    """Wait for the job's end and return its exit code; None if the other process won't do it, or is gone."""
    found = bytearray()
    while part := other.recv(1024):
        found += part
    answer: int | None = json.loads(found) if found else None
    return answer


@contextmanager
def _handing_on(other: socket.socket, heard: list[signal.Signals]) -> Iterator[None]:
    def hand_on(number: int, frame: FrameType | None) -> None:
        other.send(bytes([number]))

    before: dict[int, Any] = {number: signal.signal(number, hand_on) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
