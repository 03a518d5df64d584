"""Checks of a method's source and options, without running it."""

from __future__ import annotations

import ast
from typing import Any

from pydantic import ValidationError

from ...methods import METHODS
from ...registry import parsed
from .check import Finding, fails, note
from .runs import MethodCase


def defaults(case: MethodCase) -> Finding | None:
    """Hold that the default of each option is an allowed value."""
    model: Any = METHODS.options(case.name)
    for name, one in model.model_fields.items():
        if one.is_required():
            continue
        value = one.get_default(call_default_factory=True)
        try:
            model.__pydantic_validator__.validate_assignment(model.model_construct(), name, value)
        except ValidationError as error:
            problems = [e["msg"] for e in error.errors() if e["loc"] and e["loc"][0] == name and e["type"] != "frozen"]
            if problems:
                return fails(
                    f"option '{name}' has the default {value!r}: {problems[0]}; change the default or the bounds"
                )
    return None


def light(case: MethodCase) -> Finding | None:
    """Hold that its module doesn't import torch at the top, so that options can be listed and checked without it."""
    for node in parsed(case.source).body:
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.partition(".")[0] in ("torch", "torchvision") for name in names):
            return note(
                f"{case.source.name}, line {node.lineno}, imports torch, which delays every check of a configuration "
                "and every list of options by seconds; import it inside the functions that use it"
            )
    return None
