"""Largest of 2 x 2 pixels, also with the convolution before: PyTorch's numbers and gradient, whatever the shape."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from federations import slow_but
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine import pooling, processor
from clusterfl.engine.bits import one_thread
from clusterfl.engine.engine import Engine
from clusterfl.engine.products import tuned
from clusterfl.engine.training import Training
from clusterfl.models import MODELS

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


def sequence(channels=1, filters=6, kernel=5, **options):
    """Return a convolution with the pool behind it, with channels last."""
    torch.manual_seed(filters)
    return nn.Sequential(nn.Conv2d(channels, filters, kernel, **options), nn.MaxPool2d(2)).to(memory_format=LAST)


def joined(module):
    """Return a copy that `join` has changed."""
    made = copy.deepcopy(module)
    pooling.join(made)
    return made


@pytest.mark.parametrize("filters", [1, 3, 6, 7])
@pytest.mark.parametrize(
    "channels, kernel, options, size",
    [
        (1, 5, {}, (28, 28)), (1, 5, {"padding": 2}, (28, 28)), (3, 5, {"padding": 2}, (32, 32)), (6, 5, {}, (12, 12)),
        (2, 3, {"padding": (1, 0)}, (9, 11)), (4, (1, 3), {"bias": False}, (7, 8)), (1, 2, {}, (3, 3)),
    ],
)  # fmt: skip
def test_a_convolution_with_its_pool_has_the_same_bits(filters, channels, kernel, options, size):
    """Of 32 images, and of 160, on the branch that computes so; elsewhere the values up to rounding."""
    apart = sequence(channels, filters, kernel, **options)
    together = joined(apart)
    assert [type(part) for part in together] == [pooling.PooledConv2d, nn.Identity]
    for n in (32, 160):
        x = images(n, channels, *size, decimals=7)
        with torch.inference_mode():
            expected, found = apart(x), together(x)
        assert found.is_contiguous(memory_format=LAST)
        if processor.branch().endswith("-avx2"):
            assert torch.equal(found, expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_convolution_with_its_pool_by_hand():
    """Products of 1 2 3 / 4 5 6 / 7 8 9 with 1 10 / 100 1000 and 5: 5421 + 5, 6532 + 5, 8754 + 5, 9865 + 5."""
    together = joined(sequence(1, 1, 2))
    with torch.inference_mode():
        together[0].weight.copy_(torch.tensor([[1.0, 10], [100, 1000]])), together[0].bias.fill_(5)
        x = torch.arange(1.0, 10).view(1, 1, 3, 3).contiguous(memory_format=LAST)
        assert together(x).tolist() == [[[[9870]]]]
        assert together(-x).tolist() == [[[[-5416]]]]


def test_a_step_of_a_convolution_with_its_pool_is_pytorchs():
    x, found = images(4, 1, 12, 12, decimals=7), []
    for module in (apart := sequence(), joined(apart)):
        output = module(x)
        output.square().sum().backward()
        found.append((output.detach(), *(part.grad for part in module.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("other", [{"filters": 8}, {"stride": 2}, {"dilation": 2}, {"padding_mode": "reflect"}])
def test_only_plain_convolutions_of_few_filters_join_their_pool(other):
    assert [type(part) for part in joined(sequence(**{"padding": 1} | other))] == [nn.Conv2d, nn.MaxPool2d]


def test_a_convolution_joins_its_pool_only_where_the_order_is_known():
    """In a sequence, also one within; where one convolution stands twice, each place has its own form."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = sequence()

    assert type(joined(Network()).parts[0]) is nn.Conv2d
    shared = nn.Conv2d(4, 4, 3, padding=1)
    within = nn.Sequential(nn.Sequential(shared, nn.MaxPool2d(2)), shared, nn.ReLU(), shared, nn.MaxPool2d(2))
    within = within.to(memory_format=LAST)
    made = joined(within)
    assert [type(part) for part in made[1:]] == [nn.Conv2d, nn.ReLU, pooling.PooledConv2d, nn.Identity]
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in within.named_parameters()]
    x = images(32, 4, 16, 16, decimals=7)
    with torch.inference_mode():
        made[1].weight.mul_(2), within[1].weight.mul_(2)
        torch.testing.assert_close(made(x), within(x), rtol=1e-5, atol=1e-6)


def two(channels=1, filters=6, between=nn.ReLU, second=None, **options):
    """Return two convolutions with a pool and ReLU between, with channels last."""
    torch.manual_seed(filters)
    parts = nn.Conv2d(channels, filters, 5, **options), nn.MaxPool2d(2), between(), second or nn.Conv2d(filters, 16, 5)
    return nn.Sequential(*parts, nn.MaxPool2d(2), nn.ReLU()).to(memory_format=LAST)


def widened(module):
    """Return a copy that `widen` has changed."""
    made = copy.deepcopy(module)
    pooling.widen(made)
    return made


def gradients(module, x):
    """Return what a module makes, and the gradients of its parameters."""
    with one_thread():
        output = module(x)
        output.square().sum().backward()
    return [output.detach(), *(part.grad for part in module.parameters())]


