"""The papers' tables in their own form, ours beside print: on the page, as CSV and as LaTeX; curves as SVG."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...report import canvas, figures
from ...storage.store import replacing
from .. import scale
from ..printed import claims, slug

KEYS = ("dataset", "setting", "metric", "at")  # what a column may stand for
CURVE = 3  # printed iterations from which on a setting is also drawn as curves
FAINT = 0.45  # opacity of reduced runs
# Okabe and Ito's colours, dark enough for text on white; the same in LaTeX, on the page and in SVG.
COLOURS = {
    "reproduced": "0060A0", "by construction": "4B6A88", "undecided": "7A5C00", "differs": "B34700",
    "not comparable": "5A5A5A", "not run": "808080",
}  # fmt: skip
MARKS = {
    "reproduced": "=", "by construction": "≡", "undecided": "?", "differs": "≠", "not comparable": "~", "not run": "",
}  # fmt: skip
LATEX = {
    "reproduced": "$=$", "by construction": r"$\equiv$", "undecided": "?", "differs": r"$\neq$",
    "not comparable": r"$\sim$", "not run": "",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One printed number with ours beside it, as text."""

    claim_id: str
    printed: str
    ours: str
    verdict: str
    reason: str


@dataclass
class Printed:
    """One table of a paper: `rows` are named by what `stub` says, `columns` have heads of one or more lines."""

    paper: str
    where: str
    stub: str
    heads: tuple[str, ...] = ()  # what each line of the columns' heads names
    common: tuple[str, ...] = ()  # what is the same in all cells
    rows: list[str] = field(default_factory=list)
    columns: list[tuple[str, ...]] = field(default_factory=list)
    cells: dict[tuple[str, tuple[str, ...]], Cell] = field(default_factory=dict)
    curves: list[str] = field(default_factory=list)  # names of the figures of settings with several printed iterations

    @property
    def name(self) -> str:
        """The table's name in file names and links."""
        return slug(self.where)

    def line(self, row: str) -> list[Cell | None]:
        """Return the cells of a row, None where nothing is printed."""
        return [self.cells.get((row, column)) for column in self.columns]


def printed(table: pd.DataFrame) -> list[Printed]:
    """Return the papers' tables, made of the rows of claims.parquet, in their order."""
    texts = {claim.claim_id: claim for claim in claims()}
    found = []
    for (paper, where), rows in table.groupby(["paper", "where"], sort=False):
        found.append(_pivot(str(paper), str(where), rows, texts))
    return found


def _pivot(paper: str, where: str, rows: pd.DataFrame, texts: Mapping[str, Any]) -> Printed:
    """Return a table of methods, or of settings where there is one method, against everything else that varies."""
    stub = "method" if rows["method"].nunique() > 1 else "setting"
    keys = [key for key in KEYS if key != stub and rows[key].nunique() > 1] or ["metric"]
    common = tuple(str(rows[key].iloc[0]) for key in KEYS if key not in (stub, *keys) and rows[key].nunique() == 1)
    common = tuple(name for name in common if name != "final")
    result = Printed(paper, where, stub, tuple("iteration" if key == "at" else key for key in keys), common)
    for row in rows.to_dict("records"):
        name, column = row[stub], tuple(row[key] for key in keys)
        if name not in result.rows:
            result.rows.append(name)
        if column not in result.columns:
            result.columns.append(column)
        result.cells[name, column] = cell(row, texts.get(row["claim_id"]))
    return result


def cell(row: Mapping[str, Any], claim: Any) -> Cell:
    """Return a claim's row as text: print as it is printed, ours with as many decimals, at least one."""
    text, std = (claim.value, claim.std) if claim is not None else (_plain(row["printed"]), _plain(row["printed_std"]))
    digits = max(1, len(text.partition(".")[2]))
    empty = (claim.empty if claim is not None else None) or "–"
    ours = _fixed(row["ours"], digits) + (f" ± {_fixed(row['ours_std'], digits)}" if _known(row["ours_std"]) else "")
    if not ours and row["verdict"] != "not run":
        ours = "–"
    return Cell(row["claim_id"], (text or empty) + (f" ± {std}" if std else ""), ours, row["verdict"], row["reason"])


def _known(value: float) -> bool:
    return not math.isnan(value)


def _plain(value: float) -> str:
    return f"{value:.6g}" if _known(value) else ""


def _fixed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if _known(value) else ""


