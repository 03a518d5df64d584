"""FedDrift: a step by hand, the slow obvious loop, planted drifts in five seeds, limits, costs, refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from federations import engine, mlp, noise, uneven
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from test_contract import SIZES
from test_ditto import plain
from test_stocfl import network, run
from torch import nn

from clusterfl import api
from clusterfl.data.prepared import samples_of
from clusterfl.errors import UserError
from clusterfl.methods.feddrift import FedDrift, Steps
from clusterfl.methods.fixed import FedAvg
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State


@pytest.fixture(name="context")
def _context():
    with engine(federation=uneven((10,) * 4), rounds=9) as used:
        yield loop.context(used)


def state_of(models, labels, losses, used=None, last=None, until=None):
    own = Steps(
        np.array(losses, dtype=float),
        np.array(until or [0] * len(labels)),
        np.array(used or [1] * models),
        np.array(last or [0] * models),
    )
    return State(torch.arange(float(models))[:, None] * 10, np.array(labels), own)


def step(method, context, state, measured, clients=None, round_=6):
    """Let `round_` begin, with steps of five rounds."""
    method = replace(method, step_rounds=5)
    clients = np.arange(len(measured)) if clients is None else np.array(clients)
    return method.assign(context, state, round_, clients, lambda: np.array(measured, dtype=float)).start


def test_who_loses_more_gets_a_copy_of_its_best_model(context):
    """One model; clients 1 and 3 lose 2 and 1.4 where they lost 1, delta is .5: client 3's rise is less."""
    state = state_of(1, [0, 0, 0, 0], [1, 1, np.nan, 1])
    assert step(FedDrift(), context, state, [[1], [2], [9], [1.4]]).tolist() == [0, 1, 0, 0]
    assert state.theta[:, 0].tolist() == [0, 0] and state.own.until.tolist() == [0, 2, 0, 0]
    assert state.own.losses.tolist() == [1, 2, 9, 1.4]
    assert state.own.used.tolist() == [1 + 3, 1] and state.own.last.tolist() == [1, 1]


def test_a_new_model_is_its_clients_alone_until_its_steps_are_over(context):
    """In step 2, whatever it loses on the other; in step 3 it may be chosen, and left."""
    state = state_of(2, [0, 1, 0, 0], [1, 2, 1, 1], until=[0, 3, 0, 0])
    method = FedDrift(isolation=2, merge_delta=0.1)
    measured = [[1, 0.1], [0.1, 2], [1, 0.1], [1, 3]]
    assert step(method, context, state, measured, round_=11).tolist() == [0, 1, 0, 0]
    assert state.own.losses.tolist() == [1, 2, 1, 1]
    assert step(method, context, state, measured, round_=16).tolist() == [1, 0, 1, 0]
    assert state.own.until.tolist() == [0, 0, 0, 0]


def test_models_merge_by_how_often_they_were_used(context):
    """Clients 0, 1 of model 0 lose 1 on it, 1.3 on model 1; 2, 3 of model 1 lose .8 on it, and 1 on model 0.

    L_00 = 1, L_01 = 1, L_11 = .8, L_10 = 1.3: distance max(1 - 1, 1.3 - .8) = .5. They were used 3 times and once:
    merged, from 0 and 10, at 2.5; with this step's 4 clients that counts 8.
    """
    measured = [[1, 1.3], [1, 1.3], [1, 0.8], [1, 0.8]]
    for threshold, labels, theta in ((0.5, [0] * 4, [2.5]), (0.49, [0, 0, 1, 1], [0, 10])):
        state = state_of(2, [0, 0, 1, 1], [1] * 4, used=[3, 1])
        assert step(FedDrift(merge_delta=threshold), context, state, measured).tolist() == labels
        np.testing.assert_allclose(state.theta[:, 0], theta)
        assert state.own.used.tolist() == ([8] if len(theta) == 1 else [5, 3])


