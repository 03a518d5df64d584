"""From samples and a partition to a `Federation`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..federation import Federation
from ..store import read_table, read_tensors
from .transforms import scaled, transform


def load_federation(samples: Path, partition: Path) -> Federation:
    """Load the members of a federation from the files of the stages download and partition."""
    arrays = read_tensors(samples)
    return members(arrays["x"], arrays["y"], read_table(partition), f"{samples}: ")


def members(x: NDArray[Any], y: NDArray[Any], table: Mapping[str, NDArray[Any]], source: str = "") -> Federation:
    """Return the federation of a partition's members.

    Parameters
    ----------
    x, y : [N, ...], [N]
        A dataset's samples.
    table
        A partition's columns; rows are put in the order of (client, sample), so their order changes nothing.
    source
        What messages about the samples begin with.
    """
    order = np.lexsort((table["sample"], table["client"]))
    order = order[table["role"][order] == "member"]
    table = {name: column[order] for name, column in table.items()}
    rows = table["sample"]
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(y):
        raise UserError(f"{source}the partition names sample {rows.max()}, but there are {len(y)} samples")
    chosen = scaled(transform(x[rows], table["transform"]))
    bad = rows[~np.isfinite(chosen.reshape(len(rows), -1)).all(axis=1)] if chosen.dtype.kind == "f" else rows[:0]
    if len(bad):
        raise UserError(
            f"{source}sample {bad.min()} has NaN or infinity ({len(bad)} samples in all); "
            "replace or drop such samples in the dataset's function, then run it again"
        )
    return Federation.from_arrays(chosen, y[rows], table["client"], table["split"], table["true_cluster"])
