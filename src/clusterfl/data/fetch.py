"""Putting a dataset's verified files into a folder: those already there, from a mirror, or from the publisher.

The order is: correct files in the folder are used; else the first alternative that the mirror has completely; else the
first for which the table has addresses. A mirror is a folder or a web address with the files in the places that the
table names, packed with gzip or xz, or unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, choices
from ..progress import bar
from ..storage.locks import locked
from ..storage.store import read_json, replacing, write_json
from . import MIRROR
from .addresses import beside, check, is_address, is_private, shown
from .catalogue import DatasetRow, File, rows
from .packed import LARGEST, copied, longer
from .web import PATIENCE, Patience, Progress, Web, warn

PINS = "pinned.json"  # sha256 of files without a published checksum, as of the first download
UNPACK: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}


class Mismatch(UserError):
    """A file isn't the one that it should be."""


def fetch(
    name: str, folder: Path, mirror: str | None = None, progress: Progress = bar, patience: Patience = PATIENCE
) -> None:
    """Put the verified files of a dataset of the table into `folder`, under the paths that its row gives.

    Parameters
    ----------
    name, folder
        The dataset, and the folder for its files, into which only one process fetches at a time.
    mirror
        A folder or an http(s) address; by default what the environment variable CLUSTERFL_MIRROR names, if anything.
    progress
        ``progress(title, total)`` opens a progress bar (in megabytes) for each file from the network.
    patience
        Timeout and number of tries.

    Raises
    ------
    UserError
        If a file isn't the expected one, can't be had, or can't be written.
    """
    if name not in rows():
        raise UserError(f"the table has no dataset '{name}' to fetch; {choices(rows(), name)}")
    fetch_row(name, rows()[name], folder, mirror or os.environ.get(MIRROR) or None, progress, patience)


def fetch_row(
    name: str,
    row: DatasetRow,
    folder: Path,
    mirror: str | None,
    progress: Progress = bar,
    patience: Patience = PATIENCE,
) -> None:
    """Do what `fetch` does, for any row."""
    if mirror and is_address(mirror):
        check(mirror)
    elif mirror and not Path(mirror).is_dir():
        raise UserError(f"the mirror '{shown(mirror)}' isn't a folder; name a folder or an http(s):// address")
    with locked(folder, "fetching the same files"):
        _Fetch(name, row, folder, mirror, Web(name, patience, progress, _by_hand(row, folder))).run()


def in_mirror(row: DatasetRow, mirror: str | None) -> bool:
    """Return whether a mirror that is a folder has all files of an alternative; False for a web address."""
    if not mirror or is_address(mirror):
        return False
    return any(
        all(any(True for place in file.mirror for _ in Path(mirror).glob(place)) for file in files)
        for files in row.sources
    )


def _by_hand(row: DatasetRow, folder: Path) -> str:
    """Return advice for the case that nothing can be fetched."""
    files = row.sources[0]
    sizes = [file.bytes for file in files]
    size = f" ({sum(filter(None, sizes)) / 1e6:.1f} MB)" if all(sizes) else ""
    urls = [file.url for file in files if file.url]
    how = f"download {', '.join(urls)}{size} elsewhere" if len(urls) == len(files) else row.get
    names = ", ".join(file.path for file in files)
    return (
        f"{how}; put the result into {folder} as {names}, or name a mirror that has it with --mirror PATH-or-URL or "
        f"{MIRROR}"
    )


