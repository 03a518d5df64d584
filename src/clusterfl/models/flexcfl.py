"""FlexCFL's networks for MNIST and Fashion-MNIST (morningD/FlexCFL, flearn/model; TensorFlow 2, here in PyTorch).

Of its three for MNIST its main.py names `flexcfl-mlp`; `flexcfl-mnist-cnn` is another; its logistic regression isn't
here.
"""

from __future__ import annotations

from torch import nn

from .plain import mlp as layers
from .plain import two_convolutions

PENALTY = 0.002  # its regulariser adds .001 |W|^2 to the loss: .002 W to the gradient


def mlp(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return 128 units with ReLU before the last layer; 101,770 parameters at 1 x 28 x 28 with 10 classes.

    Both weight matrices have an additional L2 penalty of .002; biases have none.
    """
    model = _as_keras(layers(sample_shape, outputs, hidden=[128]))
    model.weight_decays = {  # type: ignore[assignment]
        name: PENALTY for name, parameter in model.named_parameters() if parameter.ndim > 1
    }
    return model


def cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return two convolutions of 32 and 64 filters and 1,024 units; 3,274,634 parameters at 1 x 28 x 28, 10 classes."""
    return _as_keras(two_convolutions(sample_shape, outputs, (32, 64), 2, [1024]))


def mnist_cnn(sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return two convolutions of 3 x 3 and dropout of .5; 50,186 parameters at 1 x 28 x 28 with 10 classes."""
    *before, last = two_convolutions(sample_shape, outputs, (32, 64), 1, [], width=3)
    return _as_keras(nn.Sequential(*before, nn.Dropout(0.5), last))


def _as_keras(model: nn.Module) -> nn.Module:
    """Return the model with Keras's initial weights: Glorot and Bengio's uniform ones; biases are zero."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return model
