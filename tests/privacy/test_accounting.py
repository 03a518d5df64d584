"""The three accountings: against exact arithmetic, closed forms and dp-accounting, and in their degenerate cases."""

from __future__ import annotations

import builtins
import math
from decimal import Decimal, localcontext

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from federations import slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from clusterfl.errors import UserError
from clusterfl.privacy import accounting, epsilon, losses, noise_for
from clusterfl.privacy.accounting import ORDERS, counted_by, factors

NAMES = ("theorem-4.2", "replace-one", "poisson")
# noise multiplier, sampling rate, rounds, delta
TEN = [
    (0.5, 0.01, 10, 1e-3), (0.8, 0.064, 100, 1e-3), (1.0, 0.064, 100, 1e-3), (1.0, 0.1, 50, 1e-5), (1.5, 0.2, 30, 1e-4),
    (2.0, 0.064, 300, 1e-3), (4.0, 0.5, 100, 1e-5), (1.0, 1.0, 1, 1e-5), (8.0, 1.0, 60, 1e-3), (20.0, 1.0, 100, 1e-5),
]  # fmt: skip
CASES = [(case,) for case in TEN]


def printed(z, q, rounds, delta, orders=range(2, 513)):
    """Theorem 4.2 and its conversion, term by term in 60 digits; without sampling the Gaussian's own divergence."""
    with localcontext() as context:
        context.prec, context.Emax = 60, 10**12
        z, q, delta, found = Decimal(z), Decimal(q), Decimal(delta), []

        def of_one(j):  # eps(j)
            return j / (2 * z * z)

        for alpha in orders:
            inner = 1 + q**2 * math.comb(alpha, 2) * min(4 * (of_one(2).exp() - 1), of_one(2).exp() * 2)
            inner += sum(q**j * math.comb(alpha, j) * ((j - 1) * of_one(j)).exp() * 2 for j in range(3, alpha + 1))
            one = inner.ln() / (alpha - 1) if q < 1 else of_one(Decimal(alpha))
            found.append(rounds * one - delta.ln() / (alpha - 1))
        return float(min(found))


@pytest.mark.parametrize("case", TEN)
def test_theorem_against_exact_arithmetic(case):
    z, q, rounds, delta = case
    orders = [2, 3, 4, 5, 6, 8, 12, 20, 40, 60, 100]
    near = accounting.epsilon(*case, accounting="theorem-4.2")
    assert near <= printed(*case, orders) * (1 + 1e-12)
    total = rounds * accounting._round(z, q, "theorem-4.2", False)[1]
    best = int(accounting.INTEGERS[np.argmin(total - math.log(delta) / (accounting.INTEGERS - 1))])
    assert near == pytest.approx(printed(*case, [best]), rel=1e-10)


@pytest.mark.parametrize("case", slow_but(CASES[1:5], CASES))
def test_beside_dp_accounting(case):
    """Its accountants by Rényi divergence, with integer orders: ours are below; the printed theorem is looser."""
    z, q, rounds, delta = case
    events = {
        "replace-one": dp.SampledWithoutReplacementDpEvent(1000, round(1000 * q), dp.GaussianDpEvent(z)),
        "poisson": dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)),
    }
    relations = {"replace-one": dp.NeighboringRelation.REPLACE_ONE, "poisson": dp.NeighboringRelation.ADD_OR_REMOVE_ONE}
    found = {}
    for name, event in events.items():
        accountant = rdp.RdpAccountant([*range(2, 40), 63], relations[name]).compose(event, rounds)
        found[name] = accountant.get_epsilon(delta)
        ours = epsilon(*case, accounting=name)
        assert 0.45 * found[name] < ours <= found[name] * (1 + 1e-9)
    assert epsilon(*case, accounting="theorem-4.2") >= found["replace-one"] >= found["poisson"] * (1 - 1e-12)


def gaussian_delta(z, epsilon):
    """The curve of the Gaussian mechanism, Theorem 8 of Balle and Wang (ICML 2018)."""
    return norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)


