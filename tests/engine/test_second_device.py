"""What the engine does on a GPU, on a second device without one: see `second_device`.

The results are the CPU's to the bit where the CPU is kept from what it alone does (`plainly`). All of it runs in one
process beside pytest's: in one where another device is set up, none of the other tests could fork.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import pytest
import second_device
import torch
import waits
from federations import OPTIONS, Residual, cnn, engine, images, mlp, noise, norm_and_dropout, slow_but, uneven
from second_device import NAME
from test_equality import DEEP, FORMS, NETWORKS

import clusterfl
from clusterfl.clustering import distances
from clusterfl.data.inputs import Inputs
from clusterfl.data.prepared import outputs, sample_shape
from clusterfl.engine import batches, memory, products, stacked
from clusterfl.engine import engine as engine_module
from clusterfl.engine.worker import Worker
from clusterfl.methods import METHODS
from clusterfl.models import MODELS

SETTINGS = {"batch_size": 4, "epochs": 2, "momentum": 0.5, "proximal": 0.1, "learning_rate": 0.05}
ONE_STEP = {"batch_size": "full", "epochs": 1, "learning_rate": 0.01}
FULL = frozenset({"updates", "curves", "last_gradient"})
SMALL = {  # model, clients, form, settings; many steps on many numbers are taken in the coordinates of the data
    "on inputs": (mlp, uneven, "dense", {}),
    "on data": (partial(mlp, 60), partial(uneven, (5, 6, 7, 8, 8, 7), 60), "dense", {"epochs": 10}),
    "stacked": (Residual, uneven, "stacked", {}),
    "loop": (norm_and_dropout, images, "loop", {}),
}
QUICK = [("mlp", "stacked"), ("textcnn", "loop")]
ALL = [(name, form) for name in NETWORKS for form in FORMS[name]] + [(name, "loop") for name in DEEP]


@pytest.fixture(scope="module")
def there():
    """Call a function of this module where the second device is."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), second_device.set_up) as process:
        yield lambda work, *given: process.submit(work, *given).result()


