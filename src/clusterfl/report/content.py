"""Elements of pages: numbers and tables as text, settings as YAML, figures, templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from ..config.text import write
from . import canvas

TEMPLATES = Path(__file__).parent / "templates"
ROOM = 2_400_000  # the most characters of figures on a page; further figures are only in the folder
Format = Callable[[Any], str]
Content = dict[str, Any]


def number(form: str, factor: float = 1) -> Format:
    """Return a function that formats numbers, and a missing number as a dash."""
    return lambda x: "–" if pd.isna(x) else form.format(factor * x).replace("-", "−")


COUNT, ONE_DIGIT, MEGABYTES = number("{:,.0f}"), number("{:,.1f}"), number("{:,.1f}", 1e-6)


def template(name: str) -> jinja2.Template:
    """Return one of the report's templates."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    ).get_template(name)  # fmt: skip


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, in their order."""
    return write(dict(settings), default_flow_style=None, width=100)


def listing(table: pd.DataFrame, formats: Mapping[str, Format] | None = None) -> Content:
    """Return a table for a template: columns, with whether they are numeric, and rows of text."""
    forms = formats or {}
    texts = [[forms.get(str(c), as_text)(x) for x in table[c]] for c in table]
    numeric = [str(c) in forms or pd.api.types.is_numeric_dtype(table[c]) for c in table]
    columns = list(zip(map(str, table), numeric, strict=True))
    return {"columns": columns, "rows": list(zip(*texts, strict=True))}


def as_text(value: Any) -> str:
    """Return a value as text, or a dash if it is missing."""
    return "–" if pd.isna(value) else str(value)


def inlined(svg: str) -> Markup:
    """Return an SVG for a page, without ids of groups: they would be duplicates, and aren't referred to."""
    return Markup(re.sub(r'<g id="[^"]*">', "<g>", svg[svg.index("<svg") :]))


@dataclass
class Album:
    """Collects figures, draws them together, and puts them on the page while there is room."""

    folder: Path
    used: int = 0
    waiting: list[tuple[Figure, str, Content]] = field(default_factory=list)  # figures, names, and their content

    def add(self, figure: Figure, name: str, text: str) -> Content:
        """Add a figure and return its content for the template, which `draw` completes."""
        shown = {"svg": None, "file": f"figures/{name}.svg", "text": text[:1].upper() + text[1:]}
        self.waiting.append((figure, name, shown))
        return shown

    def draw(self) -> None:
        """Save the figures that were added since the last call."""
        canvas.save_all([(figure, self.folder, name) for figure, name, _ in self.waiting], pdf=False)
        for _, name, shown in self.waiting:
            svg = inlined((self.folder / f"{name}.svg").read_text(encoding="utf-8"))
            if self.used + len(svg) <= ROOM:
                self.used += len(svg)
                shown["svg"] = svg
        self.waiting.clear()
