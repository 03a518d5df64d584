"""What all blocks of a study share: names, parts with their options, and how one block's keys override another's."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from pydantic import StringConstraints

from ..errors import UserError, choices
from ..registry import Open, Registry

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
DIFFERING = ("warmups", "clusterings", "methods")  # blocks whose keys a federation may override
FEDERATION = {"base", "inputs", "model", "partition", "training"}  # keys that a dataset's block doesn't have


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings overridden by others, key by key.

    A block that names another part (another model, another clusterer, ...) replaces the whole earlier block, because
    the earlier options belong to the earlier part. Null in place of a block removes it, e.g. ``federations: {x:
    null}``; for a pattern, ``{"cifar*": null}``, it removes all blocks that match and aren't named in the same mapping.

    Raises
    ------
    UserError
        If nothing matches such a pattern.
    """
    # In this order, because a clusterer has an option `method`, and a federation a key `dataset`.
    parts = ["clusterer", "metric", "scheme", "model", "method"]
    if not (base.keys() | over.keys()) & FEDERATION:
        parts.append("dataset")
    key = next((k for k in parts if isinstance(base.get(k), str)), None)
    if key is not None and over.get(key, base[key]) != base[key]:
        return dict(over)
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        if value is None and (dropped := _dropped(base, over, key)):
            for name in dropped:
                del result[name]
        else:
            result[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return result


def _dropped(base: Mapping[str, Any], over: Mapping[str, Any], key: str) -> list[str]:
    """Return the blocks that null removes, given for a key or for a pattern that is no key."""
    names = [key] if key in base else [name for name in base if name not in over and fnmatchcase(str(name), str(key))]
    found = [name for name in names if isinstance(base[name], dict)]
    if not found and key not in base and set(str(key)) & set("*?["):
        blocks = [str(name) for name in base if isinstance(base[name], dict) and name not in over]
        raise UserError(
            f"'{key}: null' removes blocks of an earlier file, and none matches; {choices(blocks, str(key))}"
        )
    return found


def differing(settings: Mapping[str, Any], federation: str) -> dict[str, Any]:
    """Return a study's settings as they are on one federation: with its own keys in blocks, and its own methods."""
    own = settings["federations"][federation]
    found = dict(settings) | {"federations": {federation: own}}
    for kind in DIFFERING:
        changes, blocks = own.get(kind, {}), settings.get(kind, {})
        found[kind] = {name: merge(block, changes.get(name, {})) for name, block in blocks.items()}
    if own.get("only") is not None:
        found["methods"] = {name: block for name, block in found["methods"].items() if name in own["only"]}
    return found


class Part(Open):
    """A block that names a part from a table; keys that aren't the block's own are the part's options."""

    registry: ClassVar[Registry]
    key: ClassVar[str]

    @property
    def part(self) -> str:
        """The name of the part."""
        return str(getattr(self, self.key))

    def options(self) -> dict[str, Any]:
        """Return the part's options, checked, with its defaults filled in."""
        return self.registry.options(self.part)(**(self.model_extra or {})).model_dump(mode="json")

    def resolved(self) -> dict[str, Any]:
        """Return ``{key: part, options...}`` as it is passed to a job."""
        return {self.key: self.part, "options": self.options()}
