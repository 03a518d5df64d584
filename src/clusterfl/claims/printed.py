"""The printed numbers and orderings as in `data`, whose README says where each comes from."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files

FILES = ("lcfl.csv", "rr_cluster.csv", "clove.csv", "fedgwc.csv")
EMPTY = ("not reached", "diverged", "undefined for one cluster")  # why a number may be missing, in print and in ours


@dataclass(frozen=True)
class Claim:
    """One printed number, with the fields of the file. Accuracies are in per cent."""

    claim_id: str
    paper: str
    where: str
    dataset: str
    setting: str
    method: str
    metric: str
    at: str
    value: str
    std: str
    n_seeds: str
    better: str
    note: str

    @property
    def cell(self) -> str:
        """Dataset and setting."""
        return f"{self.dataset}/{self.setting}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts of the note."""
        return tuple(self.note.split("; ")) if self.note else ()

    @property
    def printed(self) -> float | None:
        """The number, None where nothing is printed."""
        return float(self.value) if self.value else None

    @property
    def printed_std(self) -> float | None:
        """The standard deviation, in the form of `ddof`."""
        return float(self.std) if self.std else None

    @property
    def seeds(self) -> int | None:
        """The number of seeds that it is a mean over, where that is known."""
        if {"single run", "single seed"} & set(self.notes):
            return 1
        return int(self.n_seeds) if self.n_seeds else None

    @property
    def decimals(self) -> int:
        """Printed digits after the point."""
        return decimals(self.value)

    @property
    def ddof(self) -> int:
        """The standard deviation divides by n minus this: 0 for CLoVE and for bands drawn by LCFL's code, else 1."""
        return 0 if self.paper == "clove" or "std is the drawn band (population form)" in self.notes else 1

    @property
    def approximate(self) -> bool:
        """Whether print says "about"."""
        return "approximate in print" in self.notes

    @property
    def empty(self) -> str | None:
        """Why no number is printed; None where there is one."""
        if self.value:
            return None
        return next((note for note in self.notes if note in EMPTY), "no reason given")

    @property
    def released(self) -> bool:
        """Whether it is a point of a released curve or notebook, not printed in a text."""
        return "(released" in self.where or self.where.startswith("released curve")

    @property
    def repeats(self) -> bool:
        """Whether the same cell is printed elsewhere, too."""
        return any(note.startswith("repeats ") for note in self.notes)


@dataclass(frozen=True)
class Ordering:
    """One stated ordering, with the fields of the file; the grammar is in `grammar`."""

    claim_id: str
    paper: str
    where: str
    statement: str
    dataset: str
    setting: str
    metric: str
    at: str
    left: str
    relation: str
    right: str
    note: str

    @property
    def on_print(self) -> str:
        """What the note says about the published numbers, e.g. ``holds in 11 of 12`` or ``no number``."""
        found = re.match(r"(?:print|released): ([^;]*)", self.note)
        if found is None:
            raise ValueError(f"{self.claim_id}: no verdict in '{self.note}'")
        return found[1]

    @property
    def tolerance(self) -> float | None:
        """The tolerance of ``approx``."""
        found = re.search(r"\btol=([\d.]+\d)", self.note)
        return float(found[1]) if found else None

    @property
    def constructed(self) -> str:
        """Why it must hold, whatever is trained; '' if it needn't."""
        found = re.search(r"\bby construction: ([^;]*)", self.note)
        return found[1] if found else ""


def decimals(text: str) -> int:
    """Return the number of digits after the point."""
    return len(text.partition(".")[2])


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """Return all printed numbers, 1,452 of them."""
    return tuple(Claim(**row) for name in FILES for row in read(name, Claim))


@lru_cache(maxsize=1)
def orderings() -> tuple[Ordering, ...]:
    """Return all stated orderings, 80 of them."""
    return tuple(Ordering(**row) for row in read("orderings.csv", Ordering))


def read(name: str, kind: type[Claim] | type[Ordering]) -> list[dict[str, str]]:
    """Return the rows of a file in `data` that has the fields of `kind` as columns."""
    text = (files(__package__) / "data" / name).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = [field.name for field in fields(kind)]
    if list(rows[0]) != expected:
        raise ValueError(f"{name} has the columns {list(rows[0])}, not {expected}")
    return rows


def slug(text: str) -> str:
    """Return text as a file name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