@pytest.mark.parametrize("filters", slow_but([1, 6], [1, 2, 5, 6, 7]))
@pytest.mark.parametrize("channels, options", [(1, {}), (1, {"padding": 2}), (3, {"padding": 2}), (1, {"bias": False})])
@pytest.mark.parametrize("join", [False, True])
def test_channels_of_zeros_change_no_bit_of_a_step(filters, channels, options, join):
    """With batches of 10 to 100 images, on AMD's processors, where it was measured; up to rounding elsewhere."""
    plain = two(channels, filters, **options)
    wide = widened(plain)
    if join:
        pooling.join(wide)
    assert [name for name, _ in wide.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for n in (10, 20, 64, 100):
        plain.zero_grad(), wide.zero_grad()
        x = images(n, channels, 28, 28, decimals=1)  # of which many are equal
        both = zip(gradients(wide, x), gradients(plain, x), [None, *wide.parameters()], strict=True)
        for found, expected, part in both:
            if processor.vendor() == "amd" and filters > 1:
                assert torch.equal(found, expected)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
            assert part is None or found.stride() == part.stride()  # as optimisers' kernels want it


def test_more_channels_only_while_it_learns():
    """Eight while the first weight has a gradient, six for scores or where it stays; the second takes either."""
    made, x = widened(two()), images(4, 1, 28, 28)
    assert made[:3](x).shape[1] == 8
    assert not made[:3](x)[:, 6:].any()
    with torch.inference_mode():
        assert made[:3](x).shape[1] == 6
    made[0].weight.requires_grad_(False)
    assert made[:3](x).shape[1] == 6
    expected = gradients(two(), x)[3]
    made(x).square().sum().backward()
    torch.testing.assert_close(made[3].weight.grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "module",
    [
        two(filters=8), two(between=nn.Sigmoid), two(between=nn.Dropout), two(stride=2), two()[:3], two()[3:],
        two(second=nn.Conv2d(6, 12, 5, groups=2)), nn.Sequential(two()), nn.Sequential(nn.Identity(), *two()),
    ],
)  # fmt: skip
def test_only_first_convolutions_with_a_pool_and_relu_behind_are_widened(module):
    assert not any(isinstance(part, pooling.WideConv2d) for part in widened(module).modules())


def test_a_convolution_that_stands_twice_is_wide_at_two_places_alone():
    shared = nn.Conv2d(5, 5, 3, padding=1)
    module = nn.Sequential(shared, nn.MaxPool2d(2), nn.ReLU(), shared, nn.ReLU(), shared).to(memory_format=LAST)
    made, x = widened(module), images(8, 5, 12, 12)
    assert [type(part) for part in made if isinstance(part, nn.Conv2d)] == [*[pooling.WideConv2d] * 2, nn.Conv2d]
    for found, expected in zip(gradients(made, x), gradients(module, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["clove-cnn", "lenet5"])
def test_the_engine_trains_with_them(name, monkeypatch):
    """The same models as without, to the bit on AMD's processors."""
    shape, found = (1, 28, 28), []
    x = np.random.default_rng(0).integers(0, 256, (90, *shape), dtype=np.uint8)
    federation = Federation.from_arrays(x, np.arange(90) % 10, np.arange(90) // 30)
    for widen in (pooling.widen, lambda module: None):
        monkeypatch.setattr(pooling, "widen", widen)
        training = Training(optimizer="adam", learning_rate=0.01, batch_size=20, epochs=2)
        with Engine(lambda: MODELS[name](shape, 10), federation, training, seed=1) as used:
            wide = [part for part in used.worker.tuned.modules() if isinstance(part, pooling.WideConv2d)]
            assert len(wide) == (2 if not found else sum(type(part) is pooling.PooledConv2d for part in wide))
            start = used.layout.flatten(used.worker.module)[None]
            found.append(used.train(start, np.zeros(3, int), np.arange(3)).sums)
    one, other = found
    assert torch.equal(one, other) or processor.vendor() != "amd"
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Viewing(nn.Module):
    """Can't take channels last."""

    def forward(self, x):
        return x.view(len(x), -1)


def test_the_engine_joins_them_on_the_branch_where_it_was_measured(monkeypatch):
    for branch, kind in (("amd-avx2", pooling.PooledConv2d), ("amd-avx512", nn.Conv2d), ("amd-avx2 X=1", nn.Conv2d)):
        monkeypatch.setattr(processor, "branch", lambda branch=branch: branch)
        assert type(tuned(sequence(), images(1, 1, 28, 28))[0]) is kind
    monkeypatch.setattr(processor, "branch", lambda: "amd-avx2")
    viewing = nn.Sequential(*sequence(), Viewing())  # which keeps its layout, in which kernels have other bits
    assert [type(part) for part in tuned(viewing, images(1, 1, 28, 28))[:2]] == [nn.Conv2d, pooling.MaxPool2d]


@pytest.mark.parametrize(
    "other",
    [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"return_indices": True}, {"kernel_size": 3}],
)
def test_only_pools_of_two_by_two_are_others(other):
    sample = images(1, 4, 12, 12)
    made = tuned(nn.Sequential(nn.Conv2d(4, 8, 3), nn.MaxPool2d(2), nn.MaxPool2d((2, 2), stride=(2, 2))), sample)
    assert [type(part) for part in made[1:]] == [pooling.MaxPool2d] * 2
    options = {"kernel_size": 2, "stride": 2} | other
    assert type(tuned(nn.Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(**options)), sample)[1]) is nn.MaxPool2d
