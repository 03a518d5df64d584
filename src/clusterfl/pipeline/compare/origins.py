"""Differences in the origin of results: settings, code, machine, package versions, bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Manifests = Mapping[str, Mapping[str, Any]]
MISSING = "(not given)"
NAMES = {"study", "title"}  # a study's names don't affect its results


@dataclass(frozen=True)
class Difference:
    """A property in which A and B differ, and its values as text."""

    key: str
    a: str
    b: str


@dataclass(frozen=True)
class Files:
    """The number of common result files with equal digests, those with different ones, and files of only one side."""

    equal: int
    different: list[str]
    only_a: int
    only_b: int

    @property
    def both(self) -> int:
        """The number of common files."""
        return self.equal + len(self.different)


def settings(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[Difference]:
    """Yield the settings that differ, by dotted key; a block that only one side has is a single difference."""
    for key in dict.fromkeys([*a, *b]):
        if not prefix and key in NAMES:
            continue
        one, other = a.get(key, ...), b.get(key, ...)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from settings(one, other, f"{prefix}{key}.")
        elif one != other:
            yield Difference(f"{prefix}{key}", _text(one), _text(other))


def _text(value: Any) -> str:
    return MISSING if value is ... else json.dumps(value, ensure_ascii=False)


def origins(a: Manifests, b: Manifests) -> list[Difference]:
    """Return the differences in commit, revisions, processor, device and packages, over all jobs of each side."""
    found = []
    facts = [{key: _joined(values) for key, values in _facts(side.values()).items()} for side in (a, b)]
    for key in dict.fromkeys([*facts[0], *facts[1]]):
        one, other = (side.get(key, "") for side in facts)
        if one != other and not (
            key.startswith("revision of ") and "" in (one, other)
        ):  # else only one side uses the part
            found.append(Difference(key, one or MISSING, other or MISSING))
    return found


def _facts(manifests: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return all values of each fact in the manifests."""
    found: dict[str, set[str]] = {}
    for manifest in manifests:
        machine = manifest.get("machine", {})
        facts: dict[str, Any] = {"commit": str(manifest.get("commit", ""))[:12]}
        facts |= {f"revision of {part}": str(number) for part, number in manifest.get("revisions", {}).items()}
        facts |= {"processor": machine.get("processor"), "kernels": machine.get("branch")}
        facts |= {key: manifest.get(key) for key in ("device", "backend")}
        facts |= manifest.get("versions", {})
        for key, value in facts.items():
            if value:
                found.setdefault(key, set()).add(str(value))
    return found


def _joined(values: set[str]) -> str:
    return ", ".join(sorted(values))


def other_code(a: Manifests, b: Manifests) -> tuple[int, int]:
    """Return how many of the common jobs have different code digests, and how many common jobs there are."""
    both = a.keys() & b.keys()
    return sum(a[place].get("code") != b[place].get("code") for place in both), len(both)


def files(a: Manifests, b: Manifests) -> Files:
    """Compare the digests of the files listed in manifests."""
    one, other = _digests(a), _digests(b)
    both = [name for name in one if name in other]
    different = [name for name in both if one[name] != other[name]]
    return Files(len(both) - len(different), different, len(one) - len(both), len(other) - len(both))


def _digests(manifests: Manifests) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, manifest in manifests.items():
        folder = place.rpartition("/")[0]
        found |= {f"{folder}/{name}": entry["sha256"] for name, entry in manifest["files"].items()}
    return found


def of_method(manifests: Manifests, method: str) -> dict[str, Mapping[str, Any]]:
    """Return the manifests of a method's own jobs, by path without the method's name."""
    part = f"/methods/{method}/"
    return {place.replace(part, "/", 1): manifest for place, manifest in manifests.items() if part in place}
