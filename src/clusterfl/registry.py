"""Settings, and tables of named parts (methods, clusterers, ...) with the typed options of each part.

`Typed` is the base of all settings: frozen, unknown keys refused, booleans accepted only where they are meant.

A part is named by ``'module:attribute'`` and declares its options in one place only. A method's options are the fields
of its class, which is imported, as this doesn't import torch. Other parts are functions or classes, whose options are
their keyword-only parameters; the caller supplies the positional ones. These are read from the *source*, so that a
configuration is checked without importing torch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib import import_module, invalidate_caches
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, cast, get_args, get_type_hints

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
)

from .errors import UserError, choices

LATER = "later"  # in an option's Annotated: left out of a job's settings where it has its default, see `Typed.later`
PACKAGE = Path(__file__).resolve().parent
# The C library's reader takes a tenth of the time, but crashes on deeply nested brackets, where Python's raises.
OWN_READER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Typed(BaseModel):
    """Settings. Plain pydantic would read true as 1, and YAML reads yes, no, on and off as booleans."""

    # Stored settings keep an infinite epsilon; by default it would become null, which means none. Any other number is
    # finite, unless its field says allow_inf_nan=True.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants", allow_inf_nan=False)
    later: ClassVar[frozenset[str]] = frozenset()  # keys added later, whose defaults are the earlier behaviour

    @model_serializer(mode="wrap")
    def _leave_away(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `later` keys with their default values, so that digests stay as they were before these keys."""
        found: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {key: value for key, value in found.items() if key not in self.later or value != fields[key].default}

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, bool) and not cls._means_truth(str(info.field_name)):
                raise ValueError("it should be a number or a name; quote a name such as yes, no, on or off")
        return value

    @classmethod
    def _means_truth(cls, field: str) -> bool:
        annotation = cls.model_fields[field].annotation
        return annotation in (bool, Any) or bool in get_args(annotation)


class Open(Typed):
    """Settings that also take keys which are checked elsewhere."""

    model_config = ConfigDict(extra="allow")


class Registry(Mapping[str, Any]):
    """A mapping from names to parts that imports a part only when it is accessed."""

    own = "my_module:function"  # how a user names a part of their own

    def __init__(self, kind: str, table: dict[str, str]):
        self.kind = kind
        self.table = table

    def spec(self, name: str) -> str:
        """Return ``'module:attribute'`` for a name in the table, or for a user's own ``'module:attribute'``."""
        if name in self.table:
            return self.table[name]
        if all(part.isidentifier() for part in name.replace(":", ".", 1).split(".")) and ":" in name:
            return name
        raise UserError(f"unknown {self.kind} '{name}'; {choices(self.table, name)}; or name your own as '{self.own}'")

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.spec(name).partition(":")
        try:
            part = _imported(module)
        except SyntaxError as error:
            raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
        except Exception as error:
            # The module itself, or a package that it is in; a missing import of the module has another name.
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                raise UserError(_not_found(self.kind, name, module)) from error
            if inside(module):
                raise
            raise UserError(f"{self.kind} '{name}': {_where(error, module)}") from error
        if not hasattr(part, attribute):
            own = [key for key, value in vars(part).items() if getattr(value, "__module__", None) == module]
            found = f"{self.kind} '{name}': {part.__file__} defines no '{attribute}'"
            raise UserError(f"{found}; {choices((key for key in own if not key.startswith('_')), attribute)}")
        return getattr(part, attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def options(self, name: str) -> type[BaseModel]:
        """Return the pydantic model of a part's options (unknown keys refused)."""
        return _options(*self._source(name))

    def _source(self, name: str) -> tuple[Path, str, int]:
        """Return a part's file, its name in it, and the time of the file's last change."""
        module, _, attribute = self.spec(name).partition(":")
        path = source_file(module)
        if path is None:
            raise UserError(_not_found(self.kind, name, module))
        return path, attribute, path.stat().st_mtime_ns


def _where(error: Exception, module: str) -> str:
    """Return the last line of a user's module in an error's traceback, the error's message, and what to do."""
    path = str(source_file(module))
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    found = f"{path}, line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}"
    return f"{found}; correct the import, or install what it needs" if isinstance(error, ImportError) else found


def _imported(module: str) -> ModuleType:
    """Return a module; a user's module that has changed, or is now found in another folder, is imported again."""
    path = None if inside(module) else source_file(module)
    if path is not None:
        state = (path, path.stat().st_mtime_ns)
        if _READ.get(module, state) != state:
            sys.modules.pop(module, None)
        if module not in sys.modules:
            invalidate_caches()
        _READ[module] = state
    return import_module(module)


_READ: dict[str, tuple[Path, int]] = {}  # files of a user's modules and their times of change, as of their import


def _not_found(kind: str, name: str, module: str) -> str:
    found = f"{kind} '{name}': no module '{module}' beside the configuration, in the working folder or installed; "
    if module.endswith(".py"):
        return f"{found}leave .py out: '{name.replace('.py:', ':')}'"
    return f"{found}put {module.replace('.', '/')}.py beside the configuration file, or install it"


def inside(module: str) -> bool:
    """Return whether a module belongs to this package, by its name."""
    return module.partition(".")[0] == PACKAGE.name


def source_file(module: str, root: Path | None = None) -> Path | None:
    """Return a module's source file without importing it: in `root` if given, else in this package or ``sys.path``."""
    if root is not None:
        return _under([root], module)
    if inside(module):
        return _own_file(PACKAGE.parent, module)
    return _under([Path(entry or ".") for entry in sys.path], module)


@lru_cache(maxsize=256)
def _own_file(root: Path, module: str) -> Path | None:
    """Return the source file of a module of this package; cached, as it is needed thousands of times."""
    return _under([root], module)


def _under(roots: list[Path], module: str) -> Path | None:
    for root in roots:
        stem = root.joinpath(*module.split("."))
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate.resolve()
    return None


SEARCHED: list[str] = []  # the user's folders, latest first: not all of sys.path, where Python has folders of its own


def find_file(path: str) -> Path:
    """Return a user's file or folder: as given, or beside the configuration and the user's modules.

    Raises
    ------
    UserError
        If it isn't found.
    """
    found = next((root / path for root in map(Path, [".", *SEARCHED]) if (root / path).exists()), None)
    if found is None:
        raise UserError(f"no file or folder '{path}' in {Path.cwd()} or beside the configuration; give its right path")
    return found


def table(path: Path) -> dict[str, Any]:
    """Return the content of one of this package's YAML files."""
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), OWN_READER)
    return found


