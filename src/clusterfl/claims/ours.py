"""Our numbers beside the claims', in printed units: of a study with a block `claims`, from result files or evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .. import digest, jobs, loading, metrics
from ..config import Study
from ..errors import UserError, choices
from ..report import measures, tables
from ..store import manifest_path, read_json, verified
from .printed import EMPTY, claims
from .settings import Cell, Claims

if TYPE_CHECKING:
    from .evidence import Piece
    from .weigh import Weighed

Reading = float | str  # a number, or why there is none
ARI_ROUND = 11  # CLoVE's "ARI after ten rounds" is the value at the 0-based index 10 (released code)


@dataclass(frozen=True)
class Made:
    """How a run was made. Texts are empty, and revisions too, where its manifest doesn't say."""

    origin: str = ""  # where it is read from: results, or evidence by its name
    settings: str = ""  # digest of the job's settings
    chain: str = ""  # digest of the settings of all jobs that it is made from, its own too
    code: str = ""
    partition: str = ""  # sha256 of the file
    commit: str = ""
    processor: str = ""
    branch: str = ""  # of the library that multiplies
    revisions: Mapping[str, int] = field(default_factory=dict)  # of all parts that computed it
    versions: Mapping[str, str] = field(default_factory=dict)
    clients: int | None = None
    samples: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a study has beside a claim.

    ``values`` are those of the seeds that have a number. ``empty`` is why the mean has none although it was run
    (`printed.EMPTY`): one seed without is enough. ``not_run`` is why no seed has either: no run is there or, with
    ``ran``, runs don't have this number.
    """

    federation: str = ""
    method: str = ""
    values: Mapping[int, float] = field(default_factory=dict)
    empty: str | None = None
    without: Mapping[int, str] = field(default_factory=dict)  # seeds that are empty, and why
    not_run: str | None = None
    ran: bool = True
    made: Mapping[int, Made] = field(default_factory=dict)  # how the run of each of these seeds was made

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.values) + len(self.without)


class Run:
    """One run, a federation, a seed and a method, from its files; `evidence.Kept` is one whose numbers were kept."""

    kept = False

    def __init__(self, source: tables.Source, study: Study, federation: str, seed: int, method: str, chain: str = ""):
        self.source, self.study, self.where, self._chain = source, study, (federation, seed, method), chain

    @property
    def _claims(self) -> Claims:
        assert self.study.claims is not None
        return self.study.claims

    @cached_property
    def _curve(self) -> pd.DataFrame:
        return self.curve(self._score)

    @property
    def _score(self) -> Mapping[str, Any]:
        score: Mapping[str, Any] = self.source.settings["score"]
        return score

    @cached_property
    def made(self) -> Made:
        """How it was made, as the manifests say."""
        federation, seed, method = self.where
        manifest, partition = self._manifest(f"methods/{method}.history"), self._manifest("partition.partition")
        trial = "" if self.chosen is None else f"methods/{method}/trials/{self.chosen[0]}.history"
        there = trial and manifest_path(self.source.path(federation, seed, trial)).exists()
        trained = self._manifest(trial) if there else manifest  # a swept method was trained where its trial was
        machine = trained.get("machine", {})
        file = self.source.path(federation, seed, "partition.partition").name
        return Made(
            str(jobs.RESULTS), manifest.get("settings", ""), self._chain, manifest.get("code", ""),
            partition["files"][file]["sha256"], trained.get("commit", ""), machine.get("processor", ""),
            machine.get("branch", ""), manifest.get("revisions", {}), trained.get("versions", {}),
            partition.get("clients"), partition.get("samples"),
        )  # fmt: skip

    def _manifest(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = read_json(manifest_path(self.source.path(*self.where[:2], name)))
        return found

    def curve(self, score: Mapping[str, Any]) -> pd.DataFrame:
        """Return accuracy and loss by round, see `tables.curve`."""
        federation, seed, method = self.where
        return tables.curve(self.source.frame(federation, seed, f"methods/{method}.history"), score)

    @cached_property
    def chosen(self) -> tuple[int, str] | None:
        """Number and values (JSON) of the chosen trial; None of a method that sweeps nothing."""
        found = self.source.chosen(self.where[0], self.where[2])
        return None if found is None else (int(found["trial"]), str(found["values"]))

    @cached_property
    def measured(self) -> tuple[dict[str, float], pd.DataFrame]:
        """Its measures and its adjusted Rand index by round, see `measures.of_run`."""
        return measures.of_run(self.source, *self.where, measures.Planted.of(self.source, *self.where[:2]))

    @cached_property
    def _clusters(self) -> pd.DataFrame:
        federation, seed, method = self.where
        return self.source.frame(federation, seed, f"methods/{method}.clusters", measures.CLUSTER_COLUMNS)

    @cached_property
    def rounds(self) -> int:
        """Rounds run."""
        federation, seed, method = self.where
        found = self.source.frame(federation, seed, f"methods/{method}.rounds", ["round"])["round"]
        return int(found.max()) if len(found) else 0

    def curves(self) -> pd.DataFrame:
        """Return accuracy and loss of every evaluated round and the adjusted Rand index of every round, by round."""
        return self._curve.join(self.measured[1].set_index("round")["ari"], how="outer")

    def place(self, at: str, cell: Cell) -> int:
        """Return the round at which the number of a printed iteration is read."""
        return self.rounds if at == "final" else self._place(int(at), cell)[0]

    def read(self, metric: str, at: str, cell: Cell) -> Reading:
        """Return a metric in printed units, or why there is none.

        Accuracies are in per cent. Balanced accuracy is that of FedGWC's released code; the models counted for
        RR-Cluster are those that were ever trained, for the others the clusters of the last round.
        """
        if metric in ("accuracy", "test_loss"):
            return self._point(metric, at, cell)
        if metric.startswith("rounds_to_accuracy_"):
            return self._rounds_to(float(metric.rpartition("_")[2]) / 100)
        if metric == "stability_round":
            return self.stability
        if metric == "n_clusters":
            return self.models if self._claims.paper == "rr-cluster" else _or(self.measured[0]["clusters"], "no run")
        if metric == "balanced_accuracy":
            return _or(100 * self.measured[0]["balanced_accuracy_train"], "no test samples by class")
        if metric in ("was", "wadb"):
            one = self.measured[0]["clusters"] == 1
            return _or(self.measured[0][metric], "undefined for one cluster" if one else "undefined for these clusters")
        return self._agreement(metric)

    def _agreement(self, metric: str) -> Reading:
        """Return a measure of agreement with the planted groups.

        CLoVE's released code compares the clusters of each round's participants alone (Table 14); with all taking part
        it is the same.
        """
        row, by_round = self.measured
        who = measures.PARTICIPANTS if self._claims.paper == "clove" else ""
        if by_round.empty:
            return "no groups are planted"
        if metric == "first_round_ari_0.9":
            return _or(row[f"{measures.FIRST}{who}"], "not reached")
        if metric == "ari_round_10":
            round_ = min(ARI_ROUND, self.rounds)  # as it stands: clusters need the same rounds in a shorter run
            found = by_round.set_index("round")[f"ari{who}"].reindex([round_]).iloc[0]
            return _or(found, f"round {round_} has no clusters")
        if metric == "ari":
            return _or(row[f"ari{who}"], "no client has a cluster")
        return _or((100 if metric == "clustering_accuracy" else 1) * row[metric], "no client has a cluster")

    def _point(self, metric: str, at: str, cell: Cell) -> Reading:
        """Return accuracy or loss at a printed iteration."""
        name = {"accuracy": "accuracy", "test_loss": "loss"}[metric]
        round_, smooth = (self.rounds, self._score["smooth"]) if at == "final" else self._place(int(at), cell)
        if round_ not in self._curve.index:
            return f"round {round_} wasn't evaluated as {self._score['evaluation']}"
        found = tables.pick(self._curve, {**self._score, "at": round_, "smooth": smooth})
        if not math.isfinite(found["loss"]):
            return "diverged"
        return _or((100 if name == "accuracy" else 1) * found[name], f"no {name}")

    def _place(self, iteration: int, cell: Cell) -> tuple[int, int]:
        """Return the round of a printed iteration, and over how many evaluations its score is the mean.

        Of LCFL's released curves, iteration t is the mean of the stale scores of rounds t and t + 1; the first point is
        that of round 2 alone, the last one that of its own round (docs/evaluation.md). The curves of methods that
        continue a warm-up are longer by it.
        """
        t = self._scaled(iteration, cell)
        if self._claims.iterations == "rounds":
            return t, self._score["smooth"]
        last = min(self.rounds, self._printed_rounds(cell) + self._warmup())
        if t >= last:
            return last, 1
        return t + 1, 1 if t == 1 else 2

    def _printed_rounds(self, cell: Cell) -> int:
        return cell.rounds or self._claims.rounds or self.rounds

    def _warmup(self) -> int:
        study = self.study.on(self.where[0])
        name = study.warmup_of(study.methods[self.where[2]])
        return study.warmups[name].rounds if name else 0

    def _scaled(self, iteration: int, cell: Cell) -> int:
        """Return a printed iteration as a round: where fewer were run, at the same share of them."""
        printed = self._printed_rounds(cell)
        return iteration if self.rounds >= printed else max(1, round(iteration * self.rounds / printed))

    def _rounds_to(self, target: float) -> Reading:
        if self._curve["accuracy"].isna().all():
            return "no accuracy"
        released = self._claims.iterations == "lcfl-released"
        line = tables.smoothed(self._curve[["accuracy"]], {"smooth": 2 if released else self._score["smooth"]})
        found = metrics.rounds_to_accuracy(line.index, line["accuracy"], target)
        return _or(found - released, "not reached")  # iteration t is read at round t + 1

    @cached_property
    def stability(self) -> Reading:
        """The first round in which every participant has had one model in its last rounds (CLoVE, Table 13)."""
        federation, _, method = self.where
        block = (
            self.study.on(federation).methods[method].trial({} if self.chosen is None else json.loads(self.chosen[1]))
        )
        window = block.options().get("stable_rounds", 0)
        if not window:
            return "the method doesn't stop early: stable_rounds is 0"
        recent: dict[int, list[int]] = {}
        for round_, rows in self._clusters[self._clusters["participated"].astype(bool)].groupby("round"):
            for client, cluster in zip(rows["client"], rows["cluster"], strict=True):
                recent[client] = [*recent.get(client, []), cluster][-window:]
            if all(len(recent[c]) == window and len(set(recent[c])) == 1 for c in rows["client"]):
                return float(round_)
        return "not reached"

    @cached_property
    def models(self) -> Reading:
        """How many models were trained in any round; with rebalancing, after it."""
        sizes = self.source.sizes(*self.where)
        if sizes is not None:
            return float((sizes[0][:, 1] > 0).any(axis=0).sum())
        rows = self._clusters[self._clusters["participated"].astype(bool) & (self._clusters["cluster"] >= 0)]
        return float(rows["cluster"].nunique()) if len(rows) else "no run"


def _or(number: float, otherwise: str) -> Reading:
    return float(number) if math.isfinite(number) else otherwise


class Results:
    """What a study with a block `claims` has.

    Parameters
    ----------
    plan
        The study's.
    pieces
        Evidence of its runs.
    own
        Whether the files under results/ are read, too.
    """

    def __init__(self, plan: jobs.Plan, pieces: Sequence[Piece] = (), own: bool = True):
        assert plan.study.claims is not None
        self.plan, self.study, self.claims, self.own = plan, plan.study, plan.study.claims, own
        self.pieces: dict[tuple[str, int, str], list[Piece]] = {}
        for piece in pieces:
            self.pieces.setdefault(piece.where, []).append(piece)
        self.weighed: list[Weighed] = []
        self._report = plan.job("report")
        self.source = tables.Source(self._report.settings, self._report.inputs)
        self._runs: dict[tuple[str, int, str], Run | str] = {}
        self._outcomes: dict[tuple[str, ...], Outcome] = {}

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
        """Return federation and method of the study that a claim's cell and method are; None if it has none such."""
        cells, names = self.claims.of(profile)
        if cell not in cells:
            return None
        name = names.get(method, method) + cells[cell].suffix
        federation = cells[cell].federation
        return (federation, name) if name in self.plan.on(federation).methods else None

    def places(self, table: str) -> set[tuple[str, str]]:
        """Return federations and methods of the study that a table's numbers are of, in any profile, or a figure's.

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

    def outcome(self, profile: str, cell: str, method: str, metric: str, at: str) -> Outcome | None:
        """Return what is beside a number of the claims; None if the study has nothing of its cell and method."""
        where = self.named(profile, cell, method)
        if where is None:
            return None
        key = (profile, cell, method, metric, at)
        if key not in self._outcomes:
            self._outcomes[key] = self._outcome(where, self.claims.of(profile)[0][cell], metric, at)
        return self._outcomes[key]

    def _outcome(self, where: tuple[str, str], cell: Cell, metric: str, at: str) -> Outcome:
        federation, method = where
        values, without, reasons, made, ran = {}, {}, [], {}, False
        for seed in self.study.seeds.runs:
            run = self.run(federation, seed, method)
            if isinstance(run, str):
                reasons.append(run)
                continue
            ran, made[seed], reading = True, run.made, run.read(metric, at, cell)
            if not isinstance(reading, str):
                values[seed] = reading
            elif reading in EMPTY:
                without[seed] = reading
            else:
                reasons.append(reading)
        empty = next(iter(without.values()), None)
        not_run = None if values or without else f"study {self.study.study}: {reasons[0]}"
        return Outcome(federation, method, values, empty, without, not_run, ran, made)

    def run(self, federation: str, seed: int, method: str) -> Run | str:
        """Return the run that is judged by, from its files or from evidence, or why there is none."""
        from .weigh import weigh

        key = (federation, seed, method)
        if key not in self._runs:
            self._runs[key], weighed = weigh(self, key)
            self.weighed += weighed
        return self._runs[key]

    def job(self, federation: str, seed: int, method: str) -> jobs.Job | None:
        """Return the job that a run is the result of; None if the study has none such."""
        return self._report.upstream.get(f"{federation}/seed{seed}/methods/{method}.history")

    def chain(self, job: jobs.Job) -> str:
        """Return the digest of the settings of all jobs that a result is made from, its own included."""
        return digest.of_text(digest.canonical({str(one): one.settings_digest for one in self.plan.jobs([job])}))

    def here(self, federation: str, seed: int, method: str) -> Run | str:
        """Return a run under results/ whose files are there and right, or what is wrong with them."""
        job = self.job(federation, seed, method)
        if job is None or not self.own:
            return f"there is no evidence of {method} on {federation}, seed {seed}"
        place = f"{federation}/seed{seed}"
        own = (f"{place}/partition.", f"{place}/methods/{method}.")
        try:
            for name, path in self._report.inputs.items():
                one = self._report.upstream[name]
                if name.startswith(own):
                    verified(path, one.identity, one.settings_digest)
        except UserError as error:
            return str(error).partition("; ")[0]
        return Run(self.source, self.plan.on(federation), federation, seed, method, self.chain(job))

    def places_run(self) -> Iterator[tuple[str, int, str]]:
        """Yield federation, seed and method of every run that the study has."""
        for federation, seed in self.source.places():
            for method in self.plan.on(federation).methods:
                yield federation, seed, method


def problems(study: Study) -> list[str]:
    """Return what is wrong with a block `claims` by what the paper has: unknown cells, methods and patterns."""
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
    """Return what is wrong with the figures' names, of which those of files are made."""
    from ..report.printed import slug

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
    """Return cells that the orderings alone name: those of figures."""
    from .grammar import places
    from .printed import orderings

    return {f"{w[0]}/{w[1]}" for ordering in orderings() if ordering.paper == paper for w in places(ordering)}


def spread(values: Mapping[int, float], ddof: int) -> float:
    """Return the standard deviation over seeds; NaN for fewer than two."""
    return float(np.std(list(values.values()), ddof=ddof)) if len(values) > 1 else math.nan
