"""Training of one client after another, with a torch module and an optimiser. This backend trains every module.

A module's random draws, e.g. of dropout, come from torch's generator, which is seeded by (client, round).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import streams
from ..errors import UserError
from .envelope import Centres
from .features import Head, Moments, watched
from .lockstep import Pairs
from .optimizers import OfModule, make_optimizer, regularise
from .parameter_layout import Layout
from .personal import Columns
from .task import Task, Trained
from .worker import Feeder, Worker


def obstacle(worker: Worker) -> str | None:
    """Return None: this backend can train every model."""
    return None


def train_chunk(worker: Worker, task: Task) -> Trained:
    """Train the clients of one chunk, one after another."""
    start, training = task.rows(worker.device), task.training
    anchors = task.anchors(worker.device) if training.proximal else start
    index, offset = worker.schedule(task)
    delta = torch.empty_like(start, memory_format=torch.contiguous_format)
    curves = torch.full(index.shape[:2], float("nan"), device=worker.device)
    filled = (index >= 0).sum(2).tolist()  # samples of each step, once per chunk, because this waits for a GPU
    last = delta.new_zeros(len(start), worker.layout.parameter_columns) if task.wants_gradient else None
    if task.lockstep is not None:
        return _train_pairs(worker, task, start, anchors, index, offset, filled)
    memory, moments, p = task.memories(worker.device), worker.moving(task), worker.layout.parameter_columns
    kept, shares = None if task.envelope is None else torch.empty_like(delta), worker.shares(task, index)
    for i in range(len(start)):
        own = {name: rows[i] for name, rows in memory.items()}
        feed = worker.feeder(index[i : i + 1], offset[i : i + 1], task.ids[i : i + 1], task.round, task.repeats)
        centre = None if task.envelope is None else Centres(task.envelope, start[i : i + 1])
        drawing = streams.torch_stream(worker.seed, "module", int(task.ids[i]), task.round)
        with drawing, batch_of_one(int(task.ids[i]), training.batch_size):
            gradient = _train_client(
                worker, task, i, start[i], anchors[i], feed, filled[i], curves[i], own, moments, centre,
                None if shares is None else shares[i],
            )  # fmt: skip
        trained = worker.layout.flatten(worker.tuned)
        if kept is not None and centre is not None:
            kept[i] = trained
            trained[:p] = centre.rows[0, :p]  # buffers have no centre: the trained ones are sent
        torch.sub(trained, start[i], out=delta[i])
        if last is not None:
            last[i] = gradient
    return Trained(delta, curves, last, memory, moments, kept)


def _train_pairs(
    worker: Worker, task: Task, start: Tensor, anchors: Tensor, index: Tensor, offset: Tensor, filled: list[list[int]]
) -> Trained:
    """Train two models of each client in lockstep, as rows, one client after another."""
    curves = torch.full(index.shape[:2], float("nan"), device=worker.device)
    p = worker.layout.parameter_columns
    delta, own, second = (torch.empty_like(start, memory_format=torch.contiguous_format) for _ in range(3))
    shares = torch.empty(len(start), dtype=torch.float64, device=worker.device)
    for i in range(len(start)):
        twice, pairs = task.of(slice(i, i + 1)).paired(worker.device)
        assert pairs is not None
        feed = worker.feeder(index[i : i + 1], offset[i : i + 1], task.ids[i : i + 1], task.round)
        drawing = streams.torch_stream(worker.seed, "module", int(task.ids[i]), task.round)
        with drawing, batch_of_one(int(task.ids[i]), task.training.batch_size):
            rows = pairs.begin(start[i].expand(2, -1), pairs.second)
            _train_pair(worker, twice, pairs, rows, anchors[i], feed, filled[i], curves[i])
        delta[i] = rows[0] - start[i]
        (own[i],), (second[i],) = pairs.ended(rows)
        own[i, p:] = second[i, p:] = rows[1, p:]  # buffers aren't mixed
        shares[i] = pairs.share[0]
    return Trained(delta, curves, own=own, second=second, share=shares)


def _train_pair(
    worker: Worker, task: Task, pairs: Pairs, rows: Tensor, anchor: Tensor, feed: Feeder, filled: list[int],
    curve: Tensor,
) -> None:  # fmt: skip
    """Train the two models ``rows [2, P]`` of a client in place; buffers are updated at the points of the gradients."""
    layout, training, p = worker.layout, task.training, worker.layout.parameter_columns
    parameters, gradient = rows[:, :p], rows.new_zeros(2, p)
    optimizer = make_optimizer(task, parameters, task.rates(worker.device))
    decay = layout.decay(training.weight_decay, worker.device)
    tensors = {name: part for name, _, part in layout.slices()}
    fixed, free = (Columns.of(tensors, names) for names in (task.fixed, task.free))
    worker.tuned.train()
    for step in range(int(task.steps[0])):
        x, y = (part[0, : filled[step]] for part in feed(0, step))
        points = pairs.points(parameters)
        for which in (0, 1):
            row = torch.cat([points[which], rows[which, p:]])
            loss, gradient[which] = _gradient(worker, row, x, y)
            rows[which, p:] = row[p:]
            if not which:
                curve[step] = loss
        pairs.judge(gradient, parameters, step)
        regularise(gradient, parameters, anchor[:p], decay, training, free)
        fixed.clear(gradient)
        optimizer.step(parameters, gradient, 0)
        pairs.follow(parameters, step)
    worker.tuned.eval()


def _gradient(worker: Worker, row: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mini-batch's mean loss under the model ``row [P]`` and its gradient [p]; the row's buffers change."""
    module, layout = worker.tuned, worker.layout
    layout.load(module, row)
    module.zero_grad()
    loss = worker.sample_losses(module(worker.shaped(x)), y).mean()
    loss.backward()
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()]
    if layout.buffers:
        row[layout.parameter_columns :] = layout.flatten(module)[layout.parameter_columns :]
    return loss.detach(), torch.cat([one.reshape(-1) for one in found])


