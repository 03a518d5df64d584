"""RR-Cluster's synthetic experiment: IFCA leaves models untrained, rebalancing trains all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import engine

from clusterfl.data.federation import Federation
from clusterfl.data.readers.linear import linear_1d
from clusterfl.methods import METHODS
from clusterfl.metrics import adjusted_rand_index
from clusterfl.privacy.settings import Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop

LINES, CLIENTS = 4, 25


def lines(seed, folder):
    """100 clients of 40 points on one of four lines, all above where models begin."""
    samples = linear_1d(folder, slopes=[1.0] * LINES, intercepts=[2.0, 4.0, 6.0, 8.0], noise=0.1, seed=seed)
    group = np.repeat(np.arange(LINES), 1000)
    return Federation.from_arrays(samples.x, samples.y, CLIENTS * group + np.arange(4000) % CLIENTS, None, group)


@pytest.mark.slow
def test_rebalancing_trains_the_models_that_ifca_leaves(tmp_path):
    """In the paper's figure IFCA leaves one of four models at the bottom; here one or two in each seed."""
    found = {0: [], 20: []}
    for seed in range(5):
        for minimum in found:
            settings = {"batch_size": "full", "steps": 5, "epochs": None, "learning_rate": 0.05, "weights": "uniform"}
            with engine(torch.nn.Linear(1, 1), lines(seed, tmp_path), seed=seed, rounds=100, **settings) as used:
                method = wrap(METHODS["ifca"](clusters=LINES), "ifca", Rebalance(minimum=minimum))
                state, _ = loop.run(method, loop.context(used), used)
                began = torch.stack([used.initial(k) for k in range(LINES)])
            untrained = int((state.theta == began).all(1).sum())
            found[minimum].append((untrained, adjusted_rand_index(used.federation.true_cluster, state.labels)))
    assert min(untrained for untrained, _ in found[0]) >= 1
    assert all(untrained == 0 for untrained, _ in found[20])
    assert np.mean([ari for _, ari in found[20]]) > 0.8 > 0.7 > np.mean([ari for _, ari in found[0]])
