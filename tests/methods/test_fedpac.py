"""FedPAC: shares of heads by hand and by all subsets, a round as a plain loop, the released order, planted groups."""

from __future__ import annotations

import copy
from itertools import combinations

import numpy as np
import pytest
import torch
from federations import engine, mlp, uneven
from test_personal import run
from torch import nn

from clusterfl.data.prepared import samples_of
from clusterfl.engine import batches
from clusterfl.engine.features import Moments
from clusterfl.errors import Diverged
from clusterfl.methods import METHODS
from clusterfl.methods.fedpac import FedPAC
from clusterfl.methods.heads import least, mixtures, shares
from clusterfl.simulation.record import Record


def test_shares_by_hand():
    """Of a^2 + 3 b^2 with a + b = 1 the least is at a = 3/4; in a matrix that pulls b below 0 it is at a = 1."""
    np.testing.assert_allclose(least(np.diag([1.0, 3.0])), [0.75, 0.25], rtol=1e-8)
    np.testing.assert_allclose(least(np.array([[1.0, 2.0], [2.0, 5.0]])), [1.0, 0.0], atol=1e-8)
    np.testing.assert_allclose(least(np.diag([0.0, 1.0])), [1.0, 0.0], atol=1e-8)  # singular
    np.testing.assert_array_equal(least(np.array([[2.0]])), [1.0])


def test_mixtures_by_hand():
    """Two heads, 1 and 3, each half of both: 2 and 2; where the first is in its place by then, 2 and (2 + 3) / 2."""
    heads, half = torch.tensor([[1.0], [3.0]]), np.full((2, 2), 0.5)
    assert mixtures(heads, half, False).tolist() == [[2.0], [2.0]]
    assert mixtures(heads, half, True).tolist() == [[2.0], [2.5]]
    assert heads.tolist() == [[1.0], [3.0]]


def by_subsets(matrix):
    """The least of ``a' matrix a`` over shares: on its support it is the solution of linear equations."""
    m, best = len(matrix), (np.inf, None)
    for size in range(1, m + 1):
        for chosen in map(list, combinations(range(m), size)):
            inner = np.linalg.solve(matrix[np.ix_(chosen, chosen)], np.ones(size))
            found = np.zeros(m)
            found[chosen] = inner / inner.sum()
            if (found >= 0).all():
                best = min(best, (found @ matrix @ found, found), key=lambda pair: pair[0])
    return best[1]


def test_shares_are_the_best_of_all_supports():
    rng = np.random.default_rng(0)
    for _ in range(20):
        root = rng.normal(size=(6, 4))
        matrix = root @ root.T + np.diag(rng.random(6) / 10)
        np.testing.assert_allclose(least(matrix), by_subsets(matrix), atol=1e-6)


def test_variance_and_bias_are_those_of_features():
    """From features themselves: trace of the second moments, means times shares of classes, pairs of differences."""
    rng = np.random.default_rng(1)
    features, y = [rng.normal(i % 2, 1, size=(n, 3)) for i, n in enumerate((5, 8, 6))], []
    moments, v, h = Moments.none(3, 2, 3), [], []
    for i, f in enumerate(features):
        y = rng.integers(0, 2, len(f))
        moments.of(slice(i, i + 1)).add(0, torch.as_tensor(f)[None], torch.as_tensor(y)[None], torch.ones(1, len(f)))
        moments.squares[i] = float((f**2).sum())
        share = [np.mean(y == k) for k in (0, 1)]
        means = [f[y == k].mean(axis=0) if share[k] else np.zeros(3) for k in (0, 1)]
        h.append(np.array([p * mean for p, mean in zip(share, means, strict=True)]))
        second = sum(p * np.trace(f[y == k].T @ f[y == k] / (y == k).sum()) for k, p in enumerate(share) if p)
        v.append((second - sum(p**2 * mean @ mean for p, mean in zip(share, means, strict=True))) / len(f))
    for i in range(3):
        away = np.array([[np.sum((h[i] - h[j]) * (h[i] - h[k])) for k in range(3)] for j in range(3)])
        expected = by_subsets(away + np.diag(v))
        np.testing.assert_allclose(shares(moments)[i], np.where(expected > 1e-3, expected, 0), atol=1e-6)


def test_heads_without_variance_are_taken_and_broken_features_are_named():
    """Client 0 has one sample, so no variance, and equal means, so no bias: all take its head. Two such mix nothing."""
    moments = Moments.none(2, 1, 1)
    moments.counts[:, 0], moments.sums[:, 0, 0] = torch.tensor([1.0, 4]), torch.tensor([1e6, 4e6])
    moments.squares[:] = torch.tensor([1e12, 4e12 + 8], dtype=torch.float64)
    np.testing.assert_allclose(shares(moments), [[1, 0], [1, 0]], atol=1e-3)
    moments.squares[1] = 4e12
    np.testing.assert_array_equal(shares(moments), np.eye(2))
    moments.squares[1] = torch.inf
    with pytest.raises(Diverged, match="NaN or infinite; training diverged: lower the learning rate"):
        shares(moments)