@contextmanager
def batch_of_one(client: int, batch_size: int | str) -> Iterator[None]:
    """Name the client if batch normalisation fails because a batch has one sample.

    Raises
    ------
    UserError
        Instead of torch's ValueError.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"client {client} has a batch of one sample, which batch normalisation can't train on; choose "
            f"a batch_size (now {batch_size}) that leaves no such batch, or larger clients"
        ) from error


def _train_client(
    worker: Worker, task: Task, i: int, start: Tensor, anchor: Tensor, feed: Feeder, filled: list[int],
    curve: Tensor, memory: dict[str, Tensor], moments: Moments | None, centre: Centres | None, shares: Tensor | None,
) -> Tensor:  # fmt: skip
    """Train client i and return its last mini-batch gradient.

    Parameters
    ----------
    start, anchor : [P]
        The model that it starts from, and the one that the proximal term pulls to.
    feed, filled
        Its batches, and the number of samples in each, without padding.
    curve : [steps]
        Filled with the losses of its steps.
    memory : [p] each
        Its optimiser's kept state, by name; empty for a new optimiser. Changed in place.
    moments
        Sums to which its mini-batches' features are added, if they are gathered.
    centre
        Its centre, if it trains with an envelope.
    shares : [steps, rows]
        Weights of the samples' losses; None: 1.
    """
    module, layout, training = worker.tuned, worker.layout, task.training
    layout.load(module, start)
    module.train()
    parameters = list(module.parameters())
    pulls = layout.tensors(anchor) if training.proximal else {}
    anchors = [pulls[name] for name, _ in module.named_parameters()] if pulls else []
    middles = [] if centre is None else [layout.tensors(centre.rows[0])[name] for name, _ in module.named_parameters()]
    rate, groups = float(task.rate[i]), layout.groups(module, training.weight_decay)
    ahead = _Ahead(groups, training.lookahead) if training.lookahead else None
    optimizer = OfModule(training, groups, rate)
    for parameter, name, values in _places(worker, memory):
        # The kernels need the parameter's memory layout, which a view of a row may not have.
        optimizer.memory[name][parameter] = torch.empty_like(parameter, requires_grad=False).copy_(values)
        optimizer.counts[parameter] = torch.tensor(float(task.taken[i]), device=worker.device)
    stay = [p for name, p in module.named_parameters() if name in task.fixed and p.requires_grad]
    for parameter in stay:
        parameter.requires_grad_(False)  # saves computing their gradients
    trains = any(parameter.requires_grad for parameter in parameters)  # False: all parameters are fixed
    free = {p for name, p in module.named_parameters() if name in task.free}
    gradient = start.new_zeros(layout.parameter_columns if task.wants_gradient else 0)
    for step in range(int(task.steps[i])):
        x, y = (part[0, : filled[step]] for part in feed(0, step))
        module.zero_grad()
        share = None if shares is None else shares[step, : filled[step]]
        loss, besides = _losses(worker, task, module, x, y, i, moments, share)
        if trains:
            (loss if besides is None else loss + besides).backward()
        curve[step] = loss.detach()
        if task.wants_gradient:
            found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
            gradient = torch.cat([one.reshape(-1) for one in found])
        for parameter, values in zip(parameters, anchors, strict=False):
            if parameter.grad is not None and parameter not in free:
                parameter.grad.add_(parameter.detach() - values, alpha=training.proximal)
        for parameter, values in zip(parameters, middles, strict=False):
            if centre is not None and parameter.grad is not None:
                centre.pull(parameter.grad, parameter.detach(), values)
        if ahead is None or ahead.back(step, step + 1 < task.steps[i]):
            optimizer.step()
        if centre is not None:
            centre.follow(layout.flatten(module)[None], step)
    for parameter in stay:
        parameter.requires_grad_(True)
    module.eval()
    for parameter, name, values in _places(worker, memory):
        values.copy_(optimizer.memory[name][parameter])
    return gradient


def _losses(
    worker: Worker, task: Task, module: nn.Module, x: Tensor, y: Tensor, i: int, moments: Moments | None,
    share: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return a mini-batch's loss, and the features' further term or None; add client i's features to `moments`."""
    if task.features is None:
        losses = worker.sample_losses(module(worker.shaped(x)), y)
        return (losses if share is None else losses * share).mean(), None
    assert isinstance(worker.head, Head)
    with watched(module, worker.head) as given:
        loss = worker.sample_losses(module(worker.shaped(x)), y).mean()
    if moments is not None:
        moments.of(slice(i, i + 1)).add(0, given[0][None], y[None], torch.ones_like(y)[None])
    return loss, task.features.losses(given[0], y).mean() if task.features.pulls else None


