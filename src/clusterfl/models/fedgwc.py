"""FedGWC's networks (Licciardi et al., ICML 2025, arXiv 2502.03340)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from .plain import image, mlp, two_convolutions


def cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network for CIFAR-10 and CIFAR-100, as released; 815,332 parameters at 3 x 32 x 32, 100 classes."""
    return two_convolutions(sample_shape, outputs, (64, 64), 0, [384, 192])


def lenet5(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return LeNet5, for Femnist; 64,851 parameters at 1 x 28 x 28 with 47 classes.

    The paper only names it. This is today's usual form: LeCun, Bottou, Bengio and Haffner 1998, section II B, with all
    maps connected, 2 x 2 max pooling instead of scaled sums, and ReLU.
    """
    channels, height, width = image(sample_shape, 12)
    inner = (16, (height // 2 - 4) // 2, (width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        *mlp(inner, outputs, hidden=[120, 84]),
    )  # fmt: skip


def mobilenet(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return torchvision's MobileNetV2, for Landmarks and iNaturalist; 3,504,872 parameters with 1,000 classes.

    Untrained. Its batch normalisation's statistics are columns of a model's row, so they are averaged, too.
    """
    return _of_torchvision("mobilenet_v2", sample_shape, outputs)


def resnet(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    depth: Annotated[Literal[18, 34, 50], Field(description="number of layers with weights")] = 18,
) -> nn.Module:
    """Return torchvision's ResNet, untrained; 11,689,512 parameters with 18 layers and 1,000 classes."""
    return _of_torchvision(f"resnet{depth}", sample_shape, outputs)


def _of_torchvision(name: str, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    from ..data.readers.vision import torchvision

    if len(sample_shape) != 3 or sample_shape[0] != 3 or min(sample_shape[1:]) < 32:
        raise ValueError("it takes colour images [3, height, width] of at least 32 x 32")
    make: Any = getattr(torchvision().models, name)
    made: nn.Module = make(weights=None, num_classes=outputs)
    return made
