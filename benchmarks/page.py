"""The tables' files and the page of the benchmarks, which is one HTML file that asks for nothing from elsewhere."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import jinja2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import clusterfl
from clusterfl.engine import processor
from clusterfl.report import canvas, content, page
from clusterfl.storage.store import replacing

from .works import Bench

HERE = Path(__file__).parent
COLUMNS = {
    "work": None, "what": None, "unit": None, "value": content.number("{:.3g}"), "reference": content.number("{:.3g}"),
    "ratio": content.number("{:.3f}"), "spread": None, "bar": content.number("{:g}"), "met": None, "part": None,
}  # fmt: skip
MEASURED = ["value", "reference", "ratio", "bar", "seconds", "loop_seconds", "ratio_min", "ratio_max"]
GROUPS = {
    "training": "One round of FedAvg",
    "losses": "Losses of models on clients",
    "hooks": "What methods do beside FedAvg",
    "memory": "Peak memory",
    "growth": "More clients",
    "start-up": "Start-up",
    "whole": "Whole commands",
}


def write(bench: Bench, folder: Path) -> Path:
    """Write ``benchmark.parquet``, ``benchmark-growth.parquet`` if growth was measured, and return the page's path."""
    facts = machine(bench)
    rows = pd.DataFrame([asdict(row) | {"met": row.met} for row in bench.rows])
    rows = rows.astype({"pairs": "Int64"} | dict.fromkeys(MEASURED, float))
    points = pd.DataFrame([asdict(point) for point in bench.points])
    _write_table(rows, folder / "benchmark.parquet", facts)
    if len(points):
        _write_table(points, folder / "benchmark-growth.parquet", facts)
    with replacing(folder / "benchmark.html") as temporary:
        temporary.write_text(render(rows, points, facts), encoding="utf-8")
    return folder / "benchmark.html"


def machine(bench: Bench) -> dict[str, str]:
    """Return what the figures depend on besides the code."""
    return {
        "processor": processor.name(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "clusterfl": clusterfl.__version__,
        "processes of ours": str(bench.workers),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _write_table(table: pd.DataFrame, path: Path, facts: dict[str, str]) -> None:
    stored = pa.Table.from_pandas(table, preserve_index=False)
    with replacing(path) as temporary:
        pq.write_table(stored.replace_schema_metadata((stored.schema.metadata or {}) | facts), temporary)


def render(rows: pd.DataFrame, points: pd.DataFrame, facts: dict[str, str]) -> str:
    """Return the page of the rows and, where there are any, of the points of growth."""
    with TemporaryDirectory() as name:
        album = content.Album(Path(name))
        text = "Ratio of each work divided by its bar; the line spans the pairs"
        found = {"bars": album.add(bars(rows), "bars", text), "growth": None}
        if len(points):
            text = "Seconds of ten rounds and peak memory as clients become more; both axes logarithmic"
            found["growth"] = album.add(growth(points), "growth", text)
    folders = [HERE, Path(page.__file__).parent / "templates"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(
        parts=[(title, listing(rows[rows["group"] == group])) for group, title in GROUPS.items()],
        met=int(rows["met"].sum()),
        all=len(rows),
        facts=facts,
        sizes=content.listing(_sizes(points)) if len(points) else None,
        **found,
    )


def listing(rows: pd.DataFrame) -> content.Content | None:
    """Return rows as the template's table, or None if there are none."""
    if rows.empty:
        return None
    least, most = (rows[name].map("{:.3f}".format) for name in ("ratio_min", "ratio_max"))
    spread = (least + " to " + most).where(rows["pairs"] > 1)
    shown = rows.assign(spread=spread, met=np.where(rows["met"], "yes", "no"))[list(COLUMNS)]
    return content.listing(shown, {name: form for name, form in COLUMNS.items() if form})


def _sizes(points: pd.DataFrame) -> pd.DataFrame:
    per_client = 1e6 * points["seconds"] / points["clients"]
    return pd.DataFrame(
        {
            "work": points["work"],
            "clients": points["clients"].map("{:,}".format),
            "seconds": points["seconds"].map("{:.3g}".format),
            "µs per client": per_client.map("{:.0f}".format),
            "peak memory (GB)": points["gigabytes"].map("{:.2f}".format),
        }
    )


def bars(rows: pd.DataFrame) -> Figure:
    """Draw the ratio of each work divided by its bar, and where there are pairs their smallest and largest."""
    figure, axes = canvas.blank(7.4, 0.9 + 0.24 * len(rows))
    places, shown = np.arange(len(rows)), rows["ratio"] / rows["bar"]
    colours = np.where(rows["met"], canvas.COLOURS[0], canvas.COLOURS[1])
    axes.barh(places, shown, height=0.6, color=colours)
    axes.hlines(places, rows["ratio_min"] / rows["bar"], rows["ratio_max"] / rows["bar"], color="#000000", linewidth=1)
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set(xlabel="ratio / bar (at most 1: met)", ylim=(len(rows) - 0.5, -0.5), yticks=places)
    axes.set_yticklabels(rows["work"])
    axes.grid(axis="y", visible=False)
    return figure


def growth(points: pd.DataFrame) -> Figure:
    """Draw seconds and memory against the number of clients; a dotted line has the slope of linear growth."""
    figure, panels = canvas.grid(7.4, 3.2, 1, 2)
    for axes, column, label in zip(panels[0], ("seconds", "gigabytes"), ("seconds", "peak memory (GB)"), strict=True):
        for i, (work, own) in enumerate(points.groupby("work", sort=False)):
            look = {"color": canvas.COLOURS[i], "marker": canvas.MARKERS[i], "linestyle": canvas.DASHES[i]}
            axes.plot(own["clients"], own[column], label=str(work), **look)
        first = points[points["clients"] == points["clients"].min()]
        ends = np.array([points["clients"].min(), points["clients"].max()])
        axes.plot(ends, first[column].min() * ends / ends[0], ":", color="#555555", label="linear growth")
        axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=label)
        for axis in (axes.xaxis, axes.yaxis):  # powers would be formulas, which are written as they are
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(NullFormatter())
    axes.set_ylim(top=3 * points["gigabytes"].max())
    panels[0, 0].legend(frameon=False, fontsize=8)
    return figure
