"""Measures of each run in addition to its score: of the clusters found, and of the clients.

Shares are fractions; the page shows those of predictions in per cent. Measures that don't apply are NaN, as is the
silhouette of more clients than are compared pairwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .. import metrics
from ..data import drift
from ..data.transforms import parse, relabelled
from ..storage.blocks import MOST
from .tables import Source, final_labels, smoothed, truth

THRESHOLD = 0.9  # of the adjusted Rand index, for the first round that reaches it, as in CLoVE
CLUSTER_COLUMNS = ["round", "client", "cluster", "participated"]
FIRST, PARTICIPANTS = f"first_round_ari_{THRESHOLD:g}", "_participants"


# Columns on the page: title, factor, number format and meaning. The number of clusters is in the table of scores.
Shown = tuple[str, float, str, str]
CLUSTERS: dict[str, Shown] = {
    "ari": ("ARI", 1, ".2f", "adjusted Rand index of found clusters and planted groups: 1 = the same, 0 = chance"),
    "rand": ("Rand", 1, ".2f", "share of pairs of clients that both put together or both part; not adjusted"),
    "nmi": ("NMI", 1, ".2f", "mutual information over the mean of the two entropies"),
    "clustering_accuracy": ("matched", 1, ".2f", "share of clients in the cluster matched to their group, one to one"),
    f"ari{PARTICIPANTS}": ("ARI, took part", 1, ".2f", "of the last round's participants only"),
    "was": ("WAS", 1, ".2f", "silhouette by the clients' class frequencies, sorted (FedGWC): near 1 = well parted"),
    "wadb": ("WADB", 1, ".2f", "Davies-Bouldin score by the same frequencies (FedGWC): lower is better"),
}
CLIENTS: dict[str, Shown] = {
    "balanced_accuracy": ("balanced", 100, ".1f", "mean over clients of the mean recall of a client's test classes"),
    "balanced_accuracy_train": (
        "by training", 100, ".1f", "mean over clients of accuracy weighted by training frequencies (FedGWC's code)",
    ),
    "worst_client": ("worst client", 100, ".1f", "accuracy"),
    "percentile_10_client": ("10th percentile", 100, ".1f", "of the clients' accuracies"),
    "std_clients": ("std", 100, ".1f", "standard deviation of the clients' accuracies, n in the denominator"),
    "worst_cluster": ("worst cluster", 100, ".1f", "accuracy over all samples of its clients"),
}  # fmt: skip


def rounds(score: Mapping[str, Any]) -> dict[str, Shown]:
    """Return the page's columns that are numbers of rounds."""
    first = f"ARI ≥ {THRESHOLD:g}"
    shown: dict[str, Shown] = {
        FIRST: (first, 1, ".1f", "first round whose adjusted Rand index reaches this"),
        f"{FIRST}{PARTICIPANTS}": (f"{first}, took part", 1, ".1f", "the same by each round's participants only"),
    }
    meaning = "first evaluated round whose score reaches this"
    return shown | {_target(t): (f"accuracy ≥ {100 * t:g} %", 1, ".1f", meaning) for t in score["targets"]}


def measures(source: Source, curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return every run's measures, one row each, and its adjusted Rand index by round."""
    lines = dict(list(curves.groupby(["federation", "method", "seed"])))
    rows, parts = [], []
    for federation, seed in source.places():
        planted = Planted.of(source, federation, seed)
        for method in source.on(federation)["methods"]:
            where = {"federation": federation, "method": method, "seed": seed}
            row, by_round = of_run(source, federation, seed, method, planted)
            line = lines.get((federation, method, seed), curves[:0])
            rows.append(where | row | _rounds(line, source.settings["score"]))
            parts.append(by_round.assign(**where))
    return pd.DataFrame(rows), pd.concat(parts, ignore_index=True)[[*where, *by_round]]


@dataclass(frozen=True)
class Planted:
    """A partition's clients in the last round: planted groups, and training samples [client x class]."""

    groups: pd.Series
    train: pd.DataFrame
    phases: tuple[tuple[int, pd.Series], ...] = ()  # first round and groups of each phase between drifts

    @classmethod
    def of(cls, source: Source, federation: str, seed: int) -> Planted:
        """Return the groups and samples of a federation and seed."""
        partition = source.frame(federation, seed, "partition.partition")
        rounds = drift.begins(partition["transform"].unique())
        phases = tuple((round_, truth(partition, round_)) for round_ in rounds)
        return cls(phases[-1][1], _train(source.frame(federation, seed, "partition.classes"), partition), phases)


def of_run(
    source: Source, federation: str, seed: int, method: str, planted: Planted
) -> tuple[dict[str, float], pd.DataFrame]:
    """Return one run's measures, except those of its curve, and its adjusted Rand index by round."""
    clusters = source.frame(federation, seed, f"methods/{method}.clusters", CLUSTER_COLUMNS)
    return of_tables(clusters, source.frame(federation, seed, f"methods/{method}.classes"), planted)


def of_tables(clusters: pd.DataFrame, classes: pd.DataFrame, planted: Planted) -> tuple[dict[str, float], pd.DataFrame]:
    """Return the same as `of_run`, from a run's tables of clusters by round and of test samples by class."""
    by_round, labels = _by_round(clusters, planted), final_labels(clusters)
    row = _clusters(by_round, labels, planted.groups, planted.train)
    return row | _clients(classes, labels, planted.train), by_round


def _train(counts: pd.DataFrame, partition: pd.DataFrame) -> pd.DataFrame:
    """Return the members' training samples, [client x class]; empty for regression.

    `counts` have the classes of round 1; the result has those of the last round, as have the final test samples.
    """
    own = counts[(counts["role"] == "member") & (counts["split"] == "train") & (counts["class"] >= 0)].copy()
    changing = partition[(partition["role"] == "member") & partition["transform"].str.contains("@")]
    names = own["client"].map(changing.drop_duplicates("client").set_index("client")["transform"])
    for name, rows in own.groupby(names):
        new = _renamed(str(name))
        own.loc[rows.index, "class"] = [new.get(c, c) for c in rows["class"]]
    return own.pivot_table(index="client", columns="class", values="n", aggfunc="sum", fill_value=0)


def _renamed(transform: str) -> dict[int, int]:
    """Return the last round's class for each class of round 1, under a transform that changes over the rounds."""
    names = [name for _, _, name in drift.phases(transform)]
    classes = max((1 + max(step) for name in names for _, step in parse(name).labels), default=0)
    every = np.arange(classes)
    first, last = (relabelled(every, np.full(classes, name), classes).tolist() for name in (names[0], names[-1]))
    return dict(zip(first, last, strict=True))


def _by_round(clusters: pd.DataFrame, planted: Planted) -> pd.DataFrame:
    """Return the adjusted Rand index of each round, over all clients with a cluster and over its participants.

    It refers to the round's own groups if a drift changes them. No rows if no groups are planted.
    """
    phases = planted.phases or ((1, planted.groups),)
    ends = [*(first for first, _ in phases[1:]), np.inf]
    parts = [
        _of_phase(clusters[(clusters["round"] >= first * (first > 1)) & (clusters["round"] < end)], groups)
        for (first, groups), end in zip(phases, ends, strict=True)
    ]
    return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]


