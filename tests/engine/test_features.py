"""What goes into a head: where it is, pulled by hand, in all forms as in the slow loop, gathered, fixed tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, noise, norm_and_dropout, slow_but, uneven
from torch import nn

from clusterfl.engine import batches
from clusterfl.engine import engine as engine_module
from clusterfl.engine.features import Features, Head, Moments, find
from clusterfl.engine.modules import Sum
from clusterfl.engine.personal import Columns
from clusterfl.models.clove import textcnn
from clusterfl.models.rr import char_lstm

FORMS = {
    "dense": (mlp, uneven, "dense"),
    "dense, on data": (lambda: mlp(features=400), lambda: uneven((12, 10, 14), features=400), "dense"),
    "dense, of a sum": (lambda: Sum([mlp(), mlp()]), uneven, "dense"),  # features are the last network's alone
    "stacked": (Residual, uneven, "stacked"),
    "loop": (cnn, images, "loop"),
    "dense as loop": (mlp, uneven, "loop"),
}
NAMES = {"mlp": ("3.weight", "3.bias"), "residual": ("last.weight",), "cnn": ("4.weight", "4.bias")}


def centres(used, missing=1, seed=0):
    """Return random centres, one class without."""
    draws = torch.Generator().manual_seed(seed)
    found = torch.randn(used.federation.classes, used.worker.head.features, generator=draws)
    found[missing] = torch.nan
    return found


def trained(used, features=None, **how):
    m = used.federation.clients
    start = np.zeros(m, dtype=np.int64)
    needs = frozenset({"updates", "curves"})
    return used.train(used.initial(0)[None], start, np.arange(m), 2, needs=needs, features=features, **how)


def test_the_head_is_the_last_linear_layer():
    assert find(mlp(), torch.zeros(2, 5)) == Head("3", ("3.weight", "3.bias"), 8)
    assert find(cnn(), torch.zeros(2, 1, 8, 8)) == Head("4", ("4.weight", "4.bias"), 64)
    assert find(Residual(), torch.zeros(2, 5)) == Head("last", ("last.weight",), 8)
    assert find(textcnn((9,), 4), torch.zeros(2, 9, dtype=torch.int64)).features == 300
    assert find(char_lstm((9,), 4), torch.zeros(2, 9, dtype=torch.int64)).name
    module = mlp()
    find(module, torch.zeros(2, 5))
    assert not any(part._forward_pre_hooks for part in module.modules())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.again(self.again(self.first(x)))


@pytest.mark.parametrize(
    "module, why",
    [
        (nn.Linear(5, 3), "its only one, and features would be the samples themselves"),
        (nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), "'1', is LayerNorm, not a linear one"),
        (nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 2), nn.Linear(2, 2), nn.Flatten()), "not a linear one"),
        (nn.Flatten(), "is NoneType"),
        (Twice(), "'again', is used more than once"),
    ],
)
def test_why_a_network_has_none(module, why):
    assert why in find(module, torch.zeros(2, 5))


def test_a_pulled_step_by_hand():
    """Model b max(a x, 0) for two classes, x = 1, a = 1, b = (0, 0), class 0, whose centre is 3; pull 1/2.

    Cross-entropy's gradient of b is (-1/2, 1/2) times f = 1; of f it is 0, for b is. The pull's of f is
    2 x 1/2 (1 - 3) = -2: with rate 1/10 a = 1.2, b = (.05, -.05).
    """

    def two():
        module = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False))
        nn.init.ones_(module[1].weight)
        nn.init.zeros_(module[3].weight)
        return module

    data = noise((2,), features=1, outputs=2)
    data.splits["train"].pool.x[:], data.splits["train"].y[:] = 1, 0
    for form in ("dense", "stacked", "loop"):
        with engine(two, data, backend=form, steps=1, epochs=None, batch_size="full", learning_rate=0.1) as used:
            used.factory = two
            found = trained(used, Features(torch.tensor([[3.0], [torch.nan]]), pull=0.5))
        torch.testing.assert_close(found.rows[0], torch.tensor([0.2, 0.05, -0.05]))
        assert found.curves[0, 0] == pytest.approx(np.log(2))  # of the data alone


@pytest.mark.parametrize("form", slow_but(["dense", "dense, of a sum", "stacked", "loop"], FORMS))
@pytest.mark.parametrize("options", slow_but(["all"], ["plain", "all", "adam"]))
def test_it_is_the_slow_obvious_loop(form, options):
    """A module, a torch optimiser, and features as the module's parts before its head give them."""
    factory, federation, backend = FORMS[form]
    own = OPTIONS[options] | {"epochs": 2, "schedule": "constant", "decay": 1.0, "learning_rate": 0.05}
    with engine(factory, federation(), backend=backend, **own) as used:
        head, split, data = used.worker.head, used.federation.splits["train"], used.worker.data["train"]
        wanted, training = centres(used), used.training
        found = trained(used, Features(wanted, pull=2.0, gather="moving"))
        after = trained(used, Features(wanted, pull=2.0, gather="trained"))
        for i in range(used.federation.clients):
            module = used.factory()
            used.layout.load(module, used.initial(0))
            start = [p.detach().clone() for p in module.parameters()]
            given, sums = [], Moments.none(1, used.federation.classes, head.features)
            module.get_submodule(head.name).register_forward_pre_hook(lambda _, x, seen=given: seen.append(x[0]))
            groups = used.layout.groups(module, training.weight_decay)
            kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.SGD
            more = {} if training.optimizer == "adam" else {"momentum": training.momentum}
            optimizer = kind(groups, lr=0.05, **more)
            for batch in batches.schedule(used.seed, np.array([i]), split.sizes[[i]], 2, training)[0]:
                places = torch.as_tensor(batch[batch >= 0] + split.offsets[i])
                y = data.y[places].long()
                loss = nn.functional.cross_entropy(module(data.take(places)), y)
                for f, k in zip(given[-1], y.tolist(), strict=True):
                    if k != 1:
                        loss = loss + 2.0 * ((f - wanted[k]) ** 2).mean() / len(y)
                sums.add(0, given[-1][None], y[None], torch.ones_like(y)[None])
                optimizer.zero_grad()
                loss.backward()
                for p, begun in zip(module.parameters(), start, strict=True):
                    p.grad.add_(p.detach() - begun, alpha=training.proximal)
                optimizer.step()
            change = used.layout.flatten(module) - used.initial(0)
            torch.testing.assert_close(found.rows[i], change, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(found.moments.counts[i], sums.counts[0])
            torch.testing.assert_close(found.moments.sums[i], sums.sums[0], rtol=1e-3, atol=1e-4)
            places = torch.arange(*split.offsets[i : i + 2].tolist())
            module.eval()
            with torch.no_grad():
                module(data.take(places))
            y, last = data.y[places].long(), given[-1].double()
            expected = torch.stack([last[y == k].sum(0) for k in range(used.federation.classes)])
            torch.testing.assert_close(after.moments.sums[i], expected, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(after.moments.squares[i], last.square().sum(), rtol=1e-3, atol=1e-4)
    assert torch.equal(found.rows[:], after.rows[:])


@pytest.mark.parametrize("form", FORMS)
def test_without_a_pull_nothing_changes(form):
    """To the bit, whether features are gathered or not; centres that are all missing pull nowhere."""
    factory, federation, backend = FORMS[form]
    with engine(factory, federation(), backend=backend, epochs=1) as used:
        plain = trained(used)
        none = torch.full_like(centres(used), torch.nan)
        for features in (Features(gather="moving"), Features(centres(used), 0.0, "trained"), Features(none, 1.0)):
            found = trained(used, features)
            assert torch.equal(found.rows[:], plain.rows[:])
            np.testing.assert_array_equal(found.curves, plain.curves)


@pytest.mark.parametrize("form", slow_but(["dense", "loop"], FORMS))
@pytest.mark.parametrize("gather", ["moving", "trained"])
def test_no_bit_depends_on_the_cut(form, gather, monkeypatch):
    factory, federation, backend = FORMS[form]
    monkeypatch.setattr(engine_module, "PARTS", 1)
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(factory, federation(), backend=backend, epochs=1, **cut) as used:
            update = trained(used, Features(centres(used), 1.0, gather, predicts=True), score=["test"])
            found.append(
                (
                    update.rows[:],
                    *vars(update.moments).values(),
                    *map(torch.as_tensor, vars(update.local["test"]).values()),
                )
            )
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", ["plain", "all"])
def test_fixed_tensors_stay_and_the_others_train_as_if_alone(form, options):
    """The head fixed, or everything before it; a step of plain descent is the whole step's part."""
    factory, federation, backend = FORMS[form]
    with engine(factory, federation(), backend=backend, **(OPTIONS[options] | {"epochs": 2})) as used:
        columns = {name: part for name, _, part in used.layout.slices()}
        head = frozenset(used.worker.head.tensors)
        for fixed in (head, frozenset(columns) - head):
            found = trained(used, fixed=fixed).rows[:]
            for name, part in columns.items():
                assert found[:, part].any() == (name not in fixed), name
    if options == "plain":
        with engine(factory, federation(), backend=backend, epochs=None, steps=1) as used:
            both = [trained(used, fixed=fixed).rows[:] for fixed in (head, frozenset(columns) - head)]
            torch.testing.assert_close(both[0] + both[1], trained(used).rows[:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["dense", "stacked", "loop"])
def test_fixed_tensors_have_no_last_gradient(form):
    """The others have the gradient of a step of all."""
    factory, federation, backend = FORMS[form]
    with engine(factory, federation(), backend=backend, epochs=None, steps=1) as used:
        ids, head = np.arange(used.federation.clients), frozenset(used.worker.head.tensors)
        given = {"needs": frozenset({"last_gradient"})}
        whole, found = (
            used.train(used.initial(0)[None], 0 * ids, ids, fixed=fixed, **given).last_gradient[:]
            for fixed in (frozenset(), head)
        )
        expected = whole.clone()
        Columns.of({name: part for name, _, part in used.layout.slices()}, head).clear(expected)
    assert expected.any(dim=1).all() and not torch.equal(expected, whole)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("network", [(mlp, uneven), (cnn, images), (norm_and_dropout, images)])
def test_what_is_nearest_and_sums_on_a_given_model(network):
    factory, federation = network
    with engine(factory, federation()) as used:
        m, module, wanted = used.federation.clients, used.factory(), centres(used)
        used.layout.load(module, used.initial(0))
        given = []
        module.get_submodule(used.worker.head.name).register_forward_pre_hook(lambda _, x: given.append(x[0]))
        module.eval()
        theta, start = used.initial(0)[None], np.zeros(m, dtype=np.int64)
        scores, plain = (
            used.own_scores(theta, start, np.arange(m), "test", nearest=nearest) for nearest in (wanted, None)
        )
        moments, data = used.moments(theta, start, np.arange(m)), used.worker.data
        for i in range(m):
            for split in ("test", "train"):
                places = torch.arange(*used.federation.splits[split].offsets[i : i + 2].tolist())
                with torch.no_grad():
                    module(data[split].take(places))
                y = data[split].y[places].long()
                if split == "test":
                    away = (given[-1][:, None] - wanted[None]).square().mean(2).nan_to_num(torch.inf)
                    assert scores.correct[i] == (away.argmin(1) == y).sum()
                    rows = used.federation.splits[split].offsets[i] + np.arange(len(places))
                    assert used.correct(theta[0], split, rows, wanted).sum() == scores.correct[i]
            torch.testing.assert_close(moments.counts[i], torch.bincount(y, minlength=3).double())
            torch.testing.assert_close(moments.squares[i], given[-1].double().square().sum(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(scores.loss, plain.loss)


def test_centres_are_means_over_clients_or_samples():
    """Class 0: two samples of sum 4 and one of 5: means 2 and 5, 7 / 2 = 3.5 of clients, 9 / 3 = 3 of samples."""
    moments = Moments.none(3, 2, 1)
    moments.counts[:, 0], moments.sums[:, 0, 0] = torch.tensor([2.0, 1, 7]), torch.tensor([4.0, 5, torch.nan])
    sound = np.array([True, True, False])
    assert moments.centres(sound, by_samples=False).tolist() == [[3.5], [pytest.approx(np.nan, nan_ok=True)]]
    assert moments.centres(sound, by_samples=True)[0].tolist() == [3.0]
    assert replace(moments).means[0].tolist() == [[2.0], [pytest.approx(np.nan, nan_ok=True)]]


@pytest.mark.parametrize("factory, data", [(mlp, uneven), (cnn, images)])
def test_features_are_free_of_workers_and_of_who_else_is_asked(factory, data):
    with engine(factory, data()) as used, engine(factory, data(), workers=2) as two:
        row, clients = used.initial(), np.arange(used.federation.clients)
        alone = [next(used.features(row, clients[i : i + 1], "train")).clone() for i in clients]
        for one in (used, two):
            together = [z.clone() for z in one.features(row, clients, "train")]
            assert [len(z) for z in together] == used.federation.splits["train"].sizes.tolist()
            assert all(torch.equal(z, other) for z, other in zip(together, alone, strict=True))
        assert not list(used.features(row, clients[:0], "train"))
