"""Putting a dataset's files into a folder: from there, from a mirror, from the publisher; each verified, and once.

The order is: what is in the folder and right is used; else the first alternative that the mirror has whole; else the
first for which the table has addresses. A mirror is a folder or a web address with the files in the places that the
table names, packed with gzip or xz or as they are.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import lzma
import os
import sys
import time
import urllib.error
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import UserError, choices
from ..progress import Report, bar
from ..storage.locks import locked
from ..storage.store import cannot_write, read_json, replacing, write_json
from . import MIRROR
from .addresses import beside, check, is_address, is_private, shown
from .asking import ask
from .catalogue import File, Row, rows
from .packed import BLOCK, copied, longer

PINS = "pinned.json"  # sha256 of files whose checksum nobody publishes, as first seen
LARGEST = 1 << 36  # bytes of a file of which the table knows no size: more is no dataset, but a filled disk
UNPACK: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
LATER = (408, 425, 429)  # answers below 500 that may be others a little later
Progress = Callable[[str, int], AbstractContextManager[Report]]


@dataclass(frozen=True)
class Patience:
    """How long to bear with a server."""

    timeout: float = 60.0  # seconds without a byte
    tries: int = 4
    pause: float = 1.0  # seconds before the second try; doubled before each further one


class Absent(UserError):
    """A server has no such file, or refuses it."""


class Mismatch(UserError):
    """A file isn't the one that it should be."""


