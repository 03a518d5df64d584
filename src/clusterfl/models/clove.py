"""CLoVE's networks (arXiv 2506.22427, appendix, and its released code). Amazon reviews: `mlp`; linear: `linear`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from .plain import image, mlp, two_convolutions


def cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network for MNIST, Fashion-MNIST and FEMNIST; 5,142 parameters at 1 x 28 x 28 with 10 classes."""
    return two_convolutions(sample_shape, outputs, (6, 16), 0, [])


def cifar_cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network for CIFAR-10, with batch normalisation and dropout; 4,181,002 parameters at 3 x 32 x 32."""
    channels, height, width = image(sample_shape, 16)
    layers: list[nn.Module] = []
    for filters in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.MaxPool2d(2), nn.ReLU()]
        channels = filters
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(512 * (height // 16) * (width // 16), 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, outputs),
    )


class TextCNN(nn.Module):
    """Convolutions over word vectors, each filter's largest response, dropout, one linear layer (Kim, EMNLP 2014).

    Token 0 is padding: its vector is always zero.
    """

    on_cpu: ClassVar[type[nn.Module]]

    def __init__(self, words: int, size: int, filters: int, widths: list[int], dropout: float, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(words, size, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, filters, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(filters * len(widths), outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return class scores [n, outputs] of ``tokens [n, length]``."""
        return self.output(self.dropout(torch.cat(self.largest(tokens), dim=1)))

    def largest(self, tokens: Tensor) -> list[Tensor]:
        """Return, for each width, the filters' largest responses [n, filters], at least 0."""
        vectors = self.embedding(tokens).transpose(1, 2)
        return [torch.relu(convolution(vectors)).amax(dim=2) for convolution in self.convolutions]


class TextCNNOnCPU(TextCNN):
    """The same numbers up to rounding, with less work for a CPU; see `_Largest`.

    In training a batch is cut where all its texts have only padding; what remains still has windows of padding alone.
    """

    def largest(self, tokens: Tensor) -> list[Tensor]:
        """See `TextCNN.largest`."""
        layers = [layer for layer in self.convolutions if isinstance(layer, nn.Conv1d)]
        if self.training:
            words = torch.nonzero(tokens.any(0)).flatten()
            end = int(words[-1]) + 1 if len(words) else 0
            tokens = tokens[:, : end + max(layer.kernel_size[0] for layer in layers)]
        vectors = self.embedding(tokens)
        return [_Largest.apply(vectors, layer.weight, layer.bias) for layer in layers]


TextCNN.on_cpu = TextCNNOnCPU


class _Largest(torch.autograd.Function):
    """Filters' largest responses over a text, if above zero; of equal windows the first one gets the gradient.

    A convolution's own backward pass multiplies by zeros at all other windows: 99 of 100 products, more if dropout
    follows. Word vectors are stored channels-last, so they needn't be copied for the convolution either.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return [n, filters] for ``vectors [n, length, size]`` and ``weight [filters, size, width]``."""
        image = vectors.transpose(1, 2).unsqueeze(2)
        layers = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        responses = torch.conv2d(image, layers, bias).squeeze(2)
        values = responses.amax(dim=2)
        ctx.save_for_backward(vectors, weight, responses, values)
        return values.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vectors, weight, responses, values = ctx.saved_tensors
        flow = gradients[0] * (values > 0)
        texts, filters = torch.nonzero(flow, as_tuple=True)
        amounts, where = flow[texts, filters][:, None, None], responses[texts, filters].argmax(1)
        count, size, width = weight.shape
        places = (texts * vectors.shape[1] + where)[:, None] + torch.arange(width)  # [m, width]
        rows = vectors.reshape(-1, size)
        of_weight = rows.new_zeros(count, width, size).index_add_(0, filters, rows[places] * amounts)
        parts = weight.transpose(1, 2)[filters] * amounts
        of_vectors = torch.zeros_like(rows).index_add_(0, places.flatten(), parts.reshape(-1, size))
        return of_vectors.view_as(vectors), of_weight.transpose(1, 2), flow.sum(0)


def textcnn(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    words: Annotated[int, Field(gt=0, description="rows of the embedding, more than the largest token")] = 32000,
    size: Annotated[int, Field(gt=0, description="length of a word vector")] = 100,
    filters: Annotated[int, Field(gt=0, description="filters of each width")] = 100,
    widths: Annotated[list[Annotated[int, Field(gt=0)]], Field(description="words that a filter sees")] = [3, 4, 5],  # noqa: B006
    dropout: Annotated[float, Field(ge=0, lt=1, description="dropout rate of the responses")] = 0.8,
    units: Annotated[
        int | None,
        Field(
            gt=0,
            description="outputs; null: one for each class. CLoVE's code has 6, one for each cluster",
        ),
    ] = None,
) -> nn.Module:
    """Return the network for AG News; 3,321,504 parameters with 4 outputs, 3,322,106 with the released code's 6.

    The released code feeds log-softmax to the cross-entropy, which applies log-softmax itself; applying it twice
    changes nothing, so it is left out.
    """
    if len(sample_shape) != 1:
        raise ValueError("it takes texts as whole numbers, [length]")
    if sample_shape[0] < max(widths):
        raise ValueError(f"its widest filter sees {max(widths)} words; take filters of smaller widths or longer texts")
    return TextCNN(words, size, filters, widths, dropout, units or outputs)


def autoencoder(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the autoencoder for MNIST and Fashion-MNIST: n - 4m - 2m - m - 2m - 4m - n with m = n // 4.

    ReLU after the layers of 4m and 2m, a sigmoid after the last (released code); 2,000,964 parameters at 1 x 28 x 28.
    """
    n = _reconstructed(sample_shape, outputs)
    m = n // 4
    if not m:
        raise ValueError("it needs samples of at least 4 numbers")
    encoder, decoder = mlp(sample_shape, m, hidden=[4 * m, 2 * m]), mlp((m,), n, hidden=[2 * m, 4 * m])
    return nn.Sequential(*encoder, *decoder, nn.Sigmoid(), nn.Unflatten(1, sample_shape))


def cifar_autoencoder(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the autoencoder for CIFAR-10: convolutions 32, 64, 128 of stride 2, a latent layer of 128, and back.

    Kernels of 3 with padding 1, ReLU after all convolutions but the last, which is followed by tanh, though samples
    divided by 255 are never negative (released code); 712,835 parameters at 3 x 32 x 32.
    """
    channels, height, width = image(sample_shape, 8)
    _reconstructed(sample_shape, outputs)
    if height % 8 or width % 8:
        raise ValueError("height and width need to be multiples of 8")
    inner = (128, height // 8, width // 8)
    encoder: list[nn.Module] = []
    decoder: list[nn.Module] = []
    for before, after in pairwise((channels, 32, 64, 128)):
        encoder += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
        decoder = [nn.ConvTranspose2d(after, before, 3, 2, 1, output_padding=1), nn.ReLU(), *decoder]
    return nn.Sequential(
        *encoder,
        nn.Flatten(),
        nn.Linear(math.prod(inner), 128),
        nn.Linear(128, math.prod(inner)),
        nn.Unflatten(1, inner),
        *decoder[:-1],
        nn.Tanh(),
    )


def _reconstructed(sample_shape: tuple[int, ...], outputs: int) -> int:
    """Return how many numbers an autoencoder outputs, or raise an error if `outputs` differs."""
    n = math.prod(sample_shape)
    if outputs != n:
        raise ValueError(f"it gives back all {n} numbers of a sample, not {outputs}; set inputs: {{target: input}}")
    return n
