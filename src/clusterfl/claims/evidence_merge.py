"""Evidence of several machines in one folder: the same bytes as if one machine had made all of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..storage.store import replacing
from . import evidence, hours, weigh
from .evidence_file import FACTS, MADE, Piece, Row, differing, must_agree, read_file, write_file
from .ours import Results

FIXED = tuple(
    name for name in MADE if name not in ("code", "commit", "processor")
)  # equal in all rows of a run in a file


@dataclass
class Merged:
    """The content of a folder after merging, by path inside it."""

    facts: dict[Path, dict[str, str]] = field(default_factory=dict)
    rows: dict[Path, dict[tuple[int, str], Row]] = field(default_factory=dict)  # by seed and method
    origins: dict[tuple[Path, tuple[int, str]], Path] = field(default_factory=dict)  # the file that a row is from
    settings: dict[str, list[Path]] = field(default_factory=dict)  # of each study, those that differ
    spent: dict[Path, dict[hours.Key, hours.Row]] = field(default_factory=dict)


def merge(sources: Sequence[Path], folder: Path) -> str:
    """Add the evidence of some folders to one folder; nothing is written if there is a contradiction.

    Returns
    -------
    What was done, as a sentence.

    Raises
    ------
    UserError
        If a folder has no evidence, a file is damaged, settings of a study differ so that none has the runs of all
        folders, or two rows of a run that should be the same to the bit aren't.
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
    settings = {study: _chosen(found, study) for study in found.settings}
    for path, rows in found.rows.items():
        write_file(folder / path, [rows[key] for key in sorted(rows)], found.facts[path])
    for study, source in settings.items():
        if source.parent != folder / study:
            for file in (source, evidence.digest_file(source)):
                with replacing(folder / study / file.name) as temporary:
                    shutil.copyfile(file, temporary)
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
        first = found.facts.setdefault(path, facts)
        for fact in FACTS:  # a renamed file's runs would become another federation's or study's
            if facts[fact] != first[fact]:
                raise UserError(
                    f"conflict: {file} has runs of {fact} '{facts[fact]}', but a file of the same name in another "
                    f"folder those of '{first[fact]}'; give it back the name that it was written with; nothing was "
                    "written"
                )
        kept = found.rows.setdefault(path, {})
        for row in rows:
            key = row["seed"], row["method"]
            for other in _conflicts(found, path, facts["federation"], row):
                raise UserError(
                    f"conflict between {file} and {other}: {facts['federation']}, seed {key[0]}, {key[1]} is another "
                    "run there, or has other numbers, though its settings, branch, revisions and versions are the "
                    "same; one of them is wrong: run it again, then delete the wrong one; nothing was written"
                )
            before = kept.setdefault(key, row)
            there = {line["score"] for line in before["curves"]}
            before["curves"] += [line for line in row["curves"] if line["score"] not in there]
            found.origins.setdefault((path, key), file)
    for file in sorted(place.glob("*/settings.json")):
        if why := evidence.damaged(file):
            raise UserError(f"{why}; nothing was written")
        others = found.settings.setdefault(file.parent.name, [])
        if all(other.read_bytes() != file.read_bytes() for other in others):
            others.append(file)
    for file in sorted(place.glob(f"*/{hours.NAME}")):
        name = file.relative_to(place)
        found.spent[name] = hours.joined(found.spent.get(name, {}), hours.read(file))


def _chosen(found: Merged, study: str) -> Path:
    """Return the settings of a study with which all runs count that count with any; of several, the last given.

    Since older evidence was written, a study may have gained methods, or renamed what verdicts compare.
    """
    places = found.settings[study]
    if len(places) == 1:
        return places[0]
    fit = [_fitting(found, place) for place in places]
    for place, own in reversed(list(zip(places, fit, strict=True))):
        if all(own >= other for other in fit):
            return place
    raise UserError(
        f"{places[-1]} has other settings of study '{study}' than {places[0]}, and neither has the runs of both; write "
        f"the older evidence again: clusterfl evidence {study}; nothing was written"
    )


def _fitting(found: Merged, settings: Path) -> set[tuple[str, tuple[str, int, str]]]:
    """Return file and run of a study's rows that were made with these settings."""
    study = settings.parent.name
    pieces = [
        Piece(path, study, found.facts[path]["federation"], found.facts[path]["origin"], row)
        for path, rows in found.rows.items()
        for row in rows.values()
        if path.parent.name == study
    ]
    results = Results.from_snapshot(settings, pieces, own=False)
    weighed = [] if results is None else results.weighed_all()
    return {(one.place, one.where) for one in weighed if one.status != weigh.OTHER}


def _conflicts(found: Merged, path: Path, federation: str, row: Row) -> Iterator[Path]:
    """Yield the files that contradict a row of the same run: those that must agree with it, and its own."""
    key = row["seed"], row["method"]
    for other, rows in found.rows.items():
        if key not in rows or other.parent != path.parent or found.facts[other]["federation"] != federation:
            continue
        before = rows[key]
        changed = other == path and any(before[name] != row[name] for name in FIXED)
        if changed or ((other == path or must_agree(before, row)) and differing(before, row)):
            yield found.origins[other, key]
