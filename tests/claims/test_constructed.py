"""Numbers that can't be other ones, by the settings of the run that they are of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterfl.claims import scale
from clusterfl.claims.constructed import constructed
from clusterfl.claims.ours import methods_of
from clusterfl.claims.printed import claims


def of(paper: str, metric: str, at: str = "final", warmup: int = 0, **block: Any) -> str:
    """Return why a number is by construction, of a run with such settings of its method."""
    options = block.pop("options", {})
    made = SimpleNamespace(**{"rebalance": None, "options": lambda: options} | block)
    run = SimpleNamespace(block=made, claims=SimpleNamespace(paper=paper), warmup=warmup)
    return constructed(run, metric, at)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked, said",
    [
        (("lcfl", "accuracy", "5", 5, "lcfl", {}), "in the warm-up of 5 rounds the method is FedAvg"),
        (("lcfl", "accuracy", "6", 5, "lcfl", {}), ""),
        (("lcfl", "accuracy", "5", 0, "ifca", {}), ""),
        (("fedgwc", "n_clusters", "final", 0, "fedavg", {}), "fedavg has one model"),
        (("fedgwc", "was", "final", 0, "fedprox", {}), "fedprox has one model"),
        (("fedgwc", "balanced_accuracy", "final", 0, "fedavg", {}), ""),
        (("fedgwc", "n_clusters", "final", 0, "ifca", {"clusters": 5}), "the number of clusters is given: 5"),
        (("fedgwc", "was", "final", 0, "ifca", {"clusters": 5}), ""),
        (("fedgwc", "n_clusters", "final", 0, "fedgwc", {}), ""),
        (("rr-cluster", "n_clusters", "final", 0, "ifca", {"clusters": 4}), ""),  # of which models stay untrained
        (
            ("clove", "ari_round_10", "10", 0, "cfl", {"first_split": 21}),
            "CFL may not split before round 21: one cluster",
        ),
        (("clove", "ari_round_10", "10", 0, "cfl", {"first_split": 11}), ""),  # a split in round 11 shows there
        (("clove", "ari", "final", 0, "cfl", {"first_split": 21}), ""),
    ],
)
def test_what_cannot_be_another_number(asked: tuple[Any, ...], said: str) -> None:
    paper, metric, at, warmup, method, options = asked
    assert of(paper, metric, at, warmup, method=method, options=options) == said


def test_rebalancing_trains_every_model() -> None:
    for minimum, words in ((0, ""), (10, "rebalancing gives every model clients in each round")):
        block = {"method": "ifca", "rebalance": SimpleNamespace(minimum=minimum)}
        assert of("rr-cluster", "n_clusters", **block) == words
        assert of("rr-cluster", "clustering_accuracy", **block) == ""


def test_numbers_by_construction_in_the_shipped_studies() -> None:
    """Those that the shipped settings make so, counted by what is printed: all ARI-10 of CFL are 0 in print."""
    found: dict[tuple[str, str], int] = {}
    for paper in ("clove", "fedgwc"):
        plan = scale.shipped(paper)
        own = scale.claims_of(plan)
        for cell in own.cells:
            for method in methods_of(paper, cell):
                place = scale.named(plan, own.profile, cell, method)
                if place is None:
                    continue
                block = plan.on(place[0]).methods[place[1]]
                run: Any = SimpleNamespace(block=block, claims=own, warmup=0)
                for one in claims():
                    if (one.paper, one.cell, one.method) == (paper, cell, method) and constructed(
                        run, one.metric, one.at
                    ):
                        found[paper, one.metric] = found.get((paper, one.metric), 0) + 1
                        if one.metric == "ari_round_10":
                            assert one.value == "0.00"
    assert found["fedgwc", "n_clusters"] > 25 and found["fedgwc", "was"] == found["fedgwc", "wadb"] > 0
    first = scale.shipped("clove").study.methods["cfl"].options().get("first_split", 0)
    cfl = sum((c.metric, c.method) == ("ari_round_10", "cfl") for c in claims())
    assert found.get(("clove", "ari_round_10"), 0) == (cfl if first > 11 else 0)
