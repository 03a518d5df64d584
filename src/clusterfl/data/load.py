"""From samples and a partition to a `Federation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..storage.store import read_table
from . import drift
from .encoding import Encoding
from .federation import Federation, Pool
from .inputs import Inputs
from .samples import Samples, read_samples
from .transforms import blurred, noise, parse, relabelled


def load_federation(
    samples: Path, partition: Path, inputs: Inputs, newcomers: bool = True
) -> tuple[Federation, Federation | None]:
    """Load members and, if requested and present, newcomers from the files of the stages download and partition."""
    read, table, source = read_samples(samples), read_table(partition), f"{samples}: "
    there = newcomers and (table["role"] == "newcomer").any()
    new = clients(read, table, inputs, "newcomer", source) if there else None
    return clients(read, table, inputs, source=source), new


def clients(
    samples: Samples,
    table: Mapping[str, NDArray[Any]],
    inputs: Inputs,
    role: str = "member",
    source: str = "",
    encoding: Encoding | None = None,
) -> Federation:
    """Return the federation of a partition's clients.

    Parameters
    ----------
    samples
        The dataset.
    table
        A partition's columns; rows are sorted by (client, sample), so their order doesn't matter.
    inputs
        How samples become a network's inputs.
    role
        Which clients: ``member`` or ``newcomer``.
    source
        The beginning of messages about the samples.
    encoding
        Encoding of the samples; by default the one fitted to the table's members.
    """
    order = np.lexsort((table["sample"], table["client"]))
    order = order[table["role"][order] == role]
    begins = drift.begins(table["transform"][order])
    encoding = encoding or Encoding.fitted(samples, drift.at(table, 1), inputs)
    x = encoding.inputs(samples.x)
    first, *later = [
        replace(_clients(samples, x, drift.at(table, round_), order, inputs, source, role == "member"), begins=round_)
        for round_ in begins
    ]
    return replace(first, later=tuple(later)) if later else first


def _clients(
    samples: Samples, x: NDArray[Any], table: Mapping[str, NDArray[Any]], order: NDArray[np.int64], inputs: Inputs,
    source: str, train: bool,
) -> Federation:  # fmt: skip
    """Return the federation of a partition's rows in this `order`, without later phases; `x` is encoded."""
    if inputs.noise == "fresh" and not any(parse(str(name)).noise for name in np.unique(table["transform"])):
        raise UserError(
            "inputs.noise: 'fresh' would have no effect: no sample's transform has noise(sigma); give a domain one, or "
            "omit the key"
        )
    table = {name: column[order] for name, column in table.items()}
    rows, y = table["sample"], samples.y
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(y):
        raise UserError(f"{source}the partition names sample {rows.max()}, but there are {len(y)} samples")
    _finite(samples.x, rows, source, "")
    if inputs.target == "label":
        _finite(y, rows, source, "the target of ")
        if len(rows) and y.dtype.kind == "i" and y[rows].min() < 0:
            bad = np.unique(rows[y[rows] < 0])
            raise UserError(
                f"{source}sample {bad[0]} has the class {y[bad[0]]} ({len(bad)} samples in all have a negative one); "
                "allowed: 0, 1, 2, ...: number them so in the dataset, or leave such samples out, then fetch it again"
            )
    classes = int(y.max(initial=-1)) + 1 if y.dtype.kind in "iu" else 0
    pool, changed, turns, noisy = _transformed(x, rows, table, inputs)
    return Federation.from_rows(
        pool,
        changed,
        relabelled(y[rows], table["transform"], classes),
        table["client"],
        table["split"],
        table["true_cluster"],
        turns,
        noisy,
        classes,
        train=train,
    )


def _finite(values: NDArray[Any], rows: NDArray[np.int64], source: str, whose: str) -> None:
    """Raise an error if a used sample has a number that isn't finite in float32, to which samples are converted."""
    if values.dtype.kind != "f" or not len(rows):
        return
    used, most = np.unique(rows), np.finfo(np.float32).max
    found = values[used].reshape(len(used), -1)
    sound = np.isfinite(found) if values.itemsize <= 4 else np.abs(found) <= most
    bad = used[~sound.all(axis=1)]
    if len(bad):
        raise UserError(
            f"{source}{whose}sample {bad[0]} has NaN or infinity ({len(bad)} samples in all; numbers beyond "
            f"{most:.2g}, the largest of float32, count as infinite); replace or drop such samples in the dataset, "
            "then fetch it again"
        )


def _transformed(
    x: NDArray[Any], rows: NDArray[np.int64], table: Mapping[str, NDArray[Any]], inputs: Inputs
) -> tuple[Pool, NDArray[np.int64], NDArray[np.int8] | None, NDArray[np.int64] | None]:
    """Return the pool, each row's place in it, its quarter turns and its row of noise.

    Rotations are made when samples are needed; only blurred samples and noise are stored separately.
    """
    names, code = np.unique(table["transform"], return_inverse=True)
    steps = [parse(str(name)) for name in names]
    turns = np.array([s.turns for s in steps], dtype=np.int8)[code]
    of_images = [name for name, step in zip(names, steps, strict=True) if step.blur or step.turns]
    if of_images and x.ndim < 4:
        raise UserError(
            f"'{of_images[0]}' needs images [channels, height, width]; the samples have shape {x.shape[1:]}; choose "
            "other groups, or another dataset"
        )
    rotated = [name for name, step in zip(names, steps, strict=True) if step.turns]
    if rotated and x.shape[-1] != x.shape[-2]:
        raise UserError(
            f"'{rotated[0]}': rotations need square images; the samples have shape {x.shape[1:]}; crop or pad them in "
            "the dataset, or choose other groups"
        )
    pool, changed = [x], rows.copy()
    for number, step in enumerate(steps):
        if not step.blur:
            continue
        if x.dtype != np.uint8:
            raise UserError(f"'{names[number]}' blurs images stored as bytes; the samples are {x.dtype}")
        own = code == number
        distinct, place = np.unique(rows[own], return_inverse=True)
        changed[own] = sum(map(len, pool)) + place
        pool.append(blurred(x[distinct], step.blur))
    noisy = np.flatnonzero(np.array([s.noise > 0 for s in steps])[code])
    added, where, sigma = None, None, None
    if len(noisy):
        if x.dtype.kind != "f" and x.dtype != np.uint8:
            raise UserError(f"'{names[code[noisy[0]]]}' adds noise to images or features; the samples are {x.dtype}")
        if inputs.augment == "ifca":
            raise UserError("noise and inputs.augment: ifca can't be combined: its crops change the images' size")
        added = np.empty((len(noisy), *x.shape[1:]), dtype=np.float32)
        for i, row in enumerate(noisy):
            added[i] = noise(steps[code[row]], int(rows[row]), int(table["client"][row]), x.shape[1:])
        where = np.full(len(rows), -1)
        where[noisy] = np.arange(len(noisy))
        sigma = np.array([s.noise for s in steps], dtype=np.float32)[code[noisy]]
    x = np.concatenate(pool) if len(pool) > 1 else x
    x = x.astype(np.float32, copy=False) if x.dtype.kind in "fb" else x
    return Pool(x, added, inputs, sigma), changed, turns if turns.any() else None, where
