"""The promise that no bit depends on how work is cut: chunks, workers, who else takes part, memory that runs out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, noise, norm_and_dropout, slow_but, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ROUND, agree, trained
from torch import nn

import clusterfl.engine.engine as engine_module
from clusterfl.engine import dense, processes, products, work
from clusterfl.errors import UserError

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


@pytest.fixture(autouse=True)
def one_part(monkeypatch):
    """A round of one part, so that few clients, too, are trained in chunks of several."""
    monkeypatch.setattr(engine_module, "PARTS", 1)


@pytest.fixture
def several_parts(one_part, monkeypatch):
    """For tests whose workers share a round."""
    monkeypatch.setattr(engine_module, "PARTS", 3)


OPTIMISERS = [
    {}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.5},
    {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.5},
]  # fmt: skip


@st.composite
def cases(draw, *others):
    """A chain of linear layers, clients, and settings, small and of any shape."""
    outputs = draw(st.integers(1, 5))
    widths = [draw(st.integers(1, 40)), *draw(st.lists(st.integers(1, 20), max_size=2)), outputs]
    activation, bias = draw(st.sampled_from(ACTIVATIONS)), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=7))
    options = {
        "batch_size": draw(st.one_of(st.integers(1, 12), st.just("full"))),
        "epochs": draw(st.integers(1, 4)),
        "learning_rate": 0.05,
    }
    options |= draw(st.sampled_from([*OPTIMISERS, *others]))
    return widths, activation, bias, sizes, options, draw(st.integers(1, 2)), draw(st.integers(0, 9))


def chain(*widths, activation=nn.ReLU, bias=True):
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, bias), activation())]
    return nn.Sequential(*layers[:-1])


def parts_of(case):
    """Return module, federation and settings of a case, and how many models clients start from."""
    widths, activation, bias, sizes, options, starts, seed = case
    return chain(*widths, activation=activation, bias=bias), noise(sizes, widths[0], widths[-1], seed), options, starts


SHARED = ("sums", "weighted sums")


def everything(used, clients=None, starts=2):
    """Return all that training and scoring give, by name; one row for each client but in the sums."""
    clients = np.arange(used.federation.clients) if clients is None else np.asarray(clients)
    theta = torch.stack([used.initial(k) for k in range(starts)])
    kept, summed = (trained(used, needs, clients, starts) for needs in (("updates", "curves", "last_gradient"), ()))
    weights = np.linspace(0.3, 1.7, len(clients))
    weighted = used.train(theta, clients % starts, clients, ROUND, weights=weights, participations=clients)
    return {
        "updates": kept.rows[:].numpy(),
        "last gradient": kept.last_gradient[:].numpy(),
        "curves": kept.curves,
        "norms": kept.norms,
        "losses": used.losses(theta, clients),
        "own losses": used.own_scores(theta, clients % starts, clients, "train").loss,
        "sums": summed.sums[:].numpy(),
        "weighted sums": weighted.sums[:].numpy(),
    }


def same(whole, found, clients=None):
    """Compare what all clients gave with what a run gives, of all or of some: bits, which tell -0 from 0."""
    for name, values in found.items():
        if clients is None:
            expected = whole[name]
        elif name not in SHARED:
            expected = whole[name][clients, : values.shape[1]] if name == "curves" else whole[name][clients]
        else:
            continue
        bits = [np.ascontiguousarray(part).view(np.uint8) for part in (values, expected)]
        np.testing.assert_array_equal(*bits, err_msg=name)


def check(factory, federation, some, cuts=({"chunk": 1}, {"chunk": 2}, {"chunk": 3}), starts=2, **options):
    """Run all clients, then `some` of them, then all in other chunks or by other workers."""
    with engine(factory, federation, **options) as used:
        whole = everything(used, starts=starts)
        same(whole, everything(used, some, starts), some)
    for cut in cuts:
        with engine(factory, federation, **(options | cut)) as used:
            same(whole, everything(used, starts=starts))


@given(cases())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_dense_of_any_shape(case):
    """Against the reference; not by Adam, to which a gradient of 0 but for its rounding is as good as any other.

    The same cases each time: some random case would have a unit so near to 0 that rounding decides ReLU's gradient.
    """
    factory, federation, options, starts = parts_of(case)
    with engine(factory, federation, **options) as used:
        assert used.backend == "dense"
        agree(used, trained(used, starts=starts), least=0)


@pytest.mark.slow
@given(cases({"optimizer": "adam"}), st.sets(st.integers(0, 6), min_size=1))
@settings(max_examples=12, deadline=None)
def test_no_bit_of_any_shape_depends_on_the_cut(case, some):
    factory, federation, options, starts = parts_of(case)
    check(factory, federation, sorted({i % federation.clients for i in some}), starts=starts, **options)


MODELS = {
    "dense": (mlp, uneven, "dense"),
    "stacked": (Residual, uneven, "stacked"),
    "loop": (cnn, images, "loop"),
    "normalised, dropped": (norm_and_dropout, images, "loop"),
}


QUICK = ["all", "one sample a step"]  # with each model
EACH = [(model, option) for model in MODELS for option in OPTIONS]


@pytest.mark.parametrize("model, option", slow_but([e for e in EACH if e[1] in QUICK], EACH))
def test_no_bit_depends_on_the_cut_with_any_option(model, option):
    factory, federation, form = MODELS[model]
    check(factory, federation(), [1, 4], ({"chunk": 2},), backend=form, **OPTIONS[option])


@pytest.mark.usefixtures("several_parts")
@pytest.mark.parametrize("model", slow_but(["dense", "loop"], MODELS))
def test_no_bit_depends_on_the_workers(model):
    factory, federation, form = MODELS[model]
    check(factory, federation(), [0, 3], ({"workers": 2}, {"workers": 3, "chunk": 2}), backend=form)


@pytest.mark.usefixtures("several_parts")
@pytest.mark.parametrize("size", [1, 700])
def test_results_that_fill_their_slot_are_sent(size, monkeypatch):
    """None of the arrays finds room, or the small ones do."""
    monkeypatch.setattr(processes, "SLOT_BYTES", size)
    check(mlp, uneven(), [0, 3], ({"workers": 2},))


@pytest.mark.parametrize("activation", slow_but(["SiLU"], ["Sigmoid", "SiLU", "ELU", "Softplus", "GELU"]))
@pytest.mark.parametrize("form", ["stacked", "loop"])
def test_no_bit_depends_on_the_place_in_a_tensor(form, activation):
    """PyTorch computes the last numbers of a tensor, which fill no vector, in another way: 44 numbers here, or 88."""
    module = nn.Sequential(nn.Linear(6, 11), getattr(nn, activation)(), nn.Linear(11, 3))
    federation = noise((3, 10, 25, 7, 16, 29), 6)
    check(module, federation, [1, 4], ({"chunk": 1}, {"chunk": 4}), backend=form, batch_size=4, epochs=2)


# Where oneDNN takes over (`products.SMALL`), and where MKL still computes large products.
LARGE = {
    "first layer on data": (chain(784, 40, 3), (7, 20, 3, 20), {"epochs": 9}),
    "first layer on inputs": (chain(784, 40, 3), (90, 60, 200), {"epochs": 1, "batch_size": 60}),
    "odd widths": (chain(1023, 17, 1), (7, 20, 3), {"epochs": 9, "momentum": 0.5}),
    "one column of oneDNN's": (chain(17000, 1), (7, 20, 3), {"epochs": 9, "batch_size": 2}),
    "one column of MKL's": (chain(3000, 1), (200, 230, 150, 90), {"epochs": 1, "batch_size": 100}),
    "one column on data": (chain(1000, 1), (200, 204, 208), {"epochs": 210, "batch_size": "full"}),
    "second layer": (chain(9, 131, 131, 2, activation=nn.Sigmoid), (7, 20, 3), {"optimizer": "adam"}),
    "one sample a step": (chain(200, 150, 3), (7, 20, 3), {"batch_size": 1, "epochs": 1}),
    "penalties": (chain(784, 40, 3), (7, 20, 3), {"weight_decay": 0.1, "proximal": 0.1, "epochs": 7}),
}


def clients_of(name):
    module, sizes, options = LARGE[name]
    return noise(sizes, module[0].in_features, module[-1].out_features), {"learning_rate": 0.01} | options


@pytest.mark.parametrize("name", slow_but(["first layer on data", "one column of MKL's", "one sample a step"], LARGE))
def test_no_bit_of_large_products_depends_on_the_cut(name):
    federation, options = clients_of(name)
    check(LARGE[name][0], federation, [0, 2], ({"chunk": 1}, {"chunk": 2, "workers": 2}), backend="dense", **options)


@pytest.mark.usefixtures("several_parts")
@pytest.mark.parametrize("name", slow_but(["second layer"], ["odd widths", "second layer", "one sample a step"]))
def test_no_bit_of_large_products_in_the_loop_depends_on_the_workers(name):
    federation, options = clients_of(name)
    check(LARGE[name][0], federation, [0, 2], ({"workers": 2},), backend="loop", **options)


def test_the_large_ones_are_large():
    """Of the cases above, some pass `products.SMALL` and some don't; some are taken in coordinates of their data."""
    weights = {name: max(p.numel() for p in case[0].parameters()) for name, case in LARGE.items()}
    assert {"one column of MKL's", "one column on data"} == {n for n, size in weights.items() if size < products.SMALL}
    on_data = set()
    for name, (module, sizes, _) in LARGE.items():
        federation, options = clients_of(name)
        with engine(module, federation, **options) as used:
            if dense.kinds(used.worker, np.array(sizes), used.training).any():
                on_data.add(name)
    assert on_data == {
        "first layer on data", "odd widths", "one column of oneDNN's", "one column on data", "penalties"
    }  # fmt: skip


