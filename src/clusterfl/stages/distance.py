"""Stage distance: the M x M matrix of one metric between the clients' warmed-up models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..distances import METRICS, check_distance
from ..engine import Engine, Training
from ..engine.layout import Layout
from ..errors import UserError
from ..federation import Federation
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
    array: NDArray[np.float32],
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
    values: Any = array[:, : used.layout.parameter_columns]
    if kind(metric) == "losses":
        values = _losses(used, array, data, progress)
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
    return distance, costs_of(metric, used.federation, used.layout, data)


def costs_of(metric: str, federation: Federation, layout: Layout, data: str) -> dict[str, int]:
    """Return what measuring a distance between all clients costs them, on top of the warm-up."""
    m, needed = federation.clients, kind(metric)
    if needed == "losses":
        return {
            "bytes_down": m * (m - 1) * layout.columns * BYTES_PER_NUMBER,  # every other client's model to each
            # One number for each of them. Eq. 2 alone needs no loss of a client on its own model: subtracted at home.
            "bytes_up": m * (m - 1 if metric == "loss" else m) * BYTES_PER_NUMBER,
            "client_forwards": m * sum(len(federation.splits[split]) for split in measured_on(federation, data)),
        }
    up = m * layout.parameter_columns * BYTES_PER_NUMBER if needed == "vectors" else 0
    return {"bytes_down": 0, "bytes_up": up, "client_forwards": 0}


def measured_on(federation: Federation, data: str) -> list[str]:
    """Return the splits on which losses are measured."""
    return ["train"] if data == "train" else [s for s, d in federation.splits.items() if len(d)]


def _losses(
    used: Engine, theta: NDArray[np.float32], data: str, progress: Callable[[int], None]
) -> NDArray[np.float64]:
    """Return ``losses[i, j]``, the mean loss of client j's model on client i's data."""
    m, clients = len(theta), np.arange(len(theta))
    total, samples = np.zeros((m, m)), np.zeros(m, dtype=np.int64)
    for split in measured_on(used.federation, data):
        scores = used.scores(torch.as_tensor(theta), clients, split, progress)
        total += np.nan_to_num(scores.loss) * scores.n[:, None]
        samples += scores.n
    return total / samples[:, None]
