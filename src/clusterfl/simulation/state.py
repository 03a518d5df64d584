"""What a run changes from round to round: typed here, flat (named arrays) in checkpoints and files.

Axes: M clients, K models, P columns of a model's row, p of them parameters.

A method's part of the state (`State.own`) is a dataclass. Its fields are arrays, booleans and whole numbers; rows that
may be in a file, marked by the metadata `ROWS`; or further such dataclasses, marked by the metadata of `part` or
`parts`. In flat form a field keeps its name, or the one given by `named`; a part's fields are named ``part.field``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..engine.personal import Columns, Personal

if TYPE_CHECKING:  # torch takes seconds to import, and a method's options are read without it
    from ..storage.row_store import Rows

Ids = NDArray[np.int64]
FEDERATION = ("participations", "last_label")  # what the loop keeps for every method
SERVER = ("server_velocity", "server_mean", "server_square")  # rows [K, p] of the server's optimiser
NEAREST = "nearest"
MIXTURE = "mixture"
FURTHER = ("server_steps", "rebalanced", NEAREST, MIXTURE)
STALE = "stale."
PERSONAL, BOUNDS = "personal", "personal_columns"  # the rows [M, q] that clients keep, and which columns these are
SENT = "personal_sent"  # present if clients send them


ROWS = {"rows": True}


def named(name: str) -> dict[str, Any]:
    """Return the metadata of a field that has another name in files."""
    return {"name": name}


def part(kind: type) -> dict[str, Any]:
    """Return the metadata of a field for a dataclass of arrays; it may be None."""
    return {"kind": kind}


def parts(kind: type, name: str) -> dict[str, Any]:
    """Return the metadata of a field for a list of dataclasses; in files they are ``name0``, ``name1``, and so on."""
    return {"kind": kind, "name": name, "many": True}


@dataclass
class Scored:
    """The scores of each client's own model on one split: correct predictions and mean loss, [M]."""

    correct: NDArray[np.float64]
    loss: NDArray[np.float64]


@dataclass
class State:
    """The models, each client's model, and what method, server and clients keep for later rounds.

    ``participations [M]`` counts rounds with an update; ``last_label [M]`` is the label in the last such round, -1
    before any. `optimizers` is what clients' optimisers keep (`engine.memory`); `stale` has the scores, by split, of
    the models that clients trained last, if they are evaluated. ``rebalanced [T, 2, K]`` has the sizes of each round's
    groups of updates before and after rebalancing, if there is any. `personal` is what clients keep of the models. If
    class centres are set, in `nearest`, models predict the class whose centre is nearest to a sample's features. If
    `mixture` is set, a client's prediction is the mean of all models' predictions, weighted by its shares.
    """

    theta: Rows  # [K, P]
    labels: Ids  # [M], the model that each client starts from; -1: none yet
    own: Any = None  # the method's
    participations: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last_label: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    server_velocity: Rows | None = None
    server_mean: Rows | None = None
    server_square: Rows | None = None
    server_steps: Ids | None = None  # [K]
    optimizers: dict[str, Any] = field(default_factory=dict)
    stale: dict[str, Scored] = field(default_factory=dict)
    rebalanced: NDArray[np.int64] | None = None
    personal: Personal | None = None
    nearest: NDArray[np.float32] | None = None  # [classes, d]: the nearest centre's class is predicted; NaN: none
    mixture: NDArray[np.float64] | None = None  # [M, K], in each row shares that add up to 1

    def __post_init__(self) -> None:
        if len(self.participations) != len(self.labels):
            self.participations = np.zeros(len(self.labels), dtype=np.int64)
            self.last_label = np.full(len(self.labels), -1, dtype=np.int64)

    def arrays(self) -> dict[str, Any]:
        """Return all of it as named arrays, `optimizers` too."""
        found: dict[str, Any] = {"theta": self.theta, "labels": self.labels}
        found |= {name: getattr(self, name) for name in (*FEDERATION, *SERVER, *FURTHER)}
        found |= self.optimizers
        if self.personal is not None:
            found |= {PERSONAL: self.personal.rows, BOUNDS: self.personal.columns.bounds}
            found |= {SENT: np.array([True])} if self.personal.sent else {}
        for split, scores in self.stale.items():
            found |= flat(scores, f"{STALE}{split}.")
        return {name: value for name, value in found.items() if value is not None} | flat(self.own)

    @classmethod
    def of(cls, arrays: Mapping[str, Any], own: type | None, optimizers: frozenset[str]) -> State:
        """Rebuild a state from its `arrays`; `own` is the type of the method's part, if it has one.

        `optimizers` names the arrays that belong to the clients' optimisers.
        """
        known: dict[str, Any] = {name: arrays[name] for name in (*SERVER, *FURTHER) if name in arrays}
        if PERSONAL in arrays:
            known[PERSONAL] = Personal(Columns(arrays[BOUNDS]), arrays[PERSONAL], SENT in arrays)
        splits = {name.split(".")[1] for name in arrays if name.startswith(STALE)}
        return cls(
            arrays["theta"],
            arrays["labels"],
            None if own is None else restored(own, arrays),
            arrays["participations"],
            arrays["last_label"],
            optimizers={name: arrays[name] for name in sorted(optimizers & arrays.keys())},
            stale={split: restored(Scored, arrays, f"{STALE}{split}.") for split in sorted(splits)},
            **known,
        )


def flat(own: Any, prefix: str = "") -> dict[str, Any]:
    """Return the arrays of a method's part of the state by name; for None, an empty dict."""
    found: dict[str, Any] = {}
    for one in () if own is None else fields(own):
        name, value = prefix + one.metadata.get("name", one.name), getattr(own, one.name)
        if one.metadata.get("many"):
            for i, item in enumerate(value):
                found |= flat(item, f"{name}{i}.")
        elif "kind" in one.metadata:
            found |= flat(value, f"{name}.")
        elif value is not None:
            found[name] = np.array([value]) if isinstance(value, bool | int) else value
    return found


def restored(kind: Any, arrays: Mapping[str, Any], prefix: str = "") -> Any:
    """Undo `flat`; a part without any array is None."""
    found: dict[str, Any] = {}
    for one in fields(kind):
        name, inner = prefix + one.metadata.get("name", one.name), one.metadata.get("kind")
        if one.metadata.get("many"):
            found[one.name] = []
            while _any(arrays, f"{name}{len(found[one.name])}."):
                found[one.name].append(restored(inner, arrays, f"{name}{len(found[one.name])}."))
        elif inner is not None:
            found[one.name] = restored(inner, arrays, f"{name}.") if _any(arrays, f"{name}.") else None
        elif name in arrays:
            scalar = str(one.type).split()[0] in ("bool", "int")
            found[one.name] = arrays[name][0].item() if scalar else arrays[name]
        else:
            found[one.name] = None
    return kind(**found)


def _any(arrays: Mapping[str, Any], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in arrays)


def row_names(own: type | None) -> set[str]:
    """Return the flat names of a state's rows, without those of the clients' optimisers."""
    extra = {one.metadata.get("name", one.name) for one in fields(own) if one.metadata.get("rows")} if own else set()
    return {"theta", PERSONAL, *SERVER, *extra}
