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
    """What a stage gets: settings that decide its result, files, and how many processes it may use.

    ``progress(title, total)`` opens a progress bar and gives a function ``(done, words)``; `unfinished` has the
    checkpoint of an earlier run that was killed, and takes new ones.
    """

    settings: dict[str, Any]
    identity: dict[str, Any]
    inputs: dict[str, Path]
    outputs: dict[str, Path]
    progress: Callable[[str, int], AbstractContextManager[Report]]
    threads: int = 1
    chunk: int | None = None
    unfinished: Unfinished = field(default_factory=Unfinished)
