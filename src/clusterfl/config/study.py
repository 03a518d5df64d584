"""The settings of a study: typed and frozen. `clusterfl.config.loading` reads and checks them.

A study is one YAML file. Blocks have names, which become names of files. A block that uses a part (a method, a
clusterer, ...) names it and gives the part's own options together with the keys that all such blocks have.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from ..clustering import CLUSTERERS, Rule
from ..clustering.distances import METRICS
from ..data import MIRROR
from ..data.addresses import secret, shown
from ..engine.training import Evaluation, Training
from ..methods import METHODS
from ..privacy.settings import Privacy, Rebalance
from ..registry import Typed
from .blocks import DIFFERING, Name, Part, differing
from .claims import Claims
from .federation import FederationBlock, Model

SeedOf = int | Literal["run"]
TRAINING = "training."  # prefix of swept training settings


class Seeds(Typed):
    """Seeds of the runs, and of each kind of draw."""

    runs: list[Annotated[int, Field(ge=0)]] = Field(
        [0, 1, 2], min_length=1, description="one complete run for each seed; spreads are over these runs"
    )
    data: SeedOf = Field("run", description="seed of the partition: `run`, or a number for one partition in all runs")
    model: SeedOf = Field("run", description="seed of the initial models: `run` or a number")
    sampling: SeedOf = Field("run", description="seed of participation and clients' shuffles: `run` or a number")


class Warmup(Typed):
    """Rounds of FedAvg before clustering."""

    rounds: int = Field(
        5,
        ge=1,
        description="rounds; 5 in every published LCFL experiment (released code; the paper's text says 10)",
    )
    training: dict[str, Any] = Field({}, description="settings of training that differ in the warm-up")


class Distance(Part):
    """A distance matrix between clients."""

    registry, key = METRICS, "metric"
    metric: str = Field(description="a name of the table of metrics, or your own as my_module:function")
    warmup: Name = Field(description="the warm-up whose models are compared")
    data: Literal["train", "all", "augmented"] = Field(
        "train",
        description="data on which losses are measured: training only, all (LCFL's released code), or all with each "
        "training image augmented once by `inputs.augment` (LCFL's released code if it augments)",
    )
    landmarks: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="number of randomly drawn clients that all clients are compared with, so that the cost is linear, "
        "not quadratic, in the clients; null, or as many as clients: all pairs",
    )
    shards: int = Field(
        1,
        ge=1,
        description="number of jobs that share the measuring of losses, each for as many models; no result depends on "
        "it",
    )


class Clustering(Part):
    """Clusters found from a distance."""

    registry, key = CLUSTERERS, "clusterer"
    clusterer: str = Field(description="a name of the table of clusterers, or your own as my_module:function")
    distance: Name = Field(description="the distance matrix")
    clusters: Annotated[int, Field(ge=1)] | Rule | None = Field(
        None,
        description="number of clusters, or the score that chooses it: silhouette or eigengap; null if the clusterer "
        "determines it by a distance (threshold of hierarchical, eps of dbscan)",
    )
    most: int = Field(10, ge=2, description="largest number of clusters tried, if a score chooses")
    margin: float = Field(
        1.0,
        ge=1,
        description="a larger number is chosen if its score exceeds this times the best one's so far (CLoVE: 1.1)",
    )

    def number(self) -> dict[str, Any]:
        """Return what determines the number of clusters, as it is passed to a job."""
        chosen = isinstance(self.clusters, str)
        return {"clusters": self.clusters} | ({"most": self.most, "margin": self.margin} if chosen else {})


class MethodBlock(Part):
    """A method to run."""

    registry, key = METHODS, "method"
    method: str = Field(description="a name of the table of methods, or your own as my_module:Class")
    clustering: Name | None = Field(None, description="the clustering that a one-shot method trains in")
    model: Model | None = Field(None, description="this method's own network; null: the federation's, or the study's")
    training: dict[str, Any] = Field({}, description="settings of training that differ for this method")
    rebalance: Rebalance | None = Field(
        None, description="RR-Cluster's rebalancing, for methods whose clients choose a model, e.g. {minimum: 4}"
    )
    privacy: Privacy | None = Field(
        None, description="differential privacy of clients, e.g. {clip: 0.1, epsilon: 4, delta: 1e-3}"
    )
    sweep: dict[str, list[Any]] = Field(
        {},
        description="values to try, in all combinations, of the method's options, `clustering` or `training.KEY`; on "
        "each federation the best by validation score is used, e.g. {clusters: [2, 3, 4]}",
    )

    def grid(self) -> list[dict[str, Any]]:
        """Return each trial's values, those of the last key changing fastest; none if nothing is swept."""
        swept = self.model_dump(mode="json", include={"sweep"})["sweep"]
        return [dict(zip(swept, v, strict=True)) for v in itertools.product(*swept.values())] if swept else []

    def trial(self, values: Mapping[str, Any]) -> MethodBlock:
        """Return this block with a trial's values in place of its own, as if they had been written there."""
        training = {k.removeprefix(TRAINING): v for k, v in values.items() if k.startswith(TRAINING)}
        own = {k: v for k, v in values.items() if not k.startswith(TRAINING)}
        return MethodBlock(**(self.model_dump(exclude={"sweep"}) | own | {"training": self.training | training}))