def fetch(
    name: str,
    folder: Path,
    mirror: str | None = None,
    progress: Progress = bar,
    patience: Patience = Patience(),
) -> None:
    """Put the verified files of a dataset of the table into `folder`, where they keep the paths of its row.

    Parameters
    ----------
    name, folder
        The dataset, and where its files go; two processes never fetch into the same folder at once.
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
    name: str, row: Row, folder: Path, mirror: str | None, progress: Progress = bar, patience: Patience = Patience()
) -> None:
    """Do as `fetch` does for any row."""
    if mirror and is_address(mirror):
        check(mirror)
    elif mirror and not Path(mirror).is_dir():
        raise UserError(f"the mirror '{shown(mirror)}' isn't a folder; name a folder or an http(s):// address")
    with locked(folder, "fetching the same files"):
        _Fetch(name, row, folder, mirror, progress, patience).run()


@dataclass
class _Fetch:
    """One call of `fetch`."""

    name: str
    row: Row
    folder: Path
    mirror: str | None
    progress: Progress
    patience: Patience
    pins: dict[str, str] = field(default_factory=dict)
    seen: dict[File, bool] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)  # files that are there, and what is wrong with them

    def run(self) -> None:
        """Make one alternative complete, then pin what has no published checksum."""
        place = self.folder / PINS
        if place.exists():
            again = f"delete it, then run clusterfl download {self.name} again"
            self.pins = read_json(place, again)
            if not isinstance(self.pins, dict) or not all(isinstance(d, str) for d in self.pins.values()):
                raise UserError(f"{place} isn't a list of files and their digests; {again}")
        there = next((files for files in self.row.sources if all(map(self._right, files))), None)
        files = there or self._from_mirror() or self._from_publisher()
        new = {
            path.relative_to(self.folder).as_posix(): _digest(path, "sha256")
            for file in files
            if not file.checksum
            for path in self._paths(file)
        }
        if new.items() - self.pins.items():
            self.pins |= new
            write_json(place, self.pins)

    # What is there.

    def _paths(self, file: File) -> list[Path]:
        """Return the files in the folder for which a row's file stands."""
        if "*" in file.path:
            return sorted(self.folder.glob(file.path))
        path = self.folder / file.path
        return [path] if path.is_file() else []

    def _right(self, file: File) -> bool:
        if file not in self.seen:
            paths = self._paths(file)
            names = {path.relative_to(self.folder).as_posix(): path for path in paths}
            lost = [name for name in self.pins if Path(name).match(file.path) and name not in names]
            wrong = {name: words for name, path in names.items() if (words := self._problem(path, file, name))}
            self.wrong |= wrong
            self.seen[file] = bool(paths) and not lost and not wrong
        return self.seen[file]

    def _problem(self, path: Path, file: File, name: str) -> str | None:
        """Say how a file differs from its checksum, or from what was first fetched under that name."""
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
        """Fetch the first alternative that the mirror has whole; None if it has none."""
        if not self.mirror:
            return None
        for files in self.row.sources:
            places: list[tuple[str, File]] = []
            for file in files:
                if not self._right(file):
                    place = next(filter(self._has, file.mirror), None)
                    if place is None:
                        break
                    places.append((place, file))
            else:
                for place, file in places:
                    for source, path in self._pairs(place, file):
                        self._install(source, path, file)
                return files
        return None

    def _has(self, place: str) -> bool:
        assert self.mirror is not None
        if not is_address(self.mirror):
            return any(path.is_file() for path in Path(self.mirror).glob(place))
        if "*" in place:
            return False  # a web server can't be asked for all that match
        try:
            self._patiently(self._address(place), lambda url: self._open(url).close())
        except Absent:
            return False
        return True

    def _pairs(self, place: str, file: File) -> Iterable[tuple[str, str]]:
        """Yield, for a place in the mirror, each source and its path in the dataset's folder."""
        assert self.mirror is not None
        if is_address(self.mirror):
            yield self._address(place), file.path
        elif "*" in file.path:
            for source in sorted(Path(self.mirror).glob(place)):
                yield str(source), (Path(file.path).parent / source.name).as_posix()
        else:
            yield str(Path(self.mirror) / place), file.path

    def _address(self, place: str) -> str:
        return beside(str(self.mirror), place)

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
            f"{self.name}: not all files are in {where}{wrong}, and no address gives them; {self._by_hand()}"
        )

    def _by_hand(self) -> str:
        """Return the next step where nothing can be fetched."""
        files = self.row.sources[0]
        sizes = [file.bytes for file in files]
        size = f" ({sum(filter(None, sizes)) / 1e6:.1f} MB)" if all(sizes) else ""
        urls = [file.url for file in files if file.url]
        how = f"download {', '.join(urls)}{size} elsewhere" if len(urls) == len(files) else self.row.get
        names = ", ".join(file.path for file in files)
        return (
            f"{how}; put the result into {self.folder} as {names}, or name a mirror that has it with --mirror "
            f"PATH-or-URL or {MIRROR}"
        )

    # Getting one file.

    def _install(self, source: str, path: str, file: File) -> None:
        """Copy or download a file, unpack it if need be, check it and give it its name, all or nothing."""
        target = self.folder / path
        if path in self.wrong:
            _say(f"{target} isn't the expected file: {self.wrong[path]}; it is replaced")
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
        resumed = part.exists()
        while True:
            self._patiently(source, lambda url: self._receive(url, part, file))
            try:
                if packing and source == file.url and file.packed_md5:
                    self._check(part, File(path=path, md5=file.packed_md5), path, source)
                self._unpack(part, packing, target, file, source)
            except Mismatch:
                part.unlink()
                if not resumed:
                    raise
                resumed = False  # what was there may have been of another file: once more from the start
            else:
                part.unlink()
                return

    def _unpack(self, local: Path, packing: str, target: Path, file: File, source: str) -> None:
        """Copy a file to its place, unpacked, if that gives the expected one."""
        try:
            stream = UNPACK[packing](local, "rb")
        except OSError as error:
            raise UserError(f"{local} can't be read ({error}); make it readable, then run the command again") from error
        with stream, replacing(target) as temporary:
            try:
                with open(temporary, "wb") as sink:
                    most = file.most or LARGEST
                    copied(stream, sink, most, _longer(source, most))
            except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
                raise Mismatch(f"{shown(source)} can't be unpacked ({error}); put a whole file in its place") from error
            self._check(temporary, file, target.relative_to(self.folder).as_posix(), source)

    def _patiently(self, url: str, act: Callable[[str], None]) -> None:
        """Do something with an address, again if the connection or the server fails."""
        for attempt in range(1, self.patience.tries + 1):
            try:
                return act(url)
            except urllib.error.HTTPError as error:
                error.close()
                problem: Exception = error
                if error.code < 500 and error.code not in LATER:
                    raise Absent(f"{shown(url)} can't be fetched ({error}); {self._by_hand()}") from error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            if attempt < self.patience.tries:
                pause = self.patience.pause * 2 ** (attempt - 1)
                _say(f"{shown(url)}: {problem}; try {attempt + 1} of {self.patience.tries} in {pause:g} s")
                time.sleep(pause)
        raise UserError(f"{shown(url)} can't be fetched ({problem}, {self.patience.tries} tries); {self._by_hand()}")

    def _open(self, url: str, start: int = 0, end: str = "0") -> Any:
        """Ask for a file's bytes from `start` to `end`; by default the first one, to see whether it is there."""
        headers = {"User-Agent": f"clusterfl/{version('clusterfl')}", "Range": f"bytes={start}-{end}"}
        return ask(url, headers, self.patience.timeout)

    def _receive(self, url: str, part: Path, file: File) -> None:
        """Download to `part`, from where an earlier try ended if the server can do so."""
        start = part.stat().st_size if part.exists() else 0
        try:
            reply = self._open(url, start, "")
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()  # what is there is as long as the file, or longer: anew, as its end can't be known
            part.unlink(missing_ok=True)
            start, reply = 0, self._open(url, 0, "")
        with reply:
            if reply.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0
            length = reply.headers.get("Content-Length")
            total = start + int(length) if length and length.isdecimal() else None
            most = file.bytes if url == file.url and file.bytes else LARGEST
            if (total or 0) > most:
                raise _longer(url, most)
            title, size = (
                f"{self.name}: {part.name.removesuffix('.part')} (MB)",
                max(1, (total or file.bytes or 0) // 10**6),
            )
            with self.progress(title, size) as report, _sink(part, "ab" if start else "wb") as write:
                done = start
                while block := reply.read1(BLOCK):
                    done += len(block)
                    if done > most:
                        part.unlink()
                        raise _longer(url, most)
                    write(block)
                    report(done // 10**6, "")
            if total and done < total:
                raise ConnectionError(f"the connection was cut after {done} of {total} bytes")


@contextlib.contextmanager
def _sink(path: Path, mode: str) -> Iterator[Callable[[bytes], None]]:
    """Open a file and yield a function that appends to it: errors of the disk aren't taken for those of the network."""

    def write(block: bytes) -> None:
        try:
            stream.write(block)
            stream.flush()
        except OSError as error:
            raise cannot_write(path, error) from error

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, mode)  # noqa: SIM115 (closed below; opening has its own error)
    except OSError as error:
        raise cannot_write(path, error) from error
    with stream:
        yield write


def _longer(source: str, most: int) -> Mismatch:
    return Mismatch(f"{longer(shown(source), most)}; name another mirror")


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def _say(text: str) -> None:
    print(f"clusterfl: {text}", file=sys.stderr, flush=True)


def in_mirror(row: Row, mirror: str | None) -> bool:
    """Return whether a mirror that is a folder has all files of an alternative. A web address isn't asked."""
    if not mirror or is_address(mirror):
        return False
    return any(
        all(any(True for place in file.mirror for _ in Path(mirror).glob(place)) for file in files)
        for files in row.sources
    )
