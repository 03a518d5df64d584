"""Workers in processes of their own: what happens when one is gone."""

from __future__ import annotations

import os
import signal

import pytest
from federations import engine, mlp, uneven
from reference import trained

import clusterfl.engine.engine as engine_module
from clusterfl.errors import UserError


def test_a_worker_that_was_killed_is_a_sentence_and_none_lives_on(monkeypatch):
    """As the system does it for want of memory, in the middle of a run."""
    monkeypatch.setattr(engine_module, "PARTS", 3)  # so that both workers share a round
    with engine(mlp, uneven(), workers=2) as used:
        trained(used)
        workers = list(used._processes._alive)
        assert len(workers) == 2
        os.kill(workers[0].pid, signal.SIGKILL)
        with pytest.raises(UserError, match="a worker process was killed, most likely by the system for want of mem"):
            trained(used)
            trained(used)  # the pool may notice only when the first round's results are there
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
