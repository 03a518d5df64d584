"""The figure of the standardised differences with the normal distribution, see `claims.standardised`."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...report import canvas
from ...storage.store import replacing
from ..standardised import TAIL, judged, tails

NAME = "standardised"
EDGE = 5.0  # joint standard errors: larger differences are drawn at the edge, and named with their value
WIDTH = 0.5  # of a bar
NAMED = 10  # names for which each side has room


def write(table: pd.DataFrame, folder: Path) -> None:
    """Write `folder`/standardised as CSV, SVG, PNG and PDF; nothing where no judged number has an error."""
    names, z, _ = judged(table.to_dict("records"))
    if not len(z):
        return
    with replacing(folder / f"{NAME}.csv") as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("claim_id", "standardised"))
        writer.writerows((name, f"{value:.4f}") for name, value in zip(names, z, strict=True))
    canvas.save(figure(names, z), folder, NAME, pdf=True)


def figure(names: list[str], z: np.ndarray) -> Figure:
    """Return bars of the differences `z [n]`, the normal density scaled to n draws, and the names in the tails."""
    drawn, axes = canvas.blank(7.4, 4.2)
    edges = np.arange(-EDGE, EDGE + WIDTH / 2, WIDTH)
    heights, _ = np.histogram(np.clip(z, -EDGE, EDGE), edges)
    axes.bar(edges[:-1], heights, WIDTH, align="edge", color=canvas.COLOURS[0], label=f"{len(z)} judged numbers")
    x = np.linspace(-EDGE, EDGE, 201)
    density = len(z) * WIDTH * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    axes.plot(x, density, color=canvas.COLOURS[1], label="normal distribution, as many draws")
    for side in (-TAIL, TAIL):
        axes.axvline(side, color=canvas.PALE, linestyle="--", linewidth=0.8)
    above = axes.get_xaxis_transform()  # heights in those of the axes, so that the layout makes room for the text
    far = tails(z)
    for side in (-1, 1):
        own = [i for i in far if side * z[i] > 0]
        lines = [f"{names[i]}  {z[i]:+.1f}" for i in own[:NAMED]]
        lines += [f"and {len(own) - NAMED} more: {NAME}.csv"] if len(own) > NAMED else []
        if lines:
            lines.insert(0, "")  # the layout leaves a part of a line too little
            align = "left" if side < 0 else "right"
            axes.text(side * EDGE, 1.01, "\n".join(lines), ha=align, va="bottom", fontsize=6, transform=above)
    axes.locator_params(axis="y", integer=True)
    axes.set(xlabel=f"(ours - print) / joint standard error; beyond ±{EDGE:.0f} drawn at the edge", ylabel="numbers")
    canvas.legend(drawn, "outside lower center", ncols=2)
    return drawn
