"""Training of many clients at once for chains of linear layers, with hand-written gradients. C clients.

A model is one chain or a sum of chains, which all receive the gradient of the summed output.

Two things make it fast on any device. The clients' matrix products are batched. And if a client takes many steps on few
samples, the first layer, by far the largest, is trained in the coordinates of its data: every step of gradient descent
on ``z = x W^T`` adds a combination of samples to W, so ``W = s W_0 + A^T X`` for a number s and A [n, H], and
``z = s x W_0^T + (x X^T) A``. The products ``X W_0^T`` and ``X X^T`` are computed once, a step costs n instead of D
numbers per unit, and W itself is computed once, at the end (the dual form of the perceptron: Aizerman, Braverman and
Rozonoer 1964). Momentum, L2 penalty and proximal term are linear, so they have the same form in these coordinates; Adam
doesn't. A pull to a model V other than the client's start adds a multiple of V: ``W = s W_0 + t V + A^T X``. A second
model in lockstep also adds a term: the mix of the two is a combination of both starts and of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.prepared import rows_of
from . import batches
from .chain import Layer, activate, forward, forwards, output, through
from .envelope import Centres
from .lockstep import Pairs
from .optimizers import make_optimizer, regularise
from .parameter_layout import Layout
from .personal import Columns
from .products import added, linear, product, products
from .task import Ids, Task, Towards, Trained, elsewhere
from .training import Training
from .worker import Worker


def obstacle(worker: Worker) -> str | None:
    """Return why the worker's model can't be trained by this backend, or None."""
    return worker.unchained or None


def kinds(
    worker: Worker, sizes: Ids, training: Training, towards: Towards = "start", *, paired: bool = False
) -> NDArray[np.int64]:
    """Return, for each client, the padded number of its samples if it trains in their coordinates, else 0; [m].

    This depends only on the client: the coordinates of its data are used where they save at least a fifth of the
    multiplications, counted, with two models in lockstep (`paired`), for one of them.
    """
    # Kept momentum is in the model's coordinates, because the data's coordinates differ from round to round.
    kept = training.optimizer == "adam" or training.optimizer_state == "kept"
    if kept or worker.data["train"].augmentation is not None:
        return np.zeros(len(sizes), dtype=np.int64)
    shapes = dict(worker.layout.parameters)
    first = [shapes[layers[0].weight] for layers in worker.chains]
    units, inputs = sum(shape[0] for shape in first), first[0][1]
    n = batches.padded_rows(sizes, 4)
    used = batches.steps_of(sizes, training) * batches.batch_rows(sizes, training)
    on_inputs = 2 * used * inputs * units
    # Products of all samples: one with each model before the first step, and one after the last step.
    made = 2 + elsewhere(training, towards) + paired
    on_data = (made * units + n) * n * inputs + 2 * used * n * units
    return np.where(on_data < 0.8 * on_inputs, n, 0)


class _OnInputs:
    """First layers computed on the inputs of each mini-batch."""

    def __init__(self, worker: Worker, task: Task, pairs: Pairs | None, index: Tensor, offset: Tensor):
        self.layout, self.chains, self.start = worker.layout, worker.chains, task.rows(worker.device)
        self.begun = self.start if pairs is None else pairs.begin(self.start, pairs.second)
        self.anchors = task.anchors(worker.device) if elsewhere(task.training, task.towards) else self.start
        self.feed = worker.feeder(index, offset, task.ids, task.round, task.repeats)

    def forward(self, tensors: dict[str, Tensor], first: int, step: int) -> tuple[list[list[Tensor]], Tensor]:
        """Return the inputs of each chain's layers and its output, and the targets, for the clients ``first:``."""
        x, y = self.feed(first, step)
        self.x = x.flatten(2)
        return forwards(self.chains, tensors, self.x), y

    def add(self, into: dict[str, Tensor], chain: int, gradient: Tensor, *, onto: bool) -> None:
        """Write a chain's first weight gradient, or add it if `onto`; `gradient` is that of the layer's output."""
        into[self.chains[chain][0].weight].baddbmm_(gradient.mT, self.x, beta=int(onto))

    def row(self, rows: Tensor) -> Tensor:
        """Convert differences in these coordinates to differences of models, [C, P]."""
        return rows

    def dual(self, gradient: Tensor) -> Tensor:
        """Return the vectors, for the last c clients, whose dot products with rows equal those of models and gradients.

        The rows are in these coordinates, [c, ...].
        """
        return gradient

    def named(self, names: frozenset[str]) -> Columns:
        """Return the columns, in these coordinates, of the tensors with these names."""
        return Columns.of({name: part for name, _, part in self.layout.slices()}, names)


