"""LCFL, second half: FedAvg inside the clusters that the stages warm-up, distance and cluster have found.

Paper: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, the algorithm's last step. Departures offered as options: the paper
says only that "FedOpt is run in every cluster"; the released code starts every cluster from the warm-up's global
model and samples inside each cluster, which are the defaults here.

Every one-shot method uses this file: DiffNorm and GradCos differ in the distance, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ..simulation.method import Context, Ids, Method, State, check_labels
from .fixed import begin_with, draw_in_clusters


@dataclass(frozen=True, kw_only=True)
class LCFL(Method):
    """Run FedAvg inside the clusters that the method's `clustering` settings give."""

    settles: ClassVar[bool] = True
    one_shot: ClassVar[bool] = True
    start: Annotated[
        Literal["common", "members", "initial"],
        Field(
            description="a cluster's first model: the warm-up's global one (released), its members' mean, or untrained"
        ),
    ] = "common"
    sampling: Annotated[
        Literal["clusters", "clients"],
        Field(description="draw participants in each cluster, or over all clients"),
    ] = "clusters"

    def unprotected(self) -> str | None:
        """See `Method.unprotected`: the clusters come from models that clients sent in the warm-up."""
        return "warm-up"

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        return begin_with(context, _labels(context), self.start)

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """See `Method.sample`."""
        if self.sampling == "clients":
            return super().sample(context, state, round_)
        return draw_in_clusters(context, state.labels, round_)


def _labels(context: Context) -> Ids:
    assert context.clustering is not None
    return check_labels(context.clustering, context.clients, "the clustering")
