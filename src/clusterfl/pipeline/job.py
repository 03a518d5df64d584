"""A job: its files, its settings, and digests of what its result depends on. No torch is imported here."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config.federation import Dataset
from ..data import DATASETS
from ..errors import UserError
from ..registry import PACKAGE, find_file
from ..storage import digest
from ..storage.manifest import manifest_path
from ..storage.store import DATA, RESULTS, read_json
from . import revisions
from .chain import STAGES, Stage

TEMPLATES = PACKAGE / "report" / "templates"  # part of the report's code


@dataclass(frozen=True)
class Job:
    """One unit of work: a job of Snakemake, or one command of the command line."""

    stage: str
    study: str
    federation: str | None
    seed: int | None
    name: str | None
    settings: dict[str, Any]  # all that the result depends on, except inputs and code
    inputs: dict[str, Path]
    outputs: dict[str, Path]
    modules: tuple[str, ...]  # the result depends on their code, and on that of the modules that they import
    upstream: dict[str, Job] = field(default_factory=dict)  # the job that makes each input
    config: tuple[Path, ...] = ()
    codes: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)  # the plan's cache of code digests
    folders: tuple[str, ...] = ()  # of a download: folders of the user's modules
    part: int | None = None  # the number of a trial or shard
    parts: tuple[str, ...] = ()  # the parts that it uses, as named in `revisions`

    @property
    def kind(self) -> Stage:
        """Its stage's declaration."""
        return STAGES[self.stage]

    @property
    def label(self) -> str | None:
        """The name; for a trial or shard, with its number."""
        return self.name if self.part is None else f"{self.name}, {self.kind.part} {self.part}"

    @property
    def first(self) -> Path:
        """Its first file, which identifies it and determines where its manifest is."""
        return next(iter(self.outputs.values()))

    @property
    def identity(self) -> dict[str, Any]:
        """The entries of its manifest that identify it; a dataset belongs to no study."""
        if self.stage == "download":
            return {"stage": self.stage, "name": self.name}
        identity = {"stage": self.stage, "study": self.study, "name": self.label}
        return identity | {"federation": self.federation, "seed": self.seed}

    @cached_property
    def settings_digest(self) -> str:
        """Digest of the settings; of a report also of the order in which it shows federations and methods."""
        shown = [[*self.settings[blocks]] for blocks in ("federations", "methods")] if self.stage == "report" else []
        return digest.of_text(digest.canonical(self.settings) + "".join(map(digest.canonical, shown)))

    @property
    def code_digest(self) -> str:
        """Digest of the code that computes, and of its parts' revisions above 1."""
        if self.modules not in self.codes:
            code = digest.of_code(self.modules, texts=self.stage == "report")
            pages = map(digest.of_file, sorted(TEMPLATES.iterdir())) if self.stage == "report" else ()
            self.codes[self.modules] = digest.of_text("".join([code, *pages]))
        later = {part: number for part, number in revisions.of(self.parts).items() if number != 1}
        code = self.codes[self.modules]
        return digest.of_text(code + digest.canonical(later)) if later else code

    @cached_property
    def revisions(self) -> dict[str, int]:
        """The revisions of all parts that it and its upstream jobs use."""
        found = revisions.of(self.parts)
        for job in self.upstream.values():
            found |= job.revisions
        return dict(sorted(found.items()))

    @property
    def unfinished(self) -> Path:
        """The folder of its checkpoint and lock, until it is done; a download has neither."""
        parts = (self.stage, self.federation, None if self.seed is None else f"seed{self.seed}", self.name)
        words = [str(part) for part in (*parts, self.part and f"{self.kind.part}{self.part}") if part]
        return RESULTS / self.study / ".work" / ".".join(words)

    @property
    def command(self) -> str:
        """The command that runs this job."""
        if self.stage == "download":
            where = [word for folder in self.folders for word in ("--modules", folder)]
            given = [f"--option={name}={json.dumps(value)}" for name, value in self.settings["given"].items()]
            return shlex.join(["clusterfl", "download", self.settings["dataset"], *given, *where])
        words = ["clusterfl", self.stage, "--config", *map(str, self.config)]
        if self.federation is not None:
            words += ["--federation", self.federation, "--seed", str(self.seed)]
        if self.name is not None:
            words += [f"--{self.kind.block}", self.name]
        if self.part is not None:
            words += [f"--{self.kind.part}", str(self.part)]
        return shlex.join(words)

    def __str__(self) -> str:
        parts = [self.stage, self.label, self.federation, None if self.seed is None else f"seed {self.seed}"]
        return " ".join(p for p in parts if p)


def outputs(stage: str, place: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of a stage; `place` has the values for the braces in their paths."""
    folders = {"results": RESULTS, "data": DATA}
    return {key: Path(one.path.format(**folders, **place)) for key, one in STAGES[stage].outputs.items()}


def missing(paths: Iterable[str]) -> list[str]:
    """Return which of the user's files or folders no longer exist."""
    gone = []
    for path in paths:
        try:
            find_file(path)
        except UserError:
            gone.append(path)
    return gone


def _digests_read(samples: Path) -> Mapping[str, str]:
    """Return the digests that the user's files had when a dataset was read; empty if they aren't known."""
    with contextlib.suppress(UserError):
        found = read_json(manifest_path(samples))
        if isinstance(found, dict) and isinstance(found.get("own"), dict):
            return {str(path): str(known) for path, known in found["own"].items()}
    return {}


def download(dataset: Dataset, folders: Iterable[str] = (), sources: bool = True) -> Job:
    """Return the job that fetches a dataset; it belongs to no study.

    The digests of the user's own files are part of its settings, so a changed file is read again. Without `sources` a
    file that no longer exists has the digest from when it was read.
    """
    modules = ("clusterfl.pipeline.stages.download", DATASETS.spec(dataset.part).partition(":")[0])
    options, files = dataset.options(), dataset.files()
    own = tuple(folders) if ":" in dataset.part or files else ()
    settings = {"dataset": dataset.part, "options": options, "given": dataset.model_extra or {}}
    named, files_of = (f"dataset {dataset.part}",), outputs("download", {"name": dataset.folder})
    if files:
        gone = [] if sources else missing(options[name] for name in files)
        kept = _digests_read(files_of["samples"]) if gone else {}
        settings["files"] = {
            path: kept.get(path, "") if path in gone else digest.of_path(find_file(path))
            for path in (options[name] for name in files)
        }
    return Job("download", "", None, None, dataset.folder, settings, {}, files_of, modules, folders=own, parts=named)
