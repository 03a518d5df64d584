"""FPFC: the proximal map, rounds by hand, the slow obvious loop, planted groups, newcomers, memory, refusals."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, slow_but, uneven
from scipy.optimize import minimize_scalar
from test_contract import SIZES, numbers, same
from test_fedem import batches_of
from test_personal import run
from torch import nn

from clusterfl.clustering.fusion import components, pairs_of, shrunk
from clusterfl.data.federation import Federation
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fpfc import FPFC
from clusterfl.metrics import adjusted_rand_index
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known, Method
from clusterfl.simulation.record import Record
from clusterfl.storage import row_store

LAST = "3"  # the layer of `mlp` that layers=1 fuses


def one():
    return nn.Linear(1, 1, bias=False)


def penalty(t, fusion, a, xi):
    """Return the smoothed SCAD, put together by its parts: a square, a line, a falling slope, a plateau."""
    if t <= xi:
        return fusion * t**2 / (2 * xi)
    start = fusion * xi / 2
    if t <= fusion:
        return start + fusion * (t - xi)
    line = start + fusion * (fusion - xi)
    end = min(t, a * fusion)
    return line + (a * fusion * (end - fusion) - (end**2 - fusion**2) / 2) / (a - 1)


@pytest.mark.parametrize(
    "fusion, a, xi, rho", [(0.6, 3.7, 1e-3, 1), (1, 3.7, 0.5, 1), (0.4, 2.5, 0.4, 2), (2, 9, 0.1, 0.3)]
)
def test_the_proximal_map_is_the_minimum(fusion, a, xi, rho):
    """Over lengths on both sides of every border, by a search in each part of the penalty."""
    borders = [0, xi, fusion, a * fusion, 20 * fusion]
    lengths = np.concatenate(
        [np.linspace(1e-3, 8 * fusion, 60), [xi + fusion / rho, fusion + fusion / rho, a * fusion]]
    )
    for length, share in zip(lengths, shrunk(lengths, fusion, a, xi, rho), strict=True):

        def cost(t, length=length):
            return penalty(t, fusion, a, xi) + rho / 2 * (t - length) ** 2

        found = [minimize_scalar(cost, bounds=b, method="bounded", options={"xatol": 1e-9}) for b in pairwise(borders)]
        best = min(found, key=lambda result: result.fun)
        assert share * length == pytest.approx(best.x, abs=1e-4)


def test_the_proximal_map_by_hand():
    """Lambda 1, a 3.7, xi 1/2, rho 1: 3/2 shrinks to a third, 2 to 1, 3 to (3 - 37/27) / (17/27) = 44/17, 4 stays."""
    found = shrunk(np.array([0, 1.5, 2, 3, 4]), 1.0, 3.7, 0.5, 1.0)
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 1 / 2, 44 / 51, 1])


def test_pairs_and_their_components():
    order = list(combinations(range(5), 2))
    for client in range(5):
        mine = pairs_of(client, 5)
        assert [order[n] for n in mine] == [tuple(sorted((client, j))) for j in range(5) if j != client]
    lengths = np.full(10, 9.0)
    lengths[[order.index((0, 3)), order.index((3, 4))]] = 0.5, 1.0
    assert components(lengths, 5, 1.0).tolist() == [0, 1, 2, 0, 0]
    assert components(lengths, 5, 0.9).tolist() == [0, 1, 2, 0, 3]


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_two_rounds_by_hand(backend):
    """y = w x, loss (w - y)^2, y = 0 and 4, from 0, rate 1/4; lambda 1, a 3.7, xi 1/2, rho 1.

    Round 1: zeta is 0, models become 0 and 2, d = -2, theta = -1, v = -1: one cluster, whose mean is 1. Round 2:
    zeta_0 = (0 + 2 - 1 + 1) / 2 = 1, zeta_1 = (0 + 2 + 1 - 1) / 2 = 1; gradients 0 - 1 and -4 + 1, so 1/4 and 11/4.
    d = -10/4 - 1 = -7/2, theta = -(7/2 - 37/27) / (17/27) = -115/34: two clusters.
    """
    federation = Federation.from_arrays(np.ones((2, 1), np.float32), np.array([0.0, 4.0]), np.array([0, 1]))
    method, settings = FPFC(fusion=1.0, xi=0.5), {"steps": 1, "batch_size": "full", "learning_rate": 0.25}
    found = []
    for rounds in (1, 2):
        with engine(one, federation, rounds=rounds, backend=backend, **settings) as used:
            used.initial = lambda index=0: torch.zeros(1)
            found.append(run(method, used)[0])
    torch.testing.assert_close(found[0].personal.rows[:, 0], torch.tensor([0.0, 2.0]))
    np.testing.assert_allclose(found[0].own.lengths, [1])
    assert found[0].labels.tolist() == [0, 0] and found[0].theta[:].tolist() == [[1.0]]
    np.testing.assert_allclose(found[1].personal.rows[:, 0], [0.25, 2.75])
    np.testing.assert_allclose(found[1].own.near[:, 0], [1, 1])
    np.testing.assert_allclose(found[1].own.lengths, [115 / 34], rtol=1e-6)
    assert found[1].labels.tolist() == [0, 1] and found[1].theta[:].tolist() == [[0.25], [2.75]]


def proximal(d, method):
    """Return the proximal map of a difference, by its cases as the paper states them."""
    length, slope = float(d.norm()), method.fusion / method.rho
    if length <= method.xi + slope:
        return method.xi * method.rho / (method.fusion + method.xi * method.rho) * d
    if length <= method.fusion + slope:
        return (1 - slope / length) * d
    if length <= method.a * method.fusion:
        bend = 1 / ((method.a - 1) * method.rho)
        return max(0.0, 1 - method.a * method.fusion * bend / length) * d / (1 - bend)
    return d


def plain(used, rounds, method):
    """FPFC in plain PyTorch with theta and v of all ordered pairs: models [M, P], lengths of theta [M, M]."""
    train, layout, module = used.federation.splits["train"], used.layout, used.factory()
    many, fused = used.federation.clients, torch.zeros(used.layout.columns, dtype=torch.bool)
    for name, _, part in layout.slices():
        fused[part] = method.layers is None or name.startswith(LAST)
    models = used.initial(0).double().repeat(many, 1)
    theta, dual = (torch.zeros(many, many, int(fused.sum()), dtype=torch.float64) for _ in range(2))
    for round_ in range(1, rounds + 1):
        clients, changed = Method().sample(loop.context(used), None, round_), models.clone()
        for client in clients:
            zeta = (models[:, fused] + theta[client] - dual[client] / method.rho).mean(0)
            given = models[client].clone()
            given[fused] = zeta
            near = layout.tensors(given.float())
            layout.load(module.train(), models[client].float())
            optimizer = torch.optim.SGD(module.parameters(), lr=used.training.learning_rate)
            for _, inputs, targets in batches_of(used, client, round_):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(inputs), targets)
                for name, parameter in module.named_parameters():
                    if method.layers is None or name.startswith(LAST):
                        loss = loss + method.rho / 2 * (parameter - near[name]).square().sum()
                loss.backward()
                optimizer.step()
            changed[client] = layout.flatten(module).detach().double()
        weights = torch.as_tensor(train.sizes[clients], dtype=torch.float64)
        mean = (changed[clients] * weights[:, None]).sum(0) / weights.sum()
        models = torch.where(fused, changed, mean)
        if method.forgets:
            theta = torch.zeros_like(theta)
        done = set()
        for i in clients.tolist():
            for j in range(many):
                if i == j or (not method.twice and (j, i) in done):
                    continue
                done.add((i, j))
                apart = models[i, fused] - models[j, fused]
                theta[i, j] = proximal(apart + dual[i, j] / method.rho, method)
                dual[i, j] = dual[i, j] + method.rho * (apart - theta[i, j])
                theta[j, i], dual[j, i] = -theta[i, j], -dual[i, j]
    return models, theta.norm(dim=2)


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 1, "rho": 0.5}, {"twice": True, "layers": 1}, {"forgets": True}, {"twice": True, "forgets": True}],
)
def test_it_is_the_slow_obvious_loop(backend, options):
    """Lengths of pairs that took no part are what they were: the loop has zeros there that `forgets` means."""
    settings = {"rounds": 5, "epochs": 2, "participation": 0.5, "batch_size": 4}
    method = FPFC(**{"fusion": 0.3, "xi": 0.05} | options)
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(method, used)
        models, lengths = plain(used, 5, method)
        expected = used.own_scores(models.float(), np.arange(6), np.arange(6), "test")
        there = state.personal.into(state.theta[torch.as_tensor(state.labels)], np.arange(6))
    torch.testing.assert_close(there, models.float(), rtol=1e-4, atol=1e-5)
    moved = state.own.moved if method.forgets else np.ones(15, dtype=bool)
    np.testing.assert_allclose(state.own.lengths[moved], lengths[np.triu_indices(6, 1)][moved], rtol=1e-3, atol=1e-4)
    assert len(np.unique(np.round(state.own.shares, 3))) > 3  # several parts of the penalty
    history = Record.table(record.history)
    last = (history["round"] == 5) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], expected.loss, rtol=1e-4, atol=1e-5)


FORMS = {
    "dense": (mlp, lambda: uneven(SIZES)),
    "loop": (cnn, images),
    "batch normalisation": (norm_and_dropout, images),
}


@pytest.mark.parametrize("form", slow_but(["dense"], FORMS))
@pytest.mark.parametrize("layers", slow_but([1], [None, 1]))
def test_no_bit_depends_on_the_cut_or_on_where_rows_are(form, layers, monkeypatch):
    factory, data = FORMS[form]
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}, None):
        if cut is None:
            monkeypatch.setattr(row_store, "DISK_BYTES", 1)
        with engine(
            factory, data(), rounds=3, momentum=0.5, participation=0.6, learning_rate=0.05, **(cut or {})
        ) as used:
            state, record = run(FPFC(fusion=0.1, layers=layers), used)
            assert isinstance(state.own.gaps, row_store.RowStore) == (cut is None)
            found.append(numbers(state, record))
    for other in found[1:]:
        same(found[0], other)


def test_running_statistics_are_each_clients_own_and_no_part_of_a_distance():
    with engine(norm_and_dropout, images(), rounds=2, learning_rate=0.05) as used:
        state, _ = run(FPFC(), used)
        p = used.layout.parameter_columns
    assert state.own.gaps.shape[1] == p < state.own.sent.shape[1]
    assert len(torch.unique(state.personal.rows[:, p:], dim=0)) > 1
    torch.testing.assert_close(state.own.sent[:], state.personal.rows[:], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"fusion": 0.5}, {"layers": 1, "fusion": 0.3}])
def test_planted_groups_get_models_of_their_own(options):
    """Two groups whose classes follow opposite rules, in five seeds."""
    for seed in range(5):
        data, accuracies = uneven((40,) * 8, seed=seed, tests=40), []
        with engine(federation=data, rounds=100, seed=seed, evaluate_every=100) as used:
            state, record = run(FPFC(**options), used)
            for table in (record, run(METHODS["fedavg"](), used)[1]):
                history = Record.table(table.history)
                last = (history["round"] == 100) & (history["split"] == "test")
                accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert adjusted_rand_index(data.true_cluster, state.labels) == 1
        assert accuracies[0] > accuracies[1] + 0.4, accuracies


def test_a_clusters_model_is_its_members_mean_by_samples():
    with engine(federation=uneven(SIZES), rounds=1, epochs=1, batch_size=4) as used:
        state, _ = run(FPFC(threshold=99.0), used)
        sizes = used.federation.splits["train"].sizes
    assert len(state.theta) == 1
    expected = np.average(state.own.sent[:].numpy().astype(float), axis=0, weights=sizes)
    np.testing.assert_allclose(state.theta[0], expected, rtol=1e-5, atol=1e-7)


def test_members_are_given_their_clusters_model_after_the_last_round_alone():
    own = []  # of rounds 1 and 2, without means and with
    for means in (False, True):
        with engine(federation=uneven(SIZES), rounds=2, epochs=1) as used:
            method = FPFC(means=means, threshold=99.0)
            state, _ = run(method, used, save=lambda c: own.append(c.state.personal.rows[:].clone()))
    assert torch.equal(own[0], own[2]) and not torch.equal(own[1], own[3])
    assert torch.equal(own[3], state.theta[torch.as_tensor(state.labels)])


def test_who_is_not_drawn_or_sends_nothing_sound_keeps_its_model_and_pairs():
    bad = {"corrupt": [2, 5]}
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, diverged="exclude", faults=bad) as used:
        state, _ = run(FPFC(), used)
        drawn = np.setdiff1d(Method().sample(loop.context(used), state, 1), [2, 5])
        for rows in (state.personal.rows, state.own.sent):
            moved = (rows[:] != used.initial(0)).any(dim=1).numpy()
            np.testing.assert_array_equal(np.flatnonzero(moved), drawn)
    i, j = np.triu_indices(len(SIZES), 1)
    np.testing.assert_array_equal(state.own.gaps[:].any(dim=1).numpy(), np.isin(i, drawn) | np.isin(j, drawn))
    assert state.theta.isfinite().all()


@pytest.mark.slow
def test_centres_are_means_that_newcomers_choose_among_and_members_are_given_at_the_end():
    extra = {"evaluations": ["aggregated", "newcomer"], "newcomers": uneven((12, 14), seed=1)}
    found = []
    for means in (False, True):
        with engine(rounds=30, evaluate_every=30, **extra) as used:
            state, record = run(FPFC(means=means, threshold=3.0), used)
            sizes = used.federation.splits["train"].sizes
            placed = used.losses(state.theta, np.arange(2), "newcomer.train").argmin(axis=1)
            scores = used.own_scores(state.theta, placed, np.arange(2), "newcomer.test")
        history = Record.table(record.history)
        rows = (history["evaluation"] == "newcomer") & (history["round"] == 30)
        np.testing.assert_array_equal(history["loss"][rows], scores.loss)
        found.append(state)
        for k in range(len(state.theta)):
            members = state.labels == k
            mean = np.average(state.own.sent[:].numpy()[members], axis=0, weights=sizes[members])
            np.testing.assert_allclose(state.theta[k], mean, rtol=1e-5, atol=1e-6)
    assert 1 < len(found[0].theta) < 6 and torch.equal(found[0].theta, found[1].theta)
    assert torch.equal(found[1].personal.rows[:], found[1].theta[torch.as_tensor(found[1].labels)])
    assert not torch.equal(found[0].personal.rows[:], found[1].personal.rows[:])


def test_what_it_cant_do_is_refused():
    settings = Training(divisor="all", server_learning_rate=0.5)
    found = {p.option: p.sentence for p in FPFC(rho=0.3, fusion=0.1, xi=0.2).check(Known(settings))}
    assert "'all' is of clusters" in found["training.divisor"]
    assert "0.5" in found["training.server_learning_rate"] and "allowed: 1" in found["training.server_learning_rate"]
    assert "0.3" in found["rho"] and "above 1/(a - 1) = 0.37" in found["rho"]
    assert "0.2" in found["xi"] and "fusion = 0.1" in found["xi"]
    (problem,) = FPFC().check(Known(Training(average="gradients", batch_size="full", steps=1)))
    assert problem.option == "training.average" and "allowed: models" in problem.sentence
    (problem,) = FPFC().check(Known(Training(), clients=30_000))
    assert "30000 clients are too many" in problem.sentence
    refused = {"privacy": (None, Privacy(clip=0.1, noise_multiplier=1.0, delta=1e-3))}
    refused["doesn't assign"] = (Rebalance(minimum=2), None)
    for said, given in refused.items():
        with (
            engine(federation=uneven(SIZES), rounds=1, weights="uniform") as used,
            pytest.raises(UserError, match=said),
        ):
            run(wrap(FPFC(), "fpfc", *given), used)
    with (
        engine(rounds=1) as used,
        pytest.raises(UserError, match="no tensor and no layer 'head'; it has the tensors"),
    ):
        run(FPFC(tensors=["head"]), used)


def test_pairs_that_no_disk_holds_are_refused(monkeypatch):
    """15 pairs of 75 numbers, and of the 27 of the last layer."""
    monkeypatch.setattr("clusterfl.methods.fpfc.MOST_BYTES", 15 * 27 * 4)
    with engine(rounds=1) as used:
        with pytest.raises(UserError, match=f"take {15 * 75 * 4} bytes; allowed: up to {15 * 27 * 4}; fuse fewer"):
            run(FPFC(), used)
        assert run(FPFC(layers=1), used)[0].own.gaps.shape == (15, 27)
