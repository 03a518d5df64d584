"""What a partition's clients and planted groups are called, where the data's owner named them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .samples import Samples, Table


@dataclass(frozen=True)
class Named(Samples):
    """Samples of the user's own, whose natural clients and groups have names.

    The names aren't among the arrays: no number depends on them, so the samples' file is the same without.
    """

    group_names: NDArray[Any] | None = None  # of the groups 0, 1, ...

    def tensors(self) -> Table:
        """Return the arrays that there are, as `read_samples` reads them."""
        return {name: array for name, array in super().tensors().items() if name not in ("names", "group_names")}


@dataclass(frozen=True)
class Names:
    """Names by number; a client or group without one goes by its number."""

    clients: Mapping[int, str] = field(default_factory=dict)
    groups: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None) -> Names:
        """Return the names that a manifest has."""
        found = facts or {}
        return cls(*({int(k): str(v) for k, v in found.get(kind, {}).items()} for kind in ("clients", "groups")))

    def facts(self) -> dict[str, dict[str, str]]:
        """Return the names as a manifest takes them; empty where there are none."""
        kinds = {"clients": self.clients, "groups": self.groups}
        return {kind: {str(k): name for k, name in names.items()} for kind, names in kinds.items() if names}

    def client(self, number: int) -> str:
        """Return what a client is called."""
        return self.clients.get(number, str(number))

    def group(self, number: int) -> str:
        """Return what a planted group is called: its name with its number, which figures have, or the number alone."""
        return f"{self.groups[number]} ({number})" if number in self.groups else str(number)


NAMELESS = Names()


def given(samples: Samples) -> dict[str, list[str]]:
    """Return the names of a dataset's owners and groups; empty where it names none."""
    found = {"clients": samples.names, "groups": getattr(samples, "group_names", None)}
    return {kind: [str(name) for name in names] for kind, names in found.items() if names is not None}


def of_partition(named: Mapping[str, Sequence[str]], samples: Samples, table: Table) -> Names:
    """Return the names of a partition's clients and planted groups.

    A client has the name of the owner of its samples, if they are of one, and of no other client's too; a planted group
    likewise. Schemes that deal samples out again therefore leave no names. Names that say no more than the numbers do
    are left away; that is seen only here: where client 0 of the data is left out, client 0 is its client 1.

    Parameters
    ----------
    named
        Names of the dataset's owners and groups, as `given` returns them.
    samples
        The dataset; of its arrays `owner` and `group` are looked at.
    table
        The partition.
    """
    pairs = {"clients": ("client", samples.owner), "groups": ("true_cluster", samples.group)}
    found: dict[str, dict[int, str]] = {}
    for kind, names in named.items():
        column, owners = pairs[kind]
        if owners is None:
            continue
        known = table[column] >= 0
        both = np.unique(np.stack([table[column][known], owners[table["sample"][known]]]), axis=1)
        once = [np.isin(row, values[counts == 1]) for row in both
                for values, counts in [np.unique(row, return_counts=True)]]  # fmt: skip
        sure = once[0] & once[1] & (both[1] >= 0)
        own = {int(number): names[owner] for number, owner in both[:, sure].T}
        if any(name != str(number) for number, name in own.items()):
            found[kind] = own
    return Names(**found)
