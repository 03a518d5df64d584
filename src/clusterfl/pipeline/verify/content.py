"""What result files must hold: columns and types, ranges, complete rounds, labels of models that are there.

A problem is the key of a job's output with a sentence: the value found, and what was expected. Axes: M members, K
models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...clustering.distances import check_distance
from ...config.study import differing
from ...data.samples import SPLITS, read_samples
from ...engine.training import Training
from ...errors import UserError
from ...storage.blocks import blocks
from ...storage.row_store import StoredRows
from ...storage.store import manifest_path, names_of, opened, read_json, read_table, read_tensors
from ..chain import Column
from ..job import Job
from ..stages import partition, select

Problem = tuple[str, str]
Manifest = Mapping[str, Any]
ALLOWED = {"split": SPLITS, "role": partition.ROLES}  # of columns of these names
SLACK = 1e-9  # by which rounding may carry a value out of its range
ACCURACY_SHARE = 0.01  # of a client's samples, one at least: by how much other rounding may change what is correct


@dataclass(frozen=True)
class Members:
    """A partition's members, and how many samples each has in each split."""

    ids: NDArray[np.int64]  # [M]
    sizes: Mapping[str, NDArray[np.int64]]  # split -> [M]
    newcomers: NDArray[np.int64]


def problems(job: Job, manifest: Manifest, whole: Mapping[str, Path]) -> Iterator[Problem]:
    """Yield what is wrong with the content of a job's files, which have the digests that the manifest says.

    Parameters
    ----------
    job, manifest
        What made the files, and what it said of them.
    whole
        Those of the job's inputs in which nothing is wrong; what needs others isn't looked at.
    """
    bad = list(_tables(job, manifest))
    yield from bad
    if bad:
        return
    members = _members(whole["partition"]) if "partition" in whole else None
    check = {
        "download": lambda: _samples(job, manifest),
        "partition": lambda: _partition(job, manifest, whole),
        "warmup": lambda: _warmup(job, members),
        "losses": lambda: _losses(job, members),
        "distance": lambda: _distance(job, members),
        "cluster": lambda: _cluster(job, whole),
        "federate": lambda: _federate(job, manifest, whole, members),
        "select": lambda: _select(job, manifest, whole),
        "report": lambda: _report(job),
    }[job.stage]
    yield from check()


