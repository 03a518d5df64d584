"""The fast form against the slow, obvious one, and the promise that no bit depends on how work is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, uneven
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.engine import work
from clusterfl.engine.modules import find_device
from clusterfl.engine.personal import Columns, Personal
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.storage.row_store import RowStore


def trained(used, needs=frozenset({"updates", "curves", "last_gradient"}), clients=None, **options):
    clients = np.arange(used.federation.clients) if clients is None else clients
    theta = torch.stack([used.initial(0), used.initial(1)])
    start = clients % 2
    options = {"participations": np.arange(used.federation.clients)[clients]} | options
    return used.train(theta, start, clients, 4, needs=needs, score=("test",), **options)


def test_streamed_sums_equal_kept_updates():
    """Summing while streaming and summing kept rows afterwards give the same bits, and the sum of the rows."""
    with engine(chunk=2) as used:
        clients = np.arange(6)
        weights = np.array([1.0, 2, 3, 4, 5, 6])
        target = np.array([0, 1, 1, 0, 1, 0])
        streamed = trained(used, frozenset(), target=target, weights=weights)
        kept = trained(used)
        again = used.reduce(kept, target, weights, 2)
    assert streamed.rows is None
    assert torch.equal(streamed.sums, again)
    by_hand = torch.stack([sum(weights[i] * kept.rows[i].double() for i in clients if target[i] == k) for k in (0, 1)])
    torch.testing.assert_close(again, by_hand)


@pytest.mark.parametrize("columns", [work.SHORT - 1, work.SHORT])
def test_sums_are_those_of_the_slow_loop_whatever_the_length(columns):
    """In both ways to add up: each update times its weight in its target's sum, without those that are left out."""
    delta = torch.randn(6, columns, generator=torch.Generator().manual_seed(0))
    delta[2] = torch.nan
    target, weight, out = np.array([3, 1, 3, 1, 3, 5]), np.array([2.0, 3, 5, 7, 11, 13]), np.arange(6) % 3 == 2
    sums = {1: torch.ones(columns, dtype=torch.float64)}
    work.add_up(sums, delta.clone(), target, weight, out)
    rows = delta.double()
    expected = {1: 1 + 3 * rows[1] + 7 * rows[3], 3: 2 * rows[0] + 11 * rows[4]}
    assert sums.keys() == expected.keys()
    for k, row in expected.items():
        torch.testing.assert_close(sums[k], row, rtol=1e-12, atol=1e-12)


def test_order_of_rows_changes_no_bit():
    """Samples shuffled within the file give the same federation for every client set, so results need sorted input."""
    federation = uneven()
    data = federation.splits["train"]
    client = np.repeat(np.arange(6), data.sizes)
    # Clients' blocks in another order; samples inside a client keep theirs (the partition file sorts by sample).
    order = np.argsort((client * 7) % 6, kind="stable")
    shuffled = Federation.from_arrays(samples_of(data)[order], data.y[order], client[order])
    plain = Federation.from_arrays(samples_of(data), data.y, client)
    results = []
    for given in (plain, shuffled):
        with engine(federation=given) as used:
            results.append(used.train(used.initial(0)[None], np.zeros(6, int), np.arange(6)).sums)
    assert torch.equal(*results)


def test_padding_is_inert():
    """A client's result is the same whether the chunk pads it for larger neighbours or not, and NaN in data it
    doesn't own can't reach it."""
    federation = uneven()
    x = samples_of(federation.splits["train"])
    broken = federation.splits["train"].offsets[5]
    with engine(federation=federation, backend="stacked", batch_size="full", epochs=2) as used:
        before = trained(used, clients=np.arange(5)).rows
        x[broken:] = np.nan  # client 5, who does not take part
        assert torch.equal(trained(used, clients=np.arange(5)).rows, before)


def test_one_step_by_hand():
    """y = w x + b on one sample (x = 2, y = 3) from w = b = 0: loss 9, gradient (-12, -6), step .1 -> (1.2, .6)."""
    federation = Federation.from_arrays([[2.0]], [3.0], [0])
    for backend in ("loop", "stacked", "dense"):
        with engine(lambda: nn.Linear(1, 1), federation, backend=backend, epochs=1) as used:
            update = used.train(
                torch.zeros(1, 2), np.array([0]), np.array([0]), needs=frozenset({"updates", "curves", "last_gradient"})
            )
            torch.testing.assert_close(update.rows, torch.tensor([[1.2, 0.6]]))
            torch.testing.assert_close(update.last_gradient, torch.tensor([[-12.0, -6.0]]))
            assert update.curves.tolist() == [[9.0]]
            assert used.losses(torch.tensor([[1.0, 0.0]]), np.array([0])) == [[1.0]]  # (3 - 2)^2


