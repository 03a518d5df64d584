"""Networks of users' own that aren't chains of usual layers: trained as PyTorch does, whatever form does it."""

from __future__ import annotations

import pytest
import torch
from federations import OPTIONS, engine
from reference import agree
from test_frozen import SETTINGS
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
    with engine(factory, **OPTIONS[name]) as used:
        assert form in (None, used.backend)
        agree(used)
