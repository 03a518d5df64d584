"""The privacy loss of T noisy rounds, computed in one of three ways.

``theorem-4.2``: RR-Cluster's bound as printed (arXiv 2508.06183, Theorem 4.2, which is Theorem 9 of Wang, Balle and
Kasiviswanathan, AISTATS 2019, arXiv 1808.00087) with Mironov's conversion (CSF 2017). Adjacent federations differ by
one client added or removed, as in the paper, though its theorem is for replacing a client: no guarantee, and
`losses.displaced` gives adjacent federations that can be distinguished better than the bound states.

``replace-one``: sampling without replacement; adjacent federations differ in one client's data. By Rényi divergence;
exact if all clients take part.

``poisson``: each client drawn independently; adjacent federations differ by one client added or removed. By
privacy loss distributions.

A noise multiplier is a standard deviation in units of the sensitivity. Those of identifiers and of updates compose as
``1 / z^2 = 1 / z_s^2 + 1 / z_theta^2``: Gaussian mechanisms have Rényi divergence ``alpha / (2 z^2)`` (Mironov 2017),
and two of them in a row are one Gaussian mechanism (Dong, Roth and Su, JRSS B 2022).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from . import losses
from .settings import Accounting

INTEGERS = np.arange(2, 513)  # orders alpha of theorem-4.2
ORDERS = [*(x / 4 for x in range(5, 44)), *range(11, 64), 128, 256, 512, 1024]
LEAST_ORDER = 2.0  # for sampled rounds: below it dp-accounting's series may not converge
WIDEST = 1e-4, 1e7  # range of noise multipliers that is searched
Divergences = tuple[Any, NDArray[np.float64]]  # orders alpha and a round's Rényi divergence at each


def epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    accounting: Accounting = "replace-one",
    adaptive: bool = False,
) -> float:
    """Return the epsilon of `rounds` rounds at `delta`.

    Parameters
    ----------
    noise_multiplier
        z of a round, above 0.
    sampling_rate
        q, the share of clients drawn in a round; 1: no amplification by sampling.
    adaptive
        A client's update depends on its noisy identifiers, so a round is two Gaussian mechanisms and not one; only for
        ``replace-one``, which then uses Wang et al.'s theorem for any mechanism.
    """
    z, q, delta = float(noise_multiplier), float(sampling_rate), float(delta)
    if _by_losses(accounting, q):
        return losses.of_gaussian(z, rounds, delta) if q == 1 else losses.of_poisson(z, q, rounds, delta)
    return _by_divergence(z, q, rounds, delta, accounting, adaptive)


def _by_divergence(z: float, q: float, rounds: int, delta: float, accounting: Accounting, adaptive: bool) -> float:
    """Return epsilon by Rényi divergences."""
    orders, divergence = _round(z, q, accounting, adaptive)
    total = rounds * divergence
    if _by_dp_accounting(accounting, adaptive, q):
        return float(losses.dp_accounting().rdp.compute_epsilon(orders, total, delta)[0])
    return float(np.min(total - math.log(delta) / (orders - 1)))


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    accounting: Accounting = "replace-one",
    adaptive: bool = False,
) -> float:
    """Return the least noise multiplier, to six digits, with which `rounds` rounds cost at most `epsilon`.

    0 if epsilon is infinite. The other arguments are those of the function `epsilon`.

    Raises
    ------
    UserError
        If no noise is enough: Theorem 4.2's terms of order 3 and more don't vanish, however large the noise.
    """
    if epsilon == math.inf:
        return 0.0
    if not _by_losses(accounting, sampling_rate):
        return _least_noise(epsilon, sampling_rate, rounds, delta, accounting, adaptive)
    if sampling_rate == 1:
        return losses.noise_of_gaussian(epsilon, rounds, delta)

    from scipy.optimize import brentq

    # With little noise the loss distributions are long: start from the coarser bound's result, and search downwards.
    high = math.log(_least_noise(epsilon, sampling_rate, rounds, delta, accounting, adaptive))

    def above(log_z: float) -> float:
        return losses.of_poisson(math.exp(log_z), sampling_rate, rounds, delta) - epsilon

    while above(high) > 0:  # by rounding
        high += 1e-3
    low = high - 0.1
    while above(low) < 0:
        low, high = low - 0.3, low
    z = math.exp(brentq(above, low, high, xtol=1e-9))
    while losses.of_poisson(z, sampling_rate, rounds, delta) > epsilon:
        z *= 1 + 1e-7
    return float(z)


def _least_noise(epsilon: float, q: float, rounds: int, delta: float, accounting: Accounting, adaptive: bool) -> float:
    """Return the least noise multiplier, like `noise_for`, by Rényi divergences."""
    from scipy.optimize import brentq

    def above(log_z: float) -> float:  # logarithms of both, whose relation is nearly linear
        spent = _by_divergence(math.exp(log_z), q, rounds, delta, accounting, adaptive)
        return math.log(spent / epsilon) if spent else -math.inf

    low, high = map(math.log, WIDEST)
    if above(high) > 0:
        raise UserError(
            f"privacy.epsilon: {epsilon:g} can't be reached in {rounds} rounds with delta {delta:g}; allowed with "
            f"accounting {accounting}: above {epsilon * math.exp(above(high)):.4g}; raise epsilon or delta, or train "
            "for fewer rounds"
        )
    return math.exp(brentq(above, low, high, xtol=1e-10) + 1e-9)


def factors(accounting: Accounting, rebalanced: bool = False, sensitivity: str = "paper") -> dict[str, float]:
    """Return the sensitivities: of ``updates`` in units of their clip, of a ``choice``, of ``losses`` in their clip.

    0: no noise is needed. docs/privacy.md justifies these values.
    """
    if accounting == "theorem-4.2":
        moved = {"paper": 2.0, "joint": math.sqrt(5)}[sensitivity]
        return {"updates": moved if rebalanced else 1.0, "choice": 1.0, "losses": 1.0}
    if accounting == "replace-one":
        return {"updates": 2.0, "choice": math.sqrt(2), "losses": 2.0}
    return {"updates": 1.0, "choice": 0.0}


def adjacency(accounting: Accounting) -> str:
    """Return in words which federations are adjacent in an accounting."""
    return {
        "theorem-4.2": "one client added or removed, as RR-Cluster has it, with a theorem for sampling without "
        "replacement, which is about replacing",
        "replace-one": "one client's data replaced",
        "poisson": "one client added or removed",
        "none": "none",
    }[accounting]


def proven(accounting: Accounting) -> bool:
    """Return whether an accounting's epsilon is a guarantee; docs/privacy.md has the arguments."""
    return accounting in ("replace-one", "poisson")


