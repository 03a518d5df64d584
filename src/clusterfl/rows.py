"""Rows of numbers in a file: the models of many clients, of which only those at work are in memory.

The file is read and written, never mapped: the touched pages of a mapping count as resident memory, which would then
grow with the number of clients.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .blocks import blocks
from .errors import UserError

DISK_BYTES = 256 << 20  # larger arrays of models lie in a file, not in memory


class RowStore:
    """Rows [n, P] in a file: ``store[positions]`` reads a copy, ``store[positions] = rows`` writes.

    Positions are what indexes a tensor's rows: an int, a slice, an array or a tensor. Rows that were never written are
    zeros and take no space. It pickles as its path, so that another process opens the same file; so does a copy of it.

    Parameters
    ----------
    path
        The file.
    rows, columns, dtype
        What it holds.
    owned
        Whether this object makes the file, all zeros, and deletes it at its own end.
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
        """P."""
        return self.shape[1]

    def close(self) -> None:
        """Close the file, and delete it if this object made it."""
        self._close()

    def __getitem__(self, positions: Any) -> Tensor:
        index = positions_of(positions, len(self))
        found = torch.empty(*index.shape, self.columns, dtype=self.dtype)
        flat = found.view(-1, self.columns).numpy()
        for first, part in self._runs(index):
            _whole(os.preadv, self._file, flat[part], first * self._row_bytes)
        return found

    def __setitem__(self, positions: Any, values: Any) -> None:
        index = positions_of(positions, len(self))
        rows = torch.as_tensor(values).detach().expand(*index.shape, self.columns).view(-1, self.columns)
        try:
            for first, part in self._runs(index):  # in blocks: one row may be written to all positions
                ready = rows[part].to("cpu", self.dtype).contiguous().numpy()
                _whole(os.pwritev, self._file, ready, first * self._row_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"no space left in {Path(self.path).parent} for {len(self) * self._row_bytes} bytes of clients' "
                "models; free some, or set TMPDIR to a folder with more, then run the same command again"
            ) from error

    def _runs(self, index: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
        """Yield where neighbouring rows begin in the file, and which of the index they are."""
        index = np.atleast_1d(index)
        cuts = [0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist(), len(index)]
        for start, stop in pairwise(cuts):
            for part in blocks(stop - start, self._row_bytes):
                yield int(index[start + part.start]), slice(start + part.start, start + part.stop)


Rows = Tensor | RowStore


def allocate(rows: int, columns: int, dtype: torch.dtype = torch.float32, folder: str | None = None) -> Rows:
    """Return zeros [rows, columns]; large ones in a file in `folder`, or in that of all temporary files."""
    if rows * columns * dtype.itemsize < DISK_BYTES:
        return torch.zeros(rows, columns, dtype=dtype)
    handle, path = tempfile.mkstemp(prefix="clusterfl-", dir=folder)
    os.close(handle)
    return RowStore(path, rows, columns, dtype, owned=True)


def positions_of(positions: Any, rows: int) -> NDArray[np.int64]:
    """Return the numbers of the rows that `positions` are, out of 0 to rows - 1: [m], or [] for an int."""
    return np.asarray(np.arange(rows)[positions if isinstance(positions, slice) else np.asarray(positions)])


def _whole(call: Callable[..., int], file: int, rows: NDArray[Any], offset: int) -> None:
    """Read or write all of `rows`; one call may do less."""
    left = rows.data.cast("B")
    while left:
        done = call(file, [left], offset)
        if not done:
            raise EOFError(f"a file of rows ends at byte {offset}; it was cut while in use")
        left, offset = left[done:], offset + done


def _close(file: int, path: str | None, process: int) -> None:
    os.close(file)
    if path is not None and os.getpid() == process:  # a forked process has the object, too, but not the file
        Path(path).unlink(missing_ok=True)
