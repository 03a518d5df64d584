"""Clients that train several models, each on shares of their samples' losses, and mixtures of models' predictions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import reference
import torch
from federations import (
    OPTIONS,
    Residual,
    cnn,
    engine,
    first_layer_on,
    images,
    mlp,
    noise,
    norm_and_dropout,
    slow_but,
    uneven,
)
from reference import ROUND, agree
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine.envelope import Envelope
from clusterfl.engine.features import Features
from clusterfl.engine.personal import Columns, Personal
from clusterfl.errors import UserError

SIZES = (3, 10, 21, 7, 16, 1)
FORMS = {
    "dense": (mlp, lambda: uneven(SIZES)),
    "stacked": (Residual, lambda: uneven(SIZES)),
    "loop": (cnn, images),
    "batch normalisation": (norm_and_dropout, images),
    "numbers": (lambda: nn.Linear(5, 1), lambda: noise(SIZES, outputs=1)),
}


def one():
    return nn.Linear(1, 1, bias=False)


def pairs(used, models=3, seed=0):
    """Trainings of all models by all clients but the last, which trains the second one alone; shares of each."""
    m, rng = used.federation.clients, np.random.default_rng(seed)
    clients = np.append(np.repeat(np.arange(m - 1), models), m - 1)
    start = np.append(np.tile(np.arange(models), m - 1), 1)
    sizes = used.federation.splits["train"].sizes[clients]
    return clients, start, [rng.random(n).astype(np.float32) for n in sizes]


def sharing(used, needs=("updates", "curves", "last_gradient"), **options):
    """Return what these trainings leave, and their shares."""
    clients, start, shares = pairs(used)
    theta = torch.stack([used.initial(k) for k in range(3)])
    given = {"needs": frozenset(needs), "participations": clients, "shares": torch.as_tensor(np.concatenate(shares))}
    return used.train(theta, start, clients, ROUND, **given | options), shares


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_a_step_by_hand(backend):
    """Loss (a - y)^2 with a = 0, y = 2 and 4, shares 1/2 and 1/4: gradient (-4 / 2 - 8 / 4) / 2 = -2, rate 1/4.

    The second model, from 1, has shares 0 and 1: gradient (2 (1 - 4)) / 2 = -3. What counts is halved by two samples,
    not by what the shares add up to.
    """
    federation = Federation.from_arrays(np.ones((2, 1), np.float32), np.array([2.0, 4.0]), np.array([0, 0]))
    with engine(one, federation, backend=backend, steps=1, batch_size="full", learning_rate=0.25) as used:
        shares = torch.tensor([0.5, 0.25, 0.0, 1.0])
        theta, needs = torch.tensor([[0.0], [1.0]]), frozenset({"updates", "curves"})
        found = used.train(theta, np.array([0, 1]), np.array([0, 0]), shares=shares, needs=needs)
    torch.testing.assert_close(found.rows[:], torch.tensor([[0.5], [0.75]]))
    np.testing.assert_allclose(found.curves[:, 0], [(4 / 2 + 16 / 4) / 2, 9 / 2])


@pytest.mark.parametrize("way", ["on inputs", "on data"])
@pytest.mark.parametrize("option", slow_but(["plain", "all", "adam"], OPTIONS))
def test_dense_is_the_slow_obvious_loop(way, option, monkeypatch):
    if way == "on data" and OPTIONS[option].get("optimizer") == "adam":
        pytest.skip("Adam isn't linear: never in the coordinates of the data")
    first_layer_on(way, monkeypatch)
    with engine(federation=uneven(SIZES), **OPTIONS[option]) as used:
        assert used.backend == "dense"
        update, shares = sharing(used)
        agree(used, update, shares=shares)


@pytest.mark.parametrize("form", slow_but(["stacked", "loop", "numbers"], list(FORMS)))
@pytest.mark.parametrize(
    "option", slow_but(["momentum, penalty"], ["plain", "momentum, penalty", "adam, proximal, decay"])
)
def test_other_forms_are_the_slow_obvious_loop(form, option):
    if form == "batch normalisation" and "adam" in option:
        pytest.skip("the bias before it has a gradient of zero but for rounding, which Adam makes as large as any")
    factory, federation = FORMS[form]
    with engine(factory, federation(), **OPTIONS[option]) as used:
        update, shares = sharing(used)
        agree(used, update, shares=shares)


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_all_forms_of_one_network_agree(backend):
    with engine(federation=uneven(SIZES), backend=backend, momentum=0.5) as used:
        update, shares = sharing(used)
        agree(used, update, shares=shares)


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], list(FORMS)))
def test_no_bit_depends_on_the_cut(form):
    factory, federation = FORMS[form]
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(factory, federation(), epochs=2, momentum=0.5, **cut) as used:
            update, _ = sharing(used)
            sums = sharing(used, needs=())[0].sums
            found.append([torch.as_tensor(part[:]).clone() for part in (update.rows, update.curves, sums)])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            assert torch.equal(first.nan_to_num(), second.nan_to_num())


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], list(FORMS)))
def test_whole_samples_are_no_shares_to_the_bit_and_none_of_any_moves_nothing(form):
    factory, federation = FORMS[form]
    with engine(factory, federation(), epochs=2) as used:
        ids, sizes = np.arange(used.federation.clients), used.federation.splits["train"].sizes
        theta, needs = used.initial()[None], frozenset({"updates"})
        plain = used.train(theta, 0 * ids, ids, needs=needs)
        whole = used.train(theta, 0 * ids, ids, needs=needs, shares=torch.ones(int(sizes.sum())))
        none = used.train(theta, 0 * ids, ids, needs=needs, shares=torch.zeros(int(sizes.sum())))
        slices, p, penalised = used.layout.slices(), used.layout.parameter_columns, used.layout.penalties
    assert torch.equal(plain.rows[:], whole.rows[:])
    for name, _, part in slices:  # a penalty of a tensor's own moves that all the same
        assert part.start >= p or none.rows[:, part].any() == (penalised.get(name, 0) > 0), name


def test_turns_have_the_same_shares_in_each():
    named = (frozenset({"3.weight", "3.bias"}), frozenset({"1.weight", "1.bias"}))
    with engine(federation=uneven(SIZES), epochs=1) as used:
        whole, _ = sharing(used, needs=("updates",), turns=named)
        names, (clients, start, shares) = {name for name, _ in used.layout.parameters}, pairs(used)
        for i in (0, 4, len(clients) - 1):
            row = used.initial(int(start[i]))
            for own in named:
                apart = used.train(
                    row[None], np.array([0]), clients[i : i + 1], ROUND, shares=torch.as_tensor(shares[i]),
                    needs=frozenset({"updates"}), fixed=frozenset(names - own), participations=clients[i : i + 1],
                )  # fmt: skip
                row = row + apart.rows[0]
            torch.testing.assert_close(used.initial(int(start[i])) + whole.rows[i], row, rtol=1e-6, atol=1e-7)


def test_what_clients_keep_is_refused():
    with engine(federation=uneven(SIZES)) as used:
        rows = torch.zeros(len(SIZES), used.layout.columns)
        everything = Columns.of({name: part for name, _, part in used.layout.slices()}, dict(used.layout.parameters))
        for given in (
            {"personal": Personal(everything, rows)}, {"features": Features()}, {"beside": Envelope(1.0, 2, 0.1)},
            {"kept": {"client_velocity": rows}},
        ):  # fmt: skip
            with pytest.raises(UserError, match=r"can't keep tensors.*allowed: optimizer_state: fresh"):
                sharing(used, **given)


@pytest.mark.parametrize("form", slow_but(["dense", "loop", "numbers"], list(FORMS)))
def test_losses_of_samples_have_the_means_that_are_sent(form):
    """And those of one client alone are the same bits."""
    factory, federation = FORMS[form]
    found = []
    for workers in (1, 2):
        with engine(factory, federation(), workers=workers) as used:
            theta, ids = torch.stack([used.initial(k) for k in range(3)]), np.arange(used.federation.clients)
            found.append(used.losses_of_samples(theta, ids))
            offsets = used.federation.splits["train"].offsets
            alone = used.losses_of_samples(theta, np.array([2]))
            means = [found[-1][a:b].mean(axis=0) for a, b in pairwise(offsets)]
            np.testing.assert_allclose(np.stack(means), used.losses(theta, ids), rtol=1e-12)
        np.testing.assert_array_equal(alone, found[-1][offsets[2] : offsets[3]])
    np.testing.assert_array_equal(*found)


def mixed(used, theta, shares, split, client):
    """Return a client's right predictions and mean loss by a mixture, in plain PyTorch."""
    data, part = used.federation.splits[split], used.worker.data[split]
    places = torch.arange(int(data.offsets[client]), int(data.offsets[client + 1]))
    x = part.take(places)
    y = part.targets(places, x)
    outputs = [reference.module_of(used, row, torch.float64).eval()(x.double()).detach() for row in theta]
    if not used.federation.classes:
        prediction = sum(share * output for share, output in zip(shares, outputs, strict=True))
        return np.nan, float((prediction.flatten() - y).square().mean())
    likely = sum(share * torch.softmax(output, 1) for share, output in zip(shares, outputs, strict=True))
    right = likely[torch.arange(len(y)), y]
    return int((likely.argmax(1) == y).sum()), float(-right.log().mean())


