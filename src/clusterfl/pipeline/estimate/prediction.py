"""What a study will cost, predicted before it runs: seconds, memory and bytes of each of its jobs.

The model; every factor is measured on this machine, with the study's own data, models and settings::

    seconds   = start + rounds + files; the stages' own:
    start     = a fresh process that reads the study and imports what the job needs (`startup`)
    rounds    = engine (its data made ready, and what torch does at its first use) + samples in all clients' steps x
                seconds of one + forward passes x seconds of one + samples in those x seconds of one + merged models x
                seconds of one + the loop itself (counted by `counting`, timed by `calibration`)
    distance  = engine + M x r forward passes + the metric on M rows; cluster: the clusterer on r made-up clients. What
                takes too long is measured for fewer clients and grows with the exponent seen there
    partition = drawing it; report: figures x seconds of one + rows of all histories x seconds of one
    files     = bytes read and written x seconds of one

    memory    = that process + the samples, twice (a file's pages are resident, too) + what training a few clients took
                + 4 P K (models) + 4 P x rows that a method keeps beside them (CLoVE's of the round of stability: K,
                FeSEM's of its clients: M)
                + 8 P K (sums) + 36 P K (while the server merges) + 8 P x models of a part's clients;
                a warm-up: + 12 P M (models, updates, a part's), of gradients as much again; with optimizer_state: kept
                + 4 P M (Adam: 8 P M), with workers twice, and 8 P (16 P) x a part's clients. Models, sums, updates and
                what is kept may be so large that they lie in a file, and what is read of them comes in blocks. With
                workers, each has what training took, and a part's. distance: samples + 24 M r + blocks of models;
                cluster: + 24 M r
    disk      = tables as they were written while counting + 4 P x stored models
    sent      = as the ledger counts: 4 P x models down and up, 4 x losses

M clients, r of them landmarks (or all), K models, P numbers of a model. With more processes their work, steps and
passes, is shared. What hangs on how training goes (a clustering that ends early, initial models drawn anew) is
predicted as if it didn't, and marked.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ...clustering.choice import find
from ...clustering.distances import METRICS
from ...data.inputs import Inputs
from ...data.load import clients
from ...data.samples import Samples
from ...engine import memory as optimizers
from ...engine.engine import Engine
from ...engine.parameter_layout import Layout
from ...engine.training import Training
from ...methods import splits
from ...storage.blocks import BLOCK_BYTES
from ...storage.row_store import DISK_BYTES
from ..execute import is_done
from ..jobs import Job, Plan
from ..stages import distance
from ..stages.common import engine_of
from . import calibration, counting, startup
from .counting import Counting, Kind, Tally
from .drawn import Missing, Place, fetched, samples_of, size

SECONDS = 4.0  # that training and forward passes are measured for, in all; every matrix of distances at most a tenth
LEAST = 0.3  # that each kind of either is measured for, however many federations there are
TRAINING = ("warmup", "federate")


@dataclass(frozen=True)
class Row:
    """A job's prediction; numbers are None where `note` says what must be done first."""

    stage: str
    name: str | None
    federation: str | None
    seed: int | None
    done: bool
    seconds: float | None = None
    start: float | None = None  # seconds, part of those
    memory: float | None = None  # bytes, like the following
    disk: float | None = None
    sent: int | None = None
    known: bool = True  # what is sent is known beforehand
    note: str = ""


class Work(NamedTuple):
    """What a job's own work takes, besides what its start and its files do."""

    seconds: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    sent: int = 0
    known: bool = True
    note: str = ""


