"""Tables of what the methods declare, for `clusterfl methods`."""

from __future__ import annotations

import json
from typing import Any

from ..simulation.method import Method
from . import METHODS

COLUMNS = ("method", "kind", "what", "needs", "the server learns")


def row(name: str) -> dict[str, Any]:
    """Return a method's kind, what it does, needs and reveals, and its options with defaults and descriptions."""
    kind, schema = METHODS[name], METHODS.options(name).model_json_schema()
    required = schema.get("required", [])
    options = [
        {
            "option": key,
            "allowed": allowed(entry, schema.get("$defs", {})),
            "default": None if key in required else entry.get("default"),
            "required": key in required,
            "meaning": entry.get("description", ""),
        }
        for key, entry in schema["properties"].items()
    ]
    return {
        "method": name,
        "kind": "one-shot" if kind.one_shot else "iterative",
        "what": (kind.__doc__ or "").partition("\n")[0].rstrip("."),
        "needs": ", ".join([*required, *(["clustering"] if kind.one_shot else [])]) or "-",
        "the server learns": _learns(kind),
        "options": options,
    }


def _learns(kind: type[Method]) -> str:
    """Return in words what the server needs to see of a client."""
    single = {"updates": "each update", "curves": "losses of all steps", "last_gradient": "each last gradient"}
    single["features"] = "each one's mean features by class"
    found = [] if "updates" in kind.needs or not kind.communicates else ["sums of updates"]
    found += [single[need] for need in sorted(kind.needs)]
    found += {"choice": ["the chosen model"], "losses": ["losses on all models"]}.get(kind.reveals, [])
    found += [kind.asks] if kind.asks else []
    return ", ".join([*found, *(["each model after the warm-up"] if kind.one_shot else [])]) or "nothing"


def allowed(entry: dict[str, Any], known: dict[str, Any]) -> str:
    """Return in words which values an option's JSON schema allows."""
    if "$ref" in entry:
        return allowed(known[entry["$ref"].rpartition("/")[2]], known)
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(allowed(one, known) for one in entry["anyOf"]))
    if "enum" in entry or "const" in entry:
        return ", ".join(map(str, entry.get("enum", [entry.get("const")])))
    kind = {"number": "number", "integer": "whole number", "boolean": "true, false", "string": "text"}.get(
        entry.get("type", ""), entry.get("type", "anything")
    )
    words = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
    limits = [f"{word} {entry[key]:g}" for key, word in words.items() if key in entry]
    return " ".join([kind, *limits])


def listing(name: str | None = None, as_json: bool = False) -> str:
    """Return a table of all methods, or of one with its options; as JSON a list of objects."""
    rows = [row(one) for one in ([name] if name else METHODS)]
    if as_json:
        return json.dumps(rows, indent=1) + "\n"
    if name is None:
        lines = _columns([list(COLUMNS), *([str(found[key]) for key in COLUMNS] for found in rows)])
        return "\n".join([*lines, "", "Options of one: clusterfl methods NAME; pages: docs/methods", ""])
    found = rows[0]
    lines = [f"{key}: {found[key]}" for key in COLUMNS]
    options = [
        [one["option"], "(needed)" if one["required"] else _value(one["default"]), one["allowed"], one["meaning"]]
        for one in found["options"]
    ]
    table = _columns([["option", "default", "allowed", "meaning"], *options]) if options else ["no options"]
    return "\n".join([*lines, "", *table, ""])


def _value(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _columns(rows: list[list[str]]) -> list[str]:
    """Return the rows as lines, each column as wide as its longest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows]
