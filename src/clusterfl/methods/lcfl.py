"""LCFL, second half: FedAvg inside the clusters that the stages warm-up, distance and cluster found.

Paper: Gu, Chen, Wen, Cai and Han, arXiv 2407.09360, the algorithm's last step. Departures offered as options: the paper
says only that "FedOpt is run in every cluster"; the released code starts every cluster from the warm-up's global
model and samples inside each cluster, which are the defaults here.

The same file serves every one-shot method: DiffNorm and GradCos differ in the distance, not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..simulation.method import Context, Method, check_labels
from .fixed import Fixed


def lcfl(
    clustered: Context,
    *,
    start: Annotated[
        Literal["common", "members", "initial"],
        Field(
            description="a cluster's first model: the warm-up's global one (released), its members' mean, or untrained"
        ),
    ] = "common",
    sampling: Annotated[
        Literal["clusters", "clients"],
        Field(description="draw participants in each cluster, or over all clients"),
    ] = "clusters",
) -> Method:
    """Run FedAvg inside the clusters of the block's `clustering`."""
    assert clustered.clustering is not None
    return Fixed(clustered, check_labels(clustered.clustering, clustered.clients, "the clustering"), start, sampling)
