"""How long a job's process takes to start, and how much memory it has then: measured in a fresh one for each kind."""

from __future__ import annotations

import contextlib
import importlib
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter

from ...storage import digest
from ..job import Job
from ..jobs import Plan

SCORING = ("warmup", "federate", "losses", "distance")
STATUS = Path("/proc/self/status")
Imports = tuple[str, ...]


def imports(job: Job) -> Imports:
    """Return what a job imports, the stage first; stages that train or score import the same."""
    stage = "common" if job.stage in SCORING else job.stage
    return (f"clusterfl.pipeline.stages.{stage}", *_later(job.modules))


@lru_cache
def _later(modules: tuple[str, ...]) -> list[str]:
    return digest.imported_later(modules)


def load(modules: Sequence[str]) -> None:
    """Import modules; of two packages that do the same only one may be there."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def measure(config: Sequence[Path], kinds: Iterable[Imports]) -> dict[Imports, tuple[float, float]]:
    """Return the seconds that each kind of job takes to start and to end, and its bytes of memory with all imported."""
    found = {}
    for kind in kinds:
        began, command = perf_counter(), [sys.executable, "-m", __name__, *map(str, config), "--", *kind]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[kind] = (perf_counter() - began, float(answer))
    return found


def _begin(config: Sequence[str], modules: Sequence[str]) -> None:
    """Do what every job does besides its work."""
    importlib.import_module("clusterfl.pipeline.execute")
    Plan.from_files(config)
    load(modules)
    digest.of_code(modules[:1])


def peak() -> float:
    """Return the most bytes of memory that this process has had, on Linux since `forget_peak`."""
    if STATUS.exists():
        (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", STATUS.read_text())
        return 1024.0 * int(kilobytes)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let `peak` begin again; elsewhere than on Linux that isn't possible, and a rise may stay hidden (man 5 proc)."""
    if STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


if __name__ == "__main__":
    end = sys.argv.index("--")
    _begin(sys.argv[1:end], sys.argv[end + 1 :])
    print(peak())
