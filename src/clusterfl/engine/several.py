"""Forward passes of several models on the same images, with their first convolutions computed as one.

A convolution with few filters leaves most of an AVX-512 vector unused: oneDNN needs the same time for 6 filters as for
16. Models that are scored together see the same images, so their filters are joined into one convolution: for eight
models with six filters on an EPYC 9004, 2.4 instead of 7.2 microseconds per image and model, with the same bits
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .bits import one_thread
from .pooling import FEW, MaxPool2d, WideConv2d, largest

MOST = 8  # models at once: with more, their outputs for a few images don't fit in the cache
IMAGES = 32  # images at once, for the same reason; a multiple of `batches.VECTOR`


def possible(module: nn.Module, x: Tensor) -> bool:
    """Return whether copies of a module can be computed in this way, with the same bits as one by one.

    Parameters
    ----------
    module
        As tuned for scoring (`products.tuned`). If its convolution is already joined with the pooling
        (`pooling.PooledConv2d`), this would save nothing.
    x : [n, ...]
        Inputs of the module for a trial.
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
        if min(first(x).shape[2:]) < 2:  # too small for `pooling.largest`
            return False
        whole = module(x)
        return all(torch.equal(made, whole) for k in range(2, MOST + 1) for made in outputs([module] * k, x))


def outputs(modules: Sequence[nn.Module], x: Tensor) -> Iterator[Tensor]:
    """Yield the output of each module for ``x [n, ...]``; all are copies of one module for which this is `possible`."""
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
