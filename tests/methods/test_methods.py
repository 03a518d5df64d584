"""The loop and the hooks' defaults by hand: averages, server steps, samples, evaluations, divergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federations import changed, engine, images, mlp, norm_and_dropout, uneven
from torch import nn

from clusterfl.data.federation import Federation
from clusterfl.data.prepared import samples_of
from clusterfl.engine.engine import Engine
from clusterfl.engine.features import Features
from clusterfl.engine.training import Training
from clusterfl.engine.update import Update
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method, draw, prepared
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)


def context(used, **extra):
    """A context in which every method can run: a clustering (the true groups) and a warmed-up model."""
    rows = torch.stack([used.initial(10 + i) for i in range(used.federation.clients)])
    given = {
        "clustering": used.federation.true_cluster,
        "warmup": State(used.initial(9)[None], np.zeros(used.federation.clients, dtype=np.int64)),
        "members": lambda: rows,
    }
    return loop.context(used, **(given | extra))


class FromOne(METHODS["oracle"]):
    """The oracle with all parameters 1 at first."""

    def begin(self, context):
        state = super().begin(context)
        state.theta[:] = 1.0
        return state


def run(name, used, **options):
    return loop.run(METHODS[name](**options), context(used), used)


def test_fedavg_equals_the_obvious_loop():
    """Algorithm 1 of McMahan et al. written out with torch modules and optimisers, full batches."""
    federation = uneven((5, 9, 14))
    with engine(federation=federation, rounds=3, epochs=2, batch_size="full") as used:
        state, _ = run("fedavg", used)
        theta = used.initial(0)
        data = federation.splits["train"]
        for _ in range(3):
            rows = []
            for i in range(3):
                module = mlp()
                used.layout.load(module, theta)
                optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
                part = slice(data.offsets[i], data.offsets[i + 1])
                for _ in range(2):
                    optimizer.zero_grad()
                    output = module(torch.as_tensor(samples_of(data)[part]))
                    nn.functional.cross_entropy(output, torch.as_tensor(data.y[part])).backward()
                    optimizer.step()
                rows.append(used.layout.flatten(module))
            theta = sum(n / data.sizes.sum() * row for n, row in zip(data.sizes, rows, strict=True))
    torch.testing.assert_close(state.theta[0], theta.float(), rtol=1e-4, atol=1e-5)


def test_local_never_communicates():
    with engine(federation=uneven(SIZES), rounds=2, epochs=1) as used:
        state, _ = run("local", used)
        row = used.initial(0)[None]
        for round_ in (1, 2):
            row = row + used.train(row, np.array([0]), np.array([3]), round_, needs=frozenset({"updates"})).rows
    torch.testing.assert_close(state.theta[3], row[0])


def make(rows, training=None, labels=(0, 0, 1)):
    """A context of three clients with 1, 3 and 2 samples, a state, and an update with the given sums [2, 1]."""
    federation = Federation.from_arrays(np.zeros((6, 1)), np.zeros(6), np.repeat([0, 1, 2], [1, 3, 2]))
    with Engine(lambda: nn.Linear(1, 1, bias=False), federation, training or Training(), device="cpu") as used:
        given = loop.context(used)
    state = State(torch.tensor([[1.0], [2.0]]), np.array(labels))
    return (
        given,
        state,
        Update(np.arange(3), np.array(labels), np.ones(3), sums=torch.tensor(rows, dtype=torch.float64)),
    )


def test_merge_by_hand():
    """Weights 1 and 3 on deltas 4 and 8 of model 0: 1 + (1 x 4 + 3 x 8) / 4 = 8; model 1 without updates stays 2."""
    given, state, update = make([[28.0], [0.0]])
    weights = Method().weights(given, np.array([0, 1]))
    assert weights.tolist() == [1, 3]
    Method().merge(given, state, update, np.array([0, 0]), weights)
    assert state.theta.tolist() == [[8.0], [2.0]]


def test_released_divisor_by_hand():
    """LCFL's code divides by participation x cluster size: 1 + (4 + 8) / (.8 x 2) = 8.5."""
    given, state, update = make([[12.0], [0.0]], Training(weights="uniform", divisor="ratio", participation=0.8))
    weights = Method().weights(given, np.array([0, 1]))
    Method().merge(given, state, update, np.array([0, 0]), weights)
    assert state.theta[:, 0].tolist() == pytest.approx([8.5, 2.0])


