"""Largest of 2 x 2 pixels with channels last, by maxima of neighbours over whole rows.

PyTorch's kernel goes over a pixel's channels, which fill no vector where they are few: 100 images of 24 x 24 pixels and
six channels take it 680 microseconds, maxima 74, and 400 with the indices that a gradient needs (docs/performance.md).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

FEW = 8  # channels below which indices by maxima take less time than PyTorch's
WIDE = 254  # pixels of a row whose indices, and its neighbour's, are numbers of a byte


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d` of 2 x 2 pixels; the same numbers, but of -0 and 0 either one."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.MaxPool2d`."""
        learns = torch.is_grad_enabled() and input.requires_grad
        if (
            input.ndim != 4
            or min(input.shape[2:]) < 2
            or not input.is_contiguous(memory_format=torch.channels_last)
            or (learns and (input.shape[1] >= FEW or input.shape[3] > WIDE))
        ):
            made: Tensor = super().forward(input)
            return made
        found: Tensor = _Largest.apply(input) if learns else largest(input)
        return found


class _Largest(torch.autograd.Function):
    """`largest_and_where` with PyTorch's own gradient, which goes by the indices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found, where = largest_and_where(x)
        ctx.save_for_backward(x, where)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, where = ctx.saved_tensors
        two, none, one = [2, 2], [0, 0], [1, 1]
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradients[0], x, two, two, none, one, False, where
        )
        return found


def largest(x: Tensor) -> Tensor:
    """Return the largest of each 2 x 2 pixels, [n, c, h // 2, w // 2], of images ``x [n, c, h, w]``, channels last."""
    down, right = (side // 2 * 2 for side in x.shape[2:])
    pixels = x.permute(0, 2, 3, 1)
    rows = torch.maximum(pixels[:, 0:down:2], pixels[:, 1:down:2])
    return _with_neighbours(torch.maximum, rows, rows.dtype)[:, :, 0:right:2].contiguous().permute(0, 3, 1, 2)


def largest_and_where(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `largest` does, and in which pixel of its image it is, both [n, c, h // 2, w // 2].

    Of equal pixels it is the first, row by row, as for PyTorch. Images have at most `WIDE` pixels in a row.
    """
    _, c, h, w = x.shape
    down, right = h // 2 * 2, w // 2 * 2
    pixels = x.permute(0, 2, 3, 1)
    upper, lower = slice(0, down, 2), slice(1, down, 2)
    pairs = _with_neighbours(torch.maximum, pixels, pixels.dtype)
    second = _with_neighbours(_less, pixels, torch.bool)  # whether the neighbour is larger
    below = pairs[:, lower] > pairs[:, upper]
    # second[:, lower] where below, else second[:, upper]; `torch.where` takes ten times as long on truths
    beside = (second[:, upper] ^ second[:, lower]).bitwise_and_(below).bitwise_xor_(second[:, upper])
    from_first = torch.add(beside.view(torch.uint8), below.view(torch.uint8), alpha=w)
    found = torch.maximum(pairs[:, upper], pairs[:, lower])[:, :, 0:right:2].contiguous()
    where = from_first[:, :, 0:right:2].contiguous().long().add_(_firsts(c, h, w))
    return found.permute(0, 3, 1, 2), where.permute(0, 3, 1, 2)


def _less(left: Tensor, right: Tensor, *, out: Tensor) -> None:
    torch.gt(right, left, out=out)


def _with_neighbours(what: Any, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `what` of each pixel of ``rows [n, h, w, c]`` and the next one; beyond a row's last it means nothing."""
    c, each, found = rows.shape[3], rows.reshape(-1), torch.empty(rows.shape, dtype=dtype)
    what(each[:-c], each[c:], out=found.view(-1)[:-c])
    return found


@lru_cache(maxsize=16)
def _firsts(c: int, h: int, w: int) -> Tensor:
    """Return the index of the first of each 2 x 2 pixels, [h // 2, w // 2, c]."""
    first = 2 * torch.arange(h // 2)[:, None] * w + 2 * torch.arange(w // 2)
    return first[:, :, None].expand(-1, -1, c).contiguous()


def is_plain(part: nn.Module) -> bool:
    """Return whether a module is a pool that `MaxPool2d` computes."""
    return type(part) is nn.MaxPool2d and all(
        getattr(part, name) in (number, (number, number))
        for name, number in {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}.items()
    ) and not (part.ceil_mode or part.return_indices)  # fmt: skip
