"""Where the host waits for a device: by place, and whether that is in a step of a round's inner loop.

A second device notes its waits itself (`second_device`); a GPU's come as warnings of PyTorch (`warned`).
"""

from __future__ import annotations

import ast
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import clusterfl
from clusterfl.engine import dense, loop, stacked

PACKAGE = str(Path(clusterfl.__file__).parent)
FORMS = [module.__file__ for module in (dense, loop, stacked)]


class Wait(NamedTuple):
    """Something that the host waits for."""

    operation: str
    place: str  # file and function of the package
    step: bool  # in a step of a round's inner loop


_noted: list[Wait] | None = None


def note(operation: str) -> None:
    """Note that the host waits for an operation, if anyone watches."""
    if _noted is None:
        return
    # Gradients are computed in another thread, while the main one waits for them at its place.
    frame: Any = sys._current_frames()[threading.main_thread().ident or 0]
    place, step = "", False
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith(PACKAGE):
            place = place or f"{Path(file).relative_to(PACKAGE)} {frame.f_code.co_name}"
            step |= file in FORMS and line in steps(file)
        frame = frame.f_back
    _noted.append(Wait(operation, place, step))


@cache
def steps(file: str) -> frozenset[int]:
    """Return the lines of the loops over a chunk's steps: those whose variable is `step`."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.For) and any(isinstance(x, ast.Name) and x.id == "step" for x in ast.walk(node.target)):
            lines.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return frozenset(lines)


@contextmanager
def watched() -> Iterator[list[Wait]]:
    """Give the list in which everything that the host waits for meanwhile is noted."""
    global _noted
    _noted = found = []
    try:
        yield found
    finally:
        _noted = None


@contextmanager
def warned() -> Iterator[list[Wait]]:
    """Give the list of what PyTorch warns of when the host waits for a GPU, see `torch.cuda.set_sync_debug_mode`."""

    def show(message: Warning | str, *rest: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            note("warning")

    with watched() as found, warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # called where the host waits; put back by `catch_warnings`
        there = torch.cuda.is_available()
        if there:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if there:
                torch.cuda.set_sync_debug_mode("default")


def by_place(waits: list[Wait]) -> Counter[tuple[str, str]]:
    """Return how often the host waited, by place and operation."""
    return Counter((one.place, one.operation) for one in waits)
