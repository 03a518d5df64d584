"""The contract of a model: a function ``(sample_shape, outputs, **options)`` that makes a torch module."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...data.federation import Federation
from ...data.inputs import Inputs
from ...engine.engine import Engine
from ...engine.parameter_layout import Layout
from ...engine.training import Training
from ...errors import UserError
from ...streams import torch_stream
from .check import Check, Finding, GlobalDraws, fails, first_difference, note, written

CLASSES, ROWS = 3, 5
SIZES = (8, 1, 5)  # training samples of each client, in batches of four
PAIRS = (8, 4, 12)  # sizes without a batch of one sample
FORMS = (((20,), "f"), ((1, 28, 28), "f"), ((3, 32, 32), "f"), ((3, 64, 64), "f"), ((80,), "i"))  # tried in this order
RATE = 1e-4  # small, because deep networks with normalisation over few samples diverge at usual rates
TOLERANCE = 1e-4  # for numbers of about 1: kernels differ with the number of rows


@dataclass(frozen=True)
class Form:
    """Inputs for trying a model: samples of a shape, real numbers or tokens, and the number of outputs."""

    shape: tuple[int, ...]
    kind: str
    outputs: int

    def samples(self, rows: int = ROWS) -> NDArray[Any]:
        """Return samples [rows, ...]."""
        generator = np.random.default_rng(0)
        if self.kind == "i":
            return generator.integers(1, 20, (rows, *self.shape)).astype(np.int16)
        return generator.normal(size=(rows, *self.shape)).astype(np.float32) / math.sqrt(math.prod(self.shape))

    def batch(self) -> Tensor:
        """Return samples as a network's input, [ROWS, ...]."""
        x = torch.as_tensor(self.samples())
        return x.long() if self.kind == "i" else x

    def __str__(self) -> str:
        what = "tokens" if self.kind == "i" else "numbers"
        return f"{what} of shape {self.shape}, {self.outputs} outputs"


@dataclass
class ModelCase:
    """A model with options, and the first form of samples that it takes."""

    make: Callable[..., Any]
    options: dict[str, Any]
    refusals: list[str]
    sizes: tuple[int, ...] = SIZES

    def module(self, form: Form, index: int = 0) -> nn.Module:
        """Return a module, as the engine makes its initial models."""
        with torch_stream(0, "model", index):
            found: nn.Module = self.make(form.shape, form.outputs, **self.options)
        return found

    @cached_property
    def form(self) -> Form | None:
        """The first form that the model accepts; None if it accepts none, see `refusals`."""
        for shape, kind in FORMS:
            for outputs in (CLASSES, math.prod(shape)):
                form = Form(shape, kind, outputs)
                try:
                    made = self.module(form).eval()
                    with torch.no_grad():
                        made(form.batch())
                except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
                    self.refusals.append(f"for {form}: {type(error).__name__}: {str(error).splitlines()[0]}")
                else:
                    return form
        return None

    @property
    def taken(self) -> Form:
        """The accepted form, which must exist."""
        assert self.form is not None
        return self.form

    def outputs(self, rows: slice = slice(None)) -> Tensor:
        """Return the model's outputs for some samples, in evaluation mode."""
        with torch.no_grad():
            found: Tensor = self.module(self.taken).eval()(self.taken.batch()[rows])
        return found

    def engine(self, **how: Any) -> Engine:
        """Return an engine that trains it on three clients."""
        form, client = self.taken, np.repeat(np.arange(len(self.sizes)), self.sizes)
        x, y = form.samples(len(client)), np.arange(len(client)) % CLASSES
        inputs = Inputs(target="input") if form.outputs != CLASSES else Inputs()
        federation = Federation.from_arrays(x, y, client, inputs=inputs)
        training = Training(rounds=1, epochs=1, batch_size=4, learning_rate=RATE)
        return Engine(
            lambda: self.make(form.shape, form.outputs, **self.options), federation, training, device="cpu", **how
        )


def takes_samples(case: ModelCase) -> Finding | None:
    """Hold that it makes a torch module that accepts samples of features, images or tokens."""
    if case.form is None:
        return fails(
            f"it takes none of {len(case.refusals)} kinds of samples; {case.refusals[0]}; ...; {case.refusals[-1]}; "
            "use the arguments `sample_shape` and `outputs`"
        )
    if not isinstance(module := case.module(case.form), nn.Module):
        return fails(f"it returns {type(module).__name__}; allowed: a torch module (nn.Module)")
    return None


def output_shape(case: ModelCase) -> Finding | None:
    """Hold that it returns as many numbers for each sample as asked for, all finite."""
    found, form = case.outputs(), case.taken
    per_sample = found.numel() / ROWS
    if found.shape[:1] != (ROWS,) or per_sample != form.outputs:
        return fails(
            f"for {ROWS} samples ({form}) it returns shape {tuple(found.shape)}; allowed: ({ROWS}, {form.outputs}): "
            "make `outputs` the last layer's width"
        )
    if not bool(found.isfinite().all()):
        row = int((~found.isfinite().reshape(ROWS, -1).all(1)).nonzero()[0])
        return fails(
            f"for sample {row} it returns NaN or infinite numbers before any training; check divisions, roots, "
            "logarithms"
        )
    return None


