"""Federations that change: the transform of a client's samples, and its group, by round.

A client keeps its samples; only their transform changes. So a partition stores the changes in the transform's name:
``rotate90@11:2:rotate180@21:5:rotate180+swap(0,1)`` is ``rotate90`` until round 10, then ``rotate180``, in group 2, and
from round 21 on ``rotate180+swap(0,1)``, in group 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..errors import UserError
from .transforms import parse, relabelled

Ids = NDArray[np.int64]
Concept = tuple[int, tuple[int, ...]]  # quarter turns, and the new label of each class


def phases(name: str) -> list[tuple[int, int | None, str]]:
    """Return the phases of a transform's name: the round in which each begins, its group, and its transform.

    The first begins in round 1; its group is the partition's (None).
    """
    first, *later = name.split("@")
    return [(1, None, first), *((int(r), int(g), own) for r, g, own in (part.split(":") for part in later))]


def begins(names: NDArray[Any]) -> list[int]:
    """Return the rounds, from 1 on, in which a phase of any of the transforms ``names [N]`` begins."""
    return sorted({1, *(round_ for name in np.unique(names) for round_, _, _ in phases(str(name)))})


def at(table: Mapping[str, NDArray[Any]], round_: int) -> dict[str, NDArray[Any]]:
    """Return a partition's columns as they are in a round: its transforms, without later ones, and its groups."""
    names, code = np.unique(table["transform"], return_inverse=True)
    now = [[phase for phase in phases(str(name)) if phase[0] <= max(round_, 1)][-1] for name in names]
    own = np.array([-1 if group is None else group for _, group, _ in now], dtype=np.int64)[code]
    transforms = np.array([name for _, _, name in now])[code] if len(names) else table["transform"]
    return {**table, "transform": transforms, "true_cluster": np.where(own >= 0, own, table["true_cluster"])}


def remarks(table: Mapping[str, NDArray[Any]]) -> list[str]:
    """Describe how a partition's members change, in a sentence for each phase after the first."""
    member = table["role"] == "member"
    table = {name: column[member] for name, column in table.items()}
    first = np.unique(table["client"], return_index=True)[1]
    found, before = [], at(table, 1)
    for round_ in begins(table["transform"])[1:]:
        now = at(table, round_)
        moved = int((now["transform"][first] != before["transform"][first]).sum())
        groups, sizes = np.unique(now["true_cluster"][first], return_counts=True)
        of = ", ".join(f"{size} in {group}" for group, size in zip(groups, sizes, strict=True))
        found.append(f"From round {round_} on {moved} of {len(first)} members have other data; groups then: {of}.")
        before = now
    return found


def drifted(table: Mapping[str, NDArray[Any]], events: Sequence[Mapping[str, Any]], y: NDArray[Any], seed: int,
            chosen: Any) -> NDArray[Any]:  # fmt: skip
    """Return the column ``transform`` of a partition whose members drift.

    Parameters
    ----------
    table
        The partition's columns.
    events
        Each with ``round``, ``clients``, and ``move`` or ``transform``, in the order of rounds.
    y
        The dataset's labels.
    seed
        Seed of all draws.
    chosen
        ``chosen(given, seed, purpose, ids, place)`` returns which clients are meant.

    Raises
    ------
    UserError
        If groups aren't planted by transforms that can change, or a client should move and there is only one group.
    """
    member = table["role"] == "member"
    clients, first, owner = np.unique(table["client"][member], return_index=True, return_inverse=True)
    names = np.asarray(table["transform"][member][first], dtype=object)
    groups = table["true_cluster"][member][first].copy()
    classes = int(y.max(initial=-1)) + 1 if y.dtype.kind in "iu" else 0
    found = _groups(table["transform"][member], names[owner], groups, names, classes)
    whole = names.copy()
    for number, event in enumerate(events):
        place = f"partition.drift.{number}"
        moved = np.flatnonzero(chosen(event["clients"], seed, f"drift {number}", clients, f"{place}.clients"))
        bits = streams.hashed(seed, f"drift {number} to", clients)
        after = _after(event, number, moved, bits, groups, names, found, classes)
        for i, (group, name) in zip(moved, after, strict=True):
            groups[i], names[i] = group, name
            whole[i] = f"{whole[i]}@{event['round']}:{group}:{name}"
    column = table["transform"].astype(object)
    column[member] = whole[owner]
    return column.astype(str)


def _concept(name: str, classes: int) -> Concept:
    """Return what a transform does, regardless of its name.

    Raises
    ------
    UserError
        If it does anything but turn images and change classes.
    """
    step = parse(name)
    if step.blur or step.noise:
        raise UserError(
            f"partition.drift: '{name}' blurs samples or adds noise, which stays as it is in a run; allowed: quarter "
            "turns and changes of labels"
        )
    if not step.labels:
        return step.turns, tuple(range(classes))
    return step.turns, tuple(relabelled(np.arange(classes), np.full(classes, name), classes).tolist())


def _groups(of_rows: NDArray[Any], of_owners: NDArray[Any], groups: Ids, names: NDArray[Any],
            classes: int) -> dict[Concept, tuple[int, str]]:  # fmt: skip
    """Return the group, and a name, of each concept before any drift."""
    found: dict[Concept, tuple[int, str]] = {}
    for group, name in sorted(zip(groups.tolist(), map(str, names), strict=True)):
        known = found.setdefault(_concept(name, classes), (group, name))
        if group < 0 or known[0] != group or (of_rows != of_owners).any():
            said = "no groups are planted" if group < 0 else f"transform '{name}' is in groups {known[0]} and {group}"
            raise UserError(
                f"partition.drift: {said}; a drift needs groups each of which has a transform of its own, all of whose "
                "clients have it in all samples, as scheme: rotated plants them, or partition.domains"
            )
    if len({group for group, _ in found.values()}) < len(found):
        raise UserError(
            "partition.drift: a group has clients of several transforms; allowed: one transform for each group, as "
            "scheme: rotated plants them, or partition.domains"
        )
    return found


def _after(
    event: Mapping[str, Any], number: int, moved: Ids, bits: NDArray[np.uint64], groups: Ids, names: NDArray[Any],
    found: dict[Concept, tuple[int, str]], classes: int,
) -> list[tuple[int, str]]:  # fmt: skip
    """Return the group and transform of each client that an event moves; `found` gets new concepts.

    `bits` [M] are each client's random bits.
    """
    after = []
    there = np.unique(groups)
    if event["move"] is not None and len(there) < 2:
        raise UserError(f"partition.drift.{number}.move: there is only one group to be in; give a transform instead")
    called = dict(found.values())
    for i in moved.tolist():
        if event["move"] is not None:
            step = 1
            if event["move"] == "drawn":
                step = 1 + int(bits[i] % np.uint64(len(there) - 1))
            group = int(there[(int(np.searchsorted(there, groups[i])) + step) % len(there)])
            after.append((group, called[group]))
            continue
        chain = "+".join(name for name in (str(names[i]), event["transform"].replace(" ", "")) if name != "none")
        concept = _concept(chain or "none", classes)
        after.append(found.setdefault(concept, (max(called) + 1, chain or "none")))
        called[after[-1][0]] = after[-1][1]
    return after
