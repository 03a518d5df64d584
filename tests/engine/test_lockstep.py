"""Two models in lockstep: all forms of training agree in every setting, with fixed tensors and numbers to predict."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, noise, slow_but, uneven, whole_models
from torch import nn

from clusterfl.engine import dense
from clusterfl.engine.lockstep import Lockstep


def trained(used, *, apart, fixed=frozenset(), rate=0.2, towards="start"):
    """Return updates, second models, mixes, shares and losses of a round that begins with random second models."""
    m, columns = used.federation.clients, used.layout.columns
    rows = used.initial(0) + 0.1 * torch.randn(m, columns, generator=torch.Generator().manual_seed(1))
    two = Lockstep(rows.clone(), np.linspace(0.1, 0.9, m), "step", rate, 0.1, apart)
    kept, everybody = whole_models(used), np.arange(m)
    models = torch.stack([used.initial(0), used.initial(0) + 0.1])
    update = used.train(
        models, np.zeros(m, int), everybody, beside=two, personal=kept, fixed=fixed, towards=towards,
        needs=frozenset({"curves", "updates"}),
    )  # fmt: skip
    assert update.steps.tolist() == (2 * np.isfinite(update.curves).sum(1)).tolist()
    return [update.rows[:], two.rows, kept.rows, torch.as_tensor(two.share), torch.as_tensor(update.curves)]


def agree(found, others):
    for mine, theirs in zip(found, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5, equal_nan=True)


SETTINGS = [name for name in OPTIONS if "average" not in OPTIONS[name]]


@pytest.mark.parametrize("name", slow_but(["all", "adam with penalty", "steps"], SETTINGS))
@pytest.mark.parametrize("apart", [False, True])
def test_all_forms_agree(name, apart):
    settings = {"batch_size": 4, "epochs": 2} | OPTIONS[name]
    found = []
    for backend in ("loop", "stacked", "dense"):
        with engine(backend=backend, **settings) as used:
            found.append(trained(used, apart=apart))
    agree(found[1], found[0])
    agree(found[2], found[0])
    assert (found[0][3] != torch.linspace(0.1, 0.9, 6)).all()


FIXED = {"nothing": frozenset(), "first": frozenset({"1.weight"}), "last": frozenset({"3.weight", "3.bias"})}
COORDINATES = {"sgd": {}, "momentum": {"momentum": 0.5, "weight_decay": 0.1}, "pull": {"proximal": 0.5}}


@pytest.mark.parametrize("name", slow_but(["pull"], COORDINATES))
@pytest.mark.parametrize("apart, towards", [(False, "start"), (True, "start"), (False, 1)])
@pytest.mark.parametrize("fixed", slow_but(["nothing"], FIXED))
def test_forms_agree_in_the_coordinates_of_the_data(name, apart, towards, fixed):
    found, settings = [], {"batch_size": 4, "epochs": 12, "learning_rate": 0.05} | COORDINATES[name]
    for backend, chunk in (("loop", None), ("dense", None), ("dense", 1)):
        with engine(partial(mlp, 60), uneven(features=60), backend=backend, chunk=chunk, **settings) as used:
            sizes, training = used.worker.splits["train"].sizes, used.training
            ways = dense.kinds(used.worker, sizes, training, towards, paired=True)
            assert min(ways) == 0 < max(ways)  # both in one round
            found.append(trained(used, apart=apart, towards=towards, fixed=FIXED[fixed]))
    agree(found[1], found[0])
    for mine, theirs in zip(found[1], found[2], strict=True):
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
    assert not torch.equal(found[0][3], torch.linspace(0.1, 0.9, 6))


@pytest.mark.parametrize("apart, towards", [(False, 1), (True, "start")])
def test_several_clients_at_once_in_the_coordinates_of_the_data(apart, towards):
    """Of nine to twelve samples, which all count as twelve, in two or three batches of five."""
    found, settings = [], {"batch_size": 5, "epochs": 6, "learning_rate": 0.05, "proximal": 0.5, "momentum": 0.5}
    for backend in ("loop", "dense"):
        with engine(partial(mlp, 60), uneven((10, 11, 9, 12), 60), backend=backend, **settings) as used:
            ways = dense.kinds(used.worker, np.array([10, 11, 9, 12]), used.training, towards, paired=True)
            assert ways.tolist() == [12] * 4
            found.append(trained(used, apart=apart, towards=towards))
    agree(found[1], found[0])


@pytest.mark.parametrize("epochs, one, two", [(4, 0, 0), (5, 20, 0), (6, 20, 20)])
def test_a_second_model_is_one_more_product_of_all_samples(epochs, one, two):
    """Of 20 samples: 19,200 E on inputs; with coordinates 6,400 E and 60 x 20 x (2 x 8 + 20), or (3 x 8 + 20)."""
    with engine(lambda: mlp(60), uneven((20,), features=60), epochs=epochs, batch_size=10) as used:
        assert dense.kinds(used.worker, np.array([20]), used.training).tolist() == [one]
        assert dense.kinds(used.worker, np.array([20]), used.training, paired=True).tolist() == [two]


def numbers():
    return nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))


OTHERS = {
    "convolutions": (cnn, images, ("stacked",)),
    "no chain": (Residual, uneven, ("stacked",)),
    "numbers": (numbers, lambda: noise((4, 9, 20), outputs=1), ("stacked", "dense")),
}


@pytest.mark.parametrize("net", slow_but(["no chain", "numbers"], OTHERS))
def test_forms_agree_on_other_networks(net):
    factory, data, backends = OTHERS[net]
    with engine(factory, data(), backend="loop", batch_size=4, momentum=0.5) as used:
        expected = trained(used, apart=False)
    for backend in backends:
        with engine(factory, data(), backend=backend, batch_size=4, momentum=0.5) as used:
            agree(trained(used, apart=False), expected)


@pytest.mark.parametrize("backend", ["loop", "stacked", "dense"])
def test_fixed_tensors_stay_in_both_models(backend):
    with engine(mlp, backend=backend, momentum=0.5, weight_decay=0.1) as used:
        part = {name: columns for name, _, columns in used.layout.slices()}["1.weight"]
        start = used.initial(0) + 0.1 * torch.randn(6, used.layout.columns, generator=torch.Generator().manual_seed(1))
        delta, second, *_ = trained(used, apart=False, fixed=frozenset({"1.weight"}))
    assert (delta[:, part] == 0).all() and torch.equal(second[:, part], start[:, part])
    assert (second != start)[:, part.stop :].all()


def test_the_share_stays_between_0_and_1():
    with engine(batch_size=4) as used:
        shares = trained(used, apart=False, rate=1e4)[3]
    assert set(shares.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("backend", ["loop", "stacked", "dense"])
def test_a_share_without_a_rate_of_its_own_has_its_clients(backend):
    """By participations .2, .1 and .05: each share is that of a client for whom this rate is given."""
    decaying = {"learning_rate": 0.2, "schedule": "participation", "decay": 0.5, "epochs": 1}
    with engine(federation=uneven((7, 7, 7)), backend=backend, **decaying) as used:
        ids = np.arange(3)

        def shares(rate, clients):
            two = Lockstep(used.initial(1).repeat(3, 1), np.full(3, 0.3), rate=rate)
            given = {"beside": two, "personal": whole_models(used), "participations": clients}
            used.train(used.initial(0)[None], 0 * clients, clients, **given)
            return two.share

        found = shares(None, ids)
        alone = [shares(0.2 * 0.5**i, ids[i : i + 1])[i] for i in ids]
    np.testing.assert_allclose(found, alone, rtol=1e-6)
    assert (found != 0.3).all()
