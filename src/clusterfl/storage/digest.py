"""Digests of code and settings, which decide whether a stage's result is still valid.

The code digest covers code that computes: the syntax trees of the modules that a job names and of all they import
inside the package, without what can't change a number. Left out are

- comments, docstrings, import lines, rows of a `Registry` and the names of modules: a job depends on the parts that it
  names, wherever their modules are, and not on the list of all parts;
- texts for people: those of errors, warnings, progress and prints, descriptions of options, and any other text with a
  space in it, unless it is compared, is a key, names a random stream, or is a pattern or format (`EXACT`);
- modules that only handle files, processes and messages (`PLUMBING`). File formats have their own version numbers.

These rules don't hold for a user's modules, which weren't written for them: a column's name may have a space in it, and
an import line may choose the data. There all code except comments and docstrings counts, as does what it imports from
its own folder, from folders in it, and from the study's other module folders.

A change that is meant to change numbers gets a new revision (`revisions`), which is part of a job's code digest.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..registry import PACKAGE, SEARCHED, inside, parsed, source_file

# By the last part of their names, so that a moved module still matches. They compute no result.
PLUMBING = frozenset({
    "checkpoint", "checks", "columns", "digest", "errors", "execute", "forked", "job", "jobs", "kept", "loading",
    "locks", "manifest", "processor", "progress", "registry", "returned", "revisions", "rules", "scratch", "sealed",
    "store",
})  # fmt: skip
SAYING = frozenset({"print", "warn", "progress", "bar", "_say"})
# Functions whose texts count although they have spaces: names of random streams, formats, patterns.
EXACT = frozenset({
    "key", "generator", "hashed", "hashed_on_device", "uniform", "permutations", "torch_stream", "noise", "einsum",
    "compile", "match", "fullmatch", "search", "findall", "sub", "split", "partition", "rpartition", "replace", "strip",
    "lstrip", "rstrip", "startswith", "endswith", "removeprefix", "removesuffix", "loads", "query", "eval",
})  # fmt: skip
DESCRIBING = frozenset({"description", "title", "help", "examples"})


def canonical(settings: Any) -> str:
    """Return settings as JSON with sorted keys, so that equal settings give equal texts."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def of_text(text: str) -> str:
    """Return the digest of a text: 16 hexadecimal digits; 64 bits suffice to detect edits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_path(path: Path) -> str:
    """Return the digest (16 digits) of a file's bytes, or of the names and sizes of a folder's files."""
    if path.is_file():
        return of_file(path)[:16]
    sizes = {str(p.relative_to(path)): p.stat().st_size for p in path.rglob("*") if p.is_file()}
    return of_text(canonical(sizes))


class _Computing:
    """Writes the computing part of a syntax tree as text: nodes with their fields; see the module's docstring.

    Parameters
    ----------
    aliases
        For each name imported from the same package, the last part of its original name; an empty text for a module,
        whose name isn't part of the text of its attributes.
    texts
        Whether texts for people are kept, as for a report.
    own
        Whether the module is the package's own; of a user's module everything except docstrings is kept.
    """

    def __init__(self, aliases: dict[str, str], texts: bool, own: bool):
        self.aliases, self.texts = aliases, texts
        self.special: dict[type, Callable[[Any], str]] = {} if not own else {
            ast.Import: self._nothing, ast.ImportFrom: self._nothing, ast.Expr: self._statement, ast.Call: self._call,
            ast.Subscript: self._subscript, ast.Dict: self._dict, ast.Compare: self._with_texts,
            ast.MatchValue: self._with_texts, ast.Constant: self._constant, ast.JoinedStr: self._joined,
            ast.Name: self._name, ast.Attribute: self._attribute,
        }  # fmt: skip

    def text(self, part: Any) -> str:
        """Return the text of a node, a list or a value; an empty text if it is left out."""
        if isinstance(part, ast.AST):
            return self.special.get(type(part), self._plain)(part)
        return f"[{','.join(filter(None, map(self.text, part)))}]" if isinstance(part, list) else repr(part)

    def _plain(self, node: ast.AST) -> str:
        """Return the text of all fields except `ctx`: a name's position shows whether it is read or written."""
        fields = [self._body(node) if key == "body" else self.text(getattr(node, key, None))
                  for key in node._fields if key != "ctx"]  # fmt: skip
        return f"{type(node).__name__}({','.join(fields)})"

    def _body(self, node: Any) -> str:
        """Return the text of statements without a docstring; that of `pass` if nothing is left."""
        body = node.body
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
            body = body[1:] if documented else body
        found = self.text(body)
        return "[Pass()]" if found == "[]" else found

    def _nothing(self, node: ast.AST) -> str:
        return ""

    def _statement(self, node: ast.Expr) -> str:
        """Leave out a statement that only prints or reports."""
        return "" if isinstance(node.value, ast.Call) and _called(node.value) in SAYING else self._plain(node)

    def _call(self, node: ast.Call) -> str:
        name, args = _called(node), node.args
        if name in ("Registry", "Methods", "Metrics"):
            return "registry"
        if name.endswith(("Error", "Warning")) or name in ("Diverged", "Stopped", "Unsound"):
            return f"Call({self.text(node.func)})"
        if name in SAYING:
            args = [a for a in args if not isinstance(a, ast.Constant | ast.JoinedStr)]
        keywords = [k for k in node.keywords if k.arg not in DESCRIBING]
        with self._exactly(name in EXACT):
            return f"Call({self.text(node.func)},{self.text(args)},{self.text(keywords)})"

    def _subscript(self, node: ast.Subscript) -> str:
        value = self.text(node.value)
        with self._exactly():
            return f"Subscript({value},{self.text(node.slice)})"

    def _dict(self, node: ast.Dict) -> str:
        with self._exactly():
            keys = self.text(node.keys)
        return f"Dict({keys},{self.text(node.values)})"

    @contextlib.contextmanager
    def _exactly(self, needed: bool = True) -> Iterator[None]:
        """Keep all texts inside the block, if `needed`."""
        kept, self.texts = self.texts, self.texts or needed
        yield
        self.texts = kept

    def _with_texts(self, node: ast.AST) -> str:
        """Keep all texts in a node: they are compared, or name a random stream."""
        with self._exactly():
            return self._plain(node)

    def _constant(self, node: ast.Constant) -> str:
        value = node.value
        if isinstance(value, str):
            if re.fullmatch(rf"{PACKAGE.name}(\.\w+)+(:\w+)?", value):
                value = value.rpartition(":")[2].rpartition(".")[2]
            elif " " in value.strip() and not self.texts:
                value = ""
        return f"Constant({value!r})"

    def _joined(self, node: ast.JoinedStr) -> str:
        said = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        return "Constant('')" if " " in said.strip() and not self.texts else self._plain(node)

    def _name(self, node: ast.Name) -> str:
        return f"Name({self.aliases.get(node.id) or node.id})"

    def _attribute(self, node: ast.Attribute) -> str:
        if isinstance(node.value, ast.Name) and self.aliases.get(node.value.id) == "":
            return f"Name({node.attr})"
        return f"Attribute({self.text(node.value)},{node.attr})"


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=1024)
def _read(path: Path, name: str, mtime: int, texts: bool, roots: tuple[Path, ...]) -> tuple[dict[str, Path], str]:
    """Return the modules that a file imports from the package or the user, and the digest of its code."""
    tree = parsed(path)
    found = _imports(tree, path, name, roots)
    aliases = {alias: taken for _, _, alias, taken in found if alias}
    return {module: file for module, file, *_ in found}, of_text(_Computing(aliases, texts, inside(name)).text(tree))