@contextmanager
def plainly() -> Iterator[None]:
    """Let the CPU compute as another device: no oneDNN, no channels last, nothing beside a chunk, one part a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "ONEDNN", False)
        patch.setattr(stacked, "batches", SimpleNamespace(VECTOR=0, batch_rows=batches.batch_rows))
        patch.setattr(engine_module, "PARTS", 1)
        patch.setattr(Worker, "tune", lambda worker: None)
        patch.setattr(Worker, "shaped", lambda worker, x: x)
        yield


def everything(used):
    """Return all that an engine computes of a federation: a round, its sums, scores and distances, as arrays."""
    theta = torch.stack([used.initial(0), used.initial(1)])
    clients = np.arange(used.federation.clients)
    start, target, weights = clients % 2, clients // 2 % 2, 1.0 + clients
    kept = used.train(theta, start, clients, 4, needs=FULL, score=("train",), participations=clients)
    summed = used.train(theta, start, clients, 4, target=target, weights=weights, participations=clients)
    models = theta[start] + kept.rows[:]
    losses = used.losses(models, clients)
    own = used.own_scores(models, clients, clients, "train")
    personal = used.personalise(theta, start, clients, 4, clients, ("train",))["train"]
    return {
        "updates": kept.rows[:], "curves": kept.curves, "last gradients": kept.last_gradient[:], "norms": kept.norms,
        "scores in training": kept.local["train"].loss, "right in training": kept.local["train"].correct,
        "sums": summed.sums[:], "reduced": used.reduce(kept, target, weights, 2)[:],
        "losses": losses, "own": own.loss, "own right": own.correct, "personal": personal.loss,
        "right": used.correct(theta[0], "train", np.arange(3)), "distances": distances.loss_distance(losses),
        "distances of updates": distances.parameter_distance(kept.rows[:]),
    }  # fmt: skip


def rare(used):
    """Return what is asked for seldom: clipped, changed and dropped updates, unequal effort, memory that is kept."""
    theta, clients = used.initial(0)[None], np.arange(used.federation.clients)
    factors = np.where(clients == 1, np.nan, 1.0 + clients)
    changed = used.train(theta, 0 * clients, clients, factors=factors, needs=FULL, effort=1 + clients % 3)
    clipped = used.train(theta, 0 * clients, clients, clip=0.01, factors=factors)
    kept = memory.begin(used.training, len(clients), used.layout.parameter_columns, used.allocate, {})
    rounds = [used.train(theta, 0 * clients, clients[::2], n, kept=kept).sums[:] for n in (1, 2)]
    return {
        "changed": changed.rows[:], "dropped": changed.dropped, "clipped": clipped.sums[:], "norms": clipped.norms,
        "first": rounds[0], "second": rounds[1], **{name: np.asarray(rows[:]) for name, rows in kept.items()},
    }  # fmt: skip


def several(used):
    """Return what clients do in several clusters: train each model on shares of samples, and predict by mixtures."""
    theta, m = torch.stack([used.initial(0), used.initial(1)]), used.federation.clients
    clients, start = np.repeat(np.arange(m), 2), np.tile(np.arange(2), m)
    rng, sizes = np.random.default_rng(0), used.federation.splits["train"].sizes
    shares = torch.as_tensor(rng.random(2 * int(sizes.sum())), dtype=torch.float32)
    kept = used.train(theta, start, clients, 4, needs=FULL, participations=clients, shares=shares)
    mixture = rng.dirichlet(np.ones(2), size=m)
    mixed = used.own_scores(theta, 0 * np.arange(m), np.arange(m), "train", mixture=mixture)
    return {
        "updates": kept.rows[:], "curves": kept.curves, "losses": used.losses_of_samples(theta, np.arange(m)),
        "mixed": mixed.loss, "mixed right": mixed.correct,
    }  # fmt: skip


def compared(factory, federation, work, options, tolerance=0.0):
    """Require of the second device what the CPU gives; return what the host waited for in steps."""
    with plainly(), engine(factory, federation, **options) as used:
        expected = work(used)
    with waits.watched() as noted, engine(factory, federation, device=NAME, **options) as used:
        assert all(isinstance(part, second_device.SecondTensor) for part in used.worker.module.parameters())
        found = work(used)
    same(found, expected, tolerance)
    assert noted
    return {(one.place, one.operation) for one in noted if one.step}


def same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        here, there = np.asarray(values), np.asarray(found[name])
        if tolerance and here.dtype.kind == "f":
            np.testing.assert_allclose(there, here, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(there, here, err_msg=name)


def of_network(name, form):
    if name in DEEP:
        network, settings = (
            {"features": (3, 32, 32), "dtype": np.uint8, "inputs": Inputs(mean=[0.5], std=[0.3])},
            ONE_STEP,
        )
    else:
        network, settings = dict(NETWORKS[name]), SETTINGS
    options, federation = network.pop("options", {}), noise((3, 9, 5), **network)
    factory = partial(MODELS[name], sample_shape(federation), outputs(federation), **options)
    # The CPU has a kernel for a whole LSTM, and another device one for each of its cells.
    tolerance = 1e-6 if name == "char-lstm" else 0.0
    return compared(factory, federation, everything, {"backend": form, **settings}, tolerance)


@pytest.mark.parametrize("name, form", slow_but(QUICK, ALL))
def test_every_network_in_every_form(there, name, form):
    assert there(of_network, name, form) == set()


def with_options(case, work, options):
    factory, federation, form, settings = SMALL[case]
    own = {} if "steps" in options else settings  # epochs and steps exclude each other
    return compared(factory, federation(), work, {"backend": form, **own, **options})


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", SMALL)
def test_every_option_in_every_form(there, case, option):
    assert there(with_options, case, everything, OPTIONS[option]) == set()


RARE = {"momentum": {"momentum": 0.9}, "adam": {"optimizer": "adam", "learning_rate": 0.01}}


@pytest.mark.parametrize("case", slow_but(["on inputs"], SMALL))
@pytest.mark.parametrize("option", RARE)
def test_what_is_asked_for_seldom(there, case, option):
    assert there(with_options, case, rare, {"optimizer_state": "kept", **RARE[option]}) == set()


@pytest.mark.parametrize("case", slow_but(["on inputs"], SMALL))
def test_clients_of_several_clusters(there, case):
    assert there(with_options, case, several, {"momentum": 0.5}) == set()


def a_run(name, settings):
    """A whole run of a method; of a one-shot one its warm-up, distances and clusters, too."""
    found = []
    for device in ("cpu", NAME):
        with plainly() if device == "cpu" else nullcontext(), waits.watched() as noted:
            training = {"rounds": 3, "learning_rate": 0.1, "weights": "uniform"}
            options = {"device": device, **({"warmup": {"epochs": 2}} if METHODS[name].one_shot else {}), **settings}
            run = clusterfl.run(name, uneven(), mlp, training=training, **options)
        tables = {"history": run.history, "rounds": run.rounds, "clusters": run.clusters}
        columns = {f"{i}.{name}": table[name] for i, table in tables.items() for name in table if "seconds" not in name}
        found.append(columns | {"models": run.models[:]})
    same(*found)
    assert noted
    return {(one.place, one.operation) for one in noted if one.step}


PRIVATE = {"rebalance": {"minimum": 2}, "privacy": {"clip": 0.1, "epsilon": 4, "delta": 1e-3}}
CLUSTERED = {name for name in METHODS if METHODS[name].one_shot or "clusters" in METHODS.options(name).model_fields}
RUNS = {name: (name, {"clusters": 2} if name in CLUSTERED else {}) for name in METHODS}
RUNS |= {f"lcfl, {metric}": ("lcfl", {"clusters": 2, "metric": metric}) for metric in distances.METRICS}
RUNS["private"] = ("ifca", {"clusters": 2, **PRIVATE})


@pytest.mark.parametrize("run", slow_but([], RUNS))
def test_whole_runs(there, run):
    assert there(a_run, *RUNS[run]) == set()


AUGMENTED = {
    "crop-flip": {"augment": "crop-flip", "mean": [0.5], "std": [0.5]},
    "ifca": {"augment": "ifca"},
    "rotated": {"augment": "crop-flip"},
    "fresh noise": {"noise": "fresh"},
}
# Operations that wait in each step where samples are made for it, all of them in the room of the data. Mended, one
# leaves this list.
WAITING = {
    "crop-flip": {"copy_"},  # mean and deviation go to the device in each step
    "ifca": set(),
    "rotated": {"_local_scalar_dense", "index", "index_put_"},  # whether and which samples have each turn
    "fresh noise": {"nonzero", "copy_"},  # which samples have noise, and the table of quantiles
}


def with_augmentation(name):
    federation = noise((3, 5), (3, 32, 32), 3, inputs=Inputs(**AUGMENTED[name]), dtype=np.uint8)
    split = federation.splits["train"]
    if name == "rotated":
        split = replace(split, turns=np.arange(8, dtype=np.int8) % 4)
    if name == "fresh noise":
        drawn, sigma = np.random.default_rng(0).normal(size=(4, 3, 32, 32)), np.array([0.1, 0.2, 0.3, 0.4])
        pool = replace(split.pool, noise=drawn.astype(np.float32), sigma=sigma.astype(np.float32))
        split = replace(split, pool=pool, noise=np.arange(8) % 5 - 1)
    federation = replace(federation, splits={"train": split})
    model = MODELS["ifca-cifar-cnn" if name == "ifca" else "lcfl-cifar-cnn"]
    model = partial(model, sample_shape(federation), outputs(federation))
    return compared(model, federation, everything, {"backend": "loop", "batch_size": 2, "epochs": 2})


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTED)
def test_samples_made_for_each_step(there, name):
    found = there(with_augmentation, name)
    assert {operation for _, operation in found} <= WAITING[name]
    assert all(place.startswith("data/") for place, _ in found)


@contextmanager
def small(**sizes):
    """Let the device have so little memory."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(second_device.device, name, size)
        yield