def _table(path: Path) -> dict[str, NDArray[Any]]:
    """Return a table; of the few that a job has, each is read once."""
    return _read_table(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read_table(path: Path, time: int) -> dict[str, NDArray[Any]]:
    return read_table(path)


def may_differ(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by how much the correct predictions of n samples may differ between machines."""
    return np.maximum(1, np.ceil(ACCURACY_SHARE * n)).astype(np.int64)


# Columns, types and ranges.


def _tables(job: Job, manifest: Manifest) -> Iterator[Problem]:
    """Compare tables with their declared columns: first which there are, then what values they have."""
    for key, path in job.outputs.items():
        declared = job.kind.outputs[key]
        found = {field.name: _type(str(field.type)) for field in pq.read_schema(path)} if declared.columns else {}
        if not declared.columns or (not found and _may_be_empty(job, key, manifest)):
            continue
        columns = {**declared.columns, **(declared.sometimes if _has_more(job) else {})}
        types = {name: column.type for name, column in columns.items()}
        other = next((name for name in [*types, *found] if found.get(name) != types.get(name)), None)
        if other is None:
            yield from _ranges(key, path, columns, declared.keys)
        else:
            here, there = found.get(other, "missing"), types.get(other, "no such column")
            yield key, f"column '{other}': {here} found, {there} expected"


def _ranges(key: str, path: Path, columns: Mapping[str, Column], keys: tuple[str, ...]) -> Iterator[Problem]:
    """Look for values that aren't in the columns' ranges."""
    table = _table(path)
    for name, column in columns.items():
        values = table[name]
        if name in ALLOWED:
            bad, expected = ~np.isin(values, ALLOWED[name]), f"one of {', '.join(ALLOWED[name])}"
        elif column.least is not None:
            most = np.inf if column.most is None else column.most
            bad = (values < column.least - SLACK) | (values > most + SLACK)
            expected = f"{column.least:g} or more" if column.most is None else f"{column.least:g} to {most:g}"
        else:
            continue
        if bad.any():
            row, where = _row(table, bad, keys)
            yield key, f"{where}: {name} {values[row]} found, {expected} expected"


def _has_more(job: Job) -> bool:
    """Return whether a job's tables have columns for drawn landmarks, or for clients that were made to misbehave.

    A method's tables begin with those of its warm-up.
    """
    before = [other for key, other in job.upstream.items() if key.endswith(".rounds")]
    own = "landmarks" in job.settings or bool(job.settings.get("training", {}).get("faults"))
    return own or any(map(_has_more, before))


def _type(name: str) -> str:
    if name.startswith("fixed_size_list"):
        return f"list of {name.partition(': ')[2].partition('>')[0].partition(' ')[0]}"
    return {"large_string": "string"}.get(name, name)


def _may_be_empty(job: Job, key: str, manifest: Manifest) -> bool:
    """Return whether a table may have no columns: one of a diverged trial, or of no rounds."""
    if "diverged" in manifest:
        return True
    none = job.stage in ("federate", "warmup") and not job.settings["training"]["rounds"]
    return (none and key in ("rounds", "clusters")) or job.stage == "select"


def _row(table: Mapping[str, NDArray[Any]], bad: NDArray[np.bool_], keys: tuple[str, ...]) -> tuple[int, str]:
    """Return the first bad row, and words for where it is and how many there are."""
    row = int(np.argmax(bad))
    where = ", ".join(f"{key} {table[key][row]}" for key in keys)
    return row, f"{where} ({int(bad.sum())} row{'s' if bad.sum() > 1 else ''} in all)"


# Stages before training.


def _samples(job: Job, manifest: Manifest) -> Iterator[Problem]:
    path = job.outputs["samples"]
    with opened(path) as file:
        lengths = {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118
    for name in ("x", "y"):
        if lengths.get(name) != manifest.get("samples"):
            yield "samples", f"{lengths.get(name, 'no')} rows of '{name}' found, {manifest.get('samples')} expected"
            return
    y = read_samples(path, "y").y
    if not np.isfinite(y).all() or (y.dtype.kind in "iu" and y.min(initial=0) < 0):
        row = int(np.argmax(~np.isfinite(y) | ((y < 0) & (y.dtype.kind in "iu"))))
        yield "samples", f"sample {row}: label {y[row]} found, a finite number, for classes 0 or more, expected"


def _partition(job: Job, manifest: Manifest, whole: Mapping[str, Path]) -> Iterator[Problem]:
    table = _table(job.outputs["partition"])
    yield from (bad := list(_dealt(table)))
    if "samples" in whole and not bad:
        yield from _of_samples(job, manifest, whole["samples"], table)


def _dealt(table: Mapping[str, NDArray[Any]]) -> Iterator[Problem]:
    """Look at which client holds which sample, in which split and role."""
    client, sample = table["client"], table["sample"]
    order = np.lexsort((sample, client))
    pairs = np.stack([client[order], sample[order]])
    twice = np.zeros(len(client), dtype=bool)
    twice[order[1:]] = (np.diff(pairs, axis=1) == 0).all(axis=0)
    if twice.any():
        yield "partition", f"{_row(table, twice, ('client', 'sample'))[1]}: twice found, once in one split expected"
    served = np.isin(sample, sample[table["role"] == "server"]) & (table["role"] != "server")
    if served.any():
        yield "partition", f"{_row(table, served, ('client', 'sample'))[1]}: also a sample of the server's"
    bad = (client < 0) != (table["role"] == "server")
    if bad.any():
        row, where = _row(table, bad, ("sample",))
        yield "partition", f"{where}: client {client[row]} found, 0 or more expected (-1 for the server's samples)"
    for name in ("role", "true_cluster"):
        several = pd.Series(table[name]).groupby(client).transform("nunique").to_numpy() > 1
        if several.any():
            yield "partition", f"{_row(table, several, ('client',))[1]}: several values of '{name}', one expected"
    member = table["role"] == "member"
    untrained = np.setdiff1d(client[member], client[member & (table["split"] == "train")])
    if len(untrained):
        yield "partition", f"client {untrained[0]} ({len(untrained)} in all): no training sample found, one expected"


def _of_samples(job: Job, manifest: Manifest, samples: Path, table: dict[str, NDArray[Any]]) -> Iterator[Problem]:
    """Compare a partition with the samples that it deals out."""
    y, sample = read_samples(samples, "y").y, table["sample"]
    bad = (sample < 0) | (sample >= len(y))
    if bad.any():
        yield "partition", f"{_row(table, bad, ('client', 'sample'))[1]}: samples 0 to {len(y) - 1} expected"
        return
    found = partition.content(table, read_json(manifest_path(samples))["content"])
    if found != manifest.get("content"):
        yield "partition", f"content {found[:12]} found, {str(manifest.get('content'))[:12]} expected"
    expected, there = partition.class_counts(table, y), _table(job.outputs["classes"])
    if any(not np.array_equal(expected[name], there[name]) for name in expected):
        yield "classes", f"{int(there['n'].sum())} samples by client and class found, not those of the partition"


def _members(path: Path) -> Members:
    return _read_members(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read_members(path: Path, time: int) -> Members:
    table = read_table(path)
    member = table["role"] == "member"
    ids = np.unique(table["client"][member])
    sizes = {
        split: np.bincount(
            np.searchsorted(ids, table["client"][member & (table["split"] == split)]), minlength=len(ids)
        )
        for split in SPLITS
    }
    return Members(ids, sizes, np.unique(table["client"][table["role"] == "newcomer"]))


def _losses(job: Job, members: Members | None) -> Iterator[Problem]:
    table = _table(job.outputs["losses"])
    yield from _clients("losses", table["client"], members)
    bad = ~(np.isfinite(table["losses"]) & (table["losses"] >= 0)).all(1)
    if bad.any():
        row, where = _row(table, bad, ("client",))
        least, most = table["losses"][row].min(), table["losses"][row].max()
        yield "losses", f"{where}: losses from {least:g} to {most:g} found, numbers of 0 or more expected"


def _distance(job: Job, members: Members | None) -> Iterator[Problem]:
    table = _table(job.outputs["distance"])
    yield from _clients("distance", table["client"], members)
    order = np.argsort(table["client"])
    distance, marked = table["distance"][order], table.get("landmark")
    columns = np.argsort(table["client"] if marked is None else table["client"][marked])
    if distance.shape[1] != len(columns):
        yield "distance", f"{distance.shape[1]} columns found, {len(columns)} expected"
        return
    try:
        check_distance(distance[:, columns], None if marked is None else np.flatnonzero(marked[order]))
    except UserError as error:
        yield "distance", str(error)


def _cluster(job: Job, whole: Mapping[str, Path]) -> Iterator[Problem]:
    table, scores = _table(job.outputs["clusters"]), _table(job.outputs["scores"])
    if "distance" in whole:
        clients = _table(whole["distance"])["client"]
        yield from _clients("clusters", table["client"], Members(np.sort(clients), {}, clients[:0]))
    labels = table["cluster"]
    count = len(np.unique(labels[labels >= 0]))
    bad = labels >= count
    if bad.any():
        row, where = _row(table, bad, ("client",))
        yield "clusters", f"{where}: cluster {labels[row]} found, 0 to {count - 1} or -1 (none) expected"
    if int(scores["chosen"].sum()) != 1:
        yield "scores", f"{int(scores['chosen'].sum())} chosen numbers of clusters found, 1 expected"


def _clients(key: str, clients: NDArray[np.int64], members: Members | None) -> Iterator[Problem]:
    if members is not None and not np.array_equal(np.sort(clients), members.ids):
        yield key, f"{len(np.unique(clients))} clients found, not the {len(members.ids)} expected"


# Training.


def _warmup(job: Job, members: Members | None) -> Iterator[Problem]:
    training = Training(**job.settings["training"])
    history, rounds = _table(job.outputs["history"]), _table(job.outputs["rounds"])
    yield from _rounds(rounds, training.rounds)
    state = read_tensors(job.outputs["common"], names_of(job.outputs["common"]) - {"theta"})
    models = StoredRows([job.outputs["common"]], "theta")
    yield from _finite("common", models)
    shards = sorted(job.outputs["clients"].glob("*.safetensors"))
    ids = np.concatenate([read_tensors(path, ["client"])["client"] for path in shards])
    yield from _clients("clients", ids, members)
    theta = StoredRows(shards, "theta")
    if theta.shape != (len(ids), models.shape[1]):
        yield "clients", f"models of shape {theta.shape} found, {(len(ids), models.shape[1])} expected"
    yield from _finite("clients", theta)
    if "labels" not in state or len(state["labels"]) != len(ids):
        yield "common", f"{len(state.get('labels', ()))} labels found, {len(ids)} expected"
    yield from _history(history, rounds, [training], len(models), members)
    if members is not None:
        evaluated = {0, *_evaluated(training, 1)}
        yield from _complete(history, {r: (members.ids, np.zeros_like(members.ids)) for r in evaluated}, members)


def _federate(job: Job, manifest: Manifest, whole: Mapping[str, Path], members: Members | None) -> Iterator[Problem]:
    if "diverged" in manifest:
        return
    training, before = Training(**job.settings["training"]), job.upstream.get("warmup.rounds")
    stages = [training] if before is None else [Training(**before.settings["training"]), training]
    first = 1 if before is None else stages[0].rounds + 1
    history, rounds, clusters, classes = (
        _table(job.outputs[key]) for key in ("history", "rounds", "clusters", "classes")
    )
    yield from _rounds(rounds, training.rounds)
    path = job.outputs["models"]
    lacking = {"theta", "labels", "participations", "last_label"} - names_of(path)
    if lacking:
        yield "models", f"no array '{min(lacking)}' found, one expected"
        return
    theta = StoredRows([path], "theta")
    yield from _finite("models", theta)
    yield from (bad := list(_history(history, rounds, stages, len(theta), members)))
    if not bad:
        yield from _by_class(history, classes, training.rounds)
    state = read_tensors(path, ["labels", "participations"])
    if (state["labels"] < -1).any() or (state["labels"] >= len(theta)).any():
        worst = state["labels"][np.argmax((state["labels"] < -1) | (state["labels"] >= len(theta)))]
        yield "models", f"label {worst} found, 0 to {len(theta) - 1} or -1 (none) expected"
    if first > training.rounds:
        return
    yield from (bad := list(_clusters(clusters, first, training.rounds, len(theta), members)))
    if bad:
        return
    yield from _final(state, clusters, rounds)
    if before is None or "warmup.common" in whole:
        yield from _participations(state, clusters, whole.get("warmup.common"))
    if members is not None:
        labelled = {}
        for round_ in _evaluated(training, first):
            own = (clusters["round"] == round_) & (clusters["cluster"] >= 0)
            labelled[round_] = clusters["client"][own], clusters["cluster"][own]
        yield from _complete(history, labelled, members)


def _evaluated(training: Training, first: int) -> list[int]:
    """Return the rounds behind which models are scored."""
    rounds = range(first, training.rounds + 1)
    return [r for r in rounds if r % training.evaluate_every == 0 or r == training.rounds]


def _rounds(table: Mapping[str, NDArray[Any]], last: int) -> Iterator[Problem]:
    if not table:  # of no rounds
        return
    lacking = np.setdiff1d(np.arange(1, last + 1), table["round"])
    if len(lacking):
        yield "rounds", f"round {lacking[0]} ({len(lacking)} in all) missing, 1 to {last} expected"
    elif len(table["round"]) != last:
        yield "rounds", f"{len(table['round'])} rows found, rounds 1 to {last} once each expected"


def _clusters(
    table: Mapping[str, NDArray[Any]], first: int, last: int, models: int, members: Members | None
) -> Iterator[Problem]:
    lacking = np.setdiff1d(np.arange(first, last + 1), table["round"])
    if len(lacking) or table["round"].min() < first or table["round"].max() > last:
        there = f"rounds {table['round'].min()} to {table['round'].max()} found"
        gap = f", round {lacking[0]} ({len(lacking)} in all) missing" if len(lacking) else ""
        yield "clusters", f"{there}{gap}; {first} to {last} expected"
        return
    clients = np.unique(table["client"]) if members is None else members.ids
    counts = pd.Series(np.isin(table["client"], clients)).groupby(table["round"]).sum()
    pairs = len(np.unique(np.stack([table["round"], table["client"]]), axis=1).T)
    if (counts != len(clients)).any() or pairs != len(table["round"]):
        yield "clusters", f"round {counts.index[counts != len(clients)].min()}: not each of {len(clients)} clients once"
    bad = table["cluster"] >= models
    if bad.any():
        row, where = _row(table, bad, ("round", "client"))
        yield "clusters", f"{where}: cluster {table['cluster'][row]} found, 0 to {models - 1} or -1 (none) expected"


def _final(
    state: Mapping[str, NDArray[Any]], clusters: Mapping[str, NDArray[Any]], rounds: Mapping[str, NDArray[Any]]
) -> Iterator[Problem]:  # fmt: skip
    """Compare the final state, and each round's number of clusters, with the labels of the rounds."""
    frame = pd.DataFrame(dict(clusters))
    final = frame[frame["round"] == frame["round"].max()].sort_values("client")
    if not np.array_equal(final["cluster"], state["labels"]):
        yield "models", "labels found that aren't those of the last round in clusters.parquet"
    counts = frame[frame["cluster"] >= 0].groupby("round")["cluster"].nunique()
    counts = counts.reindex(frame["round"].unique(), fill_value=0)
    recorded = pd.Series(rounds["clusters"], index=rounds["round"]).reindex(counts.index)
    if (recorded != counts).any():
        round_ = counts.index[recorded != counts][0]
        yield (
            "rounds",
            f"round {round_}: {recorded[round_]} clusters found, {counts[round_]} in clusters.parquet expected",
        )


def _participations(
    state: Mapping[str, NDArray[Any]], clusters: Mapping[str, NDArray[Any]], common: Path | None
) -> Iterator[Problem]:
    """Compare the clients' counted rounds with those of the warm-up, where there is one, and those after it."""
    began = read_tensors(common, ["participations"])["participations"] if common is not None else 0
    sums = pd.DataFrame(dict(clusters)).groupby("client")["participated"].sum().to_numpy() + began
    if not np.array_equal(sums, state["participations"]):
        yield "models", f"{state['participations'].sum()} participations found, {sums.sum()} expected"


def _finite(key: str, theta: StoredRows) -> Iterator[Problem]:
    for part in blocks(len(theta), theta.shape[1] * theta.dtype.itemsize):
        bad = np.flatnonzero(~theta[part].isfinite().all(dim=1).numpy())
        if len(bad):
            yield key, f"model {part.start + bad[0]} has NaN or infinity; finite numbers expected"
            return


def _history(
    table: Mapping[str, NDArray[Any]], rounds: Mapping[str, NDArray[Any]], stages: list[Training], models: int,
    members: Members | None,
) -> Iterator[Problem]:  # fmt: skip
    if not table:
        yield "history", "no rows found, scores of each evaluated round expected"
        return
    keys = ("round", "client", "split", "evaluation")
    n, correct, loss, kind = (table[name] for name in ("n", "correct", "loss", "evaluation"))
    regression = np.isnan(correct).all()
    diverged = np.isin(table["round"], rounds["round"][rounds["excluded"] > 0]) if rounds else np.zeros(len(n), bool)
    surely = np.isin(kind, ["aggregated", "newcomer"]) | ((kind == "local") & ~diverged)
    asked = {"aggregated", *(name for stage in stages for name in stage.evaluations)}
    people = None if members is None else np.concatenate([members.ids, members.newcomers])
    with np.errstate(invalid="ignore"):
        checks = [
            ("round", table["round"] > stages[-1].rounds, f"0 to {stages[-1].rounds}"),
            ("client", np.zeros(len(n), bool) if people is None else ~np.isin(table["client"], people), "a client"),
            ("evaluation", ~np.isin(kind, sorted(asked)), f"one of {', '.join(sorted(asked))}"),
            ("cluster", table["cluster"] >= models, f"0 to {models - 1}"),
            ("correct", (correct > n) | (correct % 1 > 0), "a whole number from 0 to n"),
            ("correct", np.isnan(correct) & (n > 0) & (not regression) & surely, "a whole number from 0 to n"),
            ("loss", np.isnan(loss) & (n > 0) & surely, "a number, as no update diverged"),
        ]
    for name, bad, expected in checks:
        if bad.any():
            row, where = _row(table, bad, keys)
            of = f" of n = {n[row]}" if name == "correct" else ""
            yield "history", f"{where}: {name} {table[name][row]}{of} found, {expected} expected"
    again = pd.DataFrame({key: table[key] for key in keys}).duplicated().to_numpy()
    if again.any():
        yield "history", f"{_row(table, again, keys)[1]}: twice found, once expected"


Labelled = Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]]  # round -> clients with a model, their models


