"""Runs of a method on a small planted federation. A run's numbers are all its results except times."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...clustering.linkage import hierarchical
from ...engine.engine import Engine
from ...engine.training import Training
from ...registry import inside
from ...simulation import loop
from ...simulation.loop import Checkpoint
from ...simulation.method import Context, Method, Survey
from ...simulation.record import Record
from ...simulation.state import State
from ...simulation.warm_up import warm_up
from ..stages.distance import measure
from .check import Finding, drawn_in, written
from .federation import SEED, engine, network

PARTIAL: dict[str, Any] = {"rounds": 4, "participation": 0.4}


@dataclass
class Run:
    """A finished run of a method."""

    method: Method
    context: Context
    state: State
    record: Record
    labels: list[NDArray[np.int64]]  # [M] after each round

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """All arrays of the state, and all columns of the tables."""
        found = {name: np.asarray(value[:]).copy() for name, value in self.state.arrays().items()}
        for table in ("history", "rounds", "clusters"):
            named = Record.table(getattr(self.record, table))
            found |= {f"{table}.{name}": column for name, column in named.items()}
        return found

    @property
    def rounds(self) -> dict[str, NDArray[Any]]:
        """The table of rounds."""
        return Record.table(self.record.rounds)


@dataclass
class MethodCase:
    """A method with options, and the runs that several checks share."""

    name: str
    kind: type[Method]
    options: dict[str, Any]
    source: Path
    inputs: Finding | None = None  # on inputs that the first run changed in place
    draws: Finding | None = None  # on global generators that the first run used
    ran: bool = False
    called: tuple[str, str] | None = None  # the last hook called, and its result as text; "" until it returns

    def run(
        self,
        used: Engine,
        hooks: Mapping[str, Any] | None = None,
        *,
        clusters: int | None = None,
        survey: Callable[[Survey], Any] = lambda survey: survey,
        save: Callable[[Checkpoint], None] = lambda made: None,
        resume: Checkpoint | None = None,
    ) -> Run:
        """Return a run of a new instance.

        Parameters
        ----------
        used
            The engine.
        hooks
            Replacements for the class's hooks, see `with_hooks`.
        clusters
            Replaces the option of this name.
        survey
            Returns the survey for the method, given the engine's.
        save, resume
            As for `simulation.loop.run`.
        """
        kind = self.kind if hooks is None else with_hooks(with_hooks(self.kind, self._noting()), hooks)
        options = copy.deepcopy(self.options) | ({} if clusters is None else {"clusters": clusters})
        method = kind(**options)
        given = self.chain(used) if self.kind.one_shot else {}
        context, labels = loop.context(used, **given), list[NDArray[np.int64]]()
        context = replace(context, survey=survey(context.survey))

        def after(made: Checkpoint) -> None:
            labels.append(np.array(made.state.labels))
            save(made)

        # A method's messages about its settings are printed only in the first run.
        said = contextlib.redirect_stderr(io.StringIO()) if self.ran else contextlib.nullcontext()
        self.ran, self.called = True, None
        with said:
            state, record = loop.run(method, context, used, first_round=self.first_round, save=after, resume=resume)
        self.called = None  # later errors don't come from this run
        return Run(method, context, state, record, labels)

    def _noting(self) -> dict[str, Any]:
        """Return hooks that record which one was called last; for a user's class only those that the user wrote."""

        def noting(name: str) -> Any:
            def noted(old: Any, *given: Any, **named: Any) -> Any:
                self.called = (name, "")
                found = old(*given, **named)
                self.called = (name, "None" if found is None else f"a value of the type {type(found).__name__}")
                return found

            return noted

        return {name: noting(name) for name in own_hooks(self.kind)}

    def blamed(self, said: str, path: str) -> str:
        """Return a sentence on an error that was raised outside the method's file: the hook and what it must do."""
        if self.called is None:
            return f"{said}, outside {path}; check what {self.kind.__name__} returns"
        name, gave = self.called
        hook, usual = f"{self.kind.__name__}.{name}", getattr(Method, name)
        if not gave:
            taken = ", ".join(inspect.signature(usual).parameters)
            return f"{hook} can't be called as in a run: {said}; it has to take {taken}"
        does = (usual.__doc__ or "").partition("\n")[0]
        return (
            f"{hook}, the last hook of {path} called, returned {gave}, and the run failed: {said}; it has to "
            f"{does[:1].lower()}{does[1:].rstrip('.')}"
        )

    @property
    def first_round(self) -> int:
        """1, or the first round after the warm-up."""
        return 2 if self.kind.one_shot else 1

    def chain(self, used: Engine) -> dict[str, Any]:
        """Return the clustering and warm-up for a one-shot method, by the stages' own functions."""
        training = used.training.model_dump() | {"rounds": 1, "participation": 1.0}
        with Engine(network, used.federation, Training(**training), SEED, device="cpu") as alone:
            warm = warm_up(alone)
            distance, _ = measure(alone, warm.theta, "loss", {})
        return {"clustering": hierarchical(distance, k=2), "warmup": warm.state, "members": lambda: warm.theta}

    @cached_property
    def first(self) -> Run:
        """The run with which others are compared; use of global generators and changes of inputs are recorded."""
        with engine(copies=self.kind.copies) as used:
            before = dict[str, Any]()

            def begin(old: Any, context: Context) -> State:
                before.update(copy.deepcopy(_inputs(context, used)))
                found: State = old(context)
                return found

            made, self.draws = drawn_in(lambda: self.run(used, {"begin": begin}))
            self.inputs = written(before, _inputs(made.context, used))
        return made

    @cached_property
    def partly(self) -> Run:
        """A run with partial participation."""
        with engine(**PARTIAL, copies=self.kind.copies) as used:
            return self.run(used)


def _inputs(context: Context, used: Engine) -> dict[str, Any]:
    """Return the arrays that a method receives and might change, by name."""
    found = {
        "context.sizes": context.sizes,
        "context.true_cluster": context.true_cluster,
        "context.clustering": context.clustering,
    }
    for split, data in used.federation.splits.items():
        found |= {f"the classes of {split}": data.y, f"the clients' rows of {split}": data.offsets}
    found["the samples"] = used.federation.splits["train"].pool.x
    return {name: np.array(value) for name, value in found.items() if value is not None}


def with_hooks(kind: type[Method], hooks: Mapping[str, Any]) -> type[Method]:
    """Return a subclass with replaced hooks: each receives the hook that it replaces, then the arguments."""

    def instead(old: Any, new: Any) -> Any:
        return lambda self, *given, **named: new(partial(old, self), *given, **named)

    changed = {name: instead(getattr(kind, name), new) for name, new in hooks.items()}
    return type(kind.__name__, (kind,), changed | {"__module__": kind.__module__})


def own_hooks(kind: type[Method]) -> list[str]:
    """Return the hooks that a class overrides; for a user's class those that aren't from the package."""
    hooks = [name for name, hook in vars(Method).items() if inspect.isfunction(hook) and not name.startswith("_")]
    found = {name: getattr(kind, name) for name in hooks if inspect.isfunction(getattr(kind, name))}
    if not inside(kind.__module__):
        return [name for name, hook in found.items() if not inside(hook.__module__)]
    return [name for name, hook in found.items() if hook is not getattr(Method, name)]
