"""Names of the data's own clients and groups: kept, and found again in a partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clusterfl.data import DATASETS
from clusterfl.data.catalogue import content
from clusterfl.data.names import NAMELESS, Names, given, of_partition
from clusterfl.data.samples import Samples, Table

NAMED = {"clients": ["Essen", "Hill", "York"], "groups": ["new", "old"]}
# Six samples: two of each owner; Essen and Hill are of group 1.
SAMPLES = Samples(
    np.zeros((6, 1)), np.zeros(6, int), owner=np.array([0, 0, 1, 1, 2, 2]), group=np.array([1, 1, 1, 1, 0, 0])
)


def table(sample: list[int], client: list[int], group: list[int]) -> Table:
    return {"sample": np.array(sample), "client": np.array(client), "true_cluster": np.array(group)}


def test_natural_clients_keep_their_names_whatever_their_numbers() -> None:
    found = of_partition(NAMED, SAMPLES, table([2, 3, 4, 5], [0, 0, 1, 1], [1, 1, 0, 0]))  # Essen is left out
    assert found == Names({0: "Hill", 1: "York"}, {0: "new", 1: "old"})
    assert (found.client(0), found.client(7), found.group(1), found.group(5)) == ("Hill", "7", "old (1)", "5")
    assert Names.of(found.facts()) == found and Names.of(None) == NAMELESS


@pytest.mark.parametrize(
    ("partition", "clients"),
    [
        (table([0, 2, 1, 3], [0, 0, 1, 1], [-1] * 4), {}),  # dealt out again
        (table([0, 1, 2, 3], [0, 1, 2, 2], [-1] * 4), {2: "Hill"}),  # one owner's samples are of two clients
        (table([0, 1, 4, 5], [0, 0, 0, -1], [-1] * 4), {}),  # of two owners; the server's are nobody's
    ],
)
def test_clients_that_are_no_owners_have_no_names(partition: Table, clients: dict[int, str]) -> None:
    assert of_partition(NAMED, SAMPLES, partition) == Names(clients)


def test_groups_that_were_divided_have_no_names() -> None:
    found = of_partition(NAMED, SAMPLES, table([0, 2, 4], [0, 1, 2], [0, 1, 2]))
    assert found.groups == {2: "new"}  # of "old" there are two


def test_a_table_keeps_names_and_no_array_depends_on_them(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2, 3], "y": [0, 1, 0], "who": ["b", "a", "b"], "kind": ["k", "k", "k"]})
    frame.to_csv(tmp_path / "named.csv", index=False)
    frame.replace({"who": {"a": 0, "b": 1}, "kind": {"k": 0}}).to_csv(tmp_path / "numbers.csv", index=False)
    read = [
        DATASETS["table"](tmp_path, path=str(tmp_path / name), label="y", client="who", group="kind")
        for name in ("named.csv", "numbers.csv")
    ]
    assert given(read[0]) == {"clients": ["a", "b"], "groups": ["k"]}
    assert given(read[1]) == {"clients": ["0", "1"], "groups": ["0"]}
    whole = table([0, 1, 2], [1, 0, 1], [0, 0, 0])
    assert of_partition(given(read[1]), read[1], whole) == NAMELESS  # they are numbered as they are named
    assert of_partition(given(read[1]), read[1], table([0, 2], [0, 0], [0, 0])) == Names({0: "1"})  # 0 is left out
    assert content(read[0]) == content(read[1])
    assert set(read[0].tensors()) == set(read[1].tensors()) == {"x", "y", "owner", "group"}