def test_losses_on_a_models_clients_are_weighed_by_their_samples(context):
    """Of 30 and 10 samples, model 1 loses 1.2 and 2 on those of clients 1 and 2: L_10 = 1.4, .6 above L_11 = .8.

    Client 0, which has most, isn't there.
    """
    context = replace(context, sizes=np.array([1000, 30, 10, 10]))
    measured = [[1, 1.2], [1, 2], [1, 0.8]]
    for threshold, labels, theta in ((0.61, [0, 0, 0], [5]), (0.59, [0, 0, 1], [0, 10])):
        state = state_of(2, [0, 0, 0, 1], [1] * 4)
        method = FedDrift(merge_delta=threshold)
        assert step(method, context, state, measured, clients=[1, 2, 3]).tolist() == labels
        np.testing.assert_allclose(state.theta[:, 0], theta)


def test_models_merge_only_if_each_is_near_to_each(context):
    """Distances .3, .4 and .6 of 0 to 1, 1 to 2 and 0 to 2: from 0 and 1 model 2 is .6 at most, .5 on average."""
    measured = [[1, 1.3, 1.6], [1.3, 1, 1.4], [1.6, 1.4, 1]]
    for threshold, labels, theta in ((0.55, [0, 0, 1], [5, 20]), (0.61, [0, 0, 0], [10])):
        state = state_of(3, [0, 1, 2, 0], [1] * 4)
        method = FedDrift(merge_delta=threshold)
        assert step(method, context, state, measured, clients=[0, 1, 2]).tolist() == labels
        np.testing.assert_allclose(state.theta[:, 0], theta)


def test_models_without_participants_stay_and_may_be_chosen_again(context):
    state = state_of(3, [0, 0, 1, 1], [1] * 4)
    measured = [[1, 9, 9], [9, 9, 0.5], [9, 1, 9], [9, 1, 9]]
    assert step(FedDrift(merge_delta=0.1), context, state, measured).tolist() == [0, 2, 1, 1]
    assert len(state.theta) == 3


def test_at_most_so_many_models_the_one_used_least_recently_is_replaced(context):
    """Of models 1 and 2, which nobody has, 1 was used last in step 0: it becomes the copy. Then there is none."""
    state = state_of(3, [0, 0, 0, 0], [1] * 4, last=[1, 0, 1])
    measured = [[1, 9, 9], [1, 9, 9], [2, 9, 9], [1, 9, 9]]
    assert step(FedDrift(models=3), context, state, measured).tolist() == [0, 0, 1, 0]
    assert state.theta[:, 0].tolist() == [0, 0, 20]
    state = state_of(1, [0, 0, 0, 0], [1] * 4)
    assert step(FedDrift(models=1), context, state, [[1], [1], [2], [2]]).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("models", "row"), [(10, 2), (2, 1)])
def test_a_new_model_merges_with_none_in_whatever_row_it_is(context, models, row):
    """Nobody has model 1. Client 3 loses 2 at best where it lost 1: it gets a copy of model 0, alone, in a new row or,
    at the cap of two, in row 1. Of what was in row 1 it lost 2.1, the others 1.9: between that and model 0 distance
    were max(1.9 - 2.1, 2 - 1.8) = .2 < delta, but it is gone. Model 0, of three clients, was used once: 1 + 3.
    """
    measured = [[1.8, 1.9], [1.8, 1.9], [1.8, 1.9], [2, 2.1]]
    state = state_of(2, [0, 0, 0, 0], [1.8, 1.8, 1.8, 1])
    assert step(FedDrift(models=models), context, state, measured).tolist() == [0, 0, 0, row]
    assert state.own.until.tolist() == [0, 0, 0, 2]
    assert state.theta[:, 0].tolist() == ([0, 10, 0] if models == 10 else [0, 0])
    assert state.own.used.tolist() == ([4, 1, 1] if models == 10 else [4, 1])


def test_who_finds_no_room_stays_with_its_best_model_which_may_merge(context):
    """At a cap of three, clients 2 and 3 drift: their least losses, both on model 1, rise from 1.3 to 2 and 1.9. Row 2,
    which nobody had, is client 2's alone. Then each row is in use, so client 3 stays with model 1.

    L_00 = 2, L_01 = 2.3, L_11 = 1.9, L_10 = 2.2: distance max(2.3 - 2, 2.2 - 1.9) = .3. What was in row 2 would be .1
    from both. Models 0 and 10, each used once, give 5, then used by three; client 2 has the 10 as it was.
    """
    measured = [[2, 2.2, 2.2], [2, 2.2, 2.2], [2.1, 2, 2.1], [2.3, 1.9, 2]]
    for threshold, labels, theta, used in (
        (0.3 + 1e-9, [0, 0, 1, 0], [5, 10], [5, 1]),
        (0.29, [0, 0, 2, 1], [0, 10, 10], [3, 2, 1]),
    ):
        state = state_of(3, [0, 0, 1, 1], [2, 2, 1.3, 1.3])
        assert step(FedDrift(models=3, merge_delta=threshold), context, state, measured).tolist() == labels
        assert state.own.until.tolist() == [0, 0, 2, 0]
        np.testing.assert_allclose(state.theta[:, 0], theta)
        assert state.own.used.tolist() == used


