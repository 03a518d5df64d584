"""The format of an evidence file: Parquet with a row for each run, its format's number and its own digest."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UserError
from ..report import measures, tables
from ..storage.sealed import sealed, unsealed
from ..storage.store import first_line

FORMAT = 1  # a new one with every change of the columns or of what they mean
AGAIN = "write it again: clusterfl evidence"
BACK = "put the right file back, or " + AGAIN
MEASURED = (
    "clusters", "ari", "ari_participants", "rand", "nmi", "clustering_accuracy", measures.FIRST,
    f"{measures.FIRST}{measures.PARTICIPANTS}", "was", "wadb", "balanced_accuracy", "balanced_accuracy_train",
    "worst_client", "percentile_10_client", "std_clients", "worst_cluster",
)  # fmt: skip
READINGS = ("stability", "models")  # each a number, or a text that says why there is none
SPENT = (*tables.COSTS, "epsilon")
# How a run was made. Every other column is measured: the same on the same branch with the same revisions and versions.
MADE = ("settings", "chain", "code", "commit", "processor", "branch", "revisions", "versions")
BY_ROUND = ("ari", "ari_participants")
LABELS = ("client", "group", "cluster")
FACTS = ("study", "paper", "federation", "origin")  # in a file's metadata, in this order

_WHOLE, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
_CURVE = pa.struct(
    {"score": _TEXT, "round": pa.list_(_WHOLE), "accuracy": pa.list_(_REAL), "loss": pa.list_(_REAL)}
)  # fmt: skip
SCHEMA = pa.schema(
    {"seed": _WHOLE, "method": _TEXT}
    | dict.fromkeys(MADE, _TEXT)
    | {"partition": _TEXT, "clients": _WHOLE, "samples": _WHOLE, "chosen": _TEXT, "rounds": _WHOLE}
    | dict.fromkeys((*MEASURED, *SPENT), _REAL)
    | {f"{name}{end}": kind for name in READINGS for end, kind in (("", _REAL), ("_without", _TEXT))}
    | {"curves": pa.list_(_CURVE)}
    | {"by_round": pa.struct({"round": pa.list_(_WHOLE)} | dict.fromkeys(BY_ROUND, pa.list_(_REAL)))}
    | {"labels": pa.struct(dict.fromkeys(LABELS, pa.list_(pa.int32())))}
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A run of an evidence file."""

    file: Path
    study: str
    federation: str
    origin: str
    row: Row = field(repr=False)

    @property
    def where(self) -> tuple[str, int, str]:
        """Federation, seed and method."""
        return self.federation, self.row["seed"], self.row["method"]


def write_file(path: Path, rows: Sequence[Row], facts: Mapping[str, str]) -> None:
    """Write rows of `SCHEMA`; the metadata have `FACTS`, the format and the digest of all bytes but its own.

    The same rows and facts make the same bytes.
    """
    options: Any = dict.fromkeys(("store_schema", "write_statistics", "use_dictionary"), False)  # smaller without
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    sealed(
        table, path, {name: facts[name] for name in FACTS} | {"format": str(FORMAT)}, compression_level=19, **options
    )


def read_file(path: Path) -> tuple[dict[str, str], list[Row]]:
    """Return facts (format and digest included) and rows.

    Raises
    ------
    UserError
        If the file is damaged, of another format, or no evidence.
    """
    try:
        facts, content, wrong = unsealed(path)
    except Exception as error:  # of any kind, as the damage is
        raise UserError(f"{path} can't be read as Parquet ({first_line(error)}); {BACK}") from error
    if "format" not in facts:
        raise UserError(f"{path} is no evidence: it names no format; move it elsewhere, or {AGAIN}")
    if facts["format"] != str(FORMAT):
        raise UserError(
            f"{path} has format {facts['format']}, this version reads format {FORMAT}; {AGAIN}, or delete it"
        )
    if wrong:
        raise UserError(f"{path} is damaged: {wrong}; {BACK}")
    rows: list[Row] = pq.read_table(io.BytesIO(content)).to_pylist()
    return facts, rows


def must_agree(one: Row, other: Row) -> bool:
    """Return whether two rows of a run must be equal to the bit: same settings, branch, revisions and versions."""
    same = all(one[name] == other[name] for name in ("settings", "chain", "branch", "revisions", "versions"))
    return same and bool(one["branch"])  # an unknown one may be any


def differing(one: Row, other: Row) -> list[str]:
    """Return the measured columns in which two rows of a run aren't equal to the bit; of curves those of both."""
    lines = [{line["score"]: line for line in row["curves"]} for row in (one, other)]
    common = sorted(lines[0].keys() & lines[1].keys())
    pairs = {f"the curve {name}": (lines[0][name], lines[1][name]) for name in common}
    pairs |= {name: (one[name], other[name]) for name in SCHEMA.names if name not in (*MADE, "curves")}
    return [name for name, (a, b) in pairs.items() if not _same(a, b)]


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are the same to the bit; NaN is NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a.hex() == b.hex()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
