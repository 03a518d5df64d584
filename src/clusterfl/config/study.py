"""The settings of a study: typed and frozen. `clusterfl.config.loading` reads and checks them.

A study is one YAML file. Blocks have names, which become names of files; a block that uses a part (a method, a
clusterer, ...) names it and gives the part's own options beside the block's common keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from ..clustering import CLUSTERERS, Rule
from ..clustering.distances import METRICS
from ..data import DATASETS, MIRROR, PARTITIONS
from ..data.addresses import secret, shown
from ..data.inputs import Inputs
from ..data.transforms import FORMS, parse
from ..engine.training import Evaluation, Share, Training
from ..errors import UserError
from ..methods import METHODS
from ..models import MODELS
from ..privacy.settings import Privacy, Rebalance
from ..registry import Open, Registry, Typed
from ..storage import digest
from .claims import Claims

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
SeedOf = int | Literal["run"]
TRAINING = "training."  # what a swept setting of training begins with
DIFFERING = ("warmups", "clusterings", "methods")  # blocks of which a federation may have keys of its own
FEDERATION = {"base", "inputs", "model", "partition", "training"}  # keys that a dataset's block doesn't have


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others on top, key by key.

    A block that names another part (another model, another clusterer, ...) replaces the earlier block as a whole,
    whose options belong to the earlier part. Null in the place of a block drops it, e.g. ``federations: {x: null}``.
    """
    # In this order, because a clusterer has an option `method`, and a federation a key `dataset`.
    parts = ["clusterer", "metric", "scheme", "model", "method"]
    if not (base.keys() | over.keys()) & FEDERATION:
        parts.append("dataset")
    key = next((k for k in parts if isinstance(base.get(k), str)), None)
    if key is not None and over.get(key, base[key]) != base[key]:
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(known, dict) and value is None:
            del result[key]
        else:
            result[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return result


def differing(settings: Mapping[str, Any], federation: str) -> dict[str, Any]:
    """Return a study's settings as they are on one federation: its own keys of blocks, the methods that run there."""
    own = settings["federations"][federation]
    found = dict(settings) | {"federations": {federation: own}}
    for kind in DIFFERING:
        changes, blocks = own.get(kind, {}), settings.get(kind, {})
        found[kind] = {name: merge(block, changes.get(name, {})) for name, block in blocks.items()}
    if own.get("only") is not None:
        found["methods"] = {name: block for name, block in found["methods"].items() if name in own["only"]}
    return found


class Part(Open):
    """A block that names a part of a table; keys that are not its own are the part's options."""

    registry: ClassVar[Registry]
    key: ClassVar[str]

    @property
    def part(self) -> str:
        """The name of the part."""
        return str(getattr(self, self.key))

    def options(self) -> dict[str, Any]:
        """Return the part's options, checked, with its defaults filled in."""
        return self.registry.options(self.part)(**(self.model_extra or {})).model_dump(mode="json")

    def resolved(self) -> dict[str, Any]:
        """Return ``{key: part, options...}`` as it goes to a job."""
        return {self.key: self.part, "options": self.options()}


class Seeds(Typed):
    """Seeds of the runs, and what each kind of draw is keyed by."""

    runs: list[Annotated[int, Field(ge=0)]] = Field(
        [0, 1, 2], min_length=1, description="one complete run for each; spreads are over these"
    )
    data: SeedOf = Field("run", description="of the partition: `run`, or a number to use one partition for all runs")
    model: SeedOf = Field("run", description="of the initial models: `run` or a number")
    sampling: SeedOf = Field("run", description="of participation and of the clients' shuffles: `run` or a number")


class Model(Part):
    """The network."""

    registry, key = MODELS, "model"
    model: str = Field("mlp", description="a name of the table of models, or your own as my_module:factory")


class Dataset(Part):
    """A dataset. One without options may be given as its name alone."""

    registry, key = DATASETS, "dataset"
    dataset: str = Field(description="a name of the table of datasets, or your own as my_module:function")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"dataset": value} if isinstance(value, str) else value

    @property
    def folder(self) -> str:
        """Name of its folder under data/: its own, and with options of its own a digest of those."""
        name = self.part.replace(":", ".")
        own = self.model_extra
        return f"{name}-{digest.of_text(digest.canonical(self.options()))[:8]}" if own else name

    def for_run(self, seed: int) -> Dataset:
        """Return the dataset of a run: with ``seed: run`` in its options, generated data are drawn with that seed."""
        own = self.model_extra or {}
        return Dataset(dataset=self.dataset, **(own | {"seed": seed})) if own.get("seed") == "run" else self

    def files(self) -> list[str]:
        """Return the options that name files of the user's."""
        fields = self.registry.options(self.part).model_fields
        marked = [
            n for n, f in fields.items() if isinstance(f.json_schema_extra, dict) and "file" in f.json_schema_extra
        ]
        return [name for name in marked if self.options()[name] is not None]


