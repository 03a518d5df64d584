"""The numbers of the report, as pandas tables, from the result files of a study.

Accuracies are fractions here; the page and the figures show per cent. For a federation without accuracy (regression),
methods are compared by loss instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data import drift
from ..data.transforms import parse
from ..metrics import adjusted_rand_index, interval
from ..simulation.participation import COUNTED
from ..storage.manifest import manifest_path, timing_path
from ..storage.store import read_json
from .source import Source

COSTS = ["bytes_down", "bytes_up", "local_steps", "client_forwards"]
SPENT = ["bytes", "local_steps", "client_forwards"]  # costs against which scores are drawn
HISTORY = ["round", "client", "cluster", "split", "evaluation", "n", "correct", "loss"]
DIFFERENCE = ["difference_mean", "difference_low", "difference_high"]  # from the baseline, and the interval's ends
TO_BEST = ["to_best_mean", "to_best_low", "to_best_high"]  # the same from the method with the best mean
BAD = ["federation", "method", "seed", "kind", "client"]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of what spreadsheets treat as formulas
LAST = 1 << 62  # a round after all drifts
ONE_GROUP = "all clients"  # the group of every client if none is planted


def curve(history: pd.DataFrame, score: Mapping[str, Any]) -> pd.DataFrame:
    """Return accuracy and loss by round, averaged as `score` says, over clients that have samples.

    ``samples`` pools all samples; ``clients`` and ``clusters`` pool each client's or cluster's samples, then
    take the mean over clients or clusters. A round's value is NaN if that of any client is, as its model diverged.
    """
    rows = _asked(history, score)
    rows = rows.assign(loss=rows["loss"] * rows["n"])
    by = ["round"] + {"samples": [], "clients": ["client"], "clusters": ["cluster"]}[score["average"]]
    sums = rows.groupby(by)[["n", "correct", "loss"]].sum()
    means = pd.DataFrame({"accuracy": sums["correct"] / sums["n"], "loss": sums["loss"] / sums["n"]})
    unknown = rows[["correct", "loss"]].isna().groupby(rows["round"]).any()
    return means.groupby("round").mean().mask(unknown.rename(columns={"correct": "accuracy"}))


def _asked(history: pd.DataFrame, score: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of the models and data that `score` names, for clients that have samples.

    If the loss is NaN, so is the number of correct predictions: outputs of NaN would predict class 0.
    """
    asked = (history["evaluation"] == score["evaluation"]) & (history["split"] == score["split"])
    rows = history[asked & (history["n"] > 0)]
    return rows.assign(correct=rows["correct"].mask(rows["loss"].isna()))


def by_client(history: pd.DataFrame, score: Mapping[str, Any], round_: float) -> pd.DataFrame:
    """Return each client's cluster, samples, accuracy and loss in a round, for the model and data that `score` names.

    One row for each client with samples.
    """
    rows = _asked(history, score)
    rows = rows[rows["round"] == round_].set_index("client")
    return rows[["cluster", "n"]].assign(accuracy=rows["correct"] / rows["n"], loss=rows["loss"])


def smoothed(curve: pd.DataFrame, score: Mapping[str, Any]) -> pd.DataFrame:
    """Return the mean of the last ``smooth`` evaluations, or of fewer at the beginning.

    NaN for a round whose score is missing or infinite.
    """
    means = curve.rolling(score["smooth"], min_periods=1).mean()  # which ignores infinite values
    values = np.where(np.isfinite(curve.to_numpy(float)), means.to_numpy(float), np.nan)
    known = ~np.isnan(values).all(axis=1)
    return pd.DataFrame(values[known], curve.index[known], curve.columns)


def pick(curve: pd.DataFrame, score: Mapping[str, Any]) -> dict[str, float]:
    """Return round, accuracy and loss, smoothed, at the round that `score` names; NaN where it has none."""
    smooth = smoothed(curve, score)
    nothing = {"round": np.nan, "accuracy": np.nan, "loss": np.nan}
    if smooth.empty:
        return nothing
    if score["at"] == "best":
        at = smooth["accuracy"].idxmax() if smooth["accuracy"].notna().any() else smooth["loss"].idxmin()
    else:
        at = curve.index[-1] if score["at"] == "final" else int(score["at"])
    return {"round": float(at), **smooth.loc[at]} if at in smooth.index else nothing


