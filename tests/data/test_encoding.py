"""A table's columns as inputs: against scikit-learn's encoders, fitted on training samples; nothing else decides."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from clusterfl.data.encoding import Encoding, remarks
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients
from clusterfl.data.prepared import samples_of
from clusterfl.data.samples import Samples, read_samples
from clusterfl.errors import UserError
from clusterfl.storage.store import write_tensors

SCALED = Inputs(standardise=True)
KINDS = np.array(["f", "m", "x", "north", "south"])


def mixed(rows: int = 60, seed: int = 0) -> Samples:
    """Columns sex (three categories, the last of them in row 0 alone), age, region (two)."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.integers(0, 2, rows), rng.normal(50, 10, rows), rng.integers(0, 2, rows)], axis=1)
    x[0, 0] = 2
    columns = np.array(["sex", "age", "region"])
    return Samples(
        x.astype(np.float32), np.arange(rows) % 2, columns=columns, sizes=np.array([3, 0, 2]), categories=KINDS
    )


def table(rows: int = 60, new: int = 10) -> dict[str, np.ndarray]:
    """Three members, a third of whose samples, that of row 0 among them, is for testing; the last rows: newcomers."""
    role = np.where(np.arange(rows) < rows - new, "member", "newcomer")
    split = np.where(np.arange(rows) // 3 % 3 == 0, "test", "train")
    columns = {"sample": np.arange(rows), "client": np.arange(rows) % 3 + 3 * (role == "newcomer")}
    columns |= {"split": split, "role": role, "transform": np.full(rows, "none")}
    return columns | {"true_cluster": np.full(rows, -1)}


def by_sample(samples: Samples, drawn: dict[str, np.ndarray], inputs: Inputs, role: str) -> dict[int, np.ndarray]:
    """The inputs of each sample of a federation, through its splits."""
    federation = clients(samples, drawn, inputs, role)
    return {
        int(row): x
        for split in federation.splits.values()
        if len(split)
        for row, x in zip(split.rows, samples_of(split), strict=True)
    }


@pytest.mark.parametrize("inputs", [Inputs(), SCALED])
def test_inputs_are_those_of_scikit_learn_fitted_on_the_members_training_samples(inputs):
    samples, drawn = mixed(), table()
    train = (drawn["role"] == "member") & (drawn["split"] == "train")
    onehot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    numbers = StandardScaler() if inputs.standardise else "passthrough"
    theirs = ColumnTransformer([("a", onehot, [0]), ("b", numbers, [1]), ("c", onehot, [2])])
    expected = theirs.fit(samples.x[train]).transform(samples.x)
    for role in ("member", "newcomer"):
        found = by_sample(samples, drawn, inputs, role)
        assert sorted(found) == np.flatnonzero(drawn["role"] == role).tolist()
        for row, x in found.items():
            np.testing.assert_allclose(x, expected[row], rtol=1e-5, atol=1e-5)
    assert by_sample(samples, drawn, inputs, "member")[0][:2].tolist() == [
        0,
        0,
    ]  # of a category that nobody trains with


def test_other_samples_than_the_members_training_ones_decide_nothing():
    samples, drawn = mixed(), table()
    before = by_sample(samples, drawn, SCALED, "member")
    train = (drawn["role"] == "member") & (drawn["split"] == "train")
    other = samples.x.copy()
    other[~train] = [2, 1e6, 0]
    after = by_sample(Samples(**vars(samples) | {"x": other}), drawn, SCALED, "member")
    for row in np.flatnonzero(train).tolist():
        assert after[row].tobytes() == before[row].tobytes()


def test_samples_without_anything_to_encode_stay_the_same_array():
    samples = Samples(np.eye(60, dtype=np.float32), np.arange(60) % 2)
    assert Encoding.fitted(samples, table(), Inputs()).inputs(samples.x) is samples.x


def test_a_constant_column_is_only_shifted():
    samples = Samples(np.full((60, 1), 7, dtype=np.float32), np.arange(60) % 2)
    assert (Encoding.fitted(samples, table(), SCALED).inputs(samples.x) == 0).all()


@pytest.mark.parametrize("kind", ["u1", "i8"])
def test_only_features_are_standardised(kind):
    samples = Samples(np.zeros((60, 2), dtype=kind), np.arange(60) % 2)
    with pytest.raises(UserError, match=r"inputs.standardise: true is for features.*the samples are u?int.*omit it"):
        clients(samples, table(), SCALED)


def test_means_are_given_or_taken():
    with pytest.raises(ValueError, match="omit mean and std"):
        Inputs(standardise=True, mean=[0], std=[1])
    assert "standardise" not in Inputs().model_dump()  # digests of settings stay those of before


def test_what_is_remarked():
    first, last, region = remarks(mixed(), table())
    assert first == "Column 'sex' is 2 inputs, one for each category: f, m."
    assert last == "Categories of 'sex' that no training sample has, whose inputs are all zeros: x (1 samples)."
    assert region.endswith("north, south.")


def test_texts_are_stored(tmp_path):
    samples = Samples(**vars(mixed()) | {"classes": np.array(["gesund", "krank 🤒", "ä"])})
    write_tensors(tmp_path / "s.safetensors", samples.tensors())
    found = read_samples(tmp_path / "s.safetensors")
    for name in ("classes", "columns", "categories", "sizes", "x"):
        assert np.array_equal(getattr(found, name), getattr(samples, name))
    assert read_samples(tmp_path / "s.safetensors", "classes").classes.tolist() == ["gesund", "krank 🤒", "ä"]