PFLLIB = {"means": "uniform", "rescaled": False, "head_rate": 0.3, "overwritten": True}


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), PFLLIB], ids=["authors", "PFLlib"])
def test_it_is_the_papers_algorithm(options):
    """Head, then base, with torch's autograd and optimiser for each client; shares by all supports."""
    sizes, m = (12, 10, 15, 7), 4
    with engine(mlp, uneven(sizes), rounds=3, epochs=2, learning_rate=0.1) as used:
        state, record = run(FedPAC(pull=0.7, **options), used)
        split = used.federation.splits["train"]
        x, y = torch.as_tensor(samples_of(split)), torch.as_tensor(split.y).long()
        parts = [slice(*split.offsets[i : i + 2].tolist()) for i in range(m)]
        modules, common = [mlp() for _ in range(m)], {}
        for module in modules:
            used.layout.load(module, used.initial(0))
        for round_ in (1, 2, 3):
            sums = Moments.none(m, 3, 8)
            for i, module in enumerate(modules):  # all have the base that they were given
                features = module[:3](x[parts[i]]).detach()
                sums.of(slice(i, i + 1)).add(0, features[None], y[parts[i]][None], torch.ones(1, sizes[i]))
                sums.squares[i] = features.double().square().sum()
            for i, module in enumerate(modules):
                index = batches.schedule(used.seed, np.array([i]), split.sizes[[i]], round_, used.training)[0]
                whole = [torch.as_tensor(b[b >= 0] + split.offsets[i]) for b in index if (b >= 0).any()]
                head = torch.optim.SGD(module[3].parameters(), lr=options.get("head_rate", 0.1))
                base = torch.optim.SGD(module[1].parameters(), lr=0.1)
                for optimizer, chosen in ((head, whole[: len(whole) // 2]), (base, whole)):
                    for places in chosen:
                        features = module[:3](x[places])
                        loss = nn.functional.cross_entropy(module[3](features), y[places])
                        for f, k in zip(features, y[places].tolist(), strict=True):
                            if k in common and optimizer is base:
                                loss = loss + 0.7 * nn.functional.mse_loss(f, common[k]) / len(places)
                        module.zero_grad()
                        loss.backward()
                        optimizer.step()
            features = [module[:3](x[part]).detach() for module, part in zip(modules, parts, strict=True)]
            for k in range(3):
                own = [f[y[part] == k] for f, part in zip(features, parts, strict=True) if (y[part] == k).any()]
                uniform = torch.stack([f.mean(0) for f in own]).mean(0)
                common[k] = uniform if options else torch.cat(own).mean(0)
            heads, share = [module[3] for module in modules], shares(sums)  # PFLlib's list, of the clients' own modules
            if not options:
                heads = [copy.deepcopy(head) for head in heads]
                share = share / share.sum(axis=1, keepdims=True)
            for name in ("weight", "bias"):
                mean = sum(n * getattr(one[1], name).data for n, one in zip(sizes, modules, strict=True)) / sum(sizes)
                for i, module in enumerate(modules):
                    getattr(module[1], name).data = mean.clone()
                    mixed = sum(float(a) * getattr(head, name).data for a, head in zip(share[i], heads, strict=True))
                    getattr(module[3], name).data = mixed
        for i, module in enumerate(modules):
            row = used.layout.flatten(module)
            torch.testing.assert_close(state.theta[0][:48], row[:48], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(state.personal.rows[i], row[48:], rtol=1e-4, atol=1e-5)
    assert Record.table(record.rounds)["local_steps"].tolist() == [3 * sum(-(-n // 10) for n in sizes)] * 3


@pytest.mark.slow
def test_planted_groups_share_heads():
    """Two groups of opposite rules; in the released order groups mix each other's heads."""
    for seed in range(5):
        with engine(federation=uneven((60,) * 8, seed=seed, tests=40), rounds=30, seed=seed) as used:
            accuracies = []
            for method in (
                FedPAC(), FedPAC(means="uniform", rescaled=False), FedPAC(mismatched=True), METHODS["fedavg"]()
            ):  # fmt: skip
                history = Record.table(run(method, used)[1].history)
                last = (history["round"] == 30) & (history["split"] == "test")
                accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert min(accuracies[:2]) > max(accuracies[2:]) + 0.2, accuracies


def test_what_it_mixes_stays_in_planted_groups():
    """Half of the clients each: after some rounds no share, or nearly none, is of the other group."""
    with engine(federation=uneven((60,) * 6, seed=2), rounds=6, epochs=1) as used:
        state, _ = run(FedPAC(), used)
        sums = used.moments(state.theta, np.zeros(6, dtype=np.int64), np.arange(6))
        seen = shares(sums)
        group = used.federation.true_cluster
    other = seen[group[:, None] != group[None]].sum() / 6
    own = seen[group[:, None] == group[None]].sum() / 6
    assert own > 5 * other and np.diag(seen).min() > 0


def test_heads_are_trained_for_epochs_of_their_own():
    """Three epochs of the head before two of all else: (3 + 2) x (2 + 1 + 2) steps of ten samples at most."""
    with engine(federation=uneven((12, 10, 15)), rounds=1, epochs=2) as used:
        _, record = run(FedPAC(head_epochs=3), used)
    assert Record.table(record.rounds)["local_steps"].tolist() == [25]


def test_a_released_run_mixes_other_heads_but_trains_as_much():
    found = []
    for mismatched in (False, True):
        with engine(rounds=2, epochs=1) as used:
            found.append(run(FedPAC(mismatched=mismatched), used))
    for name in ("bytes_up", "bytes_down", "local_steps"):
        one, two = (Record.table(record.rounds)[name].tolist() for _, record in found)
        assert one == two, name
    assert not torch.equal(found[0][0].personal.rows[:], found[1][0].personal.rows[:])
