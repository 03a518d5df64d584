"""Settings as YAML, read and written by the same rules: `parse` returns exactly the values that `write` wrote."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml


def parse(text: str) -> Any:
    """Return the value of a YAML text, also with numbers as YAML 1.2 and JSON write them, such as ``2e-05``."""
    return yaml.load(text, _UniqueKeys)


def write(value: Any, **options: Any) -> str:
    """Return a value as YAML, keys in their order; `options` are those of PyYAML's ``dump``."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options))


class _UniqueKeys(yaml.SafeLoader):
    """YAML silently keeps the last of two equal keys; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<`: keys given beside it replace the merged ones
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge what `<<` names, each key once: otherwise their number could double from one anchor to the next."""
        own = sum(key.tag != "tag:yaml.org,2002:merge" for key, _ in node.value)
        super().flatten_mapping(node)
        merged, rest = node.value[: len(node.value) - own], node.value[len(node.value) - own :]
        once = {(key.tag, str(key.value)): (key, value) for key, value in merged}
        node.value = [*once.values(), *rest]


# The C library's dumper if PyYAML was built with it: the same text, ten times as fast.
class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes the texts that `parse` would read as something else."""


# In YAML 1.1, PyYAML's version, numbers with an exponent need a point and a sign: 2e-05 is a text.
for rules in (_UniqueKeys, _Dumper):
    rules.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
