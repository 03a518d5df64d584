"""Checks of the content of each stage's files against settings and other files, beyond their columns' declarations.

A problem is the key of a job's output with a sentence: the value found and what was expected. Axes: M members, K
models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...clustering.distances import check_distance
from ...config.blocks import differing
from ...data.samples import SPLITS, read_samples
from ...engine.training import Training
from ...errors import UserError
from ...storage.manifest import manifest_path
from ...storage.row_store import StoredRows
from ...storage.store import names_of, opened, read_json, read_table, read_tensors
from ..job import Job
from ..stages import partition, select
from .tables import Problem, Sets, differences, frame, misfits, mistyped, read, tensor_files, types, unexpected

Manifest = Mapping[str, Any]
Paths = Mapping[str, Path]
ACCURACY_SHARE = 0.01  # of a client's samples, at least one sample: by how much correct may differ through rounding


def problems(job: Job, manifest: Manifest, whole: Paths) -> Iterator[Problem]:
    """Yield the problems in the content of a job's files, whose digests are those in the manifest.

    Parameters
    ----------
    job, manifest
        The job that made the files, and its manifest.
    whole
        The job's undamaged inputs; checks that need others are skipped.
    """
    bad, tables = [], {}
    for key, output in job.kind.outputs.items():
        there = types(job.outputs[key]) if output.columns else {}
        if not output.columns or (not there and _may_be_empty(job, key, manifest)):
            continue
        tables[key] = output
        more = _has_more(job) or (job.stage == "partition" and _has_names(whole, there))
        bad += [(key, text) for text in [mistyped(there, output, more)] if text]
    if not bad:
        sets = known(job, manifest, whole)
        for key, output in tables.items():
            bad += misfits(key, read(job.outputs[key], output), output, sets)
    yield from bad
    if not bad and job.stage in CHECKS and "diverged" not in manifest:
        yield from CHECKS[job.stage](job, manifest, whole, sets)


def _has_more(job: Job) -> bool:
    """Return whether a job's tables have columns for landmarks or for faulty clients.

    A method's tables include those of its warm-up.
    """
    before = [other for key, other in job.upstream.items() if key.endswith(".rounds")]
    own = "landmarks" in job.settings or bool(job.settings.get("training", {}).get("faults"))
    return own or any(map(_has_more, before))


def _has_names(whole: Paths, there: Mapping[str, str]) -> bool:
    """Return whether the samples' classes have names; if the samples are damaged, whether the partition has names."""
    return "classes" in names_of(whole["samples"]) if "samples" in whole else "label" in there


def _may_be_empty(job: Job, key: str, manifest: Manifest) -> bool:
    """Return whether a table may have no columns: that of a diverged trial, or of a training without rounds."""
    if "diverged" in manifest or (job.stage == "select" and key != "sweep"):
        return True
    return "training" in job.settings and not job.settings["training"]["rounds"] and key in ("rounds", "clusters")


def may_differ(n: Any) -> NDArray[np.int64]:
    """Return by how much the correct predictions of n samples may differ between machines."""
    return np.maximum(1, np.ceil(ACCURACY_SHARE * n)).astype(np.int64)


# Allowed values of columns, from settings and inputs.


def known(job: Job, manifest: Manifest, whole: Paths) -> dict[str, Any]:
    """Return the sets of allowed values, by name, as far as settings and undamaged inputs determine them."""
    sets: dict[str, Any] = {"splits": SPLITS, "roles": partition.ROLES}
    if job.stage == "partition" and "samples" in whole:
        sets["samples"] = range(len(read_samples(whole["samples"], "y").y))
    if job.stage == "select":
        sets["trials"] = range(1, len(job.settings["trials"]) + 1)
    if job.stage == "cluster":
        labels = frame(job.outputs["clusters"])["cluster"]
        sets["labels"] = range(-1, labels[labels >= 0].nunique())
        if "distance" in whole:
            sets["members"] = read(whole["distance"], job.upstream["distance"].kind.outputs["distance"])["client"]
    if job.stage in ("warmup", "federate") and "diverged" not in manifest:
        sets |= _trained(job)
    if "partition" in whole:
        sizes, newcomers = members(whole["partition"])
        sets |= {"members": sizes.index.to_numpy(), "clients": np.append(sizes.index, newcomers)}
    return sets


def _trained(job: Job) -> dict[str, Any]:
    """Return the sets determined by rounds and models; members are preliminary, from the job's own files."""
    stages = _stages(job)
    first, last = sum(stage.rounds for stage in stages[:-1]) + 1, stages[-1].rounds
    models = len(StoredRows([job.outputs["models" if job.stage == "federate" else "common"]], "theta"))
    asked = {"aggregated", *(name for stage in stages for name in stage.evaluations)}
    if job.stage == "warmup":
        clients = read(job.outputs["clients"], job.kind.outputs["clients"])["client"]
    else:
        clients = frame(job.outputs["clusters"]).get("client", np.zeros(0, np.int64))
    return {
        "rounds": range(1, last + 1),
        "own rounds": range(first, last + 1),
        "scored rounds": range(last + 1),
        "models": range(models),
        "labels": range(-1, models),
        "evaluations": sorted(asked),
        "members": np.unique(clients),
    }