@dataclass
class _Fetch:
    """One call of `fetch`."""

    name: str
    row: DatasetRow
    folder: Path
    mirror: str | None
    web: Web
    pins: dict[str, str] = field(default_factory=dict)
    seen: dict[File, bool] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)  # files that are there, and what is wrong with them

    def run(self) -> None:
        """Complete one alternative, then pin the files without a published checksum."""
        place = self.folder / PINS
        if place.exists():
            again = f"delete it, then run clusterfl download {self.name} again"
            self.pins = read_json(place, again)
            if not isinstance(self.pins, dict) or not all(isinstance(d, str) for d in self.pins.values()):
                raise UserError(f"{place} isn't a list of files and their digests; {again}")
        there = next((files for files in self.row.sources if all(map(self._right, files))), None)
        files = there or self._from_mirror() or self._from_publisher()
        unknown = [self._files(file) for file in files if not file.checksum]
        new = {name: _digest(path, "sha256") for found in unknown for name, path in found.items()}
        if new.items() - self.pins.items():
            self.pins |= new
            write_json(place, self.pins)

    # Files that are there.

    def _files(self, file: File) -> dict[str, Path]:
        """Return the files in the folder that match a row's file, by their paths in it."""
        found = (path for path in sorted(self.folder.glob(file.path)) if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path for path in found}

    def _right(self, file: File) -> bool:
        if file not in self.seen:
            found = self._files(file)
            lost = [name for name in self.pins if Path(name).match(file.path) and name not in found]
            wrong = {name: words for name, path in found.items() if (words := self._problem(path, file, name))}
            self.wrong |= wrong
            self.seen[file] = bool(found) and not lost and not wrong
        return self.seen[file]

    def _problem(self, path: Path, file: File, name: str) -> str | None:
        """Return how a file differs from its checksum, or from the first download under that name; None: it doesn't."""
        if file.checksum:
            kind, expected = file.checksum
            found = _digest(path, kind)
            return None if found == expected else f"{kind} {found} found, {expected} expected"
        if name in self.pins and (found := _digest(path, "sha256")) != self.pins[name]:
            return (
                f"sha256 {found} found, {self.pins[name]} when it was first fetched (delete {self.folder / PINS} to "
                "accept the new one)"
            )
        return None

    def _check(self, path: Path, file: File, name: str, source: str) -> None:
        if words := self._problem(path, file, name):
            raise Mismatch(
                f"{shown(source)} isn't the right file for {name}: {words}; have it replaced there or name another "
                f"mirror, then run clusterfl download {self.name} again"
            )

    # Where it may come from.

    def _from_mirror(self) -> tuple[File, ...] | None:
        """Fetch the first alternative that the mirror has completely; None if there is none."""
        for files in self.row.sources if self.mirror else ():
            found: dict[File, list[str]] = {}
            if all(self._right(file) or found.setdefault(file, self._in_mirror(file)) for file in files):
                for file, sources in found.items():
                    for source in sources:
                        name = Path(source).name if "*" in file.path else Path(file.path).name
                        self._install(source, (Path(file.path).parent / name).as_posix(), file)
                return files
        return None

    def _in_mirror(self, file: File) -> list[str]:
        """Return the mirror's files for a row's file, from the first place that has any; on a server `*` finds none."""
        mirror = str(self.mirror)
        for place in file.mirror:
            if not is_address(mirror):
                found = [str(path) for path in sorted(Path(mirror).glob(place)) if path.is_file()]
            else:
                address = beside(mirror, place)
                found = [address] if "*" not in place and self.web.has(address) else []
            if found:
                return found
        return []

    def _from_publisher(self) -> tuple[File, ...]:
        for files in self.row.sources:
            if all(file.url or self._right(file) for file in files):
                for file in files:
                    if not self._right(file):
                        self._install(str(file.url), file.path, file)
                return files
        where = f"{self.folder} or the mirror {shown(self.mirror)}" if self.mirror else str(self.folder)
        wrong = "".join(f" ({name} is there, but {words})" for name, words in self.wrong.items())
        raise UserError(
            f"{self.name}: not all files are in {where}{wrong}, and no address gives them; {self.web.advice}"
        )

    # Getting one file.

    def _install(self, source: str, path: str, file: File) -> None:
        """Copy or download a file, unpack it if needed, check it and move it into place, all or nothing."""
        target = self.folder / path
        if path in self.wrong:
            warn(f"{target} isn't the expected file: {self.wrong[path]}; it is replaced")
        suffix = Path(source.partition("?")[0] if is_address(source) else source).suffix
        packing = suffix if suffix in UNPACK and not path.endswith(suffix) else ""
        if not is_address(source):
            self._unpack(Path(source), packing, target, file, source)
            return
        if not file.checksum and not is_private(source):
            raise UserError(
                f"{shown(source)}: nobody has published a checksum of {path}, and http:// lets whoever is on the way "
                "change it; name a mirror that is a folder or has https://"
            )
        part = target.with_name(f"{target.name}{packing}.part")
        known = bool(file.checksum) or path in self.pins
        resumed = known and part.exists()
        self.web.download(source, part, file.bytes if source == file.url else None, known)
        try:
            if packing and source == file.url and file.packed_md5:
                self._check(part, File(path=path, md5=file.packed_md5), path, source)
            self._unpack(part, packing, target, file, source)
        except Mismatch:
            part.unlink()
            if not resumed:
                raise
            self._install(source, path, file)  # the resumed part may have been of another file: start again
        else:
            part.unlink()

    def _unpack(self, local: Path, packing: str, target: Path, file: File, source: str) -> None:
        """Copy a file to its place, unpacked, if the result is the expected file."""
        try:
            stream = UNPACK[packing](local, "rb")
        except OSError as error:
            raise UserError(f"{local} can't be read ({error}); make it readable, then run the command again") from error
        with stream, replacing(target) as temporary:
            try:
                with open(temporary, "wb") as sink:
                    most = file.most or LARGEST
                    copied(stream, sink, most, Mismatch(f"{longer(shown(source), most)}; name another mirror"))
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                raise Mismatch(f"{shown(source)} can't be unpacked ({error}); put a whole file in its place") from error
            self._check(temporary, file, target.relative_to(self.folder).as_posix(), source)


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()
