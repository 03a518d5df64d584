"""Training of many clients at once for a chain of linear layers, its gradients written out. C clients.

Two things make it fast on any device. The clients' products are stacked. And where a client takes many steps on few
samples, the first layer, by far the largest, is trained in the coordinates of its data: every step of gradient descent
on ``z = x W^T`` adds a combination of samples to W, so ``W = s W_0 + A^T X`` for a number s and A [n, H], and
``z = s x W_0^T + (x X^T) A``. The products ``X W_0^T`` and ``X X^T`` are made once, a step costs n instead of D numbers
for each unit, and W itself once more at the end (the dual form of the perceptron: Aizerman, Braverman and Rozonoer
1964). Momentum, L2 penalty and proximal term are linear, so they are the same in these coordinates; Adam isn't.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.prepared import rows_of
from . import batches
from .chain import activate, forward, through
from .envelope import Centres
from .optimizers import make_optimizer, regularise
from .parameter_layout import Layout
from .personal import Columns
from .products import added, linear, product, products
from .task import Ids, Task, Towards, Trained
from .training import Training
from .worker import Worker


def obstacle(worker: Worker) -> str | None:
    """Return why the worker's model can't be trained in this form, or None."""
    return worker.chain if isinstance(worker.chain, str) else None


def kinds(worker: Worker, sizes: Ids, training: Training, towards: Towards = "start") -> NDArray[np.int64]:
    """Return the rows that each client's samples take in the coordinates of its data, or 0: on its inputs, [m].

    A client's own numbers decide: products are counted, and the coordinates are taken where they save a fifth.
    """
    # What is kept of momentum is in the model's coordinates: those of the data are others in each round.
    kept = training.optimizer == "adam" or training.optimizer_state == "kept"
    # Nor has another model than the one that a client starts from any coordinates there.
    elsewhere = training.proximal > 0 and towards != "start"
    if kept or elsewhere or worker.data["train"].augmentation is not None:
        return np.zeros(len(sizes), dtype=np.int64)
    units, inputs = worker.layout.parameters[0][1]
    n = batches.padded_rows(sizes, 4)
    used = batches.steps_of(sizes, training) * batches.batch_rows(sizes, training)
    on_inputs = 2 * used * inputs * units
    on_data = (2 * units + n) * n * inputs + 2 * used * n * units
    return np.where(on_data < 0.8 * on_inputs, n, 0)


class _OnInputs:
    """The first layer on a step's inputs."""

    def __init__(self, worker: Worker, task: Task, index: Tensor, offset: Tensor):
        self.layout, self.layers, self.start = worker.layout, worker.layers, task.rows(worker.device)
        self.feed = worker.feeder(index, offset, task.ids, task.round, task.repeats)

    def forward(self, tensors: dict[str, Tensor], first: int, step: int) -> tuple[list[Tensor], Tensor]:
        """Return the values between the layers and the targets, for the clients ``first:``."""
        x, y = self.feed(first, step)
        self.x = x.flatten(2)
        return forward(self.layers, tensors, self.x), y

    def add(self, into: dict[str, Tensor], gradient: Tensor, *, onto: bool) -> None:
        """Put the weight's gradient, or add it `onto` what is there; `gradient` is that of the layer's output."""
        into[self.layers[0].weight].baddbmm_(gradient.mT, self.x, beta=int(onto))

    def row(self, rows: Tensor) -> Tensor:
        """Return differences of these coordinates as differences of models."""
        return rows

    def named(self, names: frozenset[str]) -> Columns:
        """Return the columns, in these coordinates, of the tensors with these names."""
        return Columns.of({name: part for name, _, part in self.layout.slices()}, names)


