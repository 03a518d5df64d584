"""Chooses the record of a run that verdicts use, among results/ and pieces of evidence.

Results come first, then folders in the given order, in a folder files by name; evidence that lacks print's score comes
last. A piece counts only if it was made with the study's settings and the present revisions. Two that count and have
the same branch, revisions and versions must agree to the bit, or the run isn't used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ..pipeline.job import Job
from .evidence import Kept, record
from .evidence_file import Row, differing, must_agree
from .runs import Made, Run, score_name
from .study_runs import StudyRuns

JUDGES, AGREES, DIFFERS = "judges", "agrees", "differs"
CONFLICT, OLD, OTHER = "conflict", "old revision", "other settings"
NEXT = {
    CONFLICT: "one of them is wrong: run it again, then delete the wrong one",
    OLD: "run it again, or delete the file",
    OTHER: "run it again and write its evidence, or delete the file",
}


class Weighed(NamedTuple):
    """How a piece of evidence for a run was used."""

    where: tuple[str, int, str]  # federation, seed, method
    place: str  # its file, or results
    made: Made
    status: str
    detail: str = ""
    other: str = ""  # the place that it is compared with
    difference: float = 0.0


def weigh(study: StudyRuns, where: tuple[str, int, str]) -> tuple[Run | str, list[Weighed]]:
    """Return the run that verdicts use, or why there is none, and how each piece was used."""
    here = study.here(*where)
    runs: list[Run] = [] if isinstance(here, str) else [here]
    if not runs and where not in study.pieces:
        return str(here), []
    job = study.job(*where)
    own = study.study if job is None else study.plan.on(where[0])
    runs += [Kept(study.source, own, piece) for piece in study.pieces.get(where, ())]
    counted, found = [], []
    for run in runs:
        unfit = _unfit(study, job, run)
        if unfit is None:
            counted.append(run)
        else:
            found.append(Weighed(where, place(run), run.made, *unfit))
    if not counted:
        return (f"{found[0].status} in {found[0].place}: {found[0].detail}" if found else str(here)), found
    counted.sort(key=lambda run: isinstance(run, Kept) and not _has(run, run.printed))
    rows = [record(run, study) for run in counted] if len(counted) > 1 else []
    clashes = list(_conflicts(where, counted, rows))
    if clashes:
        return f"conflict between {clashes[0].place} and {clashes[0].other}: {clashes[0].detail}", found + clashes
    return counted[0], found + list(_compared(where, counted, rows))


def place(run: Run) -> str:
    """Return where a run is read from."""
    return str(run.piece.file) if isinstance(run, Kept) else run.made.origin


def _unfit(study: StudyRuns, job: Job | None, run: Run) -> tuple[str, str] | None:
    """Return status and detail of a run that can't be used, whatever the others are; None for one that counts."""
    if isinstance(run, Kept):
        if job is None:
            return OTHER, "the study has no such federation, seed or method now"
        if (run.made.settings, run.made.chain) != (job.settings_digest, study.chain(job)):
            return OTHER, "its settings, or those of what it was made from, aren't the study's"
        if not _has(run, run.score):
            return OTHER, "it lacks the score that the study has now"
    old = outdated(run.made.revisions, job.revisions if job is not None else {})
    return (OLD, old) if old else None


def _has(run: Kept, score: Mapping[str, Any]) -> bool:
    """Return whether evidence has the curve of a score."""
    return score_name(score) in {line["score"] for line in run.row["curves"]}


def outdated(recorded: Mapping[str, int], present: Mapping[str, int]) -> str:
    """Return which part's revision isn't the present one; '' if all are.

    A part that isn't named has revision 1: it had none yet when the run was made, or no longer exists.
    """
    for name in sorted(recorded.keys() | present.keys()):
        then, now = (revisions.get(name, 1) for revisions in (recorded, present))
        if then != now:
            return f"{name} has revision {then}, now {now}"
    return ""


def _conflicts(where: tuple[str, int, str], runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[Weighed]:
    """Yield each pair that should be equal to the bit and isn't."""
    for (one, a), (other, b) in combinations(zip(runs, rows, strict=False), 2):
        if must_agree(a, b) and (names := differing(a, b)):
            gap, unit = distance(one, other)
            detail = (
                f"{', '.join(names[:3])} differ, scores by up to {gap:.3g} {unit}, though settings, branch "
                f"({a['branch']}), revisions and versions are the same"
            )
            yield Weighed(where, place(one), one.made, CONFLICT, detail, place(other), gap)


def _compared(where: tuple[str, int, str], runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[Weighed]:
    """Yield the run that is used, then each other one as compared with it."""
    yield Weighed(where, place(runs[0]), runs[0].made, JUDGES)
    for run, row in zip(runs[1:], rows[1:], strict=True):
        gap, unit = distance(runs[0], run)
        status = DIFFERS if differing(rows[0], row) else AGREES
        yield Weighed(where, place(run), run.made, status, unit, place(runs[0]), gap)


def distance(one: Run, other: Run) -> tuple[float, str]:
    """Return the largest difference of two runs' scores, and its unit: points of accuracy, or loss without accuracy."""
    gaps = (one.scores - other.scores).abs().max()
    accuracy, loss = float(gaps["accuracy"]), float(gaps["loss"])
    return (loss, "of loss") if math.isnan(accuracy) else (100 * accuracy, "points of accuracy")


def sentences(weighed: Sequence[Weighed]) -> list[str]:
    """Return a sentence for each file and each problem with it."""
    groups: dict[tuple[str, str, str], list[Weighed]] = {}
    for one in weighed:
        groups.setdefault((one.place, one.status, one.other), []).append(one)
    return [text for key, own in groups.items() if (text := _sentence(*key, own))]


def _sentence(file: str, status: str, other: str, own: Sequence[Weighed]) -> str:
    """Return a sentence on runs of a file that have the same status; '' where nothing is wrong."""
    most = max(own, key=lambda one: one.difference)
    federation, seed, method = most.where
    first = f"{federation}, seed {seed}, {method}"
    runs = "1 run" if len(own) == 1 else f"{len(own)} runs"
    if status == DIFFERS:
        return (
            f"{file}: {runs} not equal to {other}, made with another branch, revision or version; scores differ by up "
            f"to {most.difference:.3g} {most.detail} ({first}); {other} is used"
        )
    if status not in NEXT:
        return ""
    about = f"conflict between {file} and {other}" if status == CONFLICT else f"{file}: {status}"
    return f"{about}, {runs} not used ({first}: {most.detail}); {NEXT[status]}"