def _of_phase(clusters: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """Return the same for rounds with unchanged groups."""
    rows = clusters[clusters["client"].isin(groups.index)]
    if rows.empty:
        return pd.DataFrame({"round": np.zeros(0, int), "ari": np.zeros(0), "ari_participants": np.zeros(0)})
    labels = rows.pivot(index="round", columns="client", values="cluster")
    participated = rows.pivot(index="round", columns="client", values="participated")
    true = groups[labels.columns].to_numpy()
    columns = {"ari": labels, "ari_participants": labels.where(participated, -1)}
    found = {name: _ari(true, table.to_numpy()) for name, table in columns.items()}
    return pd.DataFrame(found, index=labels.index).reset_index()


def _ari(true: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the adjusted Rand index of each row of labels; it is computed once for equal rows, which are common."""
    unique, place = np.unique(labels, axis=0, return_inverse=True)
    values: np.ndarray = np.array([metrics.adjusted_rand_index(true, row) for row in unique])[place]
    return values


def _clusters(by_round: pd.DataFrame, labels: pd.Series, groups: pd.Series, train: pd.DataFrame) -> dict[str, float]:
    """Return the measures of the final clusters, and the first rounds in which clusters reach the `THRESHOLD`."""
    true = groups.reindex(labels.index, fill_value=-1)
    counts = train.reindex(labels.index, fill_value=0)
    last = by_round.iloc[-1] if len(by_round) else dict.fromkeys(by_round, np.nan)
    first = {n: metrics.first_round(by_round["round"], by_round[n], THRESHOLD) for n in ("ari", "ari_participants")}
    return {
        "clusters": labels.nunique() if len(labels) else np.nan,
        "ari": last["ari"],
        "ari_participants": last["ari_participants"],
        "rand": metrics.rand_index(true, labels),
        "nmi": metrics.normalised_mutual_information(true, labels),
        "clustering_accuracy": metrics.clustering_accuracy(true, labels),
        FIRST: first["ari"],
        f"{FIRST}{PARTICIPANTS}": first["ari_participants"],
        "was": metrics.wasserstein_silhouette(counts, labels) if len(labels) <= MOST else np.nan,
        "wadb": metrics.wasserstein_davies_bouldin(counts, labels),
    }


def _clients(classes: pd.DataFrame, labels: pd.Series, train: pd.DataFrame) -> dict[str, float]:
    """Return accuracy measures of the final models on the clients' test samples, by class, client and cluster."""
    correct, total = (classes.pivot(index="client", columns="class", values=n).fillna(0) for n in ("correct", "n"))
    train = train.reindex(index=total.index, columns=total.columns, fill_value=0)
    hits, samples = correct.sum(axis=1), total.sum(axis=1)
    fair = metrics.fairness(metrics.accuracy(hits, samples))
    clusters = metrics.cluster_accuracy(hits, samples, labels.reindex(total.index, fill_value=-1))
    return {
        "balanced_accuracy": _mean(metrics.balanced_accuracy(correct, total)),
        "balanced_accuracy_train": _mean(metrics.balanced_accuracy(correct, total, train)),
        "worst_client": fair["worst"],
        "percentile_10_client": fair["percentile_10"],
        "std_clients": fair["std"],
        "worst_cluster": pd.Series(clusters).min(),
    }


def _mean(values: np.ndarray) -> float:
    return float(pd.Series(values).mean())  # without NaN


def _rounds(line: pd.DataFrame, score: Mapping[str, Any]) -> dict[str, float]:
    """Return the rounds to each target of the score's accuracy, smoothed as the score is."""
    line = smoothed(line.set_index("round")[["accuracy"]], score)
    return {_target(t): metrics.rounds_to_accuracy(line.index, line["accuracy"], t) for t in score["targets"]}


def _target(target: float) -> str:
    return f"rounds_to_{target:g}"
