"""What methods do beside FedAvg, as plain loops: one function for each hook of the engine. Nothing of clusterfl here.

All take a module, the clients' samples and targets, the parameters that they start from, what they do, and an order of
their samples. Where models are averaged the result is the mean, weighed by samples, in the order of the parameters.
Steps are plain descent, whose optimiser holds nothing from client to client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from .loop import Clients, Local, Shuffle, add, batches, load, loss_of, optimizer_of

HEAD = 2  # parameters of the last layer: weight and bias
MODELS, PULL, STEPS, SHARE = 4, 0.1, 5, 0.5


def averaged(
    clients: Clients, parameters: Sequence[Tensor], trained: Callable[[int, Tensor, Tensor], Sequence[Tensor]]
) -> list[Tensor]:  # fmt: skip
    """Return the mean of what ``trained(client, x, y)`` sends for each client, of the shapes of `parameters`."""
    mean = [torch.zeros_like(p) for p in parameters]
    samples = sum(len(y) for _, y in clients)
    for client, (x, y) in enumerate(clients):
        add(mean, trained(client, x, y), len(y) / samples)
    return mean


def kept(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train with a last layer of each client's own, which isn't sent (FedPer)."""
    parameters = list(module.parameters())
    own = [[value.clone() for value in start[-HEAD:]] for _ in clients]
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, start[:-HEAD] + own[client])
        _descend(module, optimizer, x, y, batches(client, len(y), local, shuffle))
        load(own[client], parameters[-HEAD:])
        return parameters[:-HEAD]

    return averaged(clients, parameters[:-HEAD], trained)


def pulled(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train each client's own model, pulled to the one that it is given, and send it (FedSoft)."""
    parameters = list(module.parameters())
    own = [[value.clone() for value in start] for _ in clients]
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, own[client])
        _descend(module, optimizer, x, y, batches(client, len(y), local, shuffle), [(parameters, start, PULL)])
        load(own[client], parameters)
        return parameters

    return averaged(clients, parameters, trained)


