"""Rebalanced and private methods: degenerate cases to the bit, what noise does, what is refused."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from federations import changed, engine, images, norm_and_dropout, slow_but, uneven
from scipy.stats import norm

from clusterfl import streams
from clusterfl.data.federation import Federation
from clusterfl.engine.update import Update
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.stages.common import arrays, read_state
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method, draw, prepared
from clusterfl.simulation.record import Record
from clusterfl.simulation.state import State
from clusterfl.simulation.warm_up import warm_up
from clusterfl.storage.store import write_tensors

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)
OPTIONS = {"ifca": {"clusters": 2}, "clove": {"clusters": 2}, "fedcam": {"clusters": 2}}
COVERED = ["fedavg", "fairavg", "fedavgm", "fedprox", "oracle", "ifca", "clove", "fedcam"]
PLAIN = {"rounds": 3, "epochs": 1, "weights": "uniform"}
FOUR = {"clip": 0.1, "epsilon": 4, "delta": 1e-2, "accounting": "theorem-4.2"}
NONE = {"clip": 0.1, "accounting": "none"}
OFF = {"clip": 0.1, "epsilon": math.inf, "delta": 1e-2, "accounting": "theorem-4.2"}


def make(name, rebalance=None, privacy=None, **options):
    method = METHODS[name](**(OPTIONS.get(name, {}) | options))
    blocks = rebalance and Rebalance(**rebalance), privacy and Privacy(**privacy)
    return wrap(method, name, *blocks)


def run(name, rebalance=None, privacy=None, options=None, federation=None, **settings):
    with engine(federation=federation or uneven(SIZES), copies=METHODS[name].copies, **(PLAIN | settings)) as used:
        return loop.run(make(name, rebalance, privacy, **(options or {})), loop.context(used), used)


def numbers(state, record, *without):
    tables = [Record.table(part) for part in (record.history, record.rounds, record.clusters)]
    found = {name: np.asarray(value[:]) for name, value in state.arrays().items()}
    found |= {f"{i}.{name}": column for i, table in enumerate(tables) for name, column in table.items()}
    return {name: value for name, value in found.items() if name not in without}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("name", ["ifca", "clove"])
def test_a_minimum_of_none_is_the_method_itself(name):
    plain = run(name, participation=0.5)
    same(numbers(*plain), numbers(*run(name, {"minimum": 0}, participation=0.5), "rebalanced"))


@pytest.mark.parametrize("name", COVERED)
def test_infinite_epsilon_is_the_method_itself(name):
    found = run(name, privacy=OFF, participation=0.5, **({"divisor": "all"} if name == "oracle" else {}))
    plain = run(name, participation=0.5, **({"divisor": "all"} if name == "oracle" else {}))
    same(numbers(*plain, "1.epsilon"), numbers(*found, "1.epsilon"))
    assert [r["epsilon"] for r in found[1].rounds] == [math.inf] * 3


def test_updates_move_and_models_do_not():
    """In the first round everybody starts from the model of least loss, moved or not."""
    plain, moved = run("ifca", rounds=1), run("ifca", {"minimum": 4}, rounds=1)
    np.testing.assert_array_equal(plain[0].labels, moved[0].labels)
    before, after = moved[0].rebalanced[0]
    assert before.tolist() == np.bincount(plain[0].labels, minlength=2).tolist() != [4, 4] == after.tolist()
    assert not torch.equal(plain[0].theta, moved[0].theta)


def test_every_round_keeps_the_minimum():
    sizes = run("clove", {"minimum": 2}, rounds=6, participation=0.75)[0].rebalanced
    assert sizes.shape == (6, 2, 2) and (sizes.sum(axis=2) == 6).all() and (sizes[:, 1] >= 2).all()
    assert (sizes[:, 0] < 2).any()


@pytest.mark.parametrize("name", slow_but(["clove"], COVERED))
def test_no_chunk_worker_or_interruption_changes_a_bit(name, tmp_path):
    rebalance = {"minimum": 2} if name in OPTIONS else None
    settings = {"participation": 0.5, "divisor": "all"}
    method, kept, results = make(name, rebalance, FOUR), {}, []

    def keep(checkpoint):
        write_tensors(tmp_path / f"{checkpoint.round}.safetensors", arrays(checkpoint.state))
        kept[checkpoint.round] = copy.deepcopy(checkpoint.record)

    for cut in ({}, {"chunk": 3}, {"chunk": 2, "workers": 2}):
        with engine(federation=uneven(SIZES), copies=METHODS[name].copies, **(PLAIN | settings | cut)) as used:
            results.append(numbers(*loop.run(method, loop.context(used), used, save=keep)))
    for round_, record in kept.items():
        state = read_state(tmp_path / f"{round_}.safetensors", METHODS[name].own)
        with engine(federation=uneven(SIZES), copies=METHODS[name].copies, **(PLAIN | settings)) as used:
            resume = loop.Checkpoint(round_, state, record)
            results.append(numbers(*loop.run(method, loop.context(used), used, resume=resume)))
    for other in results[1:]:
        same(results[0], other)
    assert results[0]["1.epsilon"][-1] == pytest.approx(4) and (np.diff(results[0]["1.epsilon"]) > 0).all()


def test_another_seed_draws_other_noise():
    found = [run("fedavg", privacy=FOUR, seed=seed, epochs=None, steps=1, batch_size="full") for seed in (1, 2)]
    plain = [run("fedavg", seed=seed, epochs=None, steps=1, batch_size="full") for seed in (1, 2)]
    noise = [a[0].theta - b[0].theta for a, b in zip(found, plain, strict=True)]
    assert abs(np.corrcoef(torch.cat(noise).numpy())[0, 1]) < 0.4


def test_noise_of_a_mean_is_sigma_over_its_updates():
    """Effective noise: sigma / |C_j| on each parameter of model j, other models stay."""
    with engine(lambda: torch.nn.Linear(200, 30), uneven((5,) * 20, features=200), **PLAIN) as used:
        method, context = make("ifca", {"minimum": 1}, FOUR, clusters=4), loop.context(used)
        noise, target = method.inner.noise(context), np.repeat([0, 1, 2], [1, 3, 16])
        state = State(torch.zeros(4, used.layout.columns), target)
        update = Update(
            np.arange(20), target, np.ones(20, int), 2, sums=used.allocate(4, used.layout.columns, torch.float64)
        )
        method.merge(context, state, update, target, np.ones(20))
    theta = state.theta.numpy()
    assert noise.scale("updates") == pytest.approx(2 * 0.1 * noise.multiplier * math.sqrt(2))
    for model, count in enumerate((1, 3, 16)):
        assert theta[model].std() == pytest.approx(noise.scale("updates") / count, rel=0.04)
    assert not theta[3].any() and abs(np.corrcoef(theta[:2])[0, 1]) < 0.05


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.5])
def test_identifiers_flip_as_often_as_the_gaussian_tail_says(sigma):
    """Of two models: Q(1 / (sqrt(2) sigma)), SPEC of Lemma 4.8's second factor."""
    with engine(lambda: torch.nn.Linear(1, 3), uneven((1,) * 5000, features=1, tests=0), **PLAIN) as used:
        method, context = make("ifca", None, NONE | {"identifier_noise": sigma}), loop.context(used)
        state = method.begin(context)
        losses = np.tile([0.1, 0.9], (5000, 1))
        found = method.assign(context, state, 1, np.arange(5000), lambda theta=None, clients=None: losses)
    expected = norm.sf(1 / (math.sqrt(2) * sigma))
    assert (found.start == 0).all()
    assert found.target.mean() == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 5000))


