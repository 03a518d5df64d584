"""Methods that misbehave. They are FedAvg otherwise."""

import os
import time
from pathlib import Path

import numpy as np

from clusterfl.methods.fixed import Fixed


def _fedavg(context):
    return Fixed(context, np.zeros(context.clients, dtype=np.int64))


def broken(context):
    """Fail."""
    raise RuntimeError("a planned failure")


def slow(context):
    """Wait for a file, but not for ever."""
    Path("begun").touch()
    for _ in range(1800):
        if Path("go").exists():
            break
        time.sleep(0.1)
    return _fedavg(context)


def plain(context):
    """Be FedAvg."""
    return _fedavg(context)


class _Patient(Fixed):
    def sample(self, state, round_):
        time.sleep(3)
        return super().sample(state, round_)


def patient(context):
    """Take three seconds a round."""
    return _Patient(context, np.zeros(context.clients, dtype=np.int64))


def greedy(context):
    """Hold 2 GB for a while: more than is asked for at the first attempt, less than at the second."""
    with open("tries", "a") as file:
        file.write("x")
    held = np.ones(250_000_000)
    time.sleep(15)
    return _fedavg(context) if held[0] else None


def visible(context):
    """Say where this runs and which GPUs it sees."""
    node = os.environ.get("SLURMD_NODENAME", "?")
    Path("visible").write_text(f"{node} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    return _fedavg(context)
