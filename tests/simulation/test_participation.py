"""Clients that misbehave: who they are, what they send, what it costs. For what methods do see their contract."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import put, tiny, write_yaml
from federations import changed, engine, uneven
from pydantic import ValidationError

from clusterfl import streams
from clusterfl.cli import main
from clusterfl.clustering.distances import cosine_distance
from clusterfl.config.federation import Partition
from clusterfl.data.samples import Samples
from clusterfl.data.transforms import parse, relabelled
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages.distance import measure
from clusterfl.pipeline.stages.partition import make
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.participation import Faults, attendance, chosen, factors
from clusterfl.simulation.record import Record
from clusterfl.simulation.warm_up import warm_up
from clusterfl.storage.store import read_table

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)
PRIVACY = {"clip": 0.1, "epsilon": 4, "delta": 1e-2, "accounting": "theorem-4.2"}


def run(name="fedavg", federation=None, around=lambda method: method, options=None, **settings):
    with engine(federation=federation or uneven(SIZES), **({"rounds": 2, "epochs": 2} | settings)) as used:
        return loop.run(around(METHODS[name](**(options or {}))), loop.context(used), used)


def rounds(record, name):
    return [part[name] for part in record.rounds]


# Who


def test_attendance_is_the_slow_loops():
    """One client after another, each by draws of its own id and round: whoever else was drawn."""
    faults = Faults(dropout=0.3, stragglers=0.5)
    ids = np.arange(400) * 7 + 3
    drawn = np.arange(0, 400, 2)
    found = attendance(faults, 5, 11, 4, drawn, ids)
    delivered, lost, dropped, straggled = [], [], 0, 0
    for position in drawn.tolist():
        draws = [float(streams.uniform(11, purpose, 4, ids[position])) for purpose in ("dropout", "straggler")]
        out, slow = draws[0] < 0.3, draws[0] >= 0.3 and draws[1] < 0.5
        (lost if out or slow else delivered).append(position)
        dropped, straggled = dropped + out, straggled + slow
        epochs = 1 + math.floor(5 * float(streams.uniform(11, "straggler's work", 4, ids[position])))
        assert found.work[position] == (0 if out else epochs if slow else 5)
    assert found.clients.tolist() == delivered and found.lost.tolist() == lost
    assert (found.dropped, found.straggled) == (dropped, straggled)
    kept = attendance(Faults(dropout=0.3, stragglers=0.5, straggled="keep"), 5, 11, 4, drawn, ids)
    assert kept.lost.tolist() == [i for i in lost if found.work[i] == 0]
    np.testing.assert_array_equal(kept.work, found.work)
    alone = attendance(faults, 5, 11, 4, drawn[7:8], ids)
    assert alone.clients.tolist() == [i for i in delivered if i == drawn[7]]


def test_shares_are_those_asked_for():
    ids = np.arange(20_000)
    found = attendance(Faults(dropout=0.2, stragglers=0.5, straggled="keep"), 4, 0, 1, ids, ids)
    assert abs(found.dropped / 20_000 - 0.2) < 0.01 and abs(found.straggled / 20_000 - 0.8 * 0.5) < 0.012
    slow = found.work[(streams.uniform(0, "straggler", 1, ids) < 0.5) & (found.work > 0)]
    assert np.abs(np.bincount(slow, minlength=5)[1:] / len(slow) - 0.25).max() < 0.02  # 1 to all four, equally
    other = attendance(Faults(dropout=0.2), 4, 0, 2, ids, ids)
    assert abs(np.isin(other.lost, found.lost).mean() - 0.2) < 0.03  # rounds draw again


def test_bad_clients_are_named_or_a_share():
    ids = np.array([3, 5, 8, 13, 21])
    assert chosen([13, 3], 0, "corrupt", ids, "x").tolist() == [True, False, False, True, False]
    for share, count in ((0.0, 0), (0.4, 2), (0.5, 2), (1.0, 5)):
        assert chosen(share, 0, "corrupt", ids, "x").sum() == count
    few = [chosen(s, 7, "corrupt", np.arange(50), "x") for s in (0.2, 0.5)]
    assert (few[1] >= few[0]).all()  # a larger share has those of a smaller one
    with pytest.raises(UserError, match=r"training.faults.corrupt: there is no client 4; allowed: 5 ids from 3 to 21"):
        factors(Faults(corrupt=[4]), 0, ids)
    assert factors(Faults(), 0, ids) is None and factors(None, 0, ids) is None


def test_who_is_bad_is_drawn_by_seed_purpose_and_id():
    ids = np.arange(400)
    bad = chosen(0.5, 7, "corrupt", ids, "x")
    for other in (chosen(0.5, 8, "corrupt", ids, "x"), chosen(0.5, 7, "flipped", ids, "x")):
        assert 60 < (bad & other).sum() < 140  # of 100 by chance
    np.testing.assert_array_equal(chosen(0.5, 7, "corrupt", ids[::-1], "x"), bad[::-1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dropout": 1.5}, "less than or equal to 1"),
        ({"dropout": True}, "number or a name"),
        ({"dropped": "keep"}, "'exclude' or 'stop'"),
        ({"corupt": 0.1}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_reported(given, said):
    with pytest.raises(ValidationError, match=said):
        Training(faults=given)


def test_stragglers_need_a_part_to_do():
    for settings, unit in (({"epochs": 1}, "epochs"), ({"steps": 1}, "steps")):
        with pytest.raises(ValidationError, match=f"with {unit}: 1 there is no smaller number to do; set more {unit}"):
            Training(faults={"stragglers": 0.1}, **settings)
    assert Training(faults={"stragglers": 0.1}, steps=2).most == 2


def test_settings_without_faults_are_as_before():
    """Results that were made before there were faults stay valid: their settings have no such key."""
    assert "faults" not in Training().model_dump() and "faults" not in json.loads(Training().model_dump_json())
    assert Training(**Training(faults={"dropout": 0.5}).model_dump()).faults == Faults(dropout=0.5)
    plain, flipped = Partition(scheme="iid", clients=2), Partition(scheme="iid", clients=2, flipped={"clients": [0]})
    assert "flipped" not in plain.resolved() and flipped.resolved()["flipped"]["labels"] == "reverse"
    study = tiny()
    one, other = (
        {(j.stage, j.name): j.settings for j in Plan.from_settings(s).jobs()}
        for s in (study, put(tiny(), "methods.fedavg.training", {"faults": {"dropout": 0.5}}))
    )
    assert {key for key in one if one[key] != other[key]} == {("federate", "fedavg"), ("report", None)}


# What they do


@pytest.mark.parametrize("backend", ["loop", "stacked", "dense"])
@pytest.mark.parametrize("unit", [{"epochs": 4}, {"epochs": None, "steps": 4}])
def test_a_kept_stragglers_update_is_that_of_fewer_epochs(backend, unit):
    faults = Faults(stragglers=0.6, straggled="keep")
    clients = np.arange(len(SIZES))
    with engine(federation=uneven(SIZES), backend=backend, **unit) as used:
        theta = used.initial(0)[None]
        work = attendance(faults, 4, used.seed, 1, clients, clients).work
        assert len(np.unique(work)) > 2
        found = used.train(theta, np.zeros_like(clients), clients, needs=frozenset({"updates", "curves"}), effort=work)
        for i, n in enumerate(work.tolist()):
            settings = Training(**(used.training.model_dump() | dict.fromkeys([k for k, v in unit.items() if v], n)))
            alone = used.train(
                theta, np.zeros(1, int), clients[i : i + 1], needs=frozenset({"updates", "curves"}), training=settings
            )
            assert torch.equal(found.rows[i], alone.rows[0]) and found.steps[i] == alone.steps[0]
            np.testing.assert_array_equal(found.curves[i, : alone.steps[0]], alone.curves[0])
            assert np.isnan(found.curves[i, alone.steps[0] :]).all()


def test_a_run_merges_what_kept_stragglers_have_done():
    """Of half of the clients, by hand: the mean of the updates of as many epochs as each has time for."""
    faults = {"stragglers": 1.0, "straggled": "keep"}
    settings = {"federation": uneven(SIZES), "rounds": 1, "participation": 0.5, "epochs": 4, "seed": 5}
    with engine(**settings, faults=faults) as used:
        state, record = loop.run(METHODS["fedavg"](), loop.context(used), used)
        clients, theta = np.flatnonzero(record.clusters[0]["participated"]), used.initial(0)[None]
        work = attendance(Faults(**faults), 4, 5, 1, clients, np.arange(len(SIZES))).work
        assert clients.tolist() != list(range(4)) and len(set(work[clients].tolist())) > 1
        total = torch.zeros_like(theta[0], dtype=torch.float64)
        for client in clients:
            few = used.training.model_copy(update={"epochs": int(work[client]), "faults": None})
            total += used.train(theta, np.zeros(1, int), np.array([client]), training=few).sums[0] * SIZES[client]
    expected = theta[0] + (total / np.array(SIZES)[clients].sum()).float()
    torch.testing.assert_close(state.theta[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", ["loop", "stacked", "dense"])
def test_what_is_sent_is_the_update_times_its_factor(backend):
    clients, times = np.arange(4), np.array([1, np.nan, np.inf, 1e3])
    needs = frozenset({"updates"})
    with engine(federation=uneven(SIZES[:4]), backend=backend, epochs=1) as used:
        theta, start = used.initial(0)[None], np.zeros(4, dtype=int)
        plain = used.train(theta, start, clients, needs=needs, score=["test"])
        sent = used.train(theta, start, clients, needs=needs, score=["test"], factors=times)
        clipped = used.train(theta, start, clients, needs=needs, factors=times, clip=0.1)
    assert torch.equal(sent.rows[0], plain.rows[0]) and torch.equal(sent.rows[3], plain.rows[3] * 1e3)
    assert sent.rows[1].isnan().all() and (sent.rows[2] == np.inf).all()
    assert sent.dropped.tolist() == [False, True, True, False]
    np.testing.assert_array_equal(sent.local["test"].loss, plain.local["test"].loss)  # it sends what it hasn't got
    np.testing.assert_allclose(clipped.norms, [0.1, 0, 0, 0.1], rtol=1e-5)
    assert not clipped.dropped.any()


@pytest.mark.parametrize(
    ("name", "options", "times", "lost"),
    [("fedavg", {}, 1, 1), ("pfedme", {}, 5, 5), ("fedcam", {"clusters": 2, "first_round": "random"}, 2, 2),
     ("apfl", {}, 2, 2), ("ditto", {}, 2, 1)],
)  # fmt: skip
def test_steps_are_counted_also_of_those_whose_work_is_lost(name, options, times, lost):
    """A straggler's are those of its epochs, as often as everybody's (but with Ditto it doesn't train its own model);
    who drops out does none.
    """
    faults = {"stragglers": 0.5, "dropout": 0.3}
    clients = np.arange(len(SIZES))
    with engine(federation=uneven(SIZES), copies=METHODS[name].copies, rounds=1, epochs=3, faults=faults) as used:
        _, record = loop.run(METHODS[name](**options), loop.context(used), used)
        found = attendance(Faults(**faults), 3, used.seed, 1, clients, clients)
    assert found.straggled and found.dropped and len(found.clients) and len(set(found.work.tolist())) > 2
    steps = found.work * -(-np.array(SIZES) // 10)
    assert rounds(record, "local_steps") == [times * steps[found.clients].sum() + lost * steps[found.lost].sum()]


def test_a_corrupt_client_sends_its_losses_wherever_it_stands_among_the_participants():
    """Of clients 3, 5 and 6 the second one is corrupt; the losses of all others are measured."""
    seen = []

    def assign(old, context, state, round_, clients, losses):
        def noted(*given):
            seen.append((clients.tolist(), losses(*given).copy()))
            return seen[-1][1]

        return old(context, state, round_, clients, noted)

    bad = {"corrupt": [2, 5], "sends": "infinity"}
    with engine(federation=uneven(SIZES), rounds=1, epochs=1, faults=bad, diverged="exclude") as used:
        method = changed(METHODS["ifca"](clusters=2), sample=lambda *given: np.array([3, 5, 6]), assign=assign)
        loop.run(method, loop.context(used), used)
        theta = torch.stack([used.initial(0), used.initial(1)])
        expected = used.losses(theta, np.array([3, 6]))
    assert [clients for clients, _ in seen] == [[3, 5, 6], [3, 6]]
    np.testing.assert_array_equal(seen[0][1], [expected[0], [np.inf] * 2, expected[1]])
    np.testing.assert_array_equal(seen[1][1], expected)


def test_stragglers_do_a_part_of_the_methods_own_epochs():
    """Of four in batches of five, where the study has two in batches of ten; all straggle, and all work is lost."""
    own = {"epochs": 4, "batch_size": 5}
    method = changed(METHODS["fedavg"](), settings=lambda old, training: old(training).model_copy(update=own))
    with engine(federation=uneven(SIZES), rounds=1, epochs=2, faults={"stragglers": 1.0}) as used:
        _, record = loop.run(method, loop.context(used), used)
        clients = np.arange(len(SIZES))
        work = attendance(Faults(stragglers=1.0), 4, used.seed, 1, clients, clients).work
    assert work.max() > 2
    assert rounds(record, "local_steps") == [(work * -(-np.array(SIZES) // 5)).sum()]


def test_huge_updates_below_the_bound_are_merged():
    """The bound decides, nothing else: factor 2 is no fault that can be seen."""
    plain, twice = (run(rounds=1, faults=f)[0].theta for f in (None, {"corrupt": 1.0, "sends": "huge", "factor": 2}))
    with engine() as used:
        start = used.initial(0)
    torch.testing.assert_close(twice - start, 2 * (plain - start), rtol=1e-4, atol=1e-6)


def test_all_dropped_in_one_round_only():
    seed = next(s for s in range(200) if [attendance(Faults(dropout=0.6), 2, s, r, np.arange(2), np.arange(2)).dropped
                                          for r in (1, 2, 3)] == [1, 2, 0])  # fmt: skip
    with engine(federation=uneven((20, 30)), rounds=3, epochs=2, faults={"dropout": 0.6}, seed=seed) as used:
        thetas = []
        state, record = loop.run(
            METHODS["fedavg"](), loop.context(used), used, save=lambda c: thetas.append(c.state.theta + 0)
        )
    assert rounds(record, "dropped") == [1, 2, 0] and state.participations.sum() == 3
    assert torch.equal(thetas[0], thetas[1]) and not torch.equal(thetas[1], thetas[2])


def test_stable_clove_tells_unsound_losses_of_a_new_client():
    with engine(federation=uneven(SIZES)) as used:
        method, context = METHODS["clove"](clusters=2, stable_rounds=2), loop.context(used)
        state = method.begin(context)
        state.labels[1:], state.own.stable = 0, True
        with pytest.raises(Diverged, match=r"client 0 .*NaN or infinite"):
            method.assign(context, state, 2, np.arange(8), lambda theta, clients: np.full((len(clients), 2), np.nan))


# Warm-up and distances


def test_a_warm_up_keeps_each_clients_last_sound_model():
    """By hand: what each client sent in the last round in which it delivered; the initial model if it never did."""
    settings = {"rounds": 3, "epochs": 2, "diverged": "exclude", "faults": {"dropout": 0.5, "corrupt": [2, 5]}}
    with engine(federation=uneven(SIZES), **settings) as used:
        warm = warm_up(used, gradients=True)
        expected = [used.initial(0)] * len(SIZES)

        def observe(round_, state, update):
            for i, client in enumerate(update.clients.tolist()):
                if np.isfinite(update.norms[i]):
                    expected[client] = state.theta[0] + update.rows[i]

        loop.run(METHODS["fedavg"](), loop.context(used), used, needs=frozenset({"updates"}), observe=observe)
        assert torch.equal(warm.theta[:], torch.stack(expected))
        assert torch.equal(warm.theta[2], used.initial(0)) and not warm.gradients[5].any()
        assert warm.record.rounds[-1]["dropped"] > 0 and (warm.gradients[:] != 0).any()
        for metric in ("loss", "cross-loss", "parameters"):
            assert np.isfinite(measure(used, warm.theta, metric, {})[0]).all()
        assert np.isfinite(cosine_distance(np.asarray(warm.gradients))).all()


def test_a_model_that_is_no_number_is_reported_by_the_distance():
    with engine(federation=uneven(SIZES)) as used:
        theta = torch.stack([used.initial(0)] * 8)
        theta[3] = torch.nan
        for metric in ("loss", "parameters"):
            with pytest.raises(UserError, match="a model probably diverged"):
                measure(used, theta, metric, {})


# Wrappers


def test_dropouts_change_no_noise_and_no_epsilon():
    """The noise is that of the round whoever drops out, the divisor what `divisor` says: by hand, for one model."""
    faults, settings = {"dropout": 0.5}, {"rounds": 1, "epochs": 1, "weights": "uniform", "participation": 1.0}
    around = lambda method: wrap(method, "fedavg", privacy=Privacy(**PRIVACY))  # noqa: E731
    for divisor in ("participants", "expected"):
        (state, record), (_, plain) = (
            run(around=around, divisor=divisor, faults=f, **settings) for f in (faults, None)
        )
        assert rounds(record, "epsilon") == rounds(plain, "epsilon")
        with engine(federation=uneven(SIZES), **settings) as used:
            scale = around(METHODS["fedavg"]()).noise(loop.context(used)).scale("updates")
            clients = attendance(Faults(**faults), 1, used.seed, 1, np.arange(8), np.arange(8)).clients
            start = used.initial(0)[None]
            update = used.train(start, np.zeros_like(clients), clients, clip=0.1)
            drawn = streams.generator(used.seed, "update noise", 1, 0).standard_normal(start.shape[1])
            total = update.sums[0] + torch.as_tensor(scale * drawn)
        assert 0 < len(clients) < 8
        expected = start[0] + (total / (8 if divisor == "expected" else len(clients))).float()
        torch.testing.assert_close(state.theta[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg", "clove"])
def test_with_privacy_what_is_no_number_counts_as_zeros(name):
    """Nobody is left out for what it sends, which would tell of it: the sums are those of the others."""
    around = lambda method: wrap(method, name, privacy=Privacy(**PRIVACY))  # noqa: E731
    options = {} if name == "fedavg" else {"clusters": 2}
    settings = {"around": around, "options": options, "weights": "uniform", "faults": {"corrupt": [2, 5]}}
    state, record = run(name, **settings)
    assert rounds(record, "excluded") == [0, 0] and (state.participations == 2).all()
    assert state.theta.isfinite().all() and np.isfinite(Record.table(record.history)["loss"]).all()
    with pytest.raises(UserError, match=r"training.diverged: 'exclude' changes how many updates count"):
        run(name, **settings, diverged="exclude")


def test_private_ifca_stops_for_a_client_that_can_choose_nothing():
    around = lambda method: wrap(method, "ifca", privacy=Privacy(**PRIVACY))  # noqa: E731
    with pytest.raises(Diverged, match=r"round 1: the losses of client 2 .* \(2 of 8 clients: 2, 5\)"):
        run("ifca", around=around, options={"clusters": 2}, weights="uniform", faults={"corrupt": [2, 5]})


@pytest.mark.parametrize("faults", [{"dropout": 0.1}, {"stragglers": 0.1}, {"corrupt": 0.2}])
def test_rebalancing_refuses_rounds_of_unknown_size(faults):
    around = lambda method: wrap(method, "ifca", Rebalance(minimum=2))  # noqa: E731
    with pytest.raises(UserError, match=r"rebalance: with training.faults a round may have fewer .* straggled: keep"):
        run("ifca", around=around, options={"clusters": 2}, faults=faults)


def test_rebalancing_takes_kept_stragglers():
    around = lambda method: wrap(method, "ifca", Rebalance(minimum=3))  # noqa: E731
    state, record = run("ifca", around=around, options={"clusters": 2}, faults={"stragglers": 0.5, "straggled": "keep"})
    assert (state.rebalanced[:, 1] >= 3).all() and sum(rounds(record, "straggled"))


# Flipped labels


def labelled(classes=4, n=120, tests=40):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, n)
    y[:classes] = np.arange(classes)
    return Samples(np.empty(0), y, np.arange(n) < tests)


def dealt(samples, seed=0, **keys):
    return make(Partition(scheme="iid", clients=6, validation=0.2, **keys).resolved(), samples, seed)


@pytest.mark.parametrize("how", ["reverse", "permute"])
def test_flipped_labels_are_wrong_in_training_alone(how):
    samples = labelled()
    plain, table = dealt(samples), dealt(samples, flipped={"clients": [1, 4], "labels": how})
    bad = np.isin(table["client"], [1, 4]) & (table["split"] != "test")
    assert (table["split"][bad] == "validation").any()
    assert {
        c for n in np.unique(table["transform"]) if parse(n).flipped for c in table["client"][table["transform"] == n]
    } == {1, 4}
    true, found = (relabelled(samples.y[t["sample"]], t["transform"], 4) for t in (plain, table))
    for name in ("sample", "client", "split", "role", "true_cluster"):
        np.testing.assert_array_equal(plain[name], table[name])
    np.testing.assert_array_equal(found[~bad], true[~bad])
    if how == "reverse":
        np.testing.assert_array_equal(found[bad], 3 - true[bad])
    else:
        names = np.unique(table["transform"][bad])
        order = [int(p) for p in re.fullmatch(r"flipped\((.*)\)", names[0]).group(1).split(",")]
        assert len(names) == 1 and sorted(order) == [0, 1, 2, 3]
        np.testing.assert_array_equal(found[bad], np.array(order)[true[bad]])


def test_flipping_goes_on_top_of_other_transforms():
    samples = labelled()
    domains = [{"transform": "swap(0,1)"}]
    table = dealt(samples, domains=domains, flipped={"clients": [2]})
    own = (table["client"] == 2) & (table["split"] == "train")
    assert set(table["transform"][own]) == {"swap(0,1)+flipped"}
    swapped = np.array([1, 0, 2, 3])[samples.y[table["sample"][own]]]
    np.testing.assert_array_equal(relabelled(samples.y[table["sample"]], table["transform"], 4)[own], 3 - swapped)


def test_excluded_flipped_clients_leave_the_federation_without_them():
    samples = labelled()
    plain, table = dealt(samples), dealt(samples, flipped={"clients": 1 / 3, "policy": "exclude"})
    left = np.unique(table["client"][table["role"] == "excluded"])
    assert len(left) == 2 and set(table["role"]) == {"member", "excluded"}
    rest = table["role"] == "member"
    for name in plain:
        np.testing.assert_array_equal(table[name][rest], plain[name][~np.isin(plain["client"], left)])


def test_what_cannot_be_flipped_is_reported():
    samples = labelled()
    with pytest.raises(UserError, match=r"partition.flipped.clients: there is no client 9; allowed: 6 ids from 0 to 5"):
        dealt(samples, flipped={"clients": [9]})
    with pytest.raises(UserError, match=r"partition.flipped: the targets are real numbers \(float64\), only classes"):
        dealt(Samples(np.empty(0), samples.y.astype(float), samples.test), flipped={"clients": 0.5})
    with pytest.raises(UserError, match="exclude fewer flipped clients"):
        dealt(samples, flipped={"clients": 1.0, "policy": "exclude"})


# A study, from settings to the report


@pytest.mark.slow
def test_a_study_with_bad_clients_is_reported_in_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    study = put(tiny(), "federations.digits.partition.flipped", {"clients": [3]})
    put(study, "federations.digits.training", {"diverged": "exclude", "steps": 2})
    put(study, "federations.digits.training.faults", {"dropout": 0.3, "corrupt": [1, 6]})
    put(study, "methods.ifca.training", {"faults": {"stragglers": 0.5}})  # replaces the federation's
    put(study, "methods.lcfl.training", {"faults": None})
    for name in ("methods.local", "methods.lcfl-diffnorm", "clusterings.lcfl-diffnorm", "distances.diffnorm"):
        put(study, name, ...)
    write_yaml(Path("config.yaml"), study)
    assert main(["run"]) == 0 and main(["verify", "tiny"]) == 0
    table = pd.read_csv("results/tiny/tables/faults.csv").set_index("method")
    assert table.loc["fedavg", ["excluded", "corrupt", "flipped"]].tolist() == [
        rounds_of("fedavg")["excluded"].sum(), 2, 1]  # fmt: skip
    assert table["dropped"]["fedavg"] > 0 == table["dropped"]["ifca"] and table["straggled"]["ifca"] > 0
    lcfl = rounds_of("lcfl")  # of its rounds the warm-up's alone had faults
    assert lcfl["dropped"].tolist() == [table["dropped"]["lcfl"], 0, 0] and lcfl["dropped"][0] > 0
    who = pd.read_csv("results/tiny/tables/bad_clients.csv").query("method == 'fedavg'")
    assert sorted(zip(who["kind"], who["client"], strict=True)) == [("corrupt", 1), ("corrupt", 6), ("flipped", 3)]
    history = read_table(Path("results/tiny/digits/seed0/methods/fedavg/history.parquet"))
    last = (history["round"] == 3) & (history["split"] == "test") & ~np.isin(history["client"], [1, 3, 6])
    assert table["accuracy"]["fedavg"] == pytest.approx(history["correct"][last].sum() / history["n"][last].sum())
    assert "<h3>Bad clients</h3>" in Path("results/tiny/report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["summary"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("Bad clients") and f"{table['dropped'].sum()} dropped" in said and "2 corrupt" in said


def rounds_of(name):
    return read_table(Path(f"results/tiny/digits/seed0/methods/{name}/rounds.parquet"))


def test_rebalancing_with_dropouts_is_reported_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    study = put(put(tiny(), "training.faults", {"dropout": 0.1}), "methods.ifca.rebalance", {"minimum": 1})
    write_yaml(Path("config.yaml"), study)
    assert main(["check"]) == 2
    assert "methods.ifca.rebalance: with training.faults a round may have fewer" in capsys.readouterr().err
