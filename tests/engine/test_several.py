"""Several models on the same images, their first convolutions as one: the bits that each has alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from federations import slow_but
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine import processor, several
from clusterfl.engine.bits import one_thread
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.models import MODELS

LAST = torch.channels_last
NETWORKS = ["clove-cnn", "lenet5"]


def images(n, *shape):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(n)).contiguous(memory_format=LAST)


def sequence(channels=1, filters=6, **options):
    """Return a convolution, a pool and what follows, as they are scored."""
    torch.manual_seed(filters)
    above = nn.ReLU()  # it stands twice
    parts = nn.Conv2d(channels, filters, 5, **options), nn.MaxPool2d(2), above, nn.Conv2d(filters, 16, 3), above
    return as_scored(nn.Sequential(*parts).to(memory_format=LAST))


def as_scored(module):
    """Return a module with pools by maxima, whatever the branch does besides."""
    made = copy.deepcopy(module)
    for part in made:
        if type(part) is nn.MaxPool2d:
            part.__class__ = several.MaxPool2d
    return made


def drawn(module, k):
    """Return copies of a module with other numbers in each."""
    found = [copy.deepcopy(module) for _ in range(k)]
    for seed, own in enumerate(found):
        torch.manual_seed(seed)
        for parameter in own.parameters():
            nn.init.normal_(parameter, std=0.1)
    return found


def same(modules, x):
    """Return whether each makes the same together and alone."""
    with one_thread(), torch.inference_mode():
        return [torch.equal(a, b) for a, b in zip(several.outputs(modules, x), [m(x) for m in modules], strict=True)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("n", slow_but([32], [32, 96, 160]))
def test_bits_are_those_of_each_alone(name, n):
    """Whatever the number of models and images, on the branch where it was measured; elsewhere only if `possible`."""
    module = as_scored(MODELS[name]((1, 28, 28), 10).to(memory_format=LAST))
    found = several.possible(module, images(32, 1, 28, 28))
    assert found or processor.branch() != "amd-avx512"
    for k in (1, 2, 3, 5, 8, 9, 17):
        assert not found or same(drawn(module, k), images(n, 1, 28, 28)) == [True] * k


@pytest.mark.parametrize("channels, options", [(3, {}), (1, {"padding": 2}), (3, {"bias": False}), (2, {"stride": 2}),
                                               (1, {"dilation": 2})])  # fmt: skip
def test_other_convolutions(channels, options):
    """Values up to rounding anywhere, and the bits where they are said to be the same."""
    module, x = sequence(channels, 5, **options), images(64, channels, 28, 28)
    models = drawn(module, 4)
    with one_thread(), torch.inference_mode():
        for made, model in zip(several.outputs(models, x), models, strict=True):
            torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)
    assert not several.possible(module, x[:32]) or all(same(models, x))


def test_by_hand():
    """Two models of one filter, on 1 2 / 3 4: sums of what 1 x 1 filters of 2 and -1 make, plus 5 and 0."""
    first, second = drawn(as_scored(nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten())), 2)
    with torch.inference_mode():
        first[0].weight.fill_(2), first[0].bias.fill_(5), second[0].weight.fill_(-1), second[0].bias.fill_(0)
        x = torch.arange(1.0, 5).view(1, 1, 2, 2).contiguous(memory_format=LAST)
        assert [made.item() for made in several.outputs([first, second], x)] == [13, -1]


@pytest.mark.parametrize(
    "other", [{"filters": 8}, {"padding_mode": "reflect", "padding": 1}, {"groups": 2, "channels": 2}]
)
def test_only_plain_convolutions_of_few_filters(other):
    module = sequence(**other)
    assert not several.possible(module, images(32, module[0].in_channels, 28, 28))


def test_only_sequences_that_begin_with_a_convolution_and_a_pool():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = sequence()

        def forward(self, x):
            return self.parts(x)

    x = images(32, 1, 28, 28)
    swapped = sequence()
    swapped[1], swapped[2] = swapped[2], swapped[1]
    for module in (Network(), nn.Sequential(sequence()), swapped, nn.Sequential(sequence()[0])):
        assert not several.possible(module, x)
    assert not several.possible(as_scored(nn.Sequential(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2))), images(32, 1, 5, 5))


def test_not_where_bits_would_be_others(monkeypatch):
    """Were the maxima an ulp larger beside others, nothing would be computed together."""
    if not several.possible(module := sequence(), x := images(32, 1, 28, 28)):
        pytest.skip(f"nothing is computed together on branch '{processor.branch()}'")
    monkeypatch.setattr(several, "largest", lambda made, of=several.largest: of(made).mul_(1 + 2.0**-23))
    assert not several.possible(module, x)


def federation(clients=9):
    """Return clients of 3 to 11 images."""
    sizes = np.arange(clients) + 3
    x = np.random.default_rng(0).integers(0, 256, (sizes.sum(), 1, 28, 28), dtype=np.uint8)
    return Federation.from_arrays(x, np.arange(len(x)) % 10, np.repeat(np.arange(clients), sizes))


def engine(workers=1):
    return Engine(lambda: MODELS["clove-cnn"]((1, 28, 28), 10), federation(), Training(), seed=1, workers=workers)


@pytest.mark.parametrize("models", slow_but([3], [2, 3, 10]))
def test_scores_of_the_engine_do_not_depend_on_it(models, monkeypatch):
    """The same bits with one process and two, of all clients and one, and of a mixture; asked for as often as said."""
    taken = []
    monkeypatch.setattr(
        several, "_together", lambda some, x, of=several._together: taken.append(len(some)) or of(some, x)
    )
    found, clients = [], np.arange(9)
    for workers, together in ((1, True), (1, False), (2, True)):
        with engine(workers) as used:
            used.worker.several = together and used.worker.several
            rows = torch.randn(models, used.layout.columns, generator=torch.Generator().manual_seed(0)) / 10
            before = len(taken)
            scores = used.scores(rows, clients, "train")
            alone = used.scores(rows, clients[3:4], "train")
            mixed = used.own_scores(rows, np.zeros(9, int), clients, "train", mixture=np.full((9, models), 1 / models))
            if workers == 1:
                assert (len(taken) > before) == used.worker.several
            assert np.array_equal(scores.loss[3:4], alone.loss) and np.isfinite(scores.loss).all()
            found.append((scores.loss, scores.correct, mixed.loss))
    assert all(np.array_equal(one, other) for later in found[1:] for one, other in zip(found[0], later, strict=True))


def test_a_client_by_itself_has_no_model_beside(monkeypatch):
    """Where bits depend on the number of samples they might on the number of models: each is computed alone."""
    with engine() as used:
        monkeypatch.setattr(several, "outputs", None)
        used.worker.several = used.worker.alone = True
        rows = torch.zeros(3, used.layout.columns)
        assert used.scores(rows, np.arange(9), "train").loss.shape == (9, 3)


def test_the_engine_asks_for_it_where_it_pays():
    """On AVX2 a convolution and its pool are one already; a chain of linear layers has no convolution."""
    with engine() as used:
        assert used.worker.several == several.possible(used.worker.tuned, images(32, 1, 28, 28))
        assert used.worker.several or processor.branch() != "amd-avx512"
    linear = Federation.from_arrays(np.ones((9, 4), np.float32), np.arange(9) % 3, np.arange(9) // 3)
    with Engine(lambda: MODELS["mlp"]((4,), 3), linear, Training(), seed=1) as used:
        assert not used.worker.several
