"""Metrics: functions that compute the distances between M clients from one input, which they declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel

from ..errors import UserError, choices
from ..registry import Registry

# Of all clients after the warm-up: losses [M, M] of client j's model on client i's data, the models' parameters [M, p],
# the gradients [M, p] of their last mini-batches, deltas [M, p], their last updates. Or the clients' samples: a
# sequence of samples [n, d] and classes [n] that counts what leaves a client (`simulation.survey.Samples`). See
# `pipeline.stages.distance` for where each comes from and what it costs.
Input = Literal["losses", "parameters", "gradients", "deltas", "samples"]
INPUTS: tuple[Input, ...] = get_args(Input)
Metric = TypeVar("Metric", bound=Callable[..., Any])


def computed_from(name: Input) -> Callable[[Metric], Metric]:
    """Declare a metric's one input: a decorator of the function, this package's or a user's.

    Raises
    ------
    UserError
        If there is no such input.
    """
    if name not in INPUTS:
        raise UserError(f"computed_from: there is no input '{name}'; {choices(INPUTS, str(name))}")

    def declare(metric: Metric) -> Metric:
        metric.computed_from = name  # type: ignore[attr-defined]
        return metric

    return declare


class Metrics(Registry):
    """The table of metrics."""

    def input(self, name: str) -> Input:
        """Return what a metric is computed from; its module is imported.

        Raises
        ------
        UserError
            If there is no such metric, or it doesn't declare its input.
        """
        found: Input | None = getattr(self[name], "computed_from", None)
        if found is None:
            raise UserError(
                f"metric '{name}' doesn't say what it is computed from; write @computed_from(\"losses\") above it, "
                "after `from clusterfl.clustering.metric import computed_from`; allowed: " + ", ".join(INPUTS)
            )
        return found

    def options(self, name: str) -> type[BaseModel]:
        """See `Registry.options`; a metric that doesn't declare its input is refused here."""
        self.input(name)
        return super().options(name)
