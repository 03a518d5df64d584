"""Stage distance: the M x M matrix of one metric between the clients' warmed-up models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..distances import METRICS, check_distance
from ..engine import Engine, Training
from ..errors import UserError
from ..store import write_table
from . import Facts, Work
from .common import engine, read_clients


def run(work: Work) -> Facts:
    """Write the matrix, one row for each client, and return what it costs the clients."""
    settings = work.settings
    kind = METRICS.argument(settings["metric"])
    ids, array = read_clients(work.inputs["clients"], "last_gradient" if kind == "vectors" else "theta")
    # A metric's cost on top of the warm-up, whose models the server has already.
    costs = {"bytes_down": 0, "bytes_up": 0, "client_forwards": 0}
    if kind == "losses":
        with engine(work, Training()) as used:
            _same_clients(used, ids)
            values, costs = _losses(work, used, array, settings["data"])
    elif kind in ("theta", "vectors"):
        with engine(work, Training()) as used:
            _same_clients(used, ids)
            values = array[:, : used.layout.parameter_columns]
        costs["bytes_up"] = array.nbytes if kind == "vectors" else 0
    else:
        raise UserError(
            f"metric '{settings['metric']}': its first parameter is '{kind}'; name it losses, theta or vectors, "
            "after what it is computed from"
        )
    found = METRICS[settings["metric"]](values, **settings["options"])
    try:
        distance = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        distance = np.empty(0)
    if distance.shape != (len(ids), len(ids)):
        raise UserError(
            f"metric '{settings['metric']}' should return a distance matrix with a row and a column for each of the "
            f"{len(ids)} clients; it returned {type(found).__name__}, shape {np.shape(found)}"
        )
    check_distance(distance)
    write_table(work.outputs["distance"], {"client": ids, "distance": distance})
    return {"costs": costs}


def _same_clients(used: Engine, ids: NDArray[np.int64]) -> None:
    if not np.array_equal(used.federation.ids, ids):
        raise UserError(
            f"the warm-up has {len(ids)} clients, the partition {used.federation.clients}, and they differ; "
            "run the warm-up again"
        )


def _losses(work: Work, used: Engine, theta: NDArray[np.float32], data: str) -> tuple[Any, dict[str, int]]:
    """Return ``losses[i, j]``, the mean loss of client j's model on client i's data, and its cost."""
    clients = np.arange(len(theta))
    splits = ["train"] if data == "train" else [s for s, d in used.federation.splits.items() if len(d.x)]
    total, samples = np.zeros((len(theta), len(theta))), np.zeros(len(theta), dtype=np.int64)
    with work.progress("losses of all models on all clients", len(theta) * len(splits)) as progress:
        for done, split in enumerate(splits):
            scores = used.scores(
                torch.as_tensor(theta), clients, split,
                progress=lambda count, before=done * len(theta): progress(before + count, ""),
            )  # fmt: skip
            total += np.nan_to_num(scores.loss) * scores.n[:, None]
            samples += scores.n
    others = len(theta) - 1
    model = used.layout.columns * 4
    costs = {
        "bytes_down": len(theta) * others * model,  # every client gets every other client's model
        "bytes_up": len(theta) * others * 4,  # and sends one number for each
        "client_forwards": int(samples.sum()) * len(theta),
    }
    return total / samples[:, None], costs
