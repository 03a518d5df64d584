"""One run (federation, seed and method): its curves and measures, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..config.claims import Claims
from ..config.study import MethodBlock, Study, Training
from ..pipeline import jobs
from ..report import measures, tables
from ..report.source import Source
from ..storage.manifest import manifest_path
from ..storage.store import read_json

Reading = float | str  # a number, or why there is none
TOOK = ["round", "client"]


@dataclass(frozen=True)
class Made:
    """How a run was made. Texts and revisions are empty where its manifest doesn't say."""

    origin: str = ""  # where it is read from: results, or evidence by its name
    settings: str = ""  # digest of the job's settings
    chain: str = ""  # digest of the settings of all jobs that it is made from, its own included
    code: str = ""
    partition: str = ""  # sha256 of the file
    commit: str = ""
    processor: str = ""
    branch: str = ""  # of the kernels for matrix products
    revisions: Mapping[str, int] = field(default_factory=dict)  # of all parts that computed it
    versions: Mapping[str, str] = field(default_factory=dict)
    clients: int | None = None
    samples: int | None = None


class Run:
    """One run (federation, seed and method) from its files; `evidence.Kept` is one from kept numbers.

    Parameters
    ----------
    source, federation, seed, method
        Where its files are.
    study
        The study with the federation's settings (`Study.on`).
    chain
        See `Made`.
    planted
        Returns the planted groups of the partition, which runs of a federation and a seed share; by default they are
        read.
    """

    kept = False

    def __init__(
        self, source: Source, study: Study, federation: str, seed: int, method: str, chain: str = "",
        planted: Callable[[], measures.Planted] | None = None,
    ):  # fmt: skip
        self.source, self.study, self.where, self._chain = source, study, (federation, seed, method), chain
        self._planted = planted or (lambda: measures.Planted.of(source, federation, seed))
        self._scored: dict[str, pd.DataFrame] = {}
        self.smoothed: dict[tuple[str, int, bool], pd.DataFrame] = {}  # see `reading.Reader`

    @property
    def claims(self) -> Claims:
        """The study's block `claims`."""
        assert self.study.claims is not None
        return self.study.claims

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy and loss by round, of the study's score."""
        return self.scored(self.score)

    def scored(self, score: Mapping[str, Any]) -> pd.DataFrame:
        """Return `curve`, which is read only once."""
        name = score_name(score)
        if name not in self._scored:
            self._scored[name] = self.curve(score)
        return self._scored[name]

    @property
    def score(self) -> Mapping[str, Any]:
        """The study's score; with `clients: participants` where it is compared over each round's participants."""
        found: dict[str, Any] = self.source.settings["score"]
        return found | {"clients": "participants"} if self.who and not self.whole else found

    @property
    def printed(self) -> Mapping[str, Any]:
        """The score of the printed numbers: the study's, changed by what `claims.scores` says for the method."""
        return {**self.score, **self.claims.score(self.where[0], self.where[2])}

    @cached_property
    def block(self) -> MethodBlock:
        """The method's settings on its federation; for a swept method those of the chosen trial."""
        own = self.study.methods[self.where[2]]
        return own.trial({} if self.chosen is None else json.loads(self.chosen[1]))

    @cached_property
    def training(self) -> Training:
        """The settings of its training."""
        return self.study.training_for(self.where[0], self.block.training)

    @cached_property
    def warmup(self) -> int:
        """Rounds of the warm-up that the method continues; 0 without one."""
        name = self.study.warmup_of(self.study.methods[self.where[2]])
        return self.study.warmups[name].rounds if name else 0

    @property
    def whole(self) -> bool:
        """Whether all clients take part in each round."""
        training = self.training
        return training.participation == 1 and training.sampler == "fixed" and training.faults is None

    @property
    def who(self) -> str:
        """Which columns of measures are compared with print: "" for all clients, or each round's participants.

        CLoVE's released notebook uses only each round's participants for clusters and accuracies (Table 14); with full
        participation both are the same.
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
        """Return accuracy and loss by round, see `tables.curve`; only over `score`'s clients, where it names some."""
        federation, seed, method = self.where
        history = self.source.frame(federation, seed, f"methods/{method}.history")
        if score.get("clients") == "participants":
            took = self.source.frame(federation, seed, f"methods/{method}.clusters", [*TOOK, "participated"])
            history = history.merge(took.loc[took["participated"].astype(bool), TOOK], on=TOOK)
        return tables.curve(history, score)

    @cached_property
    def chosen(self) -> tuple[int, str] | None:
        """Number and values (JSON) of the chosen trial; None for a method that sweeps nothing."""
        found = self.source.chosen(self.where[0], self.where[2])
        return None if found is None else (int(found["trial"]), str(found["values"]))

    @cached_property
    def measured(self) -> tuple[dict[str, float], pd.DataFrame]:
        """Its measures and its adjusted Rand index by round, see `measures.of_run`."""
        return self._found.measured

    @cached_property
    def _found(self) -> Found:
        """What follows from its clusters by round, which are large, so they are read once and not kept."""
        federation, seed, method = self.where
        clusters = self.source.frame(federation, seed, f"methods/{method}.clusters", measures.CLUSTER_COLUMNS)
        classes = self.source.frame(federation, seed, f"methods/{method}.classes")
        planted = self._planted()
        labels = tables.final_labels(clusters)
        took = clusters[clusters["participated"].astype(bool)]
        return Found(
            measures.of_tables(clusters, classes, planted),
            {"client": labels.index, "group": planted.groups.reindex(labels.index, fill_value=-1), "cluster": labels},
            stability(took, self.block.options().get("stable_rounds", 0)),
            took.loc[took["cluster"] >= 0, "cluster"].nunique(),
        )

    @property
    def labels(self) -> Mapping[str, Any]:
        """The clients with a cluster in the last round, their planted groups (-1 for none) and their clusters."""
        return self._found.labels

    @cached_property
    def rounds(self) -> int:
        """Rounds run."""
        federation, seed, method = self.where
        found = self.source.frame(federation, seed, f"methods/{method}.rounds", ["round"])["round"]
        return int(found.max()) if len(found) else 0

    @cached_property
    def spent(self) -> Mapping[str, float]:
        """The total cost of its rounds, and their privacy loss, by the names of `rounds.parquet`."""
        federation, seed, method = self.where
        found = self.source.frame(federation, seed, f"methods/{method}.rounds", [*tables.COSTS, "epsilon"])
        return {name: float(found[name].sum()) for name in tables.COSTS} | {"epsilon": float(found["epsilon"].max())}

    def line(self, measure: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rounds that have a measure (accuracy, loss or ari), and its values.

        The adjusted Rand index is over the clients over which printed numbers are compared (`who`).
        """
        found = self.measured[1].set_index("round")[f"ari{self.who}"] if measure == "ari" else self.scores[measure]
        known = found[found.notna()]
        return known.index.to_numpy(np.int64), known.to_numpy(float)

    @cached_property
    def stability(self) -> Reading:
        """The first round in which each participant kept its model over its last rounds (CLoVE, Table 13)."""
        return self._found.stability

    @cached_property
    def models(self) -> Reading:
        """How many models were trained in any round, counted after rebalancing."""
        sizes = self.source.sizes(*self.where)
        if sizes is not None:
            return float((sizes[0][:, 1] > 0).any(axis=0).sum())
        return float(self._found.models) or "no run"


def score_name(score: Mapping[str, Any]) -> str:
    """Return a curve's name: the parts of a score that determine it."""
    name = f"{score['evaluation']}/{score['split']}/{score['average']}"
    return name + (f"/{score['clients']}" if "clients" in score else "")


class Found(NamedTuple):
    """What follows from a run's clusters by round."""

    measured: tuple[dict[str, float], pd.DataFrame]  # see `measures.of_run`
    labels: Mapping[str, Any]  # of the last round
    stability: Reading
    models: int  # that any participant had


def stability(took: pd.DataFrame, window: int) -> Reading:
    """Return the first round in which each participant kept its model over its last `window` rounds.

    `took` are the participants' clusters, by round and client.
    """
    if not window:
        return "the method doesn't stop early: stable_rounds is 0"
    rows = took.sort_values(["client", "round"])
    changed = (rows[["client", "cluster"]] != rows[["client", "cluster"]].shift()).any(axis=1).to_numpy()
    place = np.arange(len(rows))
    held = (
        place - np.maximum.accumulate(np.where(changed, place, 0)) + 1
    )  # rounds for which the client has kept its model
    stable = pd.Series(held >= window, rows["round"]).groupby(level=0).all()
    return float(stable.idxmax()) if stable.any() else "not reached"