def test_losses_are_clipped_and_noised_before_they_are_seen():
    with engine(federation=uneven((5,) * 400), **PLAIN) as used:
        method, context = make("clove", None, FOUR | {"loss_clip": 0.5}, first_round="losses"), loop.context(used)
        state = method.begin(context)
        losses = np.tile([[3.0, 4.0]], (400, 1))
        losses[0] = math.nan
        method.assign(context, state, 1, np.arange(400), lambda theta=None, clients=None: losses)
    expected = np.vstack([[0, 0], np.tile([0.3, 0.4], (399, 1))])
    drawn, noise = state.own.losses - expected, method.noise(context)
    assert drawn.std() == pytest.approx(noise.scale("identifiers"), rel=0.1)
    assert noise.scale("identifiers") == pytest.approx(0.5 * noise.multiplier * math.sqrt(2))


def test_shares_of_the_noise_compose():
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        context = loop.context(used)
        facts = make("ifca", None, FOUR | {"identifier_share": 0.2}).facts(context)["privacy"]
        alone = make("fedavg", None, FOUR).facts(context)["privacy"]
    parts = [facts[f"noise_multiplier_{part}"] for part in ("identifiers", "updates")]
    assert sum(1 / z**2 for z in parts) == pytest.approx(1 / facts["noise_multiplier"] ** 2)
    assert 1 / parts[0] ** 2 == pytest.approx(0.2 / facts["noise_multiplier"] ** 2)
    assert alone["noise_multiplier_identifiers"] is None
    assert alone["noise_multiplier_updates"] == alone["noise_multiplier"] == facts["noise_multiplier"]
    assert (
        facts["epsilon"] == pytest.approx(4)
        and facts["sampler"] == "fixed"
        and "added or removed" in facts["adjacency"]
    )


