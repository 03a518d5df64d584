"""Generated from the settings' types: the JSON schema for editors, and the commented default configuration.

``clusterfl schema --format yaml > config.yaml`` writes the default study; a test fails if the file is out of date.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ..engine.training import Training
from .blocks import Part
from .federation import Dataset, Limit
from .loading import load
from .study import EngineSettings, Study
from .text import write

HEAD = """\
# The default study of clusterfl: rotated handwritten digits, which ship inside scikit-learn, so nothing is downloaded.
# Written by `clusterfl schema --format yaml` from the settings' types. Copy it, change the name behind `study:`, and
# run `make reproduce STUDY=my-study.yaml`. `clusterfl check --config my-study.yaml` tells what is wrong with it.
# yaml-language-server: $schema=workflow/config.schema.json
"""

DIGITS: dict[str, Any] = {
    "study": "digits",
    "title": "Clustered federated learning on rotated handwritten digits",
    "seeds": {"runs": [0, 1, 2]},
    "model": {"model": "mlp", "hidden": [64]},
    "federations": {
        "rotated-digits": {
            "dataset": "digits",
            "partition": {"scheme": "rotated", "clients": 40, "angles": [0, 90, 180, 270], "test": 0.2},
        }
    },
    "warmups": {"alone": {"rounds": 1, "training": {"epochs": 20}}},
    "distances": {
        "loss": {"metric": "loss", "warmup": "alone"},
        "diffnorm": {"metric": "parameters", "warmup": "alone"},
        "gradcos": {"metric": "gradient-cosine", "warmup": "alone"},
    },
    "clusterings": {
        "lcfl": {"clusterer": "kmedoids", "distance": "loss", "clusters": 4},
        "lcfl-diffnorm": {"clusterer": "kmedoids", "distance": "diffnorm", "clusters": 4},
        "lcfl-gradcos": {"clusterer": "hierarchical", "distance": "gradcos", "clusters": 4},
    },
    "methods": {
        "fedavg": {"method": "fedavg"},
        "local": {"method": "local"},
        "oracle": {"method": "oracle"},
        "ifca": {"method": "ifca", "clusters": 4},
        "clove": {"method": "clove", "clusters": 4},
        "lcfl": {"method": "lcfl", "clustering": "lcfl"},
        "lcfl-diffnorm": {"method": "lcfl", "clustering": "lcfl-diffnorm"},
        "lcfl-gradcos": {"method": "lcfl", "clustering": "lcfl-gradcos"},
    },
    "baseline": "fedavg",
}


def default_yaml() -> str:
    """Return the default study with a comment on every key."""
    study = load(DIGITS)
    lines = [HEAD]
    for name, field in Study.model_fields.items():
        lines += ["", *_comment(field.description, 0)]
        lines += _yaml(name, getattr(study, name), 0, set())
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _comment(text: str | None, depth: int) -> list[str]:
    width = 110 - 2 * depth
    return [f"{'  ' * depth}# {line}" for line in textwrap.wrap(text or "", width)]


def _yaml(name: str, value: Any, depth: int, given: set[tuple[str, str | None]]) -> Iterator[str]:
    """Yield the lines of one key; `given` has the comments already written among its siblings."""
    indent = "  " * depth
    if isinstance(value, Dataset) and not value.model_extra:
        yield f"{indent}{name}: {value.part}"
    elif isinstance(value, BaseModel):
        yield f"{indent}{name}:"
        for key, text, inner in _items(value):
            if (key, text) not in given:
                yield from _comment(text, depth + 1)
            given.add((key, text))
            yield from _yaml(key, inner, depth + 1, set() if isinstance(inner, BaseModel) else given)
    elif isinstance(value, dict) and value and all(isinstance(v, BaseModel) for v in value.values()):
        yield f"{indent}{name}:"
        seen: set[tuple[str, str | None]] = set()
        for key, inner in value.items():
            yield from _yaml(key, inner, depth + 1, seen)
    else:
        text = write(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
        yield f"{indent}{name}: {text}"


def _items(block: BaseModel) -> Iterator[tuple[str, str | None, Any]]:
    """Yield key, description and value of a block's fields and options; empty optional fields are left out."""
    for key, field in type(block).model_fields.items():
        value = getattr(block, key)
        if value not in (None, {}) or field.is_required() or isinstance(block, Training | EngineSettings | Limit):
            yield key, field.description, value
    if isinstance(block, Part):
        options = block.registry.options(block.part)
        for key, value in block.options().items():
            yield key, options.model_fields[key].description, value


def json_schema() -> str:
    """Return the JSON schema of a study's file; parts of the tables are listed with their own options."""
    schema = Study.model_json_schema()
    for part in Part.__subclasses__():
        if part.__name__ in schema["$defs"]:
            schema["$defs"][part.__name__] = _variants(part, schema["$defs"][part.__name__])
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _variants(part: type[Part], common: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a part's block: one variant for each name of its table, and one for the user's own."""
    variants = []
    for name in part.registry:
        options = part.registry.options(name).model_json_schema()
        properties = common["properties"] | {part.key: {"const": name}} | options.get("properties", {})
        required = sorted({*common.get("required", []), part.key, *options.get("required", [])})
        variant = {"properties": properties, "required": required, "additionalProperties": False}
        if "sweep" in properties and options.get("required"):  # which may have the required options instead
            del variant["required"]
            variant["anyOf"] = [{"required": required}, {"required": [part.key, "sweep"]}]
        variants.append(variant)
    own = common["properties"] | {part.key: {"type": "string", "pattern": "^[\\w.]+:\\w+$"}}
    variants.append({"properties": own, "required": [part.key]})
    found = {"type": "object", "description": common.get("description", ""), "oneOf": variants}
    return {"anyOf": [{"type": "string"}, found]} if part is Dataset else found  # a dataset's name alone is enough
