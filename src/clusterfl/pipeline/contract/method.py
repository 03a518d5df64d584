"""The contract of a method: requirements on every method."""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import Diverged, UserError
from ...methods import METHODS
from ...simulation import loop
from ...simulation.evaluation import newcomer_labels
from ...simulation.loop import Checkpoint
from ...simulation.method import Context, Method
from ...simulation.record import Record
from ...simulation.returned import BadLabels, check_labels, near_hook, own_names
from ...simulation.state import State
from ..checkpoint import Unfinished
from ..stages.common import keeping, resumed
from .check import REPRODUCIBLE, Check, Finding, GlobalDraws, fails, first_difference, note, skipped
from .declared import defaults, light
from .federation import SIZES, columns, engine, mixed
from .runs import PARTIAL, MethodCase, Run

NEAR = 0.75  # of difflib's ratio, e.g. of sampel and sample
KEEP = "keep it in the state: a dataclass of arrays, State.own, whose type the class names (own: ClassVar[type | None])"
LABELS = "gives labels of models that there are"
COSTS = ("bytes_down", "bytes_up", "local_steps", "client_forwards")
DRAWS, INPUT, OPTIONS = "draws nothing from global generators", "changes no input", "leaves its options as they are"
BAD = 2  # the client that sends NaN
TWICE, SOME = "gives the same numbers twice", "runs with some of the clients"


def names_unlike_hooks(case: MethodCase) -> Finding | None:
    """Hold that none of its own names is similar to that of a hook that it doesn't override."""
    for name in own_names(case.kind):
        near = near_hook(name, NEAR)
        if near and near not in vars(case.kind):
            return note(f"'{name}' isn't called as a hook; if '{near}' is meant, rename it; a helper may begin with _")
    return None


def labels_in_range(case: MethodCase) -> Finding | None:
    """Hold that labels are whole numbers from 0 to the number of models minus one, and every participant has one."""
    try:
        run = case.first
    except BadLabels as error:
        return fails(str(error))
    except Exception:
        return skipped("it doesn't run, see below")
    for round_, labels in enumerate(run.labels, case.first_round):
        try:
            check_labels(labels, len(run.state.theta), np.arange(len(SIZES)), f"the method, after round {round_},", 0)
        except BadLabels as error:
            return fails(str(error))
    return None


def runs(case: MethodCase) -> Finding | None:
    """Hold that three rounds with eight clients of different sizes, one with one sample, give finite numbers."""
    try:
        run = case.first
    except BadLabels:
        return skipped(f"'{LABELS}' has to hold first")
    theta = np.asarray(run.state.theta[:]).copy()
    bad = np.flatnonzero(~np.isfinite(theta).all(axis=1))
    if len(bad):
        return fails(
            f"model {bad[0]} of {len(theta)} has NaN or infinite numbers after {len(run.labels)} rounds at the "
            "default learning rate; look for a division by a cluster's size where it has no member"
        )
    history = Record.table(run.record.history)
    wrong = np.flatnonzero(~np.isfinite(history["loss"]))
    if len(wrong):
        client, round_ = history["client"][wrong[0]], history["round"][wrong[0]]
        return fails(f"client {client} has the loss {history['loss'][wrong[0]]} after round {round_}; check its model")
    return None


def no_global_draws(case: MethodCase) -> Finding | None:
    """Hold that no global generator of random, NumPy or torch is drawn from, or seeded."""
    assert case.first
    return case.draws


def inputs_unchanged(case: MethodCase) -> Finding | None:
    """Hold that a run doesn't change its inputs in place: sizes, settings, samples."""
    assert case.first
    return case.inputs


def options_unchanged(case: MethodCase) -> Finding | None:
    """Hold that a run doesn't change its options."""
    used, fresh = case.first.method, case.kind(**copy.deepcopy(case.options))
    for one in fields(case.kind):
        before, after = getattr(fresh, one.name), getattr(used, one.name)
        if before != after:
            return fails(
                f"option '{one.name}' was {before!r} and is {after!r} after a run, so the next run would differ; "
                f"a method can't store anything itself: {KEEP}"
            )
    return None


def same_twice(case: MethodCase) -> Finding | None:
    """Hold that a second run gives the same bits."""
    GlobalDraws(2)  # other states than those of the first run
    with engine(copies=case.kind.copies) as used:
        where = first_difference(case.first.numbers, case.run(used).numbers)
    return None if where is None else fails(f"{where}, in two runs with the same seed; {REPRODUCIBLE}")


