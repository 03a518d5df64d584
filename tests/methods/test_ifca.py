"""IFCA's own rules: first minimum, first round, models drawn again, empty clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import beginning, engine, mlp, uneven
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.ifca import choose, drawn, scattered
from clusterfl.simulation import loop
from clusterfl.simulation.evaluation import newcomer_labels
from clusterfl.simulation.method import SampleLosses, prepared
from clusterfl.simulation.record import Record
from clusterfl.streams import hashed

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)


def run(used, **options):
    return loop.run(METHODS["ifca"](**options), loop.context(used), used)


def test_choose_takes_the_first_minimum():
    losses = np.array([[1.0, 1.0, 2.0], [3.0, 0.5, 0.5], [np.nan, 2.0, 1.0]])
    assert choose(losses).tolist() == [0, 1, 2]
    found = choose(torch.as_tensor(losses))
    assert isinstance(found, torch.Tensor) and found.tolist() == [0, 1, 2]


def test_ifca_equals_the_obvious_loop():
    """Algorithm 1 of Ghosh et al. with model averaging, full batches, written out with torch modules."""
    federation = uneven((12, 9, 14, 20), seed=2)
    data = federation.splits["train"]
    with engine(federation=federation, rounds=3, epochs=2, batch_size="full", weights="uniform") as used:
        state, record = run(used, clusters=2)
        theta = [used.initial(k) for k in range(2)]
        for round_ in range(3):
            rows, labels = [], []
            for i in range(4):
                x, y = (
                    torch.as_tensor(part[data.offsets[i] : data.offsets[i + 1]]) for part in (samples_of(data), data.y)
                )
                losses = []
                for row in theta:
                    module = mlp()
                    used.layout.load(module, row)
                    losses.append(nn.functional.cross_entropy(module(x), y).item())
                labels.append(int(np.argmin(losses)))
                module = mlp()
                used.layout.load(module, theta[labels[-1]])
                optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
                for _ in range(2):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(module(x), y).backward()
                    optimizer.step()
                rows.append(used.layout.flatten(module))
            assert record.clusters[round_]["cluster"].tolist() == labels
            for k in set(labels):
                theta[k] = torch.stack([r for r, z in zip(rows, labels, strict=True) if z == k]).mean(0)
    torch.testing.assert_close(state.theta, torch.stack(theta), rtol=1e-4, atol=1e-5)


def test_an_empty_cluster_keeps_its_model():
    with engine(federation=uneven(SIZES), rounds=2, epochs=1) as used:
        bad = 100 * used.initial(1)
        method = beginning(METHODS["ifca"](clusters=2), torch.stack([used.initial(0), bad]))
        state, _ = loop.run(method, loop.context(used), used)
    assert (state.labels == 0).all() and torch.equal(state.theta[1], bad)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 8))
def test_scattered_clients_leave_no_model_empty(seed, clients, models):
    labels = scattered(seed, np.arange(clients), models)
    assert len(np.unique(labels)) == min(clients, models)
    np.testing.assert_array_equal(labels, scattered(seed, np.arange(clients), models))


def test_scattered_is_uniform():
    counts = np.bincount(np.concatenate([scattered(seed, np.arange(40), 4) for seed in range(200)]), minlength=4)
    assert abs(counts - 2000).max() < 160  # binomial(8000, 1/4) has a standard deviation of 39
    assert len({np.bincount(scattered(seed, np.arange(40), 4))[0] for seed in range(20)}) > 3  # not dealt out in turn


@given(st.integers(0, 10**6), st.permutations(range(12)), st.integers(1, 12), st.integers(1, 8))
def test_scattered_equals_the_obvious_loop(seed, ids, clients, models):
    """Into each empty model goes, of those who aren't alone on theirs, the client first in an order of the ids."""
    clients = np.array(ids[:clients])
    labels = drawn(seed, clients, models).tolist()
    order = hashed(seed, "first round, moved", clients).tolist()
    for k in range(models):
        donors = [i for i, label in enumerate(labels) if labels.count(label) > 1]
        if k not in labels and donors:
            labels[min(donors, key=order.__getitem__)] = k
    assert scattered(seed, clients, models).tolist() == labels


