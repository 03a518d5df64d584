"""One run, a federation, a seed and a method: its curves and measures, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from ..config.claims import Claims
from ..config.study import Method, Study, Training
from ..pipeline import jobs
from ..report import measures, tables
from ..storage.store import manifest_path, read_json

Reading = float | str  # a number, or why there is none


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


class Run:
    """One run, a federation, a seed and a method, from its files; `evidence.Kept` is one whose numbers were kept.

    `study` is the study as it is on the federation (`Study.on`).
    """

    kept = False

    def __init__(self, source: tables.Source, study: Study, federation: str, seed: int, method: str, chain: str = ""):
        self.source, self.study, self.where, self._chain = source, study, (federation, seed, method), chain
        self.smoothed: dict[tuple[int, bool], pd.DataFrame] = {}  # `scores`, see `reading.Reader`

    @property
    def claims(self) -> Claims:
        """The study's block `claims`."""
        assert self.study.claims is not None
        return self.study.claims

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Accuracy and loss by round, of the study's score."""
        return self.curve(self.score)

    @property
    def score(self) -> Mapping[str, Any]:
        """The study's score."""
        found: Mapping[str, Any] = self.source.settings["score"]
        return found

    @cached_property
    def block(self) -> Method:
        """The method's settings on its federation, of a swept one those of the chosen trial."""
        own = self.study.methods[self.where[2]]
        return own.trial({} if self.chosen is None else json.loads(self.chosen[1]))

    @cached_property
    def training(self) -> Training:
        """The settings of its training."""
        return self.study.training_for(self.where[0], self.block.training)

    @cached_property
    def warmup(self) -> int:
        """Rounds of the warm-up that the method goes on from; 0 without one."""
        name = self.study.warmup_of(self.study.methods[self.where[2]])
        return self.study.warmups[name].rounds if name else 0

    @property
    def who(self) -> str:
        """Which columns of measures are compared with print: "" of all clients, or of each round's participants.

        CLoVE's released code compares the clusters of each round's participants alone (Table 14); with all taking part
        it is the same.
        """
        return measures.PARTICIPANTS if self.claims.paper == "clove" else ""

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
        """Return accuracy and loss of every evaluated round and the adjusted Rand index of every round, by round.

        The index is that of the clients that its printed numbers are compared over (`who`).
        """
        index = self.measured[1].set_index("round")[f"ari{self.who}"]
        rounds = self.scores.index.union(index.index)
        return self.scores.reindex(rounds).assign(ari=index.reindex(rounds))

    @cached_property
    def stability(self) -> Reading:
        """The first round in which every participant has had one model in its last rounds (CLoVE, Table 13)."""
        window = self.block.options().get("stable_rounds", 0)
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
