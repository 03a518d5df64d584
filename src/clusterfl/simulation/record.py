"""What a run records: the tables history, rounds, clusters and timing.

Axes: M clients, m participants, K models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.task import Scores
from .state import Ids


@dataclass
class Record:
    """The tables of a run, each a list of parts (dicts of columns)."""

    history: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    timing: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def table(parts: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        """Join parts (dicts of equally long columns) into one dict of columns."""
        if not parts:
            return {}
        return {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}

    def tables(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the tables that have rows, by name."""
        return {name: self.table(parts) for name, parts in vars(self).items() if parts}

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> Record:
        """Return the record of `tables`, with one part of the history for each round, split and evaluation."""
        found = cls(**{name: [dict(table)] for name, table in tables.items()})
        if found.history:
            table = found.history[0]
            keys = [table[name] for name in ("round", "split", "evaluation")]
            new = np.any([key[1:] != key[:-1] for key in keys], axis=0)
            bounds = [0, *(np.flatnonzero(new) + 1).tolist(), len(keys[0])]
            found.history = [{n: column[i:j] for n, column in table.items()} for i, j in pairwise(bounds)]
        return found

    def score(self, round_: int, ids: Ids, labels: Ids, split: str, evaluation: str, scores: Scores) -> None:
        """Append the scores of some clients' models on a split to the history.

        Parameters
        ----------
        ids, labels : [m]
            The clients' ids, and the model of each.
        """
        self.history.append(
            {
                "round": np.full(len(ids), round_),
                "client": ids,
                "cluster": labels,
                "split": np.full(len(ids), split),
                "evaluation": np.full(len(ids), evaluation),
                "n": scores.n,
                "correct": scores.correct,
                "loss": scores.loss,
            }
        )

    def newest(self) -> str:
        """Return the latest test accuracy, or test loss for regression, as text for progress lines."""
        for part in reversed(self.history):
            if part["split"][0] == "test" and part["evaluation"][0] == "aggregated":
                total = part["n"].sum()
                if not total:
                    return ""
                if np.isnan(part["correct"]).all():
                    return f"test loss {np.nansum(part['loss'] * part['n']) / total:.4g}"
                return f"test accuracy {100 * np.nansum(part['correct']) / total:.1f} %"
        return ""
