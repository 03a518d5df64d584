"""A comparison as one self-contained HTML page, in the style of a study's report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from ...report import canvas, content, words
from ...storage.outputs import check_output
from ...storage.store import replacing
from . import show
from .comparison import Comparison, Row
from .origins import Difference

HERE = Path(__file__).parent / "templates"
MARK = '<meta name="generator" content="clusterfl compare">'  # in the head of each page, to recognise it
OLDER = ('<p class="study">Two studies</p>', '<p class="study">Two methods of study ')  # in older pages
# Style of a pair's marker: drawn over the interval and under the mean.
DOT: dict[str, Any] = {
    "linestyle": "none",
    "color": canvas.PALE,
    "markersize": 5,
    "markeredgecolor": "#555555",
    "zorder": 3,
}


def check_target(path: Path, studies: Sequence[str]) -> None:
    """Raise an error if a file for `write` exists and isn't an earlier page.

    Raises
    ------
    UserError
        If it is in the folder of one of the studies, under results/ or data/, or exists and isn't such a page.
    """
    folders = [name for name in studies if os.sep in name]
    check_output("--page", path, "compare", lambda text: any(mark in text for mark in (MARK, *OLDER)), folders)


def write(found: Comparison, path: Path) -> Path:
    """Write the page and return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE, content.TEMPLATES]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        album = content.Album(Path(folder))
        overview, parts = _overview(found, album), _parts(found, album)
        album.draw()
    text = environment.get_template("compare.html.j2").render(
        found=found,
        mark=Markup(MARK),
        title=f"{found.a} and {found.b}",
        sentences=show.headlines(found),
        overview=overview,
        parts=parts,
        settings=_listing(found.settings),
        origins=_listing(found.origins),
        lines=show.provenance(found),
        reading=list(show.reading(found.rows)),
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _parts(found: Comparison, album: content.Album) -> list[content.Content]:
    """Return the page's content for each federation, and for all together if there are several.

    For two studies each federation has figures of its methods; for two methods one figure has all federations.
    """
    parts: list[content.Content] = []
    for federation in found.federations:
        rows = [row for row in found.rows if row.federation == federation]
        metrics = (found.measure(federation), "ari") if found.study is None else ()
        figures = [_figure(found, metric, rows, album, len(parts)) for metric in metrics]
        parts.append({"name": federation, "figures": [one for one in figures if one]} | _tables(rows))
    whole = [row for row in found.rows if row.federation is None]
    if whole:
        parts.append({"name": "All federations", "figures": []} | _tables(whole))
    return parts


def _overview(found: Comparison, album: content.Album) -> list[content.Content]:
    """Return figures of two methods on all federations."""
    if found.study is None or not found.federations:
        return []
    metrics = dict.fromkeys([*map(found.measure, found.federations), "ari"])
    figures = [_figure(found, metric, found.rows, album, "all") for metric in metrics]
    return [one for one in figures if one]


def _tables(rows: Sequence[Row]) -> content.Content:
    """Return the rows of the first metrics, and all rows."""
    return {"table": _table([row for row in rows if row.metric in show.FIRST]), "whole": _table(rows)}


def _table(rows: Sequence[Row]) -> content.Content:
    table = pd.DataFrame([show.cells(row) for row in rows], columns=show.HEAD).drop(columns="federation")
    if all(row.method is None for row in rows):
        table = table.drop(columns="method")
    forms = {name.replace("-", "−"): _typeset for name in show.RIGHT}
    return content.listing(table.rename(columns={"B - A": "B − A"}), forms)


def _typeset(number: str) -> str:
    return "–" if number == "-" else number.replace("-", "−")


def _listing(differences: Sequence[Difference]) -> content.Content | None:
    rows = [(one.key, one.a, one.b) for one in differences]
    return content.listing(pd.DataFrame(rows, columns=["", "A", "B"])) if rows else None


def _figure(
    found: Comparison, metric: str, rows: Sequence[Row], album: content.Album, place: int | str
) -> content.Content:
    """Return the figure of a metric's paired differences, or nothing if no pair has it."""
    drawn = [row for row in rows if row.metric == metric and row.differences]
    if not drawn:
        return {}
    factor, unit, _ = show.FORMS[metric]
    name = "adjusted Rand index" if metric == "ari" else words.label(metric, found.score)
    axis = f"{name}, B − A" + (f" ({'points' if unit == '%' else unit})" if unit else "")
    return album.add(differences(drawn, factor, axis), f"compare-{place}-{metric}", axis)


def differences(rows: Sequence[Row], factor: float, axis: str) -> Figure:
    """Draw each pair's difference, a marker for each seed, with the mean and its interval.

    A row is a method or, for two methods, a federation.
    """
    figure, axes = canvas.rows_of(len(rows))
    axes.axvline(0, color="#555555", linewidth=1)
    seeds = sorted({seed for row in rows for seed in row.differences})
    few = len(seeds) <= canvas.SHOWN
    for i, seed in enumerate(seeds):
        places = [(factor * row.differences[seed], y) for y, row in enumerate(rows) if seed in row.differences]
        look: dict[str, Any] = {"marker": canvas.MARKERS[i], "label": f"seed {seed}"} if few else {"marker": "o"}
        axes.plot(*zip(*places, strict=True), **DOT | look)
    if not few:
        axes.plot([], [], **DOT, marker="o", label="one seed")
    for y, row in enumerate(rows):
        if row.paired.low is not None and row.paired.high is not None:
            axes.hlines(y, factor * row.paired.low, factor * row.paired.high, color=canvas.COLOURS[0])
    means = [(factor * row.paired.mean, y) for y, row in enumerate(rows) if row.paired.mean is not None]
    axes.plot(*zip(*means, strict=True), "d", color=canvas.COLOURS[0], markersize=7, label="mean", zorder=4)
    axes.plot([], [], color=canvas.COLOURS[0], label=f"{show.LEVEL:.0%} interval")
    axes.set_yticks(range(len(rows)), [row.method or str(row.federation) for row in rows])
    axes.set_xlabel(axis)
    canvas.legend(figure, "outside upper right", ncols=5)
    return figure
