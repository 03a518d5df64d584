"""Parquet files that know their own digest, where no manifest lists them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .store import replacing

SEAL = "clusterfl."  # what the names of a sealed file's facts begin with
BLANK = b"0" * 64  # what stands in place of a file's own digest while it is taken


def sealed(table: pa.Table, path: Path, facts: Mapping[str, str], **options: Any) -> None:
    """Write a Parquet file that knows its own digest: of all its bytes, but for the digest's.

    Parameters
    ----------
    table, path
        What, and where to.
    facts
        Kept in the metadata.
    options
        Of Parquet's writer.
    """
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, table.schema, compression="zstd", **options) as writer:
        writer.write_table(table)
        metadata = {**facts, "sha256": BLANK.decode()}
        writer.add_key_value_metadata({f"{SEAL}{name}": value for name, value in metadata.items()})
    found = stream.getvalue()
    if found.count(BLANK) != 1:
        raise AssertionError(f"the digest's place is found {found.count(BLANK)} times, not once")
    with replacing(path) as temporary:
        temporary.write_bytes(found.replace(BLANK, hashlib.sha256(found).hexdigest().encode()))


def unsealed(path: Path) -> tuple[dict[str, str], bytes, str]:
    """Return facts and bytes of a sealed file, and what is wrong with its digest; an empty text: nothing.

    Raises
    ------
    Exception
        Of any kind, as the damage is: if it can't be read as Parquet.
    """
    found = path.read_bytes()
    metadata = pq.read_metadata(io.BytesIO(found)).metadata or {}
    facts = {k.decode().removeprefix(SEAL): v.decode() for k, v in metadata.items() if k.startswith(SEAL.encode())}
    said = facts.get("sha256", "").encode()
    blanked = found.replace(said, BLANK) if len(said) == len(BLANK) else found
    whole = hashlib.sha256(blanked).hexdigest()
    same = whole.encode() == said and found.count(said) == 1
    return facts, found, "" if same else f"sha256 {whole[:12]} found, {said.decode()[:12]} expected"