def test_server_momentum_by_hand():
    """FedAvgM, m = .5, rate .1, mean updates 2 then 2: v = 2, 3; theta = 1 + .1 (2 + 3) = 1.5."""
    given, state, update = make(
        [[2.0], [0.0]], Training(weights="uniform", server_momentum=0.5, server_learning_rate=0.1)
    )
    for _ in range(2):
        Method().merge(given, state, replace(update, sums=update.sums.clone()), np.array([0]), np.array([1.0]))
    assert state.theta[0].item() == pytest.approx(1.5)


def test_start_from_members_is_their_mean():
    with engine(federation=uneven(SIZES), rounds=0) as used:
        given = context(used)
        state, _ = loop.run(METHODS["lcfl"](start="members"), given, used)
        rows = given.members()
    for k in (0, 1):
        torch.testing.assert_close(state.theta[k], rows[torch.as_tensor(given.clustering == k)].mean(0))
    with engine(federation=uneven(SIZES), rounds=0) as used:
        state, _ = run("lcfl", used)
        assert torch.equal(state.theta[1], used.initial(9))  # the common model, as released


def test_sampling_is_a_share_without_replacement():
    with engine(federation=uneven((4,) * 20), participation=0.3) as used:
        given = loop.context(used)
    counts = np.zeros(20)
    for round_ in range(400):
        chosen = draw(given, np.arange(20), round_)
        assert len(chosen) == 6 and (np.diff(chosen) > 0).all()
        counts[chosen] += 1
    assert abs(counts - 120).max() < 45  # binomial(400, .3) has a standard deviation of 9
    np.testing.assert_array_equal(draw(given, np.arange(20)[::-1], 7), draw(given, np.arange(20), 7))
    assert len(draw(given, np.array([5]), 1)) == 1


def test_a_one_shot_method_draws_in_each_cluster_or_over_all_clients():
    """Of clusters of 2 and 10 a half are 1 and 5 in each round; of all 12 six, however many are of which."""
    labels = np.repeat([0, 1], [2, 10])
    with engine(federation=uneven((4,) * 12), participation=0.5) as used:
        given = loop.context(used, clustering=labels)
    found = {}
    for sampling in ("clusters", "clients"):
        method = METHODS["lcfl"](sampling=sampling, start="initial")
        state = method.begin(given)
        drawn = [method.sample(given, state, round_) for round_ in range(1, 30)]
        found[sampling] = {tuple(np.bincount(labels[clients], minlength=2).tolist()) for clients in drawn}
    assert found == {"clusters": {(1, 5)}, "clients": {(0, 6), (1, 5), (2, 4)}}


def test_who_has_no_model_yet_is_not_scored():
    """IFCA's clients choose one when they take part; before the first round nobody has."""
    with engine(federation=uneven(SIZES), rounds=1, participation=0.5, epochs=1) as used:
        state, record = loop.run(METHODS["ifca"](clusters=2), loop.context(used), used)
    history, drawn = Record.table(record.history), np.flatnonzero(state.labels >= 0)
    assert len(drawn) == 4 and (history["round"] == 1).all()
    for split in ("train", "test"):
        assert history["client"][history["split"] == split].tolist() == drawn.tolist()


def test_a_share_of_the_clients_is_rounded_halves_to_even_and_never_nobody():
    shares = {0.01: 1, 0.14: 1, 0.16: 2, 0.25: 2, 0.75: 8, 1: 10}
    assert {share: Training(participation=share).participants(10) for share in shares} == shares


