"""Use from a notebook: load a federation, run a method with your own network, get data frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, TypeVar
from warnings import warn

import numpy as np
import pandas as pd
from pydantic import ValidationError
from torch import nn

from .clustering import Rule
from .clustering.choice import find
from .clustering.distances import METRICS
from .clustering.distances import landmarks as drawn
from .config.checks import check_names
from .config.federation import FederationBlock
from .config.loading import federation_block
from .config.sentences import lines, short
from .config.study import MethodBlock
from .data.federation import Federation
from .data.federations import catalogue
from .data.load import clients
from .data.prepared import outputs, sample_shape
from .engine.engine import Engine
from .engine.training import Training
from .errors import UserError, choices
from .methods import METHODS
from .metrics import adjusted_rand_index
from .pipeline.describe import build
from .pipeline.global_draws import watched
from .pipeline.stages.distance import measure
from .privacy.settings import Privacy, Rebalance
from .registry import Typed, fields_model
from .simulation import loop
from .simulation.method import Method
from .simulation.record import Record
from .simulation.warm_up import warm_up
from .storage.row_store import Rows

Settings = TypeVar("Settings", bound=Typed)
# Parameters of `run` for one-shot methods; any other method may have options of the same names.
CLUSTERING = ("warmup", "metric", "landmarks", "clusterer", "clusters")


def load(
    dataset: str | Mapping[str, Any] = "digits",
    scheme: str = "rotated",
    seed: int = 0,
    inputs: dict[str, Any] | None = None,
    **options: Any,
) -> Federation:
    """Return a federation.

    Parameters
    ----------
    dataset, scheme
        Names in the tables of datasets and partitions, or your own as ``my_module:function``. Or `dataset` is the name
        of a federation of the catalogue (`clusterfl federations` lists them); `options` then change its partition.
        A dataset with options is a block as in a study: ``{"dataset": "table", "path": "patients.csv", ...}``. Data
        are stored under ``data/``.
    seed
        Seed of the partition.
    inputs
        How samples become a network's inputs, as in a study.
    options
        Options of the partition, e.g. ``clients=40``.
    """
    _check_number("seed", seed, 0)
    block: dict[str, Any] = {"partition": options, "inputs": inputs or {}}
    if isinstance(dataset, str) and dataset in catalogue():
        block["base"] = dataset
    else:
        block |= {"dataset": dataset, "partition": {"scheme": scheme, **options}}
    return members(federation_block(block), seed)


def members(block: FederationBlock, seed: int) -> Federation:
    """Return the members of a configured federation."""
    built = build("federation", block, seed)
    return clients(built.samples, built.table, block.inputs)


@dataclass(frozen=True)
class Result:
    """A finished run as data frames, with the same columns as a result's files of these names."""

    history: pd.DataFrame
    rounds: pd.DataFrame
    clusters: pd.DataFrame
    models: Rows  # [K, P], one row for each cluster; large ones are in a file, from which ``models[k]`` reads
    true_cluster: np.ndarray | None  # in the last round

    def accuracy(self, split: str = "test") -> pd.Series:
        """Return the accuracy over all samples, by round.

        Raises
        ------
        UserError
            If it wasn't measured on this split; the message lists the splits on which it was.
        """
        measured = self.history[self.history["evaluation"] == "aggregated"]
        rows = measured[measured["split"] == split]
        if rows.empty:
            known = choices(measured["split"].unique(), str(split))
            raise UserError(f"split: found {split!r}, on which no accuracy was measured; {known}")
        sums = rows.groupby("round")[["correct", "n"]].sum()
        return (sums["correct"] / sums["n"]).rename("accuracy")

    def adjusted_rand_index(self) -> float:
        """Return the agreement of the final labels with the planted groups; NaN where none are known."""
        final = self.clusters[self.clusters["round"] == self.clusters["round"].max()]
        return float("nan") if self.true_cluster is None else adjusted_rand_index(self.true_cluster, final["cluster"])


