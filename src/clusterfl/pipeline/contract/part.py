"""The kind of a part, its options, and running the checks of its kind."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from ...clustering import CLUSTERERS
from ...clustering.distances import METRICS
from ...config.blocks import Part
from ...config.checks import check_names
from ...config.federation import Dataset, Model, Partition
from ...config.sentences import lines
from ...config.study import Clustering, Distance, MethodBlock
from ...data import DATASETS, PARTITIONS
from ...errors import UserError, choices
from ...methods import METHODS
from ...models import MODELS
from ...progress import Report
from ...registry import Registry, source_file
from ...simulation.method import Method
from . import clusterer, dataset, method, metric, model, partition
from .check import Check, Outcome, outcomes
from .clusterer import ClustererCase
from .dataset import DatasetCase
from .method import MethodCase
from .metric import MetricCase
from .model import ModelCase
from .partition import PartitionCase


@dataclass(frozen=True)
class Kind:
    """A kind of parts.

    Parameters
    ----------
    table
        The registry of their names.
    checks
        The checks of the contract.
    case
        Makes the object that the checks examine, from a name and checked options.
    usual
        Values of required options that weren't given.
    block
        The block of a study's settings that has their options.
    """

    table: Registry
    checks: Sequence[Check]
    case: Callable[[str, dict[str, Any]], Any]
    usual: Mapping[str, Any]
    block: type[Part]


KINDS = {
    "method": Kind(
        METHODS,
        method.CHECKS,
        lambda name, options: MethodCase(name, METHODS[name], options, _source(METHODS, name)),
        {"clusters": 2},
        MethodBlock,
    ),
    "metric": Kind(
        METRICS,
        metric.CHECKS,
        lambda name, options: MetricCase(METRICS[name], options, METRICS.input(name)),
        {},
        Distance,
    ),
    "clusterer": Kind(
        CLUSTERERS,
        clusterer.CHECKS,
        lambda name, options: ClustererCase(CLUSTERERS[name], options),
        {},
        Clustering,
    ),
    "partition": Kind(
        PARTITIONS,
        partition.CHECKS,
        lambda name, options: PartitionCase(name, PARTITIONS[name], options),
        {"clients": 8},
        Partition,
    ),
    "model": Kind(MODELS, model.CHECKS, lambda name, options: ModelCase(MODELS[name], options, []), {}, Model),
    "dataset": Kind(DATASETS, dataset.CHECKS, DatasetCase, {}, Dataset),
}


def _source(table: Registry, name: str) -> Any:
    return source_file(table.spec(name).partition(":")[0])


def kind_of(name: str) -> str:
    """Return the kind of a part: by the registry that has its name, or for a user's part by its type and signature.

    Raises
    ------
    UserError
        If the kind can't be determined; the message names the choices.
    """
    among = f"say which: --kind {', '.join(KINDS)}"
    if ":" not in name:
        found = [kind for kind, row in KINDS.items() if name in row.table.table]
        if not found:
            every = {one for row in KINDS.values() for one in row.table}
            near = choices(every, name).partition("? ")
            hint = f"{near[0]}? " if near[1] else ""
            raise UserError(
                f"there is no part '{name}'; {hint}name a part of the package, such as ifca or mlp, or your own as "
                "my_module:name"
            )
        if len(found) > 1:
            raise UserError(f"'{name}' is a {' and a '.join(found)}; say which: --kind {' or '.join(found)}")
        return found[0]
    part = Registry("part", {})[name]
    if isinstance(part, type) and issubclass(part, Method):
        return "method"
    if hasattr(part, "computed_from"):
        return "metric"
    if not callable(part):
        raise UserError(
            f"'{name}' is {type(part).__name__}; a part is a function or a class: name one, as my_module:name"
        )
    parameters = inspect.signature(part).parameters.values()
    taken = tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))
    for kind, names in TAKEN.items():
        if names <= set(taken):
            return kind
    raise UserError(
        f"'{name}' takes {', '.join(taken) or 'nothing'}, which doesn't show its kind; {among}. A metric has the "
        'decorator @computed_from("losses"), a method is derived from clusterfl.simulation.method.Method'
    )


NO_VALUE = (None, PydanticUndefined)
# Names of positional parameters that show the kind of a user's function.
TAKEN = {
    "clusterer": {"k", "seed"},
    "partition": {"generator"},
    "model": {"sample_shape", "outputs"},
    "dataset": {"folder"},
}


def chosen(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options, and those of `Kind.usual` that have no default value."""
    fields = KINDS[kind].table.options(name).model_fields
    usual = KINDS[kind].usual.items()
    return {key: value for key, value in usual if key in fields and fields[key].get_default() in NO_VALUE} | dict(given)


def checked(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a part, including defaults.

    Raises
    ------
    UserError
        If an option is missing, unknown or out of bounds, or its name is already a key of the settings block.
    """
    known = KINDS[kind].table.options(name)
    check_names(KINDS[kind].block, known)
    try:
        return known(**options).model_dump()
    except ValidationError as error:
        problems = "; ".join(lines(error, (name,), known))
        raise UserError(f"{problems}; give an option as --option KEY=VALUE") from error


@dataclass(frozen=True)
class Verdicts:
    """The outcomes of all checks of a part."""

    name: str
    kind: str
    options: dict[str, Any]
    outcomes: list[Outcome]

    def count(self, verdict: str) -> int:
        """Return how many checks have this verdict."""
        return sum(one.verdict == verdict for one in self.outcomes)

    @property
    def sound(self) -> bool:
        """Whether nothing failed."""
        return not self.count("FAIL")

    def summary(self) -> str:
        """Return a line with the counts of verdicts."""
        counts = ", ".join(f"{self.count(word)} {label}" for word, label in LABELS.items())
        return f"{self.name}, a {self.kind}{_with(self.options)}: {counts}"

    def json(self) -> str:
        """Return the verdicts as a JSON object."""
        counts = {label: self.count(word) for word, label in LABELS.items()}
        rows = [asdict(one) for one in self.outcomes]
        facts = {"part": self.name, "kind": self.kind, "options": self.options, "sound": self.sound}
        return json.dumps(facts | {"counts": counts, "checks": rows}, indent=1)


LABELS = {"ok": "ok", "note": "noted", "skip": "skipped", "FAIL": "failed"}


def _with(options: Mapping[str, Any]) -> str:
    return f" with {', '.join(f'{key}={value}' for key, value in options.items())}" if options else ""


def line(outcome: Outcome) -> str:
    """Return an outcome as a line of text."""
    return f"{outcome.verdict:4} {outcome.check}{': ' if outcome.sentence else ''}{outcome.sentence}"


def examine(
    name: str,
    kind: str | None = None,
    given: Mapping[str, Any] | None = None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    progress: Report = lambda done, text: None,
) -> Verdicts:
    """Check a part against the contract of its kind.

    Parameters
    ----------
    name
        The name of a part of the package, or ``my_module:name``.
    kind
        Its kind; `kind_of` the name if not given.
    given
        Its options.
    tell, progress
        Called after each check: with the outcome; and with the number of checks done and the check's name.
    """
    kind = kind or kind_of(name)
    row, options = KINDS[kind], chosen(kind, name, given or {})
    case = row.case(name, checked(kind, name, options))
    path, found = str(_source(row.table, name)), list[Outcome]()
    for outcome in outcomes(row.checks, case, path):
        found.append(outcome)
        tell(outcome)
        progress(len(found), outcome.check)
    return Verdicts(name, kind, options, found)


def number(kind: str) -> int:
    """Return the number of checks of a kind."""
    return len(KINDS[kind].checks)