def halves():
    """Return updates with a device of no limit, and with one into which not all clients fit."""
    found = []
    for largest in (1 << 40, 6000):
        with small(largest=largest, emptied=0), engine(mlp, uneven(), device=NAME) as used:
            clients = np.arange(6)
            update = used.train(used.initial(0)[None], 0 * clients, clients, needs=frozenset({"updates"}))
            found.append((update.rows[:].numpy(), second_device.device.emptied))
    return found


def test_chunks_that_do_not_fit_are_halved(there):
    (whole, never), (halved, emptied) = there(halves)
    assert (never, emptied) == (0, 1)
    np.testing.assert_array_equal(halved, whole)


def parts():
    """Return how many clients' updates are added up together with little memory free, and with more held unused."""
    found = []
    with engine(mlp, uneven(), device=NAME) as used:
        for sizes in (
            {},
            {"free": 3 * 64 * used.layout.columns},
            {"free": 0, "reserved": 2 * 64 * used.layout.columns},
        ):
            with small(**sizes):
                clients = np.arange(6)
                update = used.train(used.initial(0)[None], 0 * clients, clients)
                found.append([len(part) for part in update.parts])
    return found


def test_parts_are_as_large_as_memory_allows(there):
    """What the allocator holds from earlier rounds counts as free."""
    assert there(parts) == [[6], [3, 3], [2, 2, 2]]


