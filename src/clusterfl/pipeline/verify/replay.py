"""Checks that final models have the scores recorded in the history, by evaluating a sample of clients again."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from ... import streams
from ...engine.engine import Engine
from ...engine.personal import Columns, Personal
from ...engine.training import Training
from ...progress import bar
from ...report.tables import timing
from ...simulation.state import BOUNDS, MIXTURE, NEAREST, PERSONAL
from ...storage.digest import canonical
from ...storage.row_store import StoredRows
from ...storage.store import names_of, read_tensors
from ..job import Job
from ..stages import Work
from ..stages.common import engine
from .content import ACCURACY_SHARE, may_differ
from .tables import Problem, frame

LOSS_SAME, LOSS_OTHER = 1e-6, 1e-3  # allowed relative differences of losses, on the same machine and on another


class Replay:
    """Evaluates models again; data and network are loaded only if they differ from the last job's.

    Parameters
    ----------
    sample
        The most clients of each job that are evaluated, see `chosen`.
    threads, chunk
        Of the engine.
    """

    def __init__(self, sample: int, threads: int = 1, chunk: int | None = None):
        self.sample, self.threads, self.chunk = sample, threads, chunk
        self.done = 0  # number of evaluations
        self._key = ""
        self._engine: Engine | None = None

    def close(self) -> None:
        """End the engine's processes."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def __call__(self, job: Job, manifest: Mapping[str, Any], here: Mapping[str, str]) -> Iterator[Problem]:
        """Yield a problem if final models, of a method or warm-up, have other scores; `here` are package versions."""
        key = "models" if job.stage == "federate" else "common"
        models = job.outputs[key]
        labels = read_tensors(models, ["labels"])["labels"]
        clients = chosen(labels, self.sample)
        history = frame(job.outputs["history"])
        final = history["round"] == job.settings["training"]["rounds"]
        history = history[final & (history["evaluation"] == "aggregated")]
        if not len(clients) or history.empty:
            return
        used = self._used(job, manifest["inputs"])
        used.enter(job.settings["training"]["rounds"])
        same = used.device.type == manifest.get("device") == "cpu" and same_machine(job, manifest, here)
        theta, ids = StoredRows([models], "theta"), used.federation.ids[clients]
        if theta.shape[1] != used.layout.columns:
            yield key, f"models of {theta.shape[1]} numbers found, {used.layout.columns} expected"
            return
        personal, nearest = _personal(models), _nearest(models)
        mixture = read_tensors(models, [MIXTURE])[MIXTURE][clients] if MIXTURE in names_of(models) else None
        for split, rows in history.groupby("split"):
            scores = used.own_scores(theta, labels[clients], clients, str(split), personal, nearest, mixture)
            recorded = rows.set_index("client").reindex(ids)
            self.done += len(clients)
            off = ~equal(recorded, scores.n, scores.correct, scores.loss, same)
            if off.any():
                i = int(np.argmax(off))
                there = recorded.iloc[i]
                found = f"correct {scores.correct[i]:g} of {scores.n[i]}, loss {scores.loss[i]:.6g} found"
                expected = f"correct {there['correct']:g}, loss {there['loss']:.6g} of history.parquet expected"
                more = f"({off.sum()} of {len(clients)} clients; {tolerance(same)})"
                yield key, f"client {ids[i]}, {split}, evaluated again: {found}, {expected} {more}"
                return

    def _used(self, job: Job, digests: Mapping[str, str]) -> Engine:
        names = ("model", "inputs", "device", "precision", "copies")
        settings = {name: job.settings[name] for name in names if name in job.settings}
        data = {name: digests[str(job.inputs[name])] for name in ("samples", "partition")}
        if settings["device"].startswith("cuda") and not torch.cuda.is_available():
            settings["device"] = "cpu"  # scores then differ by rounding
        key = canonical(settings | data)
        if self._engine is None or key != self._key:
            self.close()
            work = Work(settings, job.identity, job.inputs, job.outputs, bar, self.threads, self.chunk)
            self._key, self._engine = key, engine(work, Training())
        return self._engine


def _personal(models: Path) -> Personal | None:
    """Return the columns that a run's clients keep, if there are any."""
    if PERSONAL not in names_of(models):
        return None
    return Personal(Columns(read_tensors(models, [BOUNDS])[BOUNDS]), StoredRows([models], PERSONAL))


def _nearest(models: Path) -> torch.Tensor | None:
    """Return the class centres by which a run predicts, if there are any."""
    return torch.as_tensor(read_tensors(models, [NEAREST])[NEAREST]) if NEAREST in names_of(models) else None


def chosen(labels: NDArray[np.int64], sample: int) -> NDArray[np.int64]:
    """Return up to `sample` clients that have a model, ascending, spread as evenly as possible over the models.

    Parameters
    ----------
    labels : [M]
        The model of each client, -1 = none.
    sample
        The most clients.
    """
    order = streams.generator(0, "verify").permutation(len(labels))
    order = order[labels[order] >= 0]
    rank = pd.Series(labels[order]).groupby(labels[order]).cumcount().to_numpy()
    return np.sort(order[np.argsort(rank, kind="stable")][:sample])


def same_machine(job: Job, manifest: Mapping[str, Any], here: Mapping[str, str]) -> bool:
    """Return whether a result was made on this host, with the present versions of torch and numpy."""
    then = manifest.get("versions", {})
    if any(here.get(name) != then.get(name) for name in ("torch", "numpy")):
        return False
    try:
        hosts = timing(job.first)["host"]
    except (OSError, ValueError, KeyError):
        return False
    return bool((hosts == platform.node()).all())


def tolerance(same: bool) -> str:
    """Return the allowed differences as text."""
    if same:
        return f"on the same machine correct is equal, loss to {LOSS_SAME:g}"
    return f"on another machine correct may differ by {ACCURACY_SHARE:.0%} of the samples, at least 1, loss by " \
           f"{LOSS_OTHER:g}"  # fmt: skip


def equal(
    recorded: pd.DataFrame, n: NDArray[np.int64], correct: NDArray[np.float64], loss: NDArray[np.float64], same: bool
) -> NDArray[np.bool_]:
    """Return for which clients the history's rows and the evaluation's arrays [m] agree within tolerance, [m]."""
    most = np.zeros(len(n)) if same else may_differ(n)
    equal = np.isclose(recorded["correct"], correct, rtol=0, atol=most, equal_nan=True)
    equal &= np.isclose(recorded["loss"], loss, rtol=LOSS_SAME if same else LOSS_OTHER, atol=1e-9, equal_nan=True)
    return np.asarray(equal & (recorded["n"].to_numpy() == n))
