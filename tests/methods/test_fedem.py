"""FedEM: rounds by hand, the slow obvious loop, what it costs, planted groups, newcomers, refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import tiny
from federations import Residual, beginning, cnn, engine, images, mlp, slow_but, uneven
from test_contract import SIZES, numbers, same
from test_personal import run
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.engine import batches
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fedem import FedEM, responsibilities
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.verify.replay import Replay
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Assignment, Known, Method, SampleLosses
from clusterfl.simulation.record import Record
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, read_table, read_tensors


def one():
    return nn.Linear(1, 1, bias=False)


def test_responsibilities_by_hand():
    """Shares (1/2, 1/2) and losses (0, log 3): 1 to 1/3, so (3/4, 1/4). Shares (1/4, 3/4) on equal losses: themselves.

    A model that diverged on a sample isn't behind it; where all did, nothing is known.
    """
    values = np.array([[0, np.log(3)], [5, 5], [np.nan, 7], [np.inf, np.nan]])
    owner, sizes = np.array([0, 1, 1, 1]), np.array([1, 3])
    found = responsibilities(np.array([[0.5, 0.5], [0.25, 0.75]]), SampleLosses(values, owner, owner, sizes))
    np.testing.assert_allclose(found, [[0.75, 0.25], [0.25, 0.75], [0, 1], [np.nan, np.nan]])


def two_targets():
    """A client with x = 1, y = 0 and y = 2; another with y = 2 alone, twice."""
    return Federation.from_arrays(np.ones((4, 1), np.float32), np.array([0.0, 2, 2, 2]), np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("backend", ["dense", "stacked", "loop"])
def test_a_round_by_hand(backend):
    """Models 0 and 1 of y = a x, loss (a - y)^2, rate 1/4, one full step, K = 2.

    Client 0: losses (0, 1) on y = 0 and (4, 1) on y = 2. With e = exp(-1) and f = exp(-3): q = (1, e) / (1 + e) on the
    first, (f, 1) / (f + 1) on the second, for 4 - 1 = 3. Client 1: (f, 1) / (1 + f) twice. A model's gradient is the
    sum of q 2 (a - y) over two samples: of model 0, client 0: -2 q_20; client 1: -4 q_20 / 2 * 2 = -4 q_20; so on.
    """
    e, f = np.exp(-1), np.exp(-3)
    q = np.array([[1 / (1 + e), e / (1 + e)], [f / (1 + f), 1 / (1 + f)]])  # of y = 0 and y = 2
    moved = np.zeros((2, 2))
    for k, a in enumerate((0.0, 1.0)):
        moved[0, k] = -(q[0, k] * 2 * (a - 0) + q[1, k] * 2 * (a - 2)) / 2 / 4
        moved[1, k] = -(q[1, k] * 2 * (a - 2)) / 4
    settings = {"rounds": 1, "steps": 1, "batch_size": "full", "learning_rate": 0.25, "backend": backend}
    with engine(one, two_targets(), **settings) as used:
        state, record = run(beginning(FedEM(clusters=2), torch.tensor([[0.0], [1.0]])), used)
    np.testing.assert_allclose(state.mixture, [q.mean(0), q[1]], rtol=1e-6)
    np.testing.assert_allclose(state.theta[:, 0], [moved[:, 0].mean(), 1 + moved[:, 1].mean()], rtol=1e-5)
    assert state.labels.tolist() == [1, 1]
    history = Record.table(record.history)  # numbers: a mixture predicts the mean of what the models do
    predicted = state.mixture @ state.theta[:, 0].numpy()
    expected = [(predicted[0] ** 2 + (predicted[0] - 2) ** 2) / 2, (predicted[1] - 2) ** 2]
    np.testing.assert_allclose(history["loss"][history["round"] == 1], expected, rtol=1e-5)


def batches_of(used, client, round_):
    """Return the inputs and targets of each of a client's mini-batches, and its samples' places among its own."""
    train, data = used.federation.splits["train"], used.worker.data["train"]
    ids, sizes = used.federation.ids[[client]], train.sizes[[client]]
    for batch in batches.schedule(used.seed, ids, sizes, round_, used.training)[0]:
        own = torch.as_tensor(batch[batch >= 0])
        if len(own):
            x = data.take(own + int(train.offsets[client]))
            yield own, x, data.targets(own + int(train.offsets[client]), x)


def plain(used, rounds, models, odds=lambda last, y: 0.0):
    """FedEM in plain PyTorch, each client and model by itself: rows [K, P] and shares [M, K].

    `odds` gets what each client last found, [n, K], and a client's classes, and returns what logarithms have besides.
    """
    train, layout, module = used.federation.splits["train"], used.layout, used.factory()
    rows = [used.initial(k) for k in range(models)]
    shares, last = np.full((used.federation.clients, models), 1 / models), {}
    for round_ in range(1, rounds + 1):
        clients = Method().sample(loop.context(used), None, round_)
        sums, found = [torch.zeros(layout.columns, dtype=torch.float64) for _ in rows], {}
        for client in clients:
            places = torch.arange(*train.offsets[client : client + 2].tolist())
            x = used.worker.data["train"].take(places)
            y = used.worker.data["train"].targets(places, x)
            losses = np.empty((len(y), models))
            for k, row in enumerate(rows):
                layout.load(module, row)
                with torch.no_grad():
                    losses[:, k] = nn.functional.cross_entropy(module.eval()(x), y, reduction="none").numpy()
            likely = shares[client] * np.exp(-losses + odds(last, y.numpy()))
            found[client] = likely / likely.sum(1, keepdims=True), y.numpy()
            shares[client] = found[client][0].mean(0)
            for k, row in enumerate(rows):
                layout.load(module.train(), row)
                optimizer = torch.optim.SGD(module.parameters(), lr=used.training.learning_rate)
                for own, inputs, targets in batches_of(used, client, round_):
                    optimizer.zero_grad()
                    each = nn.functional.cross_entropy(module(inputs), targets, reduction="none")
                    (each @ torch.as_tensor(found[client][0][own.numpy(), k]).float() / len(own)).backward()
                    optimizer.step()
                sums[k] += len(y) * (layout.flatten(module).detach().double() - row)
        last |= found
        total = train.sizes[clients].sum()
        rows = [(row.double() + one / total).float() for row, one in zip(rows, sums, strict=True)]
    return torch.stack(rows), shares


@pytest.mark.parametrize("backend", slow_but(["dense"], ["dense", "stacked", "loop"]))
def test_it_is_the_slow_obvious_loop(backend):
    settings = {"rounds": 3, "epochs": 2, "participation": 0.6, "batch_size": 4}
    with engine(federation=uneven(), backend=backend, **settings) as used:
        state, record = run(FedEM(clusters=3), used)
        rows, shares = plain(used, 3, 3)
        torch.testing.assert_close(state.theta, rows, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.mixture, shares, rtol=1e-4)
        taken = np.flatnonzero(state.labels >= 0)
        np.testing.assert_array_equal(state.labels[taken], shares[taken].argmax(1))
        scores = used.own_scores(rows, 0 * taken, taken, "test", mixture=shares[taken])
    history = Record.table(record.history)
    last = (history["round"] == 3) & (history["split"] == "test")
    np.testing.assert_allclose(history["loss"][last], scores.loss, rtol=1e-4)


def test_clients_are_scored_by_their_own_shares():
    """Of eight clients the four drawn in the only round aren't the first ones, and are the only ones scored."""
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, epochs=1, seed=5) as used:
        state, record = run(FedEM(clusters=2), used)
        taken = np.flatnonzero(state.labels >= 0)
        assert 0 < len(taken) < 8 and taken[0] > 0
        scores = used.own_scores(state.theta, 0 * taken, taken, "test", mixture=state.mixture[taken])
    history = Record.table(record.history)
    test = history["split"] == "test"
    assert history["client"][test].tolist() == taken.tolist()
    np.testing.assert_array_equal(history["loss"][test], scores.loss)


