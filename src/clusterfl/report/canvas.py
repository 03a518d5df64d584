"""Common drawing of figures: style, colours, empty axes, legends, files. Matplotlib's global state isn't changed.

Text stays text in the SVG, for screen readers and searching; equal numbers give equal bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

# Okabe and Ito's palette for all kinds of colour vision, without its yellow, which is too pale for lines on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
DASHES = ["-", "--", "-.", ":"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
PALE = "#B8B8B8"
CLUSTERS = ListedColormap([*COLOURS[:6], "#F0E442", "#000000", *colormaps["tab20b"](range(20))])
RASTERED = 1000  # more dots are drawn as an image, which is smaller
SHOWN = 8  # the most methods with their own colour; more can't be distinguished
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, which journals accept and which can be searched
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
}


def save(figure: Figure, folder: Path, name: str, pdf: bool = False) -> None:
    """Write a figure as SVG and PNG, and if `pdf` as PDF for print."""
    # Ids come from the salt, so figures that share a page need different ones.
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", metadata=nothing, dpi=110)
        figure.set_layout_engine("none")  # the layout is already computed
        figure.dpi = 130  # for `print_png`; `savefig` would draw once more, for a layout
        FigureCanvasAgg(figure).print_png(folder / f"{name}.png", metadata={"Software": None})
        if pdf:
            figure.dpi = 300
            undated = {"CreationDate": None, "Creator": None, "Producer": None}
            FigureCanvasPdf(figure).print_pdf(folder / f"{name}.pdf", metadata=undated)


_waiting: list[tuple[Figure, Path, str, bool]] = []  # for the forked processes of `save_all`


def save_all(figures: Sequence[tuple[Figure, Path, str]], pdf: bool = True) -> None:
    """Write figures, each into its folder under its name, as `save` does, on all cores.

    A figure is drawn by one process, so its bytes are the same on any number of cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if min(cores, len(figures)) < 2:
        for figure, folder, name in figures:
            save(figure, folder, name, pdf)
        return
    _waiting[:] = [(*figure, pdf) for figure in figures]
    try:
        forks = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(
            min(cores, len(figures)), forks, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        ) as pool:
            list(pool.map(_save_waiting, range(len(figures))))
    finally:
        _waiting.clear()


def _save_waiting(number: int) -> None:
    save(*_waiting[number])


def grid(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return an empty figure of this size in inches, in the report's style, and its axes [rows, columns]."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def blank(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure, axes = grid(width, height)
    return figure, axes[0, 0]


def legend(figure: Figure, place: Any, **options: Any) -> None:
    """Add a legend at a place outside the axes."""
    figure.legend(loc=place, frameon=False, fontsize=8, title_fontsize=8, **options)


def remark(figure: Figure, text: str) -> None:
    """Write a line above a figure, unless the text is empty."""
    if text:
        figure.suptitle(text, x=0.01, horizontalalignment="left", fontsize=8, color="#555555")


def rows_of(count: int) -> tuple[Figure, Axes]:
    """Return an empty figure with room for this many named rows, the first one at the top."""
    figure, axes = blank(7.4, 1.0 + 0.27 * count)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return figure, axes


def factor(measure: str) -> float:
    """Return the factor by which a measure is multiplied for display."""
    return 100.0 if measure == "accuracy" else 1.0


def cells(axes: Axes, ids: np.ndarray) -> None:
    """Draw an array of clusters or groups [rows, columns] as coloured cells."""
    bounds: dict[str, Any] = {"vmin": -0.5, "vmax": CLUSTERS.N - 0.5}
    axes.imshow(ids % CLUSTERS.N, cmap=CLUSTERS, aspect="auto", interpolation="nearest", **bounds)


def group_legend(figure: Figure, ids: np.ndarray, title: str, called: Callable[[int], str] = str) -> None:
    """Add the colours of clusters or groups to the legend, unless there are too many to distinguish."""
    if len(ids) <= 12:
        patches = [Patch(color=CLUSTERS(int(k) % CLUSTERS.N), label=called(int(k))) for k in ids]
        columns = len(ids) if called is str else 4  # names are longer than numbers
        legend(figure, "outside lower center", handles=patches, ncols=min(columns, len(ids)), title=title)