def test_random_first_round_needs_no_losses():
    with engine(federation=uneven(SIZES), rounds=2, epochs=1) as used:
        _, record = run(used, clusters=4, start="identical", first_round="random")
    first = record.clusters[0]["cluster"]
    np.testing.assert_array_equal(first, scattered(used.seed, np.arange(8), 4))
    assert [part["client_forwards"] for part in record.rounds] == [0, 4 * sum(SIZES)]


def test_a_draw_of_its_own_depends_on_nobody_else():
    """`scattered` moves others into empty models, by who is there; `drawn`, which privacy takes, doesn't."""
    moved = 0
    for seed in range(200):
        everybody = np.arange(6)
        alone = np.concatenate([drawn(seed, everybody[i : i + 1], 4) for i in everybody])
        np.testing.assert_array_equal(drawn(seed, everybody, 4), alone)
        moved += (scattered(seed, everybody, 4)[:5] != scattered(seed, everybody[:5], 4)).any()
    assert moved > 40  # of 200: what one client more does to others


@pytest.mark.parametrize("backend", ["stacked", "loop"])
def test_ties_of_identical_models_go_to_the_first(backend):
    """Losses of equal models are equal to the bit, so all clients begin with model 0; the others stay as they are."""
    with engine(federation=uneven(SIZES), rounds=1, epochs=1, backend=backend) as used:
        state, record = run(used, clusters=3, start="identical", ties="first")
        begin = used.initial(0)
        losses = used.losses(torch.stack([begin] * 3), np.arange(8))
    assert (losses == losses[:, :1]).all()
    assert (record.clusters[0]["cluster"] == 0).all()
    assert torch.equal(state.theta[1], begin) and torch.equal(state.theta[2], begin)
    assert not torch.equal(state.theta[0], begin)


def test_start_noise_is_a_share_of_each_tensor():
    """5 % of each tensor's root mean square, independent for each copy, the same bits again; zeros stay zeros."""

    def network():
        module = nn.Sequential(nn.Linear(60, 50), nn.BatchNorm1d(50), nn.Linear(50, 40))
        nn.init.zeros_(module[2].bias)
        module[0].weight.data *= 30
        return module

    with engine(network, uneven(SIZES, features=60, classes=40)) as used:
        method, context = METHODS["ifca"](clusters=3, start="identical", start_noise=0.05), loop.context(used)
        state, again = (method.begin(context).theta.numpy() for _ in range(2))
        own, slices, p = used.initial(0).numpy(), used.layout.slices(), used.layout.parameter_columns
    np.testing.assert_array_equal(state, again)
    np.testing.assert_array_equal(state[:, p:], np.tile(own[p:], (3, 1)))  # running statistics
    noise = (state - own)[:, :p]
    for name, _, columns in slices:
        scale = np.sqrt(np.mean(own[columns].astype(float) ** 2))
        if name == "2.bias":
            assert not noise[:, columns].any()
        elif columns.stop <= p and columns.stop - columns.start > 1000:
            assert noise[:, columns].std(axis=1) == pytest.approx([0.05 * scale] * 3, rel=0.06), name
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 0.1


def test_models_are_drawn_again_until_each_has_its_share(monkeypatch):
    """The first draws that do are taken, and every try is counted as cost."""
    federation = uneven((40,) * 8, seed=3)
    with engine(federation=federation, rounds=1, epochs=1) as used:
        for draws in range(1000):
            theta = torch.stack([used.initial(2 * draws + k) for k in range(2)])
            labels = choose(used.losses(theta, np.arange(8)))
            if np.bincount(labels, minlength=2).min() >= 4:
                break
        state, record = run(used, clusters=2, least_share=0.5)
        monkeypatch.setattr("clusterfl.methods.ifca.DRAWS", 20)
        with pytest.raises(UserError, match=r"in none of 20 draws of 8 .* lower it"):
            run(used, clusters=8, least_share=0.125)
    assert draws > 0  # this seed's first models aren't good enough
    np.testing.assert_array_equal(record.clusters[0]["cluster"], labels)
    assert record.rounds[0]["client_forwards"] == (draws + 1) * 2 * 320
    np.testing.assert_array_equal(state.labels, labels)


