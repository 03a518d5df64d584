"""The settings of a federation: dataset, partition, inputs, and what differs from the study's own blocks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ..data import DATASETS, PARTITIONS
from ..data.inputs import Inputs
from ..data.transforms import FORMS, parse
from ..engine.training import Share
from ..errors import UserError
from ..models import MODELS
from ..registry import Typed
from ..storage import digest
from .blocks import Name, Part


class Model(Part):
    """The network."""

    registry, key = MODELS, "model"
    model: str = Field("mlp", description="a name of the table of models, or your own as my_module:factory")


class Dataset(Part):
    """A dataset. Without options its name alone may be given."""

    registry, key = DATASETS, "dataset"
    dataset: str = Field(description="a name of the table of datasets, or your own as my_module:function")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"dataset": value} if isinstance(value, str) else value

    @property
    def folder(self) -> str:
        """Name of its folder under data/: its own name, followed by a digest of its options if it has any."""
        name = self.part.replace(":", ".")
        own = self.model_extra
        return f"{name}-{digest.of_text(digest.canonical(self.options()))[:8]}" if own else name

    def for_run(self, seed: int) -> Dataset:
        """Return the dataset of a run: if its options have ``seed: run``, the run's data seed replaces ``run``."""
        own = self.model_extra or {}
        return Dataset(dataset=self.dataset, **(own | {"seed": seed})) if own.get("seed") == "run" else self

    def files(self) -> list[str]:
        """Return the options that name the user's files."""
        fields = self.registry.options(self.part).model_fields
        marked = [
            n for n, f in fields.items() if isinstance(f.json_schema_extra, dict) and "file" in f.json_schema_extra
        ]
        return [name for name in marked if self.options()[name] is not None]


class Domain(Typed):
    """A part of the clients whose samples all have the same transform."""

    transform: str = Field(description=FORMS)
    weight: float = Field(1, gt=0, description="its share of the clients, relative to the other domains' weights")

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
    """Maximum number of a client's samples; the rest are left out."""

    train: int | None = Field(None, ge=1, description="training samples, validation included")
    test: int | None = Field(None, ge=0, description="test samples")


class Flipped(Typed):
    """Clients whose training labels are wrong; test labels aren't changed."""

    clients: Share | list[Annotated[int, Field(ge=0)]] = Field(description="share of the members, or their ids")
    labels: Literal["reverse", "permute"] = Field(
        "reverse", description="class c of C becomes C - 1 - c, or is changed by one random permutation for all"
    )
    policy: Literal["keep", "exclude"] = Field(
        "keep",
        description="these clients train like the others, or are left out, as if they had been detected",
    )


class Event(Typed):
    """What changes for some members from a round on: they keep their samples, whose transform changes."""

    round: int = Field(ge=2, description="the first round with the changed data")
    clients: Share | list[Annotated[int, Field(ge=0)]] = Field(1.0, description="share of the members, or their ids")
    move: Literal["next", "drawn"] | None = Field(
        None,
        description="each client moves to another planted group, with the next number or drawn at random, and takes "
        "over its transform",
    )
    transform: str | None = Field(
        None, description="added to the clients' transforms: quarter turns, swap(a,b), relabel(p0,p1,...)"
    )

    @model_validator(mode="after")
    def _one(self) -> Event:
        if (self.move is None) == (self.transform is None):
            raise ValueError(f"move: {self.move}, transform: {self.transform}; give one of them")
        try:
            step = parse(self.transform or "rotate90")
        except UserError as error:
            raise ValueError(str(error)) from error
        if step.blur or step.noise or step.flipped or not (step.turns or step.labels):
            allowed = "rotate90, rotate180, rotate270, swap(a,b), relabel(p0,p1,...), joined by '+'"
            raise ValueError(f"transform: '{self.transform}'; allowed in a drift: {allowed}")
        return self


class Partition(Part):
    """How samples are dealt to clients. Keys that aren't options of the scheme work with every scheme."""

    registry, key = PARTITIONS, "scheme"
    scheme: str = Field(description="a name of the table of partitions, or your own as my_module:function")
    split: Literal["auto", "official", "share"] = Field(
        "auto",
        description="test samples come from the publisher's test part (official), or are a share of each client's own "
        "samples, with both parts pooled (share); auto: official if there is such a part",
    )
    test: float = Field(0.2, ge=0, lt=1, description="share of each client's samples for testing, with `share`")
    validation: float = Field(0.0, ge=0, lt=1, description="share of each client's training samples for validation")
    limit: Limit = Field(Limit(), description="most samples of a client")
    domains: list[Domain] = Field([], description="transforms for groups of clients, on top of the scheme")
    newcomers: int = Field(0, ge=0, description="number of clients, drawn at random, that no method trains with")
    newcomer_data: Literal["all", "test"] = Field(
        "all", description="newcomers also have training samples, or all their samples are test samples"
    )
    server: Server = Field(Server(), description="samples that no client gets")
    flipped: Flipped | None = Field(
        None, description="members whose training labels are wrong, e.g. {clients: 0.2, labels: reverse}"
    )
    drift: list[Event] = Field(
        [], description="changes of members' data during a run, e.g. [{round: 11, clients: 0.5, move: next}]"
    )
    later: ClassVar[frozenset[str]] = frozenset({"flipped", "drift"})

    @model_validator(mode="after")
    def _drifts_in_order(self) -> Partition:
        rounds = [event.round for event in self.drift]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"drift: its rounds are {rounds}; give them in increasing order, one event per round")
        if rounds and self.flipped is not None:
            raise ValueError("drift and flipped both change labels; give one of them")
        return self

    @model_validator(mode="after")
    def _some_left(self) -> Partition:
        if self.test + self.validation >= 1:
            raise ValueError(
                f"test + validation = {self.test + self.validation:g}; it must stay below 1 to leave training samples"
            )
        return self

    def resolved(self) -> dict[str, Any]:
        """Return all that determines the partition, as it is passed to a job."""
        return super().resolved() | self.model_dump(mode="json", include=set(type(self).model_fields))


class FederationBlock(Typed):
    """A dataset and its partition, under a name."""

    dataset: Dataset = Field(
        description="a name of the table of datasets, your own as my_module:function, or a block with the dataset's "
        "options"
    )
    partition: Partition = Field(description="which client holds which sample")
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
