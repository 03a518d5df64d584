"""Largest of 2 x 2 pixels with channels last, where nobody asks which: scores and losses need no gradient.

PyTorch's kernel goes over a pixel's channels, finds the index of the largest, too, and takes 680 microseconds for 100
images of 24 x 24 pixels and six channels, which fill no vector. Two maxima of neighbours, rows first, take 74.

A convolution of so few filters leaves vectors empty, too. Where a pool follows, the four pixels of a pool are made as
filters of one convolution with twice the stride, each a copy with zeros around it (`PooledConv2d`). That is for scores.
While it trains it makes eight channels, the last ones of zeros, with which pool and next convolution fill their vectors
(`WideConv2d`): a step of CLoVE's CNN 5.3 -> 4.5 ms by AVX2 on an EPYC 9004, 4.9 by AVX-512, in the same bits.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

FEW = 8  # filters of a convolution below which they fill no vector of AVX2


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d` of 2 x 2 pixels; the same numbers, but of -0 and 0 either one."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.MaxPool2d`."""
        learns = torch.is_grad_enabled() and input.requires_grad  # its gradient needs the index
        last = input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last)
        found: Tensor = largest(input) if last and not learns and min(input.shape[2:]) > 1 else super().forward(input)
        return found


class WideConv2d(nn.Conv2d):
    """A convolution that makes channels of zeros behind its own while it learns, and takes images that have such."""

    channels = 0  # that it makes while it learns, if not its own alone

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
    """A convolution and the pool of 2 x 2 pixels that follows it: the same bits, of finite inputs."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the largest of each 2 x 2 pixels that `torch.nn.Conv2d` makes."""
        if torch.is_grad_enabled() and (input.requires_grad or self.weight.requires_grad):
            return nn.functional.max_pool2d(super().forward(input), 2)  # which pixel it was costs what the rest saves
        o, c, *kernel = self.weight.shape
        wide = self.weight.new_zeros(4, o, kernel[0] + 1, kernel[1] + 1, c)
        for place, (down, right) in zip(wide, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
            place[:, down : down + kernel[0], right : right + kernel[1]] = self.weight.permute(0, 2, 3, 1)
        bias = None if self.bias is None else self.bias.repeat(4)
        made = nn.functional.conv2d(input, wide.flatten(0, 1).permute(0, 3, 1, 2), bias, 2, self.padding)
        upper, lower = torch.maximum(*made.permute(0, 2, 3, 1).chunk(2, 3)).chunk(2, 3)
        return torch.maximum(upper, lower).permute(0, 3, 1, 2)


def largest(x: Tensor) -> Tensor:
    """Return the largest of each 2 x 2 pixels, [n, c, h // 2, w // 2], of images ``x [n, c, h, w]``, channels last."""
    _, c, h, w = x.shape
    down, right = h // 2 * 2, w // 2 * 2
    pixels = x.permute(0, 2, 3, 1)
    rows = torch.maximum(pixels[:, 0:down:2], pixels[:, 1:down:2])
    each, pairs = rows.view(-1), torch.empty_like(rows)  # every pixel with its neighbour, of which each second is asked
    torch.maximum(each[:-c], each[c:], out=pairs.view(-1)[:-c])
    return pairs[:, :, 0:right:2].contiguous().permute(0, 3, 1, 2)


def widen(module: nn.Module) -> None:
    """Let the first of two convolutions make more channels where it has few, if a pool and ReLU alone are between them.

    These leave zeros what they are. The first one must be what sees the images: of numbers that aren't finite, which a
    layer may make, zeros aren't products.
    """
    if type(module) is not nn.Sequential or len(module) < 4:
        return
    first, pool, above, second = list(module)[:4]
    if not (are_plain(first, pool) and type(above) is nn.ReLU and type(second) is nn.Conv2d and second.groups == 1):
        return
    module[0], module[3] = _wide(first, FEW), _wide(second)


def _wide(part: nn.Module, channels: int = 0) -> nn.Module:
    made: Any = copy.copy(part)  # with the same parameters; the convolution itself may stand elsewhere, too
    made.__class__, made.channels = WideConv2d, channels
    return cast(nn.Module, made)


def join(module: nn.Module) -> None:
    """Let each convolution of few filters in a sequence do the work of the pool after it, too.

    Of a module of another class nobody knows in which order it calls its parts.
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
    """Return whether a module and the one after it are a convolution and a pool that `PooledConv2d` computes."""
    return (
        isinstance(part, nn.Conv2d)
        and type(part) in (nn.Conv2d, WideConv2d)
        and (type(after) is MaxPool2d or is_plain(after))
        and part.out_channels < FEW
        and (part.stride, part.dilation, part.groups, part.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        and not isinstance(part.padding, str)
    )


def is_plain(part: nn.Module) -> bool:
    """Return whether a module is a pool that `MaxPool2d` computes."""
    return type(part) is nn.MaxPool2d and all(
        getattr(part, name) in (number, (number, number))
        for name, number in {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}.items()
    ) and not (part.ceil_mode or part.return_indices)  # fmt: skip