def _complete(table: Mapping[str, NDArray[Any]], labelled: Labelled, members: Members) -> Iterator[Problem]:
    """Look for the aggregated models' scores of each client with a model, in each evaluated round and split."""
    scored = table["evaluation"] == "aggregated"
    for split, sizes in members.sizes.items():
        own = scored & (table["split"] == split)
        if own.any() and not sizes.any():
            yield "history", f"scores on the split '{split}' found, which has no samples"
        for round_, (clients, labels) in sorted(labelled.items()) if sizes.any() else ():
            here = np.flatnonzero(own & (table["round"] == round_))
            here = here[np.argsort(table["client"][here])]
            order = np.argsort(clients)
            n = sizes[np.searchsorted(members.ids, clients[order])]
            where = f"round {round_}, {split}"
            if not np.array_equal(table["client"][here], clients[order]):
                yield "history", f"{where}: scores of {len(here)} clients found, of {len(clients)} expected"
                return
            for name, expected in (("cluster", labels[order]), ("n", n)):
                if not np.array_equal(table[name][here], expected):
                    i = int(np.argmax(table[name][here] != expected))
                    found = f"{name} {table[name][here][i]} found, {expected[i]} expected"
                    yield "history", f"{where}, client {clients[order][i]}: {found}"
                    return


