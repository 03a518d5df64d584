"""Samples that nothing can be learned from are refused; labels only where they are learned."""

from __future__ import annotations

import numpy as np
import pytest

from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError

TABLE = {
    "sample": np.arange(8),
    "client": np.arange(8) % 2,
    "split": np.array(["train", "test"] * 4)[np.array([0, 2, 1, 3, 4, 6, 5, 7])],
    "role": np.full(8, "member"),
    "transform": np.full(8, "none"),
    "true_cluster": np.full(8, -1),
}


@pytest.mark.parametrize(
    "y, says",
    [
        (np.where(np.arange(9) < 3, -1, 1), r"sample 0 has the class -1 \(3 samples in all"),
        (np.where(np.arange(9) == 3, np.nan, 0.5), r"the target of sample 3 has NaN or infinity \(1 samples in all"),
    ],
)
def test_labels_count_where_they_are_learned(y, says):
    samples = Samples(np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32), y)
    with pytest.raises(UserError, match=says):
        clients(samples, TABLE, Inputs())
    assert clients(samples, TABLE, Inputs(target="input")).clients == 2


def test_samples_that_no_client_has_may_be_anything():
    x, y = np.ones((9, 3)), np.where(np.arange(9) == 8, -1, 1)
    x[8] = np.nan
    assert clients(Samples(x, y), TABLE, Inputs()).clients == 2
    x[7, 1] = 1e300
    with pytest.raises(UserError, match=r"sample 7 has NaN or infinity \(1 samples in all; numbers beyond 3.4"):
        clients(Samples(x, y), TABLE, Inputs())


def test_whole_numbers_below_zero_are_a_networks_own_matter():
    """An embedding has none of them; another network may."""
    x = np.arange(-12, 15).reshape(9, 3).astype(np.int16)
    assert clients(Samples(x, np.arange(9) % 2), TABLE, Inputs()).clients == 2