FORMS = {"dense": (mlp, lambda: uneven(SIZES)), "stacked": (Residual, uneven), "loop": (cnn, images)}


@pytest.mark.parametrize("form", slow_but(["dense"], FORMS))
def test_no_bit_depends_on_the_cut(form):
    factory, data = FORMS[form]
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 2, "workers": 2}):
        with engine(factory, data(), rounds=2, momentum=0.5, weight_decay=0.01, learning_rate=0.05, **cut) as used:
            found.append(numbers(*run(FedEM(clusters=3), used)))
    for other in found[1:]:
        same(found[0], other)


def test_what_a_round_costs():
    """K models down and up, K passes over each sample, K times the steps; nothing else."""
    with engine(federation=uneven(SIZES), rounds=2, epochs=3, participation=0.5) as used:
        tables = [Record.table(run(m, used)[1].rounds) for m in (FedEM(clusters=3), METHODS["fedavg"]())]
        drawn = [Method().sample(loop.context(used), None, round_) for round_ in (1, 2)]
        sizes = used.federation.splits["train"].sizes
    for name in ("bytes_up", "bytes_down", "local_steps"):
        np.testing.assert_array_equal(tables[0][name], 3 * tables[1][name])
    assert tables[0]["client_forwards"].tolist() == [3 * sizes[clients].sum() for clients in drawn]