def _stages(job: Job) -> list[Training]:
    """Return the training settings of a job, after those of its warm-up if there is one."""
    before = [job.upstream["warmup.rounds"]] if "warmup.rounds" in job.upstream else []
    return [Training(**one.settings["training"]) for one in (*before, job)]


def members(path: Path) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return each member's number of samples in each split, [member x split], and the newcomers' ids."""
    return _members(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _members(path: Path, time: int) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    table = pd.DataFrame(read_table(path))
    own = table[table["role"] == "member"]
    sizes = own.groupby(["client", "split"]).size().unstack(fill_value=0).reindex(columns=SPLITS, fill_value=0)
    return sizes, table["client"][table["role"] == "newcomer"].unique()


# Stages before training.


def _samples(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    path, expected = job.outputs["samples"], manifest.get("samples")
    with opened(path) as file:
        lengths = {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118
    for name in ("x", "y"):
        if lengths.get(name) != expected:
            yield "samples", f"{lengths.get(name, 'no')} rows of '{name}' found, {expected} expected"
            return
    y = read_samples(path, "y").y
    bad = ~np.isfinite(y) | ((y < 0) & (y.dtype.kind in "iu"))
    yield from unexpected("samples", {"label": y}, "label", bad, "a finite number, for classes 0 or more,", ())


def _partition(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    columns = read_table(job.outputs["partition"])
    table = pd.DataFrame(columns)
    server, member = table["role"] == "server", table["role"] == "member"
    several = table.groupby("client")[["role", "true_cluster"]].transform("nunique") > 1
    learned = table["client"].isin(table["client"][member & (table["split"] == "train")])
    rules = [
        ("sample", ~server & table["sample"].isin(table["sample"][server]), "one that the server doesn't keep"),
        ("client", (table["client"] < 0) != server, "0 or more (-1 for the server's samples)"),
        ("role", several["role"], "one for each client"),
        ("true_cluster", several["true_cluster"], "one for each client"),
        ("client", member & ~learned, "a training sample of each member"),
    ]
    keys = ("client", "sample")
    bad = [one for name, rows, words in rules for one in unexpected("partition", columns, name, rows, words, keys)]
    yield from bad
    if "samples" in whole and not bad:
        found = partition.content(columns, read_json(manifest_path(whole["samples"]))["content"])
        if found != manifest.get("content"):
            yield "partition", f"content {found[:12]} found, {str(manifest.get('content'))[:12]} expected"
        counts = partition.class_counts(columns, read_samples(whole["samples"], "y", "classes"))
        there = read_table(job.outputs["classes"])
        if any(not np.array_equal(counts[name], there[name]) for name in counts):
            yield "classes", f"{there['n'].sum()} samples by client and class found, not those of the partition"


def _distance(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    table = read_table(job.outputs["distance"])
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


def _cluster(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    chosen = int(frame(job.outputs["scores"])["chosen"].sum())
    if chosen != 1:
        yield "scores", f"{chosen} chosen numbers of clusters found, 1 expected"


# Training.


def _warmup(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    theta = StoredRows(tensor_files(job.outputs["clients"]), "theta")
    columns = StoredRows([job.outputs["common"]], "theta").shape[1]
    if theta.shape[1] != columns:
        yield "clients", f"models of {theta.shape[1]} numbers found, {columns} of common.safetensors expected"
    rounds = [0, *_evaluated(job, 1)]
    labels = pd.MultiIndex.from_product([rounds, sets["members"]], names=["round", "client"]).to_frame(index=False)
    yield from _scores(job, whole, rounds, labels.assign(cluster=0))


def _federate(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    own = sets["own rounds"]
    labels = frame(job.outputs["clusters"]).reindex(columns=["round", "client", "cluster", "participated"])
    yield from _scores(job, whole, _evaluated(job, own.start), labels[labels["cluster"] >= 0])
    yield from _by_class(job)
    if own:
        yield from _state(job, whole, labels, own)


def _state(job: Job, whole: Paths, labels: pd.DataFrame, own: range) -> Iterator[Problem]:
    """Compare final labels, participations, and each round's number of clusters with the labels of the job's rounds."""
    sums = labels.groupby("client")["participated"].sum()
    if "warmup.common" in whole:
        sums += read_tensors(whole["warmup.common"], ["participations"])["participations"]
    final = labels[labels["round"] == own[-1]].set_index("client")["cluster"].rename("labels").to_frame()
    if "warmup.common" in whole or "warmup.common" not in job.inputs:
        final["participations"] = sums
    state = pd.DataFrame(read_tensors(job.outputs["models"], ["labels", "participations"])).assign(client=sums.index)
    yield from differences("models", state, final.reset_index(), ["client"], "clusters.parquet")
    counts = labels[labels["cluster"] >= 0].groupby("round")["cluster"].nunique().reindex(own, fill_value=0)
    rounds = frame(job.outputs["rounds"])
    rounds = rounds[rounds["round"] >= own.start]
    yield from differences("rounds", rounds, counts.rename("clusters").reset_index(), ["round"], "clusters.parquet")


def _evaluated(job: Job, first: int) -> list[int]:
    """Return the rounds after which models are scored."""
    training = Training(**job.settings["training"])
    rounds = range(first, training.rounds + 1)
    return [r for r in rounds if r % training.evaluate_every == 0 or r == training.rounds]


def _scores(job: Job, whole: Paths, rounds: Sequence[int], labels: pd.DataFrame) -> Iterator[Problem]:
    """Yield missing scores, and differences of aggregated models' rows from the expected labels and sizes.

    Parameters
    ----------
    job, whole
        As for `problems`.
    rounds
        The rounds after which models are scored.
    labels
        Rows of round, client and cluster, for clients that have a model.
    """
    history, before = frame(job.outputs["history"]), frame(job.outputs["rounds"]).reindex(columns=["round", "excluded"])
    kind, absent = history["evaluation"], history[["correct", "loss"]].isna()
    diverged = history["round"].isin(before["round"][before["excluded"] > 0])
    surely = kind.isin(["aggregated", "newcomer"]) | ((kind == "local") & ~diverged)
    regression = absent["correct"].all()
    keys = job.kind.outputs["history"].keys
    for name in ("loss",) if regression else ("correct", "loss"):
        bad = absent[name] & (history["n"] > 0) & surely
        yield from unexpected("history", history, name, bad, "a number, as no update diverged,", keys)
    if "partition" not in whole:
        return
    sizes, _ = members(whole["partition"])
    splits = [split for split in SPLITS if sizes[split].any()]
    own = history[kind == "aggregated"]
    yield from unexpected("history", own, "split", ~own["split"].isin(splits), "a split that has samples", keys)
    labels = labels.loc[labels["round"].isin(rounds), ["round", "client", "cluster"]]
    parts = [labels.assign(split=split, n=labels["client"].map(sizes[split])) for split in splits]
    expected = pd.concat(parts).sort_values("round", kind="stable")  # as the history is
    found, source = own[own["round"].isin(rounds)], "clusters and partition"
    yield from differences("history", found, expected, ["round", "client", "split"], source)


def _by_class(job: Job) -> Iterator[Problem]:
    """Compare results by class with the last round's scores; they may differ slightly through rounding."""
    history, last = frame(job.outputs["history"]), job.settings["training"]["rounds"]
    final = (history["round"] == last) & (history["split"] == "test") & (history["evaluation"] == "aggregated")
    expected = history.loc[final & (history["n"] > 0) & history["correct"].notna(), ["client", "n", "correct"]]
    sums = frame(job.outputs["classes"]).groupby("client")[["n", "correct"]].sum().reset_index()
    slack = {"correct": lambda both: may_differ(both["n"])}
    yield from differences("classes", sums, expected, ["client"], "history.parquet", slack)


