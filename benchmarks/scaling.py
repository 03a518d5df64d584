"""How time grows with clients, samples, models and workers: ``python -m benchmarks.scaling [FOLDER]``.

Writes ``scaling.parquet``, ``scaling.svg`` and ``peak.json`` (the machine's products of matrices, for comparison). The
figures in docs/performance.md are made so; it takes five minutes on two cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from clusterfl.engine.engine import Engine
from clusterfl.engine.products import product
from clusterfl.engine.training import Training
from clusterfl.report import canvas
from clusterfl.storage.store import replacing

from . import made
from .measure import timed
from .works import BRIEF, fedavg

MODELS = {"mlp": "MLP 784-200-10", "lcfl-cnn": "LCFL's CNN"}
LOCAL = replace(BRIEF, batch_size=20)
REPEAT = 3
PANELS = {
    "clients": "clients (50 samples each), one round",
    "samples": "samples by client (48 clients), one round",
    "models": "models (losses on 100 clients x 50)",
    "workers": "worker processes, one round (CNN: 48 clients)",
}


def points() -> Iterator[tuple[str, str, int, float]]:
    """Yield axis, model, size and seconds; the fastest of `REPEAT` runs after one that isn't counted."""
    for model in MODELS:
        large = 1600 if model == "mlp" else 200
        for clients in (25, 50, 100, 200, 400, 800, 1600):
            if clients <= large:
                yield "clients", model, clients, round_seconds(model, clients, 50, 2)
        for samples in (10, 20, 50, 100, 200, 400):
            if model == "mlp" or samples <= 200:
                yield "samples", model, samples, round_seconds(model, 48, samples, 2)
        for models in (1, 2, 4, 8, 16, 32):
            yield "models", model, models, loss_seconds(model, models)
        for workers in (1, 2):
            yield "workers", model, workers, round_seconds(model, 200 if model == "mlp" else 48, 50, workers)


def round_seconds(model: str, clients: int, samples: int, workers: int) -> float:
    """Return the seconds of one round of FedAvg, batch 20, 5 epochs."""
    federation = made.images(clients, samples)
    settings = Training(**vars(LOCAL))
    with Engine(made.network(model, federation), federation, settings, device="cpu", workers=workers) as used:
        start = used.initial(0)
        return min([timed(lambda: fedavg(used, start)) for _ in range(REPEAT + 1)][1:])


def loss_seconds(model: str, models: int) -> float:
    """Return the seconds for the losses of so many models on 100 clients."""
    federation = made.images(100, 50)
    with Engine(made.network(model, federation), federation, Training(), device="cpu", workers=2) as used:
        theta, clients = torch.stack([used.initial(k) for k in range(models)]), np.arange(100)
        return min([timed(lambda: used.losses(theta, clients)) for _ in range(REPEAT + 1)][1:])


def peak() -> dict[str, float]:
    """Return the GFLOP/s of one thread's products of 1,000 x 1,000 matrices: PyTorch's and oneDNN's."""
    torch.set_num_threads(1)
    x = torch.randn(1000, 1000)
    found = {}
    for name, multiply in (("torch.mm", torch.mm), ("oneDNN", product)):
        seconds = median(timed(lambda multiply=multiply: multiply(x, x)) for _ in range(30))  # type: ignore[misc]
        found[name] = 2e9 / seconds / 1e9
    return found


def draw(table: pd.DataFrame) -> Figure:
    """Draw seconds against each size; a dotted line has the slope of linear growth."""
    figure, panels = canvas.grid(7.4, 6.2, 2, 2)
    for axes, (axis, label) in zip(panels.flat, PANELS.items(), strict=True):
        for i, (model, own) in enumerate(table[table["axis"] == axis].groupby("model", sort=False)):
            look = {"color": canvas.COLOURS[i], "marker": canvas.MARKERS[i]}
            axes.plot(own["size"], own["seconds"], label=MODELS[str(model)], **look)
            size, seconds = own["size"].to_numpy(), own["seconds"].to_numpy()
            slope = seconds[-1] * (size / size[-1]) ** (-1 if axis == "workers" else 1)
            axes.plot(size, slope, ":", color="#555555", label="linear" if not i else None)
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds")
        for ticks in (axes.xaxis, axes.yaxis):
            ticks.set_major_formatter("{x:,g}")
            ticks.set_minor_formatter(NullFormatter())
    panels[1, 1].set_xticks([1, 2])
    panels[0, 0].legend(frameon=False, fontsize=8)
    return figure


def main(folder: Path) -> None:
    """Measure, with a line on each point, and write."""
    rows = []
    for axis, model, size, seconds in points():
        rows.append({"axis": axis, "model": model, "size": size, "seconds": seconds})
        print(f"{axis} {model} {size}: {seconds:.3f} s", file=sys.stderr, flush=True)
    table = pd.DataFrame(rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "scaling.parquet")
    (folder / "peak.json").write_text(json.dumps(peak()), encoding="utf-8")
    with replacing(folder / "scaling.svg") as temporary:
        draw(table).savefig(temporary, format="svg")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