@pytest.mark.parametrize("accounting", ["theorem-4.2", "replace-one"])
def test_a_given_noise_multiplier_has_its_epsilon_reported(accounting):
    block = {"clip": 0.1, "noise_multiplier": 2.0, "delta": 1e-2, "accounting": accounting}
    rounds = [r["epsilon"] for r in run("fedavg", privacy=block, participation=0.5)[1].rounds]
    assert 0 < rounds[0] < rounds[1] < rounds[2]


def test_updates_that_may_move_get_the_noise_of_the_sensitivity_that_is_asked_for():
    """A clip of .1; with rebalancing one client moves two sums, by the paper's 2 clips or jointly by sqrt(5)."""
    found = []
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        for minimum, sensitivity in ((0, "joint"), (2, "paper"), (2, "joint")):
            block = {"noise_multiplier": 1.0, "clip": 0.1, "delta": 1e-2, "accounting": "theorem-4.2"}
            method = make("ifca", {"minimum": minimum}, block | {"sensitivity": sensitivity})
            found.append(method.facts(loop.context(used))["privacy"]["sensitivity_updates"])
    assert found == pytest.approx([0.1, 0.2, 0.1 * math.sqrt(5)])


def test_what_is_promised_is_of_the_clients_that_are_drawn_and_of_one_run():
    """45 % of 8 clients are 4 in a round, a half; and a guarantee of each trial is none of the best of them."""
    block = Privacy(clip=0.1, noise_multiplier=4.0, delta=1e-2, accounting="replace-one")
    method = METHODS["fedavg"]()
    with engine(federation=uneven(SIZES), **PLAIN, participation=0.45) as used:
        context = loop.context(used)
        facts = [wrap(method, "fedavg", None, block, trial).facts(context)["privacy"] for trial in (False, True)]
    assert [one["sampling_rate"] for one in facts] == [0.5, 0.5]
    assert [one["proven"] for one in facts] == [True, False]


def test_several_models_sums_are_one_sum_with_more_noise():
    """Of two planted groups an attacker adds up both sums, whose noise is then sqrt(2) times that of one."""
    found = {}
    with engine(federation=uneven(SIZES), **PLAIN, participation=0.5) as used:
        for name, multiplier in (("oracle", 1.5), ("fedavg", 1.5 * math.sqrt(2))):
            block = {"clip": 0.1, "noise_multiplier": multiplier, "delta": 1e-2, "accounting": "theorem-4.2"}
            found[name] = make(name, None, block).facts(loop.context(used))["privacy"]["epsilon_at_least"]
    assert found["oracle"] == pytest.approx(found["fedavg"], rel=1e-12) and found["oracle"] > 1


# Noise as given, without a guarantee


def test_noise_as_given_is_what_is_added():
    """Standard deviations in units of a one-hot choice, of the losses' clip and of the updates' clip."""
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        context = loop.context(used)
        chosen = make("ifca", {"minimum": 2}, NONE | {"identifier_noise": 0.3, "update_noise": 1.5})
        losses = make("clove", None, NONE | {"identifier_noise": 0.3, "update_noise": 0, "loss_clip": 2.0})
        facts = chosen.facts(context)["privacy"]
    for private, scales in ((chosen.inner, (0.3, 0.15)), (losses, (0.6, 0.0))):
        noise = private.noise(context)
        assert (noise.scale("identifiers"), noise.scale("updates")) == pytest.approx(scales)
        assert set(noise.multipliers) == set(noise.sensitivities) == {"identifiers", "updates"}
    assert math.isnan(chosen.spent(context, 3)) and not facts["proven"] and facts["accounting"] == "none"
    assert facts["epsilon"] is facts["delta"] is facts["noise_multiplier"] is None
    assert (facts["noise_multiplier_identifiers"], facts["noise_multiplier_updates"]) == (0.3, 1.5)


