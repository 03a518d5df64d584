"""Whether a run has the paper's scale: its settings are compared with those of the study that ships with the package.

A study can't declare it. A run, with everything that it is made from, has scale

- ``paper`` where its settings, apart from seeds, are those of the shipped study;
- ``prefix`` where it differs only in having fewer rounds: round t doesn't depend on how many come after it, so what is
  read up to the last round is what the whole run would have there;
- ``lite`` otherwise: its numbers are shown, and its orderings evaluated, but not compared with printed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config import loading
from ..config.claims import Claims
from ..config.study import Study
from ..methods import METHODS
from ..pipeline import project
from ..pipeline.job import Job
from ..pipeline.jobs import Plan

PAPER, PREFIX, LITE = "paper", "prefix", "lite"
NAMES = (PAPER, PREFIX, LITE)  # the highest first
STUDIES = {"lcfl": "lcfl.yaml", "rr-cluster": "rr_cluster.yaml", "clove": "clove.yaml", "fedgwc": "fedgwc.yaml"}
ROUNDS, EVERY = "training.rounds", "training.evaluate_every"
SCHEDULES = ("constant", "round", "participation")  # of the rate; none depends on the number of rounds
IGNORED = ("given",)  # of a dataset: options as they were written; `options` has all of them
Place = tuple[str, str]  # federation, method


@dataclass(frozen=True)
class Scale:
    """The result of comparing a run with the shipped study's."""

    name: str
    reason: str = ""  # at lite: what differs
    rounds: int | None = None  # of the shipped run; None at lite
    printed: int | None = None  # rounds that printed iterations refer to, in the shipped study; None at lite
    evaluated: bool = True  # as often as the shipped run
    guesses: int = 0  # settings that the shipped study calls guesses

    @property
    def judged(self) -> bool:
        """Whether the run is compared with printed numbers."""
        return self.name != LITE


def file(paper: str) -> Path:
    """Return the shipped study of a paper, in the installed package or in a checkout."""
    return project.source() / "workflow" / "studies" / STUDIES[paper]


@lru_cache(maxsize=16)
def _study(path: Path, changed: int) -> Study:
    """Return the study in a file; the time of its last change is part of the cache's key, here and below."""
    return loading.load(loading.read([path]), str(path))


@lru_cache(maxsize=16)
def _shipped(path: Path, changed: int, runs: tuple[int, ...]) -> Plan:
    study = _study(path, changed)
    return Plan(study.model_copy(update={"seeds": study.seeds.model_copy(update={"runs": list(runs)})}), (path,))


def seeds(paper: str) -> tuple[int, ...]:
    """Return the seeds of a paper's shipped study."""
    path = file(paper)
    return tuple(_study(path, path.stat().st_mtime_ns).seeds.runs)


def shipped(paper: str, runs: tuple[int, ...] = (0,)) -> Plan:
    """Return the plan of a paper's shipped study, with the given seeds."""
    path = file(paper)
    return _shipped(path, path.stat().st_mtime_ns, runs)


def claims_of(plan: Plan) -> Claims:
    """Return a study's block `claims`, which has to exist."""
    assert plan.study.claims is not None
    return plan.study.claims


def named(plan: Plan, profile: str, cell: str, method: str) -> Place | None:
    """Return a study's federation and method for a claim's cell and method; None if it has none."""
    cells, names = claims_of(plan).of(profile)
    if cell not in cells:
        return None
    name = names.get(method, method) + cells[cell].suffix
    federation = cells[cell].federation
    return (federation, name) if name in plan.on(federation).methods else None


def of_cell(own: Plan, place: Place, profile: str, cell: str, method: str) -> Scale:
    """Return the scale of a run for a claim: it is compared with the shipped study's run for that claim."""
    other = shipped(claims_of(own).paper, tuple(own.study.seeds.runs))
    there = named(other, profile, cell, method) if profile in claims_of(other).profiles() else None
    if there is None:
        return Scale(LITE, f"the shipped study has nothing of {cell}, {method}, profile {profile}")
    found = compare(own, place, other, there)
    if not found.judged:
        return found
    if claims_of(own).iterations != claims_of(other).iterations:
        return Scale(LITE, "claims.iterations isn't the shipped study's", guesses=found.guesses)
    asked = claims_of(other).of(profile)[0][cell].rounds or claims_of(other).rounds or found.rounds
    return Scale(found.name, "", found.rounds, asked, found.evaluated, found.guesses)