def same_in_chunks(case: MethodCase) -> Finding | None:
    """Hold that other chunks and processes give the same bits, including costs."""
    for chunk, workers in ((3, 1), (2, 2)):
        with engine(chunk=chunk, workers=workers, copies=case.kind.copies) as used:
            where = first_difference(case.first.numbers, case.run(used).numbers)
        if where is not None:
            return fails(
                f"{where}, without and with chunk {chunk}, workers {workers}; these may change no result: sum in the "
                "order of clients, and use the engine only through the context"
            )
    return None


def same_in_any_order(case: MethodCase) -> Finding | None:
    """Hold that the order of the data's rows doesn't matter, if each client's own rows stay in order."""
    with engine(mixed(columns()), copies=case.kind.copies) as used:
        where = first_difference(case.first.numbers, case.run(used).numbers)
    if where is None:
        return None
    return fails(
        f"{where}, with the rows client by client and with clients alternating; use clients, 0 to M - 1, never the "
        "positions of samples"
    )


def resumes(case: MethodCase) -> Finding | None:
    """Hold that a run resumed from a checkpoint, after any round, ends with the same bits."""
    with tempfile.TemporaryDirectory() as name, engine(**PARTIAL, copies=case.kind.copies) as used:
        kept: list[int] = []

        def keep(made: Checkpoint) -> None:
            kept.append(made.round)
            keeping(_checkpoint(name, made.round))(made)

        whole = case.run(used, save=keep)
        for round_ in kept[:-1]:
            with contextlib.redirect_stderr(io.StringIO()):  # which prints where it resumes
                start = resumed(_checkpoint(name, round_), case.kind.own)
            if start is None:
                return fails(f"the checkpoint after round {round_} can't be read; {KEEP}")
            try:
                where = first_difference(whole.numbers, case.run(used, resume=start).numbers)
            except UserError:
                raise
            except Exception as error:
                where = f"{type(error).__name__}: {error}"
            if where is not None:
                return fails(f"{where}, uninterrupted and resumed after round {round_}; {_lost(whole)}{KEEP}")
    return None


def _checkpoint(folder: str, round_: int) -> Unfinished:
    return Unfinished(Path(folder) / str(round_), seconds=0)


def _lost(run: Run) -> str:
    """Return which part of a run's state isn't in its checkpoints, as far as that can be found."""
    beside = sorted(set(vars(run.method)) - {one.name for one in fields(run.method)})
    if beside:
        return f"no checkpoint has '{beside[0]}', which the method stores as its own attribute: "
    if run.state.own is not None and type(run.method).own is None:
        return f"State.own is a {type(run.state.own).__name__}, which the class doesn't name: "
    return "something is stored outside the state (a global, a file, an object that was made once): "


@dataclass(frozen=True, kw_only=True)
class _FedAvgFrom(Method):
    """FedAvg from a given initial model."""

    theta: Any

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        return State(self.theta.clone(), np.zeros(context.clients, dtype=np.int64))


def one_cluster(case: MethodCase) -> Finding | None:
    """Hold that with one cluster it equals FedAvg, from the method's initial model."""
    if "clusters" not in METHODS.options(case.name).model_fields:
        return skipped("it has no option `clusters`")
    if case.kind.copies > 1:
        return skipped("its models are sums of networks, which FedAvg's aren't")
    with engine(columns(groups=1), participation=0.5) as used:
        begun: list[Any] = []

        def begin(old: Any, context: Context) -> State:
            found: State = old(context)
            begun.append(found.theta[:].clone())
            return found

        one = case.run(used, {"begin": begin}, clusters=1)
        fedavg = _FedAvgFrom(theta=begun[0][:1])
        state, _ = loop.run(fedavg, loop.context(used), used, first_round=case.first_round)
    theirs = {"theta": np.asarray(one.state.theta[:]).copy()}
    where = first_difference({"theta": np.asarray(state.theta[:]).copy()}, theirs)
    if where is None:
        return None
    why = getattr(case.kind, "departs", "")
    if why:
        return note(f"{where}, by FedAvg and by it: it states that it {why}")
    return fails(
        f"{where}, by FedAvg and by the method with clusters: 1; check weights and divisor of `merge`; or, if this "
        'is intended, state the difference in the class: departs: ClassVar[str] = "has momentum on the server"'
    )