def test_copies_drawn_again_have_noise_of_their_own():
    """Until each of two copies has its share; the first two are those that the run begins with."""
    tried = []

    def losses(theta):
        tried.append(theta)
        liked = np.tile([1.0, 2.0], (8, 1))  # model 0 by all
        if len(tried) == 4:
            liked[5:] = [2.0, 1.0]
        return liked

    with engine(federation=uneven(SIZES)) as used:
        method = METHODS["ifca"](clusters=2, start="identical", start_noise=0.05, least_share=0.3)
        context = loop.context(used)
        state = method.begin(context)
        begun = state.theta.clone()
        found = method.assign(context, state, 1, np.arange(8), losses)
    assert found.start.tolist() == [0] * 5 + [1] * 3
    assert torch.equal(tried[0], begun) and torch.equal(state.theta, tried[3])
    assert len(torch.cat(tried).unique(dim=0)) == 4 * 2


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"clusters": 2, "start": "identical"},
            "all losses equal .* first_round: random, or, .* ties: first, .* start_n",
        ),
        ({"clusters": 2, "start": "identical", "start_noise": 0.0}, "all losses equal"),
        ({"clusters": 2, "start_noise": 0.1}, "start_noise: 0.1 is for copies of one model; set start: identical"),
        ({"clusters": 9}, "9 clusters for 8 clients; allowed: 1 to 8"),
        ({"clusters": 4, "least_share": 0.3}, "at most 1 / clusters = 0.25"),
        ({"clusters": 2, "least_share": 0.3, "first_round": "random"}, "needs first_round: losses"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with engine(federation=uneven(SIZES)) as used, pytest.raises(UserError, match=message):
        prepared(METHODS["ifca"](**options), loop.context(used))


@pytest.mark.parametrize("name", ["ifca", "fedem"])
def test_newcomers_without_training_samples_go_by_their_test_samples(name):
    """Of three the second one has no others; each is placed, and scored, as it would be alone."""
    data = uneven((12, 14, 9), seed=1)
    train, test = data.splits["train"], data.splits["test"]
    kept = np.repeat([True, False, True], train.sizes)
    owner = [np.repeat(np.arange(3), part.sizes) for part in (train, test)]
    new = Federation.from_rows(
        test.pool, np.append(train.rows[kept], test.rows), np.append(train.y[kept], test.y),
        np.append(owner[0][kept], owner[1]), np.repeat(["train", "test"], [kept.sum(), len(test)]), train=False,
    )  # fmt: skip
    assert new.splits["train"].sizes.tolist() == [12, 0, 9]
    with engine(rounds=1, epochs=1, evaluations=["aggregated", "newcomer"], newcomers=new) as used:
        method = METHODS[name](clusters=2)
        state, record = loop.run(method, loop.context(used), used)
        labels, losses = newcomer_labels(used, method, state)
        for i, split in enumerate(("train", "test", "train")):
            alone = np.array([i])
            own = used.losses(state.theta, alone, f"newcomer.{split}")[0]
            np.testing.assert_array_equal(losses[i], own)
            assert labels[i] == own.argmin()
            shares = None
            if name == "fedem":
                part, values = new.splits[split], used.losses_of_samples(state.theta, alone, f"newcomer.{split}")
                y = part.y[part.of(alone)[0]]
                shares = method.blend(state, SampleLosses(values, np.zeros(len(y), int), y, np.array([len(y)])))
            expected = used.own_scores(state.theta, labels[alone], alone, "newcomer.test", mixture=shares).loss
            history = Record.table(record.history)
            rows = (history["evaluation"] == "newcomer") & (history["round"] == 1) & (history["client"] == i)
            np.testing.assert_allclose(history["loss"][rows], expected, rtol=1e-12)
