"""Digests of code and settings: what decides whether a stage's result is still the right one.

The digest of code covers the syntax trees, without comments and docstrings, of the modules a job names and of
everything they import inside the package (or beside the user's module). Rows of a `Registry` are left out: a
job depends on the part it names, not on the list of all parts.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserError
from .registry import PACKAGE, parsed, source_file


def canonical(settings: Any) -> str:
    """Return settings as JSON with sorted keys, so that equal settings are equal text."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def of_text(text: str) -> str:
    """Return the digest of a text (16 hexadecimal digits: 64 bits tell edits apart)."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_path(path: Path) -> str:
    """Return the digest of a file's bytes; of a folder, that of its files' names and sizes."""
    if path.is_file():
        return of_file(path)[:16]
    sizes = {str(p.relative_to(path)): p.stat().st_size for p in path.rglob("*") if p.is_file()}
    return of_text(canonical(sizes))


class _Bare(ast.NodeTransformer):
    """Drop what can't change a result: docstrings and the rows of registries."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                body.pop(0)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "Registry":
            return ast.Constant(value="registry")
        return self.generic_visit(node)


@lru_cache(maxsize=512)
def _parse(path: Path, mtime: int) -> tuple[str, tuple[tuple[str, tuple[str, ...], int], ...]]:
    """Return the bare syntax tree as text and the imports ``(module, names, level)`` of one file."""
    tree = parsed(path)
    imports: list[tuple[str, tuple[str, ...], int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, (), 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.module or "", tuple(alias.name for alias in node.names), node.level))
    return ast.dump(_Bare().visit(tree)), tuple(imports)


def _imported(path: Path, name: str) -> set[tuple[str, Path]]:
    """Return the files inside the package, or beside a user's module, that a file imports."""
    own = name.partition(".")[0] == PACKAGE.name
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for module, names, level in _parse(path, path.stat().st_mtime_ns)[1]:
        base = package[: len(package) - level + 1] if level else []
        target = ".".join([*base, *([module] if module else [])])
        for candidate in [target, *(f"{target}.{n}" for n in names)]:
            inside = candidate.partition(".")[0] == PACKAGE.name
            file = source_file(candidate) if inside or (candidate and not own) else None
            if file is not None and file != path and (inside or file.parent == path.parent):
                found.add((candidate, file))
    return found


def of_code(modules: Iterable[str]) -> str:
    """Return the digest of the code of `modules` and of all they import inside the package.

    Raises
    ------
    UserError
        If a module's source can't be found.
    """
    trees = {name: _parse(path, path.stat().st_mtime_ns)[0] for name, path in _closure(modules).items()}
    return of_text("\n".join(f"{name}\n{trees[name]}" for name in sorted(trees)))


def imported_later(modules: Sequence[str]) -> list[str]:
    """Return the modules of other packages that a job's functions import only when they are called.

    The functions are those of its parts, the `modules` but the first, and of the files beside them that it imports.
    """
    own = _closure(modules)
    folders = {own[name].parent for name in modules[1:]}
    trees = {path: parsed(path) for path in own.values()}
    at_once = {name for tree in trees.values() for node in tree.body for name in _foreign(node)}
    functions = [
        node
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if path.parent in folders and isinstance(node, ast.FunctionDef)
    ]
    later = {name for function in functions for node in ast.walk(function) for name in _foreign(node)}
    return sorted(later - at_once)


def _foreign(node: ast.AST) -> list[str]:
    """Return the modules of other packages, but for the standard library's, that a statement imports."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module]
    return [name for name in names if name.partition(".")[0] not in {PACKAGE.name, *sys.stdlib_module_names}]


def _closure(modules: Iterable[str]) -> dict[str, Path]:
    """Return the files of `modules` and of all they import inside the package, by the modules' names."""
    waiting: list[tuple[str, Path]] = []
    for module in modules:
        file = source_file(module)
        if file is None:
            raise UserError(f"no source for the module '{module}': put it beside the configuration or install it")
        waiting.append((module, file))
    found: dict[str, Path] = {}
    while waiting:
        name, path = waiting.pop()
        if name not in found:
            found[name] = path
            waiting += _imported(path, name)
    return found
