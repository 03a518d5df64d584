"""A comparison as one HTML page that asks for nothing from elsewhere, in the looks of a study's report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from ...report import canvas, content, words
from ...storage.store import replacing
from . import show
from .comparison import Comparison, Row
from .origins import Difference

HERE = Path(__file__).parent / "templates"


def write(found: Comparison, path: Path) -> Path:
    """Write the page and return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE, content.TEMPLATES]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        parts = _parts(found, content.Album(Path(folder)))
    text = environment.get_template("compare.html.j2").render(
        found=found,
        title=f"{found.a} and {found.b}",
        parts=parts,
        settings=_listing(found.settings),
        origins=_listing(found.origins),
        lines=show.provenance(found),
        reading=list(show.reading(found)),
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _parts(found: Comparison, album: content.Album) -> list[content.Content]:
    """Return what the page shows of each federation, and of all together where there are several."""
    sentences = dict(show.headlines(found))
    parts = []
    for number, federation in enumerate(found.federations):
        rows = [row for row in found.rows if row.federation == federation]
        figures = [_figure(found, metric, rows, album, number) for metric in (found.measure, "ari")]
        parts.append({"name": federation, "finding": sentences.get(federation), "table": _table(rows),
                      "figures": [figure for figure in figures if figure]})  # fmt: skip
    whole = [row for row in found.rows if row.federation is None]
    if whole:
        parts.append({"name": "All federations", "finding": None, "table": _table(whole), "figures": []})
    return parts


def _table(rows: Sequence[Row]) -> content.Content:
    head = [name for name in show.HEAD if name != "federation"]
    table = pd.DataFrame([show.cells(row)[1:] for row in rows], columns=head)
    if all(row.method is None for row in rows):
        table = table.drop(columns="method")
    as_is = dict.fromkeys(show.RIGHT, lambda text: str(text).replace("-", "−") if text != "-" else "–")
    return content.listing(table, as_is)


def _listing(differences: Sequence[Difference]) -> content.Content | None:
    rows = [(one.key, one.a, one.b) for one in differences]
    return content.listing(pd.DataFrame(rows, columns=["", "A", "B"])) if rows else None


def _figure(found: Comparison, metric: str, rows: Sequence[Row], album: content.Album, number: int) -> content.Content:
    """Return the picture of a metric's paired differences on a federation; nothing where no pair has it."""
    drawn = [row for row in rows if row.metric == metric and row.differences]
    if not drawn:
        return {}
    factor, unit, _ = show.FORMS[metric]
    name = "adjusted Rand index" if metric == "ari" else words.label(metric, found.score)
    axis = f"{name}, B − A" + (f" ({'points' if unit == '%' else unit})" if unit else "")
    return album.add(differences(drawn, factor, axis), f"compare-{number}-{metric}", axis)


def differences(rows: Sequence[Row], factor: float, axis: str) -> Figure:
    """Draw each pair's difference, a marker for each seed, with the mean and its interval, a row for each method."""
    figure, axes = canvas.rows_of(len(rows))
    axes.axvline(0, color="#555555", linewidth=1)
    seeds = sorted({seed for row in rows for seed in row.differences})
    few = len(seeds) <= canvas.SHOWN
    for i, seed in enumerate(seeds):
        places = [(factor * row.differences[seed], y) for y, row in enumerate(rows) if seed in row.differences]
        look: dict[str, Any] = {"marker": canvas.MARKERS[i], "label": f"seed {seed}"} if few else {"marker": "o"}
        axes.plot(*zip(*places, strict=True), linestyle="none", color=canvas.PALE, markersize=5, **look)
    if not few:
        axes.plot([], [], "o", color=canvas.PALE, markersize=5, label="one seed")
    for y, row in enumerate(rows):
        if row.paired.low is not None and row.paired.high is not None:
            axes.hlines(y, factor * row.paired.low, factor * row.paired.high, color=canvas.COLOURS[0])
    means = [(factor * row.paired.mean, y) for y, row in enumerate(rows) if row.paired.mean is not None]
    axes.plot(*zip(*means, strict=True), "d", color=canvas.COLOURS[0], markersize=6, label="mean")
    axes.plot([], [], color=canvas.COLOURS[0], label=f"{show.LEVEL:.0%} interval")
    axes.set_yticks(range(len(rows)), [row.method or "" for row in rows])
    axes.set_xlabel(axis)
    canvas.legend(figure, "outside upper right", ncols=5)
    return figure