def test_proximal_term_by_hand():
    """Two steps on the same sample, mu = 1: the second gradient has w - w_start = (1.2, .6) added.

    At (1.2, .6) the prediction is 3, so the loss' gradient is 0 and the step is -.1 x (1.2, .6).
    """
    federation = Federation.from_arrays([[2.0]], [3.0], [0])
    for backend in ("loop", "stacked", "dense"):
        with engine(lambda: nn.Linear(1, 1), federation, backend=backend, epochs=2, proximal=1.0) as used:
            update = used.train(torch.zeros(1, 2), np.array([0]), np.array([0]), needs=frozenset({"updates"}))
        torch.testing.assert_close(update.rows, torch.tensor([[1.08, 0.54]]))


def odd():
    """A module whose activation PyTorch computes in another way for a tensor's last numbers, here 16 for 16 samples."""
    return nn.Sequential(nn.Linear(5, 11), nn.SiLU(), nn.Linear(11, 3))


@pytest.mark.parametrize(
    "factory, federation", [(cnn, images(clients=9, samples=70)), (odd, uneven((16,) * 9))], ids=["cnn", "odd"]
)
def test_losses_of_a_client_do_not_depend_on_the_others(factory, federation):
    with engine(factory, federation) as used:
        theta = torch.stack([used.initial(k) for k in range(4)])
        together = used.losses(theta, np.arange(9))
        for i in range(9):
            np.testing.assert_array_equal(used.losses(theta, np.array([i]))[0], together[i])


def test_clients_without_test_samples_score_nan_and_count_nothing():
    federation = Federation.from_arrays(np.ones((3, 2)), [0, 1, 1], [0, 1, 1], ["train", "train", "test"])
    with engine(lambda: nn.Linear(2, 2), federation) as used:
        scores = used.own_scores(used.initial(0)[None], np.array([0, 0]), np.array([0, 1]), "test")
    assert scores.n.tolist() == [0, 1]
    assert np.isnan(scores.correct[0]) and np.isfinite(scores.loss[1])


@pytest.mark.parametrize("most", [32, 1 << 18])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("labels", [range(7), [1, 0, 1, 1, 0, 2, 0]])
@pytest.mark.parametrize("keeps", [False, True])
def test_scores_of_own_models_are_those_of_each_alone(most, outputs, labels, keeps, monkeypatch):
    monkeypatch.setattr("clusterfl.engine.worker.FORWARD_ROWS", (32, most))
    sizes, rng = [3, 40, 0, 25, 7, 100, 32], np.random.default_rng(0)
    clients, n = np.arange(7), 7 + sum(sizes)
    x, y = rng.normal(size=(n, 5)), rng.integers(0, 3, n) if outputs > 1 else rng.normal(size=n)
    split = ["train"] * 7 + ["test"] * sum(sizes)
    federation = Federation.from_arrays(x, y, np.concatenate([clients, np.repeat(clients, sizes)]), split)
    labels, data = np.array(labels), federation.splits["test"]
    module, everything = mlp(classes=outputs), torch.as_tensor(samples_of(data)).float()
    with engine(lambda: mlp(classes=outputs), federation) as used:
        theta = torch.stack([used.initial(k) for k in range(7)])
        columns = Columns(np.array([[3, 8], [20, theta.shape[1]]]))
        personal = Personal(columns, torch.randn(7, len(columns))) if keeps else None
        found = used.own_scores(theta, labels, clients, "test", personal)
        models = theta[labels] if personal is None else personal.into(theta[labels], clients)
        alone = [used.scores(models[[i]], np.array([i]), "test") for i in clients]
    np.testing.assert_array_equal(found.loss, [scores.loss[0, 0] for scores in alone])
    np.testing.assert_array_equal(found.correct, [scores.correct[0, 0] for scores in alone])
    for i in clients:
        own = slice(*data.offsets[i : i + 2].tolist())
        if own.start == own.stop:
            assert np.isnan(found.loss[i]) and np.isnan(found.correct[i])
            continue
        used.worker.layout.load(module, models[i])
        made, target = module(everything[own]).detach(), torch.as_tensor(data.y[own])
        loss = nn.functional.cross_entropy(made, target) if outputs > 1 else (made[:, 0] - target).square().mean()
        assert found.loss[i] == pytest.approx(float(loss), rel=1e-5)
        if outputs > 1:
            assert found.correct[i] == int((made.argmax(1) == target).sum())


