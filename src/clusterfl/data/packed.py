"""Packed files: members are read inside the archive, and none may be larger than allowed or than its header says.

No archive is extracted to the disk under the names in it.
"""

from __future__ import annotations

import lzma
import math
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

BLOCK = 1 << 18
LARGEST = 1 << 36  # most bytes of a file of unknown size: more isn't a dataset and would only fill the disk
# Exceptions of Python's archive readers for a damaged archive.
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
    NotImplementedError, RuntimeError, UnicodeDecodeError,
)  # fmt: skip


def copied(stream: Any, sink: Any, most: int, refused: UserError) -> None:
    """Copy a stream of at most `most` bytes, or raise `refused`: a longer one would fill the disk."""
    done = 0
    while block := stream.read(BLOCK):
        done += len(block)
        if done > most:
            raise refused
        sink.write(block)


def longer(source: str, most: int) -> str:
    """Return a message about a member or file of more than `most` bytes."""
    return f"{source} is longer than the {most:,} bytes that it may have, so it isn't the right file"


def content(stream: Any, most: int, source: str) -> bytes:
    """Return a stream's content of at most `most` bytes.

    Raises
    ------
    UserError
        If there is more, which would fill the memory.
    """
    data: bytes = stream.read(most + 1)
    if len(data) > most:
        raise UserError(f"{longer(source, most)}; delete it, then download it again")
    return data


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file, without Python objects.

    Raises
    ------
    ValueError
        If it isn't such a file, or an array has another size than its header says, which is checked before memory is
        allocated for it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check(archive, member)
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except FileNotFoundError:
        raise
    except (*DAMAGED, SyntaxError, RecursionError, MemoryError, OverflowError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError for a false header, which numpy would believe and allocate memory for."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in READ_HEADER:
            raise ValueError(f"{member.filename} has the format {version}")
        shape, _, dtype = READ_HEADER[version](stream)
        if dtype.hasobject or not dtype.itemsize:  # a header may claim any number of values without bytes
            raise ValueError(f"{member.filename} holds Python objects, or nothing")
        size, found = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if min(shape, default=0) < 0 or size != found:
        raise ValueError(f"{member.filename} has {found} bytes of numbers, and its header says {size}")


READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
