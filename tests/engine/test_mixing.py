"""Columns mixed by weights that are learned: by hand, against the slow obvious loop, in every network, in any cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import Residual, cnn, engine, images, mlp, norm_and_dropout, slow_but, uneven
from torch import nn
from torch.func import functional_call

from clusterfl import streams
from clusterfl.data.federation import Federation
from clusterfl.engine.mixing import Mixing
from clusterfl.engine.personal import Columns, Personal
from clusterfl.errors import UserError

PLAIN = Mixing(rate=1.0, share=0.8, batch_size=4, spread=0.1, window=3, passes=20)
NETWORKS = {
    "dense": (mlp, uneven, ("3.weight", "3.bias")),
    "stacked": (Residual, uneven, ("last.weight",)),
    "loop": (cnn, images, ("4.weight", "4.bias")),
    "not the last": (norm_and_dropout, images, ("1.weight", "5.bias")),
}


def asked(used, names, mixing=PLAIN, settled=False, seed=1):
    """Return what all clients learn that keep random values, from random weights, of the first initial model."""
    m = used.federation.clients
    columns = Columns.of({name: part for name, _, part in used.layout.slices()}, names)
    draws = torch.Generator().manual_seed(seed)
    own = columns.taken(used.initial(0)) + 0.5 * torch.randn(m, len(columns), generator=draws)
    personal, weights = Personal(columns, own, sent=True), torch.rand(m, len(columns), generator=draws)
    start, clients = np.zeros(m, dtype=np.int64), np.arange(m)
    found = used.mixed(
        used.initial(0)[None], start, clients, 5, personal, weights, np.full(m, settled), mixing
    )  # fmt: skip
    return personal, weights, found


def test_a_step_by_hand():
    """Model a x, loss (a x - y)^2 with x = 1, y = 2; own a = 0, received a = 1, w = 1/2: mixed a = 1/2.

    The gradient of a is 2 (1/2 - 2) = -3, of w -3 x (1 - 0): with eta = 1/10 w = .8, a = .8. From w = .9 w is 1.
    """
    one = Federation.from_arrays(np.ones((1, 1), np.float32), np.array([2.0], np.float32), np.zeros(1, int))
    with engine(lambda: nn.Linear(1, 1, bias=False), one) as used:
        personal = Personal(Columns(np.array([[0, 1]])), torch.zeros(1, 1), sent=True)
        zero = np.zeros(1, dtype=np.int64)
        for weight, after in ((0.5, 0.8), (0.9, 1.0)):
            found = used.mixed(
                torch.ones(1, 1), zero, zero, 1, personal, torch.full((1, 1), weight), np.array([True]),
                Mixing(rate=0.1, share=0.8, batch_size=1, spread=0.1, window=3, passes=20),
            )  # fmt: skip
            assert found.weights.item() == found.values.item() == pytest.approx(after)
            assert found.seen.tolist() == [1]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("network", slow_but(["dense"], ["dense", "stacked", "loop"]))
def test_it_is_the_slow_obvious_loop(network, settled):
    factory, federation, names = NETWORKS[network]
    with engine(factory, federation()) as used:
        personal, weights, found = asked(used, names, settled=settled)
        split, data = used.federation.splits["train"], used.worker.data["train"]
        received, kept = used.initial(0), np.concatenate([np.arange(*part) for part in personal.columns.bounds])
        for i in range(used.federation.clients):
            n, w, losses = int(split.sizes[i]), weights[i].clone(), []
            many = max(1, int(0.8 * n))
            first = split.offsets[i] + streams.generator(3, "mixed samples", i, 5).integers(n - many + 1)
            while True:
                for begin in range(first, first + many, 4):
                    places = torch.arange(begin, min(begin + 4, first + many))
                    row = received.clone()
                    row[kept] = personal.rows[i] + (received[kept] - personal.rows[i]) * w
                    row.requires_grad_()
                    output = functional_call(used.factory(), used.layout.tensors(row), (data.take(places),))
                    loss = nn.functional.cross_entropy(output, data.y[places].long())
                    (gradient,) = torch.autograd.grad(loss, row)
                    w = (w - gradient[kept] * (received[kept] - personal.rows[i])).clamp(0, 1)
                losses.append(loss.item())
                if settled or len(losses) == 20 or (len(losses) > 3 and np.std(losses[-3:]) < 0.1):
                    break
            torch.testing.assert_close(found.weights[i], w, rtol=1e-4, atol=1e-5)
            mixed = personal.rows[i] + (received[kept] - personal.rows[i]) * w
            torch.testing.assert_close(found.values[i], mixed, rtol=1e-4, atol=1e-5)
            assert found.seen[i] == many * len(losses)
    assert found.settled.all() and (found.weights != weights).any()


@pytest.mark.parametrize("network", slow_but(["dense", "loop"], NETWORKS))
def test_no_bit_depends_on_the_cut(network):
    factory, federation, names = NETWORKS[network]
    found = []
    for cut in ({}, {"workers": 2}):
        with engine(factory, federation(), **cut) as used:
            found.append(asked(used, names)[2])
    for name in ("values", "weights", "settled", "seen"):
        np.testing.assert_array_equal(*(np.asarray(getattr(one, name)) for one in found), err_msg=name)


def test_each_client_mixes_its_own_with_the_model_it_is_given_whoever_else_does():
    """Of two models; clients with even numbers have settled before, and learn in one pass."""
    with engine() as used:
        personal, weights, _ = asked(used, ("3.weight", "3.bias"))
        m = used.federation.clients
        theta, start = torch.stack([used.initial(0), used.initial(1)]), np.array([1, 0, 0, 1, 1, 0])
        rest = 5, personal, weights, np.arange(m) % 2 == 0, PLAIN
        whole = used.mixed(theta, start, np.arange(m), *rest)
        passes = whole.seen / np.maximum(1, (0.8 * used.federation.splits["train"].sizes).astype(int))
        assert (passes[::2] == 1).all() and (passes[1::2] > 3).all()
        for i in range(m):
            alone = used.mixed(theta[start[i]][None], np.zeros(1, np.int64), np.array([i]), *rest)
            assert torch.equal(alone.values[0], whole.values[i]) and torch.equal(alone.weights[0], whole.weights[i])
            assert alone.seen[0] == whole.seen[i]


def test_equal_models_have_nothing_to_mix():
    """Nothing is learned, and the next time is still the first."""
    with engine() as used:
        columns = Columns.of({name: part for name, _, part in used.layout.slices()}, ["3.bias"])
        m = used.federation.clients
        own = columns.taken(used.initial(0)).repeat(m, 1)
        weights = torch.full((m, 3), 0.5)
        found = used.mixed(
            used.initial(0)[None], np.zeros(m, dtype=np.int64), np.arange(m), 1, Personal(columns, own, sent=True),
            weights, np.zeros(m, dtype=bool), PLAIN,
        )  # fmt: skip
    assert torch.equal(found.values, own) and torch.equal(found.weights, weights)
    assert not found.seen.any() and not found.settled.any()


def test_a_batch_of_one_that_batch_normalisation_cant_train_on_is_named():
    def norm():
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    with engine(norm, uneven((10, 6))) as used:
        mixing = Mixing(rate=1.0, share=0.9, batch_size=4, spread=0.1, window=3, passes=20)
        with pytest.raises(UserError, match=r"client 0 has a batch of one sample, .* batch_size \(now 4\)"):
            asked(used, ("2.bias",), mixing)