class _OnData:
    """The first layer in the coordinates of each client's data: s, a number, and A [n, H]."""

    def __init__(self, worker: Worker, task: Task, index: Tensor, offset: Tensor, samples: int):
        (weight, (units, inputs)), *rest = worker.layout.parameters
        penalty = worker.layout.penalties.get(weight, 0.0)
        self.layout = Layout(
            [("s", (1,)), ("a", (samples, units)), *rest], (), worker.layout.penalties | {"s": penalty, "a": penalty}
        )
        self.layers, self.data, self.first = worker.layers, worker.data["train"], weight
        theta, size = task.rows(worker.device), units * inputs
        self.weight = theta[:, :size].view(-1, units, inputs)
        zeros = theta.new_zeros(1, samples * units).expand(len(task), -1)
        self.start = torch.cat([theta.new_ones(len(task), 1), zeros, theta[:, size:]], 1)
        own = torch.arange(samples, device=worker.device)
        n = torch.as_tensor(task.sizes, device=worker.device)[:, None]
        places = own.minimum(n - 1) + offset[:, None]
        self.x = self.data.view(places).flatten(2)
        if (task.sizes < samples).any():
            self.x = self.x * (own < n)[:, :, None]
        self.outer = products(self.x, self.x)
        # Most clients of a chunk start from one model: one product for all their samples.
        self.initial = self.x.new_empty(len(task), samples, units)
        models = task.begun_as(slice(0, size))
        for model in np.unique(models):
            equal = np.flatnonzero(models == model)
            chosen: Any = slice(None) if len(equal) == len(task) else torch.as_tensor(equal, device=worker.device)
            z = product(self.x[chosen].flatten(0, 1), self.weight[equal[0]])
            self.initial[chosen] = z.view(-1, samples, units)
        self.index, self.places = index.clamp(min=0), index.clamp(min=0) + offset[:, None, None]
        self.rows = self.index + samples * torch.arange(len(task), device=worker.device)[:, None, None]

    def forward(self, tensors: dict[str, Tensor], first: int, step: int) -> tuple[list[Tensor], Tensor]:
        """See `_OnInputs.forward`."""
        rows = self.rows[first:, step]
        self.chosen = self.index[first:, step, :, None].expand(-1, -1, tensors["a"].shape[2])
        z = rows_of(self.initial.flatten(0, 1), rows).mul_(tensors["s"][:, :, None])
        layer = self.layers[0]
        if layer.bias:
            z += tensors[layer.bias][:, None]
        z = activate(added(z, rows_of(self.outer.flatten(0, 1), rows), tensors["a"]), layer.activation)
        x = rows_of(self.x.flatten(0, 1), rows) if self.data.reconstructs else self.x
        y = self.data.targets(self.places[first:, step], x)
        return [self.x, *forward(self.layers[1:], tensors, z)], y

    def add(self, into: dict[str, Tensor], gradient: Tensor, *, onto: bool) -> None:
        """See `_OnInputs.add`. The loss doesn't change s, only penalties do."""
        if not onto:
            for name in "sa":
                into[name].zero_()
        into["a"].scatter_add_(1, self.chosen, gradient)

    def named(self, names: frozenset[str]) -> Columns:
        """See `_OnInputs.named`."""
        own = names - {self.first} | {"s", "a"} if self.first in names else names
        return Columns.of({name: part for name, _, part in self.layout.slices()}, own)

    def row(self, rows: Tensor) -> Tensor:
        """See `_OnInputs.row`."""
        s, a = (self.layout.tensors(rows)[name] for name in "sa")
        kept = rows[:, s.shape[1] + a[0].numel() :]
        found = rows.new_empty(len(rows), self.weight[0].numel() + kept.shape[1])
        weight = found[:, : -kept.shape[1] or None].view(self.weight.shape)
        for one, *factors in zip(weight, a.mT, self.x.mT, strict=True):
            one.copy_(linear(*factors))
        if s.any():
            weight += s[:, :, None] * self.weight
        found[:, weight[0].numel() :] = kept
        return found


