"""Generated regression data: real targets from a few planted linear models; a sample's model is its group.

Everything is computed in double precision and rounded to float32 at the end, so that the last bits of sums, in which
processors differ, have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ... import streams
from ...errors import UserError
from ..samples import Samples

Floats = NDArray[np.float64]
DRAWS = 1000  # sets of models drawn before giving up


def linear(
    folder: Path,
    *,
    clusters: Annotated[int, Field(gt=0, description="planted models")] = 5,
    dimension: Annotated[int, Field(gt=1, description="features of a sample")] = 20,
    delta: Annotated[float, Field(gt=0, le=2, description="least distance of two models; the most is 5 delta")] = 1.0,
    noise: Annotated[float, Field(ge=0, description="standard deviation of the targets' noise")] = 1e-4,
    samples: Annotated[int, Field(gt=0, description="samples of each model")] = 5000,
    seed: Annotated[
        Annotated[int, Field(ge=0)] | Literal["run"],
        Field(description="seed of models and samples; run: the run's data seed, so each run has its own data"),
    ] = 0,
) -> Samples:
    """Return the set-up of CLoVE's linear experiments: float32 ``[clusters * samples, dimension]``, x ~ N(0, I).

    The models have unit norm and pairwise distances in [delta, 5 delta]. They are drawn around a common direction c,
    ``theta_k = sqrt(1 - s^2) c + s u_k`` with unit u_k orthogonal to c, so that two of them are about sqrt(2) s apart;
    with ``s = min(1, sqrt(2) delta)`` that is 2 delta if the sphere has room for it. Sets outside the bounds are
    drawn again. The paper's delta goes from 0.0003 to 1 (appendix D.1.1, Fig. 3); the default is its largest.
    """
    spread = min(1.0, np.sqrt(2) * delta)

    def draw(generator: np.random.Generator) -> Floats:
        centre = _unit(generator.standard_normal((1, dimension)))
        offsets = generator.standard_normal((clusters, dimension))
        offsets = _unit(offsets - (offsets @ centre.T) * centre)
        return np.sqrt(1 - spread**2) * centre + spread * offsets

    def fits(models: Floats) -> bool:
        apart = _distances(models)
        return bool(((apart >= delta) & (apart <= 5 * delta)).all())

    models = _drawn(seed, "linear", draw, fits, f"{clusters} models of unit norm at least {delta:g} apart")
    return _regression(models, np.zeros(clusters), [samples] * clusters, noise, seed, "linear")


def linear_ifca(
    folder: Path,
    *,
    clusters: Annotated[int, Field(gt=0, description="planted models")] = 4,
    dimension: Annotated[int, Field(gt=0, description="features of a sample")] = 1000,
    radius: Annotated[float, Field(gt=0, description="norm of a model")] = 1.0,
    noise: Annotated[float, Field(ge=0, description="standard deviation of the targets' noise")] = 0.1,
    samples: Annotated[int, Field(gt=0, description="samples of each model")] = 2500,
    seed: Annotated[
        Annotated[int, Field(ge=0)] | Literal["run"],
        Field(description="seed of models and samples; run: the run's data seed, so each run has its own data"),
    ] = 0,
) -> Samples:
    """Return the synthetic set-up of IFCA: float32 ``[clusters * samples, dimension]``, x ~ N(0, I).

    Coordinates of a model are 0 or 1 with equal chance, then scaled to norm `radius` (Ghosh et al. 2020, arXiv
    2006.04088). Models are drawn again until none is zero and no two are equal. The defaults of radius, noise and
    samples are ours: the paper varies them.
    """

    def draw(generator: np.random.Generator) -> Floats:
        return radius * _unit(generator.integers(0, 2, (clusters, dimension)).astype(np.float64))

    def fits(models: Floats) -> bool:
        return bool(np.isfinite(models).all() and (_distances(models) > 0).all())

    models = _drawn(seed, "linear-ifca", draw, fits, f"{clusters} different models with coordinates 0 or 1")
    return _regression(models, np.zeros(clusters), [samples] * clusters, noise, seed, "linear-ifca")


def linear_1d(
    folder: Path,
    *,
    sizes: Annotated[list[int], Field(min_length=1, description="samples of each line")] = [1000, 1000, 1000, 1000],  # noqa: B006 (read from the source as a literal, never changed)
    slopes: Annotated[list[float], Field(description="slope per line")] = [2.0, -2.0, 1.0, -1.0],  # noqa: B006
    intercepts: Annotated[list[float], Field(description="intercept per line")] = [1.0, 1.0, -1.0, -1.0],  # noqa: B006
    noise: Annotated[float, Field(ge=0, description="standard deviation of the targets' noise")] = 0.1,
    seed: Annotated[
        Annotated[int, Field(ge=0)] | Literal["run"],
        Field(description="seed of the samples; run: the run's data seed, so that each run has its own data"),
    ] = 0,
) -> Samples:
    """Return points on lines, ``y = slope x + intercept + noise``: float32 ``[sum of sizes, 1]``, x ~ N(0, 1).

    RR-Cluster's synthetic experiment: equal sizes are its balanced case, unequal ones its imbalanced case; low noise is
    its easy case, high noise its hard one. The paper prints none of these numbers; the defaults are ours.
    """
    if not len(sizes) == len(slopes) == len(intercepts) or min(sizes) < 1:
        raise UserError(
            f"linear-1d: sizes {sizes}, slopes {slopes} and intercepts {intercepts} need one value for each line, and "
            "sizes from 1 on; give as many of each"
        )
    return _regression(np.array(slopes)[:, None], np.array(intercepts), sizes, noise, seed, "linear-1d")


def _unit(rows: Floats) -> Floats:
    """Scale rows to norm 1; a row of zeros becomes NaN."""
    with np.errstate(invalid="ignore"):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _distances(rows: Floats) -> Floats:
    """Return the distances of all pairs of rows, ``[n * (n - 1) / 2]``."""
    first, second = np.triu_indices(len(rows), 1)
    return np.linalg.norm(rows[first] - rows[second], axis=1)


def _drawn(
    seed: int | str,
    purpose: str,
    draw: Callable[[np.random.Generator], Floats],
    fits: Callable[[Floats], bool],
    words: str,
) -> Floats:
    """Return the first set of models that fits, ``[clusters, dimension]``."""
    number = _number(seed, purpose)
    for attempt in range(DRAWS):
        models = draw(streams.generator(number, f"{purpose} models", attempt))
        if fits(models):
            return models
    raise UserError(
        f"{purpose}: no {words} in {DRAWS} draws; ask for fewer clusters, more dimensions or a smaller distance"
    )


def _number(seed: int | str, purpose: str) -> int:
    """Return the seed; a study has replaced ``run`` by it."""
    if isinstance(seed, str):
        raise UserError(f"{purpose}: seed: '{seed}' is a run's seed, and there is no run here; give a number from 0 on")
    return seed


def _regression(
    models: Floats, intercepts: Floats, sizes: list[int], noise: float, seed: int | str, purpose: str
) -> Samples:
    """Return samples of each model in turn, with the model as their group."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    generator = streams.generator(_number(seed, purpose), f"{purpose} samples")
    x = generator.standard_normal((len(group), models.shape[1]))
    y = (x * models[group]).sum(axis=1) + intercepts[group] + noise * generator.standard_normal(len(group))
    return Samples(x.astype(np.float32), y.astype(np.float32), group=group)