def test_no_noise_without_a_guarantee_is_the_clipped_method():
    """To the bit, also with rebalancing; a clip that nothing reaches leaves the method itself."""
    exact = NONE | {"identifier_noise": 0, "update_noise": 0}
    plain = run("ifca", {"minimum": 3})
    same(numbers(*plain, "1.epsilon"), numbers(*run("ifca", {"minimum": 3}, exact | {"clip": 1e5}), "1.epsilon"))
    found = run("ifca", {"minimum": 3}, exact)
    assert not torch.equal(found[0].theta, plain[0].theta)
    assert np.isnan([r["epsilon"] for r in found[1].rounds]).all()


def test_noise_on_sums_has_the_size_that_was_given():
    with engine(lambda: torch.nn.Linear(200, 30), uneven((5,) * 8, features=200), **PLAIN) as used:
        method, context = make("fedavg", None, NONE | {"update_noise": 2.0}), loop.context(used)
        update = Update(
            np.arange(8),
            np.zeros(8, int),
            np.ones(8, int),
            2,
            sums=used.allocate(1, used.layout.columns, torch.float64),
        )
        state = State(torch.zeros(1, used.layout.columns), np.zeros(8, int))
        method.merge(context, state, update, np.zeros(8, int), np.ones(8))
    assert state.theta.std() == pytest.approx(2.0 * 0.1 / 8, rel=0.04)


@pytest.mark.parametrize(
    "block, said",
    [
        ({"epsilon": 4, "delta": 0.1, "update_noise": 1}, "update_noise: only with accounting: none, .* no guarantee"),
        (
            {"accounting": "none", "update_noise": 1, "delta": 0.1},
            "counts nothing, and delta was given; allowed: ident",
        ),
        ({"accounting": "none"}, "counts nothing, and no noise was given"),
        ({"epsilon": 4}, "accounting: replace-one needs delta, above 0"),
    ],
)
def test_a_guarantee_and_noise_as_given_exclude_each_other(block, said):
    with pytest.raises(ValueError, match=said):
        Privacy(clip=1, **block)
    with pytest.raises(
        UserError, match="identifier_noise: method 'fedavg' sends neither choice nor losses; allowed: 0"
    ):
        run("fedavg", privacy=NONE | {"identifier_noise": 0.1})


# A first round at random


@pytest.mark.parametrize("name", ["ifca", "clove"])
@pytest.mark.parametrize("clients", [5, 6])
def test_a_random_first_round_is_each_clients_own(name, clients):
    """Whoever else is there: with one client more, or fewer participants, the others begin with the same models."""
    moved = 0
    for seed in range(20):
        labels, plain = [], []
        for there in (clients, clients - 1):
            federation = uneven((3,) * there)
            with engine(federation=federation, **PLAIN, seed=seed) as used:
                context = loop.context(used)
                for privacy, kept in ((FOUR, labels), (None, plain)):
                    method = make(name, None, privacy, clusters=4, first_round="random")
                    state = method.begin(context)
                    kept.append(method.assign(context, state, 1, np.arange(there), None).start)
        np.testing.assert_array_equal(labels[0][:-1], labels[1])
        moved += (plain[0][:-1] != plain[1]).any()
    assert moved > 1  # without privacy clients move into empty models, and one client more moves others


def test_with_poisson_the_first_round_is_round_one():
    """Whether anybody chose before would tell of the only client of an empty round."""
    settings = {"sampler": "poisson", "participation": 0.08, "rounds": 2, "divisor": "expected"}
    with engine(federation=uneven(SIZES), **(PLAIN | settings)) as used:
        method, context = make("ifca", None, POISSON, first_round="random"), loop.context(used)
        state, asked = method.begin(context), []

        def losses(theta=None, clients=None):
            asked.append(clients)
            return np.tile([0.1, 0.9], (3, 1))

        found = method.assign(context, state, 2, np.arange(3), losses)
    assert len(asked) == 1 and not found.start.any()  # round 1 was empty; in round 2 they choose by losses all the same


