"""The jobs of a study: names, files, settings and digests, for every stage.

The command line and the Snakefile both use this plan, so they run the same work on the same files. Nothing here imports
torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import streams
from ..clustering import CLUSTERERS
from ..clustering.distances import METRICS
from ..config import loading
from ..config.federation import Dataset, Model
from ..config.study import Study
from ..data import MIRROR, PARTITIONS
from ..errors import UserError, choices
from ..methods import METHODS
from ..models import MODELS
from ..privacy.settings import WRAPPER
from ..registry import SEARCHED, Registry
from ..storage.store import RESULTS, write_json
from . import revisions
from .chain import METHOD, STAGES
from .job import Job, download, outputs

_KEPT: dict[tuple[Any, ...], Plan] = {}  # of `Plan.keep`, by folder, files and their contents


class Plan:
    """The jobs of a study; each is made once, although a workflow asks for it several times."""

    def __init__(self, study: Study, files: tuple[Path, ...] = (), sources: bool = True):
        self.study, self.files, self.sources = study, files, sources
        self._made: dict[tuple[Any, ...], Job] = {}
        self._studies: dict[str, Study] = {}  # by federation
        self._codes: dict[tuple[str, ...], str] = {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], files: Sequence[Path | str] = (), sources: bool = True) -> Plan:
        """Check settings and return the plan. The user's modules and data may be in the same folders as the `files`.

        Without `sources` the user's data may be missing, as for a finished study; see `pipeline.job.download`.

        Raises
        ------
        UserError
            If the settings are wrong.
        """
        paths = [Path(os.path.relpath(f)) for f in files]
        beside = sorted({str(p.parent) for p in paths} - {"."})
        named = settings.get("modules", []) if isinstance(settings.get("modules", []), list) else []
        search([".", *map(str, named), *beside])
        study = loading.load(settings, ", ".join(map(str, paths)) or "configuration", sources)
        study = study.model_copy(update={"modules": sorted({*study.modules, *beside})})
        return cls(study, tuple(paths), sources)._announced()

    @classmethod
    def from_files(cls, files: Sequence[Path | str], sources: bool = True) -> Plan:
        """Read, merge and check files and return the plan; `sources` as for `from_settings`."""
        kept = _KEPT.get(_contents(files)) if _KEPT else None
        if kept is not None:
            return kept._announced()
        return cls.from_settings(loading.read([Path(os.path.relpath(f)) for f in files]), files, sources)

    @classmethod
    def keep(cls, files: Sequence[Path | str]) -> Plan:
        """Return the plan of `from_files` and store it: this process and its forks get it without another check.

        For the jobs of one run, because checking e.g. the settings of CLoVE's study takes half a second.
        """
        plan = _KEPT[_contents(files)] = cls.from_files(files)
        return plan

    def _announced(self) -> Plan:
        if self.study.mirror is not None:  # also for child processes; the mirror isn't part of any job's settings
            os.environ[MIRROR] = self.study.mirror
        return self

    @property
    def snapshot(self) -> Path:
        """The file in which a run stores its settings, for its jobs."""
        return RESULTS / self.study.study / "settings.json"

    def on(self, federation: str) -> Study:
        """Return the study with the settings of one federation."""
        if federation not in self._studies:
            self._studies[federation] = self.study.on(federation)
        return self._studies[federation]

    def save(self) -> None:
        """Write the snapshot; methods keep their order, which tables and figures use."""
        write_json(self.snapshot, self.study.model_dump(mode="json"), in_order=True)

    def job(self, stage: str, federation: str | None = None, seed: int | None = None, name: str | None = None,
            part: int | None = None) -> Job:  # fmt: skip
        """Return one job.

        Raises
        ------
        UserError
            If the study has no such stage, federation, seed, block, trial or shard.
        """
        if stage not in STAGES:
            raise UserError(f"unknown stage '{stage}'; {choices(STAGES, stage)}")
        per_run = stage not in ("download", "report")
        if per_run:
            self._known("federation", federation, self.study.federations)
            self._known("seed", seed, self.study.seeds.runs)
        kind = STAGES[stage].block
        if kind:
            self._known(kind, name, self._blocks(kind, federation))
        if kind == "method":
            self._known_trial(stage, str(name), part)
        if stage == "losses":
            self._known_shard(str(name), part)
        return self._one(stage, federation, seed, name, part)

    def _one(self, stage: str, federation: str | None = None, seed: int | None = None, name: str | None = None,
             part: int | None = None) -> Job:  # fmt: skip
        key = (stage, federation, seed, name, part)
        if key not in self._made:
            where = (federation, seed, name) if part is None else (federation, seed, name, part)
            self._made[key] = getattr(self, f"_{stage}")(*where)
        return self._made[key]

    def _known_trial(self, stage: str, method: str, trial: int | None) -> None:
        """Raise an error for a trial that doesn't exist or is missing, or a selection without a sweep."""
        trials = len(self.study.methods[method].grid())
        if stage == "select" and not trials:
            raise UserError(f"--method: '{method}' sweeps nothing; {choices(self.swept)}")
        if stage == "federate" and trials and trial not in range(1, trials + 1):
            found = "is missing" if trial is None else f"'{trial}' isn't in the sweep"
            raise UserError(f"--trial: {found}; the sweep of method '{method}' has trials 1 to {trials}")
        if trial is not None and not trials:
            raise UserError(f"--trial: method '{method}' sweeps nothing; omit --trial")

    def _known_shard(self, name: str, shard: int | None) -> None:
        shards = self.study.distances[name].shards
        if shards == 1:
            raise UserError(f"--distance: '{name}' has no shards; its losses are measured by: clusterfl distance")
        if shard not in range(1, shards + 1):
            found = "is missing" if shard is None else f"'{shard}' isn't one of them"
            raise UserError(f"--shard: {found}; distance '{name}' has shards 1 to {shards}")

    @property
    def swept(self) -> list[str]:
        """The methods that have a sweep."""
        return [name for name, method in self.study.methods.items() if method.sweep]

    def result(self, federation: str, seed: int, method: str) -> Job:
        """Return the job whose outputs are a method's scores and models: for a swept method, that of stage select."""
        return self.job("select" if method in self.swept else "federate", federation, seed, method)

    def _known(self, kind: str, value: Any, allowed: Any) -> None:
        if value not in allowed:
            raise UserError(f"--{kind}: '{value}' isn't in the configuration; {choices(map(str, allowed), str(value))}")

    def _blocks(self, kind: str, federation: str | None) -> list[str]:
        if kind == "dataset":
            return [self._dataset(f, run).folder for f in self.study.federations for run in self.study.seeds.runs]
        return list(getattr(self.on(str(federation)), f"{kind}s"))

    def jobs(self, wanted: Sequence[Job] | None = None) -> Iterator[Job]:
        """Yield every job that the report (or the wanted jobs) needs, once each, in an order in which they can run."""
        seen: set[tuple[Path, ...]] = set()

        def visit(job: Job) -> Iterator[Job]:
            key = tuple(job.outputs.values())
            if key not in seen:
                seen.add(key)
                for other in job.upstream.values():
                    yield from visit(other)
                yield job

        for job in [self._one("report")] if wanted is None else wanted:
            yield from visit(job)

    def part(
        self,
        federations: Collection[str] | None = None,
        methods: Collection[str] | None = None,
        seeds: Collection[int] | None = None,
        places: Iterable[tuple[str, str]] | None = None,
    ) -> list[Job]:
        """Return the jobs with the methods' results in a part of the study.

        Parameters
        ----------
        federations, methods, seeds
            Those wanted; None: all.
        places
            Pairs of federation and method, e.g. those of one table; None: all.

        Raises
        ------
        UserError
            If a name isn't in the study, or no job is left.
        """
        known = {"federation": self.study.federations, "method": self.study.methods, "seed": self.study.seeds.runs}
        given = {
            kind: values
            for kind, values in (("federation", federations), ("method", methods), ("seed", seeds))
            if values is not None
        }
        for kind, values in given.items():
            for value in values:
                self._known(kind, value, known[kind])
        allowed = None if places is None else set(places)
        found = [
            self.result(place, run, name)
            for place in self.study.federations
            for run in self.study.seeds.runs
            for name in self.on(place).methods
            if place in given.get("federation", [place]) and name in given.get("method", [name])
            and run in given.get("seed", [run]) and (allowed is None or (place, name) in allowed)
        ]  # fmt: skip
        if not found:
            words = [f"--{kind} {value}" for kind, values in given.items() for value in values]
            words += ["the table"] if allowed is not None else []
            raise UserError(f"study '{self.study.study}' has no run with {' and '.join(words)}; give fewer of these")
        return found

    def _make(self, stage: str, federation: str | None, seed: int | None, name: str | None,
              settings: dict[str, Any], parts: list[tuple[Registry, str]], upstream: dict[str, Job],
              part: int | None = None) -> Job:  # fmt: skip
        wrapper = [WRAPPER] if settings.keys() & {"rebalance", "privacy"} else []
        folder = f"{name}/trials/{part}" if stage == "federate" and part is not None else name
        place = {"study": self.study.study, "federation": federation, "seed": seed, "name": folder, "part": part}
        inputs = {key: job.outputs[key.rpartition(".")[2]] for key, job in upstream.items()}
        modules = [registry.spec(own).partition(":")[0] for registry, own in parts] + wrapper
        code = (f"clusterfl.pipeline.stages.{stage}", *modules)
        named = [f"{registry.kind} {own}" for registry, own in parts]
        named += revisions.of_options(named[:1], settings.get("options", {}))
        named += ["engine"] * STAGES[stage].trains + ["wrapper"] * len(wrapper) + ["privacy"] * ("privacy" in settings)
        identity = (stage, self.study.study, federation, seed, name)
        return Job(
            *identity, settings, inputs, outputs(stage, place), code, upstream, self.files, codes=self._codes,
            part=part, parts=tuple(named),
        )  # fmt: skip

    def _download(self, federation: str | None, seed: int | None, name: str) -> Job:
        runs = ((name, run) for name in self.study.federations for run in self.study.seeds.runs)
        found = (self._dataset(*run) for run in runs)
        return download(next(dataset for dataset in found if dataset.folder == name), self.study.modules, self.sources)

    def _dataset(self, federation: str, seed: int) -> Dataset:
        return self.study.federations[federation].dataset.for_run(streams.derive(seed, self.study.seeds.data))

    def _partition(self, federation: str, seed: int, name: str | None = None) -> Job:
        block = self.study.federations[federation]
        settings = block.partition.resolved() | {"seed": streams.derive(seed, self.study.seeds.data)}
        upstream = {"samples": self._one("download", name=self._dataset(federation, seed).folder)}
        return self._make("partition", federation, seed, None, settings, [(PARTITIONS, block.partition.part)], upstream)

    def _data(self, federation: str, seed: int) -> dict[str, Job]:
        partition = self._one("partition", federation, seed)
        return {"samples": partition.upstream["samples"], "partition": partition}

    def _engine(self, federation: str, seed: int, training: dict[str, Any], model: Model) -> dict[str, Any]:
        """Return the settings of a job with an engine, without chunk and workers, which change no bit."""
        seeds = self.study.seeds
        return {
            "model": model.resolved(),
            "inputs": self.study.federations[federation].inputs.model_dump(mode="json"),
            "training": training,
            "device": self.study.engine.device,
            "precision": self.study.engine.precision,
            "backend": self.study.engine.backend,
            "model_seed": streams.derive(seed, seeds.model),
            "sampling_seed": streams.derive(seed, seeds.sampling),
        }

    def _warmup(self, federation: str, seed: int, name: str) -> Job:
        block = self.on(federation).warmups[name]
        overrides = block.training | {"rounds": block.rounds}
        training = self.study.training_for(federation, overrides).model_dump(mode="json")
        model = self.study.model_for(federation)
        settings = self._engine(federation, seed, training, model)
        users = [d for d in self.study.distances.values() if d.warmup == name]
        settings["gradients"] = any(METRICS.input(d.metric) == "gradients" for d in users)
        if any(METRICS.input(d.metric) == "deltas" for d in users):  # left out otherwise, which keeps older digests
            settings["deltas"] = True
        parts = [(MODELS, model.part)]
        return self._make("warmup", federation, seed, name, settings, parts, self._data(federation, seed))

    def _distance(self, federation: str, seed: int, name: str) -> Job:
        block = self.study.distances[name]
        warmup = self._one("warmup", federation, seed, block.warmup)
        plain = self.study.federations[federation].inputs.augment == "none"
        data = "all" if block.data == "augmented" and plain else block.data
        settings = block.resolved() | {"data": data} | {
            key: warmup.settings[key] for key in ("model", "inputs", "device", "precision")
        }  # fmt: skip
        drawn = {} if block.landmarks is None else {"landmarks": block.landmarks}
        if drawn or data == "augmented":
            settings |= drawn | {"seed": streams.derive(seed, self.study.seeds.sampling)}
        parts = [(METRICS, block.metric), (MODELS, self.study.model_for(federation).part)]
        upstream = self._data(federation, seed) | {"clients": warmup}
        whole = self._make("distance", federation, seed, name, settings, parts, upstream)
        return whole if block.shards == 1 else self._gathered(whole, parts, block.shards)

    def _gathered(self, whole: Job, parts: list[tuple[Registry, str]], shards: int) -> Job:
        """Return a distance's job that gets its losses from shards, which are separate jobs."""
        address, made = (str(whole.federation), int(whole.seed or 0), whole.name), {}
        for shard in range(1, shards + 1):
            settings = whole.settings | {"shard": shard, "shards": shards}
            made[f"shard{shard}.losses"] = self._make("losses", *address, settings, parts, whole.upstream, shard)
        return self._make("distance", *address, whole.settings, parts, whole.upstream | made)

    def _losses(self, federation: str, seed: int, name: str, shard: int) -> Job:
        return self._one("distance", federation, seed, name).upstream[f"shard{shard}.losses"]

    def _cluster(self, federation: str, seed: int, name: str) -> Job:
        block = self.on(federation).clusterings[name]
        settings = block.resolved() | block.number()
        settings["seed"] = streams.derive(seed, self.study.seeds.sampling)
        upstream = {"distance": self._one("distance", federation, seed, block.distance)}
        return self._make("cluster", federation, seed, name, settings, [(CLUSTERERS, block.clusterer)], upstream)

    def _federate(self, federation: str, seed: int, name: str, trial: int | None = None) -> Job:
        block = self.on(federation).methods[name]
        if trial is not None:
            block = block.trial(block.grid()[trial - 1])
        training = self.study.training_for(federation, block.training).model_dump(mode="json")
        model = self.study.model_for(federation, block)
        settings = self._engine(federation, seed, training, model) | block.resolved()
        upstream = self._data(federation, seed)
        settings["clustering"] = block.clustering
        if METHODS[block.method].copies > 1:  # left out otherwise, which keeps older digests
            settings["copies"] = METHODS[block.method].copies
        if trial is not None:
            settings["trial"] = True  # if it diverges, that is recorded and doesn't stop the run
        if block.clustering is not None:
            cluster = self._one("cluster", federation, seed, block.clustering)
            distance = cluster.upstream["distance"]
            warmup = distance.upstream["clients"]
            upstream |= {"clusters": cluster, "distance": distance}
            if settings["options"].get("start") == "members":
                upstream["clients"] = warmup
            upstream |= {f"warmup.{key}": warmup for key in ("common", "history", "rounds")}
        parts = [(METHODS, block.method), (MODELS, model.part)]
        wrapped = block.model_dump(mode="json", include={"rebalance", "privacy"}, exclude_none=True)
        return self._make("federate", federation, seed, name, settings | wrapped, parts, upstream, trial)

    def _trials(self, federation: str, seed: int, name: str) -> dict[int, Job]:
        numbers = range(1, len(self.on(federation).methods[name].grid()) + 1)
        return {number: self._one("federate", federation, seed, name, number) for number in numbers}

    def _select(self, federation: str, seed: int, name: str) -> Job:
        score = self.study.score.model_dump(mode="json") | {"split": "validation"}
        settings = {"trials": self.on(federation).methods[name].grid(), "score": score, "seeds": self.study.seeds.runs}
        upstream = {
            f"seed{run}/{number}.{key}": job
            for run in self.study.seeds.runs
            for number, job in self._trials(federation, run, name).items()
            for key in (METHOD if run == seed else ("history", "rounds"))
        }
        return self._make("select", federation, seed, name, settings, [], upstream)

    def _report(self, *_: None) -> Job:
        upstream: dict[str, Job] = {}
        for federation in self.study.federations:
            for seed in self.study.seeds.runs:
                place = f"{federation}/seed{seed}"
                partition = self._one("partition", federation, seed)
                upstream |= {f"{place}/partition.{key}": partition for key in ("partition", "classes")}
                for method in self.on(federation).methods:
                    job = self.result(federation, seed, method)
                    keys = ["history", "classes", "rounds", "clusters", *(["models"] if self.several(method) else [])]
                    upstream |= {f"{place}/methods/{method}.{key}": job for key in keys}
                    for number, trial in self._trials(federation, seed, method).items():
                        upstream[f"{place}/methods/{method}.sweep"] = job
                        upstream[f"{place}/methods/{method}/trials/{number}.history"] = trial
                for name in self._used(federation):
                    job = self._one("cluster", federation, seed, name)
                    upstream |= {f"{place}/clusters/{name}.{key}": job for key in ("clusters", "scores")}
                    warmup = job.upstream["distance"].upstream["clients"]
                    upstream[f"{place}/warmup/{warmup.name}.history"] = warmup
                    upstream[f"{place}/distance/{job.upstream['distance'].name}.distance"] = job.upstream["distance"]
        settings = self.study.model_dump(mode="json", exclude={"mirror", "modules", "claims"})
        return self._make("report", None, None, None, settings, [], upstream)

    def several(self, method: str) -> bool:
        """Return whether the report may need a method's file of models: for losses, splits or rebalanced sizes."""
        block = self.study.methods[method]
        choosing = block.clustering is None and "clusters" in METHODS.options(block.method).model_fields
        return choosing or METHODS[block.method].splits or block.rebalance is not None or "rebalance" in block.sweep

    def _used(self, federation: str) -> list[str]:
        blocks = [m.trial(values) for m in self.on(federation).methods.values() for values in m.grid() or [{}]]
        return sorted({block.clustering for block in blocks if block.clustering is not None})


def search(folders: Iterable[str]) -> None:
    """Add folders in which the user's modules and data are looked for."""
    for folder in folders:
        if folder not in SEARCHED:
            SEARCHED.insert(0, folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        # Python caches a relative folder at its first use, even if the working folder has changed since.
        sys.path_importer_cache.pop(folder, None)


def _contents(files: Sequence[Path | str]) -> tuple[Any, ...]:
    """Return what a plan of these files depends on, for as long as no source file changes."""
    try:
        return os.getcwd(), *((os.path.relpath(file), Path(file).read_bytes()) for file in files)
    except OSError:
        return ()  # reading the files will raise the error
