"""Parquet files that contain their own digest, for files that no manifest lists."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .store import replacing

SEAL = "clusterfl."  # prefix of the names of a sealed file's facts
BLANK = b"0" * 64  # stands in place of the digest while it is computed


def sealed(table: pa.Table, path: Path, facts: Mapping[str, str], **options: Any) -> None:
    """Write a Parquet file with its own digest in the metadata: that of all other bytes.

    Parameters
    ----------
    table, path
        The table and the file.
    facts
        Further metadata.
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
    """Return facts and bytes of a sealed file, and what is wrong with its digest, or an empty text.

    Raises
    ------
    Exception
        Of any type, depending on the damage, if the file can't be read as Parquet.
    """
    found = path.read_bytes()
    metadata = pq.read_metadata(io.BytesIO(found)).metadata or {}
    facts = {k.decode().removeprefix(SEAL): v.decode() for k, v in metadata.items() if k.startswith(SEAL.encode())}
    said = facts.get("sha256", "").encode()
    blanked = found.replace(said, BLANK) if len(said) == len(BLANK) else found
    whole = hashlib.sha256(blanked).hexdigest()
    same = whole.encode() == said and found.count(said) == 1
    return facts, found, "" if same else f"sha256 {whole[:12]} found, {said.decode()[:12]} expected"
