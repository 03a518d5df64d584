"""Steps in pairs, the first of which only looks ahead: a plain loop in every form of training, and free of the cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import Residual, cnn, engine, images, mlp, slow_but, uneven
from reference import _sample_loss, module_of

from clusterfl.data.prepared import samples_of
from clusterfl.engine import batches, memory
from clusterfl.simulation import loop

FORMS = {
    "dense": (mlp, uneven, "dense"),
    "dense, coordinates of the data": (lambda: mlp(60), lambda: uneven(features=60), "dense"),
    "stacked": (Residual, uneven, "stacked"),
    "loop": (mlp, uneven, "loop"),
    "convolutions": (cnn, images, "loop"),
}
SETTINGS = {
    "plain": {},
    "momentum, penalty, proximal": {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1},
}


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_slow_obvious_loop(form, options):
    """One client after another with torch's optimiser in float64; a last batch without a partner is left out."""
    factory, federation, backend = FORMS[form]
    settings = {"learning_rate": 0.05, "epochs": 3, "batch_size": 8, "lookahead": 0.1} | SETTINGS[options]
    with engine(factory, federation(), backend=backend, **settings) as used:
        m, theta = used.federation.clients, used.initial(0)
        none = np.zeros(m, dtype=np.int64)
        update = used.train(theta[None], none, np.arange(m), needs=frozenset({"updates"}))
        training, split, rows = used.training, used.federation.splits["train"], []
        assert (update.steps % 2).any() and (update.steps > 2).all()
        for i in range(m):
            module = module_of(used, theta.double(), torch.float64).train()
            named = dict(module.named_parameters())
            make = torch.optim.Adam if training.optimizer == "adam" else torch.optim.SGD
            more = {} if training.optimizer == "adam" else {"momentum": training.momentum}
            optimizer = make(named.values(), lr=training.learning_rate, **more)
            penalties = getattr(module, "weight_decays", {})
            begun = {name: p.detach().clone() for name, p in named.items()}

            def gradients(batch):
                places = torch.as_tensor(batch[batch >= 0] + split.offsets[i])  # noqa: B023
                x, y = torch.as_tensor(samples_of(split))[places].double(), torch.as_tensor(split.y)[places]
                optimizer.zero_grad()  # noqa: B023
                _sample_loss(module(x), y, used.federation.classes).mean().backward()  # noqa: B023
                with torch.no_grad():
                    for name, p in named.items():  # noqa: B023
                        p.grad += (training.weight_decay + penalties.get(name, 0.0)) * p  # noqa: B023
                        p.grad += training.proximal * (p - begun[name])  # noqa: B023

            index = batches.schedule(used.seed, np.array([i]), split.sizes[[i]], 1, training)[0]
            for first, second in zip(index[::2], index[1::2], strict=False):
                gradients(first)
                before = [p.detach().clone() for p in named.values()]
                with torch.no_grad():
                    for p in named.values():
                        p -= 0.1 * p.grad
                gradients(second)
                with torch.no_grad():
                    for p, old in zip(named.values(), before, strict=True):
                        p.copy_(old)
                optimizer.step()
            rows.append(torch.cat([p.detach().reshape(-1) for p in named.values()]) - theta.double())
    torch.testing.assert_close(update.rows[:].double(), torch.stack(rows), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], FORMS))
def test_no_bit_depends_on_the_cut(form, monkeypatch):
    factory, federation, backend = FORMS[form]
    monkeypatch.setattr("clusterfl.engine.engine.PARTS", 1)
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        settings = {
            "rounds": 2,
            "epochs": 3,
            "batch_size": 8,
            "momentum": 0.5,
            "weight_decay": 0.01,
            "learning_rate": 0.01,
        }
        with engine(factory, federation(), backend=backend, lookahead=0.1, **settings, **cut) as used:
            found.append(loop.run(loop.Method(), loop.context(used), used)[0].theta)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("backend", ["dense", "loop"])
def test_optimisers_that_are_kept_count_their_own_steps(backend):
    """Of a client's n mini-batches n // 2 are steps of its optimiser."""
    with engine(backend=backend, optimizer="adam", optimizer_state="kept", lookahead=0.1, epochs=3) as used:
        kept = memory.begin(used.training, 6, used.layout.parameter_columns, used.allocate, {})
        clients = np.arange(6)
        for round_ in (1, 2):
            update = used.train(used.initial(0)[None], 0 * clients, clients, round_, kept=kept)
    assert (update.steps % 2).any()
    assert kept[memory.STEPS].tolist() == (2 * (update.steps // 2)).tolist()