def counted_by(accounting: Accounting, adaptive: bool, rate: float) -> str:
    """Return in words how epsilon is computed."""
    if accounting == "none":
        return "nothing"
    if accounting == "theorem-4.2":
        return "the bound as printed"
    if _by_losses(accounting, rate):
        return "privacy loss distribution" if rate < 1 else "Gaussian mechanism, exact"
    return "Rényi divergence, Theorem 9 of Wang et al." if adaptive else "Rényi divergence, Theorem 27 of Wang et al."


def _by_losses(accounting: Accounting, q: float) -> bool:
    """Return whether the privacy loss distribution is known; for sampling without replacement it isn't."""
    return accounting == "poisson" or (accounting == "replace-one" and q == 1)


@lru_cache(maxsize=64)
def _round(z: float, q: float, accounting: Accounting, adaptive: bool) -> Divergences:
    """Return the orders and a round's Rényi divergence at each."""
    if not _by_dp_accounting(accounting, adaptive, q):
        return INTEGERS, INTEGERS / (2 * z**2) if q == 1 else _amplified(z, q)
    dp = losses.dp_accounting()
    event, relation = dp.GaussianDpEvent(z), dp.NeighboringRelation.REPLACE_ONE
    if accounting == "poisson":
        event, relation = dp.PoissonSampledDpEvent(q, event), dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    elif q < 1:
        share = Fraction(q).limit_denominator(10**9)
        event = dp.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, event)
    orders = [alpha for alpha in ORDERS if q == 1 or alpha >= LEAST_ORDER]
    accountant = dp.rdp.RdpAccountant(orders, relation).compose(event)
    return accountant.orders, accountant.rdp


def _by_dp_accounting(accounting: Accounting, adaptive: bool, q: float) -> bool:
    return accounting == "poisson" or (accounting == "replace-one" and not (adaptive and q < 1))


def _amplified(z: float, q: float) -> NDArray[np.float64]:
    """Return Theorem 4.2's eps'(alpha) at `INTEGERS`, with ``eps(j) = j / (2 z^2)`` and ``eps(inf) = inf``.

    ``(alpha - 1) eps' = log(1 + q^2 C(alpha, 2) min{4 (e^eps(2) - 1), 2 e^eps(2)} + sum over j = 3 .. alpha of
    2 q^j C(alpha, j) e^((j - 1) eps(j)))``, in logarithms: terms [alpha, j].
    """
    alpha, j = INTEGERS[:, None], INTEGERS[None, :]
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, INTEGERS[-1] + 1)))])  # of factorials
    choose = np.where(j <= alpha, logs[alpha] - logs[j] - logs[np.maximum(alpha - j, 0)], -np.inf)
    two = 1 / z**2  # eps(2)
    grows = np.log(2) + (j[0] - 1) * j[0] / (2 * z**2)
    grows[0] = min(math.log(4) + two + math.log(-math.expm1(-two)), two + math.log(2))
    terms = choose + j * math.log(q) + grows
    most = np.maximum(terms.max(axis=1), 0.0)
    sums = np.exp(-most) + np.exp(terms - most[:, None]).sum(axis=1)
    found: NDArray[np.float64] = (most + np.log(sums)) / (INTEGERS - 1)
    return found
