"""Methods that misbehave. They are FedAvg otherwise."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clusterfl.methods.fixed import FedAvg


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """Fail."""

    def begin(self, context):
        raise RuntimeError("a planned failure")


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg):
    """Wait for a file, but not for ever."""

    def begin(self, context):
        Path("begun").touch()
        for _ in range(1800):
            if Path("go").exists():
                break
            time.sleep(0.1)
        return super().begin(context)


@dataclass(frozen=True, kw_only=True)
class Plain(FedAvg):
    """Be FedAvg."""


@dataclass(frozen=True, kw_only=True)
class Patient(FedAvg):
    """Take three seconds a round."""

    def sample(self, context, state, round_):
        time.sleep(3)
        return super().sample(context, state, round_)


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Hold 2 GB for a while: more than is asked for at the first attempt, less than at the second."""

    def begin(self, context):
        with open("tries", "a") as file:
            file.write("x")
        held = np.ones(250_000_000)
        time.sleep(15)
        assert held[0]  # so that it is held until here
        return super().begin(context)


@dataclass(frozen=True, kw_only=True)
class Visible(FedAvg):
    """Say where this runs and which GPUs it sees."""

    def begin(self, context):
        node = os.environ.get("SLURMD_NODENAME", "?")
        Path("visible").write_text(f"{node} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
        return super().begin(context)