@pytest.mark.parametrize("form", slow_but(["dense", "loop", "numbers"], list(FORMS)))
def test_a_mixture_is_the_mean_of_predictions(form):
    """Against plain PyTorch in float64, whatever cuts the work."""
    factory, federation = FORMS[form]
    shares, found = np.random.default_rng(1).dirichlet(np.ones(3), size=len(SIZES)), []
    split = "train" if form == "numbers" else "test"
    for cut in ({}, {"workers": 2}, {"chunk": 1}):
        with engine(factory, federation(), **cut) as used:
            theta, ids = 3 * torch.stack([used.initial(k) for k in range(3)]), np.arange(used.federation.clients)
            shares = shares[: len(ids)]
            scores = used.own_scores(theta, 0 * ids, ids, split, mixture=shares)
            found.append((scores.correct, scores.loss))
            if not cut:
                expected = np.array([mixed(used, theta, shares[i], split, i) for i in ids]).T
                rows, owner = used.federation.splits[split].of(ids)
                losses, correct = used.blended(theta, shares[owner], split, rows)
    np.testing.assert_array_equal(found[0][0], expected[0])
    np.testing.assert_allclose(found[0][1], expected[1], rtol=1e-5)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    np.testing.assert_allclose(np.bincount(owner, losses) / np.bincount(owner), found[0][1], rtol=1e-12)
    np.testing.assert_array_equal(np.bincount(owner, correct), found[0][0])


