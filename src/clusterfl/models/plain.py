"""Networks that several papers use."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn


def linear(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    bias: Annotated[bool, Field(description="an intercept; CLoVE's linear regression has none")] = True,
) -> nn.Module:
    """Return one linear layer: multinomial logistic or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), outputs, bias=bias))


def mlp(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(description="units of each hidden layer")] = [200],  # noqa: B006
) -> nn.Sequential:
    """Return a multi-layer perceptron with ReLU.

    ``hidden: [200]`` on 28 x 28 is IFCA's 784-200-10; ``[1000, 500, 100]`` on 5,000 words CLoVE's for Amazon reviews.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(sample_shape)
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def image(sample_shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Return channels, height and width of a sample; raise an error unless it's an image of at least `least` pixels."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < least:
        raise ValueError(
            f"its convolutions need images [channels, height, width] of at least {least} x {least}; for other samples "
            "take mlp or linear"
        )
    channels, height, width = sample_shape
    return channels, height, width


def two_convolutions(
    sample_shape: tuple[int, ...],
    outputs: int,
    filters: tuple[int, int],
    padding: int,
    hidden: list[int],
    width: int = 5,
) -> nn.Sequential:
    """Return two convolutions of `width` x `width`, each with ReLU and pooling by 2, before fully connected layers.

    The common part of the papers' networks for small images. For 5 x 5, padding of 2 keeps sizes, and 0 removes 4
    pixels each time. Pooling comes before ReLU, which gives the same result with a quarter of the numbers.
    """
    lost = width - 1 - 2 * padding
    channels, *sizes = image(sample_shape, 3 * lost + 4)
    inner = [((size - lost) // 2 - lost) // 2 for size in sizes]
    first, second = filters
    return nn.Sequential(
        nn.Conv2d(channels, first, width, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, width, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *mlp((second, *inner), outputs, hidden=hidden),
    )
