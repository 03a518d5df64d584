"""Files that a user names to be written: none that is somebody else's is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import UserError
from .store import DATA, RESULTS

MOST = 2**16  # characters of a file that are looked at
ELSEWHERE = "name a file elsewhere"


def check_output(
    flag: str, path: Path, command: str, own: Callable[[str], bool], sources: Iterable[Path | str] = ()
) -> None:
    """Refuse a file that must not be written: called before anything is computed.

    Parameters
    ----------
    flag
        The option that names the file.
    path
        The file, which needn't be there.
    command
        The command that writes it, and may have written it before.
    own
        Whether the beginning of a file's text shows that the command wrote it.
    sources
        Files and folders that the command reads: one is never replaced, and nothing is put into a folder.

    Raises
    ------
    UserError
        If the file is one of the sources, lies inside one, under results/ or under data/, or is there and wasn't
        written by the command.
    """
    check_outside(flag, path, sources, ELSEWHERE)
    if path.is_dir():
        raise UserError(f"{flag}: {path} is a folder; name a file, e.g. {path / 'new.csv'}")
    if path.exists() and not (path.is_file() and _may_go(path, own)):
        raise UserError(
            f"{flag}: {path} is there already, and clusterfl {command} didn't write it; allowed: a new file, or one "
            "that it wrote before; choose another name, or move the file away"
        )


def check_outside(flag: str, path: Path, sources: Iterable[Path | str] = (), mend: str = ELSEWHERE) -> None:
    """Refuse a file or folder that is one of the sources or lies inside one, under results/ or under data/.

    Raises
    ------
    UserError
        If it does.
    """
    # Of a link both count: the link itself, which would be replaced, and what it leads to.
    places = {path.resolve(), path.parent.resolve() / path.name}
    reads, keeps = "this command reads it", "clusterfl keeps its own files there"
    for source, why in [*((Path(source), reads) for source in sources), (RESULTS, keeps), (DATA, keeps)]:
        if any(place.is_relative_to(source.resolve()) for place in places):
            where = "" if path.resolve() == source.resolve() else f"lies in {source}: "
            raise UserError(f"{flag}: {path} {where or 'must stay: '}{why}, and nothing of it is replaced or added to; "
                            f"{mend}")  # fmt: skip


def _may_go(path: Path, own: Callable[[str], bool]) -> bool:
    """Return whether a file is empty, or the command's own by what it begins with."""
    text = beginning(path)
    return not text or own(text)


def beginning(path: Path) -> str:
    """Return the first characters of a file, `MOST` at most."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MOST)
