"""The contract of a dataset: a function of a folder, ``(folder, **options) -> x, y``, or `Samples`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...data.samples import Samples
from ...storage.store import DATA
from ..stages.download import obtain
from .check import REPRODUCIBLE, Check, Finding, GlobalDraws, drawn_in, fails, first_difference, note


@dataclass
class DatasetCase:
    """A dataset with options, and its samples."""

    name: str
    options: dict[str, Any]

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield the folder of its files: its own under data/ if that exists, else an empty temporary one."""
        own = DATA / self.name.replace(":", ".")
        if own.is_dir():
            yield own
            return
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)

    def read(self) -> Samples:
        """Return the samples, as stage download reads them."""
        with self.folder() as folder:
            return obtain(self.name, folder, self.options)[0]

    @cached_property
    def first(self) -> tuple[Samples, Finding | None]:
        """Samples, and a finding on draws from global generators."""
        return drawn_in(self.read)

    @property
    def samples(self) -> Samples:
        """The samples that it returns."""
        return self.first[0]


def fits(case: DatasetCase) -> Finding | None:
    """Hold that it returns x and y of numbers, with the same number of rows, at least one."""
    if not len(case.samples.y):
        return fails("it returns no sample; check what it reads, and whether its files exist")
    return None


def finite(case: DatasetCase) -> Finding | None:
    """Hold that no number is NaN or infinite."""
    for name in ("x", "y"):
        values = getattr(case.samples, name)
        if values.dtype.kind == "f":
            bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
            if len(bad):
                count = f"{len(bad)} row{'s' * (len(bad) != 1)} in all"
                return fails(f"{name} has NaN or infinity in row {bad[0]} ({count}); drop such samples, or fill them")
    return None


def kinds(case: DatasetCase) -> Finding | None:
    """Hold that samples are bytes (images), whole numbers (tokens) or float32."""
    x = case.samples.x
    if x.dtype == np.uint8 and x.ndim != 4:
        return note(
            f"x holds bytes of shape {x.shape[1:]}, which become numbers from 0 to 1; images are [channels, height, "
            "width]"
        )
    if x.dtype.kind == "f" and x.dtype != np.float32:
        return note(f"x holds {x.dtype}, which is stored and later converted to float32; convert it to save disk space")
    return None


def classes(case: DatasetCase) -> Finding | None:
    """Hold that classes are 0, 1, 2, ... without a gap."""
    y = case.samples.y
    if y.dtype.kind not in "iu":
        return None
    if y.min() < 0:
        return fails(f"sample {int(np.argmin(y))} has class {y.min()}; allowed: 0, 1, 2, ...: number them from 0")
    lacking = np.setdiff1d(np.arange(int(y.max()) + 1), y)
    if len(lacking):
        return note(f"no sample has class {lacking[0]} of 0 to {y.max()}; networks still have an output for it")
    return None


def no_global_draws(case: DatasetCase) -> Finding | None:
    """Hold that no global generator of random, NumPy or torch is drawn from, or seeded."""
    return case.first[1]


def same_twice(case: DatasetCase) -> Finding | None:
    """Hold that a second call gives the same bits."""
    GlobalDraws(2)
    where = first_difference(case.samples.tensors(), case.read().tensors())
    if where is None:
        return None
    return fails(f"{where}, in two calls; {REPRODUCIBLE}, and sort lists of files")


FITS = "returns x and y"
CHECKS = (
    Check(FITS, fits),
    Check("returns finite numbers", finite, (FITS,)),
    Check("returns samples of a kind that is stored", kinds, (FITS,)),
    Check("counts classes from 0", classes, (FITS,)),
    Check("draws nothing from global generators", no_global_draws, (FITS,)),
    Check("gives the same samples twice", same_twice, ("draws nothing from global generators",)),
)
