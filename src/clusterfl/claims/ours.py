"""Our numbers for the claims, in printed units: of a study with a block `claims`, from result files or evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..config import loading
from ..config.claims import Cell, Claims
from ..config.study import Study
from ..errors import UserError, choices
from ..pipeline import jobs
from ..storage.store import read_json
from .constructed import constructed
from .evidence_file import Piece
from .printed import EMPTY, claims, slug
from .reading import SCORED, Reader
from .runs import Made, Run
from .scale import NAMES, PAPER, PREFIX, Scale, named, of_cell, of_place
from .study_runs import StudyRuns
from .weigh import Weighed, weigh


@dataclass(frozen=True)
class Outcome:
    """What a study has for a claim.

    ``values`` are those of the seeds that have a number. ``empty`` is why there is no mean although it was run
    (`printed.EMPTY`): one seed without a number is enough. ``not_run`` is why no seed has either: there is no run or,
    with ``ran``, the runs don't have this number.
    """

    federation: str = ""
    method: str = ""
    values: Mapping[int, float] = field(default_factory=dict)
    empty: str | None = None
    without: Mapping[int, str] = field(default_factory=dict)  # seeds that are empty, and why
    not_run: str | None = None
    ran: bool = True
    made: Mapping[int, Made] = field(default_factory=dict)  # how the run of each of these seeds was made
    scale: Scale = Scale(PAPER)  # noqa: RUF009 (frozen)
    constructed: str = ""  # why the number is fixed whatever is trained; see `constructed`
    score: Mapping[str, Any] = field(default_factory=dict)  # by which accuracies and losses are read
    read_as: str = ""  # that score in words, where it isn't the study's

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.values) + len(self.without)


class Results(StudyRuns):
    """What a study with a block `claims` has for each claim; see `StudyRuns` for the parameters."""

    def __init__(self, plan: jobs.Plan, pieces: Sequence[Piece] = (), own: bool = True):
        super().__init__(plan, pieces, own)
        self.weighed: list[Weighed] = []
        self._runs: dict[tuple[str, int, str], Run | str] = {}
        self._outcomes: dict[tuple[object, ...], Outcome] = {}
        self._scales: dict[tuple[str, ...], Scale] = {}

    @classmethod
    def from_snapshot(cls, path: Path, pieces: Sequence[Piece] = (), own: bool = True) -> Results | None:
        """Return the results of a study from the settings it was run with; None if it has no block `claims`."""
        settings = read_json(path, "run the study again")
        if not isinstance(settings, dict) or not settings.get("claims"):
            return None
        jobs.search([".", *settings.get("modules", [])])
        study = loading.load(settings, str(path))
        found = list(problems(study))
        if found:
            raise UserError(f"{path}: {found[0]}")
        return cls(jobs.Plan(study, (path,)), pieces, own)

    def named(self, profile: str, cell: str, method: str) -> tuple[str, str] | None:
        """Return the study's federation and method for a claim's cell and method; None if it has none."""
        return named(self.plan, profile, cell, method)

    def scale(self, profile: str, cell: str, method: str) -> Scale:
        """Return the scale of the study's run for a claim, which has to exist (`scale`)."""
        key = (profile, cell, method)
        if key not in self._scales:
            where = self.named(*key)
            assert where is not None
            self._scales[key] = of_cell(self.plan, where, *key)
        return self._scales[key]

    def scale_of(self, federation: str, method: str) -> Scale:
        """Return the scale of a run, compared with the run of the same names in the shipped study."""
        key = (federation, method)
        if key not in self._scales:
            self._scales[key] = of_place(self.plan, key)
        return self._scales[key]

    def scales(self, federation: str | None = None) -> list[str]:
        """Return the scales of the runs for claims, of a federation or of the whole study, the highest first."""
        found = {scale.name for _, scale in self._beside(federation)}
        return [name for name in NAMES if name in found]

    def overstated(self) -> str:
        """Return a warning about a study that claims the paper's scale where settings differ; '' if there is none."""
        if self.claims.scale != PAPER:
            return ""
        lite = {place: scale.reason for place, scale in self._beside() if not scale.judged}
        if not lite:
            return ""
        (federation, method), reason = next(iter(lite.items()))
        return (
            f"study '{self.study.study}' says claims.scale: paper, but {len(lite)} of its runs have other settings "
            f"than the shipped study and are lite, e.g. {federation}/{method}: {reason}; omit claims.scale"
        )

    def _beside(self, federation: str | None = None) -> Iterator[tuple[tuple[str, str], Scale]]:
        """Yield place and scale of the runs that claims are compared with, of a federation or of the whole study."""
        for profile in self.claims.profiles():
            for cell in self.claims.of(profile)[0]:
                for method in methods_of(self.claims.paper, cell):
                    where = self.named(profile, cell, method)
                    if where is not None and federation in (None, where[0]):
                        yield where, self.scale(profile, cell, method)

    def places(self, table: str) -> set[tuple[str, str]]:
        """Return the study's federations and methods for a table's numbers, in any profile, or for a figure.

        Raises
        ------
        UserError
            If the paper has no such table, and the study no such figure.
        """
        if table in self.claims.figures:
            return set(self.claims.figures[table].places())
        own = [claim for claim in claims() if claim.paper == self.claims.paper]
        wanted = [claim for claim in own if claim.where in (table, f"Table {table}")]
        if not wanted:
            known = {claim.where for claim in own} | set(self.claims.figures)
            raise UserError(f"--table: nothing of {self.claims.paper} is from '{table}'; "
                            f"{choices(known, f'Table {table}')}")  # fmt: skip
        cells = {(claim.cell, claim.method) for claim in wanted}
        found = (self.named(profile, *cell) for profile in self.claims.profiles() for cell in cells)
        return {place for place in found if place is not None}

    def absent(self, cell: str, method: str) -> str | None:
        """Return why a cell isn't run, if the study says so."""
        found = (why for glob, why in self.claims.absent.items() if fnmatchcase(f"{cell}/{method}", glob))
        return next(found, None)

    def outcome(
        self, profile: str, cell: str, method: str, metric: str, at: str, *, against_print: bool = True
    ) -> Outcome | None:
        """Return what the study has for a number; None if it doesn't have the number's cell and method.

        See `reading.Reader` for `against_print`.
        """
        where = self.named(profile, cell, method)
        if where is None:
            return None
        key = (profile, cell, method, metric, at, against_print)
        if key not in self._outcomes:
            own, scale = self.claims.of(profile)[0][cell], self.scale(profile, cell, method)
            self._outcomes[key] = self._outcome(where, own, metric, at, scale, against_print)
        return self._outcomes[key]

    def _outcome(
        self, where: tuple[str, str], cell: Cell, metric: str, at: str, own: Scale, against_print: bool
    ) -> Outcome:
        federation, method = where
        why = open_ = read_as = ""
        score: Mapping[str, Any] = {}
        values, without, reasons, made, ran = {}, {}, [], {}, False
        for seed in self.study.seeds.runs:
            run = self.run(federation, seed, method)
            if isinstance(run, str):
                reasons.append(run)
                continue
            reader = Reader(run, cell, own, against_print)
            ran, made[seed], reading = True, run.made, reader.read(metric, at)
            why, score = why or constructed(run, metric, at), reader.score
            read_as = reader.said(at) if metric in SCORED else ""
            if not isinstance(reading, str):
                values[seed] = reading
            elif reading in EMPTY:
                without[seed] = reading
            else:
                reasons.append(reading)
                open_ = open_ or (reading if own.name == PREFIX else "")
        if open_:  # the other seeds reached it early: a mean over these alone would be selected by outcome
            values, without, reasons = {}, {}, [open_]
        empty = next(iter(without.values()), None)
        not_run = None if values or without else f"study {self.study.study}: {reasons[0]}"
        return Outcome(federation, method, values, empty, without, not_run, ran, made, own, why, score, read_as)

    def run(self, federation: str, seed: int, method: str) -> Run | str:
        """Return the run by which claims are judged, from its files or from evidence, or why there is none."""
        key = (federation, seed, method)
        if key not in self._runs:
            self._runs[key], weighed = weigh(self, key)
            self.weighed += weighed
        return self._runs[key]

    def weighed_all(self) -> list[Weighed]:
        """Return how every piece of evidence was used, also of runs that no claim needs."""
        for where in self.pieces:
            self.run(*where)
        return self.weighed


