"""Rows of numbers in a file, such as the models of many clients, of which only those in use are in memory.

The file is read and written, never memory-mapped: the used pages of a mapping count as resident memory, which would
grow with the number of clients.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from .blocks import blocks
from .scratch import scratch
from .store import opened

DISK_BYTES = 256 << 20  # arrays of models from this size on are in a file, not in memory


class RowStore:
    """Rows [n, P] in a file: ``store[positions]`` reads a copy, ``store[positions] = rows`` writes.

    Positions index rows as of a tensor: an int, a slice, an array or a tensor. Rows that were never written are zeros
    and take no space. Pickling stores only the path, so another process, or a copy, opens the same file.

    Parameters
    ----------
    path
        The file.
    rows, columns, dtype
        What it holds.
    owned
        Whether this object makes the file, filled with zeros, and deletes it when it is closed or collected.

    Raises
    ------
    UserError
        In writing, if no space is left.
    """

    def __init__(self, path: str, rows: int, columns: int, dtype: torch.dtype = torch.float32, owned: bool = False):
        self.path, self.shape, self.dtype = path, (rows, columns), dtype
        self._row_bytes = columns * dtype.itemsize
        self._file = os.open(path, os.O_RDWR | (os.O_CREAT if owned else 0), 0o600)
        self._close = weakref.finalize(self, _close, self._file, path if owned else None, os.getpid())
        if owned:
            os.ftruncate(self._file, rows * self._row_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowStore, (self.path, *self.shape, self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def columns(self) -> int:
        """P, the length of a row."""
        return self.shape[1]

    def close(self) -> None:
        """Close the file, and delete it if this object made it."""
        self._close()

    def __getitem__(self, positions: Any) -> Tensor:
        index = positions_of(positions, len(self))
        found = torch.empty(*index.shape, self.columns, dtype=self.dtype)
        flat = found.view(-1, self.columns).numpy()
        for first, part in runs(index, self._row_bytes):
            _whole(os.preadv, self._file, flat[part], first * self._row_bytes)
        return found

    def __setitem__(self, positions: Any, values: Any) -> None:
        index = positions_of(positions, len(self))
        rows = torch.as_tensor(values).detach().expand(*index.shape, self.columns).view(-1, self.columns)
        try:
            for first, part in runs(index, self._row_bytes):  # in blocks: one row may be written to all positions
                ready = rows[part].to("cpu", self.dtype).contiguous().numpy()
                _whole(os.pwritev, self._file, ready, first * self._row_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"no space left in {Path(self.path).parent} for {len(self) * self._row_bytes} bytes of clients' "
                "models; free some, or set TMPDIR to a folder with more, then run the same command again"
            ) from error


Rows = Tensor | RowStore


class StoredRows:
    """The rows [n, P] of one array in safetensors files, one file after another: ``stored[positions]`` reads a copy.

    Positions as for a `RowStore`. A file is open, and memory-mapped, only while it is read.

    Parameters
    ----------
    paths
        At least one file; each has a part of the rows.
    name
        The array's name.
    """

    def __init__(self, paths: Sequence[Path], name: str):
        self.paths, self.name = paths, name
        self._starts = [0]  # the first row of each file, and the number of all
        for path in paths:
            with opened(path) as file:
                nothing = file.get_slice(name)[:0]
                self._starts.append(self._starts[-1] + file.get_slice(name).get_shape()[0])
        self._type = nothing.dtype
        self.shape, self.dtype = (self._starts[-1], nothing.shape[1]), torch.as_tensor(nothing).dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, positions: Any) -> Tensor:
        index = positions_of(positions, len(self))
        found, flat = np.empty((index.size, self.shape[1]), self._type), np.atleast_1d(index)
        for path, (first, end) in zip(self.paths, pairwise(self._starts), strict=True):
            mine = np.flatnonzero((first <= flat) & (flat < end))
            if not len(mine):
                continue
            with opened(path) as file:
                rows = file.get_slice(self.name)
                for start, part in runs(flat[mine] - first, found.itemsize * self.shape[1]):
                    found[mine[part]] = rows[start : start + part.stop - part.start]
        return torch.as_tensor(found.reshape(*index.shape, self.shape[1]))

    def copy(self) -> Rows:
        """Return a copy that can be changed: in memory, or in a temporary file if it is large."""
        made = allocate(*self.shape, self.dtype)
        for part in blocks(len(self), self.shape[1] * self.dtype.itemsize):
            made[part] = self[part]
        return made


Readable = Rows | StoredRows


class Selected:
    """Some rows and columns of models: ``selected[slice]`` reads some of the chosen rows, [n, c] in float64."""

    def __init__(self, rows: Readable, chosen: NDArray[np.int64], columns: slice):
        self.rows, self.chosen, self.columns = rows, chosen, columns

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, part: slice) -> NDArray[np.float64]:
        return self.rows[torch.as_tensor(self.chosen[part])][:, self.columns].double().numpy()


def allocate(rows: int, columns: int, dtype: torch.dtype = torch.float32, folder: str | None = None) -> Rows:
    """Return zeros [rows, columns]; large ones in a file in `folder`, or in this process's temporary folder."""
    if rows * columns * dtype.itemsize < DISK_BYTES:
        return torch.zeros(rows, columns, dtype=dtype)
    handle, path = tempfile.mkstemp(dir=folder or scratch())
    os.close(handle)
    return RowStore(path, rows, columns, dtype, owned=True)


def positions_of(positions: Any, rows: int) -> NDArray[np.int64]:
    """Return the row numbers that `positions` select out of 0 to rows - 1: [m], or a scalar array for an int."""
    return np.asarray(np.arange(rows)[positions if isinstance(positions, slice) else np.asarray(positions)])


def runs(index: NDArray[np.int64], row_bytes: int) -> Iterator[tuple[int, slice]]:
    """Yield each run of consecutive rows, at most a block, as its first row and its slice of the index."""
    index = np.atleast_1d(index)
    for start, stop in pairwise([0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist(), len(index)]):
        for part in blocks(stop - start, row_bytes):
            yield int(index[start + part.start]), slice(start + part.start, start + part.stop)


def _whole(call: Callable[..., int], file: int, rows: NDArray[Any], offset: int) -> None:
    """Read or write all of `rows`, in several calls if one processes only a part."""
    left = rows.data.cast("B")
    while left:
        done = call(file, [left], offset)
        if not done:
            raise EOFError(f"a file of rows ends at byte {offset}; it was truncated while in use")
        left, offset = left[done:], offset + done


def _close(file: int, path: str | None, process: int) -> None:
    if path is not None and os.getpid() == process:  # not in a forked process, which has a copy of the object
        os.ftruncate(file, 0)  # frees the space even if forked processes have the file open
        Path(path).unlink(missing_ok=True)
    os.close(file)
