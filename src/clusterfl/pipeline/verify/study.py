"""Every result of a study, in the order in which they are made: what is damaged, and what makes exactly that again.

A result is damaged if a file is missing, isn't the one that its manifest lists, comes from other settings or other
inputs, or holds what it can't hold. What was made from a damaged result by what its manifest says now is judged like
any other; what was made from it as it was before waits until that is rebuilt, and is only counted. Other code or other
versions of packages are no damage: they are warnings.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import UserError, choices
from ...progress import bar
from ...storage.store import (
    RESULTS,
    first_line,
    manifest_path,
    read_json,
    same_content,
    timing_path,
    unsealed,
    verified,
    versions,
)
from ..job import Job
from ..jobs import Plan

CLIENTS = 8  # of each result whose final accuracies are evaluated again


@dataclass(frozen=True)
class Damage:
    """One damaged file, and the command that makes exactly that again."""

    file: str
    problem: str
    command: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}; rebuild it: {self.command}"


@dataclass
class Verdict:
    """What was found; the damages in the order in which they are to be mended."""

    study: str
    results: int = 0
    files: int = 0
    accuracies: int = 0  # evaluated again
    waiting: list[str] = field(default_factory=list)  # results that follow from damaged ones
    damages: list[Damage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages

    def json(self) -> str:
        """Return all of it as a JSON object."""
        return json.dumps({"sound": self.sound} | asdict(self), indent=1)

    def __str__(self) -> str:
        lines = [f"warning: {text}" for text in self.warnings] + [str(damage) for damage in self.damages]
        checked = f"{_count(self.results, 'result')}, {_count(self.files, 'file')}, " \
                  f"{_count(self.accuracies, 'accurac', 'y', 'ies')} evaluated again"  # fmt: skip
        found = "sound" if self.sound else _count(len(self.damages), "damage")
        if len(self.damages) > 1:
            found += ", to be mended in this order"
        if self.waiting:
            found += f"; {_count(len(self.waiting), 'result')} made from them before can be judged after that"
        return "\n".join([*lines, f"study '{self.study}': {found} ({checked})"])


def _count(number: int, word: str, one: str = "", more: str = "s") -> str:
    return f"{number:,} {word}{one if number == 1 else more}"


def named(study: str) -> Plan | Verdict:
    """Return the plan of a study that was run, from the settings that it was run with; or that they are damaged.

    Raises
    ------
    UserError
        If there is no study of that name.
    """
    path = RESULTS / study / "settings.json"
    there = sorted(p.parent.name for p in RESULTS.glob("*/settings.json"))
    if not path.parent.is_dir() or Path(study).name != study or study == "..":
        raise UserError(
            f"no study '{study}' under {RESULTS}/; {choices(there, study)}; or name its configuration: "
            "clusterfl verify --config FILE"
        )
    try:
        read_json(path, "")
        return Plan.from_files([path])
    except UserError as error:
        problem = str(error).removeprefix(f"{path} ").rstrip("; ")
        command = f"clusterfl run --config FILE (the configuration of '{study}'; what is done isn't done again)"
        return Verdict(study, damages=[Damage(str(path), problem, command)])


def verify(plan: Plan, wanted: Sequence[Job] | None = None, sample: int = CLIENTS, threads: int = 1) -> Verdict:
    """Check all results of a study, or those that the wanted ones need.

    Parameters
    ----------
    plan
        The study.
    wanted
        Jobs; all if not given.
    sample
        Clients of each result whose final accuracies are evaluated again; 0: none.
    threads
        Processes that evaluate, on a CPU; they change no bit.
    """
    jobs = list(plan.jobs(wanted))
    found = Verdict(plan.study.study, len(jobs))
    own = [job for job in jobs if job.stage != "download"]
    if not any(path.exists() for job in own for path in job.outputs.values()):
        folder, command = str(plan.snapshot.parent), f"clusterfl run --config {' '.join(map(str, plan.files))}"
        found.damages.append(Damage(folder, f"never run: none of its {len(own)} results is there", command))
        return found
    checker = _Checker(found, sample, threads, plan.study.engine.chunk)
    found.damages += _snapshot(plan)
    with bar(f"verifying {plan.study.study}", len(jobs)) as progress:
        try:
            for number, job in enumerate(jobs, 1):
                checker.check(job)
                progress(number, str(job))
        finally:
            checker.close()
    found.warnings += checker.warnings()
    return found


def _snapshot(plan: Plan) -> Iterator[Damage]:
    """Compare the settings that a run keeps with the plan's."""
    path, command = plan.snapshot, f"clusterfl run --config {' '.join(map(str, plan.files))}"
    if path in plan.files:
        return
    try:
        if read_json(path, "") != plan.study.model_dump(mode="json"):
            yield Damage(str(path), "other settings found than the configuration has now", command)
    except UserError as error:
        yield Damage(str(path), str(error).removeprefix(f"{path} ").rstrip("; "), command)


