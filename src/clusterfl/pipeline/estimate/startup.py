"""How long a job's process takes to start and to end, and how much memory it has, measured in a process of its own.

That process reads the study, as each command does, and then forks one child for each kind of job: what imports take
can be measured only where nobody has imported it before.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

from ...storage.digest import imported_later
from ..jobs import Job, Plan

SCORING = ("warmup", "federate", "losses", "distance")
STATUS = Path("/proc/self/status")
Imports = tuple[str, ...]


def measure(
    config: Sequence[Path], kinds: Sequence[Imports], history: Path, clients: int
) -> tuple[dict[Imports, tuple[float, float]], tuple[float, float, float]]:
    """Return what starting and ending costs jobs, and what drawing the report costs: the least of two measurements.

    The first may read Python's libraries from disk, as of a study's jobs only the first does.

    Parameters
    ----------
    config
        The study's files.
    kinds
        What each kind of job imports, the stage first.
    history, clients
        A history, if it is there, that the report's way of reading is tried on, and the clients of the map it draws.

    Returns
    -------
    By kind: seconds, and bytes of memory with everything imported. Seconds and bytes of a figure, and seconds of a row
    of a history.
    """
    task = {"config": list(map(str, config)), "kinds": kinds, "history": str(history), "clients": clients}
    cold, warm = (_measured(task) for _ in range(2))
    starts = {kind: min(both) for kind, *both in zip(kinds, cold["starts"], warm["starts"], strict=True)}
    return starts, min(cold["report"], warm["report"])


def _measured(task: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of its own measures; its Python's own start counts to each."""
    command, began = [sys.executable, "-m", __name__], perf_counter()
    found = subprocess.run(command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(found.stdout)
    python = perf_counter() - began - answer["seconds"]  # until Python ran the first line below
    starts = [(python + seconds, memory) for seconds, memory in answer["starts"]]
    return {"starts": starts, "report": tuple(answer["report"])}


@lru_cache
def _later(modules: tuple[str, ...]) -> list[str]:
    return imported_later(modules)


def imports(job: Job) -> Imports:
    """Return what a job imports; stages that train or score import the same."""
    stage = "common" if job.stage in SCORING else job.stage
    return (f"clusterfl.pipeline.stages.{stage}", *_later(job.modules))


def load(modules: Sequence[str]) -> None:
    """Import modules; of two packages that do the same only one may be there."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    began = perf_counter()
    importlib.import_module("clusterfl.cli")
    importlib.import_module("clusterfl.pipeline.execute")
    Plan.from_files(task["config"])
    base = perf_counter() - began
    starts = []
    for kind in task["kinds"]:
        seconds, memory = _in_child(_begin, kind)
        starts.append((base + seconds, memory))
    report = _in_child(_draw, Path(task["history"]), task["clients"])[1]
    return {"starts": starts, "report": report, "seconds": perf_counter() - began}


def _in_child(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the seconds of a forked process, its end included, and what it returns."""
    began, (reader, writer) = perf_counter(), os.pipe()
    child = os.fork()
    if not child:
        with open(writer, "w", encoding="utf-8") as answer:
            json.dump(work(*arguments), answer)
        sys.exit()  # which frees everything, as a job's end does
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return perf_counter() - began, json.loads(text)


def _begin(modules: Sequence[str]) -> float:
    """Import modules and do what every job does besides its work; return the memory.

    A job reads and writes tables, and says in a manifest of which code they are.
    """
    from ...storage import digest, store

    load(modules)
    digest.of_code(modules[:1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        store.write_table(path, {"client": [0]})
        store.read_table(path)
        store.write_manifest(path.with_name("manifest.json"), [path], {})
    return peak()


def peak() -> float:
    """Return the most bytes of memory that this process has had, on Linux since `forget_peak`."""
    if STATUS.exists():
        (kilobytes,) = re.findall(r"VmHWM:\s*(\d+)", STATUS.read_text())
        return 1024.0 * int(kilobytes)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let `peak` begin anew; elsewhere than on Linux that isn't possible, and a rise may stay hidden (man 5 proc)."""
    if STATUS.exists():
        STATUS.with_name("clear_refs").write_text("5")


def _draw(history: Path, clients: int) -> tuple[float, float, float]:
    """Return the seconds and bytes of a figure, and the seconds of reading and averaging a history by row."""
    import numpy as np
    import pandas as pd

    from ...report import figures, tables

    labels = np.arange(clients) % 4
    distance = np.abs(labels[:, None] - labels).astype(float)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "second"):  # the first one reads the fonts
            began = perf_counter()
            figures.save(figures.heat_map(distance, labels, labels, "distance"), Path(folder), name)
            seconds = perf_counter() - began
        size = float(sum(path.stat().st_size for path in Path(folder).glob("second.*")))
    if not history.exists():
        return seconds, size, 0.0
    began = perf_counter()
    table = pd.read_parquet(history)
    tables.curve(table, {"evaluation": "aggregated", "split": "test", "average": "samples"})
    return seconds, size, (perf_counter() - began) / max(1, len(table))


if __name__ == "__main__":
    print(json.dumps(_answer(json.load(sys.stdin))), flush=True)