# Poisson sampling


def test_each_client_is_drawn_by_itself():
    with engine(federation=uneven(SIZES), **PLAIN, sampler="poisson", participation=0.3) as used:
        context = loop.context(used)
        drawn = np.zeros((4000, len(SIZES)))
        for round_ in range(4000):
            drawn[round_, draw(context, np.arange(len(SIZES)), round_)] = 1
        part = draw(context, np.array([1, 4]), 7)
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 4 * math.sqrt(0.21 / 4000)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(8)).max() < 4 / math.sqrt(4000)
    assert drawn.sum(axis=1).min() == 0 and set(part) == {1, 4} & set(np.flatnonzero(drawn[7]))


@pytest.mark.parametrize("name", ["fedavg", "oracle", "ifca", "clove", "local"])
def test_empty_rounds_pass_through_the_loop(name):
    """With a seed whose first and last rounds are empty, and some between."""
    settings = {
        "sampler": "poisson",
        "participation": 0.08,
        "rounds": 12,
        "evaluations": ["aggregated", "local", "stale"],
    }
    state, record = run(name, **settings)
    rounds, clusters = (Record.table(part) for part in (record.rounds, record.clusters))
    drawn = clusters["participated"].reshape(12, -1).sum(axis=1)
    assert (drawn == 0).any() and (drawn > 0).any()
    assert (rounds["bytes_up"][drawn == 0] == 0).all()
    assert state.theta.isfinite().all() and state.participations.sum() == drawn.sum()


def test_a_method_that_draws_a_number_of_clients_refuses_poisson():
    with pytest.raises(UserError, match=r"sampler: 'poisson' draws each client by itself, .* set sampler: fixed"):
        run("fedgwc", sampler="poisson")


def test_a_warm_up_may_have_empty_rounds():
    with engine(federation=uneven(SIZES), **PLAIN, sampler="poisson", participation=0.08) as used:
        warm = warm_up(used)
    assert warm.theta.isfinite().all() and warm.state.participations.sum() < len(SIZES)


POISSON = {"clip": 0.1, "noise_multiplier": 1.0, "delta": 1e-2, "accounting": "poisson"}


@pytest.mark.parametrize("name", ["fedavg", "oracle", "ifca"])
def test_with_poisson_every_model_gets_noise_in_every_round(name):
    """Otherwise a model that stays would tell that nobody trained it; identifiers need no noise."""
    thetas = []
    settings = {"sampler": "poisson", "participation": 0.08, "rounds": 12, "divisor": "expected"}
    with engine(federation=uneven(SIZES), **(PLAIN | settings)) as used:
        method, context = make(name, None, POISSON), loop.context(used)
        _, record = loop.run(method, context, used, save=lambda c: thetas.append(c.state.theta.clone()))
    empty = ~Record.table(record.clusters)["participated"].reshape(12, -1).any(axis=1)
    assert empty[1:].any() and method.facts(context)["privacy"]["noise_multiplier_identifiers"] is None
    assert all((b != a).any(dim=1).all() for a, b in pairwise(thetas))
    step = thetas[np.flatnonzero(empty[1:])[0] + 1] - thetas[np.flatnonzero(empty[1:])[0]]
    assert step.std() == pytest.approx(0.1 / (0.08 * 8 / len(step)), rel=0.3)


def test_with_poisson_nobody_sees_whether_anybody_took_part():
    """Only client 5 is drawn in the first round, and its update is 0; the second round's sums mustn't tell of it.

    FedALA's clients mix the round's model into theirs, so one that mixed only if somebody came would change all others.
    """

    def coins(seed, round_):
        return (streams.uniform(seed, "sample", round_, np.arange(6)) < 0.5).tolist()

    alone = [False] * 5 + [True]
    seed = next(s for s in range(10**5) if coins(s, 1) == alone and coins(s, 2) == [not drawn for drawn in alone])
    x, owner = np.random.default_rng(0).normal(size=(48, 2)).astype(np.float32), np.repeat(np.arange(6), 8)
    x[owner == 5] = 0
    settings = PLAIN | {"rounds": 2, "batch_size": 4, "learning_rate": 1e-4, "divisor": "expected"}
    settings |= {"participation": 0.5, "sampler": "poisson", "seed": seed}

    def sums(without):
        found = []

        def merge(old, context, state, update, target, weights):
            found.append(update.sums[:].numpy().copy())
            old(context, state, update, target, weights)

        def sample(old, context, state, round_):
            return np.setdiff1d(old(context, state, round_), without)

        method = changed(make("fedala", None, POISSON, tensors=1), sample=sample, merge=merge)
        federation = Federation.from_arrays(x, x @ np.array([1.0, -1.0]), owner)
        with engine(lambda: torch.nn.Linear(2, 1, bias=False), federation, **settings) as used:
            loop.run(method, loop.context(used), used)
        return found

    (first, second), (nothing, other) = sums([]), sums([5])
    assert not first.any() and not nothing.any() and second.any()
    np.testing.assert_array_equal(second, other)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedala", "ditto", "apfl", "pfedme"])
