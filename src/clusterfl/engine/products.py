"""Matrix products on a CPU, by oneDNN where that is faster.

MKL, PyTorch's choice for float32, doesn't use AVX-512 on AMD's processors; oneDNN's inner product (the one that
torch.compile uses for frozen linear layers) does, and was measured to be twice as fast there (docs/performance.md). Its
bits depend neither on alignment nor on the number of rows, if this is above one.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from . import pooling, processor

SMALL = 1 << 14  # for weights with fewer numbers, calling oneDNN costs more than it saves
# A convolution with at least LARGE weights and at most FEW output pixels is computed as a matrix product: oneDNN takes
# twice as long for the gradient of such weights, and copies them once more into channels last (docs/log.md).
LARGE, FEW = 1 << 20, 4
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weight^T + bias``, [r, o], for ``x [r, i]`` and ``weight [o, i]``; not differentiable."""
    if ONEDNN and x.is_cpu:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return nn.functional.linear(x, weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weight^T + bias``, [r, o], by `product` for large weights."""
    return nn.functional.linear(x, weight, bias) if weight.numel() < SMALL else product(x, weight, bias)


def products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weight^T + bias``, [C, r, o], for ``x [C, r, i]``, ``weight [C, o, i]`` and ``bias [C, o]``."""
    if not (ONEDNN and x.is_cpu) or weight[0].numel() < SMALL:
        if bias is None:
            return torch.bmm(*_beside(x, weight.mT))[: len(x)]
        return added(bias[:, None], x, weight.mT)
    each = [None] * len(x) if bias is None else bias.unbind()
    return torch.stack([product(*one) for one in zip(x.unbind(), weight.unbind(), each, strict=True)])


def added(z: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """Return ``z + x right``, [C, r, o], for ``x [C, r, i]`` and ``right [C, i, o]``."""
    return torch.baddbmm(*_beside(z, x, right))[: len(x)]


def _beside(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return the operands of a product [C, r, o]; if C = o = 1, each of them repeated twice.

    The product of one client with a single column uses another kernel, with other bits, than that of several clients.
    """
    if parts[-1].shape[::2] != (1, 1):
        return parts
    return tuple(part.expand(2, -1, -1) for part in parts)


class _Product(torch.autograd.Function):
    """`product` with its gradients, which are products as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        left = gradient.flatten(0, -2)
        of_x = product(left, weight.t()).view_as(x) if ctx.needs_input_grad[0] else None
        of_bias = left.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, product(left.t(), x.flatten(0, -2).t()), of_bias


class Linear(nn.Linear):
    """A linear layer by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.Linear`."""
        result: Tensor = _Product.apply(input, self.weight, self.bias)
        return result


class _Unfolded(torch.autograd.Function):
    """A convolution as a matrix product, for images with channels last: one row of inputs for each output pixel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        (down, right), (o, c, *kernel) = padding, weight.shape
        wide = nn.functional.pad(x.permute(0, 2, 3, 1), (0, 0, right, right, down, down))  # [n, h, w, c]
        seen = wide.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1]).permute(0, 1, 2, 4, 5, 3)
        rows = seen.reshape(-1, kernel[0] * kernel[1] * c)
        ctx.save_for_backward(rows, weight)
        ctx.shapes = x.shape, wide.shape, seen.shape, stride, padding
        return product(rows, _flat(weight)).view(*seen.shape[:3], o).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        rows, weight = ctx.saved_tensors
        (_, c, h, w), wide, seen, stride, (down, right) = ctx.shapes
        o, _, tall, broad = weight.shape
        left = gradients[0].permute(0, 2, 3, 1).reshape(-1, o)
        of_weight = product(left.t(), rows.t()).view(o, tall, broad, c).permute(0, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None, None
        of_rows = product(left, _flat(weight).t()).view(seen)
        of_x = rows.new_zeros(wide)
        for i in range(tall):
            for j in range(broad):
                of_x[:, i : i + stride[0] * seen[1] : stride[0], j : j + stride[1] * seen[2] : stride[1]].add_(
                    of_rows[:, :, :, i, j]
                )
        return of_x[:, down : down + h, right : right + w].permute(0, 3, 1, 2), of_weight, None, None


def _flat(weight: Tensor) -> Tensor:
    """Return a convolution's weight [o, c, h, w] as a matrix [o, h w c]; a view if it has channels last."""
    return weight.permute(0, 2, 3, 1).reshape(len(weight), -1)


class Conv2d(nn.Conv2d):
    """A convolution, computed as a matrix product if its output has few pixels (`FEW`)."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.Conv2d`."""
        padding: Any = self.padding
        sides = zip(input.shape[-2:], self.kernel_size, self.stride, padding, strict=True)
        size = [(side + 2 * pad - kernel) // stride + 1 for side, kernel, stride, pad in sides]
        if input.ndim != 4 or min(size) < 1 or math.prod(size) > FEW:
            return super().forward(input)
        made: Tensor = _Unfolded.apply(input, self.weight, self.stride, padding)
        return made if self.bias is None else made + self.bias[:, None, None]


def _has_product(part: nn.Module) -> bool:
    """Return whether a module is a convolution that `Conv2d` can compute, with a weight of at least `LARGE` numbers."""
    return (
        type(part) is nn.Conv2d
        and part.weight.numel() >= LARGE
        and (part.groups, part.dilation, part.padding_mode) == (1, (1, 1), "zeros")
        and not isinstance(part.padding, str)
    )


class _Flattened(torch.autograd.Function):
    """Flattens channels-last images. Their gradient has channels last as well: mixing both layouts is slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].view(ctx.shape).contiguous(memory_format=torch.channels_last)


class Flatten(nn.Flatten):
    """Flattens the outputs of convolutions with channels last."""

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.Flatten`."""
        result: Tensor = _Flattened.apply(input) if input.ndim == 4 else super().forward(input)
        return result


def tuned(module: nn.Module, sample: Tensor) -> nn.Module:
    """Return a copy of a module for a CPU: large linear layers by oneDNN, convolutions with channels last.

    Convolutions with many weights and few output pixels are matrix products (`Conv2d`), 2 x 2 max pooling is computed
    as maxima and may be joined with a convolution of few filters before it (`pooling`). A part whose class names
    another class for CPUs, as `on_cpu`, is changed to that class.

    The outputs are the same up to rounding. ``sample [1, ...]`` is an input for a trial: a module that can't compute
    with channels last (e.g. because it calls `view`) keeps its layout.
    """
    made = copy.deepcopy(module)
    for part in made.modules():
        part.__class__ = getattr(part, "on_cpu", part.__class__)
        if ONEDNN and type(part) is nn.Linear and part.weight.numel() >= SMALL:
            part.__class__ = Linear
        elif ONEDNN and _has_product(part):
            part.__class__ = Conv2d
        elif pooling.is_plain(part):
            part.__class__ = pooling.MaxPool2d
        elif type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            part.__class__ = Flatten
    if sample.ndim != 4 or not any(isinstance(part, nn.Conv2d) for part in made.modules()):
        return made
    last: nn.Module = copy.deepcopy(made).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if ONEDNN:
        pooling.widen(last)
    if ONEDNN and processor.branch().endswith("-avx2"):  # where it was measured
        pooling.join(last)
    try:
        with torch.inference_mode():
            last(sample.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return made
    return last
