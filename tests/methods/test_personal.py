"""Columns that clients keep: stored, started from, trained, written back, never sent, and what no cut changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from federations import (
    OPTIONS,
    Residual,
    changed,
    cnn,
    engine,
    first_layer_on,
    images,
    mlp,
    norm_and_dropout,
    slow_but,
    uneven,
)
from test_contract import SIZES, numbers, same

from clusterfl.engine import dense
from clusterfl.engine import engine as engine_module
from clusterfl.engine.personal import Columns, Personal
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.checkpoint import Unfinished
from clusterfl.pipeline.stages.common import arrays, keeping, read_state, resumed
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method
from clusterfl.simulation.record import Record
from clusterfl.storage.row_store import RowStore
from clusterfl.storage.store import write_tensors

FORMS = {
    "dense": (mlp, lambda: uneven(SIZES), ("3.weight", "3.bias")),
    "dense, first layer": (mlp, lambda: uneven(SIZES), ("1.weight",)),
    "stacked": (Residual, lambda: uneven(SIZES), ("last.weight",)),
    "loop": (cnn, images, ("4.weight", "4.bias")),
    "batch normalisation": (
        norm_and_dropout, images,
        ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"),
    ),
}  # fmt: skip
EVERYTHING = ["aggregated", "local", "stale", "personalised"]


@dataclass(frozen=True, kw_only=True)
class Keeping(Method):
    """FedAvg in which clients keep some tensors; None: all of them."""

    names: tuple[str, ...] | None = None

    def keeps(self, context):
        return tuple(context.tensors) if self.names is None else self.names


def run(method, used, **how):
    return loop.run(method, loop.context(used), used, **how)


def accuracies_of_planted_groups(*methods):
    """Yield, for five seeds, the methods' last accuracies and FedAvg's where two groups follow opposite rules."""
    for seed in range(5):
        with engine(federation=uneven((60,) * 8, seed=seed, tests=40), rounds=30, seed=seed) as used:
            found = []
            for method in (*methods, METHODS["fedavg"]()):
                history = Record.table(run(method, used)[1].history)
                last = (history["round"] == 30) & (history["split"] == "test")
                found.append(history["correct"][last].sum() / history["n"][last].sum())
        yield found


def assert_a_newcomer_has_the_common_model(method):
    with engine(rounds=2, evaluations=["aggregated", "newcomer"], newcomers=uneven((12, 14), seed=1)) as used:
        state, record = run(method, used)
        scores = used.own_scores(state.theta, np.zeros(2, np.int64), np.arange(2), "newcomer.test")
    history = Record.table(record.history)
    rows = (history["evaluation"] == "newcomer") & (history["round"] == 2)
    np.testing.assert_array_equal(history["loss"][rows], scores.loss)


def test_columns_are_neighbours_joined():
    tensors = {"a": slice(0, 2), "b": slice(2, 3), "c": slice(3, 7), "d": slice(7, 8)}
    columns = Columns.of(tensors, ["d", "b", "a"])
    assert columns.bounds.tolist() == [[0, 3], [7, 8]] and len(columns) == 4
    rows = torch.arange(16.0).view(2, 8)
    assert columns.taken(rows).tolist() == [[0, 1, 2, 7], [8, 9, 10, 15]]
    assert columns.meet(slice(2, 5)) and columns.meet(slice(7, 9)) and not columns.meet(slice(3, 7))
    columns.put(rows, -torch.ones(2, 4))
    assert rows.tolist() == [[-1, -1, -1, 3, 4, 5, 6, -1], [-1, -1, -1, 11, 12, 13, 14, -1]]
    columns.clear(rows[:, :7])
    assert rows[0].tolist() == [0, 0, 0, 3, 4, 5, 6, -1]
    assert len(Columns.of(tensors, [])) == 0 and Columns.of(tensors, []).slices == []


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], FORMS))
def test_without_kept_columns_it_is_fedavg(form):
    factory, federation, _ = FORMS[form]
    found = []
    for method in (Keeping(names=()), Method()):
        with engine(factory, federation(), rounds=3, epochs=1, evaluations=EVERYTHING) as used:
            found.append(numbers(*run(method, used)))
    assert "personal" not in found[0]
    same(*found)


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], FORMS))
def test_with_all_columns_kept_it_is_local_training(form):
    """Bit for bit, in every evaluation; nothing is sent, and the server's model stays as it began."""
    factory, federation, _ = FORMS[form]
    settings = {"rounds": 3, "epochs": 1, "participation": 0.6, "weights": "uniform", "evaluations": EVERYTHING}
    with engine(factory, federation(), **settings) as used:
        state, record = run(Keeping(), used)
        other, local = run(METHODS["local"](), used)
    assert torch.equal(state.personal.rows[:], other.theta[:])
    assert torch.equal(state.theta[0], used.initial(0))
    one, two = (Record.table(r.history) for r in (record, local))
    for name in ("round", "client", "split", "evaluation", "n", "correct", "loss"):
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    rounds = Record.table(record.rounds)
    assert not rounds["bytes_up"].any() and not rounds["bytes_down"].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", slow_but(["all"], ["plain", "all", "adam, proximal, decay"]))
