"""Names of a partition's clients and planted groups, if the data have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .samples import Samples, Table


@dataclass(frozen=True)
class Named(Samples):
    """Samples from a user's own data, whose natural clients and groups have names.

    The names aren't among the stored arrays: no result depends on them, so the samples' file is the same without them.
    """

    group_names: NDArray[Any] | None = None  # of the groups 0, 1, ...

    def tensors(self) -> Table:
        """Return the arrays that there are, as `read_samples` reads them."""
        return {name: array for name, array in super().tensors().items() if name not in ("names", "group_names")}


@dataclass(frozen=True)
class Names:
    """Names by number; a client or group without a name is called by its number."""

    clients: Mapping[int, str] = field(default_factory=dict)
    groups: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None) -> Names:
        """Return the names in a manifest."""
        found = facts or {}
        return cls(*({int(k): str(v) for k, v in found.get(kind, {}).items()} for kind in ("clients", "groups")))

    def facts(self) -> dict[str, dict[str, str]]:
        """Return the names in a manifest's form; empty if there are none."""
        kinds = {"clients": self.clients, "groups": self.groups}
        return {kind: {str(k): name for k, name in names.items()} for kind, names in kinds.items() if names}

    def client(self, number: int) -> str:
        """Return a client's name."""
        return self.clients.get(number, str(number))

    def group(self, number: int) -> str:
        """Return a planted group's name with its number, which figures show, or the number alone."""
        return f"{self.groups[number]} ({number})" if number in self.groups else str(number)


NAMELESS = Names()


def given(samples: Samples) -> dict[str, list[str]]:
    """Return the names of a dataset's owners and groups; empty if it has none."""
    found = {"clients": samples.names, "groups": getattr(samples, "group_names", None)}
    return {kind: [str(name) for name in names] for kind, names in found.items() if names is not None}


def of_partition(named: Mapping[str, Sequence[str]], samples: Samples, table: Table) -> Names:
    """Return the names of a partition's clients and planted groups.

    A client gets its owner's name if all its samples are from this owner, and no other client has any of the owner's;
    planted groups likewise. So schemes that mix owners' samples leave no names. Names that equal the numbers are left
    out; this is checked only here, because client 0 may be the data's client 1 if the data's client 0 is left out.

    Parameters
    ----------
    named
        Names of the dataset's owners and groups, as `given` returns them.
    samples
        The dataset, of which the arrays `owner` and `group` are used.
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
