"""The stages of the pipeline: each is a function from input files and settings to output files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint import Unfinished

Facts = dict[str, Any]
Report = Callable[[int, str], None]


@dataclass(frozen=True)
class Work:
    """The arguments of a stage: the settings that determine its result, files, and the number of processes.

    ``progress(title, total)`` opens a progress bar and yields a function ``(done, text)``; `unfinished` reads the
    checkpoint of an earlier run that was killed, and writes new ones.
    """

    settings: dict[str, Any]
    identity: dict[str, Any]
    inputs: dict[str, Path]
    outputs: dict[str, Path]
    progress: Callable[[str, int], AbstractContextManager[Report]]
    threads: int = 1
    chunk: int | None = None
    unfinished: Unfinished = field(default_factory=Unfinished)