def rows_apart(case: ModelCase) -> Finding | None:
    """Hold that in evaluation a sample's output doesn't depend on the other samples of the batch."""
    whole = case.outputs()
    for row in range(ROWS):
        alone = case.outputs(slice(row, row + 1))[0]
        gap = float((whole[row] - alone).abs().max())
        if not gap <= TOLERANCE * max(1.0, float(whole[row].abs().max())):
            return fails(
                f"sample {row} gives outputs that differ by {gap:.3g} alone and together with {ROWS - 1} others; "
                "scores would depend on the batches: take means over features, never over the batch, in evaluation"
            )
    return None


def _numbers(module: nn.Module) -> dict[str, Any]:
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def same_initial(case: ModelCase) -> Finding | None:
    """Hold that it has the same initial values when it is made twice from the same random stream."""
    GlobalDraws(2)  # of NumPy and random, which the engine doesn't set
    first = _numbers(case.module(case.taken))
    GlobalDraws(3)
    where = first_difference(first, _numbers(case.module(case.taken)))
    if where is not None:
        return fails(
            f"{where}, made twice from one stream; initial values may only come from torch's generator, which the "
            "engine sets: draw with torch"
        )
    return None


def other_initial(case: ModelCase) -> Finding | None:
    """Hold that another stream gives other initial values."""
    if first_difference(*(_numbers(case.module(case.taken, index)) for index in (0, 1))) is None:
        return note("two streams give equal initial values, so all models of a method such as IFCA begin equal")
    return None


def same_layout(case: ModelCase) -> Finding | None:
    """Hold that its parameters and buffers have the same names, order and shapes each time."""
    modules = [case.module(case.taken, i) for i in (0, 1)]
    Layout.of(modules[0])  # raises an error if a parameter has no shape or none can be trained
    layouts = [[(n, tuple(v.shape)) for n, v in module.state_dict().items()] for module in modules]
    differing = [pair for pair in zip(*layouts, strict=False) if pair[0] != pair[1]]
    if differing or len(layouts[0]) != len(layouts[1]):
        what = (
            f"{differing[0][0]}, then {differing[0][1]}"
            if differing
            else f"{len(layouts[0])}, then {len(layouts[1])} tensors"
        )
        return fails(
            f"two modules have {what}; a model is a row of numbers in this order: make layers in a fixed order"
        )
    return None


def input_unchanged(case: ModelCase) -> Finding | None:
    """Hold that it doesn't change the samples in place."""
    x = case.taken.batch()
    before = copy.deepcopy(x)
    with torch.no_grad():
        case.module(case.taken).eval()(x)
    return written({"samples": before.numpy()}, {"samples": x.numpy()})


def trained(case: ModelCase) -> Finding | None:
    """Hold that the engine can train it, also with a client of one sample; it is noted if clients aren't stacked."""
    alone = ""
    try:
        with case.engine() as used:
            _trained(used)
    except UserError as error:  # e.g. batch normalisation with a batch of one sample
        alone, case.sizes = str(error), PAIRS
    with case.engine() as used:
        delta = _trained(used)
        if not np.isfinite(delta).all():
            client = int(np.flatnonzero(~np.isfinite(delta).all(1))[0])
            return fails(
                f"client {client}, with {case.sizes[client]} samples, sends NaN after an epoch; check divisions"
            )
        if not delta.any():
            return fails(
                "no number changes in training; parameters must require gradients, and the output depend on them"
            )
        if alone:
            return note(alone)
        if used.backend == "loop" and used.layout.buffers:
            return note(
                f"clients are trained one after another, which is slower: {used.reason}; buffers are averaged like "
                "parameters"
            )
        if used.backend == "loop" and "convolutions" not in used.reason:
            return note(f"clients are trained one after another, which is slower: {used.reason}")
    return None


def _trained(used: Engine) -> NDArray[np.float32]:
    """Return the updates [3, P] of a round."""
    clients = np.arange(len(PAIRS))
    update = used.train(used.initial(0)[None], np.zeros_like(clients), clients, needs=frozenset({"updates"}))
    assert update.rows is not None
    return np.asarray(update.rows[:]).copy()


def in_chunks(case: ModelCase) -> Finding | None:
    """Hold that clients trained one by one and together give the same bits."""
    found = []
    for chunk in (None, 1):
        with case.engine(chunk=chunk) as used:
            found.append({"updates": _trained(used)})
    where = first_difference(*found)
    if where is None:
        return None
    return fails(
        f"{where}, trained together and one by one; a module must draw from torch's generator, and keep its state in "
        "buffers"
    )


def has_head(case: ModelCase) -> Finding | None:
    """Hold that it has a last linear layer, for methods that keep this layer or compare its inputs."""
    with case.engine() as used:
        if isinstance(used.worker.head, str):
            return note(f"fedper, fedproto and fedpac can't use it: {used.worker.head}")
    return None


TAKES, SHAPE, TRAINED = "takes samples", "returns as many numbers as asked for", "is trained by the engine"
INITIAL, LAYOUT = "has the same initial values from one stream", "keeps the order of its parameters"
CHECKS = (
    Check(TAKES, takes_samples),
    Check(SHAPE, output_shape, (TAKES,)),
    Check(LAYOUT, same_layout, (TAKES,)),
    Check(INITIAL, same_initial, (LAYOUT,)),
    Check("has other initial values from another stream", other_initial, (INITIAL,)),
    Check("changes no input", input_unchanged, (TAKES,)),
    Check("gives each sample its own output", rows_apart, (SHAPE, INITIAL, "changes no input")),
    Check(TRAINED, trained, (SHAPE, LAYOUT)),
    Check("is trained with the same bits in other chunks", in_chunks, (TRAINED, INITIAL, "changes no input")),
    Check("has a last layer", has_head, (SHAPE, TRAINED)),
)