def test_what_is_lost_is_counted_as_often_as_models_are_trained():
    """Who drops out was given all models; who straggles did so many epochs with each."""
    settings = {"rounds": 3, "epochs": 2, "faults": {"dropout": 0.3, "stragglers": 0.3}}
    with engine(federation=uneven(SIZES), **settings) as used:
        tables = [Record.table(run(m, used)[1].rounds) for m in (FedEM(clusters=3), METHODS["fedavg"]())]
    assert tables[0]["dropped"].sum() and tables[0]["straggled"].sum()
    for name in ("bytes_up", "bytes_down", "local_steps"):
        np.testing.assert_array_equal(tables[0][name], 3 * tables[1][name])


@dataclass(frozen=True, kw_only=True)
class Some(Method):
    """Client i trains models 0 to i % 3 of three on all of its samples, and asks for no losses."""

    def begin(self, context):
        state = super().begin(context)
        state.theta = torch.stack([context.initial(k) for k in range(3)])
        return state

    def assign(self, context, state, round_, clients, losses):
        trains = np.arange(3) <= clients[:, None] % 3
        shares = np.ones((int(context.sizes[clients].sum()), 3))
        return Assignment(clients % 3, shares=shares, trains=trains)


def test_a_method_may_let_each_client_train_some_models():
    """Each model is then the mean over those that train it: FedAvg among them, to the bit."""
    with engine(federation=uneven(SIZES), rounds=1, epochs=1) as used:
        state, record = run(Some(), used)
        m, sizes = used.federation.clients, used.federation.splits["train"].sizes
        for k in range(3):
            clients = np.flatnonzero(np.arange(m) % 3 >= k)
            update = used.train(used.initial(k)[None], 0 * clients, clients, weights=sizes[clients].astype(float))
            mean = update.sums[0] / sizes[clients].sum()
            torch.testing.assert_close(state.theta[k], (used.initial(k).double() + mean).float(), rtol=0, atol=1e-7)
    rounds, many = Record.table(record.rounds), sum(i % 3 + 1 for i in range(m))
    assert rounds["bytes_up"][0] == rounds["bytes_down"][0] == many * 4 * used.layout.columns


@pytest.mark.slow
def test_planted_groups_get_models_of_their_own():
    """Two groups whose classes follow opposite rules: a client's largest share is its group's, in five seeds."""
    for seed in range(5):
        data = uneven((40,) * 8, seed=seed, tests=40)
        with engine(federation=data, rounds=40, seed=seed, evaluate_every=40) as used:
            accuracies, (state, record) = [], run(FedEM(clusters=2), used)
            assert adjusted_rand_index(used.federation.true_cluster, state.labels) == 1
            for table in (record, run(METHODS["fedavg"](), used)[1]):
                history = Record.table(table.history)
                last = (history["round"] == 40) & (history["split"] == "test")
                accuracies.append(history["correct"][last].sum() / history["n"][last].sum())
        assert accuracies[0] > accuracies[1] + 0.4, accuracies


def test_who_is_not_drawn_keeps_its_shares_and_who_diverged_is_left_out():
    bad = {"corrupt": [2, 5]}
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, diverged="exclude", faults=bad) as used:
        state, record = run(FedEM(clusters=2), used)
        drawn = Method().sample(loop.context(used), state, 1)
    moved = np.flatnonzero((state.mixture != 0.5).any(axis=1))
    np.testing.assert_array_equal(moved, drawn)
    assert Record.table(record.rounds)["excluded"][0] == len(np.intersect1d(drawn, [2, 5]))
    assert state.theta.isfinite().all()