def test_the_first_step_tells_what_the_second_compares_with(context):
    """Delta is .5; client 1 lost 2.3 on the untrained model and loses 2.9, client 3 loses 2.7."""
    state, method = FedDrift().begin(context), FedDrift()
    assert step(method, context, state, [[2.3]] * 4, round_=1).tolist() == [0] * 4
    assert state.own.losses.tolist() == [2.3] * 4 and len(state.theta) == 1
    assert step(method, context, state, [[1], [2.9], [1], [2.7]], round_=6).tolist() == [0, 1, 0, 0]
    assert state.own.losses.tolist() == [1, 2.9, 1, 2.7] and state.own.until.tolist() == [0, 2, 0, 0]


def test_who_is_not_drawn_in_the_first_round_has_nothing_to_compare_with(context):
    state, method = FedDrift().begin(context), FedDrift()
    step(method, context, state, [[2.3]] * 3, clients=[0, 1, 3], round_=1)
    np.testing.assert_equal(state.own.losses, [2.3, 2.3, np.nan, 2.3])
    assert step(method, context, state, [[9]] * 2, clients=[1, 2], round_=6).tolist() == [1, 0]


def test_a_drift_after_the_first_step_is_noticed_where_it_costs_more_than_no_training(tmp_path, monkeypatch):
    """Labels of half of the clients change in round 13: they lose 3 and more where the untrained model lost 2.3."""
    monkeypatch.chdir(tmp_path)
    events = [{"round": 13, "clients": 0.5, "transform": "relabel(1,2,3,4,5,6,7,8,9,0)"}]
    data = api.load(clients=6, angles=[0], drift=events, limit={"train": 40, "test": 10})
    with engine(network, data, rounds=13, epochs=5, learning_rate=0.05) as used:
        state, _ = run(FedDrift(step_rounds=12), used)
    np.testing.assert_array_equal(state.labels > 0, data.at(13).true_cluster == 1)
    assert len(set(state.labels.tolist())) == 1 + 3


def test_eager_clients_share_one_new_model_and_nothing_merges(context):
    state = state_of(2, [0, 0, 1, 1], [1] * 4)
    measured = [[2, 9], [1, 9], [9, 1], [9, 2]]
    assert step(FedDrift(eager=True), context, state, measured).tolist() == [2, 0, 1, 2]
    assert state.theta[:, 0].tolist() == [0, 10, 0] and not state.own.until.any()
    assert step(FedDrift(eager=True), context, state, [[1, 1, 1]] * 4, round_=11).tolist() == [0, 0, 0, 0]
    assert len(state.theta) == 3