class Domain(Typed):
    """A part of the clients whose samples all have the same transform."""

    transform: str = Field(description=FORMS)
    weight: float = Field(1, gt=0, description="its part of the clients, relative to the other domains' weights")

    @field_validator("transform")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            parse(value)
        except UserError as error:
            raise ValueError(str(error)) from error
        return value


class Server(Typed):
    """Samples that no client gets."""

    train: int = Field(0, ge=0, description="training samples kept by the server")
    test: int = Field(0, ge=0, description="test samples kept by the server")


class Limit(Typed):
    """Most samples of a client; what is above is left out."""

    train: int | None = Field(None, ge=1, description="training samples, validation included")
    test: int | None = Field(None, ge=0, description="test samples")


class Flipped(Typed):
    """Clients whose training labels are wrong; test samples keep their own."""

    clients: Share | list[Annotated[int, Field(ge=0)]] = Field(description="share of the members, or their ids")
    labels: Literal["reverse", "permute"] = Field(
        "reverse", description="of C classes, c becomes C - 1 - c, or what one permutation, drawn for all, makes of it"
    )
    policy: Literal["keep", "exclude"] = Field(
        "keep",
        description="they train like the others, or are left out of the federation: what knowing them would give",
    )


class Partition(Part):
    """How samples are given to clients. Keys that aren't the scheme's own work with every scheme."""

    registry, key = PARTITIONS, "scheme"
    scheme: str = Field(description="a name of the table of partitions, or your own as my_module:function")
    split: Literal["auto", "official", "share"] = Field(
        "auto",
        description="test samples come from the publisher's test part (official), or are a share of each client's own "
        "samples, both parts pooled; auto: official where there is such a part",
    )
    test: float = Field(0.2, ge=0, lt=1, description="share of each client's samples for testing, with `share`")
    validation: float = Field(0.0, ge=0, lt=1, description="share of each client's training samples for validation")
    limit: Limit = Field(Limit(), description="most samples of a client")
    domains: list[Domain] = Field([], description="transforms over parts of the clients, on top of the scheme")
    newcomers: int = Field(0, ge=0, description="clients, drawn at random, that no method trains with")
    newcomer_data: Literal["all", "test"] = Field(
        "all", description="newcomers have training samples too, or only test with all they have"
    )
    server: Server = Field(Server(), description="samples that no client gets")
    flipped: Flipped | None = Field(
        None, description="members whose training labels are wrong, e.g. {clients: 0.2, labels: reverse}"
    )
    later: ClassVar[frozenset[str]] = frozenset({"flipped"})

    @model_validator(mode="after")
    def _some_left(self) -> Partition:
        if self.test + self.validation >= 1:
            raise ValueError(
                f"test + validation = {self.test + self.validation:g}; it must stay below 1 to leave training samples"
            )
        return self

    def resolved(self) -> dict[str, Any]:
        """Return all that decides the partition, as it goes to a job."""
        return super().resolved() | self.model_dump(mode="json", include=set(type(self).model_fields))


