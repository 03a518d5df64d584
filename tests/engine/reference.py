"""The slow, obvious training that every form of the engine must equal: one client, one batch, one module at a time.

The tolerance of `agree`. float32 rounds to 6e-8; a gradient is a sum of up to some hundred products, and some ten steps
add up to an update. So updates, gradients and losses agree to 1e-4 of the largest number among them; measured are 2e-5
with batch normalisation, which divides by a deviation, and 7e-6 elsewhere. Adam divides a gradient by its own size,
which makes an error of a gradient near zero as large as a step: its learning rate is small in these tests, and errors
are 4e-6.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from clusterfl import streams
from clusterfl.data.augment import Draws
from clusterfl.data.prepared import Prepared
from clusterfl.engine import batches
from clusterfl.engine.engine import Engine
from clusterfl.engine.parameter_layout import Layout

ROUND = 4
SHARE = 1e-4


class Outcome(NamedTuple):
    """What training leaves, for m clients."""

    updates: Tensor  # [m, P]
    curves: np.ndarray  # [m, steps] loss of each mini-batch, NaN beyond a client's own steps
    last_gradient: Tensor  # [m, p]


def module_of(used: Engine, row: Tensor, dtype: torch.dtype) -> nn.Module:
    """Return the engine's model with the values of ``row [P]``."""
    module = used.factory().to(dtype)
    with torch.no_grad():
        for name, values in Layout.of(module).tensors(row).items():
            _tensors(module)[name].copy_(values)
    return module


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _sample_loss(output: Tensor, y: Tensor, classes: int) -> Tensor:
    if classes:
        return -torch.log_softmax(output, 1)[torch.arange(len(y)), y]
    return (output.flatten(1) - y.reshape(len(y), -1)).square().mean(1)


def train(
    used: Engine, theta: Tensor, start, clients, round_, participations, dtype=torch.float64, shares=None
) -> Outcome:
    """Train `clients`, client i from ``theta[start[i]]``, with an engine's settings and data.

    `shares` are arrays [n], one for each training: how much of each of the client's samples' losses counts.
    """
    training, layout = used.training, used.layout
    plain = training.average == "gradients"  # the server steps: a client's optimiser, penalty and decay are its own
    split = used.federation.splits["train"]
    sizes, ids = split.sizes[clients], used.federation.ids[clients]
    index = batches.schedule(used.seed, ids, sizes, round_, training)
    updates, curves, last = [], np.full(index.shape[:2], np.nan), []
    for i, client in enumerate(clients):
        rate = training.learning_rate
        if training.schedule != "constant":
            rate *= training.decay ** (participations[i] if training.schedule == "participation" else round_ - 1)
        module = module_of(used, theta[start[i]], dtype).train()
        penalties = getattr(module, "weight_decays", {})
        named = dict(module.named_parameters())
        first = {name: p.detach().clone() for name, p in named.items()}
        if training.optimizer == "adam" and not plain:
            optimizer = torch.optim.Adam(named.values(), lr=rate, foreach=False)
        else:
            optimizer = torch.optim.SGD(named.values(), lr=rate, momentum=training.momentum, foreach=False)
        with streams.torch_stream(used.seed, "module", int(ids[i]), round_):
            for step, batch in enumerate(index[i]):
                own = torch.as_tensor(batch[batch >= 0])
                if not len(own):
                    break
                x, y = _batch(used, own, int(split.offsets[client]), int(ids[i]), round_, step, dtype)
                optimizer.zero_grad()
                losses = _sample_loss(module(x), y, used.federation.classes)
                weighted = losses if shares is None else losses * torch.as_tensor(shares[i])[own]
                loss = weighted.sum() / len(own)
                loss.backward()
                curves[i, step] = loss.item()
                gradient = _gradient(named.values())
                with torch.no_grad():
                    for name, p in named.items():
                        if p.grad is None:
                            continue
                        decay = penalties.get(name, 0.0) + (0.0 if plain else training.weight_decay)
                        p.grad += decay * p + training.proximal * (p - first[name])
                penalised = _gradient(named.values())
                optimizer.step()
        row = torch.empty(layout.columns, dtype=dtype)
        for name, values in layout.tensors(row).items():
            values.copy_(_tensors(module)[name].detach())
        updates.append(row - theta[start[i]])
        if plain:  # what is averaged is the gradient, at the model that all got
            updates[-1][: layout.parameter_columns] = -penalised
        last.append(gradient)
    return Outcome(torch.stack(updates), curves, torch.stack(last))


def _gradient(parameters) -> Tensor:
    """Return a copy of the parameters' gradients in a row; zeros of what is frozen or isn't used."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])


def _batch(used: Engine, own: Tensor, offset: int, client: int, round_: int, step: int, dtype) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a step; an augmentation draws from the stream of client, round, step and sample."""
    data = Prepared(used.federation.splits["train"])
    draws = None
    if data.augmentation is not None:
        draws = Draws(used.seed, (*(torch.full_like(own, n) for n in (client, round_, step)), own))
    x = data.take(own + offset, draws)
    y = x if data.reconstructs else torch.as_tensor(data.y[own + offset])
    return tuple(part.to(dtype) if part.is_floating_point() else part for part in (x, y))


def scores(used: Engine, theta: Tensor, clients, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return correct answers (NaN without classes) and mean loss of each model on each client's data, [m, K]."""
    data, part = Prepared(used.federation.splits[split]), used.federation.splits[split]
    correct, loss = np.full((2, len(clients), len(theta)), np.nan)
    for i, client in enumerate(clients):
        places = torch.arange(int(part.offsets[client]), int(part.offsets[client + 1]))
        x = data.take(places)
        y = x if data.reconstructs else data.y[places]
        x = x.double() if x.is_floating_point() else x
        for k, row in enumerate(theta):
            with torch.no_grad():
                output = module_of(used, row, torch.float64).eval()(x)
            loss[i, k] = _sample_loss(output, y, used.federation.classes).mean().item()
            if used.federation.classes:
                correct[i, k] = (output.argmax(1) == y).sum().item()
    return correct, loss


def trained(used, needs=("updates", "curves", "last_gradient"), clients=None, starts=2):
    clients = np.arange(used.federation.clients) if clients is None else np.asarray(clients)
    theta = torch.stack([used.initial(k) for k in range(starts)])
    return used.train(theta, clients % starts, clients, ROUND, needs=frozenset(needs), participations=clients)


def agree(used, update=None, least=1e-4, shares=None):
    """Compare an engine's training with the reference, where at least `least` was learnt."""
    update = trained(used) if update is None else update
    theta = torch.stack([used.initial(k) for k in range(int(update.start.max()) + 1)])
    plain = train(used, theta, update.start, update.clients, ROUND, update.clients, shares=shares)
    for found, expected in (
        (update.rows[:], plain.updates),
        (update.last_gradient[:], plain.last_gradient),
        (torch.as_tensor(update.curves), torch.as_tensor(plain.curves)),
    ):
        largest = float(expected.nan_to_num().abs().max())
        assert largest >= least
        # An update is a difference of models, rounded as they are: to 6e-8 of their numbers in each step.
        floor = 1e-6 * max(1, float(theta.abs().max()))
        assert_close(found.double(), expected, rtol=SHARE, atol=SHARE * largest + floor, equal_nan=True)
