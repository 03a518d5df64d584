"""From the files of the stages download and partition to a `Federation`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import UserError
from ..federation import Federation
from ..store import read_table, read_tensors
from .transforms import scaled, transform


def load_federation(samples: Path, partition: Path) -> Federation:
    """Load the members of a federation.

    Rows are put in the order of (client, sample), so their order in the file changes nothing.
    """
    arrays = read_tensors(samples)
    table = read_table(partition)
    order = np.lexsort((table["sample"], table["client"]))
    table = {name: column[order] for name, column in table.items()}
    member = table["role"] == "member"
    table = {name: column[member] for name, column in table.items()}
    rows = table["sample"]
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(arrays["y"]):
        raise UserError(f"{partition} names sample {rows.max()}, but {samples} has {len(arrays['y'])} samples")
    x = scaled(transform(arrays["x"][rows], table["transform"]))
    bad = rows[~np.isfinite(x.reshape(len(x), -1)).all(axis=1)] if x.dtype.kind == "f" else rows[:0]
    if len(bad):
        raise UserError(
            f"{samples}: sample {bad.min()} has NaN or infinity ({len(bad)} samples in all); "
            "replace or drop such samples in the dataset's function, then run it again"
        )
    return Federation.from_arrays(x, arrays["y"][rows], table["client"], table["split"], table["true_cluster"])
