"""What is packed: members are read where they are, and none is larger than it may be or says that it is.

No archive is laid out on the disk by the names that it gives.
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
LARGEST = 1 << 36  # bytes of a file whose size nobody knows: more is no dataset, but a filled disk
# What Python's readers of archives raise for a damaged one.
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
    NotImplementedError, RuntimeError, UnicodeDecodeError,
)  # fmt: skip


def copied(stream: Any, sink: Any, most: int, refused: UserError) -> None:
    """Copy a stream of at most so many bytes, or raise `refused`: what unpacks to more would fill the disk."""
    done = 0
    while block := stream.read(BLOCK):
        done += len(block)
        if done > most:
            raise refused
        sink.write(block)


def longer(source: str, most: int) -> str:
    """Return what is wrong with a member or file of more bytes."""
    return f"{source} is longer than the {most:,} bytes that it may have, so it isn't the right file"


def content(stream: Any, most: int, source: str) -> bytes:
    """Return what a stream has, at most so many bytes.

    Raises
    ------
    UserError
        If there are more: they would fill the memory.
    """
    data: bytes = stream.read(most + 1)
    if len(data) > most:
        raise UserError(f"{longer(source, most)}; delete it, then download it again")
    return data


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file, none of Python objects.

    Raises
    ------
    ValueError
        If it isn't such a file, or an array has another size than its header says, which is seen before any memory is
        taken for it.
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
    """Raise ValueError for a header that numpy would believe and take memory for."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in READ_HEADER:
            raise ValueError(f"{member.filename} has the format {version}")
        shape, _, dtype = READ_HEADER[version](stream)
        if dtype.hasobject or not dtype.itemsize:  # of values without bytes a header may claim any number
            raise ValueError(f"{member.filename} holds Python objects, or nothing")
        size, found = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if min(shape, default=0) < 0 or size != found:
        raise ValueError(f"{member.filename} has {found} bytes of numbers, and its header says {size}")


READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
