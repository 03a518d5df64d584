"""Common data for all parts of a federation's section: its rows, the order and style of methods, the album."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ..data.names import Names
from . import figures, tables, words
from .content import Album, Content
from .source import Source

Tables = Mapping[str, pd.DataFrame]


@dataclass
class Section:
    """The page's section on one federation; `own` are its rows of the tables."""

    source: Source
    federation: str
    own: Tables
    album: Album

    def __post_init__(self) -> None:
        self.settings: Mapping[str, Any] = self.source.on(self.federation)
        self.seed: int = self.settings["seeds"]["runs"][0]
        self.baseline: str | None = self.settings["baseline"]
        self.measure = tables.measure(self.own["summary"])
        self.percent = self.measure == "accuracy"
        self.label = words.label(self.measure, self.settings["score"])
        self.axis = self.in_units(self.label)
        # A curve shows all rounds, not only the score's.
        self.any_round = self.in_units(words.label(self.measure, self.settings["score"] | {"at": "final"}))

    @cached_property
    def names(self) -> Names:
        """The names of clients and planted groups, for the seed in the figures."""
        return self.source.names(self.federation, self.seed)

    @cached_property
    def ranking(self) -> pd.DataFrame:
        """The summary, best method first, methods without a score last."""
        key = f"{self.measure}_mean"
        return self.own["summary"].sort_values(key, ascending=not self.percent, kind="stable")

    @property
    def scored(self) -> pd.DataFrame:
        """The rows of the ranking that have a score."""
        return self.ranking[self.ranking[f"{self.measure}_mean"].notna()]

    @cached_property
    def style(self) -> dict[str, dict[str, Any]]:
        """Each method's style, the same in every figure."""
        best = dict.fromkeys([*([self.baseline] if self.baseline else []), *self.ranking["method"]])
        return figures.styles(list(self.settings["methods"]), list(best))

    def in_units(self, label: str) -> str:
        """Return the label of an axis: a measure with its unit."""
        return f"{label} ({'%' if self.percent else 'mean per sample'})"

    def figure(self, figure: Figure, kind: str, text: str) -> Content:
        """Add a figure of this federation to the album and return its content for the template."""
        return self.album.add(figure, f"{kind}-{self.federation}", text)

    def members(self) -> pd.DataFrame:
        """Return planted groups and found clusters, for the seed in the figures."""
        return self.own["members"][self.own["members"]["seed"] == self.seed]
