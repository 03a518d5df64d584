"""What makes a product of matrices give the same bits wherever its operands lie in memory.

Intel's MKL, which PyTorch uses on x86, picks other kernels for operands at other alignments, so a client's result
would depend on its place in a chunk. A fixed code branch stops that: measured at no cost in time, and equal on all
processors with AVX2 (docs/log.md). It must be chosen before the process multiplies its first matrices.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def check() -> None:
    """Warn, once, if products still depend on alignment."""
    if alignments_differ():
        warnings.warn(
            "this process multiplied matrices with torch before clusterfl was imported, so results on the CPU may "
            "differ in their last bits with the chunk size; import clusterfl first, or set MKL_CBWR=AVX2 outside",
            RuntimeWarning,
            stacklevel=3,
        )


def alignments_differ() -> bool:
    """Return whether one product has different bits at 16 different alignments; this shape shows it where any does."""
    with one_thread():
        left = torch.linspace(-1, 1, 400).sin().view(4, 10, 10)
        right = torch.linspace(-2, 1, 200).cos().view(4, 5, 10)
        found = set()
        for offset in range(16):
            x = torch.empty(left.numel() + 16)[offset : offset + left.numel()].view(left.shape).copy_(left)
            y = torch.empty(right.numel() + 16)[offset : offset + right.numel()].view(right.shape).copy_(right)
            found.add(torch.bmm(x, y.transpose(1, 2)).numpy().tobytes())
    return len(found) > 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: with more, matrix products give other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