def as_csv(table: Printed) -> str:
    """Return a table as CSV: for each column ours, the printed number and the verdict."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [" | ".join(column) for column in table.columns]
    writer.writerow([table.stub, *(f"{head} | {kind}" for head in heads for kind in ("ours", "printed", "verdict"))])
    for row in table.rows:
        parts = [("", "", "") if c is None else (c.ours, c.printed, c.verdict) for c in table.line(row)]
        writer.writerow([row, *(text for part in parts for text in part)])
    return out.getvalue()


def as_latex(table: Printed) -> str:
    """Return a table as LaTeX for booktabs and xcolor: ours (printed), coloured and marked by verdict."""
    lines = [
        r"% needs \usepackage{booktabs,xcolor}; ours (printed); = reproduced, "
        r"\equiv by construction, ? undecided, \neq differs, \sim not comparable",
        *(rf"\providecolor{{{k.replace(' ', '')}}}{{HTML}}{{{v}}}" for k, v in COLOURS.items()),
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    for level in range(len(table.columns[0])):
        stub = latex(table.stub) if level == len(table.columns[0]) - 1 else ""
        lines.append(" & ".join([stub, *(latex(column[level]) for column in table.columns)]) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        lines.append(" & ".join([latex(row), *map(_latex_cell, table.line(row))]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(found: Cell | None) -> str:
    if found is None:
        return ""
    text = f"{latex(found.ours)} ({latex(found.printed)})" if found.ours else f"({latex(found.printed)})"
    mark = LATEX[found.verdict]
    return rf"\textcolor{{{found.verdict.replace(' ', '')}}}{{{text}{' ' + mark if mark else ''}}}"


def latex(text: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special |= {"–": "--", "<": "$<$", ">": "$>$"} | {c: rf"\{c}" for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in text)


def curves(rows: pd.DataFrame) -> dict[str, Figure]:
    """Return a figure for each setting with several printed iterations: print as hollow marks, ours as lines.

    Reduced runs are fainter, and a line of their own where a method has both.
    """
    found, rows = {}, rows[rows["at"].str.isdecimal()]
    for (where, dataset, setting, metric), part in rows.groupby(["where", "dataset", "setting", "metric"], sort=False):
        if part["at"].nunique() >= CURVE:
            found[slug(f"{where} {dataset} {setting}")] = _figure(part, f"{metric} ({dataset}, {setting})")
    return found


def _figure(rows: pd.DataFrame, label: str) -> Figure:
    figure, axes = canvas.blank(7.4, 3.6)
    methods = list(dict.fromkeys(rows["method"]))
    for method, look in figures.styles(methods, methods).items():
        part = rows[rows["method"] == method].assign(at=lambda t: t["at"].astype(int)).sort_values("at")
        common = {"color": look["color"], "markersize": 5}
        axes.errorbar(
            part["at"], part["printed"], part["printed_std"].fillna(0), linestyle="none", marker=look["marker"],
            markerfacecolor="white", elinewidth=0.8, label=f"{look['label'] or method}, printed", **common,
        )  # fmt: skip
        ours = part[np.isfinite(part["ours"])]
        for reduced, line in ours.groupby(ours["scale"] == scale.LITE):  # two runs, so no line from one to the other
            axes.errorbar(
                line["at"], line["ours"], line["ours_std"].fillna(0), linestyle=look["linestyle"],
                marker=look["marker"], elinewidth=0.8, alpha=FAINT if reduced else 1,
                label=f"{look['label'] or method}, ours{', reduced' if reduced else ''}", **common,
            )  # fmt: skip
    axes.set(xlabel="printed iteration", ylabel=label)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def write(table: pd.DataFrame, folder: Path) -> Sequence[Printed]:
    """Write every table as CSV and LaTeX, curves as SVG, PNG and PDF, into `folder`/PAPER, and return the tables."""
    found, figures = printed(table), []
    for one in found:
        for ending, text in (("csv", as_csv(one)), ("tex", as_latex(one))):
            with replacing(folder / one.paper / f"{one.name}.{ending}") as temporary:
                temporary.write_text(text, encoding="utf-8")
        drawn = curves(table[(table["paper"] == one.paper) & (table["where"] == one.where)])
        figures += [(figure, folder / one.paper, name) for name, figure in drawn.items()]
        one.curves.extend(drawn)
    canvas.save_all(figures)
    return found
