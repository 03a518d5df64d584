"""FedCAM: rounds by hand, as a plain loop of two networks, parts in turn, what is sent, planted groups, privacy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import tiny
from federations import beginning, changed, engine, mlp, uneven
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.engine import batches
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods.fedcam import FedCAM
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.verify.replay import Replay
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known
from clusterfl.simulation.record import Record
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json

ONE_STEP = {"rounds": 1, "batch_size": "full", "steps": 1, "epochs": None, "learning_rate": 0.25}


def run(method, used, **how):
    return loop.run(method, loop.context(used), used, **how)


def two(targets=(1.0, -1.0)) -> Federation:
    """A client for each target, with one sample: x = 1, y the target."""
    return Federation.from_arrays(np.ones((len(targets), 1), np.float32), np.array(targets), np.arange(len(targets)))


@pytest.mark.parametrize(
    "order, common, own",
    [
        ("common", [1 / 4, -1 / 4, 1 / 2], [1 / 8, -1 / 8, 1 / 4]),
        ("cluster", [1 / 8, -1 / 8, 1 / 4], [1 / 4, -1 / 4, 1 / 2]),
        ("alternate", [1 / 4, -1 / 4, 1 / 2], [0, 0, 0]),
        ("together", [1 / 4, -1 / 4, 1 / 2], [1 / 4, -1 / 4, 1 / 2]),
    ],
)
def test_a_round_by_hand(order, common, own):
    """y = (g + c) x and rate 1/4: a step on (g + c - y)^2 moves a part by half of the residual.

    g = 0, c = (1/2, -1/2), targets 1, -1 and 3/2; clients 0 (residual 1/2) and 2 (residual 1) choose c_0, client 1
    (residual -1/2) c_1. What is trained first moves by half of that, what comes second by half of what is left. Given
    is by how much the common part and the clusters' move on each client.
    """
    with engine(lambda: nn.Linear(1, 1, bias=False), two((1.0, -1.0, 1.5)), **ONE_STEP, copies=2) as used:
        method = beginning(FedCAM(clusters=2, order=order), torch.tensor([[0.0, 0.5], [0.0, -0.5]]))
        state, _ = run(method, used)
    g = sum(common) / 3
    expected = [[g, 0.5 + (own[0] + own[2]) / 2], [g, -0.5 + own[1]]]
    assert state.labels.tolist() == [0, 1, 0]
    torch.testing.assert_close(state.theta, torch.tensor(expected))


def test_momentum_of_the_common_part_is_of_all_rounds_whichever_model_they_moved():
    """As above, both parts at once, momentum 1/2: client 1 alone trains c_1 in round 1, client 0 alone c_0 in round 2.

    Round 1: residual -1/2, so g = c_1's move = -1/4. Round 2: 1 - (-1/4 + 1/2) = 3/4 moves each by 3/8, g by half of
    what it moved before, too: 3/8 - 1/8.
    """
    settings = ONE_STEP | {"rounds": 2, "server_momentum": 0.5}
    with engine(lambda: nn.Linear(1, 1, bias=False), two(), **settings, copies=2) as used:
        method = beginning(FedCAM(clusters=2, order="together"), torch.tensor([[0.0, 0.5], [0.0, -0.5]]))
        state, _ = run(changed(method, sample=lambda old, context, state, round_: np.array([2 - round_])), used)
    torch.testing.assert_close(state.theta, torch.tensor([[0.0, 0.875], [0.0, -0.75]]))


@pytest.mark.parametrize("order", ["common", "cluster", "alternate", "together"])
def test_it_is_two_networks_and_a_plain_loop(order):
    """Torch's autograd and optimiser; of K networks each client takes the one whose sum with the common one is best."""
    sizes, m = (12, 10, 15, 7), 4
    with engine(mlp, uneven(sizes), rounds=3, epochs=2, learning_rate=0.1, copies=2) as used:
        state, record = run(FedCAM(clusters=2, order=order), used)
        half = used.layout.columns // 2
        split = used.federation.splits["train"]
        x, y = torch.as_tensor(samples_of(split)), torch.as_tensor(split.y).long()
        parts = [slice(*split.offsets[i : i + 2].tolist()) for i in range(m)]
        with engine(mlp, uneven(sizes)) as one:
            common, own = mlp(), [mlp(), mlp()]
            one.layout.load(common, used.initial(0)[:half])
            for k in range(2):
                one.layout.load(own[k], used.initial(k)[half:])

            def loss(g, c, places):
                return nn.functional.cross_entropy(g(x[places]) + c(x[places]), y[places])

            for round_ in (1, 2, 3):
                labels, trained = [], []
                for i in range(m):
                    with torch.no_grad():
                        labels.append(int(np.argmin([loss(common, c, parts[i]).item() for c in own])))
                    g, c = copy.deepcopy(common), copy.deepcopy(own[labels[i]])
                    index = batches.schedule(used.seed, np.array([i]), split.sizes[[i]], round_, used.training)[0]
                    whole = [torch.as_tensor(b[b >= 0] + split.offsets[i]) for b in index if (b >= 0).any()]
                    turns = {
                        "common": [[g], [c]], "cluster": [[c], [g]], "together": [[g, c]],
                        "alternate": [[g]] if round_ % 2 else [[c]],
                    }[order]  # fmt: skip
                    for turn in turns:
                        optimizer = torch.optim.SGD([p for module in turn for p in module.parameters()], lr=0.1)
                        for places in whole:
                            for module in (g, c):
                                module.zero_grad()
                            loss(g, c, places).backward()
                            optimizer.step()
                    trained.append((g, c))
                rows = [[one.layout.flatten(part) for part in pair] for pair in trained]
                mean = sum(n * row[0] for n, row in zip(sizes, rows, strict=True)) / sum(sizes)
                one.layout.load(common, mean)
                for k in set(labels):
                    mine = [(n, row[1]) for n, row, z in zip(sizes, rows, labels, strict=True) if z == k]
                    one.layout.load(own[k], sum(n * row for n, row in mine) / sum(n for n, _ in mine))
            assert state.labels.tolist() == labels
            for k in range(2):
                row = torch.cat([one.layout.flatten(common), one.layout.flatten(own[k])])
                torch.testing.assert_close(state.theta[k], row, rtol=1e-4, atol=1e-5)
    steps = sum(2 * -(-n // 10) for n in sizes)
    assert Record.table(record.rounds)["local_steps"].tolist() == [len(turns) * steps] * 3


def test_a_part_that_is_not_trained_is_not_sent():
    """With alternate a client sends half of what it is given, and the number of its choice."""
    with engine(rounds=2, epochs=1, copies=2) as used:
        rounds = Record.table(run(FedCAM(clusters=3, order="alternate"), used)[1].rounds)
        half, m = 4 * used.layout.columns // 2, used.federation.clients
    assert rounds["bytes_up"].tolist() == [m * (half + 4)] * 2
    assert rounds["bytes_down"].tolist() == [m * (half + 3 * half)] * 2


@pytest.mark.parametrize("order", ["common", "together"])
def test_one_client_trains_the_sum_by_itself(order):
    with engine(federation=uneven((30,), groups=1), rounds=3, epochs=1, copies=2) as used:
        state, _ = run(FedCAM(clusters=1, order=order), used)
    assert state.theta.isfinite().all() and state.labels.tolist() == [0]


@pytest.mark.slow
def test_planted_groups_are_found_in_five_seeds():
    for first_round in ("losses", "random"):
        found = []
        for seed in range(5):
            with engine(federation=uneven((40,) * 8, seed=seed), rounds=8, seed=seed, copies=2) as used:
                state, _ = run(FedCAM(clusters=2, first_round=first_round), used)
            found.append(adjusted_rand_index(used.federation.true_cluster, state.labels))
        assert found == [1.0] * 5, first_round


@pytest.mark.parametrize(
    "training, order, place, said",
    [
        ({"average": "gradients", "batch_size": "full", "steps": 1}, "common", "average", "order: together"),
        ({"momentum": 0.9, "optimizer_state": "kept"}, "alternate", "optimizer_state", "allowed: fresh, or order"),
        (
            {"average": "gradients", "batch_size": "full", "steps": 1, "optimizer": "adam"}, "together", "optimizer",
            "the common part is of all; allowed: sgd",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_said_at_check(training, order, place, said):
    problems = list(FedCAM(clusters=2, order=order).check(Known(Training(**training))))
    assert [problem.option for problem in problems] == [f"training.{place}"] and said in problems[0].sentence


def test_a_network_alone_is_refused():
    with engine(rounds=1) as used, pytest.raises(UserError, match="copies=2, and here it is of copies=1"):
        run(FedCAM(clusters=2), used)


def test_gradients_and_kept_optimisers_of_both_parts_together():
    for settings in (
        {"average": "gradients", "batch_size": "full", "steps": 1, "epochs": None, "momentum": 0.9},
        {"momentum": 0.9, "optimizer_state": "kept", "epochs": 1},
    ):
        with engine(federation=uneven((40,) * 6), rounds=3, copies=2, **settings) as used:
            state, _ = run(FedCAM(clusters=2, order="together"), used)
            half = used.layout.columns // 2
        assert torch.equal(state.theta[0][:half], state.theta[1][:half])
        assert not torch.equal(state.theta[0][half:], state.theta[1][half:])


@pytest.mark.parametrize("minimum", [None, 3])
def test_private_rounds_have_one_noise_for_the_common_part(minimum):
    """And rebalancing moves no update of it: the common part is that of no rebalancing."""
    privacy = Privacy(clip=0.1, noise_multiplier=1.0, delta=1e-3)
    found = []
    for block in (None if minimum is None else Rebalance(minimum=minimum), None):
        with engine(federation=uneven((30,) * 8), rounds=1, epochs=1, weights="uniform", copies=2) as used:
            method = wrap(FedCAM(clusters=2), "fedcam", block, privacy)
            state, record = run(method, used)
            half = used.layout.columns // 2
            assert method.facts(loop.context(used))["privacy"]["proven"]
        assert torch.equal(state.theta[0][:half], state.theta[1][:half])
        assert Record.table(record.rounds)["epsilon"][0] > 0
        found.append(state.theta[0][:half].clone())
    torch.testing.assert_close(*found, rtol=0, atol=1e-7)


def test_a_study_makes_the_sum_itself_and_evaluates_it_again(tmp_path, monkeypatch):
    """The job says that it is of two networks, no other job does; what `verify` makes of it has the same accuracies."""
    monkeypatch.chdir(tmp_path)
    study = tiny() | {
        "baseline": None,
        "methods": {"cam": {"method": "fedcam", "clusters": 2}, "one": {"method": "fedavg"}},
    }
    plan = Plan.from_settings(study | {"distances": {}, "clusterings": {}, "warmups": {}})
    jobs = {name: plan.job("federate", "digits", 0, name) for name in ("cam", "one")}
    assert jobs["cam"].settings["copies"] == 2 and "copies" not in jobs["one"].settings
    for each in plan.jobs([*jobs.values()]):
        execute(each, needed=True)
    manifests = {name: read_json(manifest_path(job.outputs["models"])) for name, job in jobs.items()}
    assert manifests["cam"]["parameters"] == 2 * manifests["one"]["parameters"]
    replay = Replay(4)
    for name, job in jobs.items():
        assert not list(replay(job, manifests[name], manifests[name]["versions"])), name
    replay.close()
    assert replay.done > 0
