"""Reading and writing of result files: atomic, verified against a manifest, equal bytes for equal content.

Every stage leaves a manifest beside its files: their sha256, rows and schema version, the digests of settings, code
and inputs, and the versions of the packages. A file is checked against it before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
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
from .digest import canonical, of_file, of_text

SCHEMA_VERSION = 1
RESULTS, DATA = Path("results"), Path("data")  # beside the configuration, as the workflow states them
SEAL = "clusterfl."  # what the names of a sealed file's facts begin with
PACKAGES = (
    "kmedoids",
    "numpy",
    "pandas",
    "pyarrow",
    "safetensors",
    "scikit-learn",
    "scikit-learn-extra",
    "scipy",
    "torch",
)
READ = ("costs", "diverged", "content")  # facts of a manifest that later jobs read
Columns = Mapping[str, NDArray[Any] | list[Any]]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it, all or nothing, when the block ends well."""
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
    """Return the sentence for an error of writing: a full disk, a missing permission, or what the system says."""
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"no space left on the disk for {path}; free some, then run the same command again")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"no permission to write {path}; make its folder writable, then run the same command again")
    return UserError(f"cannot write {path}: {error}")


def write_table(path: Path, columns: Columns) -> None:
    """Write columns to a Parquet file. A column given as [rows, n] becomes lists of fixed length n."""
    arrays = []
    for values in columns.values():
        if isinstance(values, np.ndarray) and values.ndim == 2:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, values.shape[1]))
        else:
            arrays.append(pa.array(values))
    table = pa.table(arrays, names=list(columns))
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


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


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read a Parquet file as columns; lists of fixed length come back as [rows, n]."""
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        columns = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if pa.types.is_fixed_size_list(column.type):
                columns[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
            else:
                columns[name] = column.to_numpy(zero_copy_only=False)
        return columns
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {rebuild(path)}") from error
    except Exception as error:  # of any kind, as the damage is
        raise UserError(f"{path} can't be read as Parquet ({first_line(error)}); {rebuild(path)}") from error


def first_line(error: Exception) -> str:
    """Return what an error says, and its kind where that isn't clear by itself."""
    return str(error).strip() if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}".strip()


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named arrays to a safetensors file, block by block: the bytes that the library would write.

    `tensors` are arrays of at least one axis, or rows [n, P] that lie elsewhere: anything with a shape whose slices
    are rows.
    """
    # The library's own header, of as many empty arrays: its order and its names of types.
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
    """Read named arrays from a safetensors file: all of them, or those of `names` that are there."""
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
    """Open a safetensors file, of which no more is read than is asked for, or say what is wrong with it."""
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {rebuild(path)}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} can't be read as safetensors ({error}); {rebuild(path)}") from error


def write_json(path: Path, value: Any, in_order: bool = False) -> None:
    """Write JSON that is pleasant to read, and equal for equal values unless their keys are to stay `in_order`."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=not in_order) + "\n", encoding="utf-8")


def read_json(path: Path, again: str | None = None) -> Any:
    """Read a JSON file; `again` says how to make it again, unless its own name does."""
    again = again or rebuild(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; {again}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as JSON ({error}); {again}") from error


def manifest_path(path: Path) -> Path:
    """Return where the manifest of a result lies: in its folder, or beside it when stages share the folder."""
    folder = path.parent
    shared = folder.name in ("distance", "clusters") and re.fullmatch(r"seed\d+", folder.parent.name)
    if shared or re.fullmatch(r"seed\d+", folder.name):
        name = path.name.removesuffix(".parquet").removesuffix(".scores").removesuffix(".classes")
        return path.with_name(f"{name}.manifest.json")
    return folder / "manifest.json"


def timing_path(result: Path) -> Path:
    """Return where the times of the job that made a result are."""
    place = manifest_path(result)
    return place.with_name(place.name.replace("manifest.json", "timing.parquet"))


@cache
def versions() -> dict[str, str]:
    """Return the versions of what computes numbers, without importing it: what a process began with it goes on with."""
    import platform
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in ("clusterfl", *PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def content(path: Path, manifest: Mapping[str, Any]) -> str:
    """Return the digest of what a result holds: its files, by their sha256, and what later jobs read in the manifest.

    Parameters
    ----------
    path
        A file or folder of the result.
    manifest
        The result's.
    """
    prefix = path.relative_to(manifest_path(path).parent).as_posix()
    files = {name: entry["sha256"] for name, entry in manifest["files"].items() if within(name, prefix)}
    return of_text(canonical({"files": files} | {key: manifest[key] for key in READ if key in manifest}))


def same_content(path: Path, recorded: str | None) -> bool:
    """Return whether a result's content has the digest that was recorded, or its manifest has, as in former times."""
    place = manifest_path(path)
    return recorded is not None and recorded in (content(path, read_json(place)), of_file(place))


def within(name: str, prefix: str) -> bool:
    """Return whether a manifest's file is the one named, or lies in the folder."""
    return name == prefix or name.startswith(prefix + "/")


def commit() -> str:
    """Return the commit that the package's checkout is at; an empty text where it is no checkout."""
    folder = Path(__file__).resolve().parents[2] / ".git"
    try:
        if folder.is_file():  # of a second work tree
            folder = Path(folder.read_text().removeprefix("gitdir:").strip())
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        common = folder / (folder / "commondir").read_text().strip() if (folder / "commondir").exists() else folder
        reference = common / head.removeprefix("ref: ")
        if reference.exists():
            return reference.read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(head.removeprefix("ref: "))), "")
    except OSError:
        return ""


