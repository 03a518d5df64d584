"""Start time and memory of a job's process, measured in a new process for each kind of job."""

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
    """Return the modules that a job imports, the stage first; stages that train or score count as one."""
    stage = "common" if job.stage in SCORING else job.stage
    return (f"clusterfl.pipeline.stages.{stage}", *_later(job.modules))


@lru_cache
def _later(modules: tuple[str, ...]) -> list[str]:
    return digest.imported_later(modules)


def load(modules: Sequence[str]) -> None:
    """Import modules, ignoring those that aren't installed: of two alternative packages one suffices."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def measure(config: Sequence[Path], kinds: Iterable[Imports]) -> dict[Imports, tuple[float, float]]:
    """Return, for each kind of job, the seconds to start and end its process, and its memory after imports in bytes."""
    found = {}
    for kind in kinds:
        began, command = perf_counter(), [sys.executable, "-m", __name__, *map(str, config), "--", *kind]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[kind] = (perf_counter() - began, float(answer))
    return found


def _begin(config: Sequence[str], modules: Sequence[str]) -> None:
    """Do what every job does before its work."""
    importlib.import_module("clusterfl.pipeline.execute")
    Plan.from_files(config)
    load(modules)
    digest.of_code(modules[:1])


def peak() -> float:
    """Return this process's peak memory in bytes, on Linux since `forget_peak`."""
    if STATUS.exists():
        (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", STATUS.read_text())
        return 1024.0 * int(kilobytes)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Reset `peak` on Linux (man 5 proc); on other systems this isn't possible, and a later peak may be missed."""
    if STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


if __name__ == "__main__":
    end = sys.argv.index("--")
    _begin(sys.argv[1:end], sys.argv[end + 1 :])
    print(peak())