def test_a_client_that_diverges_stops_nothing_and_keeps_what_it_had(name):
    """Neither what it sends nor what it trains beside may end the run, which would name it."""
    x, owner = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32), np.repeat(np.arange(6), 8)
    y = (x[:, 0] > 0).astype(int)
    x[owner == 3] = 1e38

    def network():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

    def state(privacy, **more):
        federation = Federation.from_arrays(x, y, owner)
        with engine(network, federation, **(PLAIN | {"learning_rate": 0.5} | more)) as used:
            return loop.run(make(name, None, privacy), loop.context(used), used)[0]

    with pytest.raises(Diverged, match="client 3"):
        state(None)
    private, before = state(FOUR | {"accounting": "replace-one"}), state(NONE | {"update_noise": 1.0}, rounds=1)
    assert private.theta.isfinite().all() and before.theta.isfinite().all()
    if private.personal is not None:
        kept = private.personal.rows[:]
        assert kept.isfinite().all()
        assert not torch.equal(kept[2], before.personal.rows[2])
        assert name == "fedala" or torch.equal(kept[3], before.personal.rows[3])  # which mixes the common model into it


def test_of_two_runs_of_one_seed_the_noise_can_be_removed():
    """What a guarantee doesn't cover: both draw the same numbers, and each multiplies them by its own scale."""
    settings, found = PLAIN | {"rounds": 1, "participation": 0.5}, []
    for epsilon in (1.0, 2.0):
        with engine(federation=uneven(SIZES), **settings) as used:
            method, context = make("fedavg", None, FOUR | {"epsilon": epsilon}), loop.context(used)
            theta = loop.run(method, context, used)[0].theta.double()
            found.append((theta, method.noise(context).scale("updates")))
            assert "this run alone" in method.facts(context)["privacy"]["covers"]
    (one, much), (two, little) = found
    clean = run("fedavg", privacy=NONE | {"update_noise": 0.0}, **settings)[0].theta.double()
    removed = (much * two - little * one) / (much - little)
    assert (two - clean).abs().max() > 1e4 * (removed - clean).abs().max()


def test_expected_divides_by_what_tells_of_nobody():
    """Of 8 clients a half is expected, so 2 for each of two models, whoever is there."""
    with engine(federation=uneven(SIZES), **PLAIN, participation=0.5, divisor="expected") as used:
        method, state = make("ifca"), State(torch.zeros(2, 4), np.zeros(8, int))
        update = Update(
            np.arange(3), np.zeros(3, int), np.ones(3, int), sums=torch.full((2, 4), 6.0, dtype=torch.float64)
        )
        method.merge(loop.context(used), state, update, np.zeros(3, int), np.ones(3))
    assert state.theta.tolist() == [[3.0] * 4, [0.0] * 4]


# Refusals

