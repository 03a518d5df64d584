"""What clients' optimisers keep: against one torch optimiser for each client, and free of how work is cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from federations import Residual, engine, images, mlp, slow_but, uneven
from reference import _sample_loss, module_of
from torch import nn

import clusterfl.engine.engine as engine_module
from clusterfl.data.prepared import samples_of
from clusterfl.engine import batches, dense, memory
from clusterfl.storage.row_store import RowStore

SIZES = (3, 10, 21, 7, 16, 1)


def convolutions():
    """Two of several channels: on a CPU their weights lie in memory with channels last."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 3))


FORMS = {
    "dense": (mlp, lambda: uneven(SIZES), "dense"),
    "stacked": (Residual, lambda: uneven(SIZES), "stacked"),
    "loop": (mlp, lambda: uneven(SIZES), "loop"),
    "convolutions": (convolutions, images, "loop"),
}
OPTIMISERS = {
    "momentum": {"momentum": 0.9, "learning_rate": 0.05},
    "all of SGD": {"momentum": 0.5, "weight_decay": 0.05, "proximal": 0.3, "schedule": "round", "decay": 0.7,
                   "decays_before": 2},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
    "adam, penalty, decay": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1, "decays_before": 1,
                             "schedule": "participation", "decay": 0.5},
}  # fmt: skip
# Who trains in a round and from which of two models: some are absent, all change models.
ROUNDS = {1: ([0, 1, 2, 3, 4], [0, 1, 0, 1, 0]), 2: ([0, 2, 4], [1, 1, 1]), 3: ([1, 2, 3, 4], [0, 0, 1, 1])}


def begin(used, earlier=None):
    size = used.layout.parameter_columns
    return memory.begin(used.training, used.federation.clients, size, used.allocate, earlier or {})


def rounds(used, kept, **how):
    """Return the updates of each round, [m, P], and what is kept after all of them."""
    theta = torch.stack([used.initial(0), used.initial(1)])
    count, found = np.zeros(used.federation.clients, dtype=np.int64), []
    for round_, (clients, start) in ROUNDS.items():
        update = used.train(
            theta, np.array(start), np.array(clients), round_, needs=frozenset({"updates"}), kept=kept,
            participations=count[clients], **how,
        )  # fmt: skip
        count[clients] += 1
        found.append(update.rows[:].clone())
    return found, {name: torch.as_tensor(np.asarray(rows[:])).clone() for name, rows in kept.items()}


def plain(used):
    """Return the same by one torch optimiser for each client, which lives as long as all rounds, in float64."""
    training, split = used.training, used.federation.splits["train"]
    theta, found = torch.stack([used.initial(0), used.initial(1)]).double(), [[] for _ in ROUNDS]
    for client in range(used.federation.clients):
        module = module_of(used, theta[0], torch.float64).train()
        named = dict(module.named_parameters())
        make = torch.optim.Adam if training.optimizer == "adam" else torch.optim.SGD
        more = {} if training.optimizer == "adam" else {"momentum": training.momentum}
        optimizer, penalties, count = make(named.values(), **more), getattr(module, "weight_decays", {}), 0
        for r, (round_, (clients, start)) in enumerate(ROUNDS.items()):
            if client not in clients:
                continue
            begun = theta[start[clients.index(client)]]
            used.layout.load(module, begun)
            decays = {"constant": 0, "round": round_ - 1, "participation": count}[training.schedule]
            decays += training.decays_before
            optimizer.param_groups[0]["lr"] = training.learning_rate * math.prod([training.decay] * decays)
            first = {name: p.detach().clone() for name, p in named.items()}
            index = batches.schedule(used.seed, np.array([client]), split.sizes[[client]], round_, training)
            for batch in index[0]:
                places = torch.as_tensor(batch[batch >= 0] + split.offsets[client])
                x, y = torch.as_tensor(samples_of(split))[places].double(), torch.as_tensor(split.y)[places]
                optimizer.zero_grad()
                _sample_loss(module(x), y, used.federation.classes).mean().backward()
                with torch.no_grad():
                    for name, p in named.items():
                        penalty = training.weight_decay + penalties.get(name, 0.0)
                        p.grad += penalty * p + training.proximal * (p - first[name])
                optimizer.step()
            found[r].append(torch.cat([p.detach().reshape(-1) for p in named.values()]) - begun)
            count += 1
    return [torch.stack(rows) for rows in found]


