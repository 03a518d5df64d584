"""The table of datasets: what each one is, where its files come from, and their checksums."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from ..errors import UserError
from ..registry import Typed, table
from .samples import TEXTS, Samples

TABLE = Path(__file__).with_name("datasets.yaml")
Md5 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class File(Typed):
    """A file that a reader opens, and where it may come from."""

    # Inside the dataset's folder. With a `*` it stands for all matching files, for programs whose options determine
    # the files' names.
    path: str
    url: str | None = None  # the publisher's address; unpacked if it ends in .gz or .xz and `path` doesn't
    md5: Md5 | None = None  # of the file at `path`
    sha256: Sha256 | None = None
    packed_md5: Md5 | None = None  # of the download, as the publisher prints it
    bytes: int | None = Field(default=None, gt=0)  # of the download
    unpacked: int | None = Field(default=None, gt=0)  # bytes of the file at `path`, if the download is packed
    mirror: tuple[str, ...] = ()  # places in a mirror, tried in turn, packed ones included

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The kind and the value of the known checksum; None if the first download's is pinned instead."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else None

    @property
    def most(self) -> int | None:
        """Bytes of the file at `path`; None if unknown."""
        packed = self.url is not None and self.url.endswith((".gz", ".xz")) and not self.path.endswith((".gz", ".xz"))
        return self.unpacked or (None if packed else self.bytes)


class Counts(Typed):
    """Numbers of samples; null if they depend on the files."""

    train: int | None
    test: int | None


class DatasetRow(Typed):
    """A dataset."""

    title: str
    about: str
    shape: tuple[int, ...]  # of a sample
    classes: int | None  # null: real targets
    words: bool = False  # samples are indices of words or characters
    names: tuple[str, ...] = ()  # of the classes, if they are few
    samples: Counts
    licence: str
    citation: str
    studies: tuple[Literal["lcfl", "rr-cluster", "clove", "fedgwc", "ifca"], ...] = ()
    get: str | None = None  # instructions for the user, if there is no address for everything
    stand_in_for: str | None = None
    bytes: int | None = None  # of the arrays x and y
    content: Sha256 | None = None  # of the arrays x and y with default options; null if never computed
    sources: tuple[tuple[File, ...], ...] = ()  # alternatives; a reader works with whichever is present

    @model_validator(mode="after")
    def _can_be_got(self) -> DatasetRow:
        reachable = not self.sources or any(all(file.url for file in files) for files in self.sources)
        if not reachable and not self.get:
            raise ValueError("no alternative has an address for all its files, and `get` doesn't say how to get them")
        if self.names and len(self.names) != self.classes:
            raise ValueError(f"{len(self.names)} names for {self.classes} classes")
        return self


@cache
def rows() -> dict[str, DatasetRow]:
    """Return the table, by name.

    Raises
    ------
    UserError
        If a row has an unknown key, lacks one, or has a value of a wrong type.
    """
    try:
        return TypeAdapter(dict[str, DatasetRow]).validate_python(table(TABLE))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{TABLE}: {'.'.join(map(str, first['loc']))}: {first['msg']}; mend the row") from error


def content(samples: Samples) -> str:
    """Return the sha256 over dtype, shape and bytes of x, then of y, and of the names of classes and categories."""
    digest = hashlib.sha256()
    named = (array for name, array in samples.tensors().items() if name in ("sizes", *TEXTS))
    for array in (samples.x, samples.y, *named):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
