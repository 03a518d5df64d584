"""The choice of a training backend for a model."""

from __future__ import annotations

import sys

from torch import nn

from ..errors import UserError
from . import stacked, work
from .processes import one_thread
from .worker import Worker


def choose(asked: str, worker: Worker) -> tuple[str, str]:
    """Return the backend for the worker's model, and the reason; UserError if the one asked for isn't possible."""
    if asked not in ("auto", *work.FORMS):
        raise UserError(f"backend: '{asked}'; allowed: auto, {', '.join(work.FORMS)}")
    if asked != "auto":
        with one_thread(worker.device):
            problem = work.FORMS[asked].obstacle(worker)
        if problem:
            raise UserError(f"backend: {asked} isn't possible: {problem}; use 'auto' or 'loop'")
        return asked, "asked for"
    if worker.chains:
        return "dense", "a chain of linear layers" if len(worker.chains) == 1 else "a sum of chains of linear layers"
    if worker.device.type == "cpu" and any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in worker.module.modules()):
        return "loop", "convolutions on a CPU: grouped ones are slower and their bits depend on the group"
    with one_thread(worker.device):
        problem = stacked.obstacle(worker)
    if problem:
        return "loop", problem
    print(f"training by torch.func, since this model has no hand-written gradient: {worker.unchained}", file=sys.stderr)
    return "stacked", worker.unchained