@pytest.mark.parametrize("policy", ["stop", "exclude"])
def test_samples_without_a_finite_loss_are_reported(policy, monkeypatch):
    """No loss is a number: with exclude nobody is left, and nothing moves."""
    with engine(federation=uneven(SIZES), rounds=1, diverged=policy) as used:
        measured = used.losses_of_samples
        monkeypatch.setattr(used, "losses_of_samples", lambda *given: measured(*given) * np.nan)
        method = FedEM(clusters=2)
        if policy == "stop":
            with pytest.raises(Diverged, match="losses of client 0"):
                run(method, used)
            return
        state, record = run(method, used)
        assert torch.equal(state.theta, torch.stack([used.initial(0), used.initial(1)]))
    assert Record.table(record.rounds)["excluded"][0] == len(SIZES) and (state.mixture == 0.5).all()


def test_a_newcomer_finds_its_shares_by_itself():
    """E and M steps on the models as they are: its shares fit its samples at least as well as any others."""
    new = uneven((30, 25), seed=0, tests=30)
    with engine(rounds=8, federation=uneven((40,) * 6), evaluations=["aggregated", "newcomer"], newcomers=new) as used:
        method = FedEM(clusters=2)
        state, record = run(method, used)
        losses = used.losses_of_samples(state.theta, np.arange(2), "newcomer.train")
        split = new.splits["train"]
        shares = method.blend(state, SampleLosses(losses, split.of(np.arange(2))[1], split.y, split.sizes))
        scores = used.own_scores(state.theta, np.zeros(2, int), np.arange(2), "newcomer.test", mixture=shares)
    for i in range(2):
        own = np.exp(-losses[split.offsets[i] : split.offsets[i + 1]])
        fits = [np.log(own @ [p, 1 - p]).sum() for p in np.linspace(0, 1, 101)]
        assert np.log(own @ shares[i]).sum() > max(fits) - 0.02
    history = Record.table(record.history)
    rows = (history["evaluation"] == "newcomer") & (history["round"] == 8)
    np.testing.assert_array_equal(history["loss"][rows], scores.loss)
    np.testing.assert_array_equal(history["correct"][rows], scores.correct)


def test_a_study_evaluates_the_mixture_and_so_does_verify(tmp_path, monkeypatch):
    """Accuracies by class add up to those of the history, and models with their shares give these again."""
    monkeypatch.chdir(tmp_path)
    study = tiny() | {"baseline": None, "methods": {"em": {"method": "fedem", "clusters": 2}}}
    plan = Plan.from_settings(study | {"distances": {}, "clusterings": {}, "warmups": {}})
    job = plan.job("federate", "digits", 0, "em")
    for each in plan.jobs([job]):
        execute(each, needed=True)
    history, classes = (read_table(job.outputs[name]) for name in ("history", "classes"))
    last = (history["round"] == history["round"].max()) & (history["split"] == "test")
    assert history["correct"][last].sum() == classes["correct"].sum() > 0
    assert read_tensors(job.outputs["models"], ["mixture"])["mixture"].shape[1] == 2
    replay, manifest = Replay(4), read_json(manifest_path(job.outputs["models"]))
    assert not list(replay(job, manifest, manifest["versions"]))
    replay.close()
    assert replay.done > 0


@pytest.mark.parametrize(
    "training, place, said",
    [
        ({"momentum": 0.9, "optimizer_state": "kept"}, "optimizer_state", "allowed: fresh"),
        ({"divisor": "all"}, "divisor", "'all' counts one update of each client"),
        ({"evaluations": ["aggregated", "local"]}, "evaluations", "'local' scores one model.*aggregated, newcomer"),
    ],
)
def test_what_it_cannot_do_is_said_at_check(training, place, said):
    (problem,) = FedEM(clusters=2).check(Known(Training(**training)))
    assert problem.option == f"training.{place}"
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(problem.sentence)


def test_no_noise_protects_it_and_nothing_is_rebalanced():
    privacy = Privacy(clip=0.1, noise_multiplier=1.0, delta=1e-3)
    for given, said in (
        ((None, privacy), "an update of every model"),
        ((Rebalance(minimum=2), None), "doesn't assign"),
    ):
        with (
            engine(federation=uneven(SIZES), rounds=1, weights="uniform") as used,
            pytest.raises(UserError, match=said),
        ):
            run(wrap(FedEM(clusters=2), "fedem", *given), used)
