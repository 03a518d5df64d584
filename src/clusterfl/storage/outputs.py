"""Checks of output files that a user names, so that no other file is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import UserError
from .store import DATA, RESULTS

MOST = 2**16  # characters of a file that are read
ELSEWHERE = "name a file elsewhere"


def check_output(
    flag: str, path: Path, command: str, own: Callable[[str], bool], sources: Iterable[Path | str] = ()
) -> None:
    """Refuse an output file that must not be written; called before anything is computed.

    Parameters
    ----------
    flag
        The option that names the file.
    path
        The file, which needn't exist.
    command
        The command that writes it, and may have written it before.
    own
        Returns whether the beginning of a file's text shows that the command wrote it.
    sources
        Files and folders that the command reads: no file is replaced, and nothing is written into a folder.

    Raises
    ------
    UserError
        If the file is a source, is inside one, under results/ or under data/, or exists and wasn't written by the
        command.
    """
    check_outside(flag, path, sources, ELSEWHERE)
    if path.is_dir():
        raise UserError(f"{flag}: {path} is a folder; name a file, e.g. {path / 'new.csv'}")
    if path.exists() and not (path.is_file() and _may_go(path, own)):
        raise UserError(
            f"{flag}: {path} already exists, and clusterfl {command} didn't write it; allowed: a new file, or one "
            "that it wrote before; choose another name, or move the file away"
        )


def check_outside(flag: str, path: Path, sources: Iterable[Path | str] = (), instead: str = ELSEWHERE) -> None:
    """Refuse a file or folder that is a source or is inside one, under results/ or under data/.

    Raises
    ------
    UserError
        In these cases; `instead` ends the message with what to do.
    """
    # For a link, both the link itself, which would be replaced, and its target are checked.
    places = {path.resolve(), path.parent.resolve() / path.name}
    reads, keeps = "this command reads it", "clusterfl keeps its own files there"
    for source, why in [*((Path(source), reads) for source in sources), (RESULTS, keeps), (DATA, keeps)]:
        if any(place.is_relative_to(source.resolve()) for place in places):
            where = "" if path.resolve() == source.resolve() else f"lies in {source}: "
            raise UserError(f"{flag}: {path} {where or 'must stay: '}{why}, and nothing there is changed or added; "
                            f"{instead}")  # fmt: skip


def _may_go(path: Path, own: Callable[[str], bool]) -> bool:
    """Return whether a file may be replaced: it is empty, or its beginning shows that the command wrote it."""
    text = beginning(path)
    return not text or own(text)


def beginning(path: Path) -> str:
    """Return the first characters of a file, `MOST` at most."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST)
