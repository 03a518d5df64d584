"""Networks for RR-Cluster's experiments (Yang, Hu, Kim and Li, arXiv 2508.06183), which says "a CNN" and "an LSTM"."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from .plain import two_convolutions


def cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return two convolutions of 32 and 64 filters and 512 units; 582,026 parameters at 1 x 28 x 28 with 10 classes.

    Our guess: the network of PFLlib (FedAvgCNN), a library in which many of the field's baselines are run.
    """
    return two_convolutions(sample_shape, outputs, (32, 64), 0, [512])


class CharLSTM(nn.Module):
    """An embedding of characters, a stacked LSTM, and a linear layer from its last state to the next character."""

    def __init__(self, characters: int, size: int, units: int, layers: int, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(characters, size)
        self.lstm = nn.LSTM(size, units, layers, batch_first=True)
        self.output = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [n, outputs] of texts [n, length]."""
        states, _ = self.lstm(self.embedding(x))
        result: Tensor = self.output(states[:, -1])
        return result


def char_lstm(
    sample_shape: tuple[int, ...],
    outputs: int,
    *,
    characters: Annotated[int, Field(gt=0, description="rows of the embedding, more than the largest index")] = 80,
    size: Annotated[int, Field(gt=0, description="length of a character's vector")] = 8,
    units: Annotated[int, Field(gt=0, description="units of each layer")] = 256,
    layers: Annotated[int, Field(gt=0, description="layers of the LSTM")] = 2,
) -> nn.Module:
    """Return the network for Shakespeare's next character; 819,920 parameters for 80 characters.

    Our guess: LEAF's network for this dataset (Caldas et al. 2018, arXiv 1812.01097), an embedding of 8 and two layers
    of 256. PyTorch's LSTM has two biases where TensorFlow's has one.
    """
    if len(sample_shape) != 1:
        raise ValueError("it takes texts as whole numbers, [length]")
    return CharLSTM(characters, size, units, layers, outputs)
