"""What a process does with a task: trains its clients in chunks, scores their models, adds their updates up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from . import dense, loop, stacked
from .clipping import clip
from .features import Head, Moments
from .personal import Columns
from .task import Ids, Result, Scores, Sums, Task, Trained, elsewhere
from .worker import Worker

FORMS: dict[str, Any] = {"dense": dense, "stacked": stacked, "loop": loop}
CACHE_BYTES = 16 << 20  # what a chunk's samples, parameters and Adam's memory of them may take, to stay in a cache
SHORT = 2048  # columns of an update below which `index_add_` is the faster sum: .12 against 2.8 µs for 84


def train(worker: Worker, task: Task, lengths: list[int], form: str, chunk: int | None) -> list[Result]:
    """Train the clients of a task, at most `chunk` together, and return what was asked for.

    They are parts of so many clients, whose updates are added up apart: a result for each.
    """
    most = 1 if worker.alone else chunk or (_fit(worker, task) if worker.device.type == "cpu" else len(task))
    ends = np.cumsum(lengths).tolist()
    parts = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    results = [_empty(worker, task, part) for part in parts]
    if task.features is not None:
        task = replace(task, features=task.features.to(worker.device))
    for cut, own in task.cut(most):
        _train_chunk(worker, own, cut, form, list(zip(parts, results, strict=True)))
    return results


def _empty(worker: Worker, task: Task, part: slice) -> Result:
    """Return where what a part's clients leave is put."""
    count = part.stop - part.start
    result = Result(np.zeros(count), np.zeros(count, dtype=bool))
    if "updates" in task.needs:
        result.delta = torch.empty(count, worker.layout.columns)
    if "last_gradient" in task.needs:
        result.last_gradient = torch.empty(count, worker.layout.parameter_columns)
    if "curves" in task.needs:
        result.curves = np.full((count, max(1, len(task.turns)) * int(task.steps[-1])), np.nan, dtype=np.float32)
    result.memory = {name: torch.empty(count, worker.layout.parameter_columns) for name in task.memory}
    if task.personal is not None and "scores" not in task.needs:
        result.personal = torch.empty(count, len(task.personal.columns))
    if task.beside is not None:
        result.personal = torch.empty(count, worker.layout.columns)
    if task.lockstep is not None:
        result.second, result.share = torch.empty(count, worker.layout.columns), np.zeros(count)
    if task.features is not None and task.features.gather != "nothing":
        assert isinstance(worker.head, Head)
        result.moments = Moments.none(count, worker.federation.classes, worker.head.features)
    for split in task.score:
        result.scores[split] = Scores.none(worker.splits[split].sizes[task.clients[part]])
    return result