class _Ahead:
    """Steps in pairs, see `optimizers.Ahead`. It adds L2 penalties to gradients itself: steps ahead have them too."""

    def __init__(self, groups: list[dict[str, Any]], rate: float):
        self.rate = rate
        self.before: list[Tensor] = []
        self.decays = [(p, group["weight_decay"]) for group in groups for p in group["params"]]
        for group in groups:
            group["weight_decay"] = 0.0

    def back(self, step: int, paired: bool) -> bool:
        """Step ahead, if a `paired` step follows, or go back; return whether the optimiser's step is next."""
        with torch.no_grad():
            for parameter, decay in self.decays:
                if decay and parameter.grad is not None:
                    parameter.grad.add_(parameter, alpha=decay)
            if step % 2:
                for (parameter, _), values in zip(self.decays, self.before, strict=True):
                    parameter.copy_(values)
                return True
            if paired:
                self.before = [parameter.detach().clone() for parameter, _ in self.decays]
                for parameter, _ in self.decays:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad * self.rate)
        return False


def _places(worker: Worker, memory: dict[str, Tensor]) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
    """Yield, for each row of `memory` [p] and each parameter: the parameter, the row's name, and a view of its part."""
    parameters, layout = dict(worker.tuned.named_parameters()), Layout(worker.layout.parameters)
    for name, row in memory.items():
        for own, values in layout.tensors(row).items():
            yield parameters[own], name, values
