"""Datasets and federations: groups as planted, rows in any order, wrong data refused."""

from __future__ import annotations

import numpy as np
import pytest

from clusterfl.config.federation import Partition
from clusterfl.data import DATASETS
from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients, load_federation
from clusterfl.data.prepared import samples_of
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError
from clusterfl.pipeline.stages.partition import make
from clusterfl.storage.store import write_table, write_tensors


def partitioned(y, scheme, seed=0, **keys):
    """A partition as the stage makes it; `keys` are the scheme's options and the keys common to all schemes."""
    return make(Partition(scheme=scheme, **keys).resolved(), Samples(np.empty(0), np.asarray(y)), seed)


def test_default_study_has_four_groups_of_ten():
    y = DATASETS["digits"](None)[1]
    table = partitioned(y, "rotated", clients=40)
    groups = [set(table["client"][table["true_cluster"] == g]) for g in range(4)]
    assert [len(g) for g in groups] == [10] * 4
    assert set(table["transform"][table["true_cluster"] == 1]) == {"rotate90"}
    train = np.bincount(table["client"][table["split"] == "train"])
    assert (train.min(), train.max()) == (35, 36) and len(y) == 1797


def turned(x, names, inputs=None, y=None):
    """Samples of one client under transforms, as a network gets them."""
    n = len(x)
    table = {"sample": np.arange(n), "client": np.zeros(n, int), "split": np.full(n, "train")}
    table |= {"role": np.full(n, "member"), "transform": np.array(names), "true_cluster": np.full(n, -1)}
    return clients(Samples(x, np.zeros(n, int) if y is None else y), table, inputs or Inputs())


def test_rotation_is_counter_clockwise():
    picture = np.array([[[[1, 2], [3, 4]]]] * 4, dtype=np.uint8)  # 1 is at the upper left, 2 at the upper right
    x = samples_of(
        turned(picture, ["none", "rotate90", "rotate180", "rotate90+rotate180"], Inputs(scale="raw")).splits["train"]
    )
    assert x[1, 0].tolist() == [[2, 4], [1, 3]]  # the upper right corner came to the upper left
    assert x[2, 0].tolist() == [[4, 3], [2, 1]] and x[3, 0].tolist() == [[3, 1], [4, 2]]
    with pytest.raises(UserError, match="unknown transform 'flip'"):
        turned(picture, ["flip"] * 4)
    with pytest.raises(UserError, match="square images"):
        turned(np.zeros((1, 1, 2, 3)), ["rotate90"])  # on loading, so by `clusterfl check`, too
    with pytest.raises(UserError, match="needs images"):
        turned(np.zeros((1, 3)), ["rotate90"])


def test_order_of_rows_in_the_file_changes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    write_tensors(tmp_path / "samples.safetensors", {"x": rng.random((30, 1, 4, 4)), "y": rng.integers(0, 3, 30)})
    table = partitioned(np.zeros(30, int), "rotated", clients=4)
    loaded = []
    for order in (np.arange(30), rng.permutation(30)):
        write_table(tmp_path / "partition.parquet", {name: column[order] for name, column in table.items()})
        members, newcomers = load_federation(tmp_path / "samples.safetensors", tmp_path / "partition.parquet", Inputs())
        assert newcomers is None
        loaded.append(members)
    for split in ("train", "test"):
        np.testing.assert_array_equal(*(samples_of(f.splits[split]) for f in loaded))
        for field in ("y", "offsets"):
            np.testing.assert_array_equal(*(getattr(f.splits[split], field) for f in loaded))
    np.testing.assert_array_equal(loaded[0].true_cluster, [0, 1, 2, 3])


def test_groups_are_kept_by_client_id():
    """Ids needn't be 0, 1, ...; positions follow their order."""
    federation = Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], [70, 5, 70], true_cluster=[3, 8, 3])
    assert federation.ids.tolist() == [5, 70]
    assert federation.true_cluster.tolist() == [8, 3]
    assert samples_of(federation.splits["train"])[:, 0].tolist() == [2, 1, 3]
    assert federation.splits["train"].offsets.tolist() == [0, 1, 3]
    rows, owner = federation.splits["train"].of(np.array([1, 0]))
    assert rows.tolist() == [1, 2, 0] and owner.tolist() == [0, 0, 1]
    assert federation.classes == 2


@pytest.mark.parametrize(
    "arguments, words",
    [
        (([[1.0]], [0, 1], [0, 0]), "same number of rows"),
        (([], [], []), "at least one"),
        (([[np.nan], [1.0]], [0, 1], [7, 7]), r"x has NaN or infinity in row 0 \(client 7\)"),
        (([[1.0], [1.0]], [0.0, np.inf], [7, 8]), r"y has NaN or infinity in row 1 \(client 8\)"),
        (([["a"], ["b"]], [0, 1], [0, 0]), "numbers are needed"),
        (([[1.0], [1.0]], [0, -1], [0, 0]), "negative class -1"),
        (([[1.0], [1.0]], [0, 1], [0, 0], ["train", "tset"]), "unknown split 'tset'"),
        (([[1.0], [1.0]], [0, 1], [0, 9], ["train", "test"]), r"client 9 \(1 of 2\) has no training sample"),
    ],
)
def test_wrong_data_are_reported(arguments, words):
    with pytest.raises(UserError, match=words):
        Federation.from_arrays(*arguments)
