"""Stage distance: the matrix [M, M] of one metric between clients after the warm-up, or r landmark columns of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...clustering.distances import METRICS, Ids, check_distance, landmarks
from ...clustering.metric import Input
from ...data.federation import Federation
from ...engine.engine import Engine
from ...engine.parameter_layout import Layout
from ...engine.task import Scores
from ...engine.training import Training
from ...errors import UserError
from ...simulation.ledger import BYTES_PER_NUMBER
from ...simulation.survey import Survey
from ...storage.blocks import check_pairs
from ...storage.row_store import Readable
from ...storage.store import read_table, write_table
from ..checkpoint import Saved, Unfinished
from . import Facts, Work
from .common import engine, read_clients

MODELS = 32  # per process, whose losses are measured before the next possible checkpoint
# The array of the warm-up's files that is a metric's input, or that its input is computed from.
ARRAYS: dict[Input, str] = {
    "losses": "theta",
    "parameters": "theta",
    "gradients": "last_gradient",
    "deltas": "delta",
    "samples": "theta",
}


def run(work: Work) -> Facts:
    """Write the matrix, one row for each client, and return the clients' costs of measuring it."""
    settings = work.settings
    ids, array = read_clients(work.inputs["clients"], ARRAYS[METRICS.input(settings["metric"])])
    with engine(work, Training()) as used:
        check_clients(used, ids)
        chosen = landmarks(ids, settings["landmarks"], settings["seed"]) if "landmarks" in settings else None
        with work.progress("losses of the clients' models", len(ids)) as progress:
            distance, costs = measure(
                used, array, settings["metric"], settings["options"], settings["data"], lambda n: progress(n, ""),
                chosen, work.unfinished, _gathered(work, ids),
            )  # fmt: skip
    columns: dict[str, NDArray[Any]] = {"client": ids, "distance": distance}
    if chosen is not None:  # the matrix has one column for each marked row
        columns["landmark"] = np.isin(np.arange(len(ids)), chosen)
    write_table(work.outputs["distance"], columns)
    return {"costs": costs}


def check_clients(used: Engine, ids: Ids) -> None:
    """Raise an error if the warm-up's clients aren't those of the partition."""
    if not np.array_equal(used.federation.ids, ids):
        raise UserError(
            f"the warm-up has {len(ids)} clients, the partition {used.federation.clients}, and they differ; "
            "run the warm-up again"
        )


def _gathered(work: Work, ids: Ids) -> NDArray[np.float64] | None:
    """Return the losses [M, M] that other jobs measured, or None if none did."""
    tables = [read_table(path) for key, path in work.inputs.items() if key.startswith("shard")]
    for table in tables:
        if not np.array_equal(table["client"], ids):
            raise UserError("a shard of the losses has other clients than the partition; run the shards again")
    return np.concatenate([table["losses"] for table in tables], axis=1) if tables else None


def measure(
    used: Engine,
    array: Readable,
    metric: str,
    options: dict[str, Any],
    data: str = "train",
    progress: Callable[[int], None] = lambda done: None,
    chosen: Ids | None = None,
    unfinished: Unfinished | None = None,
    losses: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], dict[str, int]]:
    """Return the distances [M, M] between clients and what they cost on top of the warm-up.

    Parameters
    ----------
    used
        The engine, for losses.
    array : [M, P]
        The clients' models; for a metric of gradients their last gradients, for one of deltas their last updates.
    metric, options
        The metric and its options.
    data
        The data on which losses are measured: ``train``, else all splits.
    progress
        Called with the number of models done.
    chosen : [r]
        The landmarks' positions, if only the distances [M, r] to them are wanted.
    unfinished
        Reads and writes checkpoints of the losses.
    losses : [M, M]
        Losses of each client's data (rows) under each client's model, if they are already measured.

    Raises
    ------
    UserError
        If there are too many clients, or the metric returns anything but distances.
    """
    check_pairs(len(array) if chosen is None else len(chosen), "set landmarks for this distance, e.g. landmarks: 64")
    values: Any = _Columns(array, used.layout.parameter_columns)
    if ":" in metric:  # a user's metric may use any operation of an array
        values = values[:].numpy()
    survey = Survey(used)
    if METRICS.input(metric) == "samples":
        values = survey.samples
    if METRICS.input(metric) == "losses":
        values = losses
        if losses is None:
            values = _losses(used, array, data, progress, chosen, unfinished or Unfinished())
    found = METRICS[metric](values, **({} if chosen is None else {"landmarks": chosen}), **options)
    try:
        given = np.asarray(found)
    except (RuntimeError, TypeError, ValueError):  # a tensor with a gradient, rows of several lengths
        given = np.empty(0, dtype=object)
    shape = len(array), len(array) if chosen is None else len(chosen)
    if given.shape != shape or given.dtype.kind not in "fiub":
        raise UserError(
            f"metric '{metric}' should return a distance matrix of real numbers with a row and a column for each of "
            f"the {len(array)} clients; it returned {type(found).__name__} ({given.dtype}, shape {given.shape})"
        )
    distance = np.asarray(given, dtype=np.float64)
    check_distance(distance, chosen)
    costs = costs_of(metric, used.federation, used.layout, data, chosen)
    return distance, costs | {"bytes_up": costs["bytes_up"] + survey.spent()["bytes_up"]}


