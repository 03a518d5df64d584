"""Predicted costs of each job of a study, computed from sizes, settings and a few measured speeds.

seconds = start + work + bytes read and written. Work, with M clients, r landmarks (or M) and K models of P numbers: for
rounds, the counts of `rounds` times the speeds of `speed`; for a distance, M x r forward passes and the metric; for a
clustering, the clusterer on r synthetic clients; for the report, its figures. memory = the process, its samples twice
(the file's pages count as well), what training a few clients used, and 4 P bytes for each row of models, sums and other
such arrays that aren't in files. sent = as the ledger counts. A federation is drawn for one seed, used for all.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ...clustering.choice import find
from ...clustering.distances import METRICS
from ...data.federation import Federation
from ...data.inputs import Inputs
from ...data.load import clients
from ...engine.engine import Engine
from ...engine.training import Training
from ...methods import METHODS
from ...simulation.ledger import BYTES_PER_NUMBER
from ...storage.blocks import BLOCK_BYTES
from ...storage.digest import canonical
from ...storage.row_store import DISK_BYTES
from ..execute import is_done
from ..job import Job
from ..jobs import Plan
from ..stages import distance
from ..stages.common import engine_of
from . import speed, startup
from .data import FewSamples, Missing, Place, fetched, samples_of, size
from .rounds import TABLE, Needs, Unknown, needs

SAMPLE, LABEL = 3.0, 5.0  # bytes in Parquet files: of a partition's sample, of a client's cluster
FIRST = 8  # clients that represent all clients for a metric of samples


@dataclass(frozen=True)
class JobRow:
    """A job's estimate; numbers are None if they can't be predicted, and `note` says why."""

    stage: str
    name: str | None
    federation: str | None
    seed: int | None
    done: bool
    seconds: float | None = None
    start: float | None = None  # the part of the seconds for starting the process
    memory: float | None = None  # bytes, as are the next two
    disk: float | None = None
    sent: int | None = None
    known: bool = True  # whether `sent` is independent of how training goes
    note: str = ""


@dataclass(frozen=True)
class Demand:
    """The costs of a job's work, without those of its start and its files."""

    seconds: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    sent: float = 0.0
    known: bool = True
    note: str = ""


