"""The contract of a partition: a function ``(labels, generator, **options) -> columns``, sample and client at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import streams
from ...config.federation import Partition
from ...data.samples import Labels, Samples, Table
from ..stages.partition import make
from .check import Check, Finding, GlobalDraws, drawn_in, fails, first_difference, note, written

SIZES = tuple(60 + c for c in range(10))  # training samples of each class
TESTS, OWNERS, GROUPS = 25, 40, 3  # test samples of each class; numbers of the data's own clients and groups
OF_CLIENTS = ("true_cluster", "transform", "role")  # columns with one value for each client


def labels() -> Labels:
    """Return labels for drawing partitions: ten classes, a test part, the data's own clients and groups."""
    generator = np.random.default_rng(0)
    sizes = (SIZES, (TESTS,) * len(SIZES))
    parts = [generator.permutation(np.repeat(np.arange(len(SIZES)), size)) for size in sizes]
    y, cut = np.concatenate(parts).astype(np.uint8), len(parts[0])
    owner, group = generator.integers(-1, OWNERS, len(y)), generator.integers(0, GROUPS, len(y))
    return Labels(y, np.arange(cut), np.arange(cut, len(y)), owner, group)


@dataclass
class PartitionCase:
    """A partition with options, and its table for ten classes."""

    name: str
    partition: Callable[..., Any]
    options: dict[str, Any]

    def of(self, data: Labels, seed: int = 1) -> Any:
        """Return its result."""
        return self.partition(data, streams.generator(seed, "partition"), **self.options)

    @cached_property
    def first(self) -> tuple[Any, Finding | None, Finding | None]:
        """Its result, and findings on draws from global generators and on inputs changed in place."""
        data = labels()
        table, draws = drawn_in(lambda: self.of(data))
        return table, draws, written(vars(labels()), vars(data))

    @property
    def table(self) -> Table:
        """Its columns."""
        return {name: np.asarray(column) for name, column in self.first[0].items()}


def columns(case: PartitionCase) -> Finding | None:
    """Hold that it returns whole numbers `sample` and `client`, and that all columns have the same length."""
    found = case.first[0]
    if not isinstance(found, dict) or not {"sample", "client"} <= found.keys():
        what = f"the columns {sorted(found)}" if isinstance(found, dict) else type(found).__name__
        return fails(f"it returns {what}; allowed: a dictionary of arrays by name, 'sample' and 'client' among them")
    for name, column in case.table.items():
        if column.shape != case.table["sample"].shape or not len(column):
            return fails(
                f"'{name}' has shape {column.shape}, 'sample' {case.table['sample'].shape}; each needs an entry for "
                "every assigned sample, at least one"
            )
        if name in ("sample", "client", "true_cluster") and column.dtype.kind not in "iu":
            return fails(
                f"'{name}' holds {column.dtype}; whole numbers are needed: number clients and groups 0, 1, 2, ..."
            )
    return None


def in_range(case: PartitionCase) -> Finding | None:
    """Hold that all assigned samples exist."""
    sample, count = case.table["sample"], len(labels().y)
    bad = np.flatnonzero((sample < 0) | (sample >= count))
    if len(bad):
        return fails(
            f"client {case.table['client'][bad[0]]} gets sample {sample[bad[0]]}; allowed: 0 to {count - 1}: assign "
            "entries of data.train and data.test, not positions in them"
        )
    return None


