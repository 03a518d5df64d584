"""Named random streams: every draw is keyed by (seed, purpose, counters such as round and client).

No draw depends on how many were made before it, so chunking, sharding, interruption and order change nothing. Two
forms: a numpy generator for one-off draws, and a counter-based hash for arrays of draws.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(seed: int, purpose: str, *counters: int) -> int:
    """Return the 128-bit key of a stream."""
    text = ":".join([str(int(seed)), purpose, *(str(int(c)) for c in counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a numpy generator for the stream (Philox, keyed directly)."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *counters)))


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection that spreads every bit."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def hashed(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 random bits for each combination of the broadcast integer `counters`.

    A value depends on its own counters only, so any part of the array may be computed anywhere.
    """
    state = np.asarray(np.uint64(key(seed, purpose) & 0xFFFFFFFFFFFFFFFF))
    with np.errstate(over="ignore"):
        for counter in counters:
            step = (np.asarray(counter, dtype=np.int64).astype(np.uint64) + np.uint64(1)) * _GOLDEN
            state = _mix(state + _mix(step))
    return state


def uniform(seed: int, purpose: str, *counters: ArrayLike) -> NDArray[np.float64]:
    """Return numbers in [0, 1), each from 53 bits of `hashed`."""
    return (hashed(seed, purpose, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed_on_device(seed: int, purpose: str, *counters: Any) -> Any:
    """Return the bits of `hashed` for torch tensors of counters, on their device, as int64."""
    state = _signed(key(seed, purpose) & _MASK)
    for counter in counters:
        state = counted(state, counter)
    return state


def counted(state: Any, counter: Any) -> Any:
    """Add a counter to a stream: return its bits, as int64, from those without the counter; see `hashed_on_device`."""
    return _mix_signed(state + _mix_signed((counter + 1) * _signed(int(_GOLDEN))))


_MASK = 0xFFFFFFFFFFFFFFFF


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _mix_signed(bits: Any) -> Any:
    """`_mix` in int64, which wraps in the same way; a logical shift is an arithmetic one with the sign bits cleared."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        shifted = (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(bits)
        bits = shifted.mul_(_signed(factor))
    return bits


def permutations(seed: int, purpose: str, sizes: ArrayLike, *counters: ArrayLike) -> NDArray[np.int64]:
    """Return a random permutation of ``range(n)`` for each of `sizes`.

    Parameters
    ----------
    seed, purpose
        The stream.
    sizes : [m]
        Lengths.
    counters : each [m] or a number
        What distinguishes the rows (round, client, epoch).

    Returns
    -------
    [m, max(sizes)] : row i holds a permutation of ``range(sizes[i])``, then -1.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    width = int(sizes.max(initial=0))
    column = np.arange(width)
    rows = [np.broadcast_to(np.asarray(c, dtype=np.int64), sizes.shape)[:, None] for c in counters]
    bits = hashed(seed, purpose, *rows, column[None, :])
    # Padding sorts last whatever its bits are; a stable sort orders equal bits by position.
    order = np.lexsort((bits, np.broadcast_to(column[None, :] >= sizes[:, None], bits.shape)), axis=1)
    return np.where(column[None, :] < sizes[:, None], order, -1)


@contextlib.contextmanager
def torch_stream(seed: int, purpose: str, *counters: int) -> Iterator[None]:
    """Run a block with torch's global generators seeded from the stream, then restore them.

    For code that draws from torch's global generators: initialisers, dropout, third-party modules.
    """
    import torch

    devices, bits = torch.cuda.device_count(), key(seed, purpose, *counters) & 0x7FFFFFFFFFFFFFFF
    with torch.random.fork_rng(devices=range(devices)):
        # Not torch.manual_seed: where CUDA isn't initialised it formats a stack trace at each call, for later errors.
        torch.default_generator.manual_seed(bits)
        if devices:
            torch.cuda.manual_seed_all(bits)
        yield


def derive(seed: int, setting: Any) -> int:
    """Resolve a ``seeds`` setting: ``"run"`` is the run's own seed, a number is itself."""
    return int(seed) if setting == "run" else int(setting)
