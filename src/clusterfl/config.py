"""The settings of a study: typed, frozen, checked as a whole before any job starts.

A study is one YAML file. Blocks have names, which become names of files; a block that uses a part (a method, a
clusterer, ...) names it and gives the part's own options beside the block's common keys.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from .clustering import CLUSTERERS
from .data import DATASETS, PARTITIONS
from .distances import METRICS
from .errors import UserError, choices
from .methods import METHODS
from .models import MODELS
from .registry import Registry
from .training import Training

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
SeedOf = int | Literal["run"]


class Block(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Block):
    """A block that names a part of a table; keys that are not its own are the part's options."""

    model_config = ConfigDict(extra="allow", frozen=True)
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


class Seeds(Block):
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


class Partition(Part):
    """How samples are given to clients."""

    registry, key = PARTITIONS, "scheme"
    scheme: str = Field(description="a name of the table of partitions, or your own as my_module:function")


class Federation(Block):
    """A dataset and its partition, under a name."""

    dataset: str = Field(description="a name of the table of datasets, or your own as my_module:function")
    partition: Partition = Field(description="who holds which sample")
    model: Model | None = Field(None, description="the network for this federation, instead of the study's")
    training: dict[str, Any] = Field({}, description="settings of training that differ on this federation")


class Warmup(Block):
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
    data: Literal["train", "all"] = Field(
        "train", description="on which data losses are measured: training only, or all (LCFL's released code)"
    )


class Clustering(Part):
    """Clusters found from a distance."""

    registry, key = CLUSTERERS, "clusterer"
    clusterer: str = Field(description="a name of the table of clusterers, or your own as my_module:function")
    distance: Name = Field(description="the distance matrix")
    clusters: int = Field(ge=1, description="number of clusters")


class Method(Part):
    """A method to run."""

    registry, key = METHODS, "method"
    method: str = Field(description="a name of the table of methods, or your own as my_module:factory")
    clustering: Name | None = Field(None, description="the clustering that a one-shot method trains in")
    training: dict[str, Any] = Field({}, description="settings of training that differ for this method")


class Score(Block):
    """Which accuracy the tables show."""

    evaluation: Literal["aggregated", "local", "stale"] = Field("aggregated", description="which models are scored")
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


class EngineSettings(Block):
    """How the numbers are computed."""

    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="auto, cpu or cuda; auto takes CUDA where there is one"
    )
    backend: Literal["auto", "stacked", "loop"] = Field(
        "auto", description="clients trained together, one after another, or whichever suits model and device"
    )
    chunk: int | None = Field(None, ge=1, description="clients trained together; null: from the model's size")


class Study(Block):
    """A whole study: one file, one results folder."""

    study: Name = Field(description="name of the study and of its folder under results/")
    title: str = Field("", description="headline of the report")
    seeds: Seeds = Field(Seeds(), description="random seeds")
    engine: EngineSettings = Field(EngineSettings(), description="how the numbers are computed")
    model: Model = Field(Model(), description="the network")
    training: Training = Field(Training(), description="local training and aggregation, for all methods")
    federations: dict[Name, Federation] = Field(min_length=1, description="datasets and their partitions")
    warmups: dict[Name, Warmup] = Field({}, description="FedAvg rounds before clustering")
    distances: dict[Name, Distance] = Field({}, description="distance matrices")
    clusterings: dict[Name, Clustering] = Field({}, description="clusterings")
    methods: dict[Name, Method] = Field(min_length=1, description="the methods to compare")
    modules: list[str] = Field(
        [], description="folders with Python modules of your own, besides the working folder and this file's"
    )
    baseline: Name | None = Field(None, description="method that the paired differences are taken against")
    score: Score = Field(Score(), description="which accuracy the tables show")

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

    def warmup_of(self, method: str) -> str | None:
        """Return the warm-up that a method continues, if it is a one-shot method."""
        clustering = self.methods[method].clustering
        return self.distances[self.clusterings[clustering].distance].warmup if clustering else None


