"""Runs of a method on a small planted federation. A run's numbers are all that it gives but its times."""

from __future__ import annotations

import contextlib
import copy
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


class BadLabels(Exception):
    """Labels that are none; raised out of a run before they do harm elsewhere."""


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
    """A method with options, and the runs of it that several checks look at."""

    name: str
    kind: type[Method]
    options: dict[str, Any]
    source: Path
    inputs: Finding | None = None  # of the first run: what it changed in place
    draws: Finding | None = None  # and where it drew
    ran: bool = False

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
            What trains.
        hooks
            In place of those of the class, see `with_hooks`.
        clusters
            In place of the option of that name.
        survey
            Makes of what clients can be asked for what the method gets.
        save, resume
            As of `simulation.loop.run`.
        """
        kind = self.kind if hooks is None else with_hooks(self.kind, hooks)
        options = copy.deepcopy(self.options) | ({} if clusters is None else {"clusters": clusters})
        method = kind(**options)
        given = self.chain(used) if self.kind.one_shot else {}
        context, labels = loop.context(used, **given), list[NDArray[np.int64]]()
        context = replace(context, survey=survey(context.survey))

        def after(made: Checkpoint) -> None:
            labels.append(np.array(made.state.labels))
            save(made)

        # What a method says of its settings is said once, not in each of many runs.
        said = contextlib.redirect_stderr(io.StringIO()) if self.ran else contextlib.nullcontext()
        self.ran = True
        with said:
            state, record = loop.run(method, context, used, first_round=self.first_round, save=after, resume=resume)
        return Run(method, context, state, record, labels)

    @property
    def first_round(self) -> int:
        """1, or the round behind the warm-up."""
        return 2 if self.kind.one_shot else 1

    def chain(self, used: Engine) -> dict[str, Any]:
        """Return what a one-shot method continues, by the stages' own functions."""
        training = used.training.model_dump() | {"rounds": 1, "participation": 1.0}
        with Engine(network, used.federation, Training(**training), SEED, device="cpu") as alone:
            warm = warm_up(alone)
            distance, _ = measure(alone, warm.theta, "loss", {})
        return {"clustering": hierarchical(distance, k=2), "warmup": warm.state, "members": lambda: warm.theta}

    @cached_property
    def first(self) -> Run:
        """The run that others are compared with; global generators and inputs are watched."""
        with engine(copies=self.kind.copies) as used:
            before = dict[str, Any]()

            def begin(old: Any, context: Context) -> State:
                before.update(copy.deepcopy(_inputs(context, used)))
                found: State = old(context)
                check_labels(found.labels, len(found.theta), used.federation.clients, "begin")
                return found

            made, self.draws = drawn_in(lambda: self.run(used, {"begin": begin} | watching(self.kind)))
            self.inputs = written(before, _inputs(made.context, used))
        return made

    @cached_property
    def partly(self) -> Run:
        """A run in which a share of the clients takes part."""
        with engine(**PARTIAL, copies=self.kind.copies) as used:
            return self.run(used)


def _inputs(context: Context, used: Engine) -> dict[str, Any]:
    """Return what a method gets and could write to, as arrays by name."""
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
    """Return a class some of whose hooks are others: each takes the hook that it replaces, then its arguments."""

    def instead(old: Any, new: Any) -> Any:
        return lambda self, *given: new(partial(old, self), *given)

    changed = {name: instead(getattr(kind, name), new) for name, new in hooks.items()}
    return type(kind.__name__, (kind,), changed | {"__module__": kind.__module__})


def check_labels(labels: Any, models: int, clients: int, hook: str, least: int = -1) -> None:
    """Raise an error unless these are `clients` whole numbers from `least` to the number of models less one."""
    found = np.asarray(labels)
    allowed = f"allowed: whole numbers 0 to {models - 1}, a model's row in state.theta"
    allowed += ", or -1 before a client has a model" if least < 0 else ""
    if found.shape != (clients,):
        raise BadLabels(f"{hook} gives labels of shape {found.shape} for {clients} clients; one for each is needed")
    if found.dtype.kind not in "iu":
        raise BadLabels(f"{hook} gives labels of {found.dtype}, e.g. {found[0]}; {allowed}: convert them with astype")
    bad = np.flatnonzero((found < least) | (found >= models))
    if len(bad):
        raise BadLabels(
            f"{hook} gives label {found[bad[0]]} to client {bad[0]} ({len(bad)} of {clients}), of {models} models; "
            f"{allowed}: count from 0, and append a model before it is used"
        )


def watching(kind: type[Method]) -> dict[str, Any]:
    """Return hooks that look at the labels of those that a method has of its own."""

    def assign(old: Any, context: Context, state: State, round_: int, clients: Any, losses: Any) -> Any:
        found = old(context, state, round_, clients, losses)
        check_labels(found.start, len(state.theta), len(clients), f"assign, in round {round_},", 0)
        if found.target is not None:
            check_labels(found.target, len(state.theta), len(clients), f"assign (target), in round {round_},", 0)
        return found

    def regroup(old: Any, context: Context, state: State, update: Any) -> None:
        old(context, state, update)
        check_labels(state.labels, len(state.theta), context.clients, f"regroup, in round {update.round},")

    # Only what the method has itself: `assigns` is whether it overrides `assign`.
    found = {"assign": assign, "regroup": regroup}
    return {name: hook for name, hook in found.items() if getattr(kind, name) is not getattr(Method, name)}