def of_place(own: Plan, place: Place) -> Scale:
    """Return the scale of a run without a claim: it is compared with the shipped run of the same names."""
    other = shipped(claims_of(own).paper, tuple(own.study.seeds.runs))
    if place[0] not in other.study.federations or place[1] not in other.on(place[0]).methods:
        return Scale(LITE, f"the shipped study has no run {'/'.join(place)}")
    return compare(own, place, other, place)


def compare(own: Plan, place: Place, other: Plan, there: Place) -> Scale:
    """Return the scale of a run compared with one of a shipped study, which has the same seeds."""
    guesses = len(guessed(claims_of(other), there))
    seed = own.study.seeds.runs[0]
    job, shipped_job = own.result(place[0], seed, place[1]), other.result(there[0], seed, there[1])
    found = dict(differences(job, shipped_job))
    for part in ("seeds", "score"):
        mine, theirs = (getattr(plan.study, part).model_dump(mode="json") for plan in (own, other))
        found |= dict(_gaps(mine, theirs, part))
    rounds = shipped_job.settings["training"]["rounds"] if shipped_job.stage == "federate" else None
    if not found:
        return Scale(PAPER, rounds=rounds, guesses=guesses)
    reason = _listed(found)
    if not found.keys() <= {ROUNDS, EVERY} or found.get(ROUNDS, (0, 1))[0] > found.get(ROUNDS, (0, 1))[1]:
        return Scale(LITE, reason, guesses=guesses)
    smooth = other.study.score.smooth > 1 or claims_of(other).iterations != "rounds"
    if EVERY in found and smooth:  # the score is a mean over evaluations
        return Scale(LITE, reason, guesses=guesses)
    if ROUNDS in found and (why := bound(job)):
        return Scale(LITE, f"{reason}; {why}", guesses=guesses)
    return Scale(PREFIX if ROUNDS in found else PAPER, "", rounds, None, EVERY not in found, guesses)


def guessed(claims: Claims, place: Place) -> list[str]:
    """Return the settings of a run that its study calls guesses."""
    run = "/".join(place)
    found = [name for glob, names in claims.guesses.items() if fnmatchcase(run, glob) for name in names]
    return list(dict.fromkeys(found))


def bound(job: Job) -> str:
    """Return which setting depends on the number of rounds, so that a shorter run isn't a prefix; '' if none does.

    ``tests/claims/test_scale.py`` names all parts of the package that read the number of rounds.
    """
    if job.stage != "federate":
        return "a sweep chooses by the last round"
    schedule = job.settings["training"].get("schedule", SCHEDULES[0])
    if schedule not in SCHEDULES:
        return f"training.schedule: {schedule} depends on the number of rounds"
    epsilon = (job.settings.get("privacy") or {}).get("epsilon")
    if epsilon is not None and math.isfinite(float(epsilon)):
        return "privacy.epsilon: its noise is found for the number of rounds"
    for option in METHODS[job.settings["method"]].ending:
        if job.settings["options"][option]:
            return f"{option}: it changes what the last round leaves"
    return ""


def differences(own: Job, other: Job, place: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield name and both values of each setting in which two jobs, or those that they are made from, differ.

    Names of the job's own settings have no prefix, those of other jobs the name of their stage.
    """
    if own.stage != other.stage:
        yield "stage", (own.stage, other.stage)
        return
    yield from _gaps(own.settings, other.settings, place)
    for key in sorted(own.upstream.keys() | other.upstream.keys()):
        mine, theirs = own.upstream.get(key), other.upstream.get(key)
        if mine is None or theirs is None:
            yield f"input {key}", (mine is not None, theirs is not None)
        else:
            yield from differences(mine, theirs, mine.stage)


def _gaps(own: Mapping[str, Any], other: Mapping[str, Any], place: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key in sorted(own.keys() | other.keys()):
        name = f"{place}.{key}" if place else key
        mine, theirs = own.get(key), other.get(key)
        if key in IGNORED or name == "seeds.runs" or mine == theirs:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from _gaps(mine, theirs, name)
        else:
            yield name, (mine, theirs)


def _listed(found: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the first three differences in words, and how many more there are."""
    parts = [f"{name} {mine}, shipped {theirs}" for name, (mine, theirs) in list(found.items())[:3]]
    more = len(found) - len(parts)
    return "; ".join(parts) + (f"; {more} more" if more else "")
