"""Several models on the same images: the first convolutions of all as one.

A convolution of few filters leaves most of a vector of AVX-512 empty: six take oneDNN as long as sixteen. Models that
are scored together see the same images, so their filters are computed side by side: eight models of six filters on an
EPYC 9004 2.4 instead of 7.2 microseconds for each image and model, in the same bits (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .bits import one_thread
from .pooling import FEW, MaxPool2d, WideConv2d, largest

MOST = 8  # models: with more, what they make of a few images leaves the cache
IMAGES = 32  # at once, for the same reason; a multiple of `batches.VECTOR`


def possible(module: nn.Module, x: Tensor) -> bool:
    """Return whether copies of a module can be computed so, with the bits that each has alone.

    Parameters
    ----------
    module
        In the form in which it is scored. Where the convolution already has another one (`pooling.PooledConv2d`) there
        is nothing to gain.
    x : [n, ...]
        Samples as it takes them, on which this is tried.
    """
    if type(module) is not nn.Sequential or len(module) < 2:
        return False
    first, second = module[0], module[1]
    if not isinstance(first, nn.Conv2d) or type(first) not in (nn.Conv2d, WideConv2d) or type(second) is not MaxPool2d:
        return False
    if first.out_channels >= FEW:
        return False
    if first.groups > 1 or first.padding_mode != "zeros" or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    with one_thread(), torch.inference_mode():
        if min(first(x).shape[2:]) < 2:  # which the pool refuses, or leaves to PyTorch
            return False
        whole = module(x)
        return all(torch.equal(made, whole) for k in range(2, MOST + 1) for made in outputs([module] * k, x))


def outputs(modules: Sequence[nn.Module], x: Tensor) -> Iterator[Tensor]:
    """Yield what each of some copies of one module, for which this is `possible`, makes of ``x [n, ...]``."""
    for begin in range(0, len(modules), MOST):
        some = modules[begin : begin + MOST]
        yield from _together(some, x) if len(some) > 1 else [some[0](x)]


def _together(modules: Sequence[nn.Module], x: Tensor) -> Iterator[Tensor]:
    parts: list[list[Any]] = [list(cast(nn.Sequential, module)) for module in modules]
    convolutions = [first for first, *_ in parts]
    like, biases = convolutions[0], [one.bias for one in convolutions if one.bias is not None]
    weight = _last(torch.cat([one.weight for one in convolutions]))
    fixed = (torch.cat(biases) if biases else None, like.stride, like.padding, like.dilation)
    made = (nn.functional.conv2d(images, weight, *fixed) for images in x.split(IMAGES))
    pooled = torch.cat([largest(_last(images)) for images in made])
    for (_, _, *rest), own in zip(parts, pooled.split(like.out_channels, 1), strict=True):
        found = _last(own)
        for part in rest:
            found = part(found)
        yield found


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)