def write_manifest(path: Path, files: Iterable[Path], facts: Mapping[str, Any]) -> None:
    """Write the manifest of `files` at `path`, with `facts` (identity, digests, what a stage wants to say)."""
    entries = {}
    for file in sorted(files):
        entry: dict[str, Any] = {"sha256": of_file(file), "bytes": file.stat().st_size}
        if file.suffix == ".parquet":
            entry["rows"] = pq.read_metadata(file).num_rows
        entries[file.relative_to(path.parent).as_posix()] = entry
    write_json(path, {"schema": SCHEMA_VERSION, "files": entries, "versions": versions(), **facts})


def rebuild(path: Path) -> str:
    """Return the next step for a damaged or missing result."""
    return f"rebuild it: snakemake --force {shlex.quote(str(path))}"


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has what is looked up in it, and names no file outside its folder."""
    parts = [manifest["files"], *(manifest.get(key, {}) for key in ("own", "inputs", "versions"))]
    if not all(isinstance(part, dict) for part in parts):
        return False
    return all(
        isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and "\0" not in name
        and not Path(name).is_absolute() and ".." not in Path(name).parts
        for name, entry in parts[0].items()
    )  # fmt: skip


def verified(
    path: Path,
    identity: Mapping[str, Any],
    settings: str | None = None,
    command: str | None = None,
    own: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Check a file, or every file of a folder, against its manifest and return the manifest.

    Parameters
    ----------
    path
        A result.
    identity
        What the manifest must say (study, federation, seed, stage, name), so that a file copied from elsewhere is
        noticed.
    settings
        The digest of the settings that the result should come from.
    command
        What makes the result again, for the message.
    own
        The digests that files of the user's own have now, by name; the manifest has those of when they were read.

    Raises
    ------
    UserError
        If the file is missing, damaged, of another study, made with other settings, or from another file of the user's.
    """
    again = f"rebuild it: {command}" if command else rebuild(path)
    if not path.exists():
        raise UserError(f"{path} is missing; {again}")
    place = manifest_path(path)
    manifest = read_json(place, again)
    if not isinstance(manifest, dict):
        raise UserError(f"{place} isn't a manifest: it holds no keys and values; {again}")
    if manifest.get("schema") != SCHEMA_VERSION:
        raise UserError(f"{place} has schema {manifest.get('schema')}, not {SCHEMA_VERSION}; {again}")
    lacking = [key for key in (*identity, "files") if key not in manifest]
    if lacking:
        raise UserError(f"{place} isn't a whole manifest: it lacks '{lacking[0]}'; {again}")
    if not _is_whole(manifest):
        raise UserError(f"{place} isn't a manifest: its files need a digest each and a path in its folder; {again}")
    for field, expected in identity.items():
        if manifest.get(field) != expected:
            raise UserError(
                f"{path} belongs to {field} '{manifest.get(field)}', not '{expected}': "
                f"it was copied from elsewhere; put the right file and its manifest back, or {again}"
            )
    for name, before in manifest.get("own", {}).items():
        if (own or {}).get(name, before) != before:
            raise UserError(f"'{name}' has changed since {path} was made from it; {again}, then what follows from it")
    if settings is not None and manifest.get("settings") != settings:
        raise UserError(f"{path} was made with other settings than the configuration has now; {again}")
    base = place.parent
    prefix = path.relative_to(base).as_posix()
    listed = [name for name in manifest["files"] if within(name, prefix)]
    if not listed:
        raise UserError(f"{place} doesn't list {prefix}; {again}")
    for name in listed:
        file = base / name
        expected = manifest["files"][name]["sha256"]
        if not file.is_file():
            raise UserError(f"{file} is missing; {again}")
        found = of_file(file)
        if found != expected:
            raise UserError(f"{file} is damaged: sha256 {found[:12]} found, {expected[:12]} expected; {again}")
    return manifest