def test_without_sampling_it_is_the_gaussian_mechanism():
    """Exactly, and rounds in a row are one with less noise; below Rényi divergences alpha / (2 z^2)."""
    for rounds, adaptive in ((1, False), (9, False), (9, True)):
        for name in NAMES[1:]:
            found = epsilon(3.0, 1.0, rounds, 1e-5, accounting=name, adaptive=adaptive)
            assert gaussian_delta(3 / math.sqrt(rounds), found) == pytest.approx(1e-5, rel=1e-6)
            assert counted_by(name, adaptive, 1.0) == "Gaussian mechanism, exact"
            orders, divergence = accounting._round(3.0, 1.0, name, False)
            np.testing.assert_allclose(divergence, np.array(ORDERS) / 18, rtol=1e-12)
            assert found < rdp.compute_epsilon(orders, rounds * divergence, 1e-5)[0] < 1.2 * found
    by_hand = min(a / 18 + math.log(1e5) / (a - 1) for a in range(2, 513))
    assert epsilon(3.0, 1.0, 1, 1e-5, accounting="theorem-4.2") == pytest.approx(by_hand, rel=1e-12)


def test_composition_of_two_parts():
    """Orders' divergences add up: z of two Gaussian mechanisms is that of 1 / z^2 = 1 / a^2 + 1 / b^2."""
    a, b = 2.0, 5.0
    z = 1 / math.sqrt(1 / a**2 + 1 / b**2)
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.GaussianDpEvent(a), 7).compose(dp.GaussianDpEvent(b), 7)
    assert epsilon(z, 1.0, 7, 1e-4) == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-5)
    assert epsilon(z, 0.999, 7, 1e-4, accounting="theorem-4.2") == pytest.approx(
        printed(z, 0.999, 7, 1e-4, range(2, 30)), rel=1e-9
    )


SAMPLED = [(case,) for (case,) in CASES if case[1] < 1]


@pytest.mark.parametrize("case", slow_but(SAMPLED[1:2], SAMPLED))
def test_poisson_between_bounds_of_a_finer_grid(case):
    """Ours is an upper bound by less than .1 %: beside dp-accounting's accountant, and numerical integration."""
    z, q, rounds, delta = case
    found = epsilon(*case, accounting="poisson")
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    other = accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), rounds).get_epsilon(delta)
    assert found == pytest.approx(other, rel=2e-4)
    assert counted_by("poisson", False, q) == "privacy loss distribution"
    divergence = accounting._by_divergence(z, q, rounds, delta, "poisson", False)
    assert found < divergence  # 4.69 instead of 5.73, 2.89 of 3.50, ...
    one = epsilon(z, q, 1, delta, accounting="poisson")
    assert max(mixture_delta(z, q, one, way) for way in (False, True)) == pytest.approx(delta, rel=2e-2)


def mixture_delta(z, q, epsilon, reverse):
    """delta of one round by numerical integration: ``N(0, z^2)`` against ``(1 - q) N(0, z^2) + q N(1, z^2)``."""
    x = np.linspace(-14 * z - 1, 14 * z + 2, 400_001)
    without = norm.pdf(x, 0, z)
    with_it = (1 - q) * without + q * norm.pdf(x, 1, z)
    p, other = (without, with_it) if reverse else (with_it, without)
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * other, 0), x))


DISPLACED = [(4, 7.2), (8, 20.0), (16, 45.0)]


@pytest.mark.parametrize("claim, least", slow_but(DISPLACED[:1], DISPLACED))
def test_a_displaced_client_is_reported_apart_better_than_the_theorem_says(claim, least):
    """DP-FedAvg as in the reduced study: 64 of 1,000 clients, 40 rounds, delta 1e-3, sensitivity c."""
    z = noise_for(claim, 0.064, 40, 1e-3, accounting="theorem-4.2")
    found = losses.displaced(z, 0.064, 40, 1e-3)
    assert found == pytest.approx(least, abs=0.06) and found > 1.8 * claim
    above = losses.of_poisson(z / 2, 0.064, 40, 1e-3)  # the same pair, rounded to the other side
    assert above - 0.05 < found <= above