def absent_keep_labels(case: MethodCase) -> Finding | None:
    """Hold that clients that don't take part keep their label."""
    labels = [*case.partly.labels]
    taken = Record.table(case.partly.record.clusters)["participated"].reshape(-1, len(SIZES))
    for i in range(1, len(labels)):
        moved = np.flatnonzero((labels[i] != labels[i - 1]) & ~taken[i])
        if len(moved):
            client, round_ = moved[0], case.first_round + i
            return note(
                f"in round {round_} client {client} went from model {labels[i - 1][client]} to {labels[i][client]} "
                f"without taking part ({len(moved)} such clients); right if the server regroups all clients, else "
                "don't change their labels"
            )
    return None


def settles(case: MethodCase) -> Finding | None:
    """Hold that clients keep their first cluster, if the class says so (`settles`)."""
    if not case.kind.settles:
        return skipped("its class doesn't say so")
    for run in (case.first, case.partly):
        taken = Record.table(run.record.clusters)["participated"].reshape(-1, len(SIZES))
        for i in range(1, len(run.labels)):
            moved = np.flatnonzero(taken[:i].any(axis=0) & (run.labels[i] != run.labels[i - 1]))
            if len(moved):
                return fails(
                    f"client {moved[0]} went from model {run.labels[i - 1][moved[0]]} to {run.labels[i][moved[0]]} "
                    f"in round {case.first_round + i}, though settles is True; remove that line, or keep labels"
                )
    return None


def empty_round(case: MethodCase) -> Finding | None:
    """Hold that a round in which nobody takes part changes no model and costs nothing."""
    empty, thetas = case.first_round + 1, list[Any]()

    def sample(old: Any, context: Context, state: State, round_: int) -> Any:
        drawn = old(context, state, round_)
        return drawn[:0] if round_ == empty else drawn

    with engine(rounds=empty + 1, copies=case.kind.copies) as used:
        run = case.run(
            used, {"sample": sample}, save=lambda made: thetas.append(np.asarray(made.state.theta[:]).copy())
        )
    where = first_difference({"theta": thetas[0]}, {"theta": thetas[1]})
    if where is not None:
        return fails(
            f"{where}, before and after round {empty}, in which nobody took part; `merge` may only change models to "
            "which updates are added (target)"
        )
    costs = {name: int(run.rounds[name][1]) for name in COSTS}
    paid = [f"{name} {cost}" for name, cost in costs.items() if cost]
    if paid:
        return fails(f"round {empty}, in which nobody took part, cost {paid[0]}; send requests only to participants")
    return None


def newcomers(case: MethodCase) -> Finding | None:
    """Hold that a client that never trained gets a model, or the method declares that it has none."""
    with engine(copies=case.kind.copies) as used:
        method = case.first.method
        if not method.places:
            return note("it has no model for clients that never trained: each keeps (a part of) its own")
        try:
            newcomer_labels(used, method, case.first.state)
        except BadLabels as error:
            return fails(str(error))
    return None


def costs(case: MethodCase) -> Finding | None:
    """Hold that each round's bytes and steps are counted, unless models never leave their clients."""
    run, method = case.first, case.first.method
    if not method.communicates:
        shared = np.unique(run.state.labels, return_counts=True)
        if (shared[1] > 1).any():
            model = shared[0][np.argmax(shared[1] > 1)]
            both = np.flatnonzero(run.state.labels == model)
            return fails(
                f"clients {both[0]} and {both[1]} share model {model}, but communicates is False, so the bytes for "
                "sending it aren't counted; remove that line"
            )
        return None
    for name in ("bytes_down", "bytes_up", "local_steps"):
        if (run.rounds[name] <= 0).any():
            round_ = run.rounds["round"][np.argmax(run.rounds[name] <= 0)]
            return fails(
                f"{name} is 0 in round {round_}, in which all clients took part; use the loop's training and merging"
            )
    return None


class _WatchedLosses:
    """Clients' losses; records whether any were sent to the server. Losses of single samples stay with the clients."""

    def __init__(self, losses: Any, asked: set[str]):
        self._losses, self._asked = losses, asked
        self.samples = losses.samples

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._asked.add("losses")
        return self._losses(*given, **named)

    def errors(self, *given: Any, **named: Any) -> Any:
        self._asked.add("losses")
        return self._losses.errors(*given, **named)


