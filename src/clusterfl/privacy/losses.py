"""Epsilon by privacy loss distributions, which is exact up to a grid; a module around dp-accounting.

The privacy loss of two distributions P and Q is ``log P(x) / Q(x)``, x drawn from P; that of rounds in a row adds up,
so its distribution is convolved, and delta at an epsilon follows from it (Koskela, Jälkö and Honkela, AISTATS 2020;
here by dp-accounting's grid, Doroshenko et al., PoPETs 2022). Upper bounds round to the safe side, lower ones down.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..errors import UserError

GRID = 1e-3  # the coarsest interval of the grid of losses, for noise multipliers that somebody uses


def dp_accounting() -> Any:
    """Return the package, or say how it is installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            f"privacy.accounting: replace-one and poisson need dp-accounting, which can't be imported ({error}); "
            "install it with 'pip install clusterfl[privacy]', or use accounting: theorem-4.2"
        ) from error
    return dp_accounting


def of_gaussian(z: float, rounds: int, delta: float) -> float:
    """Return the exact epsilon of Gaussian mechanisms in a row, without sampling.

    They are together one of multiplier ``z / sqrt(rounds)``, also where each depends on the results of those before
    (Dong, Roth and Su, JRSS B 2022), whose curve is known in closed form (Balle and Wang, ICML 2018).
    """
    return float(dp_accounting().get_epsilon_gaussian(z / math.sqrt(rounds), delta))


def noise_of_gaussian(epsilon: float, rounds: int, delta: float) -> float:
    """Return the noise multiplier z with which `of_gaussian` is at most `epsilon`, to nine digits."""
    return float(dp_accounting().get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds) * (1 + 1e-9))


def of_poisson(z: float, q: float, rounds: int, delta: float) -> float:
    """Return an upper bound on epsilon, by less than .1 %, of Gaussian mechanisms after Poisson sampling at rate q."""
    return float(_distribution(z, q, True).self_compose(rounds).get_epsilon_for_delta(delta))


def displaced(z: float, q: float, rounds: int, delta: float) -> float:
    """Return a lower bound on epsilon for a client that is added where a fixed number of clients is drawn.

    Let all others have the update u with norm c and the new client -u. With probability q it is drawn, and somebody
    else isn't: a round's sum is ``N(n u, sigma^2)`` without the client, and with it the mixture that has the weight q
    on ``N(n u - 2 u, sigma^2)``. The pair is that of Poisson sampling at rate q with the sensitivity 2c.

    Parameters
    ----------
    z
        The noise's standard deviation in units of c.
    q
        The share of clients that is drawn, below 1.
    """
    return float(_distribution(z / 2, q, False).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _distribution(z: float, q: float, safe: bool) -> Any:
    """Return the privacy loss distributions of a round, both ways round, of one client more or less at rate q."""
    dp_accounting()
    from dp_accounting.pld import privacy_loss_distribution

    # Losses are about q / z each, and reach to about 1 / (2 z^2).
    grid = min(GRID, max(q / (50 * z), GRID / 50)) if z > 0.3 else GRID * (0.3 / z) ** 2
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        pessimistic_estimate=safe,
        use_connect_dots=safe,
        value_discretization_interval=grid if safe else grid / 4,
        sampling_prob=q,
    )