class FederationBlock(Typed):
    """A dataset and its partition, under a name."""

    dataset: Dataset = Field(
        description="a name of the table of datasets, your own as my_module:function, or a block with the dataset's "
        "options"
    )
    partition: Partition = Field(description="who holds which sample")
    inputs: Inputs = Field(Inputs(), description="how samples become a network's inputs")
    model: Model | None = Field(None, description="the network for this federation, instead of the study's")
    training: dict[str, Any] = Field({}, description="settings of training that differ on this federation")
    warmups: dict[Name, dict[str, Any]] = Field({}, description="keys of warm-ups that differ on this federation")
    clusterings: dict[Name, dict[str, Any]] = Field(
        {}, description="keys of clusterings that differ on this federation, e.g. {loss: {clusters: 5}}"
    )
    methods: dict[Name, dict[str, Any]] = Field(
        {}, description="keys of methods that differ on this federation, e.g. {ifca: {clusters: 5}}"
    )
    only: list[Name] | None = Field(None, min_length=1, description="the methods that run on it; null: all")

    @field_validator("methods")
    @classmethod
    def _same_method(cls, blocks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, block in blocks.items():
            for key in sorted(block.keys() & {"method", "sweep"}):
                raise ValueError(f"{name}.{key} is the same on all federations; give another method a name of its own")
        return blocks


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
        description="on which data losses are measured: training only, all (LCFL's released code), or all with each "
        "training image augmented once, as `inputs.augment` says (LCFL's released code where it augments)",
    )
    landmarks: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="clients drawn at random with whom all are compared, so that the cost grows with the clients and "
        "not with their square; all clients where there are no more; null: all with all",
    )
    shards: int = Field(
        1,
        ge=1,
        description="jobs that share the measuring of losses, each of as many models; their number changes no result",
    )


class Clustering(Part):
    """Clusters found from a distance."""

    registry, key = CLUSTERERS, "clusterer"
    clusterer: str = Field(description="a name of the table of clusterers, or your own as my_module:function")
    distance: Name = Field(description="the distance matrix")
    clusters: Annotated[int, Field(ge=1)] | Rule | None = Field(
        None,
        description="number of clusters, or the score that chooses it: silhouette or eigengap; null where the "
        "clusterer finds it by a distance (threshold of hierarchical, eps of dbscan)",
    )
    most: int = Field(10, ge=2, description="largest number tried, where a score chooses")
    margin: float = Field(
        1.0,
        ge=1,
        description="a larger number is chosen if its score exceeds this times the chosen one's so far (CLoVE: 1.1)",
    )

    def number(self) -> dict[str, Any]:
        """Return what decides the number of clusters, as it goes to a job."""
        chosen = isinstance(self.clusters, str)
        return {"clusters": self.clusters} | ({"most": self.most, "margin": self.margin} if chosen else {})


class MethodBlock(Part):
    """A method to run."""

    registry, key = METHODS, "method"
    method: str = Field(description="a name of the table of methods, or your own as my_module:factory")
    clustering: Name | None = Field(None, description="the clustering that a one-shot method trains in")
    training: dict[str, Any] = Field({}, description="settings of training that differ for this method")
    rebalance: Rebalance | None = Field(
        None, description="RR-Cluster's rebalancing, for methods whose clients choose a model, e.g. {minimum: 4}"
    )
    privacy: Privacy | None = Field(
        None, description="differential privacy of clients, e.g. {clip: 0.1, epsilon: 4, delta: 1e-3}"
    )
    sweep: dict[str, list[Any]] = Field(
        {},
        description="values to try, every combination of them, for the method's own options, `clustering` or "
        "`training.KEY`; the best by validation score is taken on each federation, e.g. {clusters: [2, 3, 4]}",
    )

    def grid(self) -> list[dict[str, Any]]:
        """Return each trial's values, those of the last key changing fastest; no trial where nothing is swept."""
        swept = self.model_dump(mode="json", include={"sweep"})["sweep"]
        return [dict(zip(swept, v, strict=True)) for v in itertools.product(*swept.values())] if swept else []

    def trial(self, values: Mapping[str, Any]) -> MethodBlock:
        """Return this block with a trial's values in place of its own, as if it had been written so."""
        training = {k.removeprefix(TRAINING): v for k, v in values.items() if k.startswith(TRAINING)}
        own = {k: v for k, v in values.items() if not k.startswith(TRAINING)}
        return MethodBlock(**(self.model_dump(exclude={"sweep"}) | own | {"training": self.training | training}))


