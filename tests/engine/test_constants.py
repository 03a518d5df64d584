"""Buffers of `persistent=False`, which are constants of the network, and numbers that no model can have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import OPTIONS, engine
from reference import agree
from torch import nn

from clusterfl.errors import UserError


class Masked(nn.Module):
    """A layer whose outputs are masked by numbers that float32 and differences of models can't hold."""

    def __init__(self, persistent=False, **buffers):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        given = {"mask": torch.tensor([0, -torch.inf, 0, 0]), "large": torch.tensor([2**24 + 1])}
        for name, values in (buffers or given).items():
            self.register_buffer(name, values, persistent=persistent)

    def forward(self, x):
        if hasattr(self, "large"):
            assert self.large.item() == 2**24 + 1
        return self.last(torch.softmax(self.first(x) + self.mask, 1))


class Counting(Masked):
    """It counts its calls, and goes by them."""

    def __init__(self, persistent=False):
        super().__init__(persistent, mask=torch.zeros(1))

    def forward(self, x):
        self.mask += 1
        return super().forward(x) / self.mask


class Replacing(Counting):
    """The same with a new tensor for each call."""

    def forward(self, x):
        self.mask = torch.cat([self.mask, torch.ones(1)])
        return self.last(torch.tanh(self.first(x))) / len(self.mask)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("name", ["momentum, penalty", "adam"])
def test_training_is_that_of_pytorch(backend, name):
    with engine(Masked, backend=backend, **OPTIONS[name]) as used:
        agree(used)
        assert used.layout.columns == used.layout.parameter_columns == 5 * 4 + 4 + 4 * 3 + 3
        assert used.scores(used.initial()[None], np.arange(3), "train").loss.max() < 10


@pytest.mark.parametrize(
    "factory, why", [(Counting, "torch.func can't differentiate it"), (Replacing, "buffer 'mask' changes")]
)
def test_what_changes_all_the_same_begins_again_with_each_client(factory, why):
    found = []
    for chunk in (None, 1):
        with engine(factory, chunk=chunk) as used:
            assert used.backend == "loop"
            assert why in used.reason
            start = np.zeros(used.federation.clients, dtype=int)
            for _ in range(2):
                update = used.train(used.initial()[None], start, np.arange(len(start)), needs=frozenset({"updates"}))
                found.append(np.asarray(update.rows[:]).copy())
    assert np.isfinite(found[0]).all()
    assert all(np.array_equal(found[0], others) for others in found[1:])


def test_what_is_drawn_is_no_constant():
    with (
        engine(lambda: Masked(mask=torch.rand(4))) as used,
        pytest.raises(UserError, match="'mask' has other values each time"),
    ):
        used.initial()
    with engine(lambda: Masked(persistent=True, mask=torch.rand(4))) as used:
        assert not torch.equal(used.initial(0)[-4:], used.initial(1)[-4:])


def with_parameter(values):
    module = Masked(mask=torch.zeros(1))
    module.first.scale = nn.Parameter(values)
    return module


@pytest.mark.parametrize(
    "factory, says",
    [
        (lambda: Masked(persistent=True), r"'mask' has -inf before training \(1 of 4 numbers\); .*persistent=False"),
        (lambda: Masked(persistent=True, mask=torch.tensor([2**24 + 1])), "'mask' has 16777217; models are sent as"),
        (lambda: Masked(persistent=True, mask=torch.tensor([torch.nan])), r"'mask' has nan before .* \(1 of 1 numbers"),
        (lambda: with_parameter(torch.tensor([1.0, torch.nan])), r"'first.scale' has nan before .* \(1 of 2 numbers\)"),
        (lambda: with_parameter(torch.zeros(1, dtype=torch.complex64)), "'first.scale' has complex numbers"),
    ],
)  # fmt: skip
def test_numbers_that_no_model_can_have_are_named(factory, says):
    with pytest.raises(UserError, match=says):
        engine(factory)


def test_the_largest_exact_number_and_truth_values_may_be_sent():
    for values in (torch.tensor([2**24]), torch.tensor([True])):
        with engine(lambda values=values: Masked(persistent=True, mask=values)) as used:
            assert used.initial()[-1] == values.item()