WRONG = {
    "weights": ("fedavg", {"weights": "samples"}, {}, r"weights: 'samples' .* set weights: uniform"),
    "gradients": ("fedavg", {"average": "gradients", "batch_size": "full", "steps": 1, "epochs": None}, {},
                  r"training.average: 'gradients' isn't protected"),
    "excluded": ("fedavg", {"diverged": "exclude"}, {}, r"training.diverged: 'exclude' changes how many"),
    "own optimiser": (
        "fedavg",
        {"optimizer_state": "kept", "momentum": 0.9},
        {},
        r"training.optimizer_state: .* allowed with privacy: fresh",
    ),
    "own rounds": ("fedavg", {"schedule": "participation"}, {}, r"training.schedule: .* constant, round"),
    "ratio of chosen": ("ifca", {"divisor": "ratio"}, {}, r"divisor: 'ratio' .* participants, all, expected"),
    "groups' counts": ("oracle", {"participation": 0.5}, {}, r"divisor: 'participants' .* ratio, all, expected"),
    "wrong sampler": ("fedavg", {}, {"accounting": "poisson"}, r"sampler: 'fixed', but privacy.accounting: poisson"),
    "wrong accounting": ("fedavg", {"sampler": "poisson"}, {}, r"sampler: 'poisson', but .* sampler: fixed"),
    "counts": ("fedavg", {"sampler": "poisson"}, {"accounting": "poisson"}, r"divisor: 'participants' .*: expected"),
    "losses": ("clove", {"sampler": "poisson", "divisor": "expected"}, {"accounting": "poisson"},
               r"'clove' compares all participants' losses"),
    "local": ("local", {}, {}, r"'local' sends nothing"),
    "memory": ("fedper", {"participation": 0.5, "divisor": "ratio"}, {"accounting": "replace-one"},
               r"participation: 0.5, .*'fedper' what a client sends depends on what it keeps.*: 1, or sampler"),
    "memory, sent": ("fedala", {"participation": 0.5, "divisor": "ratio"}, {"accounting": "replace-one"},
                     r"training.participation: 0.5, .*'fedala'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_guaranteed_is_refused(case):
    name, settings, block, said = WRONG[case]
    with pytest.raises(UserError, match=said):
        run(name, privacy=FOUR | block, **settings)


@pytest.mark.parametrize(
    "name, options, said",
    [("ifca", {"least_share": 0.3}, "by least_share"), ("clove", {"stable_rounds": 3}, "by stable_rounds")],
)
def test_options_that_show_the_server_more_are_refused(name, options, said):
    with pytest.raises(UserError, match=rf"more of a client .*{said}.*nothing, choice, losses"):
        run(name, privacy=FOUR, options=options)


def test_one_shot_methods_are_refused():
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        context = loop.context(used, clustering=np.zeros(8, int))
        method = METHODS["lcfl"](start="initial")
        with pytest.raises(UserError, match=r"'lcfl' lets the server see more .*\(warm-up\)"):
            prepared(wrap(method, "lcfl", privacy=Privacy(**FOUR)), context)
        with pytest.raises(UserError, match="'lcfl' doesn't assign clients to models"):
            prepared(wrap(method, "lcfl", Rebalance(minimum=1)), context)


@dataclass(frozen=True, kw_only=True)
class Curious(Method):
    """A user's method that asks for losses and says nothing of it."""

    def assign(self, context, state, round_, clients, losses):
        losses()
        return super().assign(context, state, round_, clients, losses)


@dataclass(frozen=True, kw_only=True)
class Counting(Method):
    """Asks for shares of wrong predictions."""

    reveals: ClassVar = "losses"

    def assign(self, context, state, round_, clients, losses):
        losses.errors()
        return super().assign(context, state, round_, clients, losses)


@dataclass(frozen=True, kw_only=True)
class Reading(Method):
    """Needs single updates."""

    needs: ClassVar = frozenset({"updates"})


@dataclass(frozen=True, kw_only=True)
class Revealing(Method):
    """Lets clients reveal what no noise is made for."""

    reveals: ClassVar = "curves"


def test_methods_that_look_at_more_than_they_say_are_refused():
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        context = loop.context(used)
        with pytest.raises(UserError, match="asks for its clients' losses, and says that they reveal nothing"):
            loop.run(wrap(Curious(), "curious", privacy=Privacy(**FOUR)), context, used)
        with pytest.raises(UserError, match="asks for shares of wrong predictions, to which no noise is added"):
            loop.run(wrap(Counting(), "counting", privacy=Privacy(**FOUR)), context, used)
        for method, seen in ((Reading(), "updates"), (Revealing(), "curves")):
            with pytest.raises(UserError, match=rf"than noisy sums can protect \({seen}\)"):
                prepared(wrap(method, "curious", privacy=Privacy(**FOUR)), context)


@dataclass(frozen=True, kw_only=True)
class Regrouping(Method):
    """Looks at single updates, and weighs them."""

    def regroup(self, context, state, update):
        pass

    def weights(self, context, clients):
        return np.full(len(clients), 2.0)


@dataclass(frozen=True, kw_only=True)
class Drawing(Method):
    """Draws its participants."""

    def sample(self, context, state, round_):
        return np.arange(2)


def test_methods_with_hooks_of_their_own_are_refused():
    with engine(federation=uneven(SIZES), **PLAIN) as used:
        context = loop.context(used)
        with pytest.raises(UserError, match=r"protect \(regroup, weights\)"):
            prepared(wrap(Regrouping(), "own", privacy=Privacy(**FOUR)), context)
        with pytest.raises(UserError, match="'own' draws its participants by a rule of its own"):
            loop.run(wrap(Drawing(), "own", privacy=Privacy(**FOUR)), context, used)


def test_models_with_buffers_are_refused():
    with engine(norm_and_dropout, images(), **PLAIN) as used, pytest.raises(UserError, match="has buffers"):
        prepared(make("fedavg", None, FOUR), loop.context(used))


@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "fairavg",
        "fedprox",
        "local",
        "oracle",
        "cfl",
        "fesem",
        "fedgwc",
        "pacfl",
        "flexcfl",
        "k-fed",
        "fedem",
        "fedrc",
        "fedsoft",
        "fpfc",
        "flux",
        "stocfl",
        "feddrift",
    ],
)
def test_methods_that_do_not_assign_cannot_be_rebalanced(name):
    options = {"clusters": 2} if "clusters" in METHODS.options(name).model_fields else {}
    options |= {"variant": "kmeans"} if name == "fesem" else {}
    with pytest.raises(UserError, match=f"method '{name}' doesn't assign clients to models in each round"):
        run(name, {"minimum": 1}, options=options)


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("pacfl", "singular vectors of each"),
        ("flexcfl", "each client's first update"),
        ("k-fed", "centres of each"),
        ("fl-hc", "each client's update after"),
        ("flux", "moments of the features"),
        ("stocfl", "each client's first update, and"),
    ],
)
def test_what_is_asked_for_apart_from_rounds_is_not_protected(name, asks):
    with pytest.raises(UserError, match=rf"'{name}' lets the server see more .*\({asks}"):
        run(name, None, FOUR, {"clusters": 2} if "clusters" in METHODS.options(name).model_fields else {})


