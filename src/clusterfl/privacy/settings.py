"""The settings of the blocks `rebalance` and `privacy` of a method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from ..engine.training import Training
from ..registry import Typed

WRAPPER = "clusterfl.privacy.wrapper"  # applies these settings; imported only if they are given
ROUNDING = 1e-6  # the most by which rounding makes a clipped update longer, as a share of `clip`
Accounting = Literal["theorem-4.2", "replace-one", "poisson", "none"]


class Rebalance(Typed):
    """RR-Cluster's rebalancing."""

    minimum: int = Field(ge=0, description="B, the least number of updates of a cluster in a round; 0 = no rebalancing")


class Privacy(Typed):
    """Differential privacy of clients, with a trusted server."""

    clip: float = Field(gt=0, description="largest Euclidean norm of a client's update; longer ones are clipped to it")
    epsilon: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=True,
        description="privacy loss of all rounds, from which the noise follows; .inf = no noise, no clipping",
    )
    noise_multiplier: float | None = Field(
        None, gt=0, description="a round's noise in units of its sensitivity, instead of epsilon, which is reported"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="probability with which epsilon may be exceeded; below 1 / clients"
    )
    accounting: Accounting = Field(
        "replace-one",
        description="how epsilon is computed: RR-Cluster's bound as printed, or by dp-accounting for one client's data "
        "replaced (sampler: fixed) or one client added or removed (sampler: poisson); none: noise as given, and no "
        "guarantee",
    )
    sensitivity: Literal["paper", "joint"] = Field(
        "paper",
        description="sensitivity in theorem-4.2 with rebalancing: 2 clip (RR-Cluster), or sqrt(5) clip, for all "
        "clusters jointly",
    )
    identifier_share: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="the identifiers' (or losses') share of 1 / noise_multiplier^2, if they get noise; not given in "
        "the paper",
    )
    loss_clip: float = Field(1.0, gt=0, description="largest Euclidean norm of a client's losses, if it sends them")
    identifier_noise: float | None = Field(
        None,
        ge=0,
        description="only with accounting none: standard deviation of the noise on a client's one-hot choice, or on "
        "its losses in units of loss_clip; 0 = exact",
    )
    update_noise: float | None = Field(
        None,
        ge=0,
        description="only with accounting none: standard deviation of the noise on each model's sum of updates, in "
        "units of clip; 0 = exact",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        counted = [key for key in ("epsilon", "noise_multiplier", "delta") if getattr(self, key) is not None]
        direct = [key for key in ("identifier_noise", "update_noise") if getattr(self, key) is not None]
        if not self.proves_nothing:
            if direct:
                raise ValueError(f"{' and '.join(direct)}: only with accounting: none, which gives no guarantee")
            if (self.epsilon is None) == (self.noise_multiplier is None):
                raise ValueError(
                    f"{'both' if self.epsilon else 'no noise'}: give either epsilon, for which the "
                    "noise is found, or noise_multiplier"
                )
            if self.delta is None:
                raise ValueError(f"accounting: {self.accounting} needs delta, above 0 and below 1 / clients")
        elif counted or not direct:
            raise ValueError(
                f"accounting: none counts nothing, and {' and '.join(counted) or 'no noise'} was given; allowed: "
                "identifier_noise and update_noise, at least one of them"
            )
        return self

    @property
    def proves_nothing(self) -> bool:
        """Whether the noise is given directly, and no privacy loss is computed."""
        return self.accounting == "none"

    @property
    def off(self) -> bool:
        """Whether nothing is clipped and no noise is added."""
        return self.epsilon == math.inf


def unbalanced(rebalance: Rebalance, training: Training) -> str | None:
    """Return why rounds may have too few updates to rebalance, or None."""
    if not rebalance.minimum:
        return None
    if training.sampler == "poisson":
        return (
            "with sampler: poisson a round may have fewer participants than the minimum needs; set sampler: fixed, or "
            "omit rebalance"
        )
    if training.faults is not None and (training.faults.loses or training.faults.corrupt):
        return (
            "with training.faults a round may have fewer participants than the minimum needs; allowed: stragglers with "
            "straggled: keep; or omit rebalance"
        )
    return None


def conflicts(privacy: Privacy, training: Training) -> Iterator[tuple[str, str]]:
    """Yield each training setting that no guarantee covers, and what is wrong with it."""
    sampler = "poisson" if privacy.accounting == "poisson" else "fixed"
    if training.sampler != sampler and not privacy.proves_nothing:
        yield (
            "sampler",
            f"'{training.sampler}', but privacy.accounting: {privacy.accounting} counts for sampler: {sampler}; set "
            "one of them",
        )
    if training.average == "gradients":
        yield "average", "'gradients' isn't protected by privacy; allowed: models"
    if training.diverged == "exclude":
        yield (
            "diverged",
            "'exclude' changes how many updates count, which would reveal one client; omit it: with privacy an "
            "update with NaN or infinity counts as zeros",
        )
    if not privacy.off and training.largest_update <= privacy.clip * (1 + ROUNDING):
        yield (
            "largest_update",
            f"{training.largest_update:g} isn't above privacy.clip: {privacy.clip:g}, so the run would stop for a "
            "clipped update and name its client; omit it, or set a larger one",
        )
    if training.optimizer_state == "kept":
        yield (
            "optimizer_state",
            "'kept' lets an update depend on the rounds in which its client was drawn before, which no accounting "
            "covers; allowed with privacy: fresh",
        )
    if training.schedule == "participation":
        yield (
            "schedule",
            "'participation' lets an update depend on the rounds in which its client was drawn before, which no "
            "accounting covers; allowed with privacy: constant, round",
        )
