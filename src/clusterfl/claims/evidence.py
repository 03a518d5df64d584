"""Evidence: the numbers that verdicts need from each run, in small files that outlive the results and the machine.

``FOLDER/STUDY`` holds the settings of a study and a Parquet file for each federation and origin (`evidence_file`). Its
numbers are exactly those that are read from the results.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config.study import Study
from ..errors import UserError, choices
from ..pipeline import jobs
from ..progress import bar
from ..report.source import Source
from ..storage import digest
from ..storage.locks import locked
from ..storage.manifest import manifest_path
from ..storage.outputs import check_outside
from ..storage.store import read_json, replacing, write_json
from .evidence_file import (
    AGAIN,
    BACK,
    BY_ROUND,
    LABELS,
    MADE,
    MEASURED,
    READINGS,
    SPENT,
    Piece,
    Row,
    differing,
    must_agree,
    read_file,
    write_file,
)
from .runs import Made, Reading, Run, score_name
from .study_runs import StudyRuns

FOLDER = Path("docs/reproduction/evidence")
Place = tuple[str, int, str]  # federation, seed, method


class Kept(Run):
    """A run whose files may be gone: its numbers are those of a row of evidence."""

    kept = True

    def __init__(self, source: Source, study: Study, piece: Piece):
        super().__init__(source, study, *piece.where)
        self.piece, self.row = piece, piece.row

    @cached_property
    def made(self) -> Made:
        """How it was made, as the manifests said."""
        own = {one.name: self.row[one.name] for one in fields(Made) if one.name in self.row}
        own |= {name: json.loads(self.row[name]) for name in ("revisions", "versions")}
        return Made(**own | {"origin": self.piece.origin})

    @cached_property
    def rounds(self) -> int:
        """Rounds run."""
        return int(self.row["rounds"])

    @cached_property
    def spent(self) -> Mapping[str, float]:
        """The total cost of its rounds, and their privacy loss."""
        return {name: self.row[name] for name in SPENT}

    def curve(self, score: Mapping[str, Any]) -> pd.DataFrame:
        """Return accuracy and loss by round; no rows where the evidence has no such score."""
        found: Row = next((line for line in self.row["curves"] if line["score"] == score_name(score)), {})
        index = pd.Index(np.array(found.get("round", []), np.int64), name="round")
        return pd.DataFrame({name: np.array(found.get(name, []), float) for name in ("accuracy", "loss")}, index)

    @cached_property
    def chosen(self) -> tuple[int, str] | None:
        """Number and values (JSON) of the chosen trial; None for a method that sweeps nothing."""
        found = json.loads(self.row["chosen"])
        return None if found is None else (int(found[0]), str(found[1]))

    @cached_property
    def measured(self) -> tuple[dict[str, float], pd.DataFrame]:
        """Its measures and its adjusted Rand index by round."""
        lines = self.row["by_round"]
        columns = {"round": np.array(lines["round"], np.int64)} | {n: np.array(lines[n], float) for n in BY_ROUND}
        return {name: self.row[name] for name in MEASURED}, pd.DataFrame(columns)

    @cached_property
    def stability(self) -> Reading:
        """The first round in which each participant kept its model over its last rounds."""
        return self._reading("stability")

    @cached_property
    def models(self) -> Reading:
        """How many models were trained in any round."""
        return self._reading("models")

    def _reading(self, name: str) -> Reading:
        found: Reading = self.row[f"{name}_without"] or self.row[name]
        return found


def record(run: Run, study: StudyRuns) -> Row:
    """Return the row that is kept of a run."""
    if isinstance(run, Kept):
        return run.row
    _, seed, method = run.where
    made, (measured, by_round) = run.made, run.measured
    row: Row = {"seed": seed, "method": method} | {name: getattr(made, name) for name in MADE}
    row |= {name: digest.canonical(row[name]) for name in ("revisions", "versions")}
    row |= {"partition": made.partition, "clients": made.clients, "samples": made.samples}
    row |= {"chosen": json.dumps(run.chosen), "rounds": run.rounds}
    row |= {name: float(measured[name]) for name in MEASURED}
    row |= run.spent
    for name in READINGS:
        found = getattr(run, name)
        why = found if isinstance(found, str) else ""
        row |= {name: math.nan if why else found, f"{name}_without": why}
    row["curves"] = _curves(run, study)
    row["by_round"] = {name: by_round[name].tolist() for name in ("round", *BY_ROUND)}
    return row | {"labels": {name: list(map(int, run.labels[name])) for name in LABELS}}


def _curves(run: Run, study: StudyRuns) -> list[Row]:
    """Return the curves needed of a run: by the study's score, by print's, and by those of discrepancies."""
    federation, _, method = run.where
    curves = {score_name(score): run.scored(score) for score in (run.score, run.printed)}
    for block in study.claims.discrepancies.values():
        for side in (block.released, block.paper):
            score = {**run.score, **side.score}
            if (side.federation, side.method) == (federation, method) and score_name(score) not in curves:
                curves[score_name(score)] = run.scored(score)
    return [_line(name, curve) for name, curve in curves.items()]


def _line(name: str, curve: pd.DataFrame) -> Row:
    columns = {column: curve[column].tolist() for column in ("accuracy", "loss")}
    return {"score": name, "round": curve.index.tolist(), **columns}


@dataclass
class Written:
    """What was written for a study."""

    study: str
    files: list[Path] = field(default_factory=list)
    runs: list[Place] = field(default_factory=list)
    missing: int = 0  # runs that don't exist
    left_out: list[str] = field(default_factory=list)  # why existing runs weren't kept

    def __str__(self) -> str:
        size = sum(path.stat().st_size for path in self.files)
        return (
            f"study '{self.study}': {len(self.runs)} runs in {len(self.files)} files, {size:,} bytes; "
            f"not there {self.missing}, left out {len(self.left_out)}"
        )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keep other processes from writing evidence into a folder meanwhile: what they add to a file would be lost.

    They wait; see `locks.locked`.
    """
    mark = folder / ".writing"
    with locked(mark, "writing evidence into the same folder"):
        try:
            yield
        finally:
            shutil.rmtree(mark, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()  # if nothing was written


def check_target(folder: Path) -> None:
    """Refuse a folder in which evidence would replace other files.

    Raises
    ------
    UserError
        If it lies under results/ or data/, or has a study's settings that don't belong to evidence.
    """
    check_outside("--to", folder, instead="name a folder elsewhere")
    for settings in sorted(folder.glob("*/settings.json")):
        if not digest_file(settings).exists():
            raise UserError(
                f"--to: {settings} already exists and has no {digest_file(settings).name} beside it, as evidence "
                "has; name another folder, or move it away"
            )


def write(study: StudyRuns, folder: Path, origin: str | None = None, only: Collection[Place] | None = None) -> Written:
    """Write the evidence of all runs of a study under results/, or of some.

    Other runs in a file of the same name are kept, so callers must be `writing`. Without `origin`, runs are
    distinguished by branch (or processor) and commit.

    Raises
    ------
    UserError
        If such a file is damaged, or has other numbers for a run that should be the same to the bit.
    """
    written = Written(study.study.study)
    rows: dict[tuple[str, str], list[Row]] = {}
    for run in _runs(study, written, only):
        rows.setdefault((run.where[0], origin or named(run.made)), []).append(record(run, study))
        written.runs.append(run.where)
    about = {"study": written.study, "paper": study.claims.paper}
    for (federation, name), own in rows.items():
        path = folder / written.study / f"{federation}.{name}.parquet"
        write_file(path, _joined(path, own), about | {"federation": federation, "origin": name})
        written.files.append(path)
    if written.files:
        settings = folder / written.study / "settings.json"
        write_json(settings, study.study.model_dump(mode="json") | {"mirror": None})
        with replacing(digest_file(settings)) as temporary:
            temporary.write_text(f"{digest.of_file(settings)}  {settings.name}\n", encoding="utf-8")
        written.files += [settings, digest_file(settings)]
    return written


def _runs(study: StudyRuns, written: Written, only: Collection[Place] | None) -> Iterator[Run]:
    """Yield the runs under results/ that are complete and made with the study's settings throughout; note others."""
    places = [place for place in study.places_run() if only is None or place in only]
    with bar(f"evidence of {written.study}", len(places)) as progress:
        for number, where in enumerate(places, 1):
            progress(number, "")
            job, run = study.job(*where), study.here(*where)
            if job is None or not job.first.exists():
                written.missing += 1
            elif isinstance(run, str):
                written.left_out.append(run)
            elif other := _other_settings(study, job):
                written.left_out.append(other)
            else:
                yield run


def _other_settings(study: StudyRuns, job: jobs.Job) -> str:
    """Return which of the jobs before a result has other settings than the study has now; '' if none has."""
    for one in study.plan.jobs([job]):
        place = manifest_path(one.first)
        if place.exists() and read_json(place).get("settings") != one.settings_digest:
            return f"{job.first} was made from {one.first}, which has other settings than the configuration has now"
    return ""


def _joined(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Return rows together with those of an existing file; rows of the same run are replaced."""
    found = {(row["seed"], row["method"]): row for row in (read_file(path)[1] if path.exists() else ())}
    for row in rows:
        key = (row["seed"], row["method"])
        before = found.get(key)
        if before is not None and must_agree(before, row) and (names := differing(before, row)):
            raise UserError(
                f"{path} has other numbers of seed {key[0]}, {key[1]} than the results, in {names[0]}, though branch, "
                "revisions and versions are the same; keep both with --origin NAME, or delete the wrong one"
            )
        found[key] = row
    return [found[key] for key in sorted(found)]


def named(made: Made) -> str:
    """Return the default name of a run's origin: branch (or processor) and commit, as far as known."""
    words = f"{made.branch or made.processor or 'unknown'} {made.commit[:7]}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def check_name(origin: str) -> None:
    """Refuse an origin that can't be part of a file's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", origin):
        raise UserError(f"--origin: '{origin}'; allowed are letters, digits, - and _, e.g. epyc-cfe3618")


def study_of(name: str, studies: Mapping[str, StudyRuns]) -> StudyRuns:
    """Return the study with a name, or refuse the name."""
    if name not in studies:
        where = f"{jobs.RESULTS}/*/settings.json"
        raise UserError(f"no study '{name}' with a block `claims` in {where}; {choices(studies, name)}")
    return studies[name]


@dataclass
class Pool:
    """The content of evidence folders: each study's settings and pieces, and warnings."""

    settings: dict[str, Path] = field(default_factory=dict)
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read(folders: Sequence[Path]) -> Pool:
    """Return all evidence of some folders; what can't be used is a warning, and the rest is still read.

    Raises
    ------
    UserError
        If a folder has no evidence.
    """
    pool, files = Pool(), list[Path]()
    seen: dict[str, Path] = {}  # by digest
    for folder in folders:
        there = sorted(folder.glob("*/*.parquet"))
        if not there:
            found = "no file STUDY/*.parquet found" if folder.is_dir() else "there is no such folder"
            raise UserError(
                f"--from: {folder} holds no evidence: {found}; allowed: {jobs.RESULTS}, and folders that "
                "clusterfl evidence --to FOLDER wrote"
            )
        for path in sorted(folder.glob("*/settings.json")):
            pool.warnings += _settings(pool, path)
        files += there
    if not files:
        return pool
    with bar("files of evidence", len(files)) as progress:
        for number, path in enumerate(files, 1):
            pool.warnings += _add(pool, path, seen)
            progress(number, "")
    return pool


def _add(pool: Pool, path: Path, seen: dict[str, Path]) -> Iterator[str]:
    """Add a file's pieces; yield what is wrong with it."""
    try:
        facts, rows = read_file(path)
    except UserError as error:
        yield str(error)
        return
    first = seen.get(facts["sha256"])
    if first is not None:
        if not first.samefile(path):  # a folder given twice, or a link to it, has nothing to delete
            yield f"{path} is the same file as {first}: it counts once; delete one of them"
        return
    seen[facts["sha256"]] = path
    pieces = [Piece(path, facts["study"], facts["federation"], facts["origin"], row) for row in rows]
    keys = [piece.where for piece in pieces]
    for _, seed, method in sorted({key for key in keys if keys.count(key) > 1}):
        yield f"{path} holds seed {seed}, {method} more than once; {AGAIN} {facts['study']}, or delete it"
    pool.pieces.setdefault(facts["study"], []).extend(pieces)


def digest_file(settings: Path) -> Path:
    """Return the file beside a study's settings that has their digest."""
    return settings.with_suffix(".sha256")


def damaged(settings: Path) -> str:
    """Return an error if a study's settings don't have their recorded digest; '' if they do."""
    said = digest_file(settings)
    words = said.read_text(encoding="utf-8", errors="replace").split() if said.exists() else []
    if words == [digest.of_file(settings), settings.name]:
        return ""
    return f"{settings} is damaged: its sha256 isn't the one in {said.name}; {BACK} {settings.parent.name}"


def _settings(pool: Pool, path: Path) -> Iterator[str]:
    """Add the settings of a study; yield what is wrong with them."""
    study = path.parent.name
    if why := damaged(path):
        yield why
        return
    first = pool.settings.setdefault(study, path)
    if first.read_bytes() != path.read_bytes():
        yield f"{path} has other settings of study '{study}' than {first}, which are used; delete the older file"
