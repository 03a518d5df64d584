"""Networks: the published numbers of parameters."""

from __future__ import annotations

import pytest
import torch

from clusterfl.models import MODELS


@pytest.mark.parametrize(
    "name, shape, outputs, options, parameters",
    [
        ("lcfl-cnn", (1, 28, 28), 10, {}, 417_482),  # LCFL's network for MNIST and FEMNIST
        ("mlp", (1, 28, 28), 10, {}, 784 * 200 + 200 + 200 * 10 + 10),  # IFCA's 784-200-10
        ("mlp", (1, 8, 8), 10, {"hidden": [64]}, 4_810),  # the default study's
        ("linear", (20,), 1, {}, 21),
    ],
)
def test_parameters(name, shape, outputs, options, parameters):
    model = MODELS[name](shape, outputs, **options)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, outputs)
