"""A study's data in memory for estimates, even if none of its jobs has run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from ...data.catalogue import rows
from ...data.federation import Federation
from ...data.inputs import Inputs
from ...data.load import clients
from ...data.prepared import Prepared
from ...data.samples import Samples, Table, read_samples
from ...simulation import survey
from ...storage.digest import imported_later
from ..execute import is_done
from ..job import Job
from ..stages import partition
from ..stages.download import obtain
from .startup import load

FEW = 8  # samples of each class: the results are as large as for all samples unless a client sends more vectors


class FewSamples(survey.Samples):
    """A federation's training samples, with only a few of each class for each of the first `clients` clients."""

    def __init__(self, federation: Federation, clients: int | None = None):
        split = federation.splits["train"]
        super().__init__(Prepared(split), split.offsets[: None if clients is None else clients + 1])

    def places(self, client: int) -> torch.Tensor:
        """See `simulation.survey.Samples`."""
        every = super().places(client)
        y = self.data.y[every].numpy()
        order = np.argsort(y, kind="stable") if y.dtype.kind in "iub" else np.arange(len(y))
        firsts = np.searchsorted(y[order], y[order]) if y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)
        return every[torch.as_tensor(np.sort(order[np.arange(len(y)) - firsts < FEW]))]


class Missing(Exception):
    """Data that haven't been fetched yet; the text says how to get them."""


@dataclass
class Place:
    """A federation, as drawn for one of its seeds."""

    samples: Samples
    table: Table
    federation: Federation
    newcomers: Federation | None
    seconds: float  # of drawing the partition
    reading: float = 0.0  # seconds of reading the dataset

    @classmethod
    def of(cls, job: Job, samples: Samples, inputs: Inputs) -> Place:
        """Return the data for a partition's job."""
        began = perf_counter()
        table = partition.make(job.settings, samples, job.settings["seed"])
        partition.class_counts(table, samples)
        seconds = perf_counter() - began
        new = clients(samples, table, inputs, "newcomer") if (table["role"] == "newcomer").any() else None
        return cls(samples, table, clients(samples, table, inputs), new, seconds)


def samples_of(job: Job, folder: Path) -> tuple[Samples, float]:
    """Return the samples of a download, and the seconds of reading them; a reader may write into `folder`.

    Raises
    ------
    Missing
        If files must be fetched first.
    """
    load(imported_later(job.modules))  # imports belong to the start
    began = perf_counter()
    if is_done(job) or (fetched(job) and job.first.exists()):  # a change of code doesn't change the sizes
        found = read_samples(job.first)
    elif fetched(job):
        raise Missing(f"first run: {job.command}")
    else:
        found = obtain(job.settings["dataset"], folder / "data", job.settings["options"])[0]
    return found, perf_counter() - began


def fetched(job: Job) -> bool:
    """Return whether a dataset has files that must be downloaded."""
    row = rows().get(job.settings["dataset"])
    return row is not None and bool(row.sources)


def size(samples: Samples) -> float:
    """Return the bytes of a dataset."""
    return float(sum(array.nbytes for array in vars(samples).values() if array is not None))