def summed(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train two networks at once, whose outputs are added up (FedCAM)."""
    both = nn.ModuleList([module, deepcopy(module)])
    parameters = list(both.parameters())
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, [*start, *start])
        for batch in batches(client, len(y), local, shuffle):
            optimizer.zero_grad()
            loss_of(both[0](x[batch]) + both[1](x[batch]), y[batch]).backward()
            optimizer.step()
        return parameters

    return averaged(clients, parameters, trained)


def shared(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train several models on shares of samples' losses (FedEM); here from one model, equal shares."""
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        share, sent = torch.full((len(y),), 1 / MODELS), [torch.zeros_like(p) for p in parameters]
        for _ in range(MODELS):
            load(parameters, start)
            for batch in batches(client, len(y), local, shuffle):
                optimizer.zero_grad()
                (cross_entropy(module(x[batch]), y[batch], reduction="none") * share[batch]).mean().backward()
                optimizer.step()
            add(sent, parameters, 1 / MODELS)
        return sent

    return averaged(clients, parameters, trained)


def centred(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Take some steps on each mini-batch near a centre, which follows and is what is sent (pFedMe)."""
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, start)
        centre = [value.clone() for value in start]
        for batch in batches(client, len(y), local, shuffle):
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss_of(module(x[batch]), y[batch]).backward()
                _pull(parameters, centre, 1.0)
                optimizer.step()
            with torch.no_grad():
                for one, parameter in zip(centre, parameters, strict=True):
                    one.add_(parameter - one, alpha=local.learning_rate)
        return centre

    return averaged(clients, parameters, trained)


def paired(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train a second model on the same mini-batches, by gradients at a mix of both (APFL, its share fixed)."""
    mixed = deepcopy(module)
    parameters, points = list(module.parameters()), list(mixed.parameters())
    second = [[value.clone() for value in start] for _ in clients]
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, start)
        own = second[client]
        for batch in batches(client, len(y), local, shuffle):
            with torch.no_grad():
                for point, one, other in zip(points, parameters, own, strict=True):
                    point.copy_(SHARE * other + (1 - SHARE) * one)
            optimizer.zero_grad()
            loss_of(module(x[batch]), y[batch]).backward()
            optimizer.step()
            mixed.zero_grad()
            loss_of(mixed(x[batch]), y[batch]).backward()
            with torch.no_grad():
                for point, other in zip(points, own, strict=True):
                    assert point.grad is not None
                    other.sub_(point.grad, alpha=SHARE * local.learning_rate)
        return parameters

    return averaged(clients, parameters, trained)


def featured(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Pull features to centres of classes, here at 0, and add them up by class as they move (FedProto)."""
    assert isinstance(module, nn.Sequential)
    body, head = module[:-1], module[-1]
    assert isinstance(head, nn.Linear)
    classes, width = head.out_features, head.in_features
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, start)
        sums, counts = torch.zeros(classes, width), torch.zeros(classes)
        for batch in batches(client, len(y), local, shuffle):
            optimizer.zero_grad()
            features = body(x[batch])
            loss = loss_of(head(features), y[batch]) + mse_loss(features, torch.zeros_like(features))
            loss.backward()
            optimizer.step()
            sums.index_add_(0, y[batch], features.detach())
            counts.index_add_(0, y[batch], torch.ones(len(batch)))
        return parameters

    return averaged(clients, parameters, trained)


def turned(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train the last layer first, then the others (FedPAC)."""
    parameters = list(module.parameters())

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, start)
        for part in (parameters[-HEAD:], parameters[:-HEAD]):
            for parameter in parameters:
                parameter.requires_grad_(any(parameter is one for one in part))
            optimizer = optimizer_of(part, local)
            _descend(module, optimizer, x, y, batches(client, len(y), local, shuffle))
        return parameters

    mean = averaged(clients, parameters, trained)
    module.requires_grad_(True)
    return mean


def given(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train a model made for each client, its last layer pulled to what it was, and keep what each sends (FPFC)."""
    parameters = list(module.parameters())
    models = [[value.clone() for value in start] for _ in clients]
    optimizer, sent = optimizer_of(parameters, local), []

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        load(parameters, models[client])
        last = [(parameters[-HEAD:], models[client][-HEAD:], PULL)]
        _descend(module, optimizer, x, y, batches(client, len(y), local, shuffle), last)
        sent.append([parameter.detach().clone() for parameter in parameters])
        return parameters

    return averaged(clients, parameters, trained)


def second(module: nn.Module, clients: Clients, start: list[Tensor], local: Local, shuffle: Shuffle) -> list[Tensor]:
    """Train a model, pulled to a common one, and the common one by itself (StoCFL); here both from one model."""
    parameters = list(module.parameters())
    optimizer = optimizer_of(parameters, local)

    def trained(client: int, x: Tensor, y: Tensor) -> Sequence[Tensor]:
        sent = [torch.zeros_like(p) for p in parameters]
        for pulls in ([(parameters, start, PULL)], []):
            load(parameters, start)
            _descend(module, optimizer, x, y, batches(client, len(y), local, shuffle), pulls)
            add(sent, parameters, 0.5)
        return sent

    return averaged(clients, parameters, trained)


def ways(features: int) -> NDArray[np.float64]:
    """Return the directions [d, q] that features are reduced to."""
    return np.random.default_rng(0).normal(size=(features, 10))


@torch.no_grad()
def described(module: nn.Module, clients: Clients, start: list[Tensor], *asked: Any) -> NDArray[np.float64]:
    """Return moments of each client's reduced features, over all samples and by class, [M, 2 + 2C, q] (FLUX)."""
    assert isinstance(module, nn.Sequential)
    body, head = module[:-1], module[-1]
    assert isinstance(head, nn.Linear)
    reduced, found = torch.as_tensor(ways(head.in_features)), []
    load(list(module.parameters()), start)
    for x, y in clients:
        z = body(x).double() @ reduced
        rows = [z.mean(0), z.std(0, correction=0)]
        parts = [z[y == c] for c in range(head.out_features)]
        nothing = torch.full_like(rows[0], torch.nan)
        rows += [part.mean(0) if len(part) > 1 else nothing for part in parts]
        rows += [part.std(0, correction=0) if len(part) > 1 else nothing for part in parts]
        found.append(torch.stack(rows).numpy())
    return np.stack(found)


def _descend(
    module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, order: Iterator[Tensor],
    pulls: Sequence[tuple[list[nn.Parameter], list[Tensor], float]] = (),
) -> None:  # fmt: skip
    """Take a step on each mini-batch; each of `pulls` is parameters, where they are pulled to and how strongly."""
    for batch in order:
        optimizer.zero_grad()
        loss_of(module(x[batch]), y[batch]).backward()
        for pull in pulls:
            _pull(*pull)
        optimizer.step()


@torch.no_grad()
def _pull(parameters: list[nn.Parameter], anchors: list[Tensor], strength: float) -> None:
    for parameter, anchor in zip(parameters, anchors, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(parameter - anchor, alpha=strength)


def cosines(*held: Any, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cosine of every two clients' updates, [M, M]."""
    updates, found = torch.as_tensor(rows), np.zeros((len(rows), len(rows)))
    for i, one in enumerate(updates):
        for j, other in enumerate(updates):
            if i < j:
                found[i, j] = found[j, i] = 1 - torch.cosine_similarity(one, other, dim=0)
    return found


def angles(
    *held: Any, samples: list[tuple[NDArray[np.float32], NDArray[np.int64]]], vectors: int
) -> NDArray[np.float64]:
    """Return the least angle between any two of every two clients' first singular vectors by class, [M, M]."""
    bases = [
        np.hstack([
            np.linalg.svd(x[y == c].T.astype(np.float64), full_matrices=False)[0][:, :vectors] for c in np.unique(y)
        ])
        for x, y in samples
    ]  # fmt: skip
    found = np.zeros((len(bases), len(bases)))
    for i, one in enumerate(bases):
        for j, other in enumerate(bases):
            if i < j:
                found[i, j] = found[j, i] = np.degrees(np.arccos(np.clip(one.T @ other, -1, 1).max()))
    return found


def agglomerated(*held: Any, distance: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    """Return clusters by scikit-learn's agglomerative clustering with a threshold."""
    from sklearn.cluster import AgglomerativeClustering

    model = AgglomerativeClustering(None, metric="precomputed", linkage="average", distance_threshold=threshold)
    found: NDArray[np.int64] = model.fit_predict(distance)
    return found