def test_stale_is_the_local_score_of_the_previous_participation():
    """And before the first one that of the initial model."""
    evaluations = ["local", "stale"]
    with engine(federation=uneven(SIZES), rounds=6, participation=0.5, epochs=1, evaluations=evaluations) as used:
        _, record = run("fedavg", used)
        clients = np.arange(len(SIZES))
        initial = used.own_scores(used.initial(0)[None], np.zeros_like(clients), clients, "test").correct
    history = Record.table(record.history)
    rows = {key: history["evaluation"] == key for key in evaluations}
    local = {
        (r, c): v for r, c, v in zip(*(history[k][rows["local"]] for k in ("round", "client", "correct")), strict=True)
    }
    firsts = 0
    for round_, client, correct in zip(
        *(history[k][rows["stale"]] for k in ("round", "client", "correct")), strict=True
    ):
        before = max((r for r, c in local if c == client and r < round_), default=None)
        assert correct == (initial[client] if before is None else local[before, client])
        firsts += before is None
    assert 0 < firsts < rows["stale"].sum() == rows["local"].sum()


def test_trained_models_are_scored_on_each_split_that_no_client_trains_on():
    """A single client's trained model is the next one of all, and the one before its first round the initial one."""
    rng, sizes = np.random.default_rng(0), {"train": 12, "validation": 5, "test": 9}
    split = np.repeat([*sizes], [*sizes.values()])
    federation = Federation.from_arrays(rng.normal(size=(26, 5)), rng.integers(0, 3, 26), np.zeros(26, int), split)
    evaluations = ["aggregated", "local", "stale", "personalised"]
    with engine(federation=federation, rounds=1, epochs=2, evaluations=evaluations) as used:
        history = Record.table(run("fedavg", used)[1].history)
    keys = zip(*(history[key] for key in ("round", "evaluation", "split")), strict=True)
    loss = dict(zip(keys, history["loss"], strict=True))
    for held in ("validation", "test"):
        before, after = (loss[round_, "aggregated", held] for round_ in (0, 1))
        assert loss[1, "stale", held] == before != after
        assert loss[1, "local", held] == pytest.approx(after, rel=1e-5)
        assert loss[1, "personalised", held] != after
    assert {key[1] for key in loss if key[2] == "train"} == {"aggregated"}


def test_personalised_is_the_score_after_some_steps_and_changes_no_model():
    settings = {"federation": uneven(SIZES), "rounds": 2, "epochs": 1}
    with engine(**settings) as used:
        plain, _ = run("fedavg", used)
    with engine(**settings, evaluations=["personalised"], personalised_steps=7) as used:
        state, record = run("fedavg", used)
        clients = np.arange(len(SIZES))
        tuned = Training(epochs=None, steps=7)
        rows = used.train(
            state.theta, clients * 0, clients, -2, needs=frozenset({"updates"}), training=tuned, score=("test",)
        )
    assert torch.equal(plain.theta, state.theta)
    history = Record.table(record.history)
    last = (history["evaluation"] == "personalised") & (history["round"] == 2)
    np.testing.assert_array_equal(history["loss"][last], rows.local["test"].loss)
    before = (history["evaluation"] == "aggregated") & (history["round"] == 2) & (history["split"] == "test")
    assert history["loss"][last].sum() < history["loss"][before].sum()


@pytest.mark.parametrize(
    "given",
    [
        {"fixed": frozenset({"1.weight"})},
        {"turns": (frozenset({"3.weight"}), frozenset({"1.weight"}))},
        {"features": Features(torch.ones(3, 8), pull=2.0)},
    ],
)
def test_personalised_models_are_trained_as_the_methods_are(given):
    with engine(federation=uneven(SIZES), personalised_steps=7) as used:
        theta, clients = used.initial(0)[None], np.arange(len(SIZES))
        rest = theta, 0 * clients, clients
        found, plain = (used.personalise(*rest, 2, 0 * clients, ["test"], **how)["test"] for how in (given, {}))
        tuned = Training(epochs=None, steps=7)
        expected = used.train(*rest, -2, training=tuned, score=("test",), **given).local["test"]
    np.testing.assert_array_equal(found.loss, expected.loss)
    assert (found.loss != plain.loss).all()


