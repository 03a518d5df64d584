"""Numbers that are fixed whatever is trained: that ours equals print says nothing about the paper."""

from __future__ import annotations

from .reading import ARI_ROUND
from .runs import Run

ONE_MODEL = ("fedavg", "fedprox", "fedavgm", "fairavg")  # methods that train a single model
GIVEN = ("ifca", "fesem")  # methods for which FedGWC prints the number of clusters, which is an input


def constructed(run: Run, metric: str, at: str) -> str:
    """Return why a number of a run couldn't have come out differently; '' if it could."""
    block, paper = run.block, run.claims.paper
    if paper == "lcfl" and at.isdecimal() and int(at) <= run.warmup:
        return f"in the warm-up of {run.warmup} rounds the method is FedAvg"
    if block.method in ONE_MODEL and metric in ("n_clusters", "was", "wadb"):
        return f"{block.method} has one model"
    if metric == "n_clusters" and block.rebalance is not None and block.rebalance.minimum:
        return "rebalancing gives every model clients in each round"
    if metric == "n_clusters" and paper == "fedgwc" and block.method in GIVEN:
        return f"the number of clusters is given: {block.options()['clusters']}"
    first_split = block.options().get("first_split", 0) if block.method == "cfl" else 0
    if metric == "ari_round_10" and first_split > ARI_ROUND:
        return f"CFL may not split before round {first_split}: one cluster"
    return ""
