"""Processing of a task: training its clients in chunks, scoring their models, summing their updates."""

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
CACHE_BYTES = 16 << 20  # the most that a chunk's samples, parameters and optimiser states take, to stay in the cache
SHORT = 2048  # columns below which `index_add_` sums faster: .12 instead of 2.8 µs for 84 columns


def train(worker: Worker, task: Task, lengths: list[int], form: str, chunk: int | None) -> list[Result]:
    """Train the clients of a task by the backend `form`, at most `chunk` together.

    Returns a result for each of the parts of consecutive clients with these `lengths`; each has its own sums.
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
    """Return a result with room for the clients of a part."""
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
    """Return how many clients to train together on a CPU: about equal chunks that fit in the cache.

    With Adam five arrays of a client's parameters are in use: weights, start, gradient and two moments; with a pull to
    another model, as many: that model and the difference. Two models in lockstep need twice as many arrays, and the
    points at which gradients are evaluated.
    """
    copies = 5 if task.training.optimizer == "adam" or elsewhere(task.training, task.towards) else 1
    copies = copies if task.lockstep is None else 2 * copies + 2
    numbers = copies * worker.layout.columns + int(task.sizes.max()) * math.prod(worker.shape)
    most = max(1, CACHE_BYTES // (4 * numbers))
    return -(-len(task) // -(-len(task) // most))


def fits(worker: Worker, task: Task, chunk: int | None, part: Ids) -> bool:
    """Return whether the clients at `part` may be trained at once."""
    return len(part) <= (chunk or _fit(worker, task.of(part)))


def _train_chunk(worker: Worker, task: Task, cut: slice, form: str, results: list[tuple[slice, Result]]) -> None:
    """Train the clients of one chunk, in halves if memory doesn't suffice, and add to the results of their parts.

    `cut` is the chunk's slice of all the clients; `results` are slices of these clients with their results.
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
    if trained is None:  # outside the handler, which would keep the failed attempt's memory
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
    """Train the clients: all tensors at once, or the tensors of each turn, one turn after another."""
    if not task.turns:
        return train(worker, task)
    start, names, steps = task.rows(worker.device), {name for name, _ in worker.layout.parameters}, task.steps.tolist()
    delta = torch.zeros_like(start, memory_format=torch.contiguous_format)
    curves = delta.new_full((len(task), len(task.turns) * steps[-1]), math.nan)
    for number, own in enumerate(task.turns):
        turn = replace(
            task, theta=(start + delta).cpu(), start=np.arange(len(task)), personal=None,  # on the CPU, as all models
            fixed=task.fixed | (names - own), turns=(),
        )  # fmt: skip
        found = train(worker, turn)
        delta += found.delta  # zero in the other turns' tensors, so the sum isn't rounded
        if found.curves is not None:
            for i, many in enumerate(steps):
                curves[i, number * many : (number + 1) * many] = found.curves[i, :many]
    return Trained(delta, curves)


def _collect(worker: Worker, task: Task, part: slice, trained: Trained, result: Result) -> None:
    delta = trained.delta
    if task.training.average == "gradients":
        assert trained.last_gradient is not None
        # The gradient itself, not the change of the model, which was rounded at the model's magnitude.
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
    if task.clip < math.inf:  # with privacy every update counts: leaving one out would reveal something about it
        delta = clip(delta, task.clip)
        norm = torch.linalg.vector_norm(delta, dim=1).cpu().numpy()
    result.norm[part] = norm
    if result.delta is not None:
        result.delta[part] = delta
    else:
        add_up(result.sums, delta, task.target, task.weight, dropped(result.norm[part], task.training.largest_update))


def _keep_back(task: Task, part: slice, delta: Tensor, result: Result) -> NDArray[np.float64] | None:
    """Write the kept columns to `result`, and replace them in `delta` by zeros or by what is sent of them.

    Returns the norms of the changes that aren't sent, [C], or None if all are sent.
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
    """Return whether updates are left out of the sums, because they are NaN, infinite or too long, [C]."""
    found: NDArray[np.bool_] = ~(norm <= largest)
    return found


def add_up(sums: Sums, delta: Tensor, target: Ids, weight: NDArray[np.float64], left_out: NDArray[np.bool_]) -> None:
    """Add weighted updates [C, P] to their targets' sums, in float64 and in order, so that chunks change no bit."""
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
    wide = delta.new_empty(delta.shape[1], dtype=torch.float64)  # one for all rows: allocating costs more than summing
    for k, row, w, out in zip(target.tolist(), delta, weight.tolist(), left_out.tolist(), strict=True):
        if not out:
            sums[k].add_(wide.copy_(row), alpha=w)