def parsed(path: Path) -> ast.Module:
    """Return a source file's syntax tree, or raise an error that says where it is wrong."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from error


@lru_cache(maxsize=256)
def _definition(path: Path, attribute: str, mtime: int) -> ast.FunctionDef | None:
    """Return the function of that name, or the ``__init__`` of a class that has one (mtime: for the cache's key)."""
    names = []
    for node in parsed(path).body:
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_" else []
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            return node
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            found = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            return found[0] if found else None
    raise UserError(f"{path} defines no function or class '{attribute}'; {choices(names, attribute)}")


@lru_cache(maxsize=256)
def _options(path: Path, attribute: str, mtime: int) -> type[BaseModel]:
    """Build the options' model from the source of ``attribute``."""
    node = _definition(path, attribute, mtime)
    if node is None:
        return create_model(attribute, __base__=Typed)
    options = {
        argument.arg: (_annotation(argument.annotation), _default(default))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    }
    return _model(attribute, options, Open if node.args.kwarg else Typed)  # **options accept any key


@lru_cache(maxsize=256)
def fields_model(kind: Any) -> type[BaseModel]:
    """Return the pydantic model of a frozen dataclass's fields (unknown keys refused)."""
    hints = get_type_hints(kind, include_extras=True)
    return _model(kind.__name__, {one.name: (hints[one.name], _default_of(one)) for one in fields(kind)})


def _default_of(one: Any) -> Any:
    """Return a field's default in pydantic's form; ... if it has none."""
    if one.default_factory is not MISSING:
        return Field(default_factory=one.default_factory)
    return ... if one.default is MISSING else one.default


def _model(name: str, options: dict[str, Any], base: type[Typed] = Typed) -> type[BaseModel]:
    model = cast(type[Typed], create_model(name, __base__=base, **options))
    model.later = frozenset(key for key, field in model.model_fields.items() if LATER in field.metadata)
    return model


def _annotation(node: ast.expr | None) -> Any:
    names = {"Annotated": Annotated, "Any": Any, "Field": Field, "Literal": Literal}
    if node is None or not _is_harmless(node):
        return Any
    try:
        return eval(compile(ast.Expression(node), "<annotation>", "eval"), {"__builtins__": _TYPES}, names)
    except (NameError, TypeError, AttributeError):
        return Any  # a user's own type: the part itself has to check it


# Nodes allowed in annotations. Without attributes, and calls of anything but Field, evaluating one runs no code of the
# module whose settings are being checked.
_PLAIN = (
    ast.BinOp, ast.BitOr, ast.Constant, ast.Dict, ast.List, ast.Load, ast.Name, ast.Subscript, ast.Tuple, ast.UnaryOp,
    ast.USub, ast.keyword,
)  # fmt: skip


def _is_harmless(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field"
    return (called or isinstance(node, _PLAIN)) and all(map(_is_harmless, ast.iter_child_nodes(node)))


_TYPES = {t.__name__: t for t in (int, float, str, bool, list, dict, tuple, set)}


def _default(node: ast.expr | None) -> Any:
    if node is None:
        return ...
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UserError(f"the default {ast.unparse(node)!r} of an option must be a literal") from error
