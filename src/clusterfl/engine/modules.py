"""Devices, and modules that can be trained: initialised from a random stream, and able to take the samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..data.federation import Federation
from ..data.prepared import Prepared
from ..errors import UserError, kind_of

Factory = Callable[[], nn.Module]


def find_device(name: str) -> torch.device:
    """Return the device of this name; ``auto`` is CUDA if there is one, else the CPU. UserError if torch has none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"device: '{name}' asked for, but torch {torch.__version__} finds no CUDA device; use 'auto' or 'cpu'"
        )
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device: torch knows no device '{name}'; use 'auto', 'cpu' or 'cuda'") from error
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UserError(f"device: '{name}' asked for, but torch finds only cuda:0 to cuda:{count - 1}; use one")
    return device


def maker(model: Factory | nn.Module) -> Factory:
    """Return a function that makes the module with new initial values; UserError if a part can't be initialised."""
    if not isinstance(model, nn.Module):
        return model
    for name, part in model.named_modules():
        if next(part.parameters(recurse=False), None) is not None and not hasattr(part, "reset_parameters"):
            raise UserError(
                f"the module '{name or type(part).__name__}' has parameters but no reset_parameters(), so it can't be "
                "initialised from a stream; pass a function that makes the model instead of the model"
            )

    def make() -> nn.Module:
        fresh = copy.deepcopy(model)
        for part in fresh.modules():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
        return fresh

    return make


class Sum(nn.Module):
    """The sum of several networks' outputs; the names of a network's tensors begin with its number and a dot."""

    def __init__(self, networks: Sequence[nn.Module]):
        super().__init__()
        self.weight_decays: dict[str, float] = {}
        for number, network in enumerate(networks):
            self.add_module(str(number), network)
            penalties: dict[str, float] = getattr(network, "weight_decays", {})
            self.weight_decays |= {f"{number}.{name}": penalty for name, penalty in penalties.items()}

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the networks' outputs."""
        first, *others = self.children()
        output: Tensor = first(x.clone())  # a network may write into its inputs
        for network in others:
            output = output + network(x.clone())
        return output


def summed(make: Factory, copies: int) -> Factory:
    """Return a function that makes the `Sum` of this many networks of `make`, or `make` itself for one."""
    return make if copies == 1 else lambda: Sum([make() for _ in range(copies)])


def check(module: nn.Module, federation: Federation, data: Prepared) -> None:
    """Run two samples through the model, and one; UserError if they or its outputs don't fit."""
    first = torch.arange(min(2, len(data)), device=data.rows.device)
    x = data.take(first)
    y = data.targets(first, x)
    whole = ""
    if not x.is_floating_point():
        largest = int(federation.splits["train"].pool.x.max())
        x.view(-1)[0] = largest  # else an embedding that is too small would fail only in a later batch
        whole = f"; whole numbers are tokens, so store features as real numbers or take {largest + 1} tokens or more"
    for n in sorted({len(x), 1}, reverse=True):
        try:
            with torch.enable_grad():
                output = module(x[:n].clone())  # it may write into its inputs
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"the model {type(module).__name__} can't take samples of shape {tuple(x.shape[1:])}: {error}{whole}"
            ) from error
        _check_output(output, y[:n], federation.classes, f"the model {type(module).__name__} returns")


def _check_output(output: object, y: Tensor, classes: int, said: str) -> None:
    """Raise an error unless a loss can be computed: from logits [n, classes], or as many numbers as ``y [n, ...]``."""
    if not isinstance(output, Tensor):
        raise no_tensor(output, said)
    if not output.is_floating_point() or not output.requires_grad:
        what = f"{output.dtype}" if output.requires_grad else f"{output.dtype} without a gradient"
        raise UserError(
            f"{said} {what}; allowed: real numbers that depend on its parameters, such as logits: look for argmax, "
            "detach, .data or torch.no_grad in forward()"
        )
    shape, n = tuple(output.shape), len(y)
    samples = f"{n} sample{'s' if n > 1 else ''}"
    if classes and (output.ndim != 2 or shape[0] != n or shape[1] < classes):
        raise UserError(f"{said} shape {shape} for {samples}; {classes} classes need ({n}, {classes})")
    if not classes and output.numel() != y.numel():
        numbers = f"{y[0].numel()} numbers each are" if y[0].numel() > 1 else "one number each is"
        raise UserError(f"{said} shape {shape} for {samples}; {numbers} needed")


def no_tensor(output: object, said: str) -> UserError:
    """Return the error for a network that returns something other than one tensor."""
    return UserError(
        f"{said} {kind_of(output)}; allowed: one tensor with the outputs of each sample: let forward() return only that"
    )
