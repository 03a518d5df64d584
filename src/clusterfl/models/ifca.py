"""IFCA's networks (Ghosh et al., NeurIPS 2020), as in its released code. For MNIST: `mlp`."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

import torch
from torch import Tensor, nn

from .plain import image, two_convolutions

PENALTY = 0.004  # L2, of the weights of the two hidden layers alone
INITIAL = [(0.05, 0.0), (0.05, 0.1), (0.04, 0.1), (0.04, 0.1), (1 / 192, 0.0)]  # by layer: std of weights, bias


class ResponseNorm(nn.LocalResponseNorm):
    """PyTorch's layer, with another implementation on a CPU."""

    on_cpu: ClassVar[type[nn.Module]]


class ResponseNormOnCPU(ResponseNorm):
    """The same numbers up to rounding: sums over neighbouring channels by one product, the power by square roots.

    PyTorch uses a three-dimensional pooling window, channel by channel, which takes half of a step of this network.
    """

    def forward(self, input: Tensor) -> Tensor:
        """See `torch.nn.LocalResponseNorm`; ``input [n, channels, ...]``."""
        rows, channel = input.movedim(1, -1), torch.arange(input.shape[1])
        away = channel[:, None] - channel  # from the normalised to the summed channel
        near = (away >= -(self.size // 2)) & (away <= (self.size - 1) // 2)
        inner = (rows.square() @ near.to(rows.dtype)).mul(self.alpha / self.size).add(self.k)
        if self.beta == 0.75:
            root = inner.rsqrt()
            return (rows * (root * root.sqrt())).movedim(-1, 1)
        return (rows * inner.pow(-self.beta)).movedim(-1, 1)


ResponseNorm.on_cpu = ResponseNormOnCPU


def leaf_cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return LEAF's network for FEMNIST; 6,603,710 parameters at 1 x 28 x 28 with 62 classes.

    Initial values are PyTorch's, our choice (TensorFlow's would be Glorot's and zeros).
    """
    return two_convolutions(sample_shape, outputs, (32, 64), 2, [2048])


def cifar_cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return TensorFlow's tutorial network, for CIFAR-10 in crops of 24 x 24; 1,068,298 parameters at 3 x 24 x 24.

    Convolutions of 64 filters, pooling 3 / 2 and local response normalisation as in the tutorial (radius 4, bias 1,
    alpha .001 / 9, beta .75; PyTorch divides alpha by the window itself). TensorFlow pads to keep sizes; in pooling of
    even sizes it pads on one side only, and here padding is on that side, too. Initial weights are normal, truncated at
    two standard deviations, as in the tutorial.
    """
    channels, height, width = image(sample_shape, 4)

    def pool() -> list[nn.Module]:
        return [nn.ZeroPad2d((0, 1, 0, 1)), nn.MaxPool2d(3, 2)]  # after a ReLU, padded zeros don't change a maximum

    def normalise() -> nn.Module:
        return ResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    model = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(
                nn.Conv2d(channels, 64, 5, padding=2), nn.ReLU(), *pool(), normalise(),
                nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), normalise(), *pool(),
                nn.Flatten(),
            ),
            hidden1=nn.Linear(64 * (height // 4) * (width // 4), 384),
            relu1=nn.ReLU(),
            hidden2=nn.Linear(384, 192),
            relu2=nn.ReLU(),
            output=nn.Linear(192, outputs),
        )
    )  # fmt: skip
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer, (spread, bias) in zip(layers, INITIAL, strict=True):
        nn.init.trunc_normal_(layer.weight, std=spread, a=-2 * spread, b=2 * spread)
        nn.init.constant_(layer.get_parameter("bias"), bias)
    model.weight_decays = {"hidden1.weight": PENALTY, "hidden2.weight": PENALTY}  # type: ignore[assignment]
    return model
