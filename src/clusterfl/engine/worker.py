"""What each process of the engine has: module, data and seed; and how it scores models."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import streams
from ..data.augment import Draws
from ..data.federation import Federation
from ..data.prepared import Prepared, on_device, rows_of
from ..storage.row_store import Readable
from . import batches, several
from .chain import chains, forwards, output
from .features import Head, Moments, find, watched
from .modules import Factory, no_tensor
from .parameter_layout import Layout
from .personal import Personal
from .products import linear, tuned
from .task import Ids, Scores, Task

Feeder = Callable[[int, int], tuple[Tensor, Tensor]]
NEWCOMER = "newcomer."  # prefix of the names of the newcomers' splits
# Numbers in the inputs of one forward pass in scoring, so that inputs and activations stay in the cache:
LINEAR_NUMBERS, OTHER_NUMBERS = 1 << 18, 1 << 17  # for chains of linear layers, and for other models
FORWARD_ROWS = 64, 16384  # the fewest and the most samples of such a pass


class Worker:
    """What one process needs to train and score: module, data and seed. Forked processes share it without copying."""

    def __init__(
        self, factory: Factory, federation: Federation, newcomers: Federation | None, seed: int, device: torch.device
    ):
        self.seed, self.device, self.federation = seed, device, federation
        self.splits = dict(federation.splits)
        with streams.torch_stream(seed, "module"):
            self.module = factory().to(device)
        self.module.eval()
        self.layout = Layout.of(self.module)
        self.data: dict[str, Prepared] = on_device(federation.splits, device)
        if newcomers is not None:
            self.splits |= {NEWCOMER + name: split for name, split in newcomers.splits.items()}
            self.data |= {NEWCOMER + name: data for name, data in on_device(newcomers.splits, device).items()}
        self.shape = self.data["train"].shape
        found = chains(self.module, self.shape)
        # The chains of linear layers whose sum is the model; or an empty list, and why there are none.
        self.chains, self.unchained = ([], found) if isinstance(found, str) else (found, "")
        self.tuned = self.module
        self.unused: frozenset[str] = frozenset()  # parameters without a gradient, found by `stacked.obstacle`
        self.alone = False  # whether each client is computed alone, see `bits`
        self.several = False  # whether models are scored together on the same samples, see `several`
        self._copies: list[nn.Module] = []

    def enter(self, federation: Federation) -> None:
        """Switch to the same clients' data in another phase."""
        self.federation = federation
        self.splits |= federation.splits
        self.data |= on_device(federation.splits, self.device)

    def tune(self) -> None:
        """Set up the module's fastest variant for this device; the module must be able to take a sample."""
        if self.device.type == "cpu":
            self.tuned = tuned(self.module, self.data["train"].take(torch.zeros(1, dtype=torch.int64)))
            self.several = any(several.possible(*parts) for parts in [self.sample(batches.VECTOR)] if parts)

    @cached_property
    def head(self) -> Head | str:
        """The module's last layer, whose inputs are the features; or why there is none."""
        if not self.federation.classes:
            return "it predicts numbers, not classes"
        data = self.data["train"]
        return find(self.module, data.take(torch.arange(2, device=self.device) % len(data)))

    def schedule(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return the samples of each step, [C, steps, rows], and the position of each client's first sample, [C]."""
        many = task.steps // task.repeats
        index = batches.schedule(self.seed, task.ids, task.sizes, task.round, task.training, many)
        index = index if task.repeats == 1 else index.repeat(task.repeats, axis=1)
        offset = self.splits["train"].offsets[task.clients]
        return torch.as_tensor(index, device=self.device), torch.as_tensor(offset, device=self.device)

    def feeder(self, index: Tensor, offset: Tensor, ids: Ids, round_: int, repeats: int = 1) -> Feeder:
        """Return a function that gives inputs and targets of a step, ``(first, step) -> x, y [C - first, rows, ...]``.

        Parameters
        ----------
        index : [C, steps, rows]
            Samples of each step, as positions among the client's own samples; -1: padding, filled with any sample.
        offset : [C]
            Position of each client's first training sample.
        ids : [C]
            The clients' ids.
        round_
            A key of an augmentation's draws, together with client, step and sample.
        repeats
            Steps on each mini-batch, all with the same draws of an augmentation.
        """
        data, own = self.data["train"], index.clamp(min=0)
        places = own + offset[:, None, None]
        if data.augmentation is None:
            ready, at = data.ready(places)

            def plain(first: int, step: int) -> tuple[Tensor, Tensor]:
                x = rows_of(ready, at[first:, step])
                return x, data.targets(places[first:, step], x)

            return plain
        clients = torch.as_tensor(ids, device=self.device)[:, None].expand(-1, index.shape[2])

        def augmented(first: int, step: int) -> tuple[Tensor, Tensor]:
            client = clients[first:].reshape(-1)
            when = [torch.full_like(client, n) for n in (round_, step // repeats)]
            draws = Draws(self.seed, (client, *when, own[first:, step].reshape(-1)))
            x = data.take(places[first:, step], draws)
            return x, data.targets(places[first:, step], x)

        return augmented

    def shaped(self, x: Tensor) -> Tensor:
        """Return inputs [rows, ...] in the memory layout for the tuned module: channels last for images on a CPU."""
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and self.device.type == "cpu" else x

    def batch_weights(self, task: Task, index: Tensor) -> Tensor:
        """Return the weight of each sample in its batch's loss, [C, steps, rows]; 0 for padding."""
        present = index >= 0
        found, shares = present / present.sum(2, keepdim=True).clamp(min=1), self.shares(task, index)
        return found if shares is None else found * shares

    def shares(self, task: Task, index: Tensor) -> Tensor | None:
        """Return the task's weights of samples' losses, [C, steps, rows], or None; values for padding are arbitrary."""
        if task.shares is None or task.begins is None:
            return None
        places = index.clamp(min=0).cpu() + torch.as_tensor(task.begins)[:, None, None]
        return task.shares[places].to(self.device)

    def sample_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return each sample's loss, [n]: cross-entropy, or the mean squared error over the numbers to predict.

        Raises
        ------
        UserError
            If `output` isn't a tensor, as with networks that return more in training mode.
        """
        if not isinstance(output, Tensor):
            raise no_tensor(output, f"the model {type(self.module).__name__}, in training mode, returns")
        if self.federation.classes:
            return nn.functional.cross_entropy(output, y, reduction="none")
        return (output.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)

    def loss_gradients(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of `sample_losses` with respect to ``output [C, rows, outputs]``."""
        if not self.federation.classes:
            return (output - y.reshape(output.shape)) * (2 / output.shape[2])
        # A softmax in single operations: PyTorch's own takes 4.6 times as long for 128 x 10 rows of 10 classes.
        found = (output - output.amax(2, keepdim=True)).exp_()
        found /= found.sum(2, keepdim=True)
        return found.scatter_add_(2, y[:, :, None], -torch.ones_like(output[:, :, :1]))

    def forward(self, theta: Tensor, split: str, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return losses and correctness (0 or 1; NaN for regression) of models ``theta [k, P]``, [k, rows] in float64.

        Samples are processed in batches padded to a multiple of 32: smaller products have other bits, and so have the
        last numbers of a tensor that fill no vector.
        """
        models = self._models(theta.to(self.device))
        losses = torch.empty(len(models), len(rows), dtype=torch.float64, device=self.device)
        correct = torch.full_like(losses, float("nan"))
        for here, x, y in self._passes(split, rows):
            for k, padded in enumerate(self._each(models, x)):
                made = padded[: len(y)]
                losses[k, here] = self.sample_losses(made, y).double()
                if self.federation.classes:
                    correct[k, here] = (made.argmax(-1) == y).double()
        return losses.cpu(), correct.cpu()

    def _passes(self, split: str, rows: NDArray[np.int64]) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the slices of `rows` for each forward pass, with their padded inputs and their targets."""
        data = self.data[split]
        take = data.view if self.chains else data.take  # another module may write into its inputs
        owner = np.searchsorted(self.splits[split].offsets, rows, "right") if self.alone else np.zeros(len(rows), int)
        for here in self._pieces(owner):
            part = torch.as_tensor(rows[here], device=self.device)
            pad = -len(part) % batches.VECTOR
            x = take(torch.cat([part, part[:1].expand(pad)]) if pad else part)
            y = data.targets(part, x[: len(part)])
            yield here, self.shaped(x), y

    def losses_of_samples(self, theta: Readable, models: Ids, split: str, clients: Ids) -> NDArray[np.float64]:
        """Return the losses of the given `models` [k] of ``theta [K, P]`` on each sample of `clients`, [N, k]."""
        rows, _ = self.splits[split].of(clients)
        with torch.inference_mode():
            return self.forward(theta[torch.as_tensor(models)], split, rows)[0].T.contiguous().numpy()

    def blended(self, theta: Tensor, shares: NDArray[np.float64], split: str, rows: Ids) -> tuple[Tensor, Tensor]:
        """Return losses and correctness of mixtures of the predictions of ``theta [K, P]``, each [rows], in float64.

        A sample's prediction is the mean of the models' class probabilities, or of the numbers that they predict,
        weighted by its row of ``shares [rows, K]``, which adds up to 1. The loss is minus the logarithm of the class's
        probability, or the squared error. Samples are processed as in `forward`.
        """
        models, classes = self._models(theta.to(self.device)), self.federation.classes
        losses = torch.empty(len(rows), dtype=torch.float64, device=self.device)
        correct = torch.full_like(losses, float("nan"))
        for here, x, y in self._passes(split, rows):
            own = torch.as_tensor(shares[here], device=self.device)
            own = torch.cat([own, own[:1].expand(len(x) - len(own), -1)])  # padded as the inputs are
            target = torch.cat([y, y[:1].expand(len(x) - len(y), *y.shape[1:])])
            mixed: Any = 0.0
            logs = []
            for k, made in enumerate(self._each(models, x)):
                predicted = made.double()
                if classes:
                    predicted = predicted.log_softmax(-1)
                    logs.append(own[:, k].log() + predicted.gather(1, target[:, None]).squeeze(1))
                    predicted = predicted.exp()
                mixed = mixed + own[:, k].view(-1, *[1] * (predicted.ndim - 1)) * predicted
            if classes:
                losses[here] = -torch.stack(logs).logsumexp(0)[: len(y)]
                correct[here] = (mixed.argmax(-1)[: len(y)] == y).double()
            else:
                losses[here] = self.sample_losses(mixed, target)[: len(y)]
        return losses.cpu(), correct.cpu()

    @torch.inference_mode()
    def features(self, row: Tensor, split: str, rows: NDArray[np.int64]) -> Tensor:
        """Return the features of the given samples under the model ``row [P]``, [rows, d] in float64."""
        assert isinstance(self.head, Head)
        found = torch.empty(len(rows), self.head.features, dtype=torch.float64, device=self.device)
        for here, features, _, _ in self._watched(row, split, rows):
            found[here] = features
        return found

    def _watched(
        self, row: Tensor, split: str, rows: NDArray[np.int64]
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yield the slices of `rows` for each forward pass, with features in float64, outputs and targets."""
        assert isinstance(self.head, Head)
        row = row.to(self.device).clone()  # a copy begins at an aligned address
        tensors, module = self.layout.tensors(row), not self.chains
        (model,) = self._models(row[None])
        looking: AbstractContextManager[list[Tensor]] = (
            watched(self._copies[0], self.head) if module else nullcontext([])
        )
        with looking as given:
            for here, x, y in self._passes(split, rows):
                if module:
                    made = model(x)
                else:
                    layers = forwards(self.chains, tensors, x.flatten(1), linear)
                    given, made = [layers[-1][-2]], output(layers)
                yield here, given[0][: len(y)].double(), made[: len(y)], y

    def features_of(self, theta: Readable, split: str, clients: Ids) -> Tensor:
        """Return `features` of all samples of `clients` under the model ``theta [1, P]``, client by client, [N, d]."""
        return self.features(theta[0], split, self.splits[split].of(clients)[0]).cpu()

    def moving(self, task: Task) -> Moments | None:
        """Return zeros for the sums of features during the task's training, or None if they aren't gathered."""
        if task.features is None or task.features.gather != "moving":
            return None
        assert isinstance(self.head, Head)
        return Moments.none(len(task), self.federation.classes, self.head.features, self.device)

    def moments(self, row: Tensor, client: int) -> Moments:
        """Return the `Moments` of a client's training samples' features under the model ``row [P]``."""
        assert isinstance(self.head, Head)
        rows, _ = self.splits["train"].of(np.array([client]))
        features, y = self.features(row, "train", rows)[None], self._classes("train", rows)[None]
        found = Moments.none(1, self.federation.classes, self.head.features, self.device)
        found.add(0, features, y, torch.ones_like(y))
        found.squares[0] = features.square().sum()
        return found

    def _classes(self, split: str, rows: NDArray[np.int64]) -> Tensor:
        """Return the classes of samples, [rows]."""
        return self.data[split].y[torch.as_tensor(rows, device=self.device)].long()

    def moments_of(self, theta: Readable, model: int, client: int) -> Moments:
        """Return the `moments` under one of the models ``theta [K, P]``."""
        return self.moments(theta[model], client)

    @torch.inference_mode()
    def nearest(self, row: Tensor, split: str, rows: NDArray[np.int64], centres: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of the model ``row [P]``, and whether the nearest of ``centres [classes, d]`` is correct.

        Both are [rows] in float64. Correct (1, else 0) is the centre of the sample's class; a class whose centre is NaN
        is never predicted.
        """
        centres = centres.to(self.device).double()
        classes = torch.nonzero(~centres.isnan().any(1)).flatten()
        losses = torch.empty(len(rows), dtype=torch.float64, device=self.device)
        correct = torch.empty_like(losses)
        for here, features, made, y in self._watched(row, split, rows):
            squares = [(features - centres[k]).square().sum(1) for k in classes.tolist()]
            losses[here] = self.sample_losses(made, y).double()
            correct[here] = (classes[torch.stack(squares).argmin(0)] == y).double()
        return losses.cpu(), correct.cpu()

    def sample(self, rows: int) -> tuple[nn.Module, Tensor] | tuple[()]:
        """Return the module and this many training samples, repeated if there are fewer; () for linear chains."""
        if self.chains:
            return ()
        data = self.data["train"]
        return self.tuned, self.shaped(data.take(torch.arange(rows, device=self.device) % len(data)))

    def _pieces(self, owner: Ids) -> Iterator[slice]:
        """Yield slices of at most `_most` rows of one owner each; ``owner [rows]`` has equal values in runs."""
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(owner)]):
            for first in range(start, stop, self._most):
                yield slice(first, min(first + self._most, stop))

    @cached_property
    def _most(self) -> int:
        """The most samples of one forward pass."""
        numbers = LINEAR_NUMBERS if self.chains else OTHER_NUMBERS
        return int(np.clip(numbers // math.prod(self.shape) // batches.VECTOR * batches.VECTOR, *FORWARD_ROWS))

    def _models(self, theta: Tensor) -> list[Callable[[Tensor], Tensor]]:
        """Return the models of ``theta [k, P]`` as functions of inputs [rows, ...]."""
        if self.chains:
            # A copy begins at an aligned address, a row of a matrix needn't.
            alone = [row.clone() for row in theta] if self.alone else theta
            return [partial(self._output, self.layout.tensors(row)) for row in alone]
        self._copies += [copy.deepcopy(self.tuned) for _ in range(len(theta) - len(self._copies))]
        for module, row in zip(self._copies, theta, strict=False):
            self.layout.load(module, row)
        return list(self._copies[: len(theta)])

    def _each(self, models: list[Callable[[Tensor], Tensor]], x: Tensor) -> Iterator[Tensor]:
        """Yield the output of each of the models, which `_models` returned, for the samples ``x``."""
        if self.several and not self.alone:
            return several.outputs(self._copies[: len(models)], x)
        return (model(x) for model in models)

    def _output(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return output(forwards(self.chains, tensors, x.flatten(1), linear))

    def score(self, theta: Tensor, split: str, clients: Ids, nearest: Tensor | None = None) -> Scores:
        """Return the scores of models ``theta [k, P]`` on each of `clients`, [m, k]; NaN for clients without samples.

        With `nearest`, class centres [classes, d], the class whose centre is nearest to the features is predicted.
        """
        rows, owner = self.splits[split].of(clients)
        if not len(rows):
            return Scores.none(self.splits[split].sizes[clients], len(theta))
        if nearest is None:
            with torch.inference_mode():
                losses, correct = self.forward(theta, split, rows)
        else:
            each = (self.nearest(row, split, rows, nearest) for row in theta)
            losses, correct = (torch.stack(found) for found in zip(*each, strict=True))
        return self._summed(losses, correct, owner, self.splits[split].sizes[clients])

    def score_own(
        self, theta: Readable, labels: Ids, split: str, clients: Ids, personal: Personal | None = None
    ) -> Scores:  # fmt: skip
        """Return the scores of each client's own model, ``theta[labels[i]]`` for ``clients[i]``, arrays [m, 1].

        Equal labels must be consecutive. In the columns of `personal` each client has its own values. Because gathering
        samples and computing losses takes longer than the products when many models see few samples each, this is done
        for several models at once.
        """
        rows, owner = self.splits[split].of(clients)
        sizes = self.splits[split].sizes[clients]
        if not len(rows):
            return Scores.none(sizes, 1)
        kinds, own = np.unique(labels, return_inverse=True) if personal is None else (labels, np.arange(len(labels)))
        model = own[owner]
        found: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode():
            given = theta[torch.as_tensor(kinds)]
            given = given if personal is None else personal.into(given, clients)
            models = self._models(given.to(self.device))
            waiting: list[slice] = []
            for piece in self._pieces(owner if self.alone else model):
                if waiting and piece.stop - waiting[0].start > self._most:
                    found.append(self._apart(models, model, split, rows, waiting))
                    waiting = []
                waiting.append(piece)
            found.append(self._apart(models, model, split, rows, waiting))
        losses, correct = (torch.cat(parts)[None] for parts in zip(*found, strict=True))
        return self._summed(losses, correct, owner, sizes)

    def _apart(
        self, models: list[Callable[[Tensor], Tensor]], model: Ids, split: str, rows: Ids, pieces: list[slice]
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return losses and correctness of consecutive pieces of rows, each [n] in float64, under each row's model."""
        starts = np.array([piece.start for piece in pieces])
        sizes = np.array([piece.stop - piece.start for piece in pieces])
        wide = sizes + -sizes % batches.VECTOR
        kept = np.arange(sizes.sum()) + np.repeat(np.cumsum(wide - sizes) - (wide - sizes), sizes)
        padded = np.repeat(rows[starts], wide)
        padded[kept] = rows[pieces[0].start : pieces[-1].stop]
        places, data = torch.as_tensor(padded, device=self.device), self.data[split]
        x = self.shaped(data.take(places))
        made = torch.cat([models[k](part) for k, part in zip(model[starts], x.split(wide.tolist()), strict=True)])
        y = data.targets(places, x)
        losses = self.sample_losses(made, y).double()
        correct = (made.argmax(-1) == y).double() if self.federation.classes else torch.full_like(losses, torch.nan)
        return losses.cpu()[kept], correct.cpu()[kept]

    def score_blends(self, theta: Readable, shares: NDArray[np.float64], split: str, clients: Ids) -> Scores:
        """Return the scores of each client's mixture of ``theta [K, P]``, weighted by ``shares [m, K]``, [m, 1]."""
        rows, owner = self.splits[split].of(clients)
        if not len(rows):
            return Scores.none(self.splits[split].sizes[clients], 1)
        with torch.inference_mode():
            losses, correct = self.blended(theta[torch.arange(len(theta))], shares[owner], split, rows)
        return self._summed(losses[None], correct[None], owner, self.splits[split].sizes[clients])

    def _summed(self, losses: Tensor, correct: Tensor, owner: Ids, n: Ids) -> Scores:
        """Return the scores [m, k] of k models from those of each sample, [k, rows]; ``n [m]`` are clients' samples."""
        found = Scores.none(n, len(losses))
        for k in range(len(losses)):
            # bincount adds one after another, so a client's sum doesn't depend on its neighbours.
            hits = np.bincount(owner, weights=correct[k].numpy(), minlength=len(n))
            total = np.bincount(owner, weights=losses[k].numpy(), minlength=len(n))
            with np.errstate(invalid="ignore"):
                found.correct[:, k], found.loss[:, k] = np.where(n > 0, hits, np.nan), total / n
        return found

    def score_models(
        self, theta: Readable, models: Ids, split: str, clients: Ids, personal: Personal | None = None,
        nearest: Tensor | None = None,
    ) -> Scores:  # fmt: skip
        """Return the scores of the given `models` [k] of ``theta [K, P]`` on each of `clients`, [m, k].

        With `personal`, `clients` must be one client, whose own columns replace those of every model.
        """
        rows = theta[torch.as_tensor(models)]
        if personal is not None:
            rows = personal.into(rows, np.repeat(clients, len(models)))
        return self.score(rows, split, clients, nearest)