class Score(Typed):
    """Which accuracy the tables show."""

    evaluation: Evaluation = Field("aggregated", description="which models are scored")
    split: Literal["train", "validation", "test"] = Field("test", description="data on which they are scored")
    average: Literal["samples", "clients", "clusters"] = Field(
        "samples",
        description="over all samples, mean of clients, or mean of clusters (each weighted by samples)",
    )
    at: Literal["final", "best"] | int = Field(
        "final",
        description="the last round, the best one (optimistic: chosen by the scored data), or a round's number",
    )
    smooth: int = Field(1, ge=1, description="mean over this many evaluations up to that round; 1 = no smoothing")
    ddof: Literal[0, 1] = Field(1, description="standard deviation over seeds: 1 = sample, 0 = population")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.9], description="accuracies, as shares of 1; the rounds needed to reach them are reported"
    )


class EngineSettings(Typed):
    """How the numbers are computed."""

    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="auto, cpu or cuda; auto uses CUDA if available"
    )
    backend: Literal["auto", "dense", "stacked", "loop"] = Field(
        "auto",
        description="how clients train: together with explicit gradients (dense, for chains of linear layers), "
        "together by torch.func (stacked), one after another (loop), or as suits model and device (auto)",
    )
    precision: Literal["float32", "tf32"] = Field(
        "float32", description="precision of products on CUDA; tf32 is faster, with 10 of 23 mantissa bits of factors"
    )
    chunk: int | None = Field(None, ge=1, description="clients trained together; null: by the model's size")


class Study(Typed):
    """A whole study: one file, one results folder."""

    study: Name = Field(description="name of the study and of its folder under results/")
    title: str = Field("", description="headline of the report")
    seeds: Seeds = Field(Seeds(), description="random seeds")
    engine: EngineSettings = Field(EngineSettings(), description="how the numbers are computed")
    model: Model = Field(Model(), description="the network")
    training: Training = Field(Training(), description="local training and aggregation, for all methods")
    federations: dict[Name, FederationBlock] = Field(min_length=1, description="datasets and their partitions")
    warmups: dict[Name, Warmup] = Field({}, description="FedAvg rounds before clustering")
    distances: dict[Name, Distance] = Field({}, description="distance matrices")
    clusterings: dict[Name, Clustering] = Field({}, description="clusterings")
    methods: dict[Name, MethodBlock] = Field(min_length=1, description="the methods to compare")
    mirror: str | None = Field(
        None,
        description="folder or address with the datasets' files, for machines without internet; null: the environment "
        "variable CLUSTERFL_MIRROR",
    )
    modules: list[str] = Field(
        [], description="folders with your own Python modules, besides the working folder and this file's"
    )
    baseline: Name | None = Field(None, description="method that all others are compared with in paired differences")
    score: Score = Field(Score(), description="which accuracy the tables show")
    claims: Claims | None = Field(
        None, description="which printed numbers of a paper the results are compared with, for `clusterfl claims`"
    )

    @field_validator("mirror")
    @classmethod
    def _no_secret(cls, mirror: str | None) -> str | None:
        if mirror is not None and secret(mirror):
            raise ValueError(
                f"'{shown(mirror)}' has a password or a token, and settings are copied beside the results; put the "
                f"address into the environment variable {MIRROR} instead"
            )
        return mirror

    def on(self, federation: str) -> Study:
        """Return the study on one federation, see `differing`."""
        own = self.federations[federation]
        if own.only is None and not any(getattr(own, kind) for kind in DIFFERING):
            return self.model_copy(update={"federations": {federation: own}})
        needed: Any = {"study": True, "federations": {federation}} | dict.fromkeys(DIFFERING, True)
        there = Study.model_validate(differing(self.model_dump(include=needed, exclude_unset=True), federation))
        return self.model_copy(update={kind: getattr(there, kind) for kind in ("federations", *DIFFERING)})

    def training_for(self, federation: str, overrides: Mapping[str, Any]) -> Training:
        """Return the study's training settings, overridden by those of a federation and of a block."""
        values = self.training.model_dump()
        for layer in (self.federations[federation].training, overrides):
            if layer.keys() & {"steps", "epochs"}:  # either replaces both
                values["steps"] = values["epochs"] = None
            values |= layer
        return Training(**values)

    def model_for(self, federation: str, method: MethodBlock | None = None) -> Model:
        """Return the network of a federation, or a method's own network there."""
        return (method and method.model) or self.federations[federation].model or self.model

    def warmup_of(self, method: MethodBlock) -> str | None:
        """Return the warm-up that a method continues, if it is a one-shot method."""
        clustering = method.clustering
        return self.distances[self.clusterings[clustering].distance].warmup if clustering else None
