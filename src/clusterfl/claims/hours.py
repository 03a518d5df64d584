"""The time that runs took and were predicted to take: a line for each beside its study's evidence; a table by block.

Both include what a run needs first, such as a warm-up or a distance, for each run that needs it.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import UserError
from ..pipeline.job import Job
from ..report.tables import processes
from ..report.words import aligned
from ..storage.manifest import timing_path
from ..storage.store import replacing
from . import scale
from .evidence import named
from .runs import Run
from .study_runs import StudyRuns

NAME = "hours.csv"
COLUMNS = ("federation", "method", "seed", "origin", "processor", "rounds", "predicted", "seconds")
Key = tuple[str, str, int, str]  # federation, method, seed, origin: the same run may be made on two machines
Row = dict[str, str]


def write(study: StudyRuns, predicted: Mapping[tuple[str, int, str], float | None], folder: Path) -> None:
    """Add the seconds that some runs of a study under results/ took, and those predicted for each.

    Where the prediction is None (unknown), the one that a file has is kept.
    """
    path, found = folder / study.study.study / NAME, dict[Key, Row]()
    for (federation, seed, method), before in predicted.items():
        run, job = study.here(federation, seed, method), study.job(federation, seed, method)
        if isinstance(run, Run) and job is not None and timing_path(job.first).exists():
            values = (federation, method, seed, named(run.made), run.made.processor, run.rounds)
            said = "" if before is None else f"{before:.1f}"
            row = dict(zip(COLUMNS, [*map(str, values), said, f"{_spent(study, job):.1f}"], strict=True))
            found[_key(row)] = row
    if found:
        put(path, joined(found, read(path)))


def at_scale(study: StudyRuns, runs: Sequence[tuple[str, int, str]]) -> dict[tuple[str, int, str], None]:
    """Return the runs at the paper's scale, for `write`: reduced ones say nothing about its cost."""
    places = {(federation, method) for federation, _, method in runs}
    judged = {place for place in places if scale.of_place(study.plan, place).judged}
    return {run: None for run in runs if (run[0], run[2]) in judged}


def _spent(study: StudyRuns, job: Job) -> float:
    """Return the seconds of a job and of all that it needs except data; jobs without recorded times count nothing."""
    needed = [one.first for one in study.plan.jobs([job]) if one.stage != "download"]
    return sum(float(processes(path)["seconds"].sum()) for path in needed if timing_path(path).exists())


def read(path: Path) -> dict[Key, Row]:
    """Return the rows of a file; none if it doesn't exist.

    Raises
    ------
    UserError
        If it can't be read.
    """
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows = list(reader)
    try:
        if tuple(reader.fieldnames or ()) != COLUMNS or any(None in row for row in rows):  # None: cells too many
            raise ValueError
        return {
            _key(row): row for row in rows if [int(row["rounds"]), float(row["predicted"] or 0), float(row["seconds"])]
        }
    except (TypeError, ValueError):
        raise UserError(
            f"{path} hasn't the columns {', '.join(COLUMNS)} with numbers; put it back, or delete it"
        ) from None


def put(path: Path, rows: Mapping[Key, Row]) -> None:
    """Write rows, sorted by run: equal rows give equal bytes."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


def joined(rows: Mapping[Key, Row], more: Mapping[Key, Row]) -> dict[Key, Row]:
    """Return the rows of both; for a run in both the row of `rows`, with the prediction that either has."""
    both = {**more, **rows}
    return {key: row | {"predicted": row["predicted"] or more.get(key, row)["predicted"]} for key, row in both.items()}


def _key(row: Row) -> Key:
    return row["federation"], row["method"], int(row["seed"]), row["origin"]


def table(folder: Path) -> list[list[str]]:
    """Return the hours of all files in a folder by study, federation, method and processor: cells, the head first.

    The prediction is left empty where it isn't known for all seeds.
    """
    blocks: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for path in sorted(folder.glob(f"*/{NAME}")):
        for row in read(path).values():
            blocks[path.parent.name, row["federation"], row["method"], row["rounds"], row["processor"]].append(row)
    lines = [["study", "federation", "method", "rounds", "seeds", "predicted", "hours", "processor"]]
    for block, rows in sorted(blocks.items()):
        there = ", ".join(sorted({row["seed"] for row in rows}, key=int))
        before = _hours(rows, "predicted") if all(row["predicted"] for row in rows) else ""
        lines.append([*block[:-1], there, before, _hours(rows, "seconds"), block[-1]])
    return lines


def _hours(rows: Iterable[Row], column: str) -> str:
    return f"{sum(float(row[column]) for row in rows) / 3600:.2f}"


def text(folder: Path) -> str:
    """Return the table for a terminal."""
    return aligned(table(folder), right={"rounds", "predicted", "hours"})