def slow_step(method, models, labels, before, alone, counts, last, number, losses, sizes):
    """The step in sets and lists, with SciPy's complete linkage; and how many rows were taken again."""
    alone = {c: t for c, t in alone.items() if t > number}
    free = [k for k in range(len(models)) if k not in {labels[c] for c in alone}]
    fresh = []
    for c in range(len(labels)):
        if c in alone:
            before[c] = losses[c][labels[c]]
            continue
        labels[c] = min(free, key=lambda k: (losses[c][k], k))
        best = losses[c][labels[c]]
        if best - before[c] > method.delta:
            fresh.append(c)
        before[c] = best
    again = 0
    for c in fresh:
        if len(models) < method.models:
            k = len(models)
            models.append(None), counts.append(0), last.append(0)
        else:
            unused = [k for k in range(len(models)) if k not in labels]
            if not unused:
                break
            k = min(unused, key=lambda k: (last[k], k))
            again += 1
        models[k], counts[k], last[k] = models[labels[c]].clone(), 0, number
        labels[c], alone[c] = k, number + method.isolation
    there = [k for k in free if k in labels and k not in {labels[c] for c in alone}]
    into = {k: k for k in range(len(models))}
    if len(there) > 1:
        mean = {(i, j): np.average([losses[c][i] for c in range(len(labels)) if labels[c] == j],
                                   weights=[sizes[c] for c in range(len(labels)) if labels[c] == j])
                for i in there for j in there}  # fmt: skip
        gaps = np.array([[max(mean[i, j] - mean[i, i], mean[j, i] - mean[j, j], 0) for j in there] for i in there])
        groups = fcluster(linkage(squareform(gaps), "complete"), method.merge_delta or method.delta, "distance")
        for g in set(groups):
            own = [k for k, h in zip(there, groups, strict=True) if h == g]
            total = sum(counts[k] for k in own)
            models[own[0]] = (sum(counts[k] * models[k].double() for k in own) / total).float()
            counts[own[0]] = total
            into |= dict.fromkeys(own, own[0])
    for c in range(len(labels)):
        labels[c] = into[labels[c]]
        counts[labels[c]] += 1
        last[labels[c]] = number
    kept = sorted(set(into.values()))
    models, counts, last = ([rows[k] for k in kept] for rows in (models, counts, last))
    return models, [kept.index(k) for k in labels], alone, counts, last, again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "seed", "rows_again"),
    [({}, 0, 0), ({"models": 4, "isolation": 2}, 2, 1), ({"measure": "errors"}, 0, 0)],
    ids=["room", "cap", "errors"],
)
def test_it_is_the_slow_obvious_loop(options, seed, rows_again, tmp_path, monkeypatch):
    """On a federation that drifts twice, in plain PyTorch; some models are made, and some merge. At the cap of four a
    model that nobody has is replaced, and its client is alone with the new one.
    """
    monkeypatch.chdir(tmp_path)
    events = [{"round": 9, "clients": 0.5, "transform": "rotate180"},
              {"round": 13, "clients": 0.5, "transform": "relabel(1,2,3,4,5,6,7,8,9,0)"}]  # fmt: skip
    data = api.load(clients=6, angles=[0], drift=events, limit={"train": 40, "test": 10}, seed=seed)
    errors = "measure" in options
    method = FedDrift(step_rounds=2, delta=0.3, merge_delta=0.6 if errors else 1.0, **options)

    def measured(used, models):
        """The losses [6, K], or the shares of digits that a plain module names wrongly."""
        if not errors:
            return used.losses(torch.stack(models), np.arange(6)).tolist()
        split, module, found = used.federation.splits["train"], network(), np.zeros((6, len(models)))
        for k, theta in enumerate(models):
            used.layout.load(module, theta)
            wrong = module(torch.as_tensor(samples_of(split))).argmax(1).numpy() != split.y
            for c, (first, end) in enumerate(pairwise(split.offsets)):
                found[c, k] = wrong[first:end].mean()
        return found.tolist()

    settings = {"epochs": 5, "learning_rate": 0.05}
    with engine(network, data, rounds=18, **settings) as used:
        labels_by_round = []
        state, _ = run(method, used, save=lambda c: labels_by_round.append(c.state.labels.copy()))
    with engine(network, data, rounds=18, **settings) as used:
        sizes, module, layout = data.splits["train"].sizes, network(), used.layout
        models, labels, alone, counts, last = [used.initial(0)], [0] * 6, {}, [6], [0]
        before = [row[0] for row in measured(used, models)]
        most, again = 1, 0
        for round_ in range(1, 19):
            used.enter(round_)
            if round_ > 1 and round_ % 2 == 1:
                losses = measured(used, models)
                models, labels, alone, counts, last, more = slow_step(
                    method, models, labels, before, alone, counts, last, (round_ - 1) // 2, losses, sizes
                )
                most, again = max(most, len(models)), again + more
            found = list(models)
            for k in set(labels):
                own = [c for c in range(6) if labels[c] == k]
                rows = [plain(module, models[k], layout, used, c, round_, used.training, models[k]) for c in own]
                n = sizes[own].astype(float)
                found[k] = (sum(w * r.double() for w, r in zip(n, rows, strict=True)) / n.sum()).float()
            models = found
            assert labels_by_round[round_ - 1].tolist() == labels, round_
    assert most > 2 and max(len(set(labels.tolist())) for labels in labels_by_round) > len(models) - 1
    assert again == rows_again
    torch.testing.assert_close(state.theta[:], torch.stack(models), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_planted_drifts_are_found(seed, tmp_path, monkeypatch):
    """Half of 40 clients turn in round 11, half of all have other labels from round 21 on: see the page."""
    monkeypatch.chdir(tmp_path)
    labels = "relabel(1,2,3,4,5,6,7,8,9,0)"
    events = [
        {"round": 11, "clients": 0.5, "transform": "rotate180"},
        {"round": 21, "clients": 0.5, "transform": labels},
    ]
    data = api.load(clients=40, angles=[0], drift=events, seed=seed)
    accuracies, indices = [], []
    for method in (FedDrift(merge_delta=1.0, models=40), FedAvg()):
        with engine(network, data, seed=seed, rounds=30, learning_rate=0.05) as used:
            _, record = run(method, used)
        history, clusters = Record.table(record.history), Record.table(record.clusters)
        test = (history["split"] == "test") & (history["round"] > 0)
        accuracies.append(history["correct"][test].sum() / history["n"][test].sum())
        indices += [adjusted_rand_index(data.at(r).true_cluster, clusters["cluster"][clusters["round"] == r])
                    for r in (10, 20, 30)]  # fmt: skip
    assert indices[:2] == [1, 1] and indices[2] > 0.85
    assert accuracies[0] > accuracies[1] + 0.1


def test_without_a_rise_it_is_fedavg_and_costs_a_pass_a_step():
    with engine(federation=uneven(SIZES), rounds=5, epochs=1) as used:
        states = [run(method, used) for method in (FedDrift(step_rounds=4, delta=9.0), FedAvg())]
    assert torch.equal(states[0][0].theta, states[1][0].theta)
    rounds, plainly = (Record.table(record.rounds) for _, record in states)
    extra = rounds["bytes_up"] - plainly["bytes_up"]
    asked = np.array([1, 0, 0, 0, 1])  # a step's first round
    assert extra.tolist() == (4 * len(SIZES) * asked).tolist()
    assert (rounds["bytes_down"] == plainly["bytes_down"]).all()
    assert rounds["client_forwards"].tolist() == (sum(SIZES) * asked).tolist()


def test_errors_are_shares_of_wrong_predictions_and_cost_what_losses_do():
    """One number for each client and model goes up, as for losses; each is a whole number of the client's samples."""
    with engine(federation=uneven(SIZES), rounds=3, epochs=1) as used:
        state, record = run(FedDrift(step_rounds=2, measure="errors", delta=0.9), used)
        _, by_losses = run(FedDrift(step_rounds=2, delta=9.0), used)
        scores = used.scores(used.initial(0)[None], np.arange(len(SIZES)), "train")
        first, _ = run(FedDrift(step_rounds=9, measure="errors"), used)
    np.testing.assert_array_equal(first.own.losses, 1 - scores.correct[:, 0] / np.array(SIZES))
    np.testing.assert_allclose(state.own.losses * SIZES, np.rint(state.own.losses * SIZES), atol=1e-9)
    for name in ("bytes_up", "bytes_down", "client_forwards"):
        assert (Record.table(record.rounds)[name] == Record.table(by_losses.rounds)[name]).all()


def test_numbers_have_no_errors():
    with engine(nn.Linear(5, 1), noise((8, 8), 5, 1), rounds=3) as used, pytest.raises(UserError, match="real numbers"):
        run(FedDrift(measure="errors"), used)


@pytest.mark.parametrize("measure", ["losses", "errors"])
def test_whose_losses_are_not_sound_is_left_out(measure):
    settings = {"rounds": 4, "epochs": 1, "diverged": "exclude", "faults": {"corrupt": [2], "sends": "nan"}}
    with engine(mlp, federation=uneven(), **settings) as used:
        state, record = run(FedDrift(step_rounds=1, measure=measure), used)
    assert (Record.table(record.rounds)["excluded"] == 1).all() and np.isnan(state.own.losses[2])