def costs_of(
    metric: str, federation: Federation, layout: Layout, data: str = "train", chosen: Ids | None = None
) -> dict[str, int]:
    """Return the clients' costs of measuring distances, in addition to the warm-up; `chosen` [r] are the landmarks.

    What clients send for a metric of samples isn't included: that is counted when it is sent (`Survey`).
    """
    m, needed = federation.clients, METRICS.input(metric)
    if needed != "losses":
        up = m * layout.parameter_columns * BYTES_PER_NUMBER if needed == "gradients" else 0
        return {"bytes_down": 0, "bytes_up": up, "client_forwards": 0}
    everywhere, others = _sides(m, chosen)
    samples = np.sum([federation.splits[split].sizes for split in measured_on(federation, data)], axis=0)
    foreign = len(everywhere) * (m - 1 + len(others))  # models of other clients that clients receive
    own = 0 if metric == "loss" else m  # LCFL's Eq. 2: the client subtracts its own model's loss, so it isn't sent
    return {
        "bytes_down": foreign * layout.columns * BYTES_PER_NUMBER,
        "bytes_up": (foreign + own) * BYTES_PER_NUMBER,  # one number for each of them
        "client_forwards": int(samples[everywhere].sum()) * m + int(samples[others].sum()) * (len(everywhere) + 1),
    }


def measured_on(federation: Federation, data: str) -> list[str]:
    """Return the splits on which losses are measured."""
    return ["train"] if data == "train" else [s for s, d in federation.splits.items() if len(d)]


def _sides(clients: int, chosen: Ids | None) -> tuple[Ids, Ids]:
    """Return the clients that receive all models, and those that receive only the landmarks' models."""
    everywhere = np.arange(clients) if chosen is None else chosen
    return everywhere, np.setdiff1d(np.arange(clients), everywhere)


@dataclass(frozen=True)
class _Columns:
    """The first columns of rows, which are read when they are needed."""

    rows: Readable
    columns: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, positions: Any) -> Tensor:
        return self.rows[positions][:, : self.columns]


def measured(
    used: Engine,
    theta: Readable,
    clients: Ids,
    models: Ids,
    data: str,
    progress: Callable[[int], None],
    unfinished: Unfinished,
) -> NDArray[np.float64]:
    """Return the mean losses [m, k] of some `models` [k] of ``theta [M, P]`` on the data of `clients` [m]."""
    losses, saved = np.full((len(clients), len(models)), np.nan), unfinished.read()
    first = 0 if saved is None else saved.step
    if saved is not None:
        losses[:, :first] = saved.tensors["losses"]
    splits = measured_on(used.federation, data)
    sizes = [len(used.federation.splits[split]) for split in splits]
    at_once = MODELS * used.workers
    with unfinished.watching():
        for start in range(first, len(models), at_once):
            part = slice(start, min(start + at_once, len(models)))
            done = [partial(_ahead, progress, part, sizes, number) for number in range(len(splits))]
            losses[:, part] = _mean(
                used.scores(theta, clients, split, own, models[part]) for split, own in zip(splits, done, strict=True)
            )
            unfinished.at(part.stop, partial(Saved, part.stop, {"losses": losses[:, : part.stop]}))
    return losses


def _losses(
    used: Engine, theta: Readable, data: str, progress: Callable[[int], None], chosen: Ids | None,
    unfinished: Unfinished,
) -> Any:  # fmt: skip
    """Return the losses that are a metric's input: [M, M], or with r landmarks [M, r], [M, r] and [M].

    These are the losses of all clients under the landmarks' models, of the landmarks under all models, transposed, and
    of each client under its own. The other clients receive only the landmarks' models.
    """
    m, splits = len(theta), measured_on(used.federation, data)
    everywhere, others = _sides(m, chosen)
    losses = measured(used, theta, everywhere, np.arange(m), data, progress, unfinished)
    if chosen is None:
        return losses
    here, own = np.empty((m, len(chosen))), np.empty(m)
    here[chosen], own[chosen] = losses[:, chosen], losses[np.arange(len(chosen)), chosen]
    if len(others):
        here[others] = _mean(used.scores(theta[chosen], others, split) for split in splits)
        own[others] = _mean(used.own_scores(theta, others, others, split) for split in splits)
    return here, losses.T, own


def _ahead(progress: Callable[[int], None], part: slice, sizes: list[int], number: int, done: int) -> None:
    """Report progress in models, by the share of all splits' samples that were processed, so that it only grows."""
    seen = sum(sizes[:number]) * (part.stop - part.start) + sizes[number] * done
    progress(part.start + seen // sum(sizes))


def _mean(scores: Iterable[Scores]) -> NDArray[np.float64]:
    """Return the mean losses over several splits, [m] or [m, K]."""
    total, samples = np.zeros(()), np.zeros((), dtype=np.int64)
    for found in scores:
        n = found.n.reshape(-1, *[1] * (found.loss.ndim - 1))
        total, samples = total + np.where(n > 0, found.loss * n, 0), samples + n
    return total / samples
