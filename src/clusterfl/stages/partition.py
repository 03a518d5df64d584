"""Stage partition: which client holds which sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..data import PARTITIONS
from ..data.partitions.dealing import grouped, ranks
from ..data.samples import Labels
from ..errors import UserError, choices
from ..federation import SPLITS
from ..store import read_tensors, write_table
from . import Facts, Work

COLUMNS = ("sample", "client", "split", "role", "transform", "true_cluster")


def run(work: Work) -> Facts:
    """Write the partition, rows in the order of (client, sample)."""
    settings = work.settings
    y = read_tensors(work.inputs["samples"])["y"]
    table = make(settings["scheme"], settings["options"], y, settings["seed"], settings["test"], settings["validation"])
    write_table(work.outputs["partition"], table)
    return {"clients": len(np.unique(table["client"])), "samples": len(table["sample"])}


def make(
    scheme: str, options: dict[str, Any], y: NDArray[Any], seed: int, test: float = 0.2, validation: float = 0.0
) -> dict[str, NDArray[Any]]:
    """Return a partition's columns, complete, checked, in the order of (client, sample)."""
    generator = streams.generator(seed, "partition")
    table = PARTITIONS[scheme](Labels(y, np.arange(len(y)), np.arange(0)), generator, **options)
    if not isinstance(table, Mapping):
        raise UserError(f"partition '{scheme}' should return columns by name; it returned {type(table).__name__}")
    missing = [name for name in ("sample", "client") if name not in table]
    if missing:
        raise UserError(f"partition '{scheme}' returned no column '{missing[0]}'; needed: sample, client")
    count = len(table["sample"])
    if "split" not in table:
        table = {**table, "split": _split(generator, np.asarray(table["client"]), test, validation)}
    defaults = {"split": "train", "role": "member", "transform": "none", "true_cluster": -1}
    table = {name: np.asarray(table.get(name, np.full(count, defaults.get(name)))) for name in COLUMNS}
    for name, column in table.items():
        if column.shape != (count,) or not count:
            raise UserError(
                f"partition '{scheme}': every column needs as many rows as there are samples, "
                "at least one; "
                f"'{name}' has shape {column.shape}, 'sample' ({count},)"
            )
        if name in ("sample", "client", "true_cluster") and column.dtype.kind not in "iu":
            raise UserError(
                f"partition '{scheme}': '{name}' holds {column.dtype}; whole numbers are needed: number "
                "clients and groups 0, 1, 2, ..."
            )
    order = np.lexsort((table["sample"], table["client"]))
    table = {name: column[order] for name, column in table.items()}
    _check(table, len(y))
    return table


def _split(generator: np.random.Generator, client: NDArray[Any], test: float, validation: float) -> NDArray[Any]:
    """Keep shares of each client's samples, drawn at random, for testing and validation."""
    if test + validation >= 1:
        raise UserError(f"test + validation = {test + validation:g}; it must stay below 1 to leave training samples")
    sizes = np.unique(client, return_counts=True)[1]
    tests, validations = (np.rint(sizes * share).astype(np.int64) for share in (test, validation))
    rank = ranks(sizes)
    split = np.full(len(client), "train", dtype="<U10")
    split[grouped(generator, client)] = np.select(
        [rank < np.repeat(tests, sizes), rank < np.repeat(tests + validations, sizes)], ["test", "validation"], "train"
    )
    return split


def _check(table: dict[str, np.ndarray], samples: int) -> None:
    client, sample = table["client"], table["sample"]
    unknown = sorted(set(np.unique(table["split"]).tolist()) - set(SPLITS))
    if unknown:
        raise UserError(f"the partition names the split '{unknown[0]}'; {choices(SPLITS, str(unknown[0]))}")
    twice = (np.diff(client) == 0) & (np.diff(sample) == 0)
    if twice.any():
        row = int(np.argmax(twice))
        raise UserError(f"the partition gives sample {sample[row]} to client {client[row]} twice")
    if sample.min() < 0 or sample.max() >= samples:
        raise UserError(f"the partition names sample {sample.max()}; the dataset has samples 0 to {samples - 1}")
    training = np.unique(client[(table["split"] == "train") & (table["role"] == "member")])
    empty = np.setdiff1d(client[table["role"] == "member"], training)
    if len(empty):
        raise UserError(
            f"client {empty[0]} ({len(empty)} in all) has no training sample; every member needs one: "
            "use fewer clients or a smaller test share"
        )