def mixed():
    """Let a tensor of the CPU into a step; an operation that only the CPU has."""
    found = []
    weights = Worker.batch_weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "batch_weights", lambda worker, task, index: weights(worker, task, index).cpu())
        for case in ("on inputs", "stacked"):
            factory, federation, form, _ = SMALL[case]
            with engine(factory, federation(), device=NAME, backend=form) as used:
                found.append(refused(everything, used))
    found.append(refused(torch.ops.mkldnn._linear_pointwise, *torch.ones(2, 3, 3, device=NAME), None, "none", [], ""))
    return found


def refused(work, *given):
    with pytest.raises((RuntimeError, NotImplementedError)) as raised:
        work(*given)
    return str(raised.value)


def test_what_a_gpu_refuses_is_refused(there):
    dense_says, stacked_says, product_says = there(mixed)
    for says in (dense_says, stacked_says):
        assert "same device" in says and "on cpu" in says
    assert "mkldnn._linear_pointwise" in product_says and "CPU alone" in product_says


def slipped(case, name):
    """Let a function that each step calls read a number of a tensor."""
    original = resolve_name(name)

    def reading(*given, **options):
        found = original(*given, **options)
        next(part for part in (found, *given) if isinstance(part, torch.Tensor)).sum().item()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name.replace(":", "."), reading)
        return with_options(case, everything, {})


SLIPS = {
    "on inputs": "clusterfl.engine.worker:Worker.loss_gradients",
    "on data": "clusterfl.engine.worker:Worker.loss_gradients",
    "stacked": "clusterfl.engine.stacked:regularise",
    "loop": "clusterfl.engine.worker:Worker.sample_losses",
}


@pytest.mark.parametrize("case", slow_but(["on data", "stacked", "loop"], SLIPS))
def test_a_number_read_in_a_step_is_seen(there, case):
    assert {operation for _, operation in there(slipped, case, SLIPS[case])} == {"_local_scalar_dense"}


def test_the_loops_over_steps_are_found():
    for file in waits.FORMS:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        found = [lines[number - 1] for number in waits.steps(file)]
        assert any("optimizer.step(" in line for line in found), file
        assert not any(line.startswith("def ") for line in found), file


def counted(case):
    """Return how often the host waits in a round, by place: plain, of more steps, of one model, and with scores."""
    factory, federation, form, settings = SMALL[case]
    clients, found = np.arange(5), []
    for options, models, split in (({}, 2, ()), ({"epochs": 12}, 2, ()), ({}, 1, ()), ({}, 2, ("test",))):
        with engine(factory, federation(), device=NAME, backend=form, **(settings | options)) as used:
            theta = torch.stack([used.initial(k) for k in range(models)])
            with waits.watched() as noted:
                update = used.train(theta, clients % models, clients, score=split)
        assert len(update.parts) == 1
        found.append(waits.by_place(noted))
    return found


# Of a round whose clients form one chunk, with one model and with two; of a client's score. docs/performance.md says
# what they are.
WAITS = {"on inputs": (8, 10, 5), "on data": (12, 16, 5), "stacked": (8, 10, 3), "loop": (8, 10, 3)}


@pytest.mark.parametrize("case", SMALL)
def test_how_often_a_round_waits(there, case):
    plain, longer, single, scored = there(counted, case)
    one, two, score = WAITS[case]
    assert plain == longer
    assert (single.total(), plain.total()) == (one, two), (single, plain)
    assert scored.total() == two + 2 + 5 * score, scored


def chosen(factory, federation):
    with engine(factory, federation, device=NAME) as used:
        return used.backend, used.reason


def test_convolutions_are_trained_together_there(there):
    assert there(chosen, cnn, images()) == ("stacked", "its layer Conv2d has no hand-written gradient")
    assert there(chosen, norm_and_dropout, images())[0] == "loop"
