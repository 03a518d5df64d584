"""From YAML files to a checked `Study`: all problems are reported together, before any job starts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..data.federations import known
from ..errors import UserError
from .blocks import merge
from .checks import problems
from .federation import Dataset, FederationBlock
from .sentences import lines, report
from .study import Study
from .text import parse

LARGEST = 1_000_000  # most values of a configuration


def read(paths: list[Path]) -> dict[str, Any]:
    """Return the merged content of YAML files, or JSON files by their name; later files override earlier ones.

    See `clusterfl.config.blocks.merge`.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        form = "JSON" if path.suffix == ".json" else "YAML"
        try:
            text = path.read_text(encoding="utf-8")
            content = json.loads(text, object_pairs_hook=_unique) if form == "JSON" else parse(text)
            _small(content)
        except FileNotFoundError as error:
            raise UserError(
                f"no configuration file {path}; give one with --config, or make one: clusterfl init ."
            ) from error
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            reason = str(error).replace('"<unicode string>", ', "")
            raise UserError(f"{path} isn't readable {form}: {reason}") from error
        if content is None:
            raise UserError(f"{path} is empty; it should hold keys and values, e.g. 'study: digits'")
        if not isinstance(content, dict):
            raise UserError(f"{path} should hold keys and values, e.g. 'study: digits'; found {type(content).__name__}")
        try:
            merged = merge(merged, content)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return merged


def _small(content: Any) -> None:
    """Refuse content that anchors make larger than any study, or infinite: a few lines can expand beyond any memory.

    Raises
    ------
    ValueError
        If the content is too large.
    """
    sizes: dict[int, float] = {}

    def size(value: Any) -> float:
        parts = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        if id(value) not in sizes:
            sizes[id(value)] = math.inf  # for a block inside itself
            sizes[id(value)] = 1 + sum(map(size, parts))
        return sizes[id(value)] if parts else 1

    if size(content) > LARGEST:
        raise ValueError(f"with its anchors written out it has more than {LARGEST:,} values; write it without them")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, in which no key may be given twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is given twice")
    return content


ALONE = "; if this file only changes a study, give the study's file first: --config config.yaml mine.yaml"


def load(settings: Mapping[str, Any], source: str = "configuration", sources: bool = True) -> Study:
    """Check settings as a whole and return the study; without `sources` the user's data needn't exist any more.

    Raises
    ------
    UserError
        With one line for each problem: path of the key, value found, what is allowed, nearest valid name.
    """
    try:
        study = Study.model_validate(_based(settings))
    except ValidationError as error:
        said = [line + ALONE if line.startswith("federations: missing") else line for line in lines(error, (), Study)]
        raise UserError(report(source, said)) from error
    found = list(problems(study, sources))
    if found:
        raise UserError(report(source, found))
    return study


def _based(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with every ``base: NAME`` of a federation replaced by the catalogue's block of that name."""
    blocks = settings.get("federations")
    if not isinstance(blocks, Mapping):
        return dict(settings)
    found = {}
    for name, block in blocks.items():
        if isinstance(block, Mapping) and "base" in block:
            own = {key: value for key, value in block.items() if key != "base"}
            found[name] = merge(known(str(block["base"])).block(), own)
        else:
            found[name] = block
    return dict(settings) | {"federations": found}


def federation_block(settings: Mapping[str, Any], name: str = "federation") -> FederationBlock:
    """Check the settings of one federation, as a study has them, and return it."""
    study = {"study": "one", "federations": {name: settings}, "methods": {"fedavg": {"method": "fedavg"}}}
    return load(study, "federation").federations[name]


def dataset_block(name: str, options: Mapping[str, Any]) -> Dataset:
    """Check a dataset's options and return its block."""
    partition = {"scheme": "iid", "clients": 1}
    return federation_block({"dataset": {"dataset": name, **options}, "partition": partition}).dataset
