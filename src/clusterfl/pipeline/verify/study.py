"""Verification of all results of a study, in the order in which they are made, with commands to rebuild damaged ones.

A result is damaged if a file is missing, differs from its manifest, comes from other settings or inputs, or has invalid
content. If an input is damaged, a result made from the input's present content is checked like any other; one made from
earlier content can only be checked when the input is rebuilt, and is just counted. Other code or other package versions
aren't damage: they are warnings.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...progress import bar
from ...storage.manifest import manifest_path, same_content, timing_path, verified, versions
from ...storage.sealed import unsealed
from ...storage.store import first_line, read_json
from ..finished import settings_of
from ..job import Job, missing
from ..jobs import Plan

CLIENTS = 8  # clients of each result whose final scores are evaluated again


@dataclass(frozen=True)
class Damage:
    """One damaged file, and the command that rebuilds it."""

    file: str
    problem: str
    command: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}; rebuild it: {self.command}"


@dataclass
class Verdict:
    """The findings, with damages in the order in which to rebuild them."""

    study: str
    results: int = 0
    files: int = 0
    accuracies: int = 0  # evaluated again
    waiting: list[str] = field(default_factory=list)  # results that can only be checked when their inputs are rebuilt
    damages: list[Damage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages

    def json(self) -> str:
        """Return the findings as a JSON object."""
        return json.dumps({"sound": self.sound} | asdict(self), indent=1)

    def __str__(self) -> str:
        lines = [f"warning: {text}" for text in self.warnings] + [str(damage) for damage in self.damages]
        checked = f"{_count(self.results, 'result')}, {_count(self.files, 'file')}, " \
                  f"{_count(self.accuracies, 'accurac', 'y', 'ies')} evaluated again"  # fmt: skip
        found = "sound" if self.sound else _count(len(self.damages), "damage")
        if len(self.damages) > 1:
            found += ", to be rebuilt in this order"
        if self.waiting:
            found += f"; {_count(len(self.waiting), 'result')} made from them earlier can be checked after that"
        return "\n".join([*lines, f"study '{self.study}': {found} ({checked})"])


def _count(number: int, word: str, one: str = "", more: str = "s") -> str:
    return f"{number:,} {word}{one if number == 1 else more}"


def named(study: str) -> Plan | Verdict:
    """Return the plan of a study that was run, see `settings_of`; or a verdict if its settings are damaged.

    Raises
    ------
    UserError
        If there is no study of that name.
    """
    path = settings_of(study)
    try:
        read_json(path, "")
        return Plan.from_files([path], sources=False)
    except UserError as error:
        name = path.parent.name
        command = f"clusterfl run --config FILE (the configuration of '{name}'; what is done isn't done again)"
        return Verdict(name, damages=[Damage(str(path), _said(error, path), command)])


def verify(plan: Plan, wanted: Sequence[Job] | None = None, sample: int = CLIENTS, threads: int = 1) -> Verdict:
    """Check all results of a study, or those of the wanted jobs and their inputs; missing user data aren't damage.

    Parameters
    ----------
    plan
        The study.
    wanted
        Jobs; all if not given.
    sample
        The most clients of each result whose final scores are evaluated again; 0: none.
    threads
        Processes that evaluate, on a CPU; their number changes no bit.
    """
    jobs = list(plan.jobs(wanted))
    found = Verdict(plan.study.study, len(jobs))
    gone = missing(dict.fromkeys(path for job in jobs for path in job.settings.get("files", ())))
    found.warnings += [f"'{path}' no longer exists, so the data read from it weren't compared with it" for path in gone]
    again = f"clusterfl run --config {' '.join(map(str, plan.files))}"
    own = [job for job in jobs if job.stage != "download"]
    if not any(path.exists() for job in own for path in job.outputs.values()):
        text = f"never run: none of its {len(own)} results exists"
        found.damages.append(Damage(str(plan.snapshot.parent), text, again))
        return found
    if plan.snapshot not in plan.files:
        found.damages += [Damage(str(plan.snapshot), text, again) for text in _other_settings(plan)]
    checker = _Checker(found, sample, threads, plan.study.engine.chunk)
    with contextlib.closing(checker), bar(f"verifying {plan.study.study}", len(jobs)) as progress:
        for number, job in enumerate(jobs, 1):
            checker.check(job)
            progress(number, str(job))
    found.warnings += checker.warnings()
    return found


def _other_settings(plan: Plan) -> Iterator[str]:
    """Compare the stored settings with the plan's, except `modules` and `mirror`."""
    try:
        kept, aside = read_json(plan.snapshot, ""), dict.fromkeys(("modules", "mirror"))
        if not isinstance(kept, dict) or kept | aside != plan.study.model_dump(mode="json") | aside:
            yield "other settings found than the configuration has now"
    except UserError as error:
        yield _said(error, plan.snapshot)


def _said(error: UserError, path: Path) -> str:
    """Return an error's message without the file's name; the next step was given as an empty text."""
    return str(error).removeprefix(f"{path} ").rstrip("; ")


