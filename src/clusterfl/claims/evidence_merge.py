"""Evidence of several machines in one folder: the same bytes as if one machine had made all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..storage.store import replacing
from .campaign import hours
from .evidence_file import MADE, Row, differing, must_agree, read_file, write_file

KEPT = ("settings.json", "settings.sha256")  # of a study, beside its files
FIXED = tuple(name for name in MADE if name not in ("code", "commit", "processor"))  # equal in a file's rows of a run


@dataclass
class Merged:
    """What a folder has after merging, by path inside it."""

    facts: dict[Path, dict[str, str]] = field(default_factory=dict)
    rows: dict[Path, dict[tuple[int, str], Row]] = field(default_factory=dict)  # by seed and method
    origins: dict[tuple[Path, tuple[int, str]], Path] = field(default_factory=dict)  # the file that a row is from
    beside: dict[Path, Path] = field(default_factory=dict)  # files of KEPT
    spent: dict[Path, dict[hours.Key, hours.Row]] = field(default_factory=dict)


def merge(sources: Sequence[Path], folder: Path) -> str:
    """Put the evidence of some folders into one, beside what that has; nothing is written if anything contradicts.

    Returns
    -------
    What was done, as a sentence.

    Raises
    ------
    UserError
        If a folder has no evidence, a file is damaged, settings of a study differ, or two rows of a run that should be
        the same to the bit aren't.
    """
    found = Merged()
    before = 0
    for place in [folder, *sources]:
        if place is not folder and not any(place.glob("*/*.parquet")):
            raise UserError(
                f"--merge: {place} holds no evidence: no file STUDY/*.parquet found; give folders that clusterfl "
                "evidence --to FOLDER or clusterfl campaign --to FOLDER wrote"
            )
        _add(found, place)
        if place is folder:
            before = _count(found)
    for path, rows in found.rows.items():
        write_file(folder / path, [rows[key] for key in sorted(rows)], found.facts[path])
    for path, source in found.beside.items():
        if source != folder / path:
            with replacing(folder / path) as temporary:
                shutil.copyfile(source, temporary)
    for path, spent in found.spent.items():
        hours.put(folder / path, spent)
    return f"{folder}: {_count(found)} runs in {len(found.rows)} files, {_count(found) - before} of them new"


def _count(found: Merged) -> int:
    return sum(map(len, found.rows.values()))


def _add(found: Merged, place: Path) -> None:
    """Add a folder's evidence, or refuse it."""
    for file in sorted(place.glob("*/*.parquet")):
        path = file.relative_to(place)
        facts, rows = read_file(file)
        found.facts.setdefault(path, facts)
        kept = found.rows.setdefault(path, {})
        for row in rows:
            key = row["seed"], row["method"]
            for other in _conflicts(found, path, facts["federation"], row):
                raise UserError(
                    f"conflict between {file} and {other}: {facts['federation']}, seed {key[0]}, {key[1]} is another "
                    "run there, or has other numbers, though its settings, branch, revisions and versions are the "
                    "same; one of them is wrong: run it again, then delete the wrong one; nothing was written"
                )
            kept.setdefault(key, row)
            found.origins.setdefault((path, key), file)
    for name in KEPT:
        for file in sorted(place.glob(f"*/{name}")):
            first = found.beside.setdefault(file.relative_to(place), file)
            if first.read_bytes() != file.read_bytes():
                raise UserError(
                    f"{file} has other settings of study '{file.parent.name}' than {first}; write the older evidence "
                    f"again: clusterfl evidence {file.parent.name}; nothing was written"
                )
    for file in sorted(place.glob(f"*/{hours.NAME}")):
        own = found.spent.setdefault(file.relative_to(place), {})
        found.spent[file.relative_to(place)] = hours.read(file) | own


def _conflicts(found: Merged, path: Path, federation: str, row: Row) -> Iterator[Path]:
    """Yield the files that have the same run and contradict it: of any origin those that must agree, and its own."""
    key = row["seed"], row["method"]
    for other, rows in found.rows.items():
        if key not in rows or other.parent != path.parent or found.facts[other]["federation"] != federation:
            continue
        before = rows[key]
        changed = other == path and any(before[name] != row[name] for name in FIXED)
        if changed or ((other == path or must_agree(before, row)) and differing(before, row)):
            yield found.origins[other, key]
