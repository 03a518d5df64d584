"""Worker processes of one thread each, kept alive between rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..rows import Readable
from . import bits
from .worker import Worker


class Processes:
    """Calls functions of a worker in this process or in several; their number changes no result."""

    def __init__(self, worker: Worker, number: int):
        self.worker, self.number = worker, number
        self._pool: Any = None

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
            self._pool = None

    def shared(self, theta: Readable) -> Readable:
        """Return models where all processes have them, in memory or files: they aren't sent with every task."""
        return theta.clone().share_memory_() if self.number > 1 and isinstance(theta, Tensor) else theta

    def map(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Call ``work(worker, *task)`` for each task; results come in order."""
        # This process, too: the threads that one operation of several leaves waiting would take the workers' cores.
        with one_thread(self.worker.device):
            yield from self._here(work, tasks) if self.number == 1 else self._elsewhere(work, tasks)

    def _here(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        return (work(self.worker, *task) for task in tasks)

    def _elsewhere(self, work: Callable[..., Any], tasks: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        if self._pool is None:
            # Forked, so that the workers share the data.
            self._pool = torch.multiprocessing.get_context("fork").Pool(self.number, _begin, (self.worker,))
        waiting: deque[Any] = deque()
        for task in tasks:
            waiting.append(self._pool.apply_async(_call, (work, task)))
            if len(waiting) > 2 * self.number:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


_worker: Worker | None = None


def _begin(worker: Worker) -> None:
    global _worker
    _worker = worker
    torch.set_num_threads(1)


def _call(work: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    return work(_worker, *task)


def one_thread(device: torch.device) -> AbstractContextManager[None]:
    """Compute with one thread on a CPU."""
    return bits.one_thread() if device.type == "cpu" else nullcontext()
