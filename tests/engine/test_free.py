"""Tensors that the proximal term doesn't pull: every form of training beside a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, first_layer_on, mlp, slow_but, uneven
from torch import nn

from clusterfl.engine import batches
from clusterfl.engine.modules import Sum
from clusterfl.engine.personal import Columns, Personal

FREE = frozenset({"1.weight", "3.bias", "0.1.weight", "1.3.bias"})


def plain(used, models, anchor, free):
    """Return the model that each client's training ends with in round 2, the pull on all but `free` in its loss."""
    data, train, found = used.worker.data["train"], used.federation.splits["train"], []
    near, module = used.layout.tensors(anchor), used.factory()
    for client in range(used.federation.clients):
        ids, sizes = used.federation.ids[[client]], train.sizes[[client]]
        used.layout.load(module.train(), models[client])
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        for batch in batches.schedule(used.seed, ids, sizes, 2, used.training)[0]:
            own = torch.as_tensor(batch[batch >= 0])
            if not len(own):
                continue
            x = data.take(own + int(train.offsets[client]))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), data.targets(own + int(train.offsets[client]), x))
            for name, parameter in module.named_parameters():
                if name not in free:
                    loss = loss + 0.8 / 2 * (parameter - near[name]).square().sum()
            loss.backward()
            optimizer.step()
        found.append(used.layout.flatten(module).detach())
    return torch.stack(found)


@pytest.mark.parametrize("way", ["on inputs", "on data", "stacked", "loop"])
@pytest.mark.parametrize("towards", slow_but(["given"], ["start", 1, "given"]))
@pytest.mark.parametrize("factory", [mlp, lambda: Sum([mlp(), mlp()])], ids=["one", "sum"])
def test_tensors_that_are_not_pulled(way, towards, factory, monkeypatch):
    """To where clients start, to another model, or, from models of their own, to the one that they are given."""
    if way == "on data":
        first_layer_on(way, monkeypatch)
    backend = way if way in ("stacked", "loop") else "dense"
    settings = {"learning_rate": 0.1, "momentum": 0.5, "proximal": 0.8, "epochs": 3}
    with engine(factory, uneven(), backend=backend, **settings) as used:
        free = FREE & {name for name, _ in used.layout.parameters}
        theta, clients = torch.stack([used.initial(0), used.initial(1)]), np.arange(6)
        models, anchor = theta[:1].repeat(6, 1), theta[1 if towards == 1 else 0]
        if towards == "given":
            models = torch.stack([used.initial(2 + client) for client in clients])
        tensors = {name: part for name, _, part in used.layout.slices()}

        def trained(**options):
            """Return the models that clients end with; what they send is beside the one that they are given."""
            own = Personal(Columns.of(tensors, tensors), models.clone(), True) if towards == "given" else None
            given = {"needs": frozenset({"updates"}), "towards": towards, "personal": own}
            return theta[0] + used.train(theta, np.zeros(6, int), clients, 2, **given | options).rows[:]

        expected = plain(used, models, anchor, free)
        torch.testing.assert_close(trained(free=free), expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(trained(free=free), trained(), atol=1e-3)