def _by_class(history: Mapping[str, NDArray[Any]], classes: Mapping[str, NDArray[Any]], last: int) -> Iterator[Problem]:
    """Compare results by class with those of the last round; sums of other batches may differ by rounding."""
    bad = classes["correct"] > classes["n"]
    if bad.any():
        row, where = _row(classes, bad, ("client", "class"))
        yield "classes", f"{where}: correct {classes['correct'][row]} of n = {classes['n'][row]} found, 0 to n expected"
        return
    final = (history["round"] == last) & (history["split"] == "test") & (history["evaluation"] == "aggregated")
    final &= (history["n"] > 0) & ~np.isnan(history["correct"])
    recorded = pd.DataFrame({key: history[key][final] for key in ("client", "n", "correct")}).set_index("client")
    sums = pd.DataFrame(dict(classes)).groupby("client")[["n", "correct"]].sum()
    if not sums.index.equals(recorded.index.sort_values()):
        yield "classes", f"{len(sums)} clients found, {len(recorded)} expected: those with test samples and a model"
        return
    recorded = recorded.reindex(sums.index)
    for name, most in (("n", np.zeros(len(sums))), ("correct", may_differ(sums["n"].to_numpy()))):
        off = (np.abs(sums[name] - recorded[name]) > most).to_numpy()
        if off.any():
            client = sums.index[np.argmax(off)]
            found = f"{name} {sums[name][client]} over all classes found"
            yield "classes", f"client {client}: {found}, {recorded[name][client]:g} in history.parquet expected"


