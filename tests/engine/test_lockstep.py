"""Two models in lockstep: all forms of training agree in every setting, with fixed tensors and numbers to predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, noise, slow_but, uneven
from torch import nn

from clusterfl.engine.lockstep import Lockstep
from clusterfl.engine.personal import Columns, Personal


def trained(used, *, apart, fixed=frozenset(), rate=0.2):
    """Return updates, second models, mixes, shares and losses of a round that begins with random second models."""
    m, columns = used.federation.clients, used.layout.columns
    rows = used.initial(0) + 0.1 * torch.randn(m, columns, generator=torch.Generator().manual_seed(1))
    two = Lockstep(rows.clone(), np.linspace(0.1, 0.9, m), "step", rate, 0.1, apart)
    kept = Personal(Columns(np.array([[0, columns]])), torch.zeros(m, columns), sent=True)
    everybody = np.arange(m)
    update = used.train(
        used.initial(0)[None], np.zeros(m, int), everybody, beside=two, personal=kept, fixed=fixed,
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