# What is chosen and shown.


def _select(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    table, chosen = frame(job.outputs["sweep"]), manifest.get("chosen")
    best = select.choose(table)
    if best != chosen or table["trial"][table["chosen"]].tolist() != [chosen]:
        yield "sweep", f"trial {chosen} chosen, {best} has the best validation score"
    for key, path in job.outputs.items():
        source = whole.get(f"seed{job.seed}/{chosen}.{key}")
        if source is not None:
            expected = read_json(manifest_path(source))["files"][source.name]["sha256"]
            found = manifest["files"][path.name]["sha256"]
            if found != expected:
                yield key, f"sha256 {found[:12]} found, {expected[:12]} of trial {chosen} expected"


def _report(job: Job, manifest: Manifest, whole: Paths, sets: Sets) -> Iterator[Problem]:
    if read_json(job.outputs["study"]) != job.settings:
        yield "study", "settings found that aren't the study's"
    pairs = [
        (federation, method)
        for federation in job.settings["federations"]
        for method in differing(job.settings, federation)["methods"]
    ]
    keys = ["federation", "method"]
    expected = pd.DataFrame(pairs, columns=keys)
    yield from differences("summary", frame(job.outputs["summary"]), expected, keys, "study.json")


CHECKS = {
    "download": _samples,
    "partition": _partition,
    "distance": _distance,
    "cluster": _cluster,
    "warmup": _warmup,
    "federate": _federate,
    "select": _select,
    "report": _report,
}