def run(
    method: str | type[Method],
    federation: Federation,
    model: Callable[[], nn.Module] | nn.Module,
    *,
    training: dict[str, Any] | None = None,
    seed: int = 0,
    warmup: dict[str, Any] | None = None,
    metric: str | None = None,
    landmarks: int | None = None,
    clusterer: str | None = None,
    clusters: int | Rule | None = None,
    rebalance: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    workers: int = 1,
    device: str = "auto",
    **options: Any,
) -> Result:
    """Run a method.

    Parameters
    ----------
    method
        A name in the table of methods, your own as ``my_module:Class``, or the class itself.
    federation, model
        The data, and a torch module: its class, a function that makes it, or an instance.
    training
        Settings of `clusterfl.engine.Training` that differ from the defaults, e.g. ``{"rounds": 10}``.
    seed
        Seed of models, sampling and shuffles.
    warmup, metric, landmarks, clusterer
        For a one-shot method such as ``lcfl``: training settings of the warm-up (default: one round of 20 epochs), the
        names of metric and clusterer (``loss`` and ``kmedoids``), and how many clients every client is compared with
        (default: all). For any other method they are its options of these names, e.g. ``clove``'s `clusterer`.
    clusters
        Number of clusters, for methods that take one; for a one-shot method also ``silhouette`` or ``eigengap``, which
        choose it.
    rebalance, privacy
        The blocks of these names, e.g. ``{"minimum": 4}`` and ``{"clip": 0.1, "epsilon": 4, "delta": 1e-3}``.
    workers, device
        Processes on a CPU; ``auto``, ``cpu`` or ``cuda``.
    options
        The method's options.

    Raises
    ------
    UserError
        If an argument is invalid; the message says what is allowed.
    """
    settings = _settings(Training, training or {}, "training")
    kind = METHODS[method] if isinstance(method, str) else _class(method)
    given = dict(zip(CLUSTERING, (warmup, metric, landmarks, clusterer, clusters), strict=True))
    options |= _options(kind, {name: value for name, value in given.items() if value is not None})
    _check_data(federation)
    _check_number("seed", seed, 0)
    _check_number("workers", workers, 1)
    model = _network(model, federation)
    extra: dict[str, Any] = {}
    first, earlier = 1, Record()
    if kind.one_shot:
        usual: dict[str, Any] = settings.model_dump() | {"rounds": 1, "epochs": 20, "steps": None}
        block = usual | (warmup or {}) if isinstance(warmup, dict | None) else warmup
        tune = _settings(Training, block, "warmup")
        with Engine(model, federation, tune, seed, device=device, workers=workers) as engine:
            extra, earlier = _one_shot(engine, metric or "loss", landmarks, clusterer or "kmedoids", clusters)
        first = tune.rounds + 1
    with Engine(model, federation, settings, seed, device=device, workers=workers, copies=kind.copies) as engine:
        made = _made(kind, options)
        if rebalance is not None or privacy is not None:
            from .privacy.wrapper import wrap

            name = method if isinstance(method, str) else kind.__name__
            moved = None if rebalance is None else _settings(Rebalance, rebalance, "rebalance")
            made = wrap(made, name, moved, None if privacy is None else _settings(Privacy, privacy, "privacy"))
        with watched(lambda sentence: warn(f"{kind.__name__}: {sentence}", stacklevel=5)):
            state, record = loop.run(made, loop.context(engine, **extra), engine, first_round=first)
    parts = {name: getattr(earlier, name) + getattr(record, name) for name in ("history", "rounds")}
    parts["clusters"] = record.clusters  # as in a study: a warm-up's single group is no clustering
    frames = {name: pd.DataFrame(Record.table(rows)) for name, rows in parts.items()}
    return Result(**frames, models=state.theta, true_cluster=federation.at(settings.rounds).true_cluster)


