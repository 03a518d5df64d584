"""Max pooling of 2 x 2 pixels with channels last, faster than PyTorch's, and convolutions with few filters before it.

PyTorch's kernel works on one pixel's channels at a time, also finds the index of the maximum, and takes 680
microseconds for 100 images of 24 x 24 pixels and six channels, which don't fill a vector. Scoring needs no index: two
maxima of adjacent pixels, first of rows, take 74.

A convolution with so few filters doesn't fill vectors either. In scoring, if pooling follows, the four pixels of a pool
are computed as filters of one convolution with twice the stride, each a copy padded with zeros (`PooledConv2d`). In
training, the convolution makes eight channels, the last ones zero, so that pooling and the next convolution fill their
vectors (`WideConv2d`): a step of CLoVE's CNN 5.3 -> 4.5 ms by AVX2 on an EPYC 9004, 4.9 by AVX-512, in the same bits.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

FEW = 8  # a convolution with fewer filters fills no vector of AVX2


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d` of 2 x 2 pixels; the same numbers, except that 0 may be -0 and vice versa."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.MaxPool2d`."""
        learns = torch.is_grad_enabled() and input.requires_grad  # its gradient needs the index
        last = input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last)
        found: Tensor = largest(input) if last and not learns and min(input.shape[2:]) > 1 else super().forward(input)
        return found


class WideConv2d(nn.Conv2d):
    """A convolution that adds output channels of zeros in training, and accepts inputs that have such channels."""

    channels = 0  # output channels in training, if more than its own

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.Conv2d`."""
        given, made = input.shape[-3] - self.in_channels, 0
        if self.channels and torch.is_grad_enabled() and self.weight.requires_grad:
            made = self.channels - self.out_channels
        if not (given or made):
            return super().forward(input)
        weight = nn.functional.pad(self.weight, (0, 0, 0, 0, 0, given, 0, made))
        bias = None if self.bias is None else nn.functional.pad(self.bias, (0, made))
        return self._conv_forward(input, weight.contiguous(memory_format=torch.channels_last), bias)


class PooledConv2d(WideConv2d):
    """A convolution and the 2 x 2 max pooling after it; the same bits for finite inputs."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the maximum of each 2 x 2 pixels of the output of `torch.nn.Conv2d`."""
        if torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad):
            return nn.functional.max_pool2d(super().forward(input), 2)  # the index costs what the rest saves
        o, c, *kernel = self.weight.shape
        wide = self.weight.new_zeros(4, o, kernel[0] + 1, kernel[1] + 1, c)
        for place, (down, right) in zip(wide, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
            place[:, down : down + kernel[0], right : right + kernel[1]] = self.weight.permute(0, 2, 3, 1)
        bias = None if self.bias is None else self.bias.repeat(4)
        made = nn.functional.conv2d(input, wide.flatten(0, 1).permute(0, 3, 1, 2), bias, 2, self.padding)
        upper, lower = torch.maximum(*made.permute(0, 2, 3, 1).chunk(2, 3)).chunk(2, 3)
        return torch.maximum(upper, lower).permute(0, 3, 1, 2)


def largest(x: Tensor) -> Tensor:
    """Return the maximum of each 2 x 2 pixels, [n, c, h // 2, w // 2], of images ``x [n, c, h, w]``, channels last."""
    _, c, h, w = x.shape
    down, right = h // 2 * 2, w // 2 * 2
    pixels = x.permute(0, 2, 3, 1)
    rows = torch.maximum(pixels[:, 0:down:2], pixels[:, 1:down:2])
    each, pairs = rows.view(-1), torch.empty_like(rows)  # all adjacent pixels; every second maximum is used
    torch.maximum(each[:-c], each[c:], out=pairs.view(-1)[:-c])
    return pairs[:, :, 0:right:2].contiguous().permute(0, 3, 1, 2)


def widen(module: nn.Module) -> None:
    """Add output channels to the first of two convolutions if it has few, and only pooling and ReLU are between them.

    Pooling and ReLU keep zeros. The first convolution must be the first layer: later inputs may be infinite or NaN, and
    their products with weights of zero aren't zero.
    """
    if type(module) is not nn.Sequential or len(module) < 4:
        return
    first, pool, above, second = list(module)[:4]
    if not (are_plain(first, pool) and type(above) is nn.ReLU and type(second) is nn.Conv2d and second.groups == 1):
        return
    module[0], module[3] = _wide(first, FEW), _wide(second)


def _wide(part: nn.Module, channels: int = 0) -> nn.Module:
    made: Any = copy.copy(part)  # shares the parameters; the convolution may also be used elsewhere in the module
    made.__class__, made.channels = WideConv2d, channels
    return cast(nn.Module, made)


def join(module: nn.Module) -> None:
    """Join each convolution with few filters in a sequence with the pooling after it.

    For other classes of modules it isn't known in which order they call their parts.
    """
    if type(module) is not nn.Sequential:
        return
    for place, (part, after) in enumerate(pairwise(module)):
        if are_plain(part, after):
            both = copy.copy(part)  # as in `widen`
            both.__class__ = PooledConv2d
            module[place], module[place + 1] = both, nn.Identity()
    for part in module:
        join(part)


def are_plain(part: nn.Module, after: nn.Module) -> bool:
    """Return whether a module and the one after it are a convolution and a pooling that `PooledConv2d` can compute."""
    return (
        isinstance(part, nn.Conv2d)
        and type(part) in (nn.Conv2d, WideConv2d)
        and (type(after) is MaxPool2d or is_plain(after))
        and part.out_channels < FEW
        and (part.stride, part.dilation, part.groups, part.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        and not isinstance(part.padding, str)
    )


def is_plain(part: nn.Module) -> bool:
    """Return whether a module is a pooling that `MaxPool2d` can compute."""
    return type(part) is nn.MaxPool2d and all(
        getattr(part, name) in (number, (number, number))
        for name, number in {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}.items()
    ) and not (part.ceil_mode or part.return_indices)  # fmt: skip
