"""Stage partition: which client holds which sample, in which split, under which transform and in which role."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import streams
from ...data import PARTITIONS, drift
from ...data.encoding import listed
from ...data.names import of_partition
from ...data.samples import SPLITS, Labels, Samples, Table, read_samples
from ...data.transforms import FLIP, parse, relabelled
from ...errors import UserError, choices, printable
from ...simulation.participation import chosen
from ...storage.manifest import manifest_path
from ...storage.store import read_json, write_table
from . import Facts, Work

COLUMNS = ("sample", "client", "split", "role", "transform", "true_cluster")
ROLES = ("member", "newcomer", "server", "excluded")
NOBODY = -1  # the client of samples that the server keeps


def run(work: Work) -> Facts:
    """Write the partition, rows in the order of (client, sample), and its counts by client and class."""
    path = work.inputs["samples"]
    samples = read_samples(path, "y", "test", "owner", "group", "classes")
    dataset = read_json(manifest_path(path))
    given = dataset.get("names", {})
    table = make(work.settings, samples, work.settings["seed"], source(dataset), given)
    write_table(work.outputs["partition"], table)
    write_table(work.outputs["classes"], class_counts(table, samples))
    names = of_partition(given, samples, table).facts()
    without = left_out(work.settings, samples, table, given)
    for sentence in [*without, *unscored(table)]:
        print(printable(sentence), file=sys.stderr)
    facts = {
        "clients": len(np.unique(table["client"][table["role"] != "server"])),
        "samples": len(table["sample"]),
        "split_rule": rule(work.settings, samples),
        "content": content(table, dataset["content"]),
    }
    return facts | {key: value for key, value in (("names", names), ("left_out", without)) if value}


def source(dataset: Mapping[str, Any]) -> str:
    """Return the beginning of an error about a partition of the user's own data: files and columns, or nothing."""
    columns = ", ".join(f"{role} '{name}'" for role, name in dataset.get("columns", {}).items())
    files = ", ".join(dataset.get("own", {}))
    return f"{files}{columns and f' ({columns})'}: " if files else ""