def test_fesem_is_rebalanced_but_not_private():
    options = {"clusters": 2}
    sizes = run("fesem", {"minimum": 3}, options=options)[0].rebalanced
    assert sizes[0, 0].min() == 0 and (sizes[:, 1].min(axis=1) >= 3).all()
    with pytest.raises(
        UserError,
        match=r"'fesem' lets .*\(updates: each client's last model.* remembers in which rounds its client was drawn",
    ):
        run("fesem", {"minimum": 3}, FOUR, options)


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"participation": 0.5},
            "rebalance.minimum: 3 updates for each of 2 clusters, but a round has 4 participants; allowed: 0 to 2",
        ),
        ({"sampler": "poisson"}, "with sampler: poisson a round may have fewer"),
        ({"divisor": "ratio"}, "divisor: ratio divides by the size of a cluster before"),
    ],
)
def test_what_cannot_be_rebalanced_is_reported_before_training(settings, said):
    with engine(federation=uneven(SIZES), **(PLAIN | settings)) as used:
        used.train = None
        with pytest.raises(UserError, match=said):
            loop.run(make("ifca", {"minimum": 3}), loop.context(used), used)


def test_a_large_delta_is_warned_about(capsys):
    run("fedavg", privacy=FOUR | {"delta": 0.2}, rounds=1)
    assert "privacy.delta: 0.2 isn't below 1 / clients = 0.12" in capsys.readouterr().err
    run("fedavg", privacy=FOUR | {"delta": 1 / 8}, rounds=1)  # equal to it: one of the clients, published, would do
    assert "privacy.delta: 0.125 isn't below" in capsys.readouterr().err
    run("fedavg", privacy=FOUR, rounds=1)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("block", [{"epsilon": 4, "noise_multiplier": 1.0}, {}])
def test_epsilon_or_noise_is_given(block):
    with pytest.raises(ValueError, match="give either epsilon, for which the noise is found, or noise_multiplier"):
        Privacy(clip=1, delta=0.1, **block)
