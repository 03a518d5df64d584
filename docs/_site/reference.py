"""Directives for what is declared in the code once: settings, tables of parts with their options, commands.

And what a comment beside a field says, as the field's description.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar
from unittest import mock

from docutils import nodes
from docutils.statemachine import StringList
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from clusterfl.cli.program import _parser
from clusterfl.registry import Registry

DESCRIBED: dict[str, str] = {}  # by a field's full name, what the comment beside it says


def named(spec: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = spec.partition(":")
    return getattr(import_module(module), attribute)


def default(field: FieldInfo) -> str:
    """Return a setting's default in reStructuredText."""
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see there"
    return f"``{value if isinstance(value, str) and value else json.dumps(value)}``"


def plain(text: str) -> str:
    """Return text of the code, which marks code as Markdown does, in reStructuredText."""
    return re.sub(r"([\\*|]|_(?!\w))", r"\\\1", text).replace("``", "`").replace("`", "``")


def table(model: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of a table of settings."""
    if not model.model_fields:
        yield from ("No options.", "")
        return
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 22 18 60", "")
    yield from ("   * - key", "     - default", "     - meaning")
    for name, field in model.model_fields.items():
        yield f"   * - ``{name}``"
        yield f"     - {default(field)}"
        yield f"     - {plain(field.description or '')}"
    yield ""


class Written(SphinxDirective):
    """A directive whose content is written as lines of reStructuredText."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """See docutils."""
        self.content = StringList(list(self.lines()), self.get_source_info()[0])
        return self.parse_content_to_nodes(allow_section_headings=True)


class Settings(Written):
    """The keys of a block of settings: ``.. settings:: module:Class``."""

    def lines(self) -> Iterator[str]:
        """See `Written`."""
        yield from table(named(self.arguments[0]))


class Parts(Written):
    """Every part of a registry, what it is, its options: ``.. parts:: module:TABLE``."""

    def lines(self) -> Iterator[str]:
        """See `Written`."""
        registry: Registry = named(self.arguments[0])
        for name in registry:
            about = (inspect.getdoc(registry[name]) or "").split("\n\n")[0].replace("\n", " ")
            yield from (name, "~" * len(name), "", about, "")
            yield from table(registry.options(name))


class Commands(Written):
    """What each command says with ``--help``."""

    required_arguments = 0
    WIDTH: ClassVar[str] = "100"

    def lines(self) -> Iterator[str]:
        """See `Written`."""
        # argparse asks the terminal how wide it is, and may colour.
        with mock.patch.dict(os.environ, {"COLUMNS": self.WIDTH, "NO_COLOR": "1"}):
            parser = _parser()
            (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
            for name, command in {"clusterfl": parser, **commands.choices}.items():
                text = io.StringIO(command.format_help())
                yield from (name, "-" * len(name), "", ".. code-block:: text", "")
                yield from (f"   {line.rstrip()}" for line in text)
                yield ""


def comments(kind: type) -> dict[str, str]:
    """Return what the comments beside or above the fields of a class say."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if note := re.match(r"    #\s+(.*)", line):
            above.append(note[1])
            continue
        field = re.match(r"    (\w+)\s*:[^#]*(?:#\s+(.*))?$", line)
        if field and (above or field[2]):
            found[field[1]] = field[2] or " ".join(above)
        above = []
    return found


def collect(app: Sphinx, page: str, source: list[str]) -> None:
    """Let comments beside fields count as their descriptions, which for Sphinx those with ``#:`` alone do."""
    for name in re.findall(r"^\.\. autoclass:: (\S+)$", source[0], re.MULTILINE):
        module, _, kind = name.rpartition(".")
        analyzer = ModuleAnalyzer.for_module(module)  # one for all who ask
        analyzer.analyze()
        for field, text in comments(named(f"{module}:{kind}")).items():
            if (kind, field) not in analyzer.attr_docs:
                DESCRIBED[f"{name}.{field}"] = plain(text)
                analyzer.attr_docs[kind, field] = [plain(text), ""]


def describe(app: Sphinx, what: str, name: str, part: Any, options: Any, lines: list[str]) -> None:
    """Write a comment as it stands: Napoleon takes what is before a colon in it for a type."""
    if name in DESCRIBED:
        lines[:] = [DESCRIBED[name], ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx."""
    app.connect("source-read", collect)
    app.connect("autodoc-process-docstring", describe, priority=900)
    app.add_directive("settings", Settings)
    app.add_directive("parts", Parts)
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