class _Checker:
    """Checks one job after another, and remembers what checks of later jobs need."""

    def __init__(self, found: Verdict, sample: int, threads: int, chunk: int | None):
        self.found, self.sample, self.engine = found, sample, (threads, chunk)
        self._versions = versions()
        self._bad: set[Path] = set()  # the first files of damaged results, and of those made from them
        self._notes: Counter[str] = Counter()  # warnings, with the number of results
        self._untimed: list[Path] = []
        self._replay: Any = None

    def close(self) -> None:
        if self._replay is not None:
            self.found.accuracies = self._replay.done
            self._replay.close()

    def check(self, job: Job) -> None:
        """Check a job's results and add the findings."""
        damages, manifest = self._files(job)
        waits = False
        if manifest is not None and not damages:
            recorded = manifest.get("inputs", {})
            other = [path for path in job.inputs.values() if not _same(path, recorded.get(str(path)))]
            waits = bool(other) and any(source.first in self._bad for source in job.upstream.values())
            if other and not waits:
                text = f"{other[0]} has changed since this was made from it"
                damages.append(Damage(str(job.first), text, job.command))
            damages += self._content(job, manifest, waits)
            self._note(job, manifest)
        self.found.damages += [*self._times(job), *damages]
        if waits and not damages:
            self.found.waiting.append(str(job))
        if damages or waits:
            self._bad.add(job.first)

    def _files(self, job: Job) -> tuple[list[Damage], dict[str, Any] | None]:
        """Return the files that differ from the manifest, and the manifest if it can be read."""
        if not any(path.exists() for path in job.outputs.values()):
            text = f"missing, with all files of {job}" if len(job.outputs) > 1 else "missing"
            return [Damage(str(job.first), text, job.command)], None
        problems: dict[tuple[str, str], None] = {}  # file and sentence, each once
        manifest = None
        for path in job.outputs.values():
            try:
                manifest = verified(path, job.identity, job.settings_digest, job.command, job.settings.get("files"))
                there = _files(path)
                self.found.files += len(there)
                known = {manifest_path(path).parent / name for name in manifest["files"]}
                extra = sorted(set(there) - known)  # a stage that reads the folder would use them
                problems |= {(str(file), "a file found that the manifest doesn't list"): None for file in extra}
            except UserError as error:
                problems[_sentence(error, job, path)] = None
        texts = {text for _, text in problems}
        if len(job.outputs) == len(problems) > 1 and len(texts) == 1:
            file = next(iter(problems))[0]  # a problem of the manifest concerns all its files
            problems = {(file, f"{texts.pop()} (so are all files of {job})"): None}
        return [Damage(file, text, job.command) for file, text in problems], manifest

    def _content(self, job: Job, manifest: Mapping[str, Any], waits: bool) -> list[Damage]:
        """Return the damages inside files; results aren't compared with damaged inputs."""
        from .content import problems

        whole = {} if waits else {k: p for k, p in job.inputs.items() if job.upstream[k].first not in self._bad}
        damages: dict[str, Damage] = {}  # the first of each file
        try:
            for key, text in problems(job, manifest, whole):
                damages.setdefault(key, Damage(str(job.outputs[key]), text, job.command))
            models = job.stage in ("federate", "warmup") and "diverged" not in manifest
            if models and self.sample and not damages and len(whole) == len(job.inputs):
                for key, text in self._evaluated(job, manifest):
                    damages.setdefault(key, Damage(str(job.outputs[key]), text, job.command))
        except (UserError, OSError, LookupError, TypeError, ValueError) as error:  # damage that no check anticipates
            text = f"can't be checked: {type(error).__name__}: {error}"
            damages.setdefault("", Damage(str(job.first), text, job.command))
        return list(damages.values())

    def _evaluated(self, job: Job, manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the problems of final models that are evaluated again."""
        from .replay import Replay

        self._replay = self._replay or Replay(self.sample, *self.engine)
        yield from self._replay(job, manifest, self._versions)

    def _note(self, job: Job, manifest: Mapping[str, Any]) -> None:
        """Count warnings: other code, other versions."""
        if manifest.get("code") != job.code_digest:
            modules = f"that of {', '.join(job.modules)} or of what they import"
            self._notes[f"made by other code than is installed, {modules}; clusterfl run makes them again"] += 1
        for name, then in manifest.get("versions", {}).items():
            now = self._versions.get(name, "none")
            if now != then:
                self._notes[f"made with {name} {then}; {now} is installed"] += 1

    def _times(self, job: Job) -> list[Damage]:
        """Return the damage of the job's times, a file with its own digest; it may be missing."""
        times = timing_path(job.first)
        try:
            facts, _, wrong = unsealed(times)
        except FileNotFoundError:
            facts, wrong = {}, ""
        except Exception as error:  # of any type, depending on the damage
            facts, wrong = {"sha256": ""}, f"it can't be read as Parquet ({first_line(error)})"
        if not facts:
            self._untimed += [times] if job.first.exists() else []
            return []
        return [Damage(str(times), f"is damaged: {wrong}", f"rm {shlex.quote(str(times))}")] if wrong else []

    def warnings(self) -> list[str]:
        """Return the warnings."""
        lines = [f"{_count(number, 'result')} {text}" for text, number in self._notes.items()]
        if self._untimed:
            count = _count(len(self._untimed), "file")
            first = f"the first is {self._untimed[0]}; no result depends on them"
            lines.append(f"{count} of times missing or without a digest, {first}")
        return lines


def _same(path: Path, recorded: str | None) -> bool:
    """Return whether an input's content is what a result was made from; False if it can't be read."""
    try:
        return same_content(path, recorded)
    except (UserError, LookupError, OSError, TypeError):
        return False


def _files(path: Path) -> list[Path]:
    return [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")] if path.is_dir() else [path]


def _sentence(error: UserError, job: Job, path: Path) -> tuple[str, str]:
    """Return the file that a message of `verified` is about, and the message without the next step."""
    text = str(error).partition(f"rebuild it: {job.command}")[0].removesuffix("or ").rstrip("; ,")
    for file in (manifest_path(job.first), path):
        if text.startswith(f"{file}/"):  # of a folder: the file in it
            inner, _, said = text.removeprefix(f"{file}/").partition(" ")
            return str(file / inner), said
        if text.startswith(f"{file} "):
            return str(file), text.removeprefix(f"{file} ")
    return str(path), text