class Estimate:
    """A study's estimates, `rows`, in the order of its `jobs`, and the measurements for them.

    Parameters
    ----------
    wanted
        Only these jobs and what they need; None: all.

    Raises
    ------
    UserError
        If a method can't run with its settings or on its federation.
    """

    def __init__(self, plan: Plan, threads: int = 1, wanted: Sequence[Job] | None = None):
        began = perf_counter()
        self.plan, self.threads, self.jobs, self.whole = plan, threads, list(plan.jobs(wanted)), wanted is None
        self.places: dict[str, Place | Missing] = {}  # by federation
        self.speeds: dict[tuple[str, int], speed.Speed] = {}  # by `_where`; similar engines share one
        self._found: dict[Hashable, Any] = {}  # cache of measurements and counts
        with tempfile.TemporaryDirectory(prefix="clusterfl-") as name:
            self.byte = speed.storage(Path(name))
            for job in self.jobs:
                if job.stage == "partition" and job.federation not in self.places:
                    self.places[str(job.federation)] = self._drawn(job, Path(name))
                elif job.stage in ("warmup", "federate") and _where(job) not in self.speeds:
                    self._measure(job)
            self.starts = startup.measure(plan.files, dict.fromkeys(map(startup.imports, self.jobs)))
            sizes = [place.federation.clients for place in self.places.values() if isinstance(place, Place)]
            self.figure = speed.figure(Path(name), max(sizes, default=1)) if self.whole else (0.0, 0.0)
        self.by_job: dict[Path, JobRow] = {}
        for job in self.jobs:
            self.by_job[job.first] = self._row(job)
        self.rows = list(self.by_job.values())
        self.seconds = perf_counter() - began

    def _once(self, key: Hashable, work: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = work()
        return self._found[key]

    def _drawn(self, job: Job, folder: Path) -> Place | Missing:
        download = job.upstream["samples"]
        try:
            samples, seconds = self._once(download.first, lambda: samples_of(download, folder))
        except Missing as missing:
            return missing
        place = Place.of(job, samples, self.plan.study.federations[str(job.federation)].inputs)
        return replace(place, reading=seconds)

    def _measure(self, job: Job) -> None:
        """Measure the engine of a federation and model with its first job's settings, or reuse a similar one's."""
        place = self.places[str(job.federation)]
        if isinstance(place, Missing):
            return

        def make() -> Engine:
            federation = clients(place.samples, place.table, Inputs(**job.settings["inputs"]))  # as a job does it
            training = Training(**job.settings["training"])
            return engine_of(job.settings, federation, training, place.newcomers, self.plan.study.engine.chunk)

        sizes = place.federation.splits["train"].sizes
        shape = [job.settings[key] for key in ("model", "inputs", "device", "precision", "backend")]
        shape += [_where(job)[1]]
        shape += [place.samples.x.shape[1:], place.federation.classes]
        shape += [round(math.log2(number)) for number in (len(sizes), sizes.mean())]
        self.speeds[_where(job)] = self._once(canonical(shape), lambda: speed.Speed(make))

    def _place(self, job: Job) -> Place:
        place = self.places[str(job.federation)]
        assert isinstance(place, Place)
        return place

    def _row(self, job: Job) -> JobRow:
        upstream = [self.by_job[other.first] for other in distinct(job)]
        row = JobRow(job.stage, job.label, job.federation, job.seed, all(r.done for r in upstream) and is_done(job))
        near = self.places if job.stage == "report" else self._users(job)
        missing = [place for name, place in self.places.items() if isinstance(place, Missing) and name in near]
        if missing:
            return replace(row, note=str(missing[0]))
        start, memory = self.starts[startup.imports(job)]
        try:
            work = self.work(job)
        except Unknown as unknown:
            return replace(row, note=str(unknown))
        files = work.disk + sum(other.disk or 0.0 for other in upstream)
        found = vars(work) | {"seconds": start + work.seconds + files * self.byte, "start": start}
        return replace(row, **found | {"memory": memory + work.memory, "sent": round(work.sent)})

    def work(self, job: Job) -> Demand:
        """Return the costs of a job's work; the job needn't be in the plan if its federation is."""
        found: Demand = getattr(self, f"_{job.stage}")(job)
        return found

    def _users(self, job: Job) -> list[str]:
        """Return the federations that use a job's result; a dataset may be used by several."""
        if job.stage != "download":
            return [str(job.federation)]
        return [str(other.federation) for other in self.jobs if job.first in other.inputs.values()]

    def _download(self, job: Job) -> Demand:
        place = self.places[self._users(job)[0]]
        assert isinstance(place, Place)
        note = "seconds of reading it; fetching isn't predicted" if fetched(job) else ""
        return Demand(place.reading, size(place.samples), size(place.samples), note=note)

    def _partition(self, job: Job) -> Demand:
        place, table = self._place(job), self._place(job).table
        memory = sum(column.nbytes for column in table.values())
        return Demand(place.seconds, memory, 3 * TABLE + SAMPLE * len(table["sample"]))

    def _needs(self, job: Job) -> Needs:
        """Return what a job's rounds need; all seeds share it, unless their clusters are already known."""
        settings = {key: value for key, value in job.settings.items() if not key.endswith("_seed")}
        seed = job.seed if "clusters" in job.upstream and is_done(job.upstream["clusters"]) else None
        layout = self.speeds[_where(job)].layout
        key = job.stage, job.federation, seed, canonical(settings)
        found: Needs = self._once(key, lambda: needs(job, self._place(job), layout))
        return found

    def _data(self, job: Job) -> float:
        """Return the bytes that every job with an engine needs; samples count twice, because of their file's pages."""
        return 2.0 * size(self._place(job).samples) + self.speeds[_where(job)].memory

    def _federate(self, job: Job) -> Demand:
        engine, need = self.speeds[_where(job)], self._needs(job)
        seconds, model = engine.engine + engine.of(need, self.threads), 4.0 * engine.layout.columns
        arrays = [model * need.models, 2 * model * need.models, *(model * rows for rows in need.beside)]
        memory = self._data(job) + (0 if self.threads == 1 else self.threads) * engine.memory
        memory += sum(bytes_ for bytes_ in arrays if bytes_ < DISK_BYTES)  # larger ones are in files
        memory += max(9 * model, min(9 * model * need.models, BLOCK_BYTES))  # while the server merges
        return Demand(seconds, memory, need.disk + model * need.stored, need.sent, need.known)

    _warmup = _federate

    def _losses(self, job: Job) -> Demand:
        federation, engine = self._place(job).federation, self.speeds[_where(job)]
        m, shards = federation.clients, job.settings["shards"]
        costs = distance.costs_of("loss", federation, engine.layout, job.settings["data"])
        seconds = engine.engine + self._scoring(job, m, costs["client_forwards"]) / shards
        return Demand(seconds, self._data(job) + 16.0 * m * m / shards, 8.0 * m * m / shards)

    def _scoring(self, job: Job, models: int, samples: float) -> float:
        """Return the seconds of measuring a distance's losses."""
        splits = len(distance.measured_on(self._place(job).federation, job.settings["data"]))
        return self.speeds[_where(job)].scoring(splits * models, samples) / self.threads

    def _distance(self, job: Job) -> Demand:
        federation, settings, engine = self._place(job).federation, job.settings, self.speeds[_where(job)]
        metric, m, losses = settings["metric"], federation.clients, METRICS.input(settings["metric"]) == "losses"
        r, chosen = m, None
        if "landmarks" in settings:
            r = min(m, settings["landmarks"])
            chosen = np.arange(r)
        costs = distance.costs_of(metric, federation, engine.layout, settings["data"], chosen)
        seconds = engine.engine
        if losses and not any(other.stage == "losses" for other in job.upstream.values()):
            seconds += self._scoring(job, m if chosen is None else 2 * m, costs["client_forwards"])

        def compute(n: int) -> None:
            rows: Any = np.ones((n, min(n, r) if losses else engine.layout.parameter_columns), dtype=np.float32)
            given = {} if chosen is None else {"landmarks": chosen[:n]}
            if METRICS.input(metric) == "samples":
                rows = FewSamples(federation, n)
            METRICS[metric]((rows, rows, rows[:, 0]) if losses and given else rows, **given, **settings["options"])

        key = metric, canonical(settings["options"]), m, r, engine.layout.columns
        seconds += self._once(key, lambda: speed.pairs(compute, m))
        memory = self._data(job) + 24.0 * m * r + 3.0 * min(BLOCK_BYTES, 8 * engine.layout.columns * m)
        sent = costs["bytes_down"] + costs["bytes_up"] + self._left(metric, settings["options"], federation)
        return Demand(seconds, memory, 8.0 * m * r, sent)

    def _left(self, metric: str, options: dict[str, Any], federation: Federation) -> float:
        """Return the bytes that clients send for a metric of samples, extrapolated from the first clients."""
        if METRICS.input(metric) != "samples":
            return 0.0
        few = FewSamples(federation, FIRST)
        METRICS[metric](few, **options)
        return float(BYTES_PER_NUMBER * few.sent * federation.clients) / len(few)

    def _cluster(self, job: Job) -> Demand:
        m, settings = self._place(job).federation.clients, job.settings
        r = min(m, job.upstream["distance"].settings.get("landmarks", m))
        number = {key: settings[key] for key in ("clusters", "most", "margin") if key in settings}
        least = min(r, 2 + (number["most"] if isinstance(number["clusters"], str) else number["clusters"] or 1))

        def cluster(n: int) -> None:
            places = np.arange(max(n, least)) % 4 + np.random.default_rng(0).random(max(n, least))
            gaps = np.abs(places[:, None] - places)
            find(gaps, settings["clusterer"], **number, seed=settings["seed"], options=settings["options"])

        startup.load(startup.imports(job))  # imports belong to the start, not to the work
        key = settings["clusterer"], canonical([number, settings["options"]]), r
        return Demand(self._once(key, lambda: speed.pairs(cluster, r)), memory=24.0 * m * r, disk=TABLE + LABEL * m)

    def _select(self, job: Job) -> Demand:
        return Demand(disk=self.by_job[next(iter(job.upstream.values())).first].disk or 0.0)

    def _report(self, job: Job) -> Demand:
        seconds, written = self.figure
        figures = sum(map(self._figures, self.plan.study.federations))
        rows = max(map(self._history, (other for other in self.jobs if other.stage == "federate")))
        return Demand(figures * seconds, 64.0 * rows, 2.0 * figures * written)  # 8 columns of 8 bytes

    def _history(self, job: Job) -> float:
        try:
            return self._needs(job).history
        except Unknown:
            return 0.0

    def _figures(self, federation: str) -> int:
        """Return how many figures the report has for a federation, counting one for splits that may not occur."""
        study = self.plan.on(federation)
        clusterings = {j.name for j in self.jobs if j.stage == "cluster" and j.federation == federation}
        chosen = [name for name in clusterings if isinstance(study.clusterings[str(name)].clusters, str)]
        choosing = [1 + METHODS[b.method].splits for name, b in study.methods.items() if self.plan.several(name)]
        found = 6 + (study.baseline in study.methods) + 2 * len(clusterings) + len(chosen) + sum(choosing)
        return found + sum(len(block.sweep) == 1 for block in study.methods.values())


def _where(job: Job) -> tuple[str, int]:
    """Return the key of an engine's speed: the federation, and the number of networks that a model sums."""
    return str(job.federation), job.settings.get("copies", 1)


def distinct(job: Job) -> list[Job]:
    """Return the jobs that make a job's inputs, each once."""
    return list({other.first: other for other in job.upstream.values()}.values())
