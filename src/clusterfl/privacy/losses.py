"""Epsilon by privacy loss distributions, which is exact up to a grid; a wrapper of dp-accounting.

The privacy loss of two distributions P and Q is ``log P(x) / Q(x)``, x drawn from P. Losses of successive rounds add
up, so their distributions are convolved, and delta at an epsilon follows (Koskela, Jälkö and Honkela, AISTATS 2020;
here by dp-accounting's grid, Doroshenko et al., PoPETs 2022). Upper bounds are rounded up, lower ones down.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..errors import UserError

GRID = 1e-3  # the coarsest interval of the grid of losses, for usual noise multipliers


def dp_accounting() -> Any:
    """Return the package, or raise an error that says how to install it."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            f"privacy.accounting: replace-one and poisson need dp-accounting, which can't be imported ({error}); "
            "install it with 'pip install dp-accounting', or use accounting: theorem-4.2"
        ) from error
    return dp_accounting


def of_gaussian(z: float, rounds: int, delta: float) -> float:
    """Return the exact epsilon of successive Gaussian mechanisms, without sampling.

    Together they are one Gaussian mechanism of multiplier ``z / sqrt(rounds)``, even if each depends on the results
    before it (Dong, Roth and Su, JRSS B 2022); its epsilon is known in closed form (Balle and Wang, ICML 2018).
    """
    return float(dp_accounting().get_epsilon_gaussian(z / math.sqrt(rounds), delta))


def noise_of_gaussian(epsilon: float, rounds: int, delta: float) -> float:
    """Return the noise multiplier z with which `of_gaussian` is at most `epsilon`, to nine digits."""
    return float(dp_accounting().get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds) * (1 + 1e-9))


def of_poisson(z: float, q: float, rounds: int, delta: float) -> float:
    """Return an upper bound, by less than .1 %, on epsilon of Gaussian mechanisms after Poisson sampling at rate q."""
    return float(_distribution(z, q, True).self_compose(rounds).get_epsilon_for_delta(delta))


def displaced(z: float, q: float, rounds: int, delta: float) -> float:
    """Return a lower bound on epsilon for one added client if a fixed number of clients is drawn.

    Let all others have the update u with norm c and the new client -u. With probability q it is drawn, in another
    client's place: a round's sum is ``N(n u, sigma^2)`` without the client, and with it a mixture with the weight q on
    ``N(n u - 2 u, sigma^2)``. This is the pair of Poisson sampling at rate q with sensitivity 2c.

    Parameters
    ----------
    z
        The noise's standard deviation in units of c.
    q
        The share of clients drawn, below 1.
    """
    return float(_distribution(z / 2, q, False).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _distribution(z: float, q: float, safe: bool) -> Any:
    """Return a round's privacy loss distributions, for adding and for removing one client, at rate q."""
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