# What is chosen and shown.


def _select(job: Job, manifest: Manifest, whole: Mapping[str, Path]) -> Iterator[Problem]:
    table, chosen = _table(job.outputs["sweep"]), manifest.get("chosen")
    trials = len(job.settings["trials"])
    if table["trial"].tolist() != list(range(1, trials + 1)):
        yield "sweep", f"{len(table['trial'])} trials found, 1 to {trials} expected"
        return
    best = select.choose(pd.DataFrame(table))
    if best != chosen or table["trial"][table["chosen"]].tolist() != [chosen]:
        yield "sweep", f"trial {chosen} chosen, {best} has the best validation score"
    for key, path in job.outputs.items():
        source = whole.get(f"seed{job.seed}/{chosen}.{key}")
        if source is not None:
            expected = read_json(manifest_path(source))["files"][source.name]["sha256"]
            found = manifest["files"][path.name]["sha256"]
            if found != expected:
                yield key, f"sha256 {found[:12]} found, {expected[:12]} of trial {chosen} expected"


def _report(job: Job) -> Iterator[Problem]:
    if read_json(job.outputs["study"]) != job.settings:
        yield "study", "settings found that aren't the study's"
    table = pd.read_parquet(job.outputs["summary"])
    expected = {
        (federation, method)
        for federation in job.settings["federations"]
        for method in differing(job.settings, federation)["methods"]
    }
    if not {"federation", "method", "accuracy_mean"} <= set(table):
        yield "summary", "no columns federation, method, accuracy_mean found"
        return
    found = list(zip(table["federation"], table["method"], strict=True))
    if sorted(found) != sorted(expected):
        yield "summary", f"{len(found)} rows found, one for each of {len(expected)} federations and methods expected"
    bad = ((table["accuracy_mean"] < 0) | (table["accuracy_mean"] > 1)).to_numpy()
    if bad.any():
        row = table.iloc[int(np.argmax(bad))]
        where = f"{row['federation']}, {row['method']}"
        yield "summary", f"{where}: accuracy {row['accuracy_mean']:g} found, 0 to 1 expected"