def test_it_is_the_slow_obvious_loop(form, options):
    """Each client alone on a model put together by hand; kept columns go back to it, the rest to the mean."""
    factory, federation, names = FORMS[form]
    settings = OPTIONS[options] | {"rounds": 3, "participation": 0.6, "epochs": 2}
    sent = []
    with engine(factory, federation(), **settings) as used:
        watched = {"needs": frozenset({"updates"}), "observe": lambda r, s, update: sent.append(update.rows[:].clone())}
        state, record = run(Keeping(names=names), used, **watched)
        context, sizes, m = loop.context(used), used.federation.splits["train"].sizes, used.federation.clients
        kept = np.concatenate([np.arange(used.layout.columns)[context.tensors[name]] for name in names])
        theta, own, count = used.initial(0), used.initial(0)[kept].repeat(m, 1), np.zeros(m, dtype=np.int64)
        for round_ in (1, 2, 3):
            clients, changes = Method().sample(context, state, round_), []
            for client in clients:
                begun = theta.clone()
                begun[kept] = own[client]
                alone = used.train(
                    begun[None], np.array([0]), np.array([client]), round_, needs=frozenset({"updates"}),
                    participations=count[[client]],
                )  # fmt: skip
                changes.append(alone.rows[0].double())
                own[client] = (begun.double() + changes[-1]).float()[kept]
                changes[-1][kept] = 0
                count[client] += 1
            share = torch.as_tensor(sizes[clients] / sizes[clients].sum())
            torch.testing.assert_close(sent[round_ - 1].double(), torch.stack(changes), rtol=1e-4, atol=1e-5)
            assert not sent[round_ - 1][:, kept].any()
            theta = (theta.double() + (share[:, None] * torch.stack(changes)).sum(0)).float()
        torch.testing.assert_close(state.theta[0], theta, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.personal.rows[:], own, rtol=1e-4, atol=1e-5)
        assert torch.equal(state.theta[0][kept], used.initial(0)[kept])
        models = theta.repeat(m, 1)
        models[:, kept] = own
        expected = used.own_scores(models, np.arange(m), np.arange(m), "test")
    history = Record.table(record.history)
    last = (history["round"] == 3) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss, rtol=1e-4, atol=1e-5)
    rounds, size = Record.table(record.rounds), 4 * (used.layout.columns - len(kept))
    assert (rounds["bytes_up"] == size * len(clients)).all() and (rounds["bytes_down"] == size * len(clients)).all()


