"""Networks. A model is a function of ``(sample_shape, outputs)`` and its options that returns a torch module.

`outputs` is the number of classes, or 1 for regression.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn


def linear(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return one linear layer: multinomial logistic or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), outputs))


def mlp(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(description="units of each hidden layer")] = [200],  # noqa: B006
) -> nn.Module:
    """Return a multi-layer perceptron with ReLU; ``hidden: [200]`` on 28 x 28 is IFCA's 784-200-10."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(sample_shape)
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def lcfl_cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return LCFL's network for MNIST and FEMNIST (``CNNFEMnist_Tiny`` in fl-sim); 417,482 parameters at 1x28x28."""
    channels, height, width = sample_shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 256),
        nn.ReLU(),
        nn.Linear(256, outputs),
    )
