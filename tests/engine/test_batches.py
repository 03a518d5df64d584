"""Batches: every sample once an epoch, short last batches, and independence of neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from federations import engine
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from clusterfl.engine.batches import batch_rows, check_sizes, padded_rows, parts, schedule, steps_of, together
from clusterfl.engine.training import Training
from clusterfl.errors import UserError

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 12), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_each_epoch_uses_every_sample_once(sizes, batch, epochs):
    sizes = np.array(sizes)
    training = Training(batch_size=batch, epochs=epochs)
    index = schedule(0, np.arange(len(sizes)), sizes, 1, training)
    for i, n in enumerate(sizes):
        per_epoch = -(-n // batch)
        for epoch in range(epochs):
            used = index[i, epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(used[used >= 0]) == list(range(n))
            assert (used[:-1] >= 0).all()  # only an epoch's last batch is short
        assert (index[i, epochs * per_epoch :] == -1).all()


def test_each_epoch_round_client_and_run_has_an_order_of_its_own():
    def order(seed=0, client=0, round_=1, epoch=0):
        training = Training(batch_size=40, epochs=2)
        return schedule(seed, np.array([client]), np.array([40]), round_, training)[0, epoch]

    orders = [order(), order(seed=1), order(client=1), order(round_=2), order(epoch=1)]
    assert len({one.tobytes() for one in orders}) == 5


@given(SIZES, st.integers(1, 12), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_steps_go_on_through_epochs(sizes, batch, steps):
    sizes = np.array(sizes)
    training = Training(batch_size=batch, epochs=None, steps=steps)
    index = schedule(0, np.arange(len(sizes)), sizes, 1, training)
    assert index.shape[1] == steps
    assert (index[:, :, 0] >= 0).all()


def loader(order, batch):
    """The batches of torch's loader with drop_last, of samples in their order."""
    return [b.tolist() for b in DataLoader(torch.as_tensor(order), batch_size=batch, drop_last=True)]


@given(st.lists(st.integers(12, 40), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_short_batches_are_left_out_as_by_torchs_drop_last(sizes, batch, epochs):
    """Whole ones are those that they would be with the short ones."""
    sizes, ids = np.array(sizes), np.arange(len(sizes))
    with_them = Training(batch_size=batch, epochs=epochs)
    training = with_them.model_copy(update={"short_batches": "drop"})
    steps = steps_of(sizes, training)
    assert steps.tolist() == [epochs * (n // batch) for n in sizes]
    index, whole = (schedule(0, ids, sizes, 1, one) for one in (training, with_them))
    for i, n in enumerate(sizes):
        orders = np.split(whole[i][whole[i] >= 0], epochs)
        assert index[i, : steps[i]].tolist() == [one for order in orders for one in loader(order, batch)]
        assert (index[i, steps[i] :] == -1).all() and len(orders[0]) == n
    few = training.model_copy(update={"epochs": None, "steps": 7})
    again = schedule(0, ids, sizes, 1, few)
    assert again.shape[1] == 7 and (again >= 0).all()  # they go on in the next epoch


def test_a_client_without_a_whole_batch_is_named():
    training = Training(batch_size=8, short_batches="drop")
    check_sizes(np.array([4, 6]), np.array([8, 20]), training)
    with pytest.raises(UserError, match=r"client 6: it has 3 samples; allowed: a batch_size up to 3"):
        check_sizes(np.array([4, 6]), np.array([8, 3]), training)
    with pytest.raises(UserError, match="no batch of 8 is left"):  # before anybody trains
        engine(batch_size=8, short_batches="drop")
    with engine() as used, pytest.raises(UserError, match="no batch of 8 is left"):
        nobody = used.initial(0)[None], np.zeros(6, dtype=np.int64), np.arange(6)
        used.train(*nobody, training=used.training.model_copy(update={"batch_size": 8, "short_batches": "drop"}))
    with pytest.raises(ValueError, match="with batch_size: full no batch is short"):
        Training(batch_size="full", short_batches="drop")


@given(SIZES, st.one_of(st.integers(1, 12), st.just("full")))
@settings(max_examples=60, deadline=None)
def test_a_schedule_depends_on_the_client_alone(sizes, batch):
    sizes = np.array(sizes)
    ids = np.arange(len(sizes)) * 3
    training = Training(batch_size=batch, epochs=2)
    together = schedule(7, ids, sizes, 5, training)
    for i in range(len(sizes)):
        alone = schedule(7, ids[i : i + 1], sizes[i : i + 1], 5, training)[0]
        same = together[i, : alone.shape[0]]
        width = min(same.shape[1], alone.shape[1])
        np.testing.assert_array_equal(same[:, :width], alone[:, :width])
        assert (same[:, width:] == -1).all() and (alone[:, width:] == -1).all()


@given(SIZES, st.one_of(st.integers(1, 12), st.just("full")), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_parts_hold_each_client_once_in_one_order(sizes, batch, most, fold):
    sizes = np.array(sizes)
    training = Training(batch_size=batch)
    kinds = sizes % 2
    found = parts(sizes, np.arange(len(sizes)), training, kinds, most, fold)
    order = np.concatenate(found)
    assert sorted(order) == list(range(len(sizes)))
    whole = np.concatenate(parts(sizes, np.arange(len(sizes)), training, kinds, 100, 1))
    np.testing.assert_array_equal(order, whole)  # sums run in the same order whatever the chunks
    for part in found:
        assert len(set(kinds[part])) == 1
        assert (np.diff(steps_of(sizes, training)[part]) >= 0).all()  # who still trains is the tail
        assert 0 < len(part) <= most


def test_parts_are_alike_and_as_many_as_there_are_processes():
    """Nine clients in parts of at most four: four parts, not three; three clients are three parts."""
    for clients, sizes in ((9, [3, 2, 2, 2]), (3, [1, 1, 1]), (17, [3, 2, 2, 2, 2, 2, 2, 2])):
        same = np.full(clients, 5)
        found = parts(same, np.arange(clients), Training(), np.zeros(clients, dtype=int), 4, 4)
        assert [len(part) for part in found] == sizes


def test_padded_rows():
    assert padded_rows(np.array([1, 16, 17, 64, 65, 100, 1000])).tolist() == [16, 16, 32, 64, 80, 112, 1024]


@given(SIZES, st.one_of(st.integers(1, 12), st.just("full")), st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_neighbours_of_one_kind_are_trained_at_once_as_far_as_they_fit(sizes, batch, most, fit):
    sizes = np.array(sizes)
    training, kinds = Training(batch_size=batch), sizes % 2
    apart = parts(sizes, np.arange(len(sizes)), training, kinds, most, 2)
    groups = together(apart, sizes, training, kinds, lambda joined: len(joined) <= fit)
    assert [part.tolist() for group in groups for part in group] == [part.tolist() for part in apart]
    rows = batch_rows(sizes, training)
    shapes = [{(kinds[i], rows[i]) for part in group for i in part} for group in groups]
    assert all(len(shape) == 1 for shape in shapes)
    assert all(len(group) == 1 or sum(map(len, group)) <= fit for group in groups)
    for (one, shape), (after, other) in pairwise(zip(groups, shapes, strict=True)):  # no group could go on
        assert shape != other or sum(map(len, one)) + len(after[0]) > fit
