"""Networks of users' own that aren't chains of usual layers: trained as PyTorch does, whatever form does it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine
from test_frozen import SETTINGS, plainly
from torch import nn


class Parts(nn.Module):
    """Layers that are called by what a test wants; all of its parameters are made here."""

    def __init__(self, does):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.does = does

    def forward(self, x):
        return self.does(self, x)


def tied():
    module = Parts(lambda m, x: m.last(torch.tanh(m.second(torch.tanh(m.first(x))))) * m.scale)
    module.second.weight = module.first.weight
    return module


STRANGE = {
    "a number as parameter": (lambda: Parts(lambda m, x: m.last(m.second(torch.sin(m.first(x)))) * m.scale), "stacked"),
    "one weight in two layers": (tied, "stacked"),
    "a layer called twice": (
        lambda: Parts(lambda m, x: m.last(m.second(torch.sin(m.first(torch.sin(m.first(x)))))) * m.scale),
        "stacked",
    ),
    "a layer that isn't used": (lambda: Parts(lambda m, x: m.last(torch.sin(m.first(x))) * m.scale), "stacked"),
    "a branch by the samples": (
        lambda: Parts(lambda m, x: m.last(m.first(x) if x.sum() > 0 else m.second(x)) * m.scale),
        "loop",
    ),
    "attention": (
        lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.TransformerEncoderLayer(1, 1, 4, 0.0), nn.Flatten(),
                              nn.Linear(5, 3)),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("strange", STRANGE)
def test_training_is_that_of_pytorch(strange, name):
    factory, form = STRANGE[strange]
    if (strange, name) == ("attention", "adam"):
        pytest.skip("a gradient that is zero but for rounding, of the keys' bias, becomes whole steps")
    settings = {"batch_size": "full", "steps": 3, "epochs": None, "learning_rate": 0.1} | SETTINGS[name]
    with engine(factory, **settings) as used:
        ids = np.arange(used.federation.clients)
        found = used.train(used.initial()[None], np.zeros_like(ids), ids, needs=frozenset({"updates"}))
        assert form in (None, used.backend)
        split = used.federation.splits["train"]
        for i in ids:
            module = factory()
            used.layout.load(module, used.initial())
            rows = split.of(np.array([i]))[0]
            x, y = torch.as_tensor(np.asarray(split.pool.x[split.rows[rows]])), torch.as_tensor(split.y[rows])
            last = plainly(module, x.float(), y, **settings)
            wanted = -last if "average" in settings else used.layout.flatten(module) - used.initial()
            assert torch.allclose(found.rows[i], wanted, atol=2e-5), i
