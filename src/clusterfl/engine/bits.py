"""Whether a client's results have the same bits in this process whichever clients are computed together with it.

The engine multiplies many clients' samples at once. This changes no bit if a row of a product doesn't depend on the
number of rows (for the numbers that the engine uses) or on the operands' memory addresses, a product of a batch doesn't
depend on the others, and an element of an activation doesn't depend on its position. `processor` chooses kernels for
which this was measured; here it is checked with the engine's own functions before training. If the check fails, e.g.
because other kernels were requested or torch multiplied before clusterfl was imported, each client is computed alone:
slower, but independent of how clients are grouped.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor, nn

from . import chain, processor, products
from .batches import VECTOR

ALONE = "CLUSTERFL_ALONE"  # environment variable: 1 computes each client alone, whatever the check finds
SHAPES = 3  # random shapes checked in addition to the model's
LARGEST = 1 << 18  # numbers of the largest weight that is checked, so that the check takes some ten milliseconds
ROWS = 2 * VECTOR  # of the batch used in the check


def sound(linear: Sequence[tuple[int, int]], module: nn.Module | None = None, x: Tensor | None = None) -> bool:
    """Return whether clients may be computed together; if not, print the reason, once.

    Parameters
    ----------
    linear
        Numbers of outputs and inputs of the model's linear layers.
    module, x : [ROWS, ...]
        The model and samples, if it isn't a chain of linear layers.
    """
    if os.environ.get(ALONE, "0") not in ("", "0"):
        return False
    small = [shape for shape in linear if shape[0] * shape[1] <= LARGEST]
    found = _general() or next((why for shape in small if (why := _of(shape))), "")
    if not found and module is not None and x is not None:
        with one_thread(), torch.inference_mode():
            found = _of_module(module, x)
    if found:
        _say(found)
    return not found


@lru_cache(maxsize=1)
def _say(what: str) -> None:
    """Print the warning, only the first time."""
    print(
        f"clusterfl: {what} on branch '{processor.branch()}' ({processor.name()}), so each client is computed by "
        "itself: slower, with results that don't depend on how clients are grouped; import clusterfl before anything "
        "multiplies with torch, don't set the variables of MKL, oneDNN and PyTorch, and see docs/reproducibility.md",
        file=sys.stderr,
    )


@lru_cache(maxsize=1)
def _general() -> str:
    """Return the dependence found for fixed and random shapes, or an empty text."""
    draw = np.random.default_rng(0)  # the same shapes, and so the same result of the check, in every process
    shapes = [(int(draw.integers(1, 80)), int(draw.integers(1, 400))) for _ in range(SHAPES)]
    return next((why for shape in [*shapes, (11, 5), (10, 10), (1, 40)] if (why := _of(shape))), "")


@lru_cache(maxsize=256)
def _of(shape: tuple[int, int]) -> str:
    """Return the dependence found for a linear layer with this number of outputs and inputs, or an empty text."""
    with one_thread(), torch.inference_mode():
        return differing(*shape)


def differing(outputs: int, inputs: int, seed: int = 0) -> str:
    """Return which result for such a layer depends on other rows or on addresses, as text, or an empty text."""
    draw = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.rand(n, m, generator=draw) - 0.5 for n, m in ((ROWS, inputs), (outputs, inputs), (4, outputs))
    )
    for multiply, unit in ((products.linear, VECTOR), (products.product, 4)):
        whole = multiply(x, weight)
        for first, rows in ((0, unit), (unit, 2 * unit), (ROWS - unit, unit), (5, VECTOR)):
            part = slice(first, first + rows)
            if not torch.equal(multiply(_moved(x[part], 3), weight), whole[part]):
                return f"a row of a product with a {outputs} x {inputs} matrix depends on the number of rows"
    weights = torch.stack([weight, -weight, weight * 0.5, weight + 0.25])
    return _of_stack(x[:40].view(4, 10, inputs), weights, bias) or _of_elements(products.linear(x, weight))


def _of_stack(x: Tensor, weight: Tensor, bias: Tensor) -> str:
    def gradient(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(weight, products.products(x, weight, bias).mT, x)

    parts, shape = (x, weight, bias), f"{len(x[0])} x {x.shape[2]} by {x.shape[2]} x {weight.shape[1]}"
    for multiply in (products.products, gradient):
        whole = multiply(*parts)
        for first, end in ((0, 1), (1, 3), (3, 4)):
            if not torch.equal(multiply(*(part[first:end] for part in parts)), whole[first:end]):
                return f"a product of matrices, {shape}, depends on the others of a stack"
        moved = [_moved(part, offset) for part, offset in zip(parts, (1, 7, 5), strict=True)]
        if not torch.equal(multiply(*moved), whole):
            return f"a product of matrices, {shape}, depends on where they lie in memory"
    return ""


def _of_module(module: nn.Module, x: Tensor) -> str:
    whole = module(x)
    for first, rows in ((0, VECTOR), (5, VECTOR)):
        if not torch.equal(module(x[first : first + rows].clone()), whole[first : first + rows]):
            return f"what {type(module).__name__} makes of a sample depends on the others of a batch"
    return ""


def _of_elements(z: Tensor) -> str:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        name: partial(chain.activate, activation=name) for name in chain.ACTIVATIONS.values()
    }
    functions["log-softmax"] = partial(nn.functional.log_softmax, dim=-1)
    functions["norm of a row"] = partial(torch.linalg.vector_norm, dim=1)
    for name, function in functions.items():
        whole = function(z.clone())  # an activation is computed in place
        for first in (0, 7, VECTOR):
            part = slice(first, first + VECTOR)
            if not torch.equal(function(_moved(z[part], 3)), whole[part]):
                return f"a value of {name} depends on its place"
    return ""


def _moved(values: Tensor, offset: int) -> Tensor:
    """Return a copy that begins `offset` numbers after an aligned address."""
    return torch.empty(values.numel() + offset)[offset:].view(values.shape).copy_(values)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: matrix products have other bits with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
