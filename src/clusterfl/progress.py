"""Progress display: a bar on a terminal, a few lines in a log file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Report = Callable[[int, str], None]
FIRST_LINE, LONGEST_SILENCE = 10.0, 600.0  # seconds
ALONE = True  # whether no other process writes to this terminal


@contextlib.contextmanager
def bar(title: str, total: int) -> Iterator[Report]:
    """Show the progress of some work; call the yielded function with the amount done and a short text.

    If standard error isn't a terminal, or other processes write to it, too, a line is printed after 10 seconds, then
    each time the elapsed time has doubled, but at least every ten minutes, and at the end.
    """
    began, words = time.monotonic(), ""
    if ALONE and sys.stderr.isatty():
        with _shown(title, total) as update:

            def both(done: int, text: str) -> None:
                nonlocal words
                words = text
                update(done, text)

            yield both
    else:
        due = began + FIRST_LINE

        def tell(done: int, text: str) -> None:
            nonlocal words, due
            words = text
            if time.monotonic() >= due and done < total:
                _say(title, f"{done} of {total}", began, text)
                due = time.monotonic() + min(time.monotonic() - began, LONGEST_SILENCE)

        yield tell
    _say(title, f"{total} done", began, words)


@contextlib.contextmanager
def _shown(title: str, total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=total, words="")
        yield lambda done, text: shown.update(task, completed=done, words=text)


def _say(title: str, amount: str, began: float, words: str) -> None:
    line = f"{title}: {amount} in {time.monotonic() - began:.1f} s{'; ' + words if words else ''}"
    print(line, file=sys.stderr, flush=True)
