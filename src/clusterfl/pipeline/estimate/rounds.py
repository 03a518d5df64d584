"""What a job's rounds need, computed from settings, a federation's sizes and the method's hooks.

The hooks `begin`, `sample` and `assign` are called for three rounds, with models of one number and synthetic losses, to
count participants and scored models; the third round represents all later ones. M clients, K models, P columns of a
row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.federation import Federation
from ...engine import batches, memory
from ...engine.features import Head
from ...engine.parameter_layout import Layout
from ...engine.personal import Columns
from ...engine.training import Training
from ...engine.update import Update
from ...errors import UserError
from ...methods import METHODS
from ...simulation import returned
from ...simulation.assignment import trainings
from ...simulation.ledger import BYTES_PER_NUMBER, still
from ...simulation.method import Context, Ids, Method, SampleLosses, prepared
from ...simulation.state import PERSONAL, State
from ...storage.row_store import Rows
from ...storage.store import read_table
from ..execute import is_done
from ..job import Job
from . import startup
from .data import FewSamples, Place

# Bytes in Parquet files: of a table with four columns, of a row of a history, of a client's cluster in a round.
TABLE, HISTORY, CLUSTER = 1400.0, 8.5, 0.3
SOME = 4  # assumed number of clusters if it is chosen from a distance
SETTLING = ("least_share", "stable_rounds", "step_rounds")  # with these options losses decide how many models are sent


@dataclass
class Needs:
    """What all rounds of a job need, as sums over the rounds."""

    training: Training  # with the method's changes
    models: int  # K
    steps: float = 0.0  # samples in the clients' optimiser steps
    different: int = 0  # models that clients are scored on: K, or M if each client keeps columns
    blended: int = 1  # models that are averaged in a prediction
    passes: float = 0.0  # forward passes of a model over a set of samples
    samples: float = 0.0  # samples in these passes
    merged: float = 0.0  # model updates on the server
    seconds: float = 0.0  # of the method's hooks
    sent: float = 0.0  # bytes to and from the clients
    known: bool = True  # whether `sent` is independent of how training goes
    beside: list[float] = field(default_factory=list)  # rows of each array [rows, P] in addition to the models
    stored: float = 0.0  # rows [P] that are written
    history: float = 0.0  # rows of the table history
    disk: float = 0.0  # bytes of tables and of small arrays


class _Losses:
    """Synthetic losses; counts the requests in a round."""

    def __init__(self, state: State, clients: Ids):
        self.state, self.clients, self.random = state, clients, np.random.default_rng(0)
        self.counts = np.zeros(4)  # clients, pairs of a client and a model, models, clients that don't send the losses

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `clusterfl.simulation.asking.Losses`."""
        models = len(self.state.theta if theta is None else theta)
        clients = self.clients if clients is None else clients
        self.counts += [len(clients), len(clients) * models, models, 0]
        return self.random.random((len(clients), models))

    def errors(self, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `clusterfl.simulation.asking.Losses`."""
        return self(clients=clients)

    def samples(self, clients: Ids | None = None) -> SampleLosses:
        """See `clusterfl.simulation.asking.Losses`; each client has one sample."""
        values, one = self(clients=clients), np.ones(len(self.clients if clients is None else clients), dtype=np.int64)
        self.counts[3] += len(one)
        return SampleLosses(values, np.arange(len(one)), np.zeros(len(one), dtype=np.int64), one)


class _Survey:
    """A survey with models of one number and few samples; counts the requests to clients."""

    def __init__(self, federation: Federation, layout: Layout):
        self.sizes, self.columns = federation.splits["train"].sizes, layout.columns
        self.samples, self.random = FewSamples(federation), np.random.default_rng(0)
        self.models, self.steps = 0, 0.0  # updates, and the samples in their steps

    def updates(self, theta: torch.Tensor, clients: Ids, training: Training) -> Update:
        """See `clusterfl.simulation.asking.Survey`."""
        steps = batches.steps_of(self.sizes[clients], training)
        self.models += len(clients)
        self.steps += float((steps * batches.batch_rows(self.sizes[clients], training)).sum())
        rows = torch.as_tensor(self.random.normal(size=(len(clients), 1)), dtype=torch.float32)
        none = np.zeros(len(clients), dtype=bool)
        return Update(clients, np.zeros_like(clients), steps, norms=np.ones(len(clients)), dropped=none, rows=rows)

    def counted(self, down: int, up: int) -> None:
        """See `clusterfl.simulation.asking.Survey`. Not counted here: `Method.besides` estimates it for all rounds."""

    def spent(self) -> dict[str, int]:
        """See `clusterfl.simulation.asking.Survey`."""
        down = self.models * self.columns * BYTES_PER_NUMBER
        return {"bytes_down": down, "bytes_up": down + self.samples.sent * BYTES_PER_NUMBER}


class Unknown(Exception):
    """A method's needs can't be determined by calling its hooks; the text says why."""


def needs(job: Job, place: Place, layout: Layout) -> Needs:
    """Return what a job of stage warmup or federate needs.

    Raises
    ------
    UserError
        If the method can't run with its settings or on the federation, or a hook returns an invalid value.
    Unknown
        If a user's hook fails with models of one number, which it may not do in a run.
    """
    try:
        return _needs(job, place, layout)
    except UserError:
        raise
    except Exception as error:
        name = job.settings.get("method", "")
        if ":" not in name:
            raise
        said = f"{type(error).__name__}: {error}"
        raise Unknown(f"hooks of {name}, called with models of one number, fail with {said}") from error


def _needs(job: Job, place: Place, layout: Layout) -> Needs:
    federation, warmup = place.federation, job.upstream.get("warmup.common")
    first = 1 if warmup is None else 1 + int(warmup.settings["training"]["rounds"])
    startup.load(startup.imports(job))  # imports belong to the start, not to the work
    method = _method(job)
    survey = _Survey(federation, layout)
    context = prepared(method, _context(job, federation, layout, survey))
    state, training, sizes = method.begin(context), context.training, federation.splits["train"].sizes
    returned.check_state(state, None, federation.ids, returned.hook(method, "begin"))
    returned.check_constant(method, context)
    before = survey.spent()
    rounds, labelled = np.arange(first, training.rounds + 1), bool((state.labels >= 0).all())
    found = Needs(training, len(state.theta), different=len(state.theta))
    kept = len(Columns.of({name: part for name, _, part in layout.slices()}, method.keeps(context)))
    _count_kept(found, job, state, len(sizes))
    if kept:
        found.beside.append(len(sizes) * kept / layout.columns)
        found.stored, found.different = found.stored + found.beside[-1], len(sizes)
    clients, trained, asked, scored, found.passes, quiet, found.seconds = map(
        float, _asked(method, context, state, rounds)
    )
    trained, steps = trained * _delivered(training), batches.steps_of(sizes, training)
    found.blended = 1 if state.mixture is None else len(state.theta)
    tensors, turns = {name: part for name, _, part in layout.slices()}, method.turns(context, 1)
    named = replace(context, tensors=tensors, parameter_columns=layout.parameter_columns)
    found.samples, found.merged = scored * float(sizes.mean()), min(found.models * len(rounds), trained)
    beside = method.beside(context, state)
    repeats = max(1, len(turns)) * (1 if beside is None else beside.times)
    found.steps = repeats * trained * float((steps * batches.batch_rows(sizes, training)).mean())
    if (own := method.alone(training)) is not None:
        found.steps += trained * float((batches.steps_of(sizes, own) * batches.batch_rows(sizes, own)).mean())
    models = scored + (max(0.0, clients - asked) + trained if method.communicates else 0.0)
    numbers = scored if method.reveals == "losses" else asked - quiet
    numbers += trained * float(steps.mean()) if "curves" in method.needs else 0.0
    asked_for = survey.spent()
    found.steps += survey.steps
    sent = layout.columns - (0 if method.sends_kept else kept)  # numbers of a model
    numbers -= (scored - asked) * len(Columns.of(tensors, method.common(named))) + trained * still(method, named, turns)
    numbers += method.besides(context, layout.columns, clients * _delivered(training), len(rounds))
    found.sent = BYTES_PER_NUMBER * (models * sent + numbers) + sum(asked_for.values())
    found.known = asked_for == before and _is_known(job, method, training, clients == len(rounds) * len(sizes))
    _count_scores(found, place, rounds, 1.0 if labelled else 1 - clients / max(1, len(rounds)) / len(sizes), trained)
    found.disk += TABLE * (4 if job.stage == "warmup" else 7) + HISTORY * found.history
    found.disk += CLUSTER * len(rounds) * len(sizes) * (job.stage == "federate")
    return found


def _method(job: Job) -> Method:
    """Return a job's method; a warm-up's is FedAvg."""
    return Method() if job.stage == "warmup" else METHODS.make(job.settings["method"], job.settings["options"])


def _context(job: Job, federation: Federation, layout: Layout, survey: _Survey) -> Context:
    """Return a method's context with models of one number."""
    clients, settings, given = federation.clients, job.settings, dict[str, Any]()
    if "clusters" in job.inputs:
        given = {"clustering": _clustering(job, clients), "members": lambda: torch.zeros(clients, 1)}
        given["warmup"] = State(torch.zeros(1, 1), np.zeros(clients, dtype=np.int64))
    return Context(
        clients=clients,
        sizes=federation.splits["train"].sizes,
        seed=settings["sampling_seed"],
        training=Training(**settings["training"]),
        initial=lambda index: torch.full((1,), float(index)),
        allocate=lambda rows, columns, dtype=torch.float32: torch.zeros(rows, columns, dtype=dtype),
        parameter_columns=1,
        survey=cast(Any, survey),  # only counts requests of `begin`, `sample` and `assign`
        words=federation.words,
        copies=settings.get("copies", 1),
        classes=federation.classes,
        head=_head(layout),
        tensors={name: slice(0, 1) for name, _, _ in layout.slices()},
        frozen=layout.frozen,
        true_cluster=federation.true_cluster,
        **given,
    )


def _head(layout: Layout) -> Head | None:
    """Return the last layer according to the tensors' names, if it is linear; a run inspects the network itself."""
    last = layout.parameters[-1][0].rpartition(".")[0]
    own = [(name, shape) for name, shape in layout.parameters if name.rpartition(".")[0] == last]
    width = [shape[1] for _, shape in own if len(shape) == 2]
    return Head(last, tuple(name for name, _ in own), width[0]) if width else None


def _clustering(job: Job, clients: int) -> Ids:
    """Return a one-shot method's clusters if they are known, else synthetic ones of equal sizes."""
    if is_done(job.upstream["clusters"]):
        table = read_table(job.inputs["clusters"])
        return np.asarray(table["cluster"][np.argsort(table["client"])])
    block = job.upstream["clusters"].settings
    most = block["most"] if isinstance(block["clusters"], str) else block["clusters"]
    return np.arange(clients) % (most or SOME)


def _asked(method: Method, context: Context, state: State, rounds: Ids) -> NDArray[np.float64]:
    """Return sums over all rounds, [7].

    Participants; trainings of a model by a client; clients that measure losses; pairs of such a client and a model;
    models; clients that don't send their losses; seconds.
    """
    found = np.zeros((3, 7))
    for i, round_ in enumerate(rounds[:3]):
        began, clients = perf_counter(), method.sample(context, state, int(round_))
        returned.check_drawn(clients, context.clients, returned.hook(method, "sample", round_))
        losses = _Losses(state, clients)
        given = method.assign(context, state, int(round_), clients, losses)
        returned.check_assignment(given, len(state.theta), clients, returned.hook(method, "assign", round_))
        state.labels[clients] = given.start
        trained = len(trainings(given, clients, np.ones_like(clients)).clients)
        found[i] = len(clients), trained, *losses.counts, perf_counter() - began
    return found[0] + found[1] + max(0, len(rounds) - 2) * found[2]


def _delivered(training: Training) -> float:
    """Return the expected share of participants whose work isn't lost."""
    faults = training.faults
    if faults is None:
        return 1.0
    return (1 - faults.dropout) * (1 - faults.stragglers * (faults.straggled == "exclude"))


def _is_known(job: Job, method: Method, training: Training, everybody: bool) -> bool:
    """Return whether what is sent is independent of how training goes, as far as hooks and options show.

    It may depend on training if participants are drawn by clusters that aren't known yet or may be split; and with a
    user's own hooks.
    """
    name, options = job.settings.get("method", "fedavg"), job.settings.get("options", {})
    cluster, faults = job.upstream.get("clusters"), training.faults
    made_up = cluster is not None and options.get("sampling") == "clusters" and not is_done(cluster)
    own = ":" in name and (type(method).sample, type(method).assign) != (Method.sample, Method.assign)
    drawn = method.splits or made_up or "curves" in method.needs  # curves have one number for each step
    own |= "features" in method.needs  # a client sends means only of the classes that it has
    unsure = own or (drawn and not everybody) or any(options.get(key) for key in SETTLING)
    return not unsure and training.sampler == "fixed" and (faults is None or not faults.loses)


def _count_scores(found: Needs, place: Place, rounds: Ids, absent: float, trained: float) -> None:
    """Count evaluations: after rounds, by class, and of the participants' trained models.

    `absent` is the probability that a client doesn't take part in a round, if clients have no model before their first
    participation; 1: all clients have a model from the start.
    """
    training, splits = found.training, {name: len(s) for name, s in place.federation.splits.items() if len(s)}
    clients, held = place.federation.clients, {name: n for name, n in splits.items() if name != "train"}
    after = rounds[(rounds % training.evaluate_every == 0) | (rounds == training.rounds)]
    often = float((1 - absent**after).sum()) if absent < 1 else float(len(after) + (1 in rounds))
    found.passes += found.different * (len(splits) * often + 1)
    found.samples += found.blended * (often * sum(splits.values()) + held.get("test", 0))  # the latter: by class
    found.history += often * clients * len(splits)
    own = {"local", "stale"} & set(training.evaluations)
    scored = often * clients if "personalised" in training.evaluations else 0.0
    found.history += (scored + trained * len(own)) * len(held)
    if scored:
        sizes = place.federation.splits["train"].sizes
        few = training.model_copy(update={"steps": training.personalised_steps, "epochs": None})
        found.steps += often * float((batches.steps_of(sizes, few) * batches.batch_rows(sizes, few)).sum())
    scored += trained if own else 0.0
    found.passes += scored * len(held)
    found.samples += scored * sum(held.values()) / clients
    if "newcomer" in training.evaluations and place.newcomers is not None:
        new = {name: len(split) for name, split in place.newcomers.splits.items()}
        found.passes += 2 * often * found.models
        found.samples += often * (found.models * new["train"] + new["test"])
        found.history += often * place.newcomers.clients


def _count_kept(found: Needs, job: Job, state: State, clients: int) -> None:
    """Count the arrays of a state, and of the optimisers of clients and server."""
    training, models = found.training, float(found.models)
    own = [float(clients)] * (len(memory.ROWS[training.optimizer]) if training.optimizer_state == "kept" else 0)
    if job.stage == "warmup":
        arrays = 1 + job.settings["gradients"] + job.settings.get("deltas", False)
        found.beside, found.stored = [float(clients)] * (2 * arrays) + own, models + clients * arrays + sum(own)
        return
    gradients = training.average == "gradients"
    momentum = training.momentum if gradients else training.server_momentum
    kept = [2 * models] * (2 if gradients and training.optimizer == "adam" else int(momentum > 0))  # in float64
    held = {name: value for name, value in state.arrays().items() if name not in ("theta", PERSONAL)}
    kept += [float(len(value)) for value in held.values() if not isinstance(value, np.ndarray)]
    found.beside, found.stored = kept + own, models + sum(kept)
    found.disk = float(sum(value.nbytes for value in held.values() if isinstance(value, np.ndarray)))