class Score(Typed):
    """Which accuracy the tables show."""

    evaluation: Evaluation = Field("aggregated", description="which models are scored")
    split: Literal["train", "validation", "test"] = Field("test", description="on which data")
    average: Literal["samples", "clients", "clusters"] = Field(
        "samples",
        description="over all samples, mean of clients, or mean of clusters (each weighted by samples)",
    )
    at: Literal["final", "best"] | int = Field(
        "final",
        description="the last round, the best one (optimistic: it looks at the scored data), or a round",
    )
    smooth: int = Field(1, ge=1, description="mean over this many evaluations ending there; 1 = none")
    ddof: Literal[0, 1] = Field(1, description="standard deviation over seeds: 1 = sample, 0 = population")
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        [0.9], description="accuracies, as shares of 1, that the rounds to are counted"
    )


class EngineSettings(Typed):
    """How the numbers are computed."""

    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="auto, cpu or cuda; auto takes CUDA where there is one"
    )
    backend: Literal["auto", "dense", "stacked", "loop"] = Field(
        "auto",
        description="how clients train: together with gradients written out (dense, for chains of linear layers), "
        "together by torch.func (stacked), one after another (loop), or what suits model and device",
    )
    precision: Literal["float32", "tf32"] = Field(
        "float32", description="of products on CUDA; tf32 is faster and keeps 10 of 23 bits of the factors' mantissas"
    )
    chunk: int | None = Field(None, ge=1, description="clients trained together; null: from the model's size")


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
        description="folder or address that has the datasets' files, where there is no internet (else the environment "
        "variable CLUSTERFL_MIRROR)",
    )
    modules: list[str] = Field(
        [], description="folders with Python modules of your own, besides the working folder and this file's"
    )
    baseline: Name | None = Field(None, description="method that the paired differences are taken against")
    score: Score = Field(Score(), description="which accuracy the tables show")
    claims: Claims | None = Field(
        None, description="which printed numbers of a paper the results stand beside, for `clusterfl claims`"
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
        """Return the study as it is on one federation, see `differing`."""
        own = self.federations[federation]
        if own.only is None and not any(getattr(own, kind) for kind in DIFFERING):
            return self.model_copy(update={"federations": {federation: own}})
        needed: Any = {"study": True, "federations": {federation}} | dict.fromkeys(DIFFERING, True)
        there = Study.model_validate(differing(self.model_dump(include=needed, exclude_unset=True), federation))
        return self.model_copy(update={kind: getattr(there, kind) for kind in ("federations", *DIFFERING)})

    def training_for(self, federation: str, overrides: Mapping[str, Any]) -> Training:
        """Return the study's training settings with those of a federation and of a block on top."""
        values = self.training.model_dump()
        for layer in (self.federations[federation].training, overrides):
            if layer.keys() & {"steps", "epochs"}:  # either replaces both
                values["steps"] = values["epochs"] = None
            values |= layer
        return Training(**values)

    def model_for(self, federation: str) -> Model:
        """Return the network of a federation."""
        return self.federations[federation].model or self.model

    def warmup_of(self, method: MethodBlock) -> str | None:
        """Return the warm-up that a method continues, if it is a one-shot method."""
        clustering = method.clustering
        return self.distances[self.clusterings[clustering].distance].warmup if clustering else None
