"""How things are measured: pairs in turn, peak memory of a tree of processes, time of commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

PAUSE = 0.5  # seconds between two looks at the memory
PROC = Path("/proc")
HERE = Path(__file__).parent


def in_turn(ours: Callable[[], float], loop: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """Return the seconds of both sides, run in turn after one run of each that isn't counted.

    Whoever comes first comes second in the next pair, so what drifts or disturbs meets both.
    """
    sides, found = (ours, loop), []
    for pair in range(pairs + 1):
        first = pair % 2
        seconds = {side: sides[side]() for side in (first, 1 - first)}
        found.append((seconds[0], seconds[1]))
    return found[1:]


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    began = perf_counter()
    work()
    return perf_counter() - began


def command_seconds(command: list[str], folder: Path, times: int) -> list[float]:
    """Return the seconds, from start to exit, of a command that must succeed."""

    def run() -> None:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if found.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {found.stderr}")

    return [timed(run) for _ in range(times)]


def memory_is_known() -> bool:
    """Return whether this system tells what `alone` needs (Linux does)."""
    return (PROC / "self/smaps_rollup").exists()


def alone(work: str, **options: Any) -> tuple[list[float], float]:
    """Do a work of `benchmarks.alone` in a fresh process and return its seconds and its peak memory in GB.

    Counted is the resident memory of the process and of all that descend from it, twice a second: the sum of their
    proportional set sizes (a page that n processes share counts 1/n for each), or the largest resident set that the
    kernel noted for one of them, if that is more, as it is where memory peaks between two looks. Mapped pages of files
    count, the system's cache of files that aren't mapped doesn't. 1 GB = 1e9 bytes.
    """
    command = [sys.executable, "-m", "benchmarks.alone", work, json.dumps(options)]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            sleep(PAUSE)
        assert process.stdout is not None
        text = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {process.returncode}")
    return json.loads(text), peak / 1e9


def _resident(pid: int) -> int:
    """Return the bytes of a process and its descendants."""
    together, largest, processes = 0, 0, [pid]
    for number in processes:  # grows while it is gone through
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            together += _kilobytes(number, "smaps_rollup", "Pss")
            largest = max(largest, _kilobytes(number, "status", "VmHWM"))
            for thread in (PROC / str(number) / "task").iterdir():
                processes += map(int, (thread / "children").read_text().split())
    return 1024 * max(together, largest)


def _kilobytes(pid: int, file: str, key: str) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB", (PROC / str(pid) / file).read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
