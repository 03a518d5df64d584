"""Chains of linear layers: recognising them in modules, forward passes and gradients. C clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .modules import Sum
from .products import products

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}


class Layer(NamedTuple):
    """A linear layer and the activation after it."""

    weight: str  # name of a tensor [out, in]
    bias: str | None  # [out]
    activation: str | None


def chains(module: nn.Module, shape: tuple[int, ...]) -> list[list[Layer]] | str:
    """Return the layers of each chain, usually one, whose sum is the module; or why it isn't such a sum.

    `shape` is that of a sample.
    """
    parts = module.named_children() if type(module) is Sum else [("", module)]
    found = []
    for name, part in parts:
        layers = _chain(part, shape, f"{name}." if name else "")
        if isinstance(layers, str):
            return layers
        found.append(layers)
    return found


def _chain(module: nn.Module, shape: tuple[int, ...], prefix: str) -> list[Layer] | str:
    """Return the linear layers of a module for samples of this shape, or why it isn't a chain of them."""
    found: list[Layer] = []
    flat = len(shape) == 1
    for name, part in _leaves(module, prefix):
        if type(part) is nn.Linear and flat:
            found.append(Layer(name + "weight", None if part.bias is None else name + "bias", None))
        elif type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            flat = True
        elif type(part) is nn.Unflatten and flat:
            flat = False  # allowed at the end: the loss doesn't depend on the output's shape
        elif type(part) in ACTIVATIONS and found and found[-1].activation is None:
            found[-1] = found[-1]._replace(activation=ACTIVATIONS[type(part)])
        else:
            return f"its layer {type(part).__name__} has no hand-written gradient"
        if part._forward_hooks or part._forward_pre_hooks:
            return f"its layer {type(part).__name__} has hooks"
    named = {prefix + name: parameter for name, parameter in module.named_parameters()}
    if not found or list(named) != [name for layer in found for name in layer[:2] if name]:
        return "its parameters aren't only those of linear layers, each used once"
    if not all(parameter.requires_grad for parameter in named.values()):
        return "some of its parameters are fixed"
    return found


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, part in module.named_children():
        yield from _leaves(part, f"{prefix}{name}.")


def forward(
    layers: list[Layer], tensors: dict[str, Tensor], x: Tensor, multiply: Callable[..., Tensor] = products
) -> list[Tensor]:
    """Return the input of each layer and the output of the last, ``[C, rows, *]``; x is ``[C, rows, D]``.

    With ``multiply=linear`` they are those of one model, without the axis C.
    """
    values = [x]
    for layer in layers:
        z = multiply(values[-1], tensors[layer.weight], tensors[layer.bias] if layer.bias else None)
        values.append(activate(z, layer.activation))
    return values


def forwards(
    chains: list[list[Layer]], tensors: dict[str, Tensor], x: Tensor, multiply: Callable[..., Tensor] = products
) -> list[list[Tensor]]:
    """Return the values of `forward` for each chain."""
    return [forward(layers, tensors, x, multiply) for layers in chains]


def output(values: list[list[Tensor]]) -> Tensor:
    """Return the sum of all chains' outputs, from the values of `forwards`."""
    first, *others = (own[-1] for own in values)
    for other in others:
        first = first + other
    return first


def activate(z: Tensor, activation: str | None) -> Tensor:
    """Return the activation of z, computed in place."""
    if activation == "sigmoid":
        # PyTorch's sigmoid has other bits for the last numbers of a tensor, which fill no vector; exp hasn't.
        return z.neg_().exp_().add_(1).reciprocal_()
    return z if activation is None else getattr(torch, activation + "_")(z)


def through(gradient: Tensor, value: Tensor, activation: str | None) -> Tensor:
    """Return the gradient of an activation's input, from that of its output and the output's ``value``."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward(gradient, value, 0)
    if activation == "tanh":
        return torch.ops.aten.tanh_backward(gradient, value)
    return gradient if activation is None else torch.ops.aten.sigmoid_backward(gradient, value)