def test_a_mixture_by_hand_and_of_one_model():
    """Softmax of (log 3, 0) is (3/4, 1/4), of (0, log 7) (1/8, 7/8); a third of the first: (1/3, 2/3), class 1 wins.

    Where all of a mixture is one model, it is that model; where that gives a class next to nothing, its loss is large,
    not infinite.
    """
    federation = Federation.from_arrays(np.ones((2, 1), np.float32), np.array([0, 1]), np.array([0, 1]))
    with engine(lambda: nn.Linear(1, 2, bias=False), federation) as used:
        theta = torch.tensor([[np.log(3), 0.0], [0.0, np.log(7)], [2000.0, 0.0]], dtype=torch.float32)
        ids = np.arange(2)
        third = used.own_scores(theta[:2], ids, ids, "train", mixture=np.array([[1 / 3, 2 / 3]] * 2))
        single = used.own_scores(theta, ids, ids, "train", mixture=np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
        same = used.own_scores(theta, np.array([2, 2]), ids, "train")
    np.testing.assert_allclose(third.loss, [-np.log(1 / 3), -np.log(2 / 3)], rtol=1e-6)
    assert third.correct.tolist() == [0, 1]
    assert single.correct.tolist() == same.correct.tolist() == [1, 0]
    np.testing.assert_allclose(single.loss, [0, 2000])
