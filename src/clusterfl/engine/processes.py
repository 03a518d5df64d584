"""Worker processes of one thread each, kept alive between rounds."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import active_children
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..storage.row_store import Readable
from . import bits
from .forked import begin
from .worker import Worker

SLOT_BYTES = 128 << 20  # address space; memory is used only for pages that were written


class _Slot:
    """Memory shared by all processes, into which a worker copies the arrays of a result.

    That is the only copy. A pipe would need four, and passing shared tensors costs more than training a client:
    measured .146 s for a round of 200 small clients, .116 s with slots (docs/log.md).
    """

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, SLOT_BYTES)

    def leave(self, result: Any) -> tuple[bytes, list[slice]]:
        """Write a result; return the arguments for `found`."""
        places: list[slice] = []

        def place(buffer: pickle.PickleBuffer) -> bool:
            first = -(-places[-1].stop // 64) * 64 if places else 0
            with buffer.raw() as raw:
                if first + raw.nbytes > SLOT_BYTES:
                    return True  # no room: it stays in the pickle
                places.append(slice(first, first + raw.nbytes))
                self.memory[places[-1]] = raw
            return False

        kept = io.BytesIO()
        _Pickler(kept, protocol=5, buffer_callback=place).dump(result)
        return kept.getvalue(), places

    def found(self, kept: bytes, places: list[slice]) -> Any:
        """Return the result, whose arrays are views of this memory."""
        return pickle.loads(kept, buffers=[memoryview(self.memory)[place] for place in places])


class _Pickler(pickle.Pickler):
    """Pickles tensors as numpy arrays, whose data pickle can pass out of band."""

    def reducer_override(self, obj: Any) -> Any:
        return (torch.from_numpy, (obj.numpy(),)) if isinstance(obj, Tensor) else NotImplemented


class Processes:
    """Calls functions with a worker, in this process or in several; the number of processes changes no result."""

    def __init__(self, worker: Worker, number: int):
        self.worker, self.number = worker, number
        self._pool: ProcessPoolExecutor | None = None
        self._alive: set[Any] = set()  # its processes
        self._slots = [_Slot() for _ in range(3 * number)] if number > 1 else []

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def shared(self, theta: Readable) -> Readable:
        """Return rows in memory, or files, that all processes share, so that they aren't sent with every task."""
        return theta.clone().share_memory_() if self.number > 1 and isinstance(theta, Tensor) else theta

    def map(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Call ``work(worker, *task)`` for each task; yield results in order, each valid until the next is requested.

        Raises
        ------
        UserError
            If a worker process was killed.
        """
        # One thread in this process, too: idle threads of multi-threaded operations would use the workers' cores.
        with one_thread(self.worker.device):
            here = (work(self.worker, *task) for task in tasks)
            yield from here if self.number == 1 else self._elsewhere(work, tasks)

    def _elsewhere(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        waiting: deque[tuple[int, Future[Any]]] = deque()
        free = list(range(len(self._slots)))
        try:
            pool = self._forked()
            for task in tasks:
                slot = free.pop()
                waiting.append((slot, pool.submit(_call, work, task, slot)))
                if not free:
                    slot, called = waiting.popleft()
                    yield self._slots[slot].found(*called.result())
                    free.append(slot)
            for slot, called in waiting:
                yield self._slots[slot].found(*called.result())
        except BrokenProcessPool as error:
            for process in self._alive:
                process.kill()  # the pool would send SIGTERM, which they ignore, and wait forever
            raise UserError(
                "a worker process was killed, most likely because the system ran out of memory; run the same command "
                "again with fewer --threads or more memory (on a cluster: mem_mb of the rule)"
            ) from error

    def _forked(self) -> ProcessPoolExecutor:
        """Return the pool of workers, forked at the first call, so that they share the data."""
        if self._pool is None:
            given, before = (self.worker, self._slots, os.getpid()), set(active_children())
            self._pool = ProcessPoolExecutor(self.number, torch.multiprocessing.get_context("fork"), _begin, given)
            self._pool.submit(os.getpid).result()
            self._alive = set(active_children()) - before
        return self._pool


_worker: Worker | None = None
_slots: list[_Slot] = []


def _begin(worker: Worker, slots: list[_Slot], parent: int) -> None:
    global _worker, _slots
    _worker, _slots = worker, slots
    begin(parent)  # signals to the whole process group are left to the parent, which ends the round and its workers


def _call(work: Callable[..., Any], task: tuple[Any, ...], slot: int) -> tuple[bytes, list[slice]]:
    return _slots[slot].leave(work(_worker, *task))


def one_thread(device: torch.device) -> AbstractContextManager[None]:
    """Compute with one thread on a CPU."""
    return bits.one_thread() if device.type == "cpu" else nullcontext()
