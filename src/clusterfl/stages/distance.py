"""Stage distance: the M x M matrix of one metric between the clients' warmed-up models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..distances import METRICS, check_distance
from ..engine import Engine, Training
from ..errors import UserError
from ..rows import Readable
from ..simulation import BYTES_PER_NUMBER
from ..store import write_table
from . import Facts, Work
from .common import engine, read_clients

ARRAYS = {"losses": "theta", "theta": "theta", "vectors": "last_gradient"}


def run(work: Work) -> Facts:
    """Write the matrix, one row for each client, and return what measuring it costs the clients."""
    settings = work.settings
    ids, array = read_clients(work.inputs["clients"], ARRAYS[kind(settings["metric"])])
    with engine(work, Training()) as used:
        if not np.array_equal(used.federation.ids, ids):
            raise UserError(
                f"the warm-up has {len(ids)} clients, the partition {used.federation.clients}, and they differ; "
                "run the warm-up again"
            )
        with work.progress("losses of all models on all clients", len(ids)) as progress:
            distance, costs = measure(
                used, array, settings["metric"], settings["options"], settings["data"], lambda n: progress(n, "")
            )
    write_table(work.outputs["distance"], {"client": ids, "distance": distance})
    return {"costs": costs}


def kind(metric: str) -> str:
    """Return what a metric is computed from: losses, theta or vectors."""
    found = METRICS.argument(metric)
    if found not in ARRAYS:
        raise UserError(
            f"metric '{metric}': its first parameter is '{found}'; name it losses, theta or vectors, after what it is "
            "computed from"
        )
    return found


def measure(
    used: Engine,
    array: Readable,
    metric: str,
    options: dict[str, Any],
    data: str = "train",
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Return the distances [M, M] between clients and what they cost on top of the warm-up.

    Parameters
    ----------
    used
        The engine, for losses.
    array : [M, P]
        The clients' models, or their last gradients for a metric of vectors.
    metric, options
        The metric and its options.
    data
        ``train`` or ``all``: on which data losses are measured.
    progress
        Called with the number of models done.
    """
    needed = kind(metric)
    costs = {"bytes_down": 0, "bytes_up": 0, "client_forwards": 0}
    values: Any = _Columns(array, used.layout.parameter_columns)
    if ":" in metric:  # of the user's own, which may do with an array whatever it likes
        values = values[:].numpy()
    if needed == "losses":
        values, costs = _losses(used, array, data, progress)
        if metric != "loss":  # Eq. 2 alone needs no loss of a client on its own model: it is subtracted at home
            costs["bytes_up"] += len(array) * BYTES_PER_NUMBER
    elif needed == "vectors":
        costs["bytes_up"] = array.shape[0] * array.shape[1] * BYTES_PER_NUMBER
    found = METRICS[metric](values, **options)
    try:
        distance = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        distance = np.empty(0)
    if distance.shape != (len(array), len(array)):
        raise UserError(
            f"metric '{metric}' should return a distance matrix with a row and a column for each of the "
            f"{len(array)} clients; it returned {type(found).__name__}, shape {np.shape(found)}"
        )
    check_distance(distance)
    return distance, costs


@dataclass(frozen=True)
class _Columns:
    """The first columns of rows, which are read when they are asked for."""

    rows: Readable
    columns: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, positions: slice) -> Tensor:
        return self.rows[positions][:, : self.columns]


def _losses(
    used: Engine, theta: Readable, data: str, progress: Callable[[int], None]
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Return ``losses[i, j]``, the mean loss of client j's model on client i's data, and its cost."""
    m, clients = len(theta), np.arange(len(theta))
    splits = ["train"] if data == "train" else [s for s, d in used.federation.splits.items() if len(d)]
    total, samples = np.zeros((m, m)), np.zeros(m, dtype=np.int64)
    for split in splits:
        scores = used.scores(theta, clients, split, progress)
        total += np.nan_to_num(scores.loss) * scores.n[:, None]
        samples += scores.n
    costs = {
        "bytes_down": m * (m - 1) * used.layout.columns * BYTES_PER_NUMBER,  # every other client's model to each
        "bytes_up": m * (m - 1) * BYTES_PER_NUMBER,  # one number for each of them
        "client_forwards": int(samples.sum()) * m,
    }
    return total / samples[:, None], costs