@pytest.mark.parametrize("optimiser", slow_but(["adam"], OPTIMISERS))
@pytest.mark.parametrize("form", FORMS)
def test_a_client_has_one_torch_optimiser_for_the_run(form, optimiser):
    factory, federation, backend = FORMS[form]
    settings = OPTIMISERS[optimiser] | {"epochs": 2, "optimizer_state": "kept"}
    with engine(factory, federation(), backend=backend, **settings) as used:
        found, kept = rounds(used, begin(used))
        expected = plain(used)
    with engine(factory, federation(), backend=backend, **settings | {"optimizer_state": "fresh"}) as used:
        fresh, _ = rounds(used, {})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(fresh[0], found[0])  # in a client's first round both have a new one
    assert (found[1] - fresh[1]).abs().max() > 1e-3
    if "adam" in optimiser:
        sizes = used.federation.splits["train"].sizes
        times = [sum(client in clients for clients, _ in ROUNDS.values()) for client in range(len(sizes))]
        assert kept[memory.STEPS].tolist() == (batches.steps_of(sizes, used.training) * times).tolist()


EACH = [(form, optimiser) for form in FORMS for optimiser in ("momentum", "adam, penalty, decay")]


@pytest.mark.parametrize("form, optimiser", slow_but([("dense", "adam, penalty, decay")], EACH))
def test_no_bit_depends_on_the_cut_or_on_where_it_lies(form, optimiser, monkeypatch):
    factory, federation, backend = FORMS[form]
    settings = OPTIMISERS[optimiser] | {"optimizer_state": "kept", "backend": backend}

    def run(**cut):
        with engine(factory, federation(), **settings, **cut) as used:
            begun = begin(used)
            return *rounds(used, begun), begun

    monkeypatch.setattr(engine_module, "PARTS", 1)  # so that few clients, too, are trained in chunks of several
    whole = run()
    assert all(rows.any() for rows in whole[1].values())
    found = [run(chunk=1), run(chunk=2)]
    with monkeypatch.context() as patched:
        patched.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
        found.append(run())
        assert all(isinstance(found[-1][2][name], RowStore) for name in memory.ROWS[settings.get("optimizer", "sgd")])
        monkeypatch.setattr(engine_module, "PARTS", 3)
        found.append(run(workers=3, chunk=2))
    found.append(run(workers=2))
    for updates, kept, _ in found:
        assert all(torch.equal(*pair) for pair in zip(updates, whole[0], strict=True))
        assert all(torch.equal(kept[name], whole[1][name]) for name in whole[1])


def test_an_update_that_is_left_out_leaves_the_optimiser_as_it_was():
    """As one whose client didn't take part."""
    with engine(momentum=0.9, optimizer_state="kept", largest_update=1e3) as used:
        clients, theta = np.arange(6), used.initial(0)[None]
        kept = begin(used)
        used.train(theta, 0 * clients, clients, 1, kept=kept)
        before = kept["client_velocity"].clone()
        factors = np.array([1, np.nan, 1, 1e9, 1, 1])
        update = used.train(theta, 0 * clients, clients, 2, kept=kept, factors=factors)
        assert np.flatnonzero(update.dropped).tolist() == [1, 3]
        moved = (kept["client_velocity"] != before).any(dim=1)
    assert before.any(dim=1).all() and moved.tolist() == [True, False, True, False, True, True]


def test_personalised_models_are_trained_by_new_optimisers():
    with engine(momentum=0.9, optimizer_state="kept") as used, engine(momentum=0.9) as fresh:
        theta, clients, none = used.initial(0)[None], np.arange(6), np.zeros(6, dtype=np.int64)
        kept = begin(used)
        used.train(theta, none, clients, 1, kept=kept)
        before = kept["client_velocity"].clone()
        own, other = (e.personalise(theta, none, clients, 1, none, ["test"]) for e in (used, fresh))
        assert torch.equal(kept["client_velocity"], before)
    np.testing.assert_array_equal(own["test"].loss, other["test"].loss)


def test_what_is_kept_is_never_in_the_coordinates_of_the_data():
    sizes = np.array(SIZES)
    wide = {"factory": lambda: mlp(60), "federation": uneven(SIZES, 60), "epochs": 10, "momentum": 0.9}
    with engine(**wide) as fresh, engine(**wide, optimizer_state="kept") as kept:
        assert dense.kinds(fresh.worker, sizes, fresh.training).all()
        assert not dense.kinds(kept.worker, sizes, kept.training).any()


def test_it_goes_on_from_an_earlier_run():
    """What another optimiser left isn't taken, and the earlier run's own stays as it is."""
    with engine(momentum=0.9, optimizer_state="kept") as used:
        left = begin(used)
        rounds(used, left)
        further = begin(used, left)
        assert torch.equal(further["client_velocity"], left["client_velocity"])
        further["client_velocity"] += 1
        assert not torch.equal(further["client_velocity"], left["client_velocity"])
    with engine(optimizer="adam", optimizer_state="kept") as other:
        found = begin(other, left)
        assert not any(np.asarray(rows).any() for rows in found.values())
        found[memory.STEPS] += 2
        further = begin(other, found)
        further[memory.STEPS] += 1
        assert found[memory.STEPS].tolist() == [2] * 6 and further[memory.STEPS].tolist() == [3] * 6
    with engine(optimizer="adam") as other:
        assert begin(other, left) == {}