@pytest.mark.parametrize("names", [("1.weight", "3.bias"), ("3.weight",)])
@pytest.mark.parametrize("towards", ["start", "given"])
def test_first_layers_of_their_own_in_the_coordinates_of_the_data(names, towards, monkeypatch):
    """Four clients at once, since nine to twelve samples all count as twelve: each begins with its own values."""
    first_layer_on("on data", monkeypatch)
    chunks, train_chunk, found = [], dense.train_chunk, []
    monkeypatch.setattr(
        dense, "train_chunk", lambda worker, task: chunks.append(len(task)) or train_chunk(worker, task)
    )
    settings = {"federation": uneven((10, 11, 9, 12)), "batch_size": 5, "momentum": 0.5, "proximal": 0.5}
    for backend in ("loop", "dense"):
        with engine(backend=backend, **settings) as used:
            columns, clients = Columns.of(loop.context(used).tensors, names), np.arange(4)
            theta = torch.stack([used.initial(0), used.initial(1)])
            kept = Personal(columns, torch.stack([columns.taken(used.initial(2 + i)) for i in clients]), sent=True)
            given = {"personal": kept, "towards": towards, "needs": frozenset({"updates", "curves"})}
            update = used.train(theta, clients // 2, clients, **given)
            found.append((update.rows[:], kept.rows, torch.as_tensor(update.curves)))
    assert chunks == [4]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("form", slow_but(["dense"], FORMS))
def test_no_bit_depends_on_the_cut_or_on_where_it_lies(form, monkeypatch):
    factory, federation, names = FORMS[form]
    settings = {"rounds": 3, "epochs": 1, "participation": 0.6, "evaluations": EVERYTHING}

    def whole(**cut):
        with engine(factory, federation(), **settings, **cut) as used:
            state, record = run(Keeping(names=names), used)
            return state, numbers(state, record)

    monkeypatch.setattr(engine_module, "PARTS", 1)  # so that few clients, too, are trained in chunks of several
    first = whole()[1]
    found = [whole(chunk=1)[1], whole(chunk=2, workers=2)[1]]
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
    for cut in ({}, {"workers": 2}):
        state, other = whole(**cut)
        assert isinstance(state.personal.rows, RowStore)
        found.append(other)
    for other in found:
        same(first, other)


@pytest.mark.parametrize("on_disk", [False, True])
def test_it_is_resumed(on_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1 if on_disk else 1 << 30)
    method, settings = Keeping(names=FORMS["dense"][2]), {"rounds": 4, "participation": 0.4, "evaluations": EVERYTHING}

    def keep(checkpoint):
        keeping(Unfinished(tmp_path / str(checkpoint.round), seconds=0))(checkpoint)

    with engine(federation=uneven(SIZES), **settings) as used:
        state, record = run(method, used, save=keep)
        whole = numbers(state, record)
    for round_ in (1, 2, 3):
        with engine(federation=uneven(SIZES), **settings) as used:
            there = resumed(Unfinished(tmp_path / str(round_)))
            assert isinstance(there.state.personal.rows, RowStore) == on_disk
            same(whole, numbers(*run(method, used, resume=there)))
    write_tensors(tmp_path / "models.safetensors", arrays(state, optimizers=False))
    same(numbers(read_state(tmp_path / "models.safetensors"), record), whole)


def test_clients_keep_their_own_rows_of_what_was_trained():
    """Of clients 0, 2 and 3 the second one's update is left out."""
    personal = Personal(Columns(np.array([[0, 1]])), torch.zeros(4, 1))
    personal.keep(np.array([0, 2, 3]), torch.tensor([[1.0], [2.0], [3.0]]), np.array([True, False, True]))
    assert personal.rows[:, 0].tolist() == [1, 0, 0, 3]


def test_an_update_that_is_left_out_leaves_what_its_client_keeps():
    """Also one whose kept columns alone diverge: they count as much as what is sent."""
    with engine(largest_update=1e3) as used:
        tensors = loop.context(used).tensors
        columns = Columns.of(tensors, ["3.weight", "3.bias"])
        clients, theta = np.arange(6), used.initial(0)[None]
        kept = Personal(columns, columns.taken(theta).repeat(6, 1))
        before = kept.rows.clone()
        factors = np.array([1, np.nan, 1, 1e9, 1, 1])
        update = used.train(theta, 0 * clients, clients, factors=factors, personal=kept)
        assert np.flatnonzero(update.dropped).tolist() == [1, 3]
        moved = (kept.rows != before).any(dim=1)
        assert moved.tolist() == [True, False, True, False, True, True]
    with engine(learning_rate=1e6, largest_update=1e3) as used:
        whole = Columns.of(tensors, tensors)
        kept = Personal(whole, theta.repeat(6, 1))
        update = used.train(theta, 0 * clients, clients, personal=kept)
        assert update.dropped.all() and torch.equal(kept.rows, theta.repeat(6, 1))


def test_norms_are_of_what_is_sent_and_kept():
    with engine() as used:
        clients, theta = np.arange(6), used.initial(0)[None]
        columns = Columns.of(loop.context(used).tensors, ["3.weight"])
        plain = used.train(theta, 0 * clients, clients)
        parted = used.train(theta, 0 * clients, clients, personal=Personal(columns, columns.taken(theta).repeat(6, 1)))
        cut = used.train(
            theta, 0 * clients, clients, needs=frozenset({"updates", "last_gradient"}), clip=0.01,
            personal=Personal(columns, columns.taken(theta).repeat(6, 1)),
        )  # fmt: skip
    np.testing.assert_allclose(parted.norms, plain.norms, rtol=1e-6)
    # Clipping shortens what is sent alone, and by that alone is decided then who is left out.
    np.testing.assert_allclose(torch.linalg.vector_norm(cut.rows[:], dim=1), 0.01, rtol=1e-5)
    np.testing.assert_allclose(cut.norms, 0.01, rtol=1e-5)
    assert not columns.taken(cut.last_gradient[:]).any() and cut.last_gradient[:].any()


def test_losses_of_several_models_are_those_with_the_clients_own_columns():
    """What an assignment by losses would see."""
    with engine() as used:
        theta = torch.stack([used.initial(k) for k in range(3)])
        columns = Columns.of(loop.context(used).tensors, ["3.weight", "3.bias"])
        own = torch.randn(6, len(columns), generator=torch.Generator().manual_seed(0))
        found = used.losses(theta, np.array([1, 4]), personal=Personal(columns, own))
        for i, client in enumerate((1, 4)):
            models = theta.clone()
            columns.put(models, own[client].expand(3, -1))
            np.testing.assert_array_equal(found[i], used.losses(models, np.array([client]))[0])


def test_clients_without_a_model_begin_with_the_initial_one():
    def unlabelled(old, context):
        state = old(context)
        state.labels[:3] = -1
        state.theta += 1
        return state

    method = changed(Keeping(names=("3.bias",)), begin=unlabelled)
    with engine(rounds=0) as used:
        state, _ = run(method, used)
        begun = used.initial(0)[loop.context(used).tensors["3.bias"]]
    assert torch.equal(state.personal.rows[:3], begun.expand(3, -1))
    assert torch.equal(state.personal.rows[3:], begun.expand(3, -1) + 1)


def test_averaging_gradients_is_refused():
    with (
        engine(average="gradients", batch_size="full", steps=1) as used,
        pytest.raises(UserError, match=r"training\.average: 'gradients' .* allowed: models"),
    ):
        run(Keeping(names=("3.bias",)), used)


def test_noise_is_on_what_is_sent():
    """Kept columns of the model stay as they begin; the others get the noise that they get without kept ones."""
    privacy = Privacy(clip=0.1, epsilon=4, delta=1e-3, accounting="replace-one")
    settings = {"rounds": 1, "epochs": 1, "weights": "uniform", "learning_rate": 1e-12}
    rows = []
    for names in (("3.weight", "3.bias"), ()):
        with engine(federation=uneven(SIZES), **settings) as used:
            method = wrap(Keeping(names=names), "keeping", None, privacy)
            state, _ = run(method, used)
            rows.append(state.theta[0] - used.initial(0))
    assert not method.places or not names
    kept = Columns.of(loop.context(used).tensors, ["3.weight", "3.bias"])
    assert not kept.taken(rows[0]).any()
    expected = rows[1].clone()
    kept.clear(expected)
    assert expected.any()
    torch.testing.assert_close(rows[0], expected, rtol=0, atol=1e-6)


def test_no_ones_columns_are_for_a_newcomer():
    assert not Keeping().places and Method().places
    assert not wrap(Keeping(), "keeping", None, Privacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)).places
    assert not replace(Keeping(), names=()).places  # by its kind: whether it keeps any isn't asked
