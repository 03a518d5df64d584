"""Tensors that the proximal term doesn't pull: every form of training beside a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, uneven
from torch import nn

from clusterfl.engine import batches, dense

FREE = frozenset({"1.weight", "3.bias"})


def plain(used, theta, anchor, round_):
    """Return what each client's training makes of its model, the pull on all tensors but FREE in its loss."""
    data, train, found = used.worker.data["train"], used.federation.splits["train"], []
    near, module = used.layout.tensors(anchor), used.factory()
    for client in range(used.federation.clients):
        ids, sizes = used.federation.ids[[client]], train.sizes[[client]]
        used.layout.load(module.train(), theta)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        for batch in batches.schedule(used.seed, ids, sizes, round_, used.training)[0]:
            own = torch.as_tensor(batch[batch >= 0])
            if not len(own):
                continue
            x = data.take(own + int(train.offsets[client]))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), data.targets(own + int(train.offsets[client]), x))
            for name, parameter in module.named_parameters():
                if name not in FREE:
                    loss = loss + 0.8 / 2 * (parameter - near[name]).square().sum()
            loss.backward()
            optimizer.step()
        found.append(used.layout.flatten(module).detach() - theta)
    return torch.stack(found)


@pytest.mark.parametrize("way", ["on inputs", "on data", "stacked", "loop"])
@pytest.mark.parametrize("towards", ["start", 1])
def test_tensors_that_are_not_pulled(way, towards, monkeypatch):
    if way == "on data":
        if towards == 1:
            pytest.skip("another model than the one that a client starts from has no coordinates there")
        monkeypatch.setattr(dense, "kinds", lambda worker, sizes, training, to: batches.padded_rows(sizes, 4))
    backend = way if way in ("stacked", "loop") else "dense"
    settings = {"learning_rate": 0.1, "momentum": 0.5, "proximal": 0.8, "epochs": 3}
    with engine(federation=uneven(), backend=backend, **settings) as used:
        theta, clients = torch.stack([used.initial(0), used.initial(1)]), np.arange(6)
        given = {"needs": frozenset({"updates"}), "towards": towards}
        found = used.train(theta, np.zeros(6, int), clients, 2, free=FREE, **given).rows[:]
        torch.testing.assert_close(
            found, plain(used, theta[0], theta[0 if towards == "start" else 1], 2), rtol=1e-4, atol=1e-5
        )
        assert not torch.allclose(found, used.train(theta, np.zeros(6, int), clients, 2, **given).rows[:], atol=1e-3)
