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
    suffix: str = Field("", description="put behind the study's method names, e.g. -e1")
    rounds: int | None = Field(None, ge=1, description="as `claims.rounds`, for this cell")


class Profile(Typed):
    """Where a second profile's numbers are; what isn't given is as in the block itself."""

    cells: dict[str, Cell] | None = Field(None, description="as `claims.cells`; null: the same")
    names: dict[str, str] | None = Field(None, description="as `claims.names`; null: the same")


class Side(Typed):
    """Whose score is one side of a discrepancy."""

    federation: str = Field(description="block under `federations`")
    method: str = Field(description="block under `methods`")
    score: dict[str, Any] = Field({}, description="keys of the study's score that differ, e.g. {split: train}")


class Discrepancy(Typed):
    """Where a paper's text and its released code differ, and what follows from it."""

    about: str = Field(min_length=1, description="what each of both says, in one sentence")
    source: str = Field(min_length=1, description="where each says it")
    released: Side = Field(description="as the released code has it")
    paper: Side = Field(description="as the text has it")


CURVES = ("accuracy", "loss", "ari")
SCORES = ("accuracy", "test_loss", "balanced_accuracy", "ari", "rand", "clustering_accuracy", "n_clusters")
Draw = Literal["curves", "scores", "losses", "interactions", "splits", "classes", "convergence", "lines"]


class Drawing(Typed):
    """A figure of the paper, drawn from the study's runs."""

    shows: str = Field(
        min_length=1, description="what the printed figure shows, in words, and how ours differs in kind"
    )
    draw: Draw = Field(
        description="curves: a measure over the rounds; scores: the last round's at several points; losses: of clients "
        "on models; lines: of models with one input; classes: in each cluster; of FedGWC interactions: its matrices "
        "and the plane of its clients, splits: that plane split by split, convergence: of the interaction matrix"
    )
    of: dict[str, str | dict[str, str]] = Field(
        min_length=1,
        description="what a line or a panel is called: its federation/method; of scores: the points of each line, "
        "{name on the axis: federation/method}",
    )
    measure: str = Field(
        "accuracy",
        description="of curves: accuracy, loss or ari; of scores: accuracy, test_loss, balanced_accuracy, ari, rand, "
        "clustering_accuracy or n_clusters",
    )
    axis: str = Field("", description="of scores: what the axis of the points is")

    def drawn(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield what a line or a panel is called, the point on it ("" but of scores), federation and method."""
        for name, item in self.of.items():
            for point, place in (item if isinstance(item, dict) else {"": item}).items():
                federation, _, method = place.partition("/")
                yield name, point, federation, method

    def places(self) -> list[tuple[str, str]]:
        """Return federation and method of all that is drawn."""
        return [(federation, method) for _, _, federation, method in self.drawn()]


class Claims(Typed):
    """Which printed numbers the study's results are compared with."""

    later: ClassVar[frozenset[str]] = frozenset({"scale", "scores"})

    paper: Paper = Field(description="whose numbers")
    scale: Literal["paper", "lite"] | None = Field(
        None,
        description="what the study says of itself: nothing is judged by it, as settings decide; where it says paper "
        "and runs have other settings, a warning names them",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        description="rounds that printed iterations refer to; with fewer rounds run, iteration t is read at round t x "
        "own rounds / this, at least 1; null: the study's own",
    )
    iterations: Literal["rounds", "lcfl-released"] = Field(
        "rounds",
        description="what printed iterations count: rounds, or points of the curve that LCFL's released code draws of "
        "`stale` scores (docs/evaluation.md)",
    )
    profile: ProfileName = Field("paper", description="whose settings the study follows where text and code differ")
    cells: dict[str, Cell] = Field(min_length=1, description="dataset/setting of the claims: where our numbers are")
    names: dict[str, str] = Field({}, description="the claims' methods: the study's methods, where they differ")
    others: dict[ProfileName, Profile] = Field({}, description="second profiles, for discrepancies.parquet")
    absent: dict[str, str] = Field({}, description="patterns of dataset/setting/method: why they aren't run")
    guesses: dict[str, list[str]] = Field(
        {},
        description="patterns of federation/method: settings that neither the paper nor its code gives, by their names "
        "in the jobs, e.g. training.rounds or partition.options.clients; counted beside each number",
    )
    scores: dict[str, dict[str, Any]] = Field(
        {},
        description="patterns of federation/method: keys of the study's score that differ where print scores other "
        "models or data, or averages otherwise, e.g. {split: train, at: 99}; numbers are judged by it, orderings by "
        "the study's score; of patterns that match later ones count, key by key",
    )
    discrepancies: dict[str, Discrepancy] = Field(
        {}, description="where text and released code differ; the difference is measured between two runs of the study"
    )

    figures: dict[str, Drawing] = Field(
        {}, description="the paper's figures, by their name there, e.g. Fig. 3; written beside the tables"
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
        """Return the profile that is judged, then the second ones."""
        return [self.profile, *(name for name in self.others if name != self.profile)]