def once(case: PartitionCase) -> Finding | None:
    """Hold that no client gets a sample twice; it is noted if several clients get the same one."""
    pairs = np.stack([case.table["client"], case.table["sample"]], axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    if counts.max() > 1:
        client, sample = found[np.argmax(counts > 1)]
        return fails(
            f"client {client} gets sample {sample} twice ({(counts > 1).sum()} such cases); draw without replacement"
        )
    samples, holders = np.unique(case.table["sample"], return_counts=True)
    if holders.max() > 1:
        sample = samples[np.argmax(holders > 1)]
        return note(
            f"{(holders > 1).sum()} samples have several clients each, sample {sample} has {holders.max()}; right for "
            "copies under different transforms, else assign each sample once"
        )
    return None


def all_given(case: PartitionCase) -> Finding | None:
    """Hold that every sample is assigned to a client."""
    data = labels()
    lacking = np.setdiff1d(np.concatenate([data.train, data.test]), case.table["sample"])
    if len(lacking):
        return note(
            f"{len(lacking)} of {len(data.y)} samples aren't assigned, first sample {lacking[0]}; right if clients "
            "get fixed numbers of samples, else check the rounding of sizes"
        )
    return None


def no_gap(case: PartitionCase) -> Finding | None:
    """Hold that clients are numbered from 0 without gaps, and each has a training sample."""
    client, data = case.table["client"], labels()
    lacking = np.setdiff1d(np.arange(client.max() + 1), client)
    if client.min() < 0 or len(lacking):
        which = client.min() if client.min() < 0 else lacking[0]
        return fails(
            f"{'there is a client' if client.min() < 0 else 'there is no client'} {which} of 0 to {client.max()}; "
            "number the clients that have samples 0, 1, 2, ..."
        )
    member = case.table.get("role", np.full(len(client), "member")) == "member"
    empty = np.setdiff1d(client[member], client[_training(case.table, data) & member])
    if len(empty):
        return fails(
            f"client {empty[0]} ({len(empty)} of {client.max() + 1}) has no training sample; every client needs one: "
            "add samples to small clients, as `top_up` of data/partitions/dealing.py does"
        )
    return None


def _training(table: Table, data: Labels) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = table["split"] == "train" if "split" in table else ~np.isin(table["sample"], data.test)
    return found


def test_stays_test(case: PartitionCase) -> Finding | None:
    """Hold that no client trains on a sample of the dataset's own test part."""
    data = labels()
    wrong = np.flatnonzero(_training(case.table, data) & np.isin(case.table["sample"], data.test))
    if len(wrong):
        return fails(
            f"client {case.table['client'][wrong[0]]} trains on sample {case.table['sample'][wrong[0]]} of data.test "
            f"({len(wrong)} such cases); give split 'test' to these, or omit the column"
        )
    return None


def one_value(case: PartitionCase) -> Finding | None:
    """Hold that a client has one true cluster, one transform and one role."""
    for name in OF_CLIENTS:
        for client in np.unique(case.table["client"]) if name in case.table else ():
            values = np.unique(case.table[name][case.table["client"] == client])
            if len(values) > 1:
                return fails(
                    f"client {client} has {name} {values[0]} and {values[1]}; allowed: one for all samples of a "
                    "client: compute it by client, then repeat it"
                )
    return None


def same_twice(case: PartitionCase) -> Finding | None:
    """Hold that the same seed gives the same table."""
    GlobalDraws(2)
    where = first_difference(case.table, {name: np.asarray(column) for name, column in case.of(labels()).items()})
    if where is None:
        return None
    return fails(f"{where}, with two equal generators; draw from the one that is given, and from nothing else")


def other_seed(case: PartitionCase) -> Finding | None:
    """Hold that another seed gives another table."""
    if first_difference(case.table, {n: np.asarray(c) for n, c in case.of(labels(), 2).items()}) is None:
        return note("two seeds give the same table; right if nothing is random, else draw from the generator")
    return None


def no_global_draws(case: PartitionCase) -> Finding | None:
    """Hold that no global generator of random, NumPy or torch is drawn from, or seeded."""
    return case.first[1]


def input_unchanged(case: PartitionCase) -> Finding | None:
    """Hold that it doesn't change the labels in place."""
    return case.first[2]


def any_order(case: PartitionCase) -> Finding | None:
    """Hold that the clients' numbers of samples don't depend on the order of the dataset's rows."""
    data, turned = labels(), labels()
    order = np.concatenate([data.train[::-1], data.test[::-1]])
    turned = Labels(data.y[order], data.train, data.test, data.owner[order], data.group[order])  # type: ignore[index]
    sizes = [np.bincount(np.asarray(table["client"])) for table in (case.first[0], case.of(turned))]
    where = first_difference({"samples": sizes[0]}, {"samples": sizes[1]})
    if where is None:
        return None
    return note(
        f"{where}, of clients, with the dataset's rows in file order and reversed; right if the file order has a "
        "meaning"
    )


def by_the_stage(case: PartitionCase) -> Finding | None:
    """Hold that stage partition accepts it with the settings of all schemes, and every member can train."""
    data = labels()
    test = np.isin(np.arange(len(data.y)), data.test)
    samples = Samples(np.zeros((len(data.y), 1), np.float32), data.y, test, data.owner, data.group)
    make(Partition(scheme=case.name, **case.options).resolved(), samples, 1)
    return None


COLUMNS, RANGE, CLIENTS = "returns columns", "gives out samples that are there", "numbers clients and lets each train"
ONCE, VALUES = "gives a client no sample twice", "has one true cluster for each client"
DRAWS, INPUT = "draws nothing from global generators", "changes no input"
CHECKS = (
    Check(COLUMNS, columns),
    Check(RANGE, in_range, (COLUMNS,)),
    Check(ONCE, once, (COLUMNS,)),
    Check("gives out every sample", all_given, (RANGE,)),
    Check(CLIENTS, no_gap, (RANGE,)),
    Check("keeps test samples from training", test_stays_test, (RANGE,)),
    Check(VALUES, one_value, (COLUMNS,)),
    Check(DRAWS, no_global_draws, (COLUMNS,)),
    Check(INPUT, input_unchanged, (COLUMNS,)),
    Check("gives the same table for a seed", same_twice, (DRAWS, INPUT)),
    Check("gives another table for another seed", other_seed, ("gives the same table for a seed",)),
    Check("gives as many samples in any order of rows", any_order, ("gives the same table for a seed",)),
    Check("is taken by the stage", by_the_stage, (RANGE, ONCE, CLIENTS)),
)