def measure(table: pd.DataFrame) -> str:
    """Return what is compared in the rows of a federation: ``accuracy``, or ``loss`` where there is none."""
    return "accuracy" if table.filter(regex="^accuracy").notna().any(axis=None) else "loss"


def truth(partition: pd.DataFrame, round_: int = LAST) -> pd.Series:
    """Return the planted group of each client in a round, the last if not given; empty where none is planted."""
    members = partition[(partition["role"] == "member") & (partition["true_cluster"] >= 0)]
    members = members.drop_duplicates("client")
    if members["transform"].str.contains("@").any():
        members = pd.DataFrame(drift.at({name: members[name].to_numpy() for name in members}, round_))
    return members.groupby("client")["true_cluster"].first()


def flipped_labels(partition: pd.DataFrame) -> np.ndarray:
    """Return the ids of the members with flipped labels."""
    members = partition[partition["role"] == "member"]
    names = [name for name in members["transform"].unique() if parse(name.split("@")[0]).flipped]
    return np.sort(members["client"][members["transform"].isin(names)].unique())


def final_labels(clusters: pd.DataFrame) -> pd.Series:
    """Return each client's cluster in the last round; clients that never got one are left out."""
    if "round" in clusters:
        clusters = clusters[clusters["round"] == clusters["round"].max()]
    labels = clusters.set_index("client")["cluster"]
    return labels[labels >= 0]


def harmless(names: Iterable[Any]) -> list[Any]:
    """Return the data's own names for a CSV, with an apostrophe before a name that a spreadsheet would compute."""
    return [f"'{name}" if isinstance(name, str) and name.startswith(FORMULA) else name for name in names]


def timing(result: Path) -> pd.DataFrame:
    """Return the times of the job that made a result, by round; no rows if they aren't known.

    Round 0 is the job itself, a row for each process that worked on it: several if it was stopped and resumed.
    """
    path = timing_path(result)
    table = pd.read_parquet(path) if path.exists() else pd.DataFrame(columns=["round"])
    return table.reindex(columns=["round", "seconds", "server_seconds", "host", "date"])


def processes(result: Path) -> pd.DataFrame:
    """Return the processes that worked on the job that made a result: seconds, host and date, in order."""
    table = timing(result)
    return table.loc[table["round"] == 0, ["seconds", "host", "date"]]


def runs(source: Source) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return a table of runs, one of rounds and one of clients.

    The first has each run's score and costs; the second each run's curves, with costs accumulated over rounds; the
    third each client's score in the round of the run's score, if it has one.
    """
    rows, curves, clients = [], [], []
    for federation, seed in source.places():
        groups, names = truth(source.frame(federation, seed, "partition.partition")), source.names(federation, seed)
        for method in source.on(federation)["methods"]:
            where = {"federation": federation, "method": method, "seed": seed}
            row, line, own = _run(source, federation, seed, method, groups)
            rows.append(where | row)
            curves.append(line.reset_index().assign(**where))
            clients.append(own.reset_index().assign(**where, group=own.index.map(groups)))
            for kind, called in (("client", names.clients), ("group", names.groups)):
                if called:
                    clients[-1][f"{kind}_name"] = harmless(clients[-1][kind].map(called))
    named = {column for table in clients for column in table} & {"client_name", "group_name"}
    order = ["federation", "method", "seed", "client", "group", *sorted(named), "cluster", "n", "accuracy", "loss"]
    found = pd.concat(clients, ignore_index=True)[order].astype({"group": "Int64"})
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True), found


def _run(
    source: Source, federation: str, seed: int, method: str, groups: pd.Series
) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    place, score = f"methods/{method}", source.settings["score"]
    history = source.frame(federation, seed, f"{place}.history", HISTORY)
    line = curve(history, score)
    rounds = source.frame(federation, seed, f"{place}.rounds", ["round", *COSTS, "clusters", "epsilon"])
    labels = final_labels(source.frame(federation, seed, f"{place}.clusters", ["round", "client", "cluster"]))
    planted = groups.reindex(labels.index, fill_value=-1)
    times = pd.concat([timing(source.path(federation, seed, n)) for n in source.chain(federation, method)])
    row = pick(line, score) | rounds[COSTS].sum().to_dict()
    row |= {"clusters": rounds["clusters"].iloc[-1] if len(rounds) else np.nan}
    privacy = source.guarantee(federation, seed, method) or {}
    row |= {"epsilon": rounds["epsilon"].max(), "epsilon_proven": privacy.get("proven")}
    row |= {
        "epsilon_at_least": privacy.get("epsilon_at_least"),
        "seconds": times["seconds"][times["round"] == 0].sum(min_count=1),
    }
    row |= {"server_seconds": times["server_seconds"].sum(min_count=1)}
    row |= {"ari": adjusted_rand_index(planted, labels)}
    return row, _spent(line, rounds), by_client(history, score, row["round"])


def _spent(line: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a curve with the costs of all clients up to each of its rounds; 0 before training."""
    costs = rounds.set_index("round")[COSTS].cumsum()
    spent = costs.reindex(line.index, method="ffill").fillna(0)
    return line.join(spent.assign(bytes=spent["bytes_down"] + spent["bytes_up"])[SPENT])