def _roots(path: Path, name: str) -> tuple[Path, ...]:
    """Return the folders whose modules count as the user's if a user's module imports them.

    They are the folder in which the module's name begins, and those of the study's modules.
    """
    up = name.count(".") + (path.name == "__init__.py")
    begins = path.parents[min(up, len(path.parents) - 1)]  # a link's target may be less deep
    return tuple(dict.fromkeys([begins, *(Path(folder).resolve() for folder in SEARCHED)]))


def _of_the_user(module: str, name: str, roots: tuple[Path, ...]) -> Path | None:
    """Return the file of a module that a user's module, `name`, imports; None if it isn't the user's.

    It must be importable from one of the `roots`, not just inside one: an environment, .venv, often is. If packages are
    installed in a root, only modules of the same package as `name` count there.
    """
    file = source_file(module)
    found = [root for root in roots if file is not None and source_file(module, root) == file]
    related = module.partition(".")[0] == name.partition(".")[0]
    return file if any(related or not any(root.glob("*.dist-info")) for root in found) else None


def _imports(tree: ast.Module, path: Path, name: str, roots: tuple[Path, ...]) -> list[tuple[str, Path, str, str]]:
    """Return what a file imports from the package, or from the user's `roots`.

    Returns
    -------
    Tuples of a module, its file, the local name of the import, and the original name of what is imported from the
    module, an empty text for the module itself.
    """
    own = inside(name)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: list[tuple[str, Path, str, str]] = []

    def add(module: str, alias: str, taken: str) -> bool:
        if inside(module):
            file = source_file(module)
        else:
            file = _of_the_user(module, name, roots) if module and not own else None
        if file is None or file == path:
            return False
        found.append((module, file, alias, taken))
        return True

    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                add(item.name, item.asname or item.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            for item in node.names:
                alias = item.asname or item.name
                if not add(f"{target}.{item.name}", alias, ""):
                    add(target, alias, item.name)
                else:
                    add(target, "", "")
    return found


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a file's statements, outer ones first, without those under ``TYPE_CHECKING``, which never run."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            continue
        yield node
        for key in ("body", "handlers", "cases", "orelse", "finalbody"):
            waiting += getattr(node, key, [])


def of_code(modules: Iterable[str], texts: bool = False) -> str:
    """Return the code digest of `modules` and of all they import from the package or the user.

    Parameters
    ----------
    modules
        Names of modules.
    texts
        Whether texts count as well, as for a page that consists of them.

    Raises
    ------
    UserError
        If a module's source can't be found.
    """
    return of_text("\n".join(sorted(found for _, found in _closure(modules, texts).values())))


def imported_later(modules: Sequence[str]) -> list[str]:
    """Return the modules of other packages that a job's functions import only when they are called.

    These functions are in its parts, `modules` without the first, and in imported files of the same folders.
    """
    own = {name: path for name, (path, _) in _closure(modules).items()}
    folders = {own[name].parent for name in modules[1:]}
    found = {path: _others(path, path.stat().st_mtime_ns) for path in own.values()}
    at_once = {name for names, _ in found.values() for name in names}
    later = {name for path, (_, names) in found.items() if path.parent in folders for name in names}
    return sorted(later - at_once)


@lru_cache(maxsize=512)
def _others(path: Path, mtime: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules of other packages that a file imports at the top, and those that its functions import."""
    tree = parsed(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    later = {name for function in functions for node in ast.walk(function) for name in _foreign(node)}
    return frozenset(name for node in tree.body for name in _foreign(node)), frozenset(later)


def _foreign(node: ast.AST) -> list[str]:
    """Return the modules of other packages, without the standard library, that a statement imports."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [node.module]
    return [name for name in names if name.partition(".")[0] not in {PACKAGE.name, *sys.stdlib_module_names}]


def _closure(modules: Iterable[str], texts: bool = False) -> dict[str, tuple[Path, str]]:
    """Return file and digest by name, for `modules` and all they import, without `PLUMBING`."""
    waiting: list[tuple[str, Path]] = []
    for module in modules:
        file = source_file(module)
        if file is None:
            raise UserError(f"module '{module}' isn't found: put it in the configuration's folder or install it")
        waiting.append((module, file))
    found: dict[str, tuple[Path, str]] = {}
    while waiting:
        name, path = waiting.pop()
        if name not in found and not _plumbing(name):
            roots = () if inside(name) else _roots(path, name)
            imports, computes = _read(path, name, path.stat().st_mtime_ns, texts, roots)
            found[name] = path, computes
            waiting += imports.items()
            package = name.rpartition(".")[0]
            above = source_file(package) if roots and package else None
            if above is not None:  # Python runs the package's __init__.py first
                waiting.append((package, above))
    return found


def _plumbing(module: str) -> bool:
    return module == PACKAGE.name or (inside(module) and module.rpartition(".")[2] in PLUMBING)
