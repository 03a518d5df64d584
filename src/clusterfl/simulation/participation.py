"""Faulty clients: they drop out of a round, straggle, send unsound updates or have flipped labels.

Faults are drawn from named streams, keyed by seed, round and the client's id: chunks, workers and resuming don't change
them, and one client's faults don't affect another's draws. Axes: M clients, m participants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..engine.training import Faults, Training
from ..errors import Diverged, UserError

if TYPE_CHECKING:
    from ..engine.update import Update

Ids = NDArray[np.int64]
COUNTED = ("dropped", "straggled")  # columns of `rounds` if faults are set


def chosen(given: float | Sequence[int], seed: int, purpose: str, ids: Ids, place: str) -> NDArray[np.bool_]:
    """Return which clients [M] are meant: those listed by id, or a random share.

    Raises
    ------
    UserError
        If a listed client doesn't exist; `place` is the setting's name.
    """
    if isinstance(given, Sequence):
        unknown = np.setdiff1d(given, ids)
        if len(unknown):
            raise UserError(
                f"{place}: there is no client {unknown[0]}; allowed: {len(ids)} ids from {ids.min()} to {ids.max()}"
            )
        return np.isin(ids, given)
    found = np.zeros(len(ids), dtype=bool)
    order = np.argsort(streams.hashed(seed, purpose, ids), kind="stable")
    found[order[: round(given * len(ids))]] = True
    return found


@dataclass(frozen=True)
class Attendance:
    """Which of a round's participants send an update (`clients` [m]), and whose work is lost; both as positions."""

    clients: Ids
    lost: Ids
    work: Ids | None = None  # [M] epochs (or steps) that each does, 0 if it dropped out; None: everybody does all
    dropped: int = 0
    straggled: int = 0


def attendance(faults: Faults | None, most: int, seed: int, round_: int, drawn: Ids, ids: Ids) -> Attendance:
    """Return the attendance of the clients drawn for a round.

    Parameters
    ----------
    faults
        The settings; None: no faults.
    most
        Epochs (or steps) of a round.
    seed, round_
        Together with the clients' ids, the keys of the draws.
    drawn : [m]
        Positions among the clients, ascending.
    ids : [M]
        The clients' ids.

    Raises
    ------
    UserError
        If there is a fault and the settings say that the run stops then.
    """
    if faults is None:
        return Attendance(drawn, drawn[:0])
    own, work = ids[drawn], np.full(len(ids), most)
    out = streams.uniform(seed, "dropout", round_, own) < faults.dropout
    slow = ~out & (streams.uniform(seed, "straggler", round_, own) < faults.stragglers)
    work[drawn[out]] = 0
    work[drawn[slow]] = 1 + np.floor(most * streams.uniform(seed, "straggler's work", round_, own[slow]))
    for name, bad, policy in (("dropped", out, faults.dropped), ("straggled", slow, faults.straggled)):
        if policy == "stop" and bad.any():
            word = "dropped out" if name == "dropped" else "straggled"
            raise UserError(
                f"round {round_}: client {own[bad][0]} {word} ({listed(own[bad], len(own))}); training.faults.{name} "
                "is 'stop': set exclude to go on without such clients"
            )
    lost = out | slow if faults.straggled == "exclude" else out
    return Attendance(drawn[~lost], drawn[lost], work, int(out.sum()), int(slow.sum()))


def factors(faults: Faults | None, seed: int, ids: Ids) -> NDArray[np.float64] | None:
    """Return the factors [M] that corrupt clients' updates are multiplied by (maybe NaN or inf); None: no faults."""
    if faults is None or not faults.corrupt:
        return None
    bad = chosen(faults.corrupt, seed, "corrupt", ids, "training.faults.corrupt")
    return np.where(bad, {"nan": np.nan, "infinity": np.inf, "huge": faults.factor}[faults.sends], 1.0)


def check_updates(update: Update, ids: Ids, training: Training, whose: str) -> None:
    """Stop for updates that diverged, unless they are to be excluded.

    Parameters
    ----------
    update
        The updates of some clients.
    ids : [M]
        All clients' ids.
    training
        The settings they were trained with.
    whose
        The beginning of the error message, with {} for the first client's id.
    """
    bad = np.flatnonzero(update.dropped)
    if not len(bad) or training.diverged == "exclude":
        return
    theirs, norm = np.unique(ids[update.clients[bad]]), update.norms[bad[0]]
    many = len(np.unique(update.clients))
    what = f"is {norm:.3g} long, more than largest_update ({training.largest_update:g})"
    raise Diverged(
        f"{whose.format(theirs[0])} {what if np.isfinite(norm) else 'is NaN or infinite'} "
        f"({listed(theirs, many)}); training diverged: lower the learning rate, or set diverged: "
        "exclude to go on without such updates"
    )


def listed(ids: Ids, of: int) -> str:
    """Return, in words, how many of all `of` clients these are, and the first ten ids."""
    return f"{len(ids)} of {of} clients: {', '.join(map(str, ids[:10]))}{', ...' if len(ids) > 10 else ''}"
