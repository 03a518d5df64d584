"""Problems of settings as sentences: path of the key, value found, what is allowed, nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..data.addresses import shown
from ..errors import choices


def report(source: str, problems: list[str]) -> str:
    """Return one message with all problems of a source of settings."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{source}: {count}; nothing was run", *(f"  {p}" for p in problems)])


def lines(error: ValidationError, prefix: tuple[str, ...], model: type[BaseModel]) -> list[str]:
    """Return one line for each of pydantic's errors."""
    lines: list[str] = []
    for item in error.errors():
        *path, last = (*prefix, *item["loc"]) or ("training",)
        # The last step may name the form of a value that was tried (int, literal[...]), or mark a key.
        form = last in ("int", "constrained-int", "constrained-float", "[key]") or str(last).startswith("literal[")
        where = ".".join(map(str, path if form else [*path, last]))
        if item["type"] == "extra_forbidden":
            allowed = _fields(model, item["loc"][:-1])
            lines.append(
                f"{where}: unknown key (value {short(item['input'])}); {choices(allowed, str(item['loc'][-1]))}"
            )
        elif item["type"] == "missing":
            lines.append(f"{where}: missing; {_description(model, item['loc'])}")
        else:
            message = _message(item)
            if lines and lines[-1].startswith(f"{where}: "):
                lines[-1] += f"; or: {message}"  # another form that the same value could have
            elif item["type"] == "value_error" and short(item["input"]).endswith("..."):
                lines.append(f"{where}: {message}")  # about some keys of a block, which the message names
            else:
                lines.append(f"{where}: found {short(item['input'])}; {message}")
    return lines


def _message(item: Any) -> str:
    """Return pydantic's message about one value, in terms of YAML."""
    kind, given = item["type"], str(item["input"])
    if kind == "literal_error":
        names = re.findall(r"'([^']*)'|(\d+)", item["ctx"]["expected"])  # or numbers, as of ddof
        return choices(map("".join, names), given)
    if kind in ("model_type", "dict_type"):
        return "should hold keys and values"
    if kind == "too_short":
        return f"needs at least {item['ctx']['min_length']} entry"
    if kind == "string_pattern_mismatch" and "cuda" in item["ctx"]["pattern"]:
        return "it is auto, cpu, cuda, or one device such as cuda:1"
    if kind == "string_pattern_mismatch":
        return "a name has letters, digits, '.', '_' and '-' only and starts with a letter or digit"
    return str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


def short(value: Any) -> str:
    """Return a value for a message: without secrets, and not too long."""
    text = repr(shown(value) if isinstance(value, str) else value)
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
    said = f"it is {field.description}" if field is not None and field.description else "it is needed"
    words = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    return f"{said}; {choices(map(str, words))}" if words else said


def reference(place: str, name: str, blocks: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if there is no block of that name."""
    if name not in blocks:
        yield f"{place}: there is no block '{name}'; {choices(blocks, name)}"