class _Checker:
    """Goes from job to job and remembers of each what those that follow must know."""

    def __init__(self, found: Verdict, sample: int, threads: int, chunk: int | None):
        self.found, self.sample, self.engine = found, sample, (threads, chunk)
        self._bad: set[tuple[Path, ...]] = set()  # damaged, or made from what is
        self._other_code: Counter[tuple[str, ...]] = Counter()
        self._other_versions: Counter[tuple[str, str, str]] = Counter()
        self._untimed: list[Path] = []
        self._replay: Any = None

    def close(self) -> None:
        if self._replay is not None:
            self.found.accuracies = self._replay.done
            self._replay.close()

    def check(self, job: Job) -> None:
        """Add what is wrong with a job's results."""
        self.found.damages += self._times(job)
        damages, manifest = self._files(job)
        waits = False
        if manifest is not None and not damages:
            damages, waits = self._inputs(job, manifest)
            damages += self._content(job, manifest, waits)
            self._told(job, manifest)
        self.found.damages += damages
        if waits and not damages:
            self.found.waiting.append(str(job))
        if damages or waits:
            self._bad.add(_key(job))

    def _files(self, job: Job) -> tuple[list[Damage], dict[str, Any] | None]:
        """Return which files aren't those that the manifest lists, and the manifest if it can be read."""
        if not any(path.exists() for path in job.outputs.values()):
            text = f"missing, with all files of {job}" if len(job.outputs) > 1 else "missing"
            return [Damage(str(job.first), text, job.command)], None
        place = manifest_path(job.first)
        damages: dict[tuple[str, str], Damage] = {}
        manifest = None
        for path in job.outputs.values():
            try:
                manifest = verified(path, job.identity, job.settings_digest, job.command, job.settings.get("files"))
                self.found.files += len(_files(path))
                problems = [
                    (str(file), "a file found that the manifest doesn't list") for file in _extra(path, manifest)
                ]
            except UserError as error:
                problems = [_sentence(error, job.command, place, path)]
            damages |= {(file, text): Damage(file, text, job.command) for file, text in problems}
        if len(job.outputs) == len(damages) > 1 and len({text for _, text in damages}) == 1:
            first = next(iter(damages.values()))  # what the manifest says is wrong is so of all its files
            return [replace(first, problem=f"{first.problem} (so are all files of {job})")], manifest
        return list(damages.values()), manifest

    def _inputs(self, job: Job, manifest: Mapping[str, Any]) -> tuple[list[Damage], bool]:
        """Return which sound inputs a result wasn't made from as they are, and whether it waits for damaged ones."""
        recorded = manifest.get("inputs", {})
        other = [(key, path) for key, path in job.inputs.items() if not _same(path, recorded.get(str(path)))]
        if other and any(_key(source) in self._bad for source in job.upstream.values()):
            return [], True
        first = str(job.first)
        return [
            Damage(first, f"made from another {path} than is there now", job.command) for _, path in other[:1]
        ], False

    def _content(self, job: Job, manifest: Mapping[str, Any], waits: bool) -> list[Damage]:
        """Return what is wrong inside files; what was made from damaged ones isn't compared with them."""
        from .content import problems

        whole = {} if waits else {k: p for k, p in job.inputs.items() if _key(job.upstream[k]) not in self._bad}
        damages: dict[str, Damage] = {}  # the first of each file
        try:
            for key, text in problems(job, manifest, whole):
                damages.setdefault(key, Damage(str(job.outputs[key]), text, job.command))
            models = job.stage in ("federate", "warmup") and "diverged" not in manifest
            if models and self.sample and not damages and len(whole) == len(job.inputs):
                if self._replay is None:
                    from .replay import Replay

                    self._replay = Replay(self.sample, *self.engine)
                for key, text in self._replay(job, manifest):
                    damages.setdefault(key, Damage(str(job.outputs[key]), text, job.command))
        except (UserError, OSError, LookupError, TypeError, ValueError) as error:  # of what no check foresees
            file = str(job.first)
            damages.setdefault("", Damage(file, f"can't be checked: {type(error).__name__}: {error}", job.command))
        return list(damages.values())

    def _told(self, job: Job, manifest: Mapping[str, Any]) -> None:
        """Count what is no damage: other code, other versions, no times."""
        if manifest.get("code") != job.code_digest:
            self._other_code[job.modules] += 1
        here = versions()
        for name, version in manifest.get("versions", {}).items():
            if here.get(name) != version:
                self._other_versions[name, version, here.get(name, "none")] += 1
        if not timing_path(job.first).exists():
            self._untimed.append(timing_path(job.first))

    def _times(self, job: Job) -> list[Damage]:
        """Return what is wrong with the job's times, a file that knows its own digest; it may be missing."""
        times = timing_path(job.first)
        try:
            facts, _, wrong = unsealed(times)
        except FileNotFoundError:
            return []
        except Exception as error:  # of any kind, as the damage is
            facts, wrong = {"sha256": ""}, f"it can't be read as Parquet ({first_line(error)})"
        if not facts:
            self._untimed.append(times)
            return []
        return [Damage(str(times), f"is damaged: {wrong}", f"rm {shlex.quote(str(times))}")] if wrong else []

    def warnings(self) -> list[str]:
        """Return what is worth a word and no damage."""
        lines = [
            f"{_count(number, 'result')} made by other code than is installed, that of {', '.join(modules)} or of what "
            "they import; clusterfl run makes them again"
            for modules, number in self._other_code.items()
        ]
        lines += [
            f"{_count(number, 'result')} made with {name} {then}; {now} is installed"
            for (name, then, now), number in self._other_versions.items()
        ]
        if self._untimed:
            lines.append(
                f"{_count(len(self._untimed), 'file')} of times missing or without a digest, the first is "
                f"{self._untimed[0]}; no result depends on them"
            )
        return lines


def _key(job: Job) -> tuple[Path, ...]:
    return tuple(job.outputs.values())


def _same(path: Path, recorded: str | None) -> bool:
    """Return whether an input's content is what a result was made from; False where it can't be had."""
    try:
        return same_content(path, recorded)
    except (UserError, LookupError, OSError, TypeError):
        return False


def _files(path: Path) -> list[Path]:
    return [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")] if path.is_dir() else [path]


def _extra(path: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Return the files of a folder that the manifest doesn't list: a stage that reads the folder would read them."""
    base = manifest_path(path).parent
    return [p for p in _files(path) if p.relative_to(base).as_posix() not in manifest["files"]]


def _sentence(error: UserError, command: str, place: Path, path: Path) -> tuple[str, str]:
    """Return the file that a message of `verified` is about, and what it says without the next step."""
    text = str(error).partition(f"rebuild it: {command}")[0].removesuffix("or ").rstrip("; ,")
    for file in (place, path):
        if text.startswith(f"{file}"):
            rest = text.removeprefix(str(file))
            if rest.startswith("/"):  # of a folder: the file in it
                inner, _, rest = rest.partition(" ")
                return f"{file}{inner}", rest
            return str(file), rest.strip()
    return str(path), text