def summarise(
    scores: pd.DataFrame,
    score: Mapping[str, Any],
    differences: pd.DataFrame,
    to_best: pd.DataFrame,
    clients: pd.DataFrame,
) -> pd.DataFrame:
    """Return one row for each federation and method: means and standard deviations over seeds.

    `scores` and `clients` are the first and the third table of `runs`.

    Also the means of the differences paired by seed, from the baseline and `to_best`, and their intervals if there are
    at least two seeds.
    """
    groups = scores.groupby(["federation", "method"], sort=False)
    columns: dict[str, Any] = {"seeds": groups["seed"].count()}
    for name in ("accuracy", "loss", "ari"):
        columns[f"{name}_mean"] = groups[name].agg(lambda values: values.mean(skipna=False))  # NaN if a seed has none
        columns[f"{name}_std"] = groups[name].agg(spread, ddof=score["ddof"])
    columns["clusters_mean"] = groups["clusters"].mean()
    for name in ("bytes_down", "bytes_up", "local_steps", "epsilon"):
        columns[name] = groups[name].mean()
    columns["epsilon_proven"] = groups["epsilon_proven"].first()  # whether it is a guarantee; missing without privacy
    columns["epsilon_at_least"] = groups["epsilon_at_least"].first().astype(float)
    columns["seconds"] = groups["seconds"].mean()
    table = pd.DataFrame(columns)
    for triple, paired in ((DIFFERENCE, differences), (TO_BEST, to_best)):
        gaps = {key: interval(rows) for key, rows in paired.groupby(["federation", "method"])["difference"]}
        table[triple] = [gaps.get(key, interval([])) for key in table.index]
        table[triple] = table[triple].where(np.isfinite(table[triple]))
    table = table.join(scored_on(clients)).reset_index()
    names = ("evaluation", "split", "average", "at", "smooth", "ddof")
    return table.assign(**{f"score_{n}": str(score[n]) if n == "at" else score[n] for n in names})


def scored_on(clients: pd.DataFrame) -> pd.DataFrame:
    """Return on how many clients each method is scored, by federation and method; `clients` is `runs`'s third table.

    A method scores no client that has no model of its own yet, as where few take part in few rounds. Columns:
    ``scored_clients``, and ``scored_of``, the clients that any method with the same seed is scored on; means over
    those seeds with which the method has a score.
    """
    own = clients.groupby(["federation", "method", "seed"], sort=False)["client"].nunique().rename("scored_clients")
    most = clients.groupby(["federation", "seed"])["client"].nunique().rename("scored_of")
    both = own.reset_index().join(most, on=["federation", "seed"])
    return both.groupby(["federation", "method"], sort=False)[["scored_clients", "scored_of"]].mean()