@pytest.mark.parametrize("factory, federation, form", MODELS.values(), ids=MODELS)
def test_chunks_that_do_not_fit_are_halved(factory, federation, form, monkeypatch):
    tried, train_chunk = [], work.FORMS[form].train_chunk

    def scarce(worker, task):
        tried.append(len(task))
        if len(task) > 2:
            raise torch.OutOfMemoryError("no memory is left")
        return train_chunk(worker, task)

    with engine(factory, federation(), backend=form) as used:
        if used.worker.alone:
            pytest.skip("each client is computed by itself: there is nothing to halve")
        whole = everything(used)
        monkeypatch.setattr(work.FORMS[form], "train_chunk", scarce)
        same(whole, everything(used))
    assert max(tried) > 2 and {1, 2} <= set(tried)


def test_a_client_that_does_not_fit_is_reported(monkeypatch):
    def none(worker, task):
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(dense, "train_chunk", none)
    with engine() as used, pytest.raises(UserError, match="one client's training doesn't fit into the memory"):
        trained(used)


@pytest.mark.parametrize("needs", [set(), {"updates", "curves", "last_gradient"}])
def test_one_process_trains_several_parts_at_once(needs, monkeypatch):
    """Six clients in four parts: one chunk of all, or a chunk for each part; every number is the same to the bit."""
    counted, train_chunk = [], dense.train_chunk

    def noting(worker, task):
        counted.append(len(task))
        return train_chunk(worker, task)

    monkeypatch.setattr(dense, "train_chunk", noting)
    monkeypatch.setattr(engine_module, "PARTS", 4)
    found = []
    for chunk in (None, 2):
        with engine(federation=uneven(), chunk=chunk, workers=1) as used:
            theta, m = torch.stack([used.initial(0), used.initial(1)]), used.federation.clients
            update = used.train(theta, np.arange(m) % 2, np.arange(m), needs=frozenset(needs), score=("test",))
            found.append((update, [len(part) for part in update.parts]))
    (one, parts), (other, same) = found
    assert parts == same == [2, 2, 1, 1] and counted == [6, 2, 2, 2]
    for name in ("norms", "curves"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("sums", "rows", "last_gradient"):
        if getattr(one, name) is not None:
            assert torch.equal(getattr(one, name)[:], getattr(other, name)[:])
    np.testing.assert_array_equal(one.local["test"].loss, other.local["test"].loss)
