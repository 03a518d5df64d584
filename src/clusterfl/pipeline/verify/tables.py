"""Checks of any table: declared columns, values in their ranges and sets, complete keys, agreement with other tables.

A file of tensors counts as a table, as does a folder of them, concatenated. A problem's sentence gives the place, the
value found, and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...storage.blocks import blocks
from ...storage.row_store import StoredRows
from ...storage.store import opened, read_table, read_tensors
from ..chain import Column, Output

Problem = tuple[str, str]  # the key of a job's output, and a sentence
Table = Mapping[str, Any]
Sets = Mapping[str, Any]  # ranges and lists of values, by name
SLACK = 1e-9  # by which a value may be out of its range, because of rounding
TENSORS = {"I64": "int64", "F64": "double", "BOOL": "bool"}


def tensor_files(path: Path) -> list[Path]:
    """Return a file of tensors, or those in a folder."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def read(path: Path, output: Output) -> Table:
    """Return a table's columns; of tensors only declared ones, with models as rows that stay in their files."""
    if path.suffix == ".parquet":
        return _read(path.resolve(), path.stat().st_mtime_ns)
    files = tensor_files(path)
    return {
        name: StoredRows(files, name)
        if column.type == "rows"
        else np.concatenate([read_tensors(file, [name])[name] for file in files])
        for name, column in output.columns.items()
    }


@lru_cache(maxsize=8)
def _read(path: Path, time: int) -> dict[str, NDArray[Any]]:
    return read_table(path)


