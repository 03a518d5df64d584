"""An attack on the real mechanism: what it tells of one client stays below the claim, and each broken form is noticed.

Runs of many rounds in the package's own loop and engine: participants are drawn, choose, train, are clipped, moved,
added up with noise and merged. After each round the models are put back, so that rounds are independent trials of one
round. The attacker knows everything but whether a client has its own data or its neighbour's (or is there), sees the
models and which model each update went to, and decides by the likelihood ratio. From its errors, Clopper and Pearson's
bounds at 95 % give a lower bound on epsilon (Jagielski, Ullman and Oprea, NeurIPS 2020).

Each of T clients is attacked, by its own parameter: client i's only feature is the i-th, and all others leave that
parameter as it is. So what happens there is the same whether the others are replaced, too, and a round is T trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from federations import beginning, changed, slow_but
from scipy.stats import beta, kstest, norm

from clusterfl.data.federation import Federation
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.methods import METHODS
from clusterfl.privacy import losses
from clusterfl.privacy.private import Private
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop

DELTA, CLIP, FAR = 1e-2, 0.01, 1e4


@dataclass(frozen=True)
class Case:
    """A mechanism, and what attacked clients have as target values in both federations; None: they aren't there."""

    accounting: str
    z: float
    attacked: int
    others: int
    share: float  # of the clients in a round
    values: tuple[float | None, float | None] = (FAR, -FAR)
    method: str = "fedavg"
    minimum: int = 0


CASES = {
    "all take part": Case("replace-one", 1.5, 40, 0, 1.0),
    "drawn without replacement": Case("replace-one", 1.2, 40, 0, 0.95),
    "poisson": Case("poisson", 1.0, 40, 1, 0.7, (FAR, None)),
    "identifiers": Case("replace-one", 1.0, 40, 0, 1.0, method="ifca"),
    "rebalanced": Case("replace-one", 1.5, 1, 7, 1.0, method="ifca", minimum=3),
}
DISPLACED = Case("theorem-4.2", 1.0, 1, 4, 0.4, (FAR, None))
BROKEN = ("half the noise", "no clipping", "doubled weight")


def federation(case, value):
    """Return clients of one sample: attacked ones with a feature and a value of their own, and others."""
    features = np.eye(case.attacked) if value is not None else np.zeros((0, case.attacked))
    others = np.zeros((case.others, case.attacked))
    y = np.array([*[value] * len(features), *[0.0] * case.others], dtype=float)
    if case is DISPLACED:  # there the others pull the other way, so that it counts who is displaced
        others[:], y[len(features) :] = 1, -FAR
    return Federation.from_arrays(np.vstack([features, others]), y, np.arange(len(y)))


def settings(case, clients, rounds):
    poisson = case.accounting == "poisson"
    drawn = round(case.share * (case.attacked + case.others))
    return Training(
        rounds=rounds, evaluate_every=rounds, weights="uniform", epochs=1,
        participation=case.share if poisson else drawn / clients,
        sampler="poisson" if poisson else "fixed", divisor="expected" if poisson else "all",
    )  # fmt: skip


class Unclipped(Private):
    """Lets updates be as long as they are."""

    clip = math.inf


def private(case, broken):
    """Return the method and its private part; broken as it says."""
    options = {"clusters": 2} if case.method == "ifca" else {}
    block = Privacy(clip=CLIP, noise_multiplier=case.z, delta=DELTA, accounting=case.accounting)
    rebalancing = Rebalance(minimum=case.minimum) if case.minimum else None
    method = wrap(METHODS[case.method](**options), case.method, rebalancing, block)
    part = method.inner if case.minimum else method
    if broken == "half the noise":  # epsilon is still counted by the whole
        part = changed(part, noise=lambda old, context: halved(old(context)))
    elif broken == "no clipping":
        part = Unclipped(**{one.name: getattr(part, one.name) for one in fields(part)})
    elif broken == "doubled weight":
        part = changed(part, weights=lambda old, context, clients: 1.0 + (clients < case.attacked))
    return replace(method, inner=part) if case.minimum else part, part


def halved(noise):
    return replace(noise, multipliers={name: z / 2 for name, z in noise.multipliers.items()})


