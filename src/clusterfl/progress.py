"""Progress for people: a bar on a terminal, two lines in a log file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Report = Callable[[int, str], None]


@contextlib.contextmanager
def bar(title: str, total: int) -> Iterator[Report]:
    """Show how far a piece of work is; call the yielded function with what is done and a few words.

    Where standard error is no terminal, only the end is told, so that logs stay short.
    """
    began, words = time.monotonic(), ""

    def remember(done: int, text: str) -> None:
        nonlocal words
        words = text

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[words]}"))  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(title, total=total, words="")

            def update(done: int, text: str) -> None:
                remember(done, text)
                shown.update(task, completed=done, words=text)

            yield update
    else:
        yield remember
    print(
        f"{title}: {total} done in {time.monotonic() - began:.1f} s{'; ' + words if words else ''}",
        file=sys.stderr,
    )
