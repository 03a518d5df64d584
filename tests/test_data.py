"""Federations and partitions: every sample once, groups as planted, rows in any order, wrong data told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl import streams
from clusterfl.data import DATASETS, PARTITIONS
from clusterfl.data.load import load_federation
from clusterfl.data.transforms import scaled, transform
from clusterfl.errors import UserError
from clusterfl.federation import Federation
from clusterfl.store import write_table, write_tensors


@given(st.integers(1, 12), st.integers(20, 90), st.sampled_from([0, 0.2, 0.5]), st.sampled_from([0, 0.1]))
@settings(deadline=None, max_examples=40)
def test_rotated_gives_every_sample_once(clients, samples, test, validation):
    table = PARTITIONS["rotated"](
        np.zeros(samples), streams.generator(0, "p"), clients=clients, test=test, validation=validation
    )
    assert sorted(table["sample"]) == list(range(samples))
    sizes = np.bincount(table["client"], minlength=clients)
    assert sizes.max() - sizes.min() <= 1
    for client in range(clients):
        splits = table["split"][table["client"] == client]
        assert (splits == "test").sum() == round(sizes[client] * test)
        assert (splits == "validation").sum() == round(sizes[client] * validation)
        assert len(set(table["true_cluster"][table["client"] == client])) == 1


def test_default_study_has_four_groups_of_ten():
    y = DATASETS["digits"](None)[1]
    table = PARTITIONS["rotated"](y, streams.generator(0, "partition"), clients=40)
    groups = [set(table["client"][table["true_cluster"] == g]) for g in range(4)]
    assert [len(g) for g in groups] == [10] * 4
    assert set(table["transform"][table["true_cluster"] == 1]) == {"rotate90"}
    train = np.bincount(table["client"][table["split"] == "train"])
    assert (train.min(), train.max()) == (35, 36) and len(y) == 1797


def test_rotation_is_counter_clockwise():
    picture = np.array([[[1, 2], [3, 4]]] * 4, dtype=np.uint8)  # 1 is at the upper left, 2 at the upper right
    turned = transform(picture, np.array(["none", "rotate90", "rotate180", "rotate270"]))
    assert turned[1].tolist() == [[2, 4], [1, 3]]  # the upper right corner came to the upper left
    assert turned[2].tolist() == [[4, 3], [2, 1]] and turned[3].tolist() == [[3, 1], [4, 2]]
    assert scaled(np.array([0, 255], dtype=np.uint8)).tolist() == [0, 1]
    with pytest.raises(UserError, match="unknown transform 'flip'"):
        transform(picture, np.array(["flip"] * 4))
    with pytest.raises(UserError, match="square images"):
        transform(np.zeros((1, 2, 3)), np.array(["rotate90"]))


def test_order_of_rows_in_the_file_changes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    write_tensors(tmp_path / "samples.safetensors", {"x": rng.random((30, 1, 4, 4)), "y": rng.integers(0, 3, 30)})
    table = PARTITIONS["rotated"](np.zeros(30), rng, clients=4)
    table = {**table, "role": np.full(30, "member")}
    loaded = []
    for order in (np.arange(30), rng.permutation(30)):
        write_table(tmp_path / "partition.parquet", {name: column[order] for name, column in table.items()})
        loaded.append(load_federation(tmp_path / "samples.safetensors", tmp_path / "partition.parquet"))
    for split in ("train", "test"):
        for field in ("x", "y", "offsets"):
            np.testing.assert_array_equal(*(getattr(f.splits[split], field) for f in loaded))
    np.testing.assert_array_equal(loaded[0].true_cluster, [0, 1, 2, 3])


def test_groups_are_kept_by_client_id():
    """Ids needn't be 0, 1, ...; positions follow their order."""
    federation = Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 1], [70, 5, 70], true_cluster=[3, 8, 3])
    assert federation.ids.tolist() == [5, 70]
    assert federation.true_cluster.tolist() == [8, 3]
    assert federation.splits["train"].x[:, 0].tolist() == [2, 1, 3]
    assert federation.splits["train"].offsets.tolist() == [0, 1, 3]
    rows, owner = federation.splits["train"].rows(np.array([1, 0]))
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
def test_wrong_data_are_told(arguments, words):
    with pytest.raises(UserError, match=words):
        Federation.from_arrays(*arguments)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"clients": 11}, "11 clients for 10 samples"),
        ({"clients": 2, "test": 0.6, "validation": 0.5}, "below 1"),
    ],
)
def test_impossible_partitions_are_told(options, words):
    with pytest.raises(UserError, match=words):
        PARTITIONS["rotated"](np.zeros(10), streams.generator(0, "p"), **options)