def test_the_displaced_clients_pair_is_a_mixture_at_twice_the_clip():
    """One round, z in units of c, by integration: delta at the bound is just above the one asked for."""
    z, q, delta = 1.5, 0.4, 1e-2
    found = losses.displaced(z, q, 1, delta)
    exact = max(mixture_delta(z / 2, q, found, way) for way in (False, True))
    assert delta <= exact < 1.02 * delta
    # without the displacement, by c alone, it would be no more than this
    assert found > 1.5 * losses.of_poisson(z, q, 1, delta)


def test_losses_are_counted_by_the_theorem_for_any_mechanism():
    """A client's update depends on its noisy losses: two mechanisms, for which only the general theorem is known."""
    case = (1.0, 0.064, 100, 1e-3)
    assert epsilon(*case, adaptive=True) == epsilon(*case, accounting="theorem-4.2") > epsilon(*case)
    assert epsilon(1.0, 1.0, 9, 1e-3, adaptive=True) == epsilon(1.0, 1.0, 9, 1e-3)
    assert [counted_by("replace-one", adaptive, 0.1)[-24:] for adaptive in (True, False)] == [
        "Theorem 9 of Wang et al.", "heorem 27 of Wang et al."
    ]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.sampled_from(NAMES), st.floats(0.4, 5), st.floats(0.01, 0.79), st.integers(1, 200), st.floats(1.05, 1.25))
def test_monotone_in_noise_rate_and_rounds(name, z, q, rounds, more):
    """Of rates below 1: bounds of sampling aren't tight near it, and with all clients the Gaussian's own is taken."""

    def spent(z, q, rounds):
        return epsilon(z, round(q, 3), rounds, 1e-4, accounting=name)

    slack = 1 + 1e-4  # a grid's
    assert spent(z * more, q, rounds) <= spent(z, q, rounds) * slack
    assert spent(z, q * more, rounds) * slack >= spent(z, q, rounds)
    assert spent(z, q, rounds + 1) * slack >= spent(z, q, rounds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("q", [pytest.param(0.064, marks=pytest.mark.slow), 1.0])
def test_noise_for_inverts_epsilon(name, q):
    for target in (4.0, 16.0) if name != "replace-one" else (4.0,):  # which is slow
        z = noise_for(target, q, 20, 1e-3, accounting=name)
        assert target * (1 - 1e-5) < epsilon(z, q, 20, 1e-3, accounting=name) <= target
    assert noise_for(math.inf, q, 20, 1e-3, accounting=name) == 0


def test_what_no_noise_reaches_is_reported():
    with pytest.raises(UserError, match=r"0.5 can't be reached in 300 rounds .* above 2.038; raise epsilon or delta"):
        noise_for(0.5, 0.064, 300, 1e-3, accounting="theorem-4.2")
    assert epsilon(12.0, 0.064, 300, 1e-3) < 0.5  # dp-accounting's terms vanish with much noise


def test_sensitivities():
    assert factors("theorem-4.2")["updates"] == 1
    assert factors("theorem-4.2", True)["updates"] == 2
    assert factors("theorem-4.2", True, "joint")["updates"] == math.sqrt(5)
    for rebalanced in (False, True):  # given the noisy identifiers, groups are fixed
        assert factors("replace-one", rebalanced) == {"updates": 2, "choice": math.sqrt(2), "losses": 2}
    assert factors("poisson") == {"updates": 1, "choice": 0}


def test_without_dp_accounting_it_is_reported(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("dp_accounting"):
            raise ImportError("No module named 'dp_accounting'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"pip install dp-accounting', or use accounting: theorem-4.2"):
        epsilon(1.23, 0.5, 3, 1e-3)
    assert epsilon(1.23, 0.5, 3, 1e-3, accounting="theorem-4.2") > 0