def _fit(worker: Worker, task: Task) -> int:
    """Return how many clients to train together on a CPU: equal chunks of what fits in a cache.

    With Adam five arrays of a client's parameters are in use: weights, where they began, gradient and two moments; with
    a pull to another model than that, this one and how far it is. Of two models in lockstep there are twice as many,
    and where gradients are taken.
    """
    copies = 5 if task.training.optimizer == "adam" or elsewhere(task.training, task.towards) else 1
    copies = copies if task.lockstep is None else 2 * copies + 2
    numbers = copies * worker.layout.columns + int(task.sizes.max()) * math.prod(worker.shape)
    most = max(1, CACHE_BYTES // (4 * numbers))
    return -(-len(task) // -(-len(task) // most))


def fits(worker: Worker, task: Task, chunk: int | None, part: Ids) -> bool:
    """Return whether some of a task's clients may be trained at once."""
    return len(part) <= (chunk or _fit(worker, task.of(part)))


def _train_chunk(worker: Worker, task: Task, cut: slice, form: str, results: list[tuple[slice, Result]]) -> None:
    """Train the clients of one chunk, in halves if they don't fit, and put what they leave into their part's result.

    The chunk is the clients `cut` of those whose parts are given.
    """
    try:
        trained = _trained(worker, task, FORMS[form].train_chunk)
    except torch.OutOfMemoryError as error:
        if len(task) == 1:
            raise UserError(
                f"one client's training doesn't fit into the memory of device {worker.device}; use device: cpu, "
                "a smaller batch_size or a smaller model"
            ) from error
        trained = None
    if trained is None:  # out of the handler, which would keep what was allocated
        if worker.device.type != "cpu":
            torch.get_device_module(worker.device).empty_cache()
        for half, own in task.cut(-(-len(task) // 2)):
            _train_chunk(worker, own, slice(cut.start + half.start, cut.start + half.stop), form, results)
        return
    for part, result in results:
        first, end = max(part.start, cut.start), min(part.stop, cut.stop)
        if first < end:
            here, there = slice(first - cut.start, end - cut.start), slice(first - part.start, end - part.start)
            _collect(worker, task.of(here), there, trained.of(here), result)


def _trained(worker: Worker, task: Task, train: Callable[[Worker, Task], Trained]) -> Trained:
    """Return what the clients' training leaves: one of all tensors, or one after another of those of each turn."""
    if not task.turns:
        return train(worker, task)
    start, names, steps = task.rows(worker.device), {name for name, _ in worker.layout.parameters}, task.steps.tolist()
    delta = torch.zeros_like(start, memory_format=torch.contiguous_format)
    curves = delta.new_full((len(task), len(task.turns) * steps[-1]), math.nan)
    for number, own in enumerate(task.turns):
        turn = replace(
            task, theta=(start + delta).cpu(), start=np.arange(len(task)), personal=None,  # as all models lie
            fixed=task.fixed | (names - own), turns=(),
        )  # fmt: skip
        found = train(worker, turn)
        delta += found.delta  # of what others train it is zeros, so nothing is rounded
        if found.curves is not None:
            for i, many in enumerate(steps):
                curves[i, number * many : (number + 1) * many] = found.curves[i, :many]
    return Trained(delta, curves)


def _collect(worker: Worker, task: Task, part: slice, trained: Trained, result: Result) -> None:
    delta = trained.delta
    if task.training.average == "gradients":
        assert trained.last_gradient is not None
        # Itself rather than the step that it made: no rounding at the models' magnitude.
        p, decay = worker.layout.parameter_columns, worker.layout.decay(0.0, worker.device)
        delta[:, :p] = -trained.last_gradient
        if decay is not None:
            delta[:, :p] -= decay * task.rows(worker.device)[:, :p]
            Columns.of({name: part for name, _, part in worker.layout.slices()}, task.fixed).clear(delta)
    if task.score or result.moments is not None:
        models = task.rows(worker.device) + delta
        nearest = None if task.features is None else task.features.nearest
        for split, kept in result.scores.items():
            for i, client in enumerate(task.clients):
                own = worker.score(models[i : i + 1], split, np.array([client]), nearest)
                kept.correct[part.start + i], kept.loss[part.start + i] = own.correct[0, 0], own.loss[0, 0]
    if result.moments is not None:
        for i, client in enumerate(task.clients.tolist()):
            at = part.start + i
            found = (
                worker.moments(models[i], client) if trained.moments is None else trained.moments.of(slice(i, i + 1))
            )
            result.moments.put(slice(at, at + 1), found)
    if result.curves is not None and trained.curves is not None:
        result.curves[part, : trained.curves.shape[1]] = trained.curves.cpu().numpy()
    if result.last_gradient is not None and trained.last_gradient is not None:
        result.last_gradient[part] = trained.last_gradient
    for name, rows in trained.memory.items():
        result.memory[name][part] = rows
    if "scores" in task.needs:
        return
    if result.personal is not None and trained.own is not None:
        result.personal[part] = trained.own
    apart = None if task.personal is None else _keep_back(task, part, delta, result)
    if result.second is not None and result.share is not None:
        assert trained.own is not None and trained.second is not None and trained.share is not None
        result.second[part], result.share[part] = trained.second, trained.share.cpu().numpy()
        apart = _lengths(trained.own - task.given(delta.device))
    for i in np.flatnonzero(task.factor != 1).tolist():
        delta[i] = delta[i] * task.factor[i] if np.isfinite(task.factor[i]) else task.factor[i]
    norm = torch.linalg.vector_norm(delta, dim=1).cpu().numpy()
    if apart is not None:
        norm = np.sqrt(np.square(norm) + np.square(apart))
    result.unsound[part] = dropped(norm, task.training.largest_update)
    if task.clip < math.inf:  # whatever a client computed, what it sends counts: that it doesn't would tell of it
        delta = clip(delta, task.clip)
        norm = torch.linalg.vector_norm(delta, dim=1).cpu().numpy()
    result.norm[part] = norm
    if result.delta is not None:
        result.delta[part] = delta
    else:
        add_up(result.sums, delta, task.target, task.weight, dropped(result.norm[part], task.training.largest_update))


def _keep_back(task: Task, part: slice, delta: Tensor, result: Result) -> NDArray[np.float64] | None:
    """Put columns that clients keep into `result`, and zeros, or what they send, into `delta`.

    Returns the norms of the changes that aren't sent, [C], or None where all are.
    """
    assert task.personal is not None and result.personal is not None
    columns = task.personal.columns
    change = columns.taken(delta).double()
    trained = task.personal.of(task.clients).to(delta.device).double() + change
    result.personal[part] = trained.float()
    if task.personal.sent:
        columns.put(delta, (trained - columns.taken(task.given(delta.device)).double()).float())
        return None
    columns.clear(delta)
    if result.last_gradient is not None:
        columns.clear(result.last_gradient[part])
    return _lengths(change)


def _lengths(rows: Tensor) -> NDArray[np.float64]:
    """Return the Euclidean norms of ``rows [C, q]``, [C]."""
    found: NDArray[np.float64] = torch.linalg.vector_norm(rows.double(), dim=1).cpu().numpy()
    return found


def dropped(norm: NDArray[np.float64], largest: float) -> NDArray[np.bool_]:
    """Return which updates are left out of the sums: NaN, infinite or too long, [C]."""
    found: NDArray[np.bool_] = ~(norm <= largest)
    return found


def add_up(sums: Sums, delta: Tensor, target: Ids, weight: NDArray[np.float64], left_out: NDArray[np.bool_]) -> None:
    """Add weighted updates to their targets' sums, in float64 and one after another: chunks change no bit."""
    for k in set(target[~left_out].tolist()) - sums.keys():
        sums[k] = delta.new_zeros(delta.shape[1], dtype=torch.float64)
    if delta.shape[1] < SHORT:
        models, which = np.unique(target[~left_out], return_inverse=True)
        if left_out.any():
            delta = delta[torch.as_tensor(np.flatnonzero(~left_out), device=delta.device)]
        weighted = delta.double() * torch.as_tensor(weight[~left_out], device=delta.device)[:, None]
        if len(models):
            total = torch.stack([sums[k] for k in models.tolist()])
            total.index_add_(0, torch.as_tensor(which, device=delta.device), weighted)
            sums |= zip(models.tolist(), total, strict=True)
        return
    wide = delta.new_empty(delta.shape[1], dtype=torch.float64)  # made for each row it costs more than the sum
    for k, row, w, out in zip(target.tolist(), delta, weight.tolist(), left_out.tolist(), strict=True):
        if not out:
            sums[k].add_(wide.copy_(row), alpha=w)
