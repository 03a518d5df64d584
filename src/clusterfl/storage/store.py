"""Reading and writing of files: atomic, with equal bytes for equal content, and with a clear error for damage."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import UserError
from .blocks import blocks
from .columns import to_arrow, to_numpy

RESULTS, DATA = Path("results"), Path("data")  # in the working folder, as in the workflow's rules
Columns = Mapping[str, NDArray[Any] | list[Any]]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` atomically if the block succeeds; UserError if that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def cannot_write(path: Path | str, error: OSError) -> UserError:
    """Return the error for a failed write: a full disk, a missing permission, or the system's message."""
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"no space left on the disk for {path}; free some, then run the same command again")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"no permission to write {path}; make its folder writable, then run the same command again")
    return UserError(f"cannot write {path}: {error}")


def write_table(path: Path, columns: Columns) -> None:
    """Write columns to a Parquet file. A column given as [rows, n] becomes lists of fixed length n."""
    table = pa.table([to_arrow(values) for values in columns.values()], names=list(columns))
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read a Parquet file as columns, lists of fixed length as [rows, n]; UserError if it is missing or damaged."""
    try:
        with pq.ParquetFile(path) as file:  # `pq.read_table` would import the reader of folders, and pandas
            table = file.read()
        table.validate(full=True)
        return {name: to_numpy(table.column(name).combine_chunks()) for name in table.column_names}
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {rebuild(path)}") from error
    except Exception as error:  # of any type, depending on the damage
        raise UserError(f"{path} can't be read as Parquet ({first_line(error)}); {rebuild(path)}") from error


def first_line(error: Exception) -> str:
    """Return an error's message, with its type unless that is an OSError or ValueError."""
    return str(error).strip() if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}".strip()


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named arrays to a safetensors file, block by block: the same bytes as the library would write.

    `tensors` are arrays with at least one axis, or any rows [n, P] that have a shape and can be sliced, e.g. in files.
    """
    # Empty arrays give the library's own header: its order and its names of types.
    empty = save({name: np.asarray(value[:0]).reshape(0) for name, value in tensors.items()})
    header, end = json.loads(empty[8:]), 0
    for name, entry in header.items():
        size = math.prod(tensors[name].shape) * np.asarray(tensors[name][:0]).itemsize
        entry |= {"shape": list(tensors[name].shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            _write_rows(file, tensors[name])


def _write_rows(file: BinaryIO, values: Any) -> None:
    """Write the rows of `values`, numbers in little-endian order."""
    row_bytes = np.asarray(values[:1]).nbytes
    for part in blocks(len(values), row_bytes):
        rows = np.asarray(values[part])
        file.write(np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).data)


def read_tensors(path: Path, names: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read named arrays from a safetensors file, all or those of `names` that it has; UserError as for `opened`."""
    with opened(path) as file:
        try:
            return {name: file.get_tensor(name) for name in file.keys() if not names or name in names}  # noqa: SIM118 (not a mapping)
        except (TypeError, ValueError, AttributeError) as error:  # a type that numpy doesn't have
            raise UserError(f"{path} can't be read as safetensors ({first_line(error)}); {rebuild(path)}") from error


def names_of(path: Path) -> set[str]:
    """Return the names of the arrays in a safetensors file."""
    with opened(path) as file:
        return set(file.keys())


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, which reads only what is requested; UserError if it is missing or damaged."""
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {rebuild(path)}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} can't be read as safetensors ({error}); {rebuild(path)}") from error


def write_json(path: Path, value: Any, in_order: bool = False) -> None:
    """Write indented JSON, with sorted keys unless they stay `in_order`."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=not in_order) + "\n", encoding="utf-8")


def read_json(path: Path, again: str | None = None) -> Any:
    """Read a JSON file. If it is missing or damaged, a UserError ends with `again`: how to make it, or `rebuild`."""
    again = rebuild(path) if again is None else again
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {again}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as JSON ({error}); {again}") from error


def rebuild(path: Path) -> str:
    """Return how to rebuild a damaged or missing result: with its study's settings, if these are stored."""
    settings = RESULTS.joinpath(*path.parts[1:2], "settings.json")
    of_study = ["--configfile", str(settings)] if path.parts[:1] == RESULTS.parts and settings.exists() else []
    return f"rebuild it: {shlex.join(['snakemake', *of_study, '--force', str(path)])}"