@dataclass
class _First:
    """A chain's first layer in the coordinates of the data.

    ``bases`` are the weights that it combines: W_0, then that of a second model and of the model it is pulled to, if
    any. Each is the name of its factor [C, 1], the weight [C, H, D], and its outputs X W_0^T [C, n, H]. ``a`` is the
    name of A [C, n, H].
    """

    a: str
    bases: list[tuple[str, Tensor, Tensor]]
    layers: list[Layer]
    whole: slice  # the chain's columns in a model; W comes first
    rest: slice  # the columns after W, in these coordinates


class _OnData:
    """The first layers in the coordinates of each client's data."""

    def __init__(
        self, worker: Worker, task: Task, pairs: Pairs | None, index: Tensor, offset: Tensor, samples: int
    ):  # fmt: skip
        self.chains, self.data, self.index = worker.chains, worker.data["train"], index.clamp(min=0)
        numbers = torch.arange(samples, device=worker.device)
        n = torch.as_tensor(task.sizes, device=worker.device)[:, None]
        places = numbers.minimum(n - 1) + offset[:, None]
        self.x = self.data.view(places).flatten(2)
        if (task.sizes < samples).any():
            self.x = self.x * (numbers < n)[:, :, None]
        self.each = 1 if pairs is None else 2  # number of consecutive rows with the same samples and starts
        own = self.x[:: self.each]
        self.outer = self._for_each(products(own, own))
        shapes, columns = dict(worker.layout.parameters), {name: part for name, _, part in worker.layout.slices()}
        models: list[tuple[Tensor, Callable[[slice], Ids]]] = [(task.rows(worker.device), task.begun_as)]
        if pairs is not None:
            models.append((pairs.second.repeat_interleave(2, 0), lambda _: np.arange(len(task)) // 2))
        if elsewhere(task.training, task.towards):
            models.append((task.anchors(worker.device), task.pulled_as))
        penalties, parameters, self.firsts = dict(worker.layout.penalties), list[tuple[str, tuple[int, ...]]](), []
        found: list[list[Tensor]] = [[] for _ in models]  # these models in the coordinates of the data
        for number, layers in enumerate(self.chains):
            first, *rest = (name for layer in layers for name in (layer.weight, layer.bias) if name)
            (units, inputs), part, a, bases = shapes[first], columns[first], f"a{number}", []
            whole = slice(part.start, columns[[first, *rest][-1]].stop)
            for which, (rows, kinds_of) in enumerate(models):
                weight = rows[:, part].view(-1, units, inputs)
                bases.append((f"s{number}.{which}", weight, self._outputs(weight, kinds_of(part))))
                itself = rows.new_zeros(len(models) + samples * units)
                itself[which].fill_(1.0)
                found[which] += [itself.expand(len(task), -1), rows[:, part.stop : whole.stop]]
            parameters += [*((name, (1,)) for name, *_ in bases), (a, (samples, units))]
            penalties |= dict.fromkeys([name for name, *_ in bases] + [a], penalties.get(first, 0.0))
            begin = sum(math.prod(shape) for _, shape in parameters)
            parameters += [(name, shapes[name]) for name in rest]
            self.firsts.append(_First(a, bases, layers, whole, slice(begin, begin + whole.stop - part.stop)))
        self.layout = Layout(parameters, (), penalties)
        self.start, *others = (torch.cat(own, 1) for own in found)
        self.begun = self.start if pairs is None else pairs.begin(self.start, others[0][1::2])
        self.anchors = others[-1] if elsewhere(task.training, task.towards) else self.start
        self.places = self.index + offset[:, None, None]
        self.rows = self.index + samples * torch.arange(len(task), device=worker.device)[:, None, None]

    def _outputs(self, weight: Tensor, models: Ids) -> Tensor:
        """Return ``X W^T`` [C, n, H], with one product for all clients that have the same model."""
        x, weight, models = self.x[:: self.each], weight[:: self.each], models[:: self.each]
        found = x.new_empty(*x.shape[:2], weight.shape[1])
        for model in np.unique(models):
            equal = np.flatnonzero(models == model)
            chosen: Any = slice(None) if len(equal) == len(models) else torch.as_tensor(equal, device=found.device)
            z = product(x[chosen].flatten(0, 1), weight[equal[0]])
            found[chosen] = z.view(-1, *found.shape[1:])
        return self._for_each(found)

    def _for_each(self, found: Tensor) -> Tensor:
        """Repeat what was computed once for equal consecutive rows."""
        return found if self.each == 1 else found.repeat_interleave(self.each, 0)

    def forward(self, tensors: dict[str, Tensor], first: int, step: int) -> tuple[list[list[Tensor]], Tensor]:
        """See `_OnInputs.forward`."""
        rows, values = self.rows[first:, step], []
        self.chosen, outer = self.index[first:, step, :, None], rows_of(self.outer.flatten(0, 1), rows)
        for one in self.firsts:
            (_, bias, activation), *rest = one.layers
            (name, _, outputs), *others = one.bases
            z = rows_of(outputs.flatten(0, 1), rows).mul_(tensors[name][:, :, None])
            for name, _, outputs in others:
                z.addcmul_(rows_of(outputs.flatten(0, 1), rows), tensors[name][:, :, None])
            if bias:
                z += tensors[bias][:, None]
            z = activate(added(z, outer, tensors[one.a]), activation)
            values.append([self.x, *forward(rest, tensors, z)])
        x = rows_of(self.x.flatten(0, 1), rows) if self.data.reconstructs else self.x
        return values, self.data.targets(self.places[first:, step], x)

    def add(self, into: dict[str, Tensor], chain: int, gradient: Tensor, *, onto: bool) -> None:
        """See `_OnInputs.add`. The loss has no gradient for s and t; only penalties change them."""
        one = self.firsts[chain]
        if not onto:
            for name in (one.a, *(name for name, *_ in one.bases)):
                into[name].zero_()
        into[one.a].scatter_add_(1, self.chosen.expand_as(gradient), gradient)

    def dual(self, gradient: Tensor) -> Tensor:
        """See `_OnInputs.dual`: ``<W, G^T X> = <X W^T, G>``, and X W^T is a sum of known products."""
        found, first = gradient.clone(), len(self.x) - len(gradient)
        given, into = self.layout.tensors(gradient), self.layout.tensors(found)
        for one in self.firsts:
            into[one.a].copy_(products(self.outer[first:], given[one.a].mT))
            for name, _, outputs in one.bases:
                into[name].copy_((outputs[first:] * given[one.a]).flatten(1).double().sum(1, keepdim=True))
        return found

    def named(self, names: frozenset[str]) -> Columns:
        """See `_OnInputs.named`."""
        first = [one for one in self.firsts if one.layers[0].weight in names]
        made = {name for one in first for name in (one.a, *(name for name, *_ in one.bases))}
        columns = {name: part for name, _, part in self.layout.slices()}
        return Columns.of(columns, (names & columns.keys()) | made)

    def row(self, rows: Tensor) -> Tensor:
        """See `_OnInputs.row`."""
        tensors = self.layout.tensors(rows)
        found = rows.new_empty(len(rows), self.firsts[-1].whole.stop)
        for one in self.firsts:
            chain, base = found[:, one.whole], one.bases[0][1]
            weight = chain[:, : base[0].numel()].view(base.shape)
            for own, *factors in zip(weight, tensors[one.a].mT, self.x.mT, strict=True):
                own.copy_(linear(*factors))
            for name, base, _ in one.bases:
                if (s := tensors[name]).any():
                    weight += s[:, :, None] * base
            chain[:, base[0].numel() :] = rows[:, one.rest]
        return found


def train_chunk(worker: Worker, task: Task) -> Trained:
    """Train the clients of one chunk together. Equal to `loop.train_chunk` up to rounding.

    Clients are ordered by their number of steps, ascending, so those that still train in a step are the last ones.
    """
    training, device = task.training, worker.device
    task, pairs = task.paired(device)
    index, offset = worker.schedule(task)  # [C, steps, rows], -1 = no sample
    samples = int(kinds(worker, task.sizes, training, task.towards, paired=pairs is not None).max())
    inputs: _OnInputs | _OnData = (
        _OnData(worker, task, pairs, index, offset, samples)
        if samples
        else _OnInputs(worker, task, pairs, index, offset)
    )
    start, anchors, layout = inputs.start, inputs.anchors, inputs.layout
    rows = inputs.begun.clone() if pairs is None else inputs.begun
    gradient = torch.empty_like(start, memory_format=torch.contiguous_format)
    points = rows if pairs is None else rows.clone()  # where gradients are evaluated
    rate, weight = task.rates(device), worker.batch_weights(task, index)
    optimizer = make_optimizer(task, rows, rate)
    decay = layout.decay(training.weight_decay, device)
    centres = None if task.envelope is None else Centres(task.envelope, start)
    last = torch.zeros_like(gradient) if task.wants_gradient else None
    curves = torch.full(index.shape[:2], float("nan"), device=device) if "curves" in task.needs else None
    # Plain SGD needs no stored gradient: its products are added to the weights directly.
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
        outputs, given = output(values), values[-1][-2]  # the latter: inputs of the head, the model's last layer
        if curves is not None:
            losses = worker.sample_losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(y), -1, 1)
            curves[first:, step] = (losses * share).sum((1, 2))
        back = worker.loss_gradients(outputs, y) * share
        if moments is not None:
            moments.add(first, given, y, weight[first:, step] > 0)
        pull = features.gradients(given, y) * share if features is not None and features.pulls else None
        ends = last is not None and step + 1 in task.steps
        if ends or not at_once:
            _backward(inputs, back, values, tensors, into, pull, onto=False)
        if last is not None and ends:
            last[first:] = gradient[first:]
            fixed.clear(last)
        if at_once:
            down = -rate[first:, :, None]
            _backward(inputs, back * down, values, tensors, tensors, None if pull is None else pull * down, onto=True)
        else:
            if pairs is not None:
                pairs.judge(gradient[first:], rows[first:], step, first, inputs.dual)
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
        return Trained.of_pairs(pairs, inputs.row(rows), task.rows(device), curves, len(rows) // 2)
    last = None if last is None else inputs.row(last)
    memory, delta, own = optimizer.memory if task.memory else {}, inputs.row(rows.sub_(start)), None
    if centres is not None:
        own, delta = task.rows(device) + delta, inputs.row(centres.rows.sub_(start))
    return Trained(delta, curves, last, memory, moments, own)


def _backward(
    inputs: _OnInputs | _OnData, back: Tensor, values: list[list[Tensor]], tensors: dict[str, Tensor],
    into: dict[str, Tensor], pull: Tensor | None, *, onto: bool,
) -> None:  # fmt: skip
    """Write the gradients, or add them if `onto`; `back` is the gradient of the model's output.

    `pull` is added to the gradient of the last layer's inputs.
    """
    for chain, (layers, own) in enumerate(zip(inputs.chains, values, strict=True)):
        further = back
        pulled = pull if chain == len(values) - 1 else None
        for number in reversed(range(len(layers))):
            layer = layers[number]
            gradient = through(further, own[number + 1], layer.activation)
            # Before the weight changes: gradients may be added to the weights themselves.
            further = products(gradient, tensors[layer.weight].mT) if number else gradient
            if pulled is not None and number == len(layers) - 1:
                further = further + pulled
            if layer.bias:
                (Tensor.add_ if onto else Tensor.copy_)(into[layer.bias], gradient.sum(1))
            if number:
                into[layer.weight].baddbmm_(gradient.mT, own[number], beta=int(onto))
            else:
                inputs.add(into, chain, gradient, onto=onto)
