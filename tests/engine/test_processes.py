"""Workers in processes of their own: what happens when one is gone."""

from __future__ import annotations

import os
import signal
import time

import pytest
from federations import engine, mlp, uneven
from reference import trained

import clusterfl.engine.engine as engine_module
from clusterfl.errors import UserError


def lives(worker):
    """Return whether a process is there."""
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_was_killed_is_a_sentence_and_none_lives_on(monkeypatch):
    """As the system does it for want of memory, in the middle of a run."""
    monkeypatch.setattr(engine_module, "PARTS", 3)  # so that both workers share a round
    with engine(mlp, uneven(), workers=2) as used:
        trained(used)
        workers = list(used._processes._alive)
        assert len(workers) == 2
        os.kill(workers[0].pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        with pytest.raises(UserError, match="a worker process was killed, most likely because the system"):
            while time.monotonic() < deadline:  # the pool's thread looks for it only when it has no result to hand on
                trained(used)
        # By their numbers: the pool's own thread may be the one that learns of their ends, before `is_alive` does.
        while any(map(lives, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(lives, workers))
