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
    """YAML silently keeps the last of two equal keys; here that is an error, and so is a number in an odd notation."""

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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Refuse 010, which YAML 1.1 reads as 8 and YAML 1.2 as 10, and 1:30, which YAML 1.1 reads as 90."""
        self._usual(node, number := super().construct_yaml_int(node))
        return int(number)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Refuse 1:30.5, which YAML 1.1 reads as 90.5."""
        self._usual(node, number := super().construct_yaml_float(node))
        return float(number)

    def _usual(self, node: yaml.ScalarNode, number: float) -> None:
        written = str(node.value)
        if ":" in written or re.fullmatch(r"[-+]?0[0-9_]+", written):
            why = "what is between colons counts in sixties" if ":" in written else "a 0 in front makes it octal"
            raise yaml.constructor.ConstructorError(
                None, None, f"'{written}' would be read as {number}, because {why}; write "
                "the number that is meant in plain digits, or put a text in quotes", node.start_mark,
            )  # fmt: skip

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


for kind in ("int", "float"):
    _UniqueKeys.add_constructor(f"tag:yaml.org,2002:{kind}", getattr(_UniqueKeys, f"construct_yaml_{kind}"))

# In YAML 1.1, PyYAML's version, numbers with an exponent need a point and a sign: 2e-05 is a text.
for rules in (_UniqueKeys, _Dumper):
    rules.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