def spread(values: pd.Series, ddof: int) -> float:
    """Return the standard deviation; NaN for a single value, whatever `ddof`, or if any value is NaN."""
    return values.std(ddof=ddof, skipna=False) if len(values) > 1 else np.nan


def differences(scores: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return each method's score minus the baseline's with the same seed, one row each."""
    rows = [pd.DataFrame(columns=["federation", "measure", "method", "seed", "difference"])]
    for federation, table in scores.groupby("federation", sort=False) if baseline is not None else ():
        name = measure(table)
        wide = table.pivot(index="seed", columns="method", values=name)
        if baseline not in wide:  # the baseline doesn't run on this federation
            continue
        wide = wide.sub(wide[baseline], axis=0).drop(columns=[baseline])
        long = wide.reset_index().melt("seed", var_name="method", value_name="difference")
        rows.append(long.assign(federation=federation, measure=name)[rows[0].columns])
    return pd.concat(rows[1:] or rows, ignore_index=True)


def to_best(scores: pd.DataFrame, informed: Collection[str]) -> pd.DataFrame:
    """Return each method's score minus that of its federation's best with the same seed, one row each.

    The best has the highest mean accuracy (or the lowest loss) over seeds; `informed` methods, which know the planted
    groups, are the best only where there are no others.
    """
    rows = [differences(scores, None)]
    for _, table in scores.groupby("federation", sort=False):
        name = measure(table)
        means = table.groupby("method", sort=False)[name].agg(lambda values: values.mean(skipna=False)).dropna()
        others = means.drop(means.index.intersection([*informed]))
        ranked = (means if others.empty else others).sort_values(ascending=name == "loss", kind="stable")
        if len(ranked):
            rows.append(differences(table, str(ranked.index[0])))
    return pd.concat([table for table in rows if len(table)] or rows[:1], ignore_index=True)


def members(source: Source) -> pd.DataFrame:
    """Return each client's planted group and found cluster, by clustering and by method without a clustering."""
    parts = []
    for federation, seed in source.places():
        clusterings = [("clustering", c, f"clusters/{c}.clusters") for c in source.clusterings(federation)]
        methods = [m for m in source.on(federation)["methods"] if source.clustering(federation, m) is None]
        names = clusterings + [("method", m, f"methods/{m}.clusters") for m in methods]
        partition = source.frame(federation, seed, "partition.partition")
        groups = {"method": truth(partition), "clustering": truth(partition, 1)}
        for kind, name, place in names:
            table = source.frame(federation, seed, place)
            labels = final_labels(table) if len(table) else pd.Series(dtype=int).rename_axis("client")
            where = {"federation": federation, "seed": seed, "kind": kind, "name": name}
            table = labels.rename("cluster").reset_index().assign(**where)
            parts.append(table.assign(group=table["client"].map(groups[kind])))
    order = ["federation", "seed", "kind", "name", "client", "group", "cluster"]
    return pd.concat(parts, ignore_index=True)[order].astype({"group": "Int64"})


def choices(source: Source) -> pd.DataFrame:
    """Return the scores of the numbers k of clusters tried: one row for each federation, seed, clustering and k."""
    parts = [pd.DataFrame(columns=["federation", "seed", "clustering", "k", "silhouette", "eigengap", "chosen"])]
    for federation, seed in source.places():
        for name in source.clusterings(federation):
            where = {"federation": federation, "seed": seed, "clustering": name}
            parts.append(source.frame(federation, seed, f"clusters/{name}.scores").assign(**where)[parts[0].columns])
    return pd.concat(parts[1:] or parts, ignore_index=True)


def contingency(members: pd.DataFrame) -> pd.DataFrame:
    """Return how many clients of each planted group are in each found cluster."""
    group = members["group"].astype("object").where(members["group"].notna(), ONE_GROUP)
    return pd.crosstab(group, members["cluster"], rownames=["group"], colnames=["cluster"])


def samples(source: Source) -> pd.DataFrame:
    """Return how many samples the clients have in each split: one row for each federation, seed and split."""
    rows = []
    for federation, seed in source.places():
        table = source.frame(federation, seed, "partition.partition")
        table = table[table["role"] == "member"]
        counts = table.groupby(["client", "split"]).size().unstack(fill_value=0)
        for split, values in counts.items():
            row = {"federation": federation, "seed": seed, "split": split, "clients": len(counts)}
            row["groups"] = truth(table).nunique()
            rows.append(row | {n: getattr(values, n)() for n in ("min", "median", "max", "sum")})
    return pd.DataFrame(rows)


def sweeps(source: Source) -> pd.DataFrame:
    """Return a row for every federation and trial of a swept method."""
    rows = [pd.DataFrame(columns=["federation", "method", "trial", "values"])]
    for federation in source.settings["federations"]:
        for method in source.on(federation)["methods"]:
            table = source.sweep(federation, method)
            if table is not None:
                where = pd.DataFrame({"federation": federation, "method": method}, index=table.index)
                rows.append(where.join(table))
    return pd.concat(rows[1:] or rows, ignore_index=True)


def faults(source: Source, scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the faults of each run, one row each, and the clients that are faulty in all rounds, one row each.

    ``dropped``, ``straggled`` and ``excluded`` are sums over rounds; ``corrupt``, ``flipped`` and ``left_out`` (flipped
    clients that the partition excludes) count clients. ``accuracy`` and ``loss`` are those of all other clients: the
    run's `scores` if there are no faulty ones.
    """
    score, rows, who = source.settings["score"], [], [pd.DataFrame(columns=BAD)]
    own = scores.set_index(["federation", "method", "seed"])[["accuracy", "loss"]]
    for federation, seed in source.places():
        partition = source.frame(federation, seed, "partition.partition")
        left = partition["client"][partition["role"] == "excluded"].nunique()
        flipped = flipped_labels(partition)
        for method in source.on(federation)["methods"]:
            where = {"federation": federation, "method": method, "seed": seed}
            bad = {"corrupt": source.corrupt(federation, seed, method), "flipped": flipped}
            found = own.loc[tuple(where.values())]
            if len(ids := np.union1d(bad["corrupt"], flipped)):
                history = source.frame(federation, seed, f"methods/{method}.history", HISTORY)
                found = pd.Series(pick(curve(history[~history["client"].isin(ids)], score), score)).drop("round")
            sums = source.frame(federation, seed, f"methods/{method}.rounds", [*COUNTED, "excluded"]).sum().astype(int)
            counts = sums.to_dict() | {kind: len(clients) for kind, clients in bad.items()} | {"left_out": left}
            rows.append(where | counts | found.to_dict())
            who += [pd.DataFrame(where | {"kind": kind, "client": clients}) for kind, clients in bad.items()]
    filled = [table for table in who if len(table)]
    return pd.DataFrame(rows), pd.concat(filled, ignore_index=True)[BAD] if filled else who[0]


def jobs(source: Source) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the jobs, one row each, and the packages' versions with the number of jobs that used them."""
    rows, versions = [], []
    for place in {manifest_path(path): path for path in source.inputs.values()}.values():
        manifest = read_json(manifest_path(place))
        names = ("stage", "name", "federation", "seed", "settings", "code")
        row = {name: manifest.get(name) for name in names}
        row["branch"] = manifest.get("machine", {}).get("branch")
        row["partition"] = _partition(source, row["federation"], row["seed"])
        times = processes(place)
        row |= {"seconds": times["seconds"].sum(min_count=1), "host": ", ".join(times["host"].unique())}
        rows.append(row | {"date": times["date"].min()})
        versions += list(manifest["versions"].items())
    counts = pd.DataFrame(versions, columns=["package", "version"]).value_counts(sort=False).rename("jobs")
    return pd.DataFrame(rows), counts.reset_index().sort_values(["package", "version"])


def _partition(source: Source, federation: str, seed: int) -> str:
    path = source.path(federation, seed, "partition.partition")
    return str(read_json(manifest_path(path))["files"][path.name]["sha256"])[:16]
