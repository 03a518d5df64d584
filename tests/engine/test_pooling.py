"""Largest of 2 x 2 pixels: PyTorch's numbers, whatever the shape, and its gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterfl.engine import pooling
from clusterfl.engine.products import tuned

LAST = torch.channels_last


def images(*shape, decimals=1):
    """Return numbers of which many are equal."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return drawn.round(decimals=decimals).contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    "shape", [(3, 6, 24, 24), (1, 1, 2, 2), (2, 16, 7, 5), (2, 1, 3, 2), (4, 3, 2, 9), (1, 64, 5, 4), (5, 2, 28, 28)]
)
@pytest.mark.parametrize("decimals", [1, 7])
def test_values_are_pytorchs(shape, decimals):
    """To the bit; but of -0 and 0, which are equal, either may stay."""
    x = images(*shape, decimals=decimals)
    with torch.inference_mode():
        found = pooling.MaxPool2d(2)(x)
        assert torch.equal(found, nn.functional.max_pool2d(x, 2))
        assert found.is_contiguous(memory_format=LAST)


def test_by_hand():
    """Of 1 2 / 3 0 the largest is 3, of -1 -4 / -2 -3 it is -1; a fifth column and a third row fall away."""
    x = torch.tensor([[1.0, 2, -1, -4, 9], [3, 0, -2, -3, 9], [9, 9, 9, 9, 9]])[None, None].contiguous(
        memory_format=LAST
    )
    assert pooling.largest(x).tolist() == [[[[3, -1]]]]


def test_what_is_no_number_stays_where_it_was():
    """NaN is the largest, as for PyTorch, and infinities are numbers; no other window has them."""
    x = images(1, 3, 6, 6)
    x[0, 0, 1, 3], x[0, 1, 4, 4], x[0, 2, :2, :2] = torch.nan, torch.inf, -torch.inf
    torch.testing.assert_close(pooling.largest(x), nn.functional.max_pool2d(x, 2), equal_nan=True, rtol=0, atol=0)


def test_a_step_is_pytorchs():
    """Values, gradients and which of equal pixels has them."""
    found = []
    for kind in (nn.MaxPool2d, pooling.MaxPool2d):
        x = images(3, 6, 8, 8, decimals=0).requires_grad_()
        output = kind(2)(x)
        output.square().sum().backward()
        found.append((output.detach(), x.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_other_layouts_and_small_images_go_to_pytorch():
    x = images(2, 6, 4, 4).contiguous()
    assert torch.equal(pooling.MaxPool2d(2)(x), nn.functional.max_pool2d(x, 2))
    assert torch.equal(pooling.MaxPool2d(2)(x[0]), nn.functional.max_pool2d(x[0], 2))
    with pytest.raises(RuntimeError, match="too small"):
        pooling.MaxPool2d(2)(images(1, 4, 1, 4))


@pytest.mark.parametrize(
    "other",
    [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"return_indices": True}, {"kernel_size": 3}],
)
def test_only_pools_of_two_by_two_are_others(other):
    sample = images(1, 4, 12, 12)
    made = tuned(nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), nn.MaxPool2d((2, 2), stride=(2, 2))), sample)
    assert [type(part) for part in made[1:]] == [pooling.MaxPool2d] * 2
    options = {"kernel_size": 2, "stride": 2} | other
    assert type(tuned(nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(**options)), sample)[1]) is nn.MaxPool2d
