"""A model trained beside the one that is sent, or training in turns: what can't be combined with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .envelope import Envelope
from .features import Features
from .lockstep import Lockstep
from .personal import Towards
from .training import Training

Beside = Envelope | Lockstep


def check(
    beside: Beside | None, training: Training, turns: bool, features: Features | None, kept: Mapping[str, Any],
    needs: frozenset[str],
) -> None:  # fmt: skip
    """Check that the arguments can be combined with a model trained beside; they are those of `Engine.train`.

    Raises
    ------
    UserError
        If `beside` is given with turns, lookahead or gradients, or a lockstep with features, kept optimiser states or
        the last gradient.
    """
    if beside is not None and (turns or training.lookahead or training.average == "gradients"):
        raise UserError(
            "training with a centre, or of two models in lockstep, can't be combined with turns, lookahead or "
            "average: gradients; allowed: none of these"
        )
    if isinstance(beside, Lockstep) and (features is not None or kept or "last_gradient" in needs):
        raise UserError(
            "two models in lockstep can't use features, keep optimiser states or send a last gradient; allowed: "
            "optimizer_state: fresh and none of these"
        )


def check_turns(training: Training, towards: Towards, kept: Mapping[str, Any], needs: frozenset[str]) -> None:
    """Check that the arguments can be combined with training in turns; they are those of `Engine.train`.

    Raises
    ------
    UserError
        If `towards` isn't ``start``, or with kept optimiser states, gradients or sums of features.
    """
    if towards != "start":
        raise UserError("with turns, the proximal term pulls to each turn's start; allowed: towards 'start'")
    if kept or training.average == "gradients" or {"last_gradient", "features"} & needs:
        raise UserError(
            "each turn has a new optimiser, and there is no single last gradient or sum of features; allowed with "
            "turns: optimizer_state: fresh and average: models"
        )
