"""Manifests: what a stage's files contain and what they were made from.

Every stage writes one next to its files: schema version, the files' sha256 and numbers of rows, the digests of
settings, code and inputs, and the versions of packages. A file is checked against its manifest before it is used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ..errors import UserError
from .digest import canonical, of_file, of_text
from .store import read_json, rebuild, write_json

SCHEMA_VERSION = 1
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
READ = ("costs", "diverged", "content", "names")  # facts of a manifest that later jobs read


def manifest_path(path: Path) -> Path:
    """Return the path of a result's manifest, which has the result's name if several stages share the folder."""
    folder = path.parent
    shared = folder.name in ("distance", "clusters") and re.fullmatch(r"seed\d+", folder.parent.name)
    if shared or re.fullmatch(r"seed\d+", folder.name):
        name = path.name.removesuffix(".parquet").removesuffix(".scores").removesuffix(".classes")
        return path.with_name(f"{name}.manifest.json")
    return folder / "manifest.json"


def timing_path(result: Path) -> Path:
    """Return the path of the times of the job that made a result."""
    place = manifest_path(result)
    return place.with_name(place.name.replace("manifest.json", "timing.parquet"))


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute, read once per process and without imports."""
    import platform
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in ("clusterfl", *PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def content(path: Path, manifest: Mapping[str, Any]) -> str:
    """Return the digest of a result's content: its files' sha256, and the facts in the manifest that later jobs read.

    Parameters
    ----------
    path
        A file or folder of the result.
    manifest
        The result's manifest.
    """
    prefix = path.relative_to(manifest_path(path).parent).as_posix()
    files = {name: entry["sha256"] for name, entry in manifest["files"].items() if within(name, prefix)}
    return of_text(canonical({"files": files} | {key: manifest[key] for key in READ if key in manifest}))


def same_content(path: Path, recorded: str | None) -> bool:
    """Return whether a result's content has the recorded digest, or its manifest has, as earlier versions recorded."""
    place = manifest_path(path)
    return recorded is not None and recorded in (content(path, read_json(place)), of_file(place))


def within(name: str, prefix: str) -> bool:
    """Return whether a file's `name` is `prefix`, or is in the folder `prefix`."""
    return name == prefix or name.startswith(prefix + "/")


def commit() -> str:
    """Return the commit of the package's checkout; an empty text if it isn't a checkout."""
    folder = Path(__file__).resolve().parents[3] / ".git"
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
    """Write the manifest of `files` at `path`, with `facts` (identity, digests, facts of the stage)."""
    entries = {}
    for file in sorted(files):
        entry: dict[str, Any] = {"sha256": of_file(file), "bytes": file.stat().st_size}
        if file.suffix == ".parquet":
            entry["rows"] = pq.read_metadata(file).num_rows
        entries[file.relative_to(path.parent).as_posix()] = entry
    write_json(path, {"schema": SCHEMA_VERSION, "files": entries, "versions": versions(), **facts})


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has the needed entries and names no file outside its folder."""
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
        Entries that the manifest must have (study, federation, seed, stage, name), so that a file copied from elsewhere
        is detected.
    settings
        The digest of the settings that the result should have been made with; None: not compared.
    command
        What makes the result again, for the message.
    own
        The current digests of the user's data files, by name; the manifest has those from when they were read.

    Raises
    ------
    UserError
        If a file is missing or damaged, the identity or settings differ, or one of the user's data files has changed.
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
        raise UserError(f"{place} isn't a complete manifest: it has no '{lacking[0]}'; {again}")
    if not _is_whole(manifest):
        raise UserError(f"{place} isn't a manifest: each file needs a digest and a path in its folder; {again}")
    for field, expected in identity.items():
        if manifest.get(field) != expected:
            raise UserError(
                f"{path} belongs to {field} '{manifest.get(field)}', not '{expected}': "
                f"it was copied from elsewhere; put the right file and its manifest back, or {again}"
            )
    for name, before in manifest.get("own", {}).items():
        if (own or {}).get(name, before) != before:
            raise UserError(f"'{name}' has changed since {path} was made from it; {again}, then all later results")
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
