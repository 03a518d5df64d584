"""Clipping, alone and in the engine, where it changes no bit of what is short enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, uneven
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from clusterfl.engine.clipping import clip

ROWS = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


@given(ROWS, st.floats(1e-3, 1e3))
def test_direction_stays_and_length_is_bounded(updates, bound):
    found = clip(updates, bound)
    before, after = (np.linalg.norm(x.astype(float), axis=1) for x in (updates, found))
    short = before <= bound
    assert found.dtype == updates.dtype
    np.testing.assert_array_equal(found[short].view(np.int32), updates[short].view(np.int32))
    assert (after <= bound * (1 + 1e-6)).all()
    expected = updates[~short].astype(float) * (bound / before[~short])[:, None]
    np.testing.assert_allclose(found[~short], expected, rtol=1e-6, atol=1e-37)


def test_by_hand():
    np.testing.assert_allclose(
        clip(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0), [[0.6, 0.8], [0.3, 0.4], [0, 0]]
    )
    found = clip(torch.tensor([[1.0, float("nan")], [float("inf"), 0.0], [0.0, 2.0]]), 1.0)
    assert isinstance(found, torch.Tensor) and found.tolist() == [[0, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("columns", [1, 7, 64, 1000, 5000])
def test_a_rows_bits_depend_on_no_other_row(columns):
    rows = torch.randn(37, columns, generator=torch.Generator().manual_seed(columns))
    whole = clip(rows, 0.5)
    for part in (slice(0, 1), slice(1, 3), slice(5, 36), slice(36, 37)):
        assert torch.equal(clip(rows[part], 0.5), whole[part]) and torch.equal(
            clip(rows[part].clone(), 0.5), whole[part]
        )


def sums(bound, **how):
    with engine(federation=uneven((30, 31, 25, 40, 36, 30, 1, 33)), epochs=1, **how) as used:
        theta = torch.stack([used.initial(k) for k in range(3)])
        start, clients = np.array([0, 1, 0, 1, 0, 1, 0, 1]), np.arange(8)
        update = used.train(theta, start, clients, target=np.array([0, 1, 2, 1, 0, 1, 2, 1]), clip=bound)
        kept = used.train(theta, start, clients, needs=frozenset({"updates"}))
        return update, kept.rows


def test_what_the_engine_adds_up_is_clipped_and_no_chunk_or_worker_changes_a_bit():
    found = [sums(0.05, **how) for how in ({}, {"chunk": 3}, {"chunk": 1, "workers": 2}, {"chunk": 2})]
    update, rows = found[0]
    for other, _ in found[1:]:
        assert torch.equal(other.sums, update.sums)
    expected = torch.zeros(3, rows.shape[1], dtype=torch.float64)
    expected.index_add_(0, torch.tensor([0, 1, 2, 1, 0, 1, 2, 1]), clip(rows, 0.05).double())
    torch.testing.assert_close(update.sums, expected)
    assert (update.norms <= 0.05 * (1 + 1e-6)).all() and (update.norms > 0.049).any()


def test_a_bound_that_nobody_reaches_changes_no_bit():
    assert torch.equal(sums(1e5)[0].sums, sums(float("inf"))[0].sums)


@pytest.mark.filterwarnings("ignore:overflow")
def test_an_update_that_diverged_counts_as_zeros():
    with engine(federation=uneven((4, 4)), steps=60, epochs=None, learning_rate=1e30) as used:
        theta = used.initial()[None]
        update = used.train(theta, np.zeros(2, int), np.arange(2), clip=0.1)
        assert used.train(theta, np.zeros(2, int), np.arange(2)).dropped.all()
    assert not update.dropped.any() and not update.sums.any()
