"""A round's updates, collected from the tasks' results. m participants, K models, P columns of a model's row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ..storage.row_store import Rows
from . import work
from .features import Moments
from .task import Ids, Result, Scores, Sums
from .training import Training


@dataclass
class Update:
    """A round's result. Rows are in the order of `clients`; `sums` are [K, P] in float64.

    Clients are `dropped` if their update has NaN or infinity or is too long. Their rows are stored as they were sent,
    so a method that reads `rows`, `last_gradient` or `curves` must select ``~update.dropped``.
    """

    clients: Ids
    start: Ids  # z: the model each client started from
    steps: Ids  # optimiser steps taken
    round: int = 1
    norms: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [m] Euclidean; NaN or inf: diverged
    dropped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))  # [m] left out of all sums
    parts: list[Ids] = field(default_factory=list)  # positions among the clients, in the order of summation
    server_seconds: float = 0.0  # spent summing updates
    sums: Rows | None = None  # weighted sums of the updates; None if rows or only scores are wanted
    rows: Rows | None = None  # updates [m, P], on disk if large; only with needs = {"updates"}
    moments: Moments | None = None  # sums of features by class, if they are gathered
    last_gradient: Rows | None = None  # [m, p], only with needs = {"last_gradient"}
    curves: NDArray[np.float32] | None = None  # [m, steps], only with needs = {"curves"}; NaN where no step was taken
    local: dict[str, Scores] = field(default_factory=dict)  # scores of the trained models


def gather(update: Update, part: Ids, result: Result, training: Training, seen: set[int]) -> None:
    """Add the result of a part of the clients to an update, in place; `seen` as in `join`."""
    update.norms[part] = result.norm
    update.dropped[part] = work.dropped(result.norm, training.largest_update)
    if update.rows is not None:
        update.rows[torch.as_tensor(part)] = result.delta  # type: ignore[assignment]
    elif update.sums is not None:
        join(update.sums, result.sums, seen)
    if update.last_gradient is not None:
        update.last_gradient[torch.as_tensor(part)] = result.last_gradient  # type: ignore[assignment]
    if update.moments is not None and result.moments is not None:
        update.moments.put(torch.as_tensor(part), result.moments)
    if update.curves is not None and result.curves is not None:
        update.curves[part, : result.curves.shape[1]] = result.curves
    for split, scores in result.scores.items():
        kept = update.local[split]
        kept.correct[part], kept.loss[part] = scores.correct, scores.loss


def join(sums: Rows, part: Sums, seen: set[int]) -> None:
    """Add a part's sums to ``sums [K, P]``; `seen` are the models already written, other rows are overwritten."""
    for k, row in part.items():
        row = row.cpu()
        sums[k] = row.add_(sums[k]) if k in seen else row
        seen.add(k)