def frame(path: Path) -> pd.DataFrame:
    """Return the columns of a Parquet table."""
    return _frame(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _frame(path: Path, time: int) -> pd.DataFrame:
    return pd.DataFrame(_read(path, time))


# Columns.


def types(path: Path) -> dict[str, str]:
    """Return the columns of a table, and the type of each."""
    if path.suffix == ".parquet":
        return {field.name: _arrow(str(field.type)) for field in pq.read_schema(path)}
    first, *others = [_arrays(file) for file in tensor_files(path)]
    return {name: kind for name, kind in first.items() if all(other.get(name) == kind for other in others)}


def _arrow(name: str) -> str:
    if name.startswith("fixed_size_list"):
        return f"list of {name.partition(': ')[2].partition('>')[0].partition(' ')[0]}"
    return {"large_string": "string"}.get(name, name)


def _arrays(path: Path) -> dict[str, str]:
    with opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {name: TENSORS.get(one.get_dtype(), one.get_dtype()) for name, one in slices.items()}
        return {name: "rows" if len(slices[name].get_shape()) == 2 else kind for name, kind in kinds.items()}


def mistyped(found: Mapping[str, str], output: Output, more: bool) -> str | None:
    """Return a sentence on the first column that isn't as declared, or None; `more`: with the `sometimes` columns."""
    columns = {**output.columns, **(output.sometimes if more else {})}
    expected = {name: column.type for name, column in columns.items()}
    for name in [*expected, *([] if output.others else found)]:
        here, there = found.get(name, "missing"), expected.get(name, "no such column")
        if found.get(name) != expected.get(name):
            return f"column '{name}': {here} found, {there} expected"
    return None


# Values.


def misfits(key: str, table: Table, output: Output, sets: Sets) -> Iterator[Problem]:
    """Yield values that aren't in their columns' ranges and sets, and keys that are duplicate or missing."""
    for name, column in {**output.columns, **output.sometimes}.items():
        if isinstance(table.get(name), StoredRows):
            yield from ((key, text) for text in _not_finite(table[name]))
        elif name in table:
            keys = (*output.keys, column.most) if isinstance(column.most, str) else output.keys
            for bad, expected in _limits(table[name], column, table, sets):
                yield from unexpected(key, table, name, bad, expected, keys)
            if output.per in sets and len(table[name]) != len(sets[output.per]):
                yield key, f"{len(table[name])} {name} found, {len(sets[output.per])} expected"
    if output.keys:
        yield from ((key, text) for text in _keys(table, output, sets))


def _limits(values: NDArray[Any], column: Column, table: Table, sets: Sets) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Yield, for each of a column's limits, which values violate it, and what is expected."""
    if column.among in sets:
        allowed = sets[column.among]
        if isinstance(allowed, range):
            outside = (values < allowed.start) | (values >= allowed.stop)
        else:
            outside = ~pd.Series(values).isin(allowed).to_numpy()
        yield outside, _in_words(allowed)
    if column.least is not None:
        most = table[column.most] if isinstance(column.most, str) else column.most
        above = np.zeros(values.shape, dtype=bool) if most is None else values > most + SLACK
        words = f"{column.least} or more" if most is None else f"{column.least} to {column.most}"
        yield (values < column.least - SLACK) | above, words
    if column.whole:
        yield values > np.floor(values), "a whole number"
    if column.finite:
        yield ~np.isfinite(values), "a finite number"


def _in_words(allowed: Any) -> str:
    if isinstance(allowed, range):
        return f"{max(0, allowed.start)} to {allowed.stop - 1}" + " or -1 (none)" * (allowed.start < 0)
    return f"one of {len(allowed)} clients" if isinstance(allowed, np.ndarray) else f"one of {', '.join(allowed)}"


def unexpected(
    key: str, table: Table, name: str, bad: Any, expected: str, keys: Sequence[str]
) -> Iterator[Problem]:  # fmt: skip
    """Yield a problem for the first bad value of a column."""
    bad = np.asarray(bad)
    if bad.any():
        value = np.asarray(table[name])[np.unravel_index(int(np.argmax(bad)), bad.shape)]
        rows = bad.reshape(len(bad), -1).any(axis=1)
        yield key, f"{where(table, rows, keys)}: {name} {value} found, {expected} expected"


def where(table: Table, bad: NDArray[np.bool_], keys: Sequence[str]) -> str:
    """Return the place of the first bad row and the number of bad rows, as text."""
    row, count = int(np.argmax(bad)), int(bad.sum())
    place = ", ".join(f"{key} {np.asarray(table[key])[row]}" for key in keys) or f"row {row}"
    return f"{place} ({count} row{'s' if count > 1 else ''} in all)"


def _keys(table: Table, output: Output, sets: Sets) -> Iterator[str]:
    there = pd.DataFrame({key: table[key] for key in output.keys})
    again = there.duplicated().to_numpy()
    if again.any():
        yield f"{where(table, again, output.keys)}: twice found, once expected"
    names = [output.columns[key].among for key in output.keys]
    if output.complete and all(name in sets for name in names):
        grid = np.meshgrid(*(sets[name] for name in names), indexing="ij")
        expected = pd.DataFrame({key: values.ravel() for key, values in zip(output.keys, grid, strict=True)})
        if not _equal(expected, there, output.keys):
            missing = _lacking(expected, there, output.keys)
            if missing.any():
                yield f"{where(expected, missing, output.keys)}: missing, {len(expected)} rows expected"
            else:
                yield f"other rows or another order found, {len(expected)} by {', '.join(output.keys)} expected"


def _not_finite(rows: StoredRows) -> Iterator[str]:
    for part in blocks(len(rows), rows.shape[1] * rows.dtype.itemsize):
        bad = np.flatnonzero(~rows[part].isfinite().all(dim=1).numpy())
        if len(bad):
            yield f"model {part.start + bad[0]} has NaN or infinity; finite numbers expected"
            return


# Comparison of tables.


def differences(
    key: str,
    found: pd.DataFrame,
    expected: pd.DataFrame,
    keys: Sequence[str],
    source: str,
    slack: Mapping[str, Callable[[pd.DataFrame], Any]] | None = None,
) -> Iterator[Problem]:
    """Yield how a table differs from the expected one: rows, then the values of each column of `expected`.

    Parameters
    ----------
    key
        Key of the output that is checked.
    found, expected
        Two tables with the columns `keys`.
    source
        The origin of the expected table, for the message.
    slack
        Functions, by column, that return the allowed differences for the expected table; 0 if not given.
    """
    here, there = found, expected
    if not _equal(here, there, keys):
        here, there = (table.sort_values(list(keys)) for table in (found, expected))
    if not _equal(here, there, keys):
        for table, other, words in ((there, here, "missing, "), (here, there, "found, not ")):
            bad = _lacking(table, other, keys)
            if bad.any():
                yield key, f"{where(table, bad, keys)}: {words}expected by {source}"
        return
    for name in there.columns.difference(keys, sort=False):
        value, other = here[name].to_numpy(), there[name].to_numpy()
        most = slack[name](there) if slack and name in slack else 0
        off = ~np.isclose(value, other, rtol=0, atol=most, equal_nan=True)
        if off.any():
            row = int(np.argmax(off))
            yield key, f"{where(there, off, keys)}: {name} {value[row]} found, {other[row]} of {source} expected"


def _equal(table: pd.DataFrame, other: pd.DataFrame, keys: Sequence[str]) -> bool:
    return all(np.array_equal(table[key].to_numpy(), other[key].to_numpy()) for key in keys)


def _lacking(table: pd.DataFrame, other: pd.DataFrame, keys: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows of a table have keys that the other table lacks."""
    mine, others = (pd.MultiIndex.from_arrays([one[key] for key in keys]) for one in (table, other))
    return ~mine.isin(others)
