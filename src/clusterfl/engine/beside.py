"""What a client trains beside the model that it sends, and what this, or training in turns, can't be combined with."""

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
    """Refuse what isn't possible with it; arguments as `Engine.train` has them.

    Raises
    ------
    UserError
        If steps aren't plain, or two models are to have what is there for one.
    """
    if beside is not None and (turns or training.lookahead or training.average == "gradients"):
        raise UserError(
            "steps with a centre, or of two models in lockstep, are no turns, pairs or gradients; allowed: plain ones "
            "of models"
        )
    if isinstance(beside, Lockstep) and (features is not None or kept or "last_gradient" in needs):
        raise UserError(
            "two models in lockstep pull no features, keep no optimisers and have no one last gradient; allowed: "
            "optimizer_state: fresh and none of these"
        )


def check_turns(training: Training, towards: Towards, kept: Mapping[str, Any], needs: frozenset[str]) -> None:
    """Refuse what isn't possible where tensors are trained in turns; arguments as `Engine.train` has them.

    Raises
    ------
    UserError
        If models are pulled elsewhere, or what is of one training is to be of several.
    """
    if towards != "start":
        raise UserError("tensors that are trained in turns are pulled to where each turn begins; allowed: start")
    if kept or training.average == "gradients" or {"last_gradient", "features"} & needs:
        raise UserError(
            "tensors that are trained in turns have new optimisers in each, and no one last gradient or sum of "
            "features; allowed: optimizer_state: fresh and average: models"
        )