def train_chunk(worker: Worker, task: Task) -> Trained:
    """Train the clients of one chunk together. Equal to `loop.train_chunk` up to rounding.

    The chunk is in the order of growing step counts, so the clients that still train in a step are its tail.
    """
    training, device = task.training, worker.device
    task, pairs = task.paired(device)
    index, offset = worker.schedule(task)  # [C, steps, rows], -1 = no sample
    # Two models that a client mixes have no common coordinates there.
    samples = int(kinds(worker, task.sizes, training, task.towards).max()) if pairs is None else 0
    inputs = _OnData(worker, task, index, offset, samples) if samples else _OnInputs(worker, task, index, offset)
    start, layout = inputs.start, inputs.layout
    anchors = task.anchors(device) if training.proximal and task.towards != "start" else start
    rows = start.clone() if pairs is None else pairs.begin(start)
    gradient = torch.empty_like(start, memory_format=torch.contiguous_format)
    points = rows if pairs is None else rows.clone()  # where gradients are taken
    rate, weight = task.rates(device), worker.batch_weights(task, index)
    optimizer = make_optimizer(task, rows, rate)
    decay = layout.decay(training.weight_decay, device)
    centres = None if task.envelope is None else Centres(task.envelope, start)
    last = torch.zeros_like(gradient) if task.wants_gradient else None
    curves = torch.full(index.shape[:2], float("nan"), device=device) if "curves" in task.needs else None
    # Plain descent needs no gradients of their own: products are added to the weights at once.
    at_once = training.optimizer == "sgd" and decay is None
    at_once = at_once and not (training.momentum or training.proximal or training.lookahead or task.fixed)
    at_once = at_once and centres is None and pairs is None
    fixed, free = inputs.named(task.fixed), inputs.named(task.free)
    moments, features = worker.moving(task), task.features
    before = -1
    for step, first in enumerate(task.tails()):
        if first != before:
            tensors, into, before = layout.tensors(points[first:]), layout.tensors(gradient[first:]), first
        if pairs is not None:
            points[first:] = pairs.points(rows[first:], first)
        share = weight[first:, step, :, None]
        values, y = inputs.forward(tensors, first, step)
        if curves is not None:
            losses = worker.sample_losses(values[-1].flatten(0, 1), y.flatten(0, 1)).view(len(y), -1, 1)
            curves[first:, step] = (losses * share).sum((1, 2))
        back = worker.loss_gradients(values[-1], y) * share
        if moments is not None:
            moments.add(first, values[-2], y, weight[first:, step] > 0)
        pull = features.gradients(values[-2], y) * share if features is not None and features.pulls else None
        ends = last is not None and step + 1 in task.steps
        if ends or not at_once:
            _backward(inputs, back, values, tensors, into, pull, onto=False)
        if last is not None and ends:
            last[first:] = gradient[first:]
        if at_once:
            down = -rate[first:, :, None]
            _backward(inputs, back * down, values, tensors, tensors, None if pull is None else pull * down, onto=True)
        else:
            if pairs is not None:
                pairs.judge(gradient[first:], rows[first:], step, first)
            regularise(gradient[first:], rows[first:], anchors[first:], decay, training, free)
            if centres is not None:
                centres.pull(gradient[first:], rows[first:], centres.rows[first:])
            fixed.clear(gradient[first:])
            optimizer.step(rows, gradient[first:], first)
            if centres is not None:
                centres.follow(rows[first:], step, first)
            if pairs is not None:
                pairs.follow(rows[first:], step, first)
    if pairs is not None:
        return Trained.of_pairs(pairs, rows, start, curves, len(rows) // 2)
    last = None if last is None else inputs.row(last)
    memory, delta, own = optimizer.memory if task.memory else {}, inputs.row(rows.sub_(start)), None
    if centres is not None:
        own, delta = task.rows(device) + delta, inputs.row(centres.rows.sub_(start))
    return Trained(delta, curves, last, memory, moments, own)


def _backward(
    inputs: _OnInputs | _OnData, back: Tensor, values: list[Tensor], tensors: dict[str, Tensor],
    into: dict[str, Tensor], pull: Tensor | None, *, onto: bool,
) -> None:  # fmt: skip
    """Put gradients, or add them `onto` what is there; `back` is that of the outputs, ``values[-1]``.

    `pull` is what is added to that of the last layer's inputs.
    """
    layers = inputs.layers
    for number in reversed(range(len(layers))):
        layer = layers[number]
        back = through(back, values[number + 1], layer.activation)
        further = products(back, tensors[layer.weight].mT) if number else back
        if pull is not None and number == len(layers) - 1:
            further = further + pull
        if layer.bias:
            (Tensor.add_ if onto else Tensor.copy_)(into[layer.bias], back.sum(1))
        if number:
            into[layer.weight].baddbmm_(back.mT, values[number], beta=int(onto))
        else:
            inputs.add(into, back, onto=onto)
        back = further