class _Watched:
    """A survey that records which requests were made."""

    def __init__(self, survey: Any, asked: set[str]):
        self._survey, self._asked = survey, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.add(name)
        return getattr(self._survey, name)


def says_what_it_asks(case: MethodCase) -> Finding | None:
    """Hold that it declares what the server learns in addition to updates: losses by `reveals`, the rest by `asks`."""
    asked = set[str]()

    def assign(old: Any, context: Context, state: State, round_: int, clients: Any, losses: Any) -> Any:
        return old(context, state, round_, clients, _WatchedLosses(losses, asked))

    hooks = {"assign": assign} if case.kind.assign is not Method.assign else {}
    with engine(copies=case.kind.copies) as used:
        case.run(used, hooks, survey=lambda survey: _Watched(survey, asked))
    if "losses" in asked and case.kind.reveals == "nothing":
        return fails(
            "`assign` asks for losses, but reveals is 'nothing', on which privacy and `clusterfl methods` rely; "
            'write reveals: ClassVar[Reveals] = "losses", or "choice" if only the best model\'s number is sent'
        )
    survey = sorted(asked & {"samples", "updates", "moments"})
    if survey and not case.kind.asks:
        return fails(
            f"it asks clients for {survey[0]} (context.survey), but asks is '', on which privacy and `clusterfl "
            'methods` rely; describe it, e.g. asks: ClassVar[str] = "singular vectors of each client\'s samples"'
        )
    return None


def runs_with_some(case: MethodCase) -> Finding | None:
    """Hold that with 40 % participation each participant has a model, and all numbers are finite."""
    run = case.partly
    taken = Record.table(run.record.clusters)["participated"].reshape(-1, len(SIZES))
    for i, labels in enumerate(run.labels):
        lacking = np.flatnonzero(taken[i] & (labels < 0))
        if len(lacking):
            return fails(
                f"client {lacking[0]} took part in round {case.first_round + i} and has label {labels[lacking[0]]} "
                "after it; give every participant a model in `assign`"
            )
    if not np.isfinite(np.asarray(run.state.theta[:]).copy()).all():
        return fails(
            f"a model has NaN or infinite numbers after {len(run.labels)} rounds; look for a division by the size of "
            "a cluster without participants"
        )
    return None


def runs_with_bad(case: MethodCase) -> Finding | None:
    """Hold that a client whose updates are NaN and excluded doesn't make other clients' models NaN."""
    with engine(diverged="exclude", faults={"corrupt": [BAD]}, copies=case.kind.copies) as used:
        try:
            case.run(used)
        except Diverged as error:
            return fails(
                f"with diverged: exclude, where client {BAD} sends NaN, {error}; leave out the clients in "
                "update.dropped, whose rows in update.rows aren't cleaned"
            )
        except UserError as error:
            return note(f"with diverged: exclude it still stops if a client sends NaN: {error}")
    return None


CHECKS = (
    Check("has defaults that its options allow", defaults),
    Check("imports no torch at its top", light),
    Check(LABELS, labels_in_range),
    Check("has no names that are nearly hooks'", names_unlike_hooks),
    Check("runs", runs),
    Check(SOME, runs_with_some, ("runs",)),
    Check("runs with a client whose updates are excluded", runs_with_bad, ("runs",)),
    Check(DRAWS, no_global_draws, ("runs",)),
    Check(INPUT, inputs_unchanged, ("runs",)),
    Check(OPTIONS, options_unchanged, ("runs",)),
    Check(TWICE, same_twice, (DRAWS, INPUT, OPTIONS)),
    Check("gives the same numbers in other chunks and processes", same_in_chunks, (TWICE,)),
    Check("gives the same numbers whatever the order of rows", same_in_any_order, (TWICE,)),
    Check("resumes", resumes, (TWICE, SOME)),
    Check("is FedAvg with one cluster", one_cluster, (TWICE, SOME)),
    Check("leaves the labels of absent clients alone", absent_keep_labels, (SOME,)),
    Check("settles where it says so", settles, (SOME,)),
    Check("changes nothing in a round without participants", empty_round, ("runs",)),
    Check("places newcomers", newcomers, ("runs",)),
    Check("has its costs counted", costs, ("runs",)),
    Check("says what it asks clients for", says_what_it_asks, ("runs",)),
)
