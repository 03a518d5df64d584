"""Files from web addresses: an interrupted download is resumed, and none may be longer than allowed.

Passwords are sent to their own server only, HTTPS is never left for HTTP, and messages contain no secrets. That is why
no library is used: pooch restarts an interrupted file and has no size limit; it and requests follow redirections from
HTTPS to HTTP and print an address with its password and token.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import UserError
from ..progress import Report
from ..storage.store import cannot_write
from .addresses import is_private, shown
from .packed import BLOCK, LARGEST, longer

LATER = (408, 425, 429)  # status codes below 500 after which a later try may succeed
Progress = Callable[[str, int], AbstractContextManager[Report]]


@dataclass(frozen=True)
class Patience:
    """How long to keep trying a server."""

    timeout: float = 60.0  # seconds without a byte
    tries: int = 4
    pause: float = 1.0  # seconds before the second try; doubled before each further one


PATIENCE = Patience()


class Absent(UserError):
    """A server has no such file, or refuses it."""


class _Failed(Exception):
    """A failed try, except for errors of the disk; `code` is the server's status, if it answered."""

    def __init__(self, problem: object, code: int | None = None):
        super().__init__(str(problem))
        self.code = code


class _Redirects(urllib.request.HTTPRedirectHandler):
    """From a private address, follows redirections to private ones only (HTTPS, or this machine)."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if is_private(req.full_url) and not is_private(newurl):
            raise UserError(
                f"{shown(req.full_url)} leads on to {shown(newurl)}, which isn't https://: whoever is on the way "
                "could change the file; fetch it from another place"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _network() -> Iterator[None]:
    """Raise network errors as `_Failed`: in Python, errors of network and disk have the same type."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(error, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(error) from error


@dataclass
class Web:
    """Requests to servers, with retries; `advice` says what to do if they fail."""

    title: str  # of the progress bars
    patience: Patience
    progress: Progress
    advice: str
    editions: dict[Path, str] = field(default_factory=dict)  # the server's tag or date of the version of a part

    def has(self, address: str) -> bool:
        """Return whether a server has a file.

        Raises
        ------
        UserError
            If the server can't be reached, or keeps failing.
        """
        try:
            self._patiently(address, lambda: self._open(address, {"Range": "bytes=0-0"}).close())
        except Absent:
            return False
        return True

    def download(self, address: str, part: Path, size: int | None, known: bool) -> None:
        """Download an address into `part`, continuing where an earlier try ended if the server supports that.

        Parameters
        ----------
        address, part
            Source and target.
        size
            Most bytes that the file may have; None for 64 GiB.
        known
            Whether the file has a checksum, which would reveal that `part` was begun from another version. Without
            one, only a download begun by this object is continued, if the server says that the version is the same.

        Raises
        ------
        UserError
            If the server doesn't have the file, keeps failing, or sends more bytes; if `part` can't be written.
        """
        try:
            self._patiently(address, lambda: self._receive(address, part, size, known))
        except OSError as error:
            raise cannot_write(part, error) from error

    def _patiently(self, address: str, act: Callable[[], None]) -> None:
        """Call `act`, and repeat it if the connection or the server fails."""
        for attempt in range(1, self.patience.tries + 1):
            try:
                return act()
            except _Failed as error:
                problem = error
            if problem.code and problem.code < 500 and problem.code not in LATER:
                raise Absent(f"{shown(address)} can't be fetched ({problem}); {self.advice}")
            if attempt < self.patience.tries:
                pause = self.patience.pause * 2 ** (attempt - 1)
                warn(f"{shown(address)}: {problem}; try {attempt + 1} of {self.patience.tries} in {pause:g} s")
                time.sleep(pause)
        raise UserError(f"{shown(address)} can't be fetched ({problem}, {self.patience.tries} tries); {self.advice}")

    def _open(self, address: str, headers: dict[str, str]) -> Any:
        parts = urlsplit(address)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        request = urllib.request.Request(bare, headers={"User-Agent": f"clusterfl/{version('clusterfl')}"} | headers)
        if parts.username is not None:
            word = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            # Not sent along when the server redirects.
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(word.encode()).decode()}")
        with _network():
            return urllib.request.build_opener(_Redirects).open(request, timeout=self.patience.timeout)

    def _receive(self, address: str, part: Path, size: int | None, known: bool) -> None:
        edition = self.editions.get(part)
        start = part.stat().st_size if part.exists() and (known or edition) else 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        try:
            reply = self._open(address, headers | ({"If-Range": edition} if start and edition else {}))
        except _Failed as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
                raise
            part.unlink()  # it is at least as long as the file: start again, as it may be wrong
            return self._receive(address, part, size, known)
        with reply:
            tag = reply.headers.get("ETag", "")  # a weak one doesn't guarantee identical bytes
            self.editions[part] = tag if tag.startswith('"') else reply.headers.get("Last-Modified", "")
            done = start if reply.status == http.HTTPStatus.PARTIAL_CONTENT else 0
            length = reply.headers.get("Content-Length", "")
            total = done + int(length) if length.isdecimal() else 0
            most = size or LARGEST
            refused = UserError(f"{longer(shown(address), most)}; name another mirror")
            if total > most:
                raise refused
            part.parent.mkdir(parents=True, exist_ok=True)
            title, megabytes = f"{self.title}: {part.stem} (MB)", max(1, (total or size or 0) // 10**6)
            with self.progress(title, megabytes) as report, open(part, "ab" if done else "wb") as sink:
                while block := _block(reply):
                    done += len(block)
                    if done > most:
                        part.unlink()
                        raise refused
                    sink.write(block)
                    report(done // 10**6, "")
        if done < total:
            raise _Failed(f"the connection was cut after {done} of {total} bytes")


def _block(reply: Any) -> bytes:
    with _network():
        block: bytes = reply.read1(BLOCK)
    return block


def warn(text: str) -> None:
    """Print a line about what went wrong, and how it is handled."""
    print(f"clusterfl: {text}", file=sys.stderr, flush=True)