def trials(case, value, seed, rounds, broken):
    """Return what is seen of each attacked client: sums [rounds, K, T], models [rounds, T]; claim; sigma."""
    data = federation(case, value)
    training = settings(case, data.clients, rounds)
    divisor = training.participation * data.clients
    begin = torch.tensor([[1.0], [-1.0]] if case.method == "ifca" else [[0.0]])
    sums, models = [], []
    with Engine(
        lambda: torch.nn.Linear(case.attacked, 1, bias=False), data, training, seed, device="cpu", chunk=64
    ) as engine:
        context, (method, part) = loop.context(engine), private(case, broken)
        claim, sigma = part.spent(context, 1), part.noise(context).scale("updates")

        def put_back(checkpoint):
            theta = checkpoint.state.theta
            sums.append(((theta - begin) * divisor).numpy().copy())
            theta[:] = begin

        def look(old, context, state, update, target, weights):
            went = state.labels.copy()
            went[update.clients] = target
            models.append(went[: case.attacked])
            old(context, state, update, target, weights)

        method = changed(method, merge=look, spent=lambda old, context, round_: math.nan)  # hundreds of them are slow
        loop.run(beginning(method, begin.expand(-1, case.attacked)), context, engine, save=put_back)
    return np.array(sums), np.array(models), claim, sigma


def evidence(case, rounds, broken):
    """Return the attacker's statistic in all trials of both federations, and the claim."""
    seen = [trials(case, value, seed, rounds, broken) for seed, value in enumerate(case.values, 1)]
    (*_, claim, sigma) = seen[0]
    if case.method != "ifca":  # the likelihood ratio grows with the sum
        return [sums.ravel() for sums, *_ in seen], claim
    # Of each federation: how often a client's update goes to each model, then the normal density of that model's sum.
    shares = [np.bincount(models.ravel(), minlength=2) / models.size for _, models, *_ in seen]
    shift, found = CLIP * (2 if broken == "doubled weight" else 1), []
    for sums, models, *_ in seen:
        own = np.take_along_axis(sums, models[:, None], axis=1).ravel()
        known = np.log(shares[0][models] / shares[1][models]).ravel()
        found.append(known + norm.logpdf(own, shift, sigma) - norm.logpdf(own, -shift, sigma))
    return found, claim


def lower_bound(one, other):
    """Return a bound that epsilon exceeds with confidence; the threshold is chosen on the first half of the trials."""
    half = len(one) // 2

    def bound(one, other, threshold):
        def upper(hits):  # of a probability, one-sided; 2.5 % for each of two
            return beta.ppf(0.975, hits + 1, len(one) - hits) if hits < len(one) else 1.0

        missed, false = (one <= threshold).sum(), (other > threshold).sum()
        return math.log(max(1 - DELTA - upper(missed), 1e-12) / upper(false))

    # Beyond the last 25 the first half's best threshold would be a matter of luck.
    thresholds = np.quantile(other[:half], np.linspace(0.3, 1 - 25 / half, 200))
    best = max(thresholds, key=lambda t: bound(one[:half], other[:half], t))
    return bound(one[half:], other[half:], best)


def audited(case, number, broken=None):
    (one, other), claim = evidence(case, max(1, number // case.attacked), broken)
    return lower_bound(one, other), claim


@pytest.mark.parametrize("name", slow_but(["poisson"], ["all take part", "poisson", "identifiers"]))
def test_an_attack_stays_below_the_claim_and_half_the_noise_is_caught(name):
    found, claim = audited(CASES[name], 4000)
    assert 0.3 * claim < found < claim
    assert audited(CASES[name], 4000, "half the noise")[0] > claim


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_broken_form_is_caught(name):
    """Sampling without replacement, noisy identifiers and rebalancing among them."""
    number = 20_000 if CASES[name].attacked > 1 else 8000
    found, claim = audited(CASES[name], number)
    print(f"{name}: claimed {claim:.3f}, at least {found:.3f}")
    assert 0.3 * claim < found < claim
    for broken in BROKEN:
        caught = audited(CASES[name], number, broken)[0]
        print(f"  {broken}: at least {caught:.3f}")
        assert caught > claim, broken


@pytest.mark.slow
def test_a_displaced_client_moves_a_sum_by_twice_the_clip():
    """Two of five clients a round, or of four: the distributions are those of `losses.displaced`."""
    (with_it, without), claim = evidence(DISPLACED, 500, None)
    sigma = DISPLACED.z * CLIP
    moved, still = norm(0, sigma), norm(-2 * CLIP, sigma)
    assert kstest(without, still.cdf).pvalue > 0.01
    assert kstest(with_it, lambda x: 0.4 * moved.cdf(x) + 0.6 * still.cdf(x)).pvalue > 0.01
    assert kstest(with_it, still.cdf).pvalue < 1e-6
    assert losses.displaced(DISPLACED.z, 0.4, 1, DELTA) > 1.5 * claim
