"""Reads a run's number for a printed one, or says why there is none.

At the paper's scale iteration t is read where the shipped study reads it, also in a run that stops earlier (scale
``prefix``); what comes after its last round stays open. Other runs with fewer rounds are read at the same share of
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .. import metrics
from ..config.claims import Cell
from ..methods import METHODS
from ..report import measures, tables
from .runs import Reading, Run, score_name
from .scale import LITE, PREFIX, Scale

ARI_ROUND = 11  # CLoVE's "ARI after ten rounds" is the value at the 0-based index 10 (released code)
INDEX = ("first_round_ari_0.9", "ari_round_10")
SCORED = ("accuracy", "test_loss")
CLUSTERS = ("ari", "rand", "clustering_accuracy", "n_clusters")  # they don't change once the clusters don't


@dataclass(frozen=True)
class Reader:
    """Reads one run for one cell of the claims; `scale` says how its settings relate to the shipped study's.

    Accuracies and losses are read by print's score (`Run.printed`) where they are compared with print, otherwise by the
    study's: an ordering compares methods by one score, and a reduced run is compared with no printed number.
    """

    run: Run
    cell: Cell
    scale: Scale = Scale(LITE)  # noqa: RUF009 (frozen)
    against_print: bool = True

    def read(self, metric: str, at: str) -> Reading:
        """Return a metric in printed units, or why there is none.

        Accuracies are in per cent. Balanced accuracy is that of FedGWC's released code. The models counted for
        RR-Cluster are those that were ever trained; for the other papers they are the last round's clusters. A run that
        stops before the shipped one has no number that a later round could change.
        """
        if self.scale.judged and not self.scale.evaluated and metric.startswith("rounds_to_"):
            return "training.evaluate_every isn't the shipped study's, and the number depends on it"
        if self.scale.name == PREFIX and self.last(metric, at) > self.run.rounds:
            return self._stops()
        found = self._read(metric, at)
        reached = metric in INDEX and self.rest is not None and self.rest <= self.run.rounds  # or never will be
        return self._stops() if self.scale.name == PREFIX and found == "not reached" and not reached else found

    def place(self, at: str) -> int:
        """Return the round at which the number of a printed iteration is read."""
        return self._place(at)[0]

    def said(self, at: str) -> str:
        """Return in words by which score accuracies and losses are read, where it isn't the study's; else ''."""
        if self.score == self.run.score:
            return ""
        return f"read as {score_name(self.score)} of round {self.place(at)}"

    def words(self, metric: str, at: str) -> str:
        """Return by which score, and at which round, an accuracy or a loss is read; '' for other metrics."""
        if metric.startswith("rounds_to_"):
            return score_name(self.score)
        if metric not in SCORED:
            return ""
        round_, smooth = self._place(at)
        return f"{score_name(self.score)} of round {round_}" + (f", mean of {smooth} evaluations" if smooth > 1 else "")

    def _stops(self) -> str:
        return f"stops at round {self.run.rounds} of {self.scale.rounds}"

    def last(self, metric: str, at: str) -> int:
        """Return the last round that a number depends on; 0 for a count of rounds, which is known once reached."""
        if metric.startswith(("first_round_", "rounds_to_")) or metric == "stability_round":
            return 0
        if metric == "ari_round_10":
            return min(ARI_ROUND, self.rounds) if self.rest is None else min(ARI_ROUND, self.rounds, self.rest)
        if at != "final" and metric in SCORED:
            return self.place(at)
        if metric in CLUSTERS and self.rest is not None:
            return self.rest
        return self.rounds

    @property
    def rest(self) -> int | None:
        """The round after which the clusters don't change, if that is known; every client has to take part in each.

        It is the first round of methods that cluster once (`Method.settles`), and the round of CLoVE's early stop.
        """
        if not self.run.whole or self.run.claims.paper == "rr-cluster":  # which counts models that were ever trained
            return None
        if METHODS[self.run.block.method].settles:
            return self.run.warmup + 1
        stops = self.run.block.method == "clove" and not isinstance(self.run.stability, str)
        return int(self.run.stability) if stops else None

    @property
    def rounds(self) -> int:
        """Rounds of the run; at the paper's scale those of the shipped run."""
        return self.scale.rounds if self.scale.judged and self.scale.rounds is not None else self.run.rounds

    @property
    def score(self) -> Mapping[str, Any]:
        """The score that is read: print's or the study's."""
        return self.run.printed if self.against_print and self.scale.judged else self.run.score

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy and loss by round, without a last evaluation that was made only because the run stops there."""
        found = self.run.scored(self.score)
        return found[found.index < self.run.rounds] if self._ends_early else found

    @property
    def _ends_early(self) -> bool:
        """Return whether the last round was evaluated only because the run stops there."""
        if self.scale.name != PREFIX or self.score["evaluation"] in ("local", "stale"):
            return False  # which are scored in each round
        return self.run.rounds % self.run.training.evaluate_every != 0

    def _smoothed(self, smooth: int) -> pd.DataFrame:
        """Return `scores`, smoothed and kept, as many printed iterations are read from the same curve of a run."""
        key = (score_name(self.score), smooth, self._ends_early)
        if key not in self.run.smoothed:
            self.run.smoothed[key] = tables.smoothed(self.scores, {"smooth": smooth})
        return self.run.smoothed[key]

    def _read(self, metric: str, at: str) -> Reading:
        run = self.run
        if metric in SCORED:
            return self._point(metric, at)
        if metric.startswith("rounds_to_accuracy_"):
            return self._rounds_to(float(metric.rpartition("_")[2]) / 100)
        if metric == "stability_round":
            return run.stability
        if metric == "n_clusters":
            return run.models if run.claims.paper == "rr-cluster" else _or(run.measured[0]["clusters"], "no run")
        if metric == "balanced_accuracy":
            return _or(100 * run.measured[0]["balanced_accuracy_train"], "no test samples by class")
        if metric in ("was", "wadb"):
            one = run.measured[0]["clusters"] == 1
            return _or(run.measured[0][metric], "undefined for one cluster" if one else "undefined for these clusters")
        return self._agreement(metric)

    def _agreement(self, metric: str) -> Reading:
        """Return a measure of agreement with the planted groups, over the clients that `Run.who` names."""
        (row, by_round), who = self.run.measured, self.run.who
        if by_round.empty:
            return "no groups are planted"
        if metric == "first_round_ari_0.9":
            return _or(row[f"{measures.FIRST}{who}"], "not reached")
        if metric == "ari_round_10":
            round_ = min(ARI_ROUND, self.run.rounds)  # not scaled: clusters need as many rounds in a shorter run
            found = by_round.set_index("round")[f"ari{who}"].reindex([round_]).iloc[0]
            return _or(found, f"round {round_} has no clusters")
        if metric == "ari":
            return _or(row[f"ari{who}"], "no client has a cluster")
        return _or((100 if metric == "clustering_accuracy" else 1) * row[metric], "no client has a cluster")

    def _point(self, metric: str, at: str) -> Reading:
        """Return accuracy or loss at a printed iteration."""
        name, score = {"accuracy": "accuracy", "test_loss": "loss"}[metric], self.score
        round_, smooth = self._place(at)
        if round_ not in self.scores.index:
            return f"round {round_} wasn't evaluated as {score_name(score)}"
        line = self._smoothed(smooth)
        if round_ not in line.index or not math.isfinite(line.at[round_, "loss"]):
            return "diverged"
        return _or((100 if name == "accuracy" else 1) * line.at[round_, name], f"no {name}")

    def _place(self, at: str) -> tuple[int, int]:
        """Return the round of a printed iteration, and over how many evaluations its score is the mean.

        In LCFL's released curves, iteration t is the mean of the stale scores of rounds t and t + 1; the first point is
        that of round 2 only, the last one that of its own round (docs/evaluation.md). The curves of methods that
        continue a warm-up are longer by its rounds.
        """
        if at == "final":
            last = self.score["at"]
            return self._scaled(last) if isinstance(last, int) else self.run.rounds, self.score["smooth"]
        t = self._scaled(int(at))
        if self.run.claims.iterations == "rounds":
            return t, self.score["smooth"]
        last = min(self.rounds, self._printed() + self.run.warmup)
        if t >= last:
            return last, 1
        return t + 1, 1 if t == 1 else 2

    def _printed(self) -> int:
        """Return the number of rounds that printed iterations refer to."""
        if self.scale.judged:
            return self.scale.printed or self.rounds
        return self.cell.rounds or self.run.claims.rounds or self.rounds

    def _scaled(self, iteration: int) -> int:
        """Return a printed iteration as a round: where fewer were run, at the same share of them."""
        printed = self._printed()
        return iteration if self.rounds >= printed else max(1, round(iteration * self.rounds / printed))

    def _rounds_to(self, target: float) -> Reading:
        scores = self.scores
        if scores["accuracy"].isna().all():
            return "no accuracy"
        released = self.run.claims.iterations == "lcfl-released"
        line = self._smoothed(2 if released else self.score["smooth"])
        found = metrics.rounds_to_accuracy(line.index, line["accuracy"], target)
        return _or(found - released, "not reached")  # iteration t is read at round t + 1


def _or(number: float, otherwise: str) -> Reading:
    return float(number) if math.isfinite(number) else otherwise
