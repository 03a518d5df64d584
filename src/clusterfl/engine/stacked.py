"""Training of several clients at once, with their parameters stacked in one tensor and gradients by `torch.func`."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from . import batches
from .envelope import Centres
from .features import Features, Head, watched
from .optimizers import make_optimizer, regularise
from .personal import Columns
from .task import Task, Trained
from .worker import Worker


def obstacle(worker: Worker) -> str | None:
    """Return why the worker's model can't be trained by this backend, or None.

    The stacked gradients of two clients, on two samples and a third of weight 0, are compared with the plain gradient.
    Dropout fails in vmap; a model that mixes the samples of a batch is found by the third sample.
    """
    module, layout = worker.module, worker.layout
    if layout.buffers:
        return f"its buffer '{layout.buffers[0][0]}' may change in training"
    data = worker.data["train"]
    rows = torch.tensor([0, len(data) - 1, len(data) // 2], device=worker.device)
    x = data.take(rows)
    y = data.targets(rows, x)
    row = layout.flatten(module)
    weight = torch.tensor([0.5, 0.5, 0.0], device=worker.device)
    pair = [v[None].expand(2, *v.shape).contiguous() for v in (row, x, y, weight)]
    module.train()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # without a batching rule, vmap would compute one client after another
            stacked, _ = gradients(worker, *pair)
        leaves = {name: values.clone().requires_grad_() for name, values in layout.tensors(row).items()}
        loss = worker.sample_losses(functional_call(module, leaves, (x[:2],)), y[:2]).mean()
        plain = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    except (RuntimeError, UserWarning, ValueError) as error:
        return f"torch.func can't differentiate it: {str(error).splitlines()[0]}"
    finally:
        module.eval()
    if changed := layout.changed(module):
        return f"its buffer '{changed}' changes, although persistent=False says that it is a constant"
    found = list(zip(leaves.items(), plain, strict=True))
    unused = [name for (name, _), values in found if values is None and name not in layout.frozen]
    worker.unused = frozenset(unused)  # they have no gradient, so PyTorch's optimisers wouldn't change them
    given = [torch.zeros_like(leaf) if values is None else values for (_, leaf), values in found]
    gradient = torch.cat([one.reshape(-1) for one in given])
    if not torch.allclose(stacked[1], gradient, rtol=1e-3, atol=1e-5):
        return "its gradient differs from the plain one: the samples of a batch influence one another"
    return None


def train_chunk(worker: Worker, task: Task) -> Trained:
    """Train the clients of one chunk together. Equal to `loop.train_chunk` up to rounding.

    Clients are ordered by their number of steps, ascending, so those that still train in a step are the last ones.
    """
    training, device, own = task.training, worker.device, len(task)
    if device.type == "cpu":
        # Kernels compute a tensor's last numbers differently, so copies of the last client are put there.
        copies = -(-batches.VECTOR // int(batches.batch_rows(task.sizes, training).max()))
        task = task.of([*range(own), *[-1] * copies])
    task, pairs = task.paired(device)
    start = task.rows(device)
    theta = start.clone(memory_format=torch.contiguous_format) if pairs is None else pairs.begin(start, pairs.second)
    anchors = task.anchors(device) if training.proximal else start
    optimizer = make_optimizer(task, theta, task.rates(device))
    index, offset = worker.schedule(task)  # [C, steps, rows], -1 = no sample
    feed = worker.feeder(index, offset, task.ids, task.round, task.repeats)
    weight = worker.batch_weights(task, index)
    curves = torch.full(index.shape[:2], float("nan"), device=device)
    last = torch.zeros_like(theta) if task.wants_gradient else None
    decay = worker.layout.decay(training.weight_decay, device)
    tensors, moments = {name: part for name, _, part in worker.layout.slices()}, worker.moving(task)
    fixed, free = (Columns.of(tensors, names) for names in (task.fixed, task.free))
    centres = None if task.envelope is None else Centres(task.envelope, start)
    worker.module.train()
    for step, first in enumerate(task.tails()):
        x, y = feed(first, step)
        share = weight[first:, step]
        if task.features is None:
            points = theta[first:] if pairs is None else pairs.points(theta[first:], first)
            gradient, loss = gradients(worker, points, x, y, share)
        else:
            gradient, loss, features = pulled_gradients(worker, task.features, theta[first:], x, y, share)
            if moments is not None:
                moments.add(first, features, y, share > 0)
        curves[first:, step] = loss
        if last is not None:
            last[first:] = gradient
            fixed.clear(last)
        if pairs is not None:
            pairs.judge(gradient, theta[first:], step, first)
        regularise(gradient, theta[first:], anchors[first:], decay, training, free)
        if centres is not None:
            centres.pull(gradient, theta[first:], centres.rows[first:])
        fixed.clear(gradient)
        optimizer.step(theta, gradient, first)
        if centres is not None:
            centres.follow(theta[first:], step, first)
        if pairs is not None:
            pairs.follow(theta[first:], step, first)
    worker.module.eval()
    memory = {name: rows[:own] for name, rows in optimizer.memory.items()} if task.memory else {}
    if moments is not None:
        moments = moments.of(slice(own))
    last = None if last is None else last[:own]
    if pairs is not None:
        return Trained.of_pairs(pairs, theta, start, curves, own)
    if centres is None:
        return Trained((theta - start)[:own], curves[:own], last, memory, moments)
    return Trained((centres.rows - start)[:own], curves[:own], last, memory, moments, theta[:own])


def gradients(worker: Worker, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's gradient and loss, the weighted sum of its samples' losses.

    Parameters
    ----------
    theta : [C, P]
        The clients' models, which have no buffers.
    x, y, weight : [C, rows, ...]
        Their samples, targets and weights of losses; 0 for padding.

    Returns
    -------
    [C, P] and [C].
    """

    def loss(tensors: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (worker.sample_losses(functional_call(worker.module, tensors, (x,)), y) * weight).sum()

    # With respect to tensors, not rows: the gradient of a slice would be a whole row, mostly zeros.
    found, values = vmap(grad_and_value(loss))(worker.layout.tensors(theta), x, y, weight)
    return torch.cat([part.reshape(len(part), -1) for part in found.values()], dim=1), values


def pulled_gradients(
    worker: Worker, features: Features, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients with the pull of the features, losses without it, and the features, [C, rows, d]."""
    head = worker.head
    assert isinstance(head, Head)

    def loss(tensors: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with watched(worker.module, head) as given:
            own = (worker.sample_losses(functional_call(worker.module, tensors, (x,)), y) * weight).sum()
        besides = (features.losses(given[0], y) * weight).sum() if features.pulls else 0.0
        return own + besides, (own, given[0])

    found, (_, (own, given)) = vmap(grad_and_value(loss, has_aux=True))(worker.layout.tensors(theta), x, y, weight)
    return torch.cat([part.reshape(len(part), -1) for part in found.values()], dim=1), own, given