class Prediction:
    """Everything that was measured for a study, and the `rows` that follow from it, in the order of the jobs.

    Parameters
    ----------
    wanted
        Only these jobs and what they need; None: all.
    """

    def __init__(self, plan: Plan, threads: int = 1, wanted: Sequence[Job] | None = None):
        began = perf_counter()
        self.plan, self.study, self.threads, self.jobs = plan, plan.study, threads, list(plan.jobs(wanted))
        self.whole = wanted is None
        self.partitions: dict[str, list[Job]] = {}  # by federation
        for job in self.jobs:
            if job.stage == "partition":
                self.partitions.setdefault(str(job.federation), []).append(job)
        self.places: dict[Any, Place | Missing] = {}  # by federation and seed
        self.speeds: dict[Any, tuple[calibration.Speed, Layout]] = {}  # by federation
        self.tallies: dict[Path, tuple[Tally, bool]] = {}
        self.samples: dict[Path, tuple[Samples, float]] = {}  # by download, with the seconds of getting them
        self.once = 0.0  # seconds of the first use of an engine beyond those of the next
        with tempfile.TemporaryDirectory(prefix="clusterfl-") as name:
            folder = Path(name)
            self.byte = calibration.storage(folder)
            for federation in self.partitions:
                self._measure(federation, folder)
            most = max((p.federation.clients for p in self.places.values() if isinstance(p, Place)), default=1)
            kinds = list(dict.fromkeys(map(startup.imports, self.jobs)))
            self.starts, self.figure = startup.measure(plan.files, kinds, folder / "history.parquet", most)
        self.rows: list[Row] = []
        self.by_job: dict[Path, Row] = {}
        for job in self.jobs:
            self.by_job[job.first] = row = self._row(job)
            self.rows.append(row)
        self.seconds = perf_counter() - began

    def _measure(self, name: str, folder: Path) -> None:
        """Draw a federation's partitions, count what its jobs need, and time its engine."""
        for job in self.partitions[name]:
            try:
                download = job.upstream["samples"]
                if download.first not in self.samples:
                    self.samples[download.first] = samples_of(download, folder)
            except Missing as missing:
                self.places[name, job.seed] = missing
                return
            self.places[name, job.seed] = Place.of(
                job, self.samples[download.first][0], self.study.federations[name].inputs, folder
            )
        trained = [job for job in self.jobs if job.federation == name and job.stage in TRAINING]
        make = partial(self._engine, trained[0])
        if not self.speeds:
            cold, warm = (calibration.speed(make, [], 0.0) for _ in range(2))
            self.once = max(0.0, cold.whole - warm.whole)
        with make() as engine:
            layout = engine.layout
        for job in trained:
            counting_engine = partial(self._counting, self._place(job), layout.columns)
            self.tallies[job.first] = counting.count(job, counting_engine, folder)
        kinds = {kind for job in trained for kind in self.tallies[job.first][0] if isinstance(kind, Kind)}
        limit = max(SECONDS / len(self.partitions), LEAST * (len(kinds) + 2))
        self.speeds[name] = calibration.speed(make, kinds, limit), layout

    def _engine(self, job: Job) -> Engine:
        place = self._place(job)
        federation = clients(place.samples, place.table, Inputs(**job.settings["inputs"]))  # as a job does it
        training = Training(**job.settings["training"])
        return engine_of(job.settings, federation, training, place.newcomers, self.study.engine.chunk)

    def _counting(self, place: Place, columns: int, training: Training, alike: bool) -> Counting:
        newcomers = place.newcomers if "newcomer" in training.evaluations else None
        return Counting(place.federation, newcomers, training, columns, alike)

    def _place(self, job: Job) -> Place:
        place = self.places[job.federation, job.seed]
        assert isinstance(place, Place)
        return place

    def _row(self, job: Job) -> Row:
        upstream = [self.by_job[other.first] for other in distinct(job)]
        done = all(row.done for row in upstream) and is_done(job)
        row = Row(job.stage, job.label, job.federation, job.seed, done)
        users = [job, *(j for j in self.jobs if job.stage == "download" and job in j.upstream.values())]
        missing = [place for (name, _), place in self.places.items() if isinstance(place, Missing)
                   and (job.stage == "report" or name in {user.federation for user in users})]  # fmt: skip
        if missing:
            return replace(row, note=str(missing[0]))
        start, memory = self.starts[startup.imports(job)]
        work: Work = getattr(self, f"_{job.stage}")(job)
        files = work.disk + sum(other.disk or 0.0 for other in upstream)
        return replace(
            row,
            seconds=start + work.seconds + files * self.byte,
            start=start,
            memory=memory + work.memory,
            **{name: getattr(work, name) for name in ("disk", "sent", "known", "note")},
        )

    def _download(self, job: Job) -> Work:
        samples, seconds = self.samples[job.first]
        note = "seconds of reading it; fetching isn't predicted" if fetched(job) else ""
        return Work(seconds, size(samples), size(samples), note=note)

    def _partition(self, job: Job) -> Work:
        place = self._place(job)
        return Work(place.seconds, sum(column.nbytes for column in place.table.values()), place.disk)

    def _data(self, job: Job) -> float:
        """Return the bytes of samples that are read from a file: its pages count, too."""
        return 2.0 * size(self._place(job).samples)

    def _warmup(self, job: Job) -> Work:
        return self._federate(job)

    def _federate(self, job: Job) -> Work:
        (tally, known), (speed, layout) = self.tallies[job.first], self.speeds[job.federation]
        model, threads, clients = 4.0 * layout.columns, self.threads, self._place(job).federation.clients
        working = speed.memory + 2 * model * min(speed.part, tally["models"])
        if job.stage == "warmup":
            arrays = 1 + job.settings["gradients"]
            working += arrays * model * min(speed.part, clients)
            memory = 2 * arrays * _resident(model * clients)
        else:
            memory = _resident(model * tally["models"]) + _resident(model * tally["beside"])
        training = Training(**job.settings["training"])
        for _ in optimizers.ROWS[training.optimizer] if training.optimizer_state == "kept" else ():
            working += 2 * model * min(speed.part, clients)
            memory += _resident(model * clients) * (1 if threads == 1 else 2)
        memory += _resident(2 * model * tally["models"])
        memory += max(9 * model, min(9 * model * tally["models"], BLOCK_BYTES))
        memory += self._data(job) + working * (1 if threads == 1 else 1 + threads)
        seconds = self.once + speed.engine + speed.of(tally, threads)
        return Work(seconds, memory, tally["disk"] + model * tally["kept"], round(tally["sent"]), known)

    def _losses(self, job: Job) -> Work:
        federation, settings = self._place(job).federation, job.settings
        speed, layout = self.speeds[job.federation]
        m, models = federation.clients, -(-federation.clients // settings["shards"])
        forwards = distance.costs_of("loss", federation, layout, settings["data"])["client_forwards"]
        tally: Tally = defaultdict(float)
        splits = len(distance.measured_on(federation, settings["data"]))
        counting.passed(tally, splits * models, forwards * models / m)
        memory = self._data(job) + speed.memory + 16.0 * m * models
        return Work(self.once + speed.engine + speed.of(tally, self.threads), memory, 8.0 * m * models)

    def _distance(self, job: Job) -> Work:
        federation, settings = self._place(job).federation, job.settings
        speed, layout = self.speeds[job.federation]
        m, metric, losses = federation.clients, settings["metric"], distance.kind(settings["metric"]) == "losses"
        r = min(m, settings.get("landmarks", m))
        chosen = np.arange(r) if "landmarks" in settings else None
        costs = distance.costs_of(metric, federation, layout, settings["data"], chosen)
        tally: Tally = defaultdict(float)
        if losses and not any(other.stage == "losses" for other in job.upstream.values()):
            splits = len(distance.measured_on(federation, settings["data"]))
            counting.passed(tally, splits * (m if r == m else 2 * m), costs["client_forwards"])

        def compute(n: int) -> None:
            near = min(n, r)
            rows = np.ones((n, near if losses else layout.parameter_columns), dtype=np.float32)
            given = {} if chosen is None else {"landmarks": chosen[:near]}
            METRICS[metric]((rows, rows, rows[:, 0]) if losses and given else rows, **given, **settings["options"])

        seconds = self.once + speed.engine + speed.of(tally, self.threads)
        seconds += calibration.grown(compute, m, SECONDS / 10)
        memory = self._data(job) + speed.memory + 24.0 * m * r
        memory += 3.0 * min(BLOCK_BYTES, 8 * layout.columns * m)
        return Work(seconds, memory, 8.0 * m * r, costs["bytes_down"] + costs["bytes_up"])

    def _cluster(self, job: Job) -> Work:
        m, settings = self._place(job).federation.clients, job.settings
        r = min(m, job.upstream["distance"].settings.get("landmarks", m))
        number = {key: settings[key] for key in ("clusters", "most", "margin") if key in settings}
        least = min(r, 2 + (number["most"] if isinstance(number["clusters"], str) else number["clusters"]))

        def cluster(n: int) -> None:
            places = np.arange(max(n, least)) % 4 + np.random.default_rng(0).random(max(n, least))
            gaps = np.abs(places[:, None] - places)
            find(gaps, settings["clusterer"], **number, seed=settings["seed"], options=settings["options"])

        cluster(1)  # what is imported now belongs to the start
        return Work(calibration.grown(cluster, r, SECONDS / 10), memory=24.0 * m * r, disk=16.0 * m)

    def _select(self, job: Job) -> Work:
        return Work(disk=self.by_job[next(iter(job.upstream.values())).first].disk or 0.0)

    def _report(self, job: Job) -> Work:
        seconds, written, by_row = self.figure
        figures, rows = self._figures(), [tally["rows"] for tally, _ in self.tallies.values()]
        memory = 64.0 * max(rows)  # a history has 8 columns of 8 bytes
        return Work(figures * seconds + by_row * sum(rows), memory, 2.0 * figures * written)

    def _figures(self) -> int:
        """Return how many figures the report has, for splits that may come none; tests hold it against reports."""
        return sum(self._figures_of(name) for name in self.study.federations)

    def _figures_of(self, federation: str) -> int:
        study = self.plan.on(federation)
        clusterings = {j.name for j in self.jobs if j.stage == "cluster" and j.federation == federation}
        chosen = [name for name in clusterings if isinstance(study.clusterings[str(name)].clusters, str)]
        choosing = [1 + splits(block.method) for name, block in study.methods.items() if self.plan.several(name)]
        found = 6 + (study.baseline in study.methods) + 2 * len(clusterings) + len(chosen) + sum(choosing)
        return found + sum(len(block.sweep) == 1 for block in study.methods.values())


def distinct(job: Job) -> list[Job]:
    """Return the jobs that make a job's inputs, each once."""
    return list({other.first: other for other in job.upstream.values()}.values())


def _resident(size: float) -> float:
    return size if size < DISK_BYTES else 0.0  # larger ones lie in a file
