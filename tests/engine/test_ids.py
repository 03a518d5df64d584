"""What clients draw belongs to their ids: it is the same wherever they stand in a federation, whoever else is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine, images, mlp, noise, norm_and_dropout, uneven, whole_models
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.engine.lockstep import Lockstep
from clusterfl.engine.mixing import Mixing
from clusterfl.engine.personal import Columns, Personal
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method

LOST = 1  # the client that one of two federations doesn't have: all after it stand one place further forward


def without(data: Federation) -> Federation:
    """Return the federation without client `LOST`; the others keep their ids."""
    columns = [[], [], [], []]
    for name, part in data.splits.items():
        owner = np.repeat(data.ids, part.sizes)
        kept = owner != LOST
        for column, values in zip(
            columns, (part.pool.x[part.rows], part.y, owner, np.full(len(owner), name)), strict=True
        ):
            column.append(values[kept])
    found = Federation.from_arrays(*map(np.concatenate, columns), inputs=data.splits["train"].pool.inputs)
    assert found.ids.tolist() == [client for client in data.ids if client != LOST]
    return found


def augmented() -> Federation:
    return noise((3, 5, 4), (3, 32, 32), inputs=Inputs(augment="crop-flip"), dtype=np.uint8)


def whole() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, 3))


CASES = {
    "shuffles": (mlp, uneven, "dense"),
    "dropout": (norm_and_dropout, images, "loop"),
    "augmentation, dense": (whole, augmented, "dense"),
    "augmentation, stacked": (whole, augmented, "stacked"),
    "augmentation, loop": (whole, augmented, "loop"),
}


def both(case, trained):
    """Return what `trained` gives, one row for each client, of those that both federations have."""
    factory, data, backend = CASES[case]
    data, found = data(), []
    for federation in (data, without(data)):
        with engine(factory, federation, backend=backend, epochs=2, batch_size=2, learning_rate=0.01) as used:
            found.append(trained(used))
    return np.delete(found[0], LOST, axis=0), found[1]


@pytest.mark.parametrize("case", CASES)
def test_training(case):
    def trained(used):
        everybody = np.arange(used.federation.clients)
        return used.train(used.initial(0)[None], 0 * everybody, everybody, needs=frozenset({"updates"})).rows[:].numpy()

    np.testing.assert_array_equal(*both(case, trained))


@pytest.mark.parametrize("case", ["dropout", "augmentation, dense", "augmentation, loop"])
def test_two_models_in_lockstep(case):
    def trained(used):
        everybody = np.arange(used.federation.clients)
        m = len(everybody)
        two = Lockstep(used.initial(1).repeat(m, 1), np.full(m, 0.3), "step", 0.2)
        given = {"beside": two, "personal": whole_models(used), "needs": frozenset({"updates"})}
        update = used.train(used.initial(0)[None], 0 * everybody, everybody, **given)
        return np.column_stack([update.rows[:], two.rows, two.share])

    np.testing.assert_array_equal(*both(case, trained))


def test_samples_on_which_mixtures_are_learned():
    def learned(used):
        everybody = np.arange(used.federation.clients)
        m, columns = len(everybody), Columns(np.array([[0, 8 * 5]]))  # the first weight
        personal, weights = Personal(columns, torch.zeros(m, 40), sent=True), torch.full((m, 40), 0.5)
        mixing = Mixing(rate=0.1, share=0.5, batch_size=4, spread=0.1, window=3, passes=20)
        settled = np.ones(m, dtype=bool)
        return used.mixed(
            used.initial(0)[None], 0 * everybody, everybody, 5, personal, weights, settled, mixing
        ).weights.numpy()

    np.testing.assert_array_equal(*both("shuffles", learned))


def test_who_drops_out_or_is_corrupt():
    """Of six clients number 4 is corrupt, by its id; who drops out is the same in each round of both federations."""
    data, found = uneven(), []
    faults = {"dropout": 0.4, "corrupt": [4]}
    for federation in (data, without(data)):
        updates = []
        with engine(federation=federation, rounds=4, epochs=1, faults=faults, diverged="exclude") as used:
            loop.run(
                Method(), loop.context(used), used, observe=lambda r, state, update, seen=updates: seen.append(update)
            )
        ids = federation.ids
        assert {ids[i] for update in updates for i in update.clients[update.dropped]} == {4}
        found.append([[int(i) for i in ids[update.clients] if i != LOST] for update in updates])
    assert found[0] == found[1] and len(set(map(tuple, found[0]))) > 1