def read(paths: list[Path]) -> dict[str, Any]:
    """Return the merged content of YAML files; later files win, key by key.

    A block that names another part (another model, another clusterer, ...) replaces the earlier block as a whole,
    whose options belong to the earlier part.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
        except FileNotFoundError as error:
            raise UserError(
                f"no configuration file {path}; give one with --config, or make one: clusterfl init ."
            ) from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            told = str(error).replace('"<unicode string>", ', "")
            raise UserError(f"{path} isn't readable YAML: {told}") from error
        if content is None:
            raise UserError(f"{path} is empty; it should hold keys and values, e.g. 'study: digits'")
        if not isinstance(content, dict):
            raise UserError(f"{path} should hold keys and values, e.g. 'study: digits'; found {type(content).__name__}")
        merged = _merge(merged, content)
    return merged


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<`: keys given beside it replace the merged ones
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    # In this order, because a clusterer has an option `method`.
    key = next((k for k in ("clusterer", "metric", "scheme", "model", "method") if isinstance(base.get(k), str)), None)
    if key is not None and over.get(key, base[key]) != base[key]:
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = _merge(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return result


def load(settings: Mapping[str, Any], source: str = "configuration") -> Study:
    """Check settings as a whole and return the study.

    Raises
    ------
    UserError
        With one line for each problem: path of the key, value found, what is allowed, nearest valid name.
    """
    truths = [f"{p}: found {v}; {_NO_TRUTH}" for p, v in _truths(settings)]
    if truths:
        raise UserError(_report(source, truths))
    try:
        study = Study.model_validate(dict(settings))
    except ValidationError as error:
        raise UserError(_report(source, _lines(error, (), Study))) from error
    problems = list(_problems(study))
    if problems:
        raise UserError(_report(source, problems))
    return study


_NO_TRUTH = "should be a number or a name; quote a name that YAML reads as true or false (yes, no, on, off)"


def _truths(value: Any, *path: str) -> Iterator[tuple[str, bool]]:
    """Yield truth values, which pydantic would take for 1 and 0; only options of a user's own part may be some."""
    if isinstance(value, bool):
        yield ".".join(path), value
    elif isinstance(value, Mapping):
        own = any(isinstance(part, str) and ":" in part for part in value.values())
        for key, part in value.items():
            if not (own and isinstance(part, bool)):
                yield from _truths(part, *path, str(key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _truths(part, *path, str(number))


def _report(source: str, problems: list[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{source}: {count}; nothing was run", *(f"  {p}" for p in problems)])


def _lines(error: ValidationError, prefix: tuple[str, ...], model: type[BaseModel]) -> list[str]:
    """Return one line for each of pydantic's errors."""
    lines: list[str] = []
    for item in error.errors():
        *path, last = (*prefix, *item["loc"]) or ("training",)
        # The last step may say which form of a value was tried (int, literal[...]), or that a key is meant.
        where = ".".join(
            map(str, path if last in ("int", "[key]") or str(last).startswith("literal[") else [*path, last])
        )
        if item["type"] == "extra_forbidden":
            allowed = _fields(model, item["loc"][:-1])
            lines.append(f"{where}: unknown key (value {item['input']!r}); {choices(allowed, str(item['loc'][-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{where}: missing; {_description(model, item['loc'])}")
        else:
            message = _message(item)
            if lines and lines[-1].startswith(f"{where}: "):
                lines[-1] += f"; or: {message}"  # another form that the same value could have
            else:
                lines.append(f"{where}: found {_short(item['input'])}; {message}")
    return lines


def _message(item: Any) -> str:
    """Return what pydantic says of one value, in words of YAML."""
    kind, given = item["type"], str(item["input"])
    if kind == "literal_error":
        return choices(re.findall(r"'([^']*)'", item["ctx"]["expected"]), given)
    if kind in ("model_type", "dict_type"):
        return "should hold keys and values"
    if kind == "too_short":
        return f"needs at least {item['ctx']['min_length']} entry"
    if kind == "string_pattern_mismatch" and "cuda" in item["ctx"]["pattern"]:
        return "it is auto, cpu, cuda, or one device such as cuda:1"
    if kind == "string_pattern_mismatch":
        return "a name has letters, digits, '.', '_' and '-' only and starts with a letter or digit"
    return str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields(model: Any, location: tuple[Any, ...]) -> list[str]:
    """Return the keys allowed at a place of the configuration."""
    for step in location:
        field = model.model_fields.get(step) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = _inner(field.annotation) if field else model
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _inner(annotation: Any) -> Any:
    """Return the model inside ``dict[Name, Model]``, ``Model | None`` or a plain annotation."""
    for part in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return annotation


def _description(model: Any, location: tuple[Any, ...]) -> str:
    for step in location[:-1]:
        field = getattr(model, "model_fields", {}).get(step)
        model = _inner(field.annotation) if field else model
    field = getattr(model, "model_fields", {}).get(location[-1])
    return f"it is {field.description}" if field is not None and field.description else "it is needed"


def _problems(study: Study) -> Iterator[str]:
    """Yield what no single field can see: unknown parts and options, references, combinations."""
    runs = study.seeds.runs
    for seed in sorted({s for s in runs if runs.count(s) > 1}):
        yield f"seeds.runs: seed {seed} is given {runs.count(seed)} times; each run needs a seed of its own"
    for place, block in _parts(study):
        yield from _option_problems(place, block)
    for name, federation in study.federations.items():
        yield from _dataset_problems(f"federations.{name}.dataset", federation.dataset)
    yield from _references(study)
    yield from _training_problems(study)


def _parts(study: Study) -> Iterator[tuple[str, Part]]:
    yield "model", study.model
    for name, federation in study.federations.items():
        yield f"federations.{name}.partition", federation.partition
        if federation.model:
            yield f"federations.{name}.model", federation.model
    for kind in ("distances", "clusterings", "methods"):
        for name, block in getattr(study, kind).items():
            yield f"{kind}.{name}", block


def _option_problems(place: str, block: Part) -> Iterator[str]:
    try:
        block.options()
    except UserError as error:
        yield f"{place}.{block.key}: {error}"
    except ValidationError as error:
        known = block.registry.options(block.part)
        for line, item in zip(_lines(error, (place,), known), error.errors(), strict=True):
            if item["type"] == "extra_forbidden":
                own = [k for k in type(block).model_fields if k != block.key]
                names = [*own, *known.model_fields]
                yield (
                    f"{place}.{item['loc'][-1]}: unknown key (value {item['input']!r}) for {block.key} "
                    f"'{block.part}'; {choices(names, str(item['loc'][-1]))}"
                )
            else:
                yield line


def _dataset_problems(place: str, name: str) -> Iterator[str]:
    try:
        DATASETS.options(name)
    except UserError as error:
        yield f"{place}: {error}"


def _references(study: Study) -> Iterator[str]:
    for name, distance in study.distances.items():
        yield from _reference(f"distances.{name}.warmup", distance.warmup, study.warmups)
    for name, clustering in study.clusterings.items():
        yield from _reference(f"clusterings.{name}.distance", clustering.distance, study.distances)
        yield from _too_many(study, f"clusterings.{name}.clusters", clustering.clusters)
    for name, method in study.methods.items():
        yield from _too_many(study, f"methods.{name}.clusters", (method.model_extra or {}).get("clusters"))
        if method.clustering is not None:
            yield from _reference(f"methods.{name}.clustering", method.clustering, study.clusterings)
        elif method.method == "lcfl":
            yield f"methods.{name}.clustering: missing; {choices(study.clusterings)}"
    if study.baseline is not None:
        yield from _reference("baseline", study.baseline, study.methods)


def _too_many(study: Study, place: str, clusters: Any) -> Iterator[str]:
    """Yield a line for each federation that has fewer clients than a block wants clusters."""
    for federation, block in study.federations.items():
        clients = (block.partition.model_extra or {}).get("clients")
        if isinstance(clients, int) and isinstance(clusters, int) and clusters > clients > 0:
            yield (
                f"{place}: {clusters} clusters for the {clients} clients of federation '{federation}'; "
                f"allowed: 1 to {clients}"
            )


def _reference(place: str, name: str, blocks: Mapping[str, Any]) -> Iterator[str]:
    if name not in blocks:
        yield f"{place}: there is no block '{name}'; {choices(blocks, name)}"


def _training_problems(study: Study) -> Iterator[str]:
    rows = [(f"methods.{n}.training", m.training) for n, m in study.methods.items()]
    rows += [(f"warmups.{n}.training", w.training) for n, w in study.warmups.items()]
    rows += [(f"federations.{n}.training", {}) for n in study.federations]
    for federation in study.federations:
        for place, overrides in rows:
            try:
                settings = study.training_for(federation, overrides)
            except ValidationError as error:
                yield from _lines(error, tuple(place.split(".")), Training)
                continue
            if study.score.evaluation not in settings.evaluations and place.startswith("methods."):
                yield (
                    f"score.evaluation: '{study.score.evaluation}' isn't among {place.removesuffix('.training')}'s "
                    f"evaluations {settings.evaluations}; add it to training.evaluations"
                )
    for name, method in study.methods.items():
        warmup = _warmup_or_none(study, name)
        for federation in study.federations if warmup else ():
            try:
                rounds = study.training_for(federation, method.training).rounds
            except ValidationError:
                continue
            if rounds <= study.warmups[warmup].rounds:  # type: ignore[index]
                yield (
                    f"methods.{name}: {rounds} rounds, but the warm-up '{warmup}' alone has "
                    f"{study.warmups[warmup].rounds}; rounds count the warm-up, so give more"  # type: ignore[index]
                )


def _warmup_or_none(study: Study, method: str) -> str | None:
    try:
        name = study.warmup_of(method)
    except KeyError:
        return None
    return name if name in study.warmups else None
