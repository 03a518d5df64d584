"""Errors that a user can cause, and helpers for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Something outside the code is wrong: settings, data, a damaged file, a full disk.

    The message names what was found, where, what is allowed and the next step. The command line prints it
    without a traceback and ends with exit code 2.
    """


class Stopped(Exception):
    """A signal ended a job after its checkpoint was written; `number` is the signal's number."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


class Diverged(UserError):
    """Training became NaN or infinite; `record` is the `simulation.record.Record` of the rounds up to that one."""

    record: Any = None


class Unsound(Diverged):
    """Some participants, `clients`, have losses that a method can't assign them by, e.g. NaN."""

    def __init__(self, clients: Any):
        super().__init__(
            f"client {clients[0]} ({len(clients)} in all; in the order of ids) has losses that are NaN or infinite; "
            "training diverged: lower the learning rate"
        )
        self.clients = clients


def printable(text: str) -> str:
    r"""Make text from outside safe for a terminal: control characters, e.g. of cursor moves, become escape codes.

    >>> print(printable("a\x1b[2J"))
    a\x1b[2J
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def kind_of(value: object) -> str:
    """Return in words what kind of value a user's code returned instead of an allowed one.

    >>> kind_of(None), kind_of([1])
    ('None', 'a value of the type list')
    """
    return "None" if value is None else f"a value of the type {type(value).__name__}"


def choices(names: Iterable[str], found: str = "") -> str:
    """Return the allowed `names` as text, after a suggestion of the one nearest to `found`.

    >>> choices(["fedavg", "ifca"], "fedagv")
    "did you mean 'fedavg'? allowed: fedavg, ifca"
    """
    allowed = sorted(names)
    near = difflib.get_close_matches(found, allowed, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}allowed: {', '.join(allowed) if allowed else '(none)'}"