@lru_cache(maxsize=512)
def methods_of(paper: str, cell: str) -> tuple[str, ...]:
    """Return the methods for which a paper has numbers in a cell."""
    return tuple(dict.fromkeys(claim.method for claim in claims() if (claim.paper, claim.cell) == (paper, cell)))


def problems(study: Study) -> list[str]:
    """Return what a block `claims` names that the paper doesn't have: unknown cells, methods and patterns."""
    if study.claims is None:
        return []
    own = [claim for claim in claims() if claim.paper == study.claims.paper]
    cells, methods = {claim.cell for claim in own} | _figures(study.claims.paper), {claim.method for claim in own}
    found = []
    for profile in study.claims.profiles():
        place = "claims" if profile == study.claims.profile else f"claims.others.{profile}"
        mapped, names = study.claims.of(profile)
        for what, given, allowed in (("cells", mapped, cells), ("names", names, methods)):
            for name in sorted(set(given) - allowed):
                found.append(f"{place}.{what}: paper '{study.claims.paper}' has no '{name}'; {choices(allowed, name)}")
    found += [f"claims.figures: {line}" for line in _names(study.claims)]
    for glob in study.claims.absent:
        if not any(fnmatchcase(f"{claim.cell}/{claim.method}", glob) for claim in own):
            example = f"{own[0].cell}/{own[0].method}"
            found.append(f"claims.absent: '{glob}' matches none of the paper's dataset/setting/method, e.g. {example}")
    return found


def _names(own: Claims) -> list[str]:
    """Return what is wrong with the figures' names, from which file names are made."""
    taken = {
        slug(claim.where): f"the paper's numbers of '{claim.where}'" for claim in claims() if claim.paper == own.paper
    }
    found = []
    for name in own.figures:
        if not slug(name) or slug(name) in taken:
            why = f"files of {taken[slug(name)]} have the same name" if slug(name) else "it has no letter or digit"
            found.append(f"'{name}' can't be written as a file: {why}; give it another, such as Fig. 3 (a)")
        taken.setdefault(slug(name), f"figure '{name}'")
    return found


def _figures(paper: str) -> set[str]:
    """Return the cells that orderings name, among them those of figures, which have no numbers."""
    from .grammar import places
    from .printed import orderings

    return {f"{w[0]}/{w[1]}" for ordering in orderings() if ordering.paper == paper for w in places(ordering)}


def spread(values: Mapping[int, float], ddof: int) -> float:
    """Return the standard deviation over seeds; NaN for fewer than two."""
    return float(np.std(list(values.values()), ddof=ddof)) if len(values) > 1 else math.nan