def test_initial_models_come_from_their_streams():
    with engine(seed=1) as one, engine(seed=2) as two:
        torch.manual_seed(5)
        first = one.initial(0)
        torch.manual_seed(6)
        assert torch.equal(one.initial(0), first)
        assert not torch.equal(one.initial(1), first)
        assert not torch.equal(two.initial(0), first)
        state = torch.random.get_rng_state()
        one.initial(0)
        assert torch.equal(torch.random.get_rng_state(), state)  # the caller's generator is left alone


def test_backend_rule_says_why():
    with engine() as linear, engine(cnn, images()) as convolution, engine(norm_and_dropout, images()) as norm:
        assert (linear.backend, convolution.backend, norm.backend) == ("dense", "loop", "loop")
        assert norm.reason.startswith("convolutions on a CPU")
    with pytest.raises(UserError, match=r"backend: stacked isn't possible: its buffer"):
        engine(norm_and_dropout, images(), backend="stacked")


class Drawing(nn.Linear):
    """Draws in training through a function, where no layer shows it."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class Mixing(nn.Linear):
    """Lets the samples of a batch influence one another, so padding would not be inert."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize(
    "factory, reason", [(Drawing, "torch.func can't differentiate it"), (Mixing, "influence one another")]
)
def test_models_without_a_stacked_form_are_noticed(factory, reason):
    with engine(lambda: factory(5, 3)) as used:
        assert used.backend == "loop" and reason in used.reason
        again = trained(used)
    with engine(lambda: factory(5, 3), chunk=1) as used:  # what a module draws comes from its client's stream
        assert torch.equal(trained(used).rows, again.rows)


def test_batch_norm_buffers_travel_with_the_model():
    with engine(norm_and_dropout, images()) as used:
        layout = used.layout
        assert layout.columns - layout.parameter_columns == 4 + 4 + 1  # mean, variance, counter
        update = trained(used)
        assert (update.rows[:, -1] == update.steps).all()  # the counter of batches seen


def test_models_that_do_not_fit_are_reported():
    with pytest.raises(UserError, match="can't take samples of shape"):
        engine(lambda: nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"3 classes need \(2, 3\)"):
        engine(lambda: nn.Linear(5, 2))
    with pytest.raises(UserError, match="no CUDA device"):
        from clusterfl.engine.engine import Engine

        Engine(mlp, uneven(), Training(), device="cuda:7")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="'cuda:7' asked for, but torch finds only cuda:0 to cuda:1"):
        find_device("cuda:7")


def test_a_module_instance_is_initialised_again():
    with engine(mlp()) as used:
        assert not torch.equal(used.initial(0), used.initial(1))

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5, 3))

        def forward(self, x):
            return x @ self.scale

    with pytest.raises(UserError, match="no reset_parameters"):
        engine(Own())
    with engine(Own) as used:  # a class is fine: it makes its own values
        assert used.backend == "stacked"


def test_large_arrays_lie_in_a_file_and_have_the_same_bits(monkeypatch):
    clients, weights = np.arange(6), np.arange(1.0, 7.0)
    with engine() as used:
        kept, streamed = trained(used), trained(used, needs=frozenset(), weights=weights)
    with engine() as used:
        monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
        update, sums = trained(used), trained(used, needs=frozenset(), weights=weights).sums
        assert isinstance(update.rows, RowStore) and isinstance(sums, RowStore) and sums.dtype == torch.float64
        assert torch.equal(update.rows[:], kept.rows)
        assert torch.equal(update.last_gradient[:], kept.last_gradient)
        assert torch.equal(sums[:], streamed.sums)
        assert torch.equal(used.reduce(update, clients % 2, weights, 2)[:], streamed.sums)
