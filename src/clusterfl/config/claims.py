"""The settings of a study's block `claims`: with which printed numbers its results are compared. Names, no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field

from ..registry import Typed

Paper = Literal["lcfl", "rr-cluster", "clove", "fedgwc"]
PAPERS: tuple[str, ...] = get_args(Paper)
ProfileName = Literal["paper", "released"]


class Cell(Typed):
    """Where our numbers for one cell of the claims are."""

    federation: str = Field(description="block under `federations`")
    suffix: str = Field("", description="appended to the study's method names, e.g. -e1")
    rounds: int | None = Field(None, ge=1, description="as `claims.rounds`, for this cell")


class Profile(Typed):
    """Where a second profile's numbers are; keys that aren't given are as in the block itself."""

    cells: dict[str, Cell] | None = Field(None, description="as `claims.cells`; null: the same")
    names: dict[str, str] | None = Field(None, description="as `claims.names`; null: the same")


class Side(Typed):
    """One side of a discrepancy: the federation and method whose score it is."""

    federation: str = Field(description="block under `federations`")
    method: str = Field(description="block under `methods`")
    score: dict[str, Any] = Field({}, description="keys of the study's score that differ, e.g. {split: train}")


class Discrepancy(Typed):
    """Where a paper's text and its released code differ, and what follows from it."""

    about: str = Field(min_length=1, description="what text and code say, in one sentence")
    source: str = Field(min_length=1, description="where text and code say it")
    released: Side = Field(description="the run that follows the released code")
    paper: Side = Field(description="the run that follows the text")


CURVES = ("accuracy", "loss", "ari")
SCORES = ("accuracy", "test_loss", "balanced_accuracy", "ari", "rand", "clustering_accuracy", "n_clusters")
Draw = Literal["curves", "scores", "losses", "interactions", "splits", "classes", "convergence", "lines"]


class Drawing(Typed):
    """A figure of the paper, drawn from the study's runs."""

    shows: str = Field(
        min_length=1, description="what the printed figure shows, in words, and how ours differs from it"
    )
    draw: Draw = Field(
        description="curves: a measure over the rounds; scores: the last round's scores at several points; losses: "
        "clients' losses on models; lines: models with one input; classes: classes in each cluster; for FedGWC, "
        "interactions: its matrices and the plane of its clients; splits: that plane for each split; convergence: that "
        "of the interaction matrix"
    )
    of: dict[str, str | dict[str, str]] = Field(
        min_length=1,
        description="name of a line or panel: its federation/method; for scores, the points of each line: {name on the "
        "axis: federation/method}",
    )
    measure: str = Field(
        "accuracy",
        description="for curves: accuracy, loss or ari; for scores: accuracy, test_loss, balanced_accuracy, ari, rand, "
        "clustering_accuracy or n_clusters",
    )
    axis: str = Field("", description="for scores: title of the axis of the points")

    def drawn(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the name of a line or panel, the point on it ("" except for scores), federation and method."""
        for name, item in self.of.items():
            for point, place in (item if isinstance(item, dict) else {"": item}).items():
                federation, _, method = place.partition("/")
                yield name, point, federation, method

    def places(self) -> list[tuple[str, str]]:
        """Return federation and method of everything drawn."""
        return [(federation, method) for _, _, federation, method in self.drawn()]


class Claims(Typed):
    """Which printed numbers the study's results are compared with."""

    later: ClassVar[frozenset[str]] = frozenset({"scale", "scores"})

    paper: Paper = Field(description="the paper whose numbers are compared")
    scale: Literal["paper", "lite"] | None = Field(
        None,
        description="the study's stated scale: no verdict depends on it, as the settings decide; if it is paper and "
        "runs have other settings, a warning names them",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        description="rounds that printed iterations refer to; with fewer rounds run, iteration t is read at round t x "
        "own rounds / this, at least 1; null: the study's own rounds",
    )
    iterations: Literal["rounds", "lcfl-released"] = Field(
        "rounds",
        description="what printed iterations count: rounds, or points of the curve of `stale` scores that LCFL's "
        "released code draws (docs/evaluation.md)",
    )
    profile: ProfileName = Field("paper", description="whose settings the study follows where text and code differ")
    cells: dict[str, Cell] = Field(min_length=1, description="dataset/setting of the claims: where our numbers are")
    names: dict[str, str] = Field({}, description="the claims' methods: the study's methods, if named differently")
    others: dict[ProfileName, Profile] = Field({}, description="second profiles, for discrepancies.parquet")
    absent: dict[str, str] = Field({}, description="patterns of dataset/setting/method: why they aren't run")
    guesses: dict[str, list[str]] = Field(
        {},
        description="patterns of federation/method: settings that neither the paper nor its code gives, by their names "
        "in the jobs, e.g. training.rounds or partition.options.clients; counted beside each number",
    )
    scores: dict[str, dict[str, Any]] = Field(
        {},
        description="patterns of federation/method: keys of the study's score that differ if the paper scores other "
        "models or data, or averages otherwise, e.g. {split: train, at: 99}; numbers are judged by it, orderings by "
        "the study's score; if several patterns match, later ones win, key by key",
    )
    discrepancies: dict[str, Discrepancy] = Field(
        {}, description="where text and released code differ; the difference is measured between two runs of the study"
    )

    figures: dict[str, Drawing] = Field(
        {}, description="the paper's figures, by their name there, e.g. Fig. 3; stored next to the tables"
    )

    def of(self, profile: str) -> tuple[dict[str, Cell], dict[str, str]]:
        """Return the cells and the names of a profile."""
        other = self.others.get(profile, Profile())  # type: ignore[call-overload]
        return (self.cells if other.cells is None else other.cells, self.names if other.names is None else other.names)

    def score(self, federation: str, method: str) -> dict[str, Any]:
        """Return the keys of the study's score that differ for a method's printed numbers."""
        place, found = f"{federation}/{method}", dict[str, Any]()
        for pattern, keys in self.scores.items():
            if fnmatchcase(place, pattern):
                found |= keys
        return found

    def profiles(self) -> list[str]:
        """Return the profile that is judged, then the others."""
        return [self.profile, *(name for name in self.others if name != self.profile)]