def _settings(model: type[Settings], given: Any, block: str) -> Settings:
    """Return settings, checked like those of a study."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UserError("\n".join(lines(error, (block,), model))) from error


def _check_number(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise UserError(f"{name}: found {short(value)}; allowed: whole numbers from {least} on")


def _class(method: Any) -> type[Method]:
    if isinstance(method, type) and issubclass(method, Method):
        return method
    raise UserError(
        f"method: found {short(method)}; allowed: a name of the table of methods, your own as 'my_module:Class', or a "
        "class derived from clusterfl.simulation.method.Method, whose options go to run by their names"
    )


def _options(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return which of run's parameters for clustering are the method's options.

    Raises
    ------
    UserError
        If a parameter would have no effect, or an option has the name of a parameter of `run` itself.
    """
    own = {one.name for one in fields(kind)}
    taken = signature(run).parameters.keys() - {"options"} - (set() if kind.one_shot else {*CLUSTERING})
    check_names(MethodBlock, fields_model(kind))
    if hidden := sorted(own & taken):
        raise UserError(
            f"method {kind.__name__}: its option '{hidden[0]}' has the name of a parameter of clusterfl.run, which "
            "would take its value; give the option another name"
        )
    if kind.one_shot:
        return {}
    for name, value in given.items():
        if name not in own and name != "clusters":  # clusters is checked with the options
            raise UserError(
                f"{name}: found {short(value)}, but method {kind.__name__} isn't one-shot, as lcfl is, and has no "
                f"option of this name; {choices(own, name)}; or omit it"
            )
    return given


def _check_data(federation: Any) -> None:
    if not isinstance(federation, Federation):
        raise UserError(
            f"federation: found {short(federation)}; allowed: a federation, as clusterfl.load returns: give "
            f"clusterfl.load({short(federation) if isinstance(federation, str) else ''})"
        )


def _network(model: Any, federation: Federation) -> Callable[[], nn.Module] | nn.Module:
    """Return the model as given, wrapped, if it isn't a module, to raise an error if it makes no module."""
    allowed = "allowed: a torch module, or a class or function that makes one without arguments"
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise UserError(
            f"model: found {short(model)}; {allowed}; a network of the table, with `from clusterfl.models import "
            f"MODELS`, e.g.: lambda: MODELS['mlp']({sample_shape(federation)}, {outputs(federation)})"
        )

    def make() -> nn.Module:
        made = model()
        if not isinstance(made, nn.Module):
            raise UserError(f"model: what is given makes {short(made)}; {allowed}: look at what it returns")
        return made

    return make


def _made(kind: Any, options: dict[str, Any]) -> Method:
    """Return a method with these options, checked like those of a study."""
    model = fields_model(kind)
    try:
        found: Method = kind(**model(**options).model_dump())
    except ValidationError as error:
        raise UserError("\n".join(lines(error, (kind.__name__,), model))) from error
    return found


def _one_shot(
    engine: Engine, metric: str, landmarks: int | None, clusterer: str, clusters: int | Rule | None
) -> tuple[dict[str, Any], Record]:
    """Do what the stages warm-up, distance and cluster do."""
    wanted = METRICS.input(metric)
    warm = warm_up(engine, gradients=wanted == "gradients", deltas=wanted == "deltas")
    array = {"gradients": warm.gradients, "deltas": warm.deltas}.get(wanted, warm.theta)
    assert array is not None
    chosen = None if landmarks is None else drawn(engine.federation.ids, landmarks, engine.seed)
    distance, costs = measure(engine, array, metric, {}, chosen=chosen)
    for name, cost in costs.items():
        warm.record.rounds[-1][name] += cost
    extra = {
        "clustering": find(distance, clusterer, clusters, engine.seed, landmarks=chosen).labels,
        "warmup": warm.state,
        "members": lambda: warm.theta,
    }
    return extra, warm.record
