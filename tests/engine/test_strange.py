"""Networks of users' own that aren't chains of usual layers: trained as PyTorch does, whatever form does it."""

from __future__ import annotations

import pytest
import torch
from federations import OPTIONS, engine, noise, slow_but
from reference import agree
from test_frozen import SETTINGS
from torch import nn

from clusterfl.errors import UserError


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


@pytest.mark.parametrize("name", slow_but(["plain", "adam"], SETTINGS))
@pytest.mark.parametrize("strange", STRANGE)
def test_training_is_that_of_pytorch(strange, name):
    factory, form = STRANGE[strange]
    if (strange, name) == ("attention", "adam"):
        pytest.skip("a gradient that is zero but for rounding, of the keys' bias, becomes whole steps")
    with engine(factory, **OPTIONS[name]) as used:
        assert form in (None, used.backend)
        agree(used)


@pytest.mark.parametrize(
    "does, says",
    [
        (lambda m, x: (m.last(x), x), "a value of the type tuple; allowed: one tensor"),
        (lambda m, x: {"logits": m.last(x)}, "a value of the type dict"),
        (lambda m, x: m.last(x).detach().numpy(), "a value of the type ndarray"),
        (lambda m, x: None, "None; allowed: one tensor"),
        (lambda m, x: m.last(x).argmax(1), "torch.int64 without a gradient; allowed: real numbers that depend on its"),
        (lambda m, x: m.last(x).detach(), "torch.float32 without a gradient; .* look for argmax, detach"),
        (lambda m, x: m.last(x).to(torch.complex64), "torch.complex64; allowed: real numbers"),
        (lambda m, x: m.last(x)[:1], r"shape \(1, 3\) for 2 samples; 3 classes need \(2, 3\)"),
        (lambda m, x: m.last(x)[:, :2], r"shape \(2, 2\) for 2 samples"),
        (lambda m, x: m.last(x)[:, None], r"shape \(2, 1, 3\) for 2 samples"),
        (lambda m, x: m.last(x).squeeze(), r"shape \(3,\) for 1 sample; 3 classes need \(1, 3\)"),
    ],
)
def test_what_a_network_may_not_return_is_named(does, says):
    with pytest.raises(UserError, match=f"the model Parts returns {says}"):
        engine(lambda: Parts(does))


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_so_it_is_in_training_mode(backend):
    returned = "the model Parts, in training mode, returns a value of the type tuple; allowed: one tensor"
    with (
        pytest.raises(UserError, match=returned),
        engine(lambda: Parts(lambda m, x: (m.last(x), x) if m.training else m.last(x)), backend=backend) as used,
    ):
        agree(used)


def test_so_it_is_of_real_targets():
    with pytest.raises(
        UserError, match=r"the model Parts returns shape \(2, 3\) for 2 samples; one number each is needed"
    ):
        engine(lambda: Parts(lambda m, x: m.last(x)), noise((4, 4), outputs=1))