def test_personalised_models_are_trained_at_each_clients_next_rate():
    """Clients with odd numbers took part in rounds 1 and 3, the others in round 2: .1 / 4 and .1 / 2."""
    decaying = {"schedule": "participation", "decay": 0.5}
    settings = {"federation": uneven(SIZES), "rounds": 3, "epochs": 1, "evaluate_every": 3, "personalised_steps": 7}
    with engine(**settings, **decaying, evaluations=["personalised"]) as used:
        method = changed(METHODS["fedavg"](), sample=lambda old, context, state, round_: np.arange(round_ % 2, 8, 2))
        state, record = loop.run(method, loop.context(used), used)
        clients = np.arange(len(SIZES))
        assert state.participations.tolist() == [1, 2] * 4
        expected = np.empty(len(SIZES))
        for own, rate in ((clients[0::2], 0.05), (clients[1::2], 0.025)):
            tuned = Training(epochs=None, steps=7, learning_rate=rate)
            update = used.train(state.theta, own * 0, own, -3, training=tuned, score=("test",))
            expected[own] = update.local["test"].loss
    history = Record.table(record.history)
    last = (history["evaluation"] == "personalised") & (history["round"] == 3)
    np.testing.assert_allclose(history["loss"][last], expected, rtol=1e-6)


@pytest.mark.parametrize("name, options", [("fedavg", {}), ("ifca", {"clusters": 1})])
def test_a_run_decays_rates_by_each_clients_own_participations(name, options):
    """By hand: in each round a client trains at .1 x .5^n, n being the rounds in which it took part before.

    Then each client that has a model is tuned at its own next rate; IFCA's have one once they took part.
    """
    decaying = {"schedule": "participation", "decay": 0.5, "evaluations": ["personalised"], "personalised_steps": 2}
    drawn = {1: [5, 7], 2: [3, 5], 3: [5, 6]}
    with engine(federation=uneven(SIZES), rounds=3, epochs=1, evaluate_every=3, **decaying) as used:
        method = changed(METHODS[name](**options), sample=lambda old, context, state, round_: np.array(drawn[round_]))
        state, record = loop.run(method, loop.context(used), used)

        def trained(theta, client, round_, count, **own):
            tuned = Training(learning_rate=0.1 * 0.5**count, **own)
            one = np.array([client])
            return used.train(theta[None], 0 * one, one, round_, training=tuned, score=("test",))

        theta, count = used.initial(0), np.zeros(8, dtype=int)
        for round_, clients in drawn.items():
            sums = sum(SIZES[i] * trained(theta, i, round_, count[i], epochs=1).sums[0] for i in clients)
            theta = theta + (sums / sum(SIZES[i] for i in clients)).float()
            count[clients] += 1
        known = np.arange(8) if name == "fedavg" else np.unique([*drawn.values()])
        expected = [trained(theta, i, -3, count[i], epochs=None, steps=2).local["test"].loss[0] for i in known]
    torch.testing.assert_close(state.theta[0], theta, rtol=1e-5, atol=1e-6)
    history = Record.table(record.history)
    last = (history["evaluation"] == "personalised") & (history["round"] == 3)
    assert history["client"][last].tolist() == known.tolist()
    np.testing.assert_allclose(history["loss"][last], expected, rtol=1e-4)


def test_running_statistics_follow_no_step_of_the_servers():
    """Clients' counters of batches go from 0 to 1, 2 and 3: their mean is added whole, without momentum."""
    settings = {"rounds": 3, "epochs": 1, "server_learning_rate": 0.5, "server_momentum": 0.9}
    with engine(norm_and_dropout, images(), **settings) as used:
        state, _ = run("fedavg", used)
        counters = [part for name, _, part in used.layout.slices() if name.endswith("num_batches_tracked")]
    assert state.theta[0, counters[0]].tolist() == [3.0]