def left_out(
    settings: Mapping[str, Any], samples: Samples, table: Table, names: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return which of the data's own clients have no sample in a partition: a sentence for each reason.

    Only for scheme natural, as the others redistribute samples. `names` are those in the dataset's manifest.
    """
    if settings["scheme"] != "natural" or samples.owner is None or "clients" not in names:
        return []
    called, options = np.array(names["clients"]), settings["options"]
    dealt = table["role"] != "server"
    gone = np.setdiff1d(np.unique(samples.owner[samples.owner >= 0]), samples.owner[table["sample"][dealt]])
    train = np.ones(len(samples.owner), dtype=bool)
    if rule(settings, samples) == "official" and samples.test is not None:
        train &= ~samples.test
    train[table["sample"][~dealt]] = False  # the server's
    sizes = np.bincount(samples.owner[train & (samples.owner >= 0)], minlength=len(called))[gone]
    few = sizes < options["minimum"]
    reasons = {
        "they have no training samples": sizes == 0,
        f"they have fewer than {options['minimum']} training samples (partition.minimum)": few & (sizes > 0),
        f"{options['clients']} are kept (partition.clients)": ~few,
    }
    return [
        f"Clients of the data left out, because {why}: {listed(called[gone[of]])}."
        for why, of in reasons.items()
        if of.any()
    ]


def unscored(table: Table) -> list[str]:
    """Return a sentence if no member has a test sample."""
    if ((table["role"] == "member") & (table["split"] == "test")).any():
        return []
    return [
        "No member has a test sample, so nothing is scored on test data; partition.test is a share of each client's "
        "samples: choose a larger one, or fewer clients with more samples."
    ]


def rule(settings: Mapping[str, Any], samples: Samples) -> str:
    """Return where test samples come from: official or share.

    Raises
    ------
    UserError
        If official is set, but the dataset has no test part.
    """
    asked, there = settings["split"], samples.test is not None
    if asked == "official" and not there:
        raise UserError("partition.split: 'official', but the dataset has no test part of its own; use 'share'")
    return str(asked) if asked != "auto" else "official" if there else "share"


def make(
    settings: Mapping[str, Any],
    samples: Samples,
    seed: int,
    begin: str = "",
    names: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return a partition's columns, complete and checked, in the order of (client, sample).

    Parameters
    ----------
    settings
        A job's settings, from `clusterfl.config.federation.Partition`: scheme, options, and keys of all schemes.
    samples
        The dataset; its `x` isn't used.
    seed
        Of every draw.
    begin
        The beginning of the scheme's errors, see `source`.
    names
        The owners' and groups' names in the dataset's manifest, for errors about clients.

    Raises
    ------
    UserError
        If the scheme's result is invalid, or a member has no training sample.
    """
    official = rule(settings, samples) == "official"
    everything = np.arange(len(samples.y))
    test = samples.test if official and samples.test is not None else np.zeros(len(everything), dtype=bool)
    kept = _server(settings["server"], everything, test, seed)
    left = np.setdiff1d(everything, kept["sample"])
    labels = Labels(samples.y, left[~test[left]], left[test[left]], samples.owner, samples.group)
    scheme = settings["scheme"]
    try:
        drawn = PARTITIONS[scheme](labels, streams.generator(seed, "partition"), **settings["options"])
    except UserError as error:
        raise UserError(f"{begin}{error}") from error
    table = _complete(scheme, drawn, test)
    _check(table, len(samples.y))
    given = official or "split" in drawn
    table["split"] = _shares(table, 0.0 if given else settings["test"], settings["validation"], seed)
    table = _limit(table, settings["limit"], seed)
    _domains(table, settings["domains"], seed)
    _newcomers(table, settings["newcomers"], settings["newcomer_data"], seed)
    if settings.get("drift"):
        table["transform"] = drift.drifted(table, settings["drift"], samples.y, seed, chosen)
    if settings.get("flipped") is not None:
        _flip(table, settings["flipped"], samples.y, seed)
    table = {name: np.concatenate([table[name], kept[name]]) for name in COLUMNS}
    order = np.lexsort((table["sample"], table["client"]))
    table = {name: column[order] for name, column in table.items()}
    empty = _idle(table)
    if len(empty):
        who = of_partition(names or {}, samples, table).client(int(empty[0]))
        few = "a partition.minimum that leaves such clients out" if scheme == "natural" else "fewer clients"
        raise UserError(
            f"{begin}client {who} ({len(empty)} in all) has no training sample; every member needs one: use {few}, "
            "smaller test and validation shares, or a higher limit.train"
        )
    return table


def _server(amounts: Mapping[str, int], rows: NDArray[np.int64], test: NDArray[np.bool_], seed: int) -> Table:
    """Draw the samples that the server keeps; training and test samples from all samples if there is no test part."""
    chosen: dict[str, NDArray[np.int64]] = {}
    for split in ("test", "train"):
        pool = rows[test == (split == "test")] if test.any() else np.setdiff1d(rows, chosen.get("test", rows[:0]))
        if amounts[split] > len(pool):
            raise UserError(f"partition.server.{split}: {amounts[split]} samples; allowed: at most {len(pool)}")
        chosen[split] = streams.generator(seed, f"server-{split}").choice(pool, amounts[split], replace=False)
    sample = np.concatenate([chosen["train"], chosen["test"]])
    return {
        "sample": sample,
        "client": np.full(len(sample), NOBODY),
        "split": np.repeat(["train", "test"], [amounts["train"], amounts["test"]]),
        "role": np.full(len(sample), "server"),
        "transform": np.full(len(sample), "none"),
        "true_cluster": np.full(len(sample), -1),
    }


def _complete(scheme: str, table: Any, test: NDArray[np.bool_]) -> Table:
    """Return a scheme's columns, with defaults for the others, in the order of (client, sample)."""
    if not isinstance(table, Mapping):
        raise UserError(
            f"partition '{scheme}' should return columns by name; it returned {type(table).__name__}; allowed: "
            f'{", ".join(COLUMNS)}; the first two are needed: return {{"sample": rows, "client": clients}}'
        )
    missing = [name for name in ("sample", "client") if name not in table]
    if missing:
        raise UserError(f"partition '{scheme}' returned no column '{missing[0]}'; needed: sample, client")
    unknown = [str(name) for name in table if name not in COLUMNS]
    if unknown:
        raise UserError(f"partition '{scheme}' returned a column '{unknown[0]}'; {choices(COLUMNS, unknown[0])}")
    count = len(table["sample"])
    defaults = {"split": "train", "role": "member", "transform": "none", "true_cluster": -1}
    columns = {name: np.asarray(table.get(name, np.full(count, defaults.get(name)))) for name in COLUMNS}
    for name, column in columns.items():
        if column.shape != (count,) or not count:
            raise UserError(
                f"partition '{scheme}': every column needs as many rows as there are samples, at least one; "
                f"'{name}' has shape {column.shape}, 'sample' ({count},)"
            )
        if name in ("sample", "client", "true_cluster") and column.dtype.kind not in "iu":
            raise UserError(
                f"partition '{scheme}': '{name}' holds {column.dtype}; whole numbers are needed: number "
                "clients and groups 0, 1, 2, ..."
            )
    order = np.lexsort((columns["sample"], columns["client"]))
    columns = {name: column[order] for name, column in columns.items()}
    if "split" not in table and len(test):
        inside = columns["sample"].clip(0, len(test) - 1)  # `_check` reports samples out of range
        columns["split"] = np.where(test[inside], "test", "train")
    return columns


def _check(table: Table, samples: int) -> None:
    client, sample = table["client"], table["sample"]
    for name, allowed in (("split", SPLITS), ("role", ROLES)):
        unknown = sorted(set(np.unique(table[name]).tolist()) - set(allowed))
        if unknown:
            raise UserError(f"the partition names the {name} '{unknown[0]}'; {choices(allowed, str(unknown[0]))}")
    for name in np.unique(table["transform"]):
        parse(str(name))
    twice = (np.diff(client) == 0) & (np.diff(sample) == 0)
    if twice.any():
        row = int(np.argmax(twice))
        raise UserError(f"the partition gives sample {sample[row]} to client {client[row]} twice")
    if sample.min() < 0 or sample.max() >= samples:
        wrong = sample.min() if sample.min() < 0 else sample.max()
        raise UserError(f"the partition names sample {wrong}; the dataset has samples 0 to {samples - 1}")
    if client.min() < 0:
        raise UserError(f"the partition names client {client.min()}; clients are numbered 0, 1, 2, ...")


def _idle(table: Table) -> NDArray[np.int64]:
    """Return the members without a training sample; raise an error if there are no members."""
    member = table["role"] == "member"
    if not member.any():
        raise UserError("the partition leaves no members; use fewer newcomers, or exclude fewer flipped clients")
    return np.setdiff1d(table["client"][member], table["client"][(table["split"] == "train") & member])


def _ranks(table: Table, chosen: NDArray[np.bool_], purpose: str, seed: int) -> NDArray[np.int64]:
    """Return for each chosen row its position in a random order of its client's chosen rows; -1 for the others."""
    client, sample = table["client"][chosen], table["sample"][chosen]
    order = np.lexsort((sample, streams.hashed(seed, purpose, client, sample), client))
    sizes = np.unique(client, return_counts=True)[1]
    ranks = np.empty(len(client), dtype=np.int64)
    ranks[order] = np.arange(len(client)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result = np.full(len(chosen), -1)
    result[chosen] = ranks
    return result


def _limit(table: Table, most: Mapping[str, int | None], seed: int) -> Table:
    """Leave out a client's samples above the limit `most` of each split, at random."""
    keep = np.ones(len(table["client"]), dtype=bool)
    for split, number in most.items():
        own = table["split"] != "test" if split == "train" else table["split"] == "test"
        if number is not None:
            keep &= ~own | (_ranks(table, own, "limit", seed) < number)
    return {name: column[keep] for name, column in table.items()}


def _shares(table: Table, test: float, validation: float, seed: int) -> NDArray[Any]:
    """Return the splits after moving shares of each client's training rows to test and validation.

    Shares refer to the client's original training rows, and are rounded to the nearest number.
    """
    splits = table["split"].astype("<U10")
    chosen = splits == "train"
    ranks = _ranks(table, chosen, "split", seed)
    _, position, sizes = np.unique(table["client"][chosen], return_inverse=True, return_counts=True)
    size = np.zeros(len(splits))
    size[chosen] = sizes[position]
    tests = np.rint(size * test)
    splits[chosen & (ranks < tests)] = "test"
    splits[chosen & (ranks >= tests) & (ranks < tests + np.rint(size * validation))] = "validation"
    return splits


def _domains(table: Table, domains: list[dict[str, Any]], seed: int) -> None:
    """Split every planted group's clients into domains, by blocks of ids; groups become pairs (group, domain)."""
    if not domains:
        return
    clients, first = np.unique(table["client"], return_index=True)
    groups = table["true_cluster"][first]
    bounds = np.cumsum([0.0] + [d["weight"] for d in domains])
    domain = np.empty(len(clients), dtype=np.int64)
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        cuts = np.floor(bounds / bounds[-1] * len(own) + 0.5).astype(np.int64)  # rint would round 0.5 and 1.5 apart
        domain[own] = np.repeat(np.arange(len(domains)), np.diff(cuts))
    of_row = domain[np.searchsorted(clients, table["client"])]
    names = np.array([_seeded(d["transform"], seed) for d in domains])[of_row]
    table["transform"] = _chained(table["transform"], names)
    planted = table["true_cluster"]
    if (groups < 0).all():  # only the domains are planted
        planted = np.zeros_like(planted)
    table["true_cluster"] = np.where(planted >= 0, planted * len(domains) + of_row, -1)


def _seeded(name: str, seed: int) -> str:
    """Return a transform's name with this run's seed for its noise."""
    steps = "".join(name.split()).split("+")
    return "+".join(f"{s[:-1]},{seed})" if s.startswith("noise(") and "," not in s else s for s in steps)


def _chained(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the names of the transforms `first` then `second`, without steps "none"."""
    pairs, code = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    names = ["+".join(p for p in pair if p != "none") or "none" for pair in pairs.T.tolist()]
    return np.array(names)[code.reshape(-1)]


def _newcomers(table: Table, number: int, data: str, seed: int) -> None:
    """Make some members newcomers."""
    if not number:
        return
    members = np.unique(table["client"][table["role"] == "member"])
    if number >= len(members):
        raise UserError(f"partition.newcomers: {number} of {len(members)} clients; allowed: 0 to {len(members) - 1}")
    chosen = np.isin(table["client"], streams.generator(seed, "newcomers").choice(members, number, replace=False))
    table["role"] = np.where(chosen, "newcomer", table["role"])
    if data == "test":
        table["split"] = np.where(chosen, "test", table["split"])


def _flip(table: Table, settings: Mapping[str, Any], y: NDArray[Any], seed: int) -> None:
    """Give some members wrong labels in training and validation, or exclude these members."""
    if y.dtype.kind not in "iu":
        raise UserError(
            f"partition.flipped: the targets are real numbers ({y.dtype}), only classes can be flipped; remove it"
        )
    members = np.unique(table["client"][table["role"] == "member"])
    bad = members[chosen(settings["clients"], seed, "flipped", members, "partition.flipped.clients")]
    name = FLIP
    if settings["labels"] == "permute":
        order = streams.generator(seed, "flipped labels").permutation(int(y.max()) + 1)
        name = f"{FLIP}({','.join(map(str, order))})"
    own = np.isin(table["client"], bad)
    wrong = np.where(own & (table["split"] != "test"), name, "none")
    table["transform"] = _chained(table["transform"], wrong)
    if settings["policy"] == "exclude":
        table["role"] = np.where(own, "excluded", table["role"])


def class_counts(table: Table, samples: Samples) -> Table:
    """Return how many samples of each class each client has in each split, in round 1, after the labels' transforms.

    Real targets count as class -1. If classes have names, they are the column `label`.
    """
    y, table = samples.y, drift.at(table, 1)
    if y.dtype.kind in "iu":
        labels = relabelled(y[table["sample"]], table["transform"], int(y.max()) + 1)
    else:
        labels = np.full(len(table["sample"]), -1)
    keys = [table[n] for n in ("client", "role", "true_cluster", "split")]
    codes = [np.unique(key, return_inverse=True) for key in (*keys, labels)]
    rows, counts = np.unique(np.stack([code for _, code in codes]), axis=1, return_counts=True)
    names = ("client", "role", "true_cluster", "split", "class")
    found = {n: values[row] for n, (values, _), row in zip(names, codes, rows, strict=True)} | {"n": counts}
    return found if samples.classes is None else found | {"label": samples.classes[found["class"]]}


def content(table: Table, samples: str) -> str:
    """Return the digest of all that defines a federation: the dataset's digest `samples`, and the partition's columns.

    It depends on values, not on a file's bytes, so it is the same on every machine and for every version of a format.
    """
    found = hashlib.sha256(samples.encode())
    for name in COLUMNS:
        column = table[name]
        if column.dtype.kind in "iu":
            found.update(column.astype("<i8").tobytes())
        else:
            values, code = np.unique(column, return_inverse=True)
            found.update("\n".join(map(str, values)).encode() + code.astype("<i8").tobytes())
    return found.hexdigest()