@pytest.mark.parametrize("divisor, expected", [("participants", [2.5, 5.0]), ("all", [1.75, 3.0])])
def test_gradient_averaging_by_hand(divisor, expected):
    """Models y = w x from w = 1, loss (w x - y)^2, gradient 2 x (w x - y), rate .5.

    Cluster 0: three samples (1, 3) with gradient -4, one (1, 1) with gradient 0: 1 + .5 (3 x 4 + 0) / 4 = 2.5.
    Cluster 1: four samples (2, 4) with gradient 2 x 2 (2 - 4) = -8: 1 + .5 x 8 = 5. Divided by all eight samples of
    the round instead: 1 + .5 x 12 / 8 = 1.75 and 1 + .5 x 32 / 8 = 3.
    """
    x, y, client = (np.repeat(v, [3, 1, 4]) for v in ([1.0, 1.0, 2.0], [3.0, 1.0, 4.0], [0, 1, 2]))
    federation = Federation.from_arrays(x[:, None], y, client, true_cluster=client // 2)
    settings = Training(rounds=1, average="gradients", steps=1, batch_size="full", learning_rate=0.5, divisor=divisor)
    for backend in ("loop", "stacked"):
        with Engine(lambda: nn.Linear(1, 1, bias=False), federation, settings, device="cpu", backend=backend) as used:
            assert loop.run(FromOne(), loop.context(used), used)[0].theta[:, 0].tolist() == pytest.approx(expected)


def test_gradient_averaging_with_sgd_equals_one_full_step_of_all():
    """A plain full-batch step and its average are the same arithmetic, up to rounding."""
    found = []
    for average in ("models", "gradients"):
        with engine(federation=uneven(SIZES), rounds=4, steps=1, batch_size="full", average=average) as used:
            found.append(run("fedavg", used)[0].theta)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert not torch.equal(*found)


@pytest.mark.parametrize("optimizer, settings", [("adam", {}), ("sgd", {"momentum": 0.9})])
def test_server_optimiser_is_pytorchs(optimizer, settings):
    """Gradient averaging over one client is training on it with the optimiser's memory kept: torch does that."""
    federation = uneven((30,))
    form = {"steps": 1, "batch_size": "full", "average": "gradients", "weight_decay": 0.01, "learning_rate": 0.05}
    with engine(federation=federation, rounds=6, optimizer=optimizer, **form, **settings) as used:
        state, _ = run("fedavg", used)
        module = mlp()
        used.layout.load(module, used.initial(0))
        data = federation.splits["train"]
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    plain = make(module.parameters(), lr=0.05, weight_decay=0.01, **settings)
    for _ in range(6):
        plain.zero_grad()
        nn.functional.cross_entropy(module(torch.as_tensor(samples_of(data))), torch.as_tensor(data.y)).backward()
        plain.step()
    torch.testing.assert_close(state.theta[0], used.layout.flatten(module), rtol=1e-4, atol=1e-5)


def test_the_servers_rate_decays_by_rounds():
    """In round 3 it is .5 x .5^2: 1 + 8 / 8 = 2."""
    decaying = {"learning_rate": 0.5, "schedule": "round", "decay": 0.5}
    given, state, update = make([[8.0], [0.0]], Training(average="gradients", steps=1, batch_size="full", **decaying))
    Method().merge(given, state, replace(update, round=3), np.array([0]), np.array([1.0]))
    assert state.theta[:, 0].tolist() == [2.0, 2.0]


def test_the_servers_adam_counts_each_models_own_steps():
    """Its first step is as long as the rate: of model 0 in the first round, of model 1 in the second, by .1 each."""
    adam = Training(average="gradients", steps=1, batch_size="full", optimizer="adam", learning_rate=0.1)
    given, state, update = make([[4.0], [0.0]], adam)
    one = np.array([1.0])
    Method().merge(given, state, update, np.array([0]), one)
    assert state.theta[:, 0].tolist() == pytest.approx([1.1, 2.0])
    later = replace(update, sums=torch.tensor([[0.0], [-8.0]], dtype=torch.float64))
    Method().merge(given, state, later, np.array([1]), one)
    assert state.theta[:, 0].tolist() == pytest.approx([1.1, 1.9])
    assert state.server_steps.tolist() == [1, 1]


def test_gradient_averaging_refuses_what_would_have_no_effect():
    one = {"average": "gradients", "steps": 1, "batch_size": "full"}
    assert Training(**one)
    for wrong in (
        {"batch_size": 10}, {"steps": 2}, {"proximal": 0.1}, {"server_momentum": 0.9}, {"server_learning_rate": 0.5},
        {"schedule": "participation", "decay": 0.9}, {"evaluations": ["local"]},
        {"optimizer_state": "kept", "momentum": 0.9},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="gradients"):
            Training(**(one | wrong))


@pytest.mark.parametrize(
    "name, settings",
    [("fairavg", {"weights": "uniform"}), ("fedavgm", {"server_momentum": 0.9}), ("fedprox", {"proximal": 0.01})],
)
def test_variants_are_fedavg_with_settings(name, settings):
    with engine(federation=uneven(SIZES), rounds=3, epochs=1) as used:
        variant, plain = run(name, used)[0], run("fedavg", used)[0]
    with engine(federation=uneven(SIZES), rounds=3, epochs=1, **settings) as used:
        assert torch.equal(variant.theta, run("fedavg", used)[0].theta)
    assert not torch.equal(variant.theta, plain.theta)


@pytest.mark.parametrize("name", ["fedavgm", "fedprox"])
def test_a_variant_without_effect_is_refused(name):
    one = {"average": "gradients", "steps": 1, "batch_size": "full"}
    with engine(federation=uneven(SIZES), **one) as used, pytest.raises(UserError, match="has no effect with average"):
        prepared(METHODS[name](), context(used))


def test_before_it_takes_part_a_client_of_its_own_model_has_that_one():
    with engine(federation=uneven(SIZES), rounds=1, epochs=1, evaluations=["stale"]) as used:
        _, record = run("local", used, start="independent")
        clients = np.arange(len(SIZES))
        own = used.own_scores(torch.stack([used.initial(i) for i in clients]), clients, clients, "test")
    history = Record.table(record.history)
    np.testing.assert_array_equal(history["loss"][history["evaluation"] == "stale"], own.loss)


def test_before_the_first_round_personalising_has_the_first_rounds_rate():
    found = []
    for form in ({}, {"schedule": "round", "decay": 0.5}):
        with engine(federation=uneven(SIZES), rounds=0, evaluations=["personalised"], **form) as used:
            history = Record.table(run("fedavg", used)[1].history)
            found.append(history["loss"][history["evaluation"] == "personalised"])
    np.testing.assert_array_equal(*found)
    assert Training(schedule="round", decay=0.5, learning_rate=0.1).rates(-3, np.zeros(1)) == 0.025


def test_personalising_has_the_methods_own_terms():
    found = []
    for name in ("fedavg", "fedprox"):
        with engine(federation=uneven(SIZES), rounds=0, evaluations=["personalised"]) as used:
            history = Record.table(run(name, used)[1].history)
            found.append(history["loss"][history["evaluation"] == "personalised"])
    assert (found[0] != found[1]).any()


@pytest.mark.parametrize("name", ["local", "fedproto"])
def test_a_clients_own_model_takes_its_whole_step(name):
    """What divides by more than the client itself is refused; by all of eight clients its step would be an eighth."""
    uniform = {"weights": "uniform"}
    for wrong in ({"divisor": "all"}, *({"divisor": d, "participation": 0.5} | uniform for d in ("ratio", "expected"))):
        with engine(**wrong) as used, pytest.raises(UserError, match=r"on its own model .* allowed: participants"):
            loop.run(METHODS[name](), loop.context(used), used)
    models = []
    for right in ("participants", "ratio", "expected"):
        with engine(rounds=2, divisor=right, **uniform) as used:
            models.append(loop.run(METHODS[name](), loop.context(used), used)[0].theta[:])
    assert torch.equal(models[0], models[1]) and torch.equal(models[0], models[2])


@pytest.mark.parametrize("name", ["ifca", "clove", "fedcam", "fesem", "flexcfl", "stocfl"])
def test_the_released_divisor_needs_clusters_of_all_clients(name):
    """In round 1 only participants are in a cluster: a half of them is counted, and steps are twice as long."""
    options = {"clusters": 1} if name != "stocfl" else {}
    method = METHODS[name](**options, **({"sampled": 1} if name == "flexcfl" else {}))
    settings = {"weights": "uniform", "divisor": "ratio"}
    with (
        engine(participation=0.5, copies=method.copies, **settings) as used,
        pytest.raises(UserError, match=r"is in none.* allowed: participants, or participation: 1"),
    ):
        loop.run(method, loop.context(used), used)
    models = []
    for divisor in ("participants", "ratio"):
        with engine(rounds=2, copies=method.copies, **(settings | {"divisor": divisor})) as used:
            models.append(loop.run(method, loop.context(used), used)[0].theta[:])
    assert torch.equal(*models)


def test_local_may_start_from_independent_models():
    with engine(federation=uneven(SIZES), rounds=0) as used:
        state, _ = run("local", used, start="independent")
        assert all(torch.equal(state.theta[i], used.initial(i)) for i in range(len(SIZES)))
        assert torch.equal(run("local", used)[0].theta[5], used.initial(0))


def poisoned():
    """Clients of which number 3 has features so large that its update explodes."""
    data = uneven(SIZES).splits["train"]
    owner, x = np.repeat(np.arange(len(SIZES)), SIZES), samples_of(data).copy()
    x[owner == 3] *= 1e12
    return Federation.from_arrays(x, data.y, owner)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_a_diverged_client_is_named_or_excluded(backend):
    settings = {"rounds": 3, "epochs": 1, "backend": backend}
    with engine(federation=poisoned(), **settings) as used, pytest.raises(UserError) as said:
        run("fedavg", used)
    assert "round 1: the update of client 3 is " in str(said.value) and "1 of 8 clients: 3" in str(said.value)
    with engine(federation=poisoned(), **settings, diverged="exclude") as used:
        state, record = run("fedavg", used)
    assert [part["excluded"] for part in record.rounds] == [1, 1, 1]
    rest = poisoned().splits["train"]
    kept = np.repeat(np.arange(len(SIZES)), SIZES) != 3
    without = Federation.from_arrays(
        samples_of(rest)[kept], rest.y[kept], np.repeat(np.arange(len(SIZES)), SIZES)[kept]
    )
    with engine(federation=without, **settings) as used:
        assert torch.equal(state.theta, run("fedavg", used)[0].theta)


def test_a_model_whose_clients_all_diverged_stays():
    with engine(federation=poisoned(), rounds=1, epochs=1, diverged="exclude") as used:
        state, _ = run("local", used)
        assert torch.equal(state.theta[3], used.initial(0)) and not torch.equal(state.theta[2], used.initial(0))


def test_a_long_update_is_reported_with_its_length():
    with (
        engine(federation=uneven(SIZES), rounds=1, epochs=1, largest_update=1e-3) as used,
        pytest.raises(UserError, match=r"long, more than largest_update \(0.001\) \(8 of 8 clients: 0, 1"),
    ):
        run("fedavg", used)


def test_last_label_is_that_of_the_last_participation():
    with engine(federation=uneven(SIZES), rounds=3, participation=0.25, epochs=1) as used:
        state, record = run("oracle", used)
    participated = np.any([part["participated"] for part in record.clusters], axis=0)
    assert 0 < participated.sum() < len(SIZES)
    np.testing.assert_array_equal(state.last_label, np.where(participated, state.labels, -1))


def test_diverging_training_is_reported():
    with (
        engine(federation=uneven(SIZES), rounds=20, learning_rate=1e30) as used,
        pytest.raises(UserError, match="lower the learning rate"),
    ):
        run("fedavg", used)


def test_oracle_needs_groups():
    federation = replace(uneven(SIZES), true_cluster=None)
    with engine(federation=federation) as used, pytest.raises(UserError, match="needs planted groups"):
        prepared(METHODS["oracle"](), loop.context(used))
