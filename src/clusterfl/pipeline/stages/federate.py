"""Stage federate: one method on one federation with one seed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.engine import Engine
from ...engine.features import centred
from ...errors import Diverged, UserError
from ...methods import METHODS
from ...privacy.settings import WRAPPER, Privacy, Rebalance
from ...simulation import loop
from ...simulation.method import Context, Method, settled
from ...simulation.record import Record
from ...simulation.state import State
from ...storage.manifest import manifest_path
from ...storage.store import read_json, read_table, write_table, write_tensors
from . import Facts, Work
from .common import arrays, engine, facts, keeping, read_clients, read_state, resumed, write_record


def run(work: Work) -> Facts:
    """Write the tables of rounds, the final models and their results by class."""
    settings, kept = work.settings, work.unfinished
    before = _warmup(work) if "clusters" in work.inputs else None
    first = 1 if before is None else int(before["rounds"]["round"].max()) + 1
    with engine(work) as used:
        if settings.get("trial") and not len(used.federation.splits["validation"]):
            raise UserError(
                "no client has a validation sample to choose a trial by; set a higher partition.validation, e.g. 0.1"
            )
        method, context = make(work), _context(work, used)
        with work.progress(settings["method"], used.training.rounds) as progress, kept.watching():
            try:
                state, record = loop.run(
                    method, context, used, first_round=first, progress=progress,
                    resume=resumed(kept, method.own), save=keeping(kept),
                )  # fmt: skip
            except Diverged as error:
                if not settings.get("trial"):
                    raise
                return _diverged(work, used, error, before)
        write_record(work, record, before)
        write_table(work.outputs["clusters"], Record.table(record.clusters))
        write_table(work.outputs["classes"], by_class(used, state))
        write_tensors(work.outputs["models"], arrays(state, optimizers=False))
        own = method.facts(settled(method, context))
        return facts(used, record) | {"rounds": used.training.rounds} | own


def make(work: Work) -> Method:
    """Return the method of a job."""
    return _wrapped(METHODS.make(work.settings["method"], work.settings["options"]), work.settings)


def _context(work: Work, used: Engine) -> Context:
    """Return the method's context; for a one-shot method with the clusters and the warm-up's result."""
    return loop.context(used, **(_one_shot(work, used) if "clusters" in work.inputs else {}))


def _wrapped(method: Method, settings: dict[str, Any]) -> Method:
    """Return the method, wrapped by the blocks rebalance and privacy if the settings have them."""
    blocks = {"rebalance": Rebalance, "privacy": Privacy}
    given = {name: kind(**settings[name]) for name, kind in blocks.items() if name in settings}
    if not given:
        return method
    if "privacy" in given and settings.get("trial"):
        print("privacy: choosing among trials by their score costs privacy that isn't counted", file=sys.stderr)
    wrapper = import_module(WRAPPER)  # by name, so that its code is part of no other method's digest
    blocks_given = given.get("rebalance"), given.get("privacy")
    wrapped: Method = wrapper.wrap(method, settings["method"], *blocks_given, trial=bool(settings.get("trial")))
    return wrapped


def _diverged(work: Work, used: Engine, error: Diverged, before: dict[str, dict[str, Any]] | None) -> Facts:
    """Write a diverged trial's costs, without scores and models: it is never chosen, and other trials go on."""
    spent = Record(rounds=error.record.rounds, timing=error.record.timing)
    write_record(work, spent, before and {"rounds": before["rounds"]})
    for name in ("clusters", "classes"):
        write_table(work.outputs[name], {})
    write_tensors(work.outputs["models"], {})
    return facts(used, spent) | {"diverged": str(error)}


def _warmup(work: Work) -> dict[str, dict[str, Any]]:
    """Return the warm-up's tables, with the cost of measuring the distance added to its last round."""
    tables = {name: read_table(work.inputs[f"warmup.{name}"]) for name in ("history", "rounds")}
    costs = read_json(manifest_path(work.inputs["distance"]))["costs"]
    for name, cost in costs.items():
        tables["rounds"][name] = tables["rounds"][name].copy()
        tables["rounds"][name][-1] += cost
    return tables


def _one_shot(work: Work, used: Engine) -> dict[str, Any]:
    """Return what a one-shot method continues from: clusters and the warm-up's result."""
    table = read_table(work.inputs["clusters"])
    if not np.array_equal(np.sort(table["client"]), used.federation.ids):
        raise UserError(
            f"{work.inputs['clusters']} has {len(table['client'])} clients, the partition "
            f"{used.federation.clients}, and they differ; run the clustering again"
        )
    extra: dict[str, Any] = {
        "clustering": table["cluster"][np.argsort(table["client"])],
        "warmup": read_state(work.inputs["warmup.common"]),
    }
    if "clients" in work.inputs:
        extra["members"] = lambda: read_clients(work.inputs["clients"], "theta")[1]
    return extra


def _hits(used: Engine, state: State, rows: NDArray[np.int64], clients: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return whether each of the test samples `rows` [n] is predicted correctly (0, 1); `clients` [n] own them."""
    if state.mixture is not None:
        return used.blended(state.theta, state.mixture[clients], "test", rows)[1]
    labels, hits = state.labels[clients], np.zeros(len(rows))
    order = np.argsort(labels, kind="stable")
    alone = (
        np.zeros_like(clients) if state.personal is None else clients
    )  # with kept columns, clients with the same label have different models
    new = (np.diff(labels[order]) != 0) | (np.diff(alone[order]) != 0)
    for part in np.split(order, np.flatnonzero(new) + 1):
        model = state.theta[int(labels[part[0]])]
        if state.personal is not None:
            model = state.personal.into(model[None], clients[part[:1]])[0]
        hits[part] = used.correct(model, "test", rows[part], centred(state.nearest))
    return hits


def by_class(used: Engine, state: State) -> dict[str, Any]:
    """Return samples and correct predictions by client and class, on test data with the final models."""
    federation = used.federation
    data, classes = federation.splits["test"], max(federation.classes, 1)
    labelled = np.flatnonzero(state.labels >= 0) if federation.classes else np.zeros(0, dtype=np.int64)
    rows, owner = data.of(labelled)
    hits = _hits(used, state, rows, labelled[owner]) if len(rows) else np.zeros(0)
    pairs, position = np.unique(owner * classes + data.y[rows].astype(np.int64), return_inverse=True)
    return {
        "client": federation.ids[labelled[pairs // classes]],
        "class": pairs % classes,
        "n": np.bincount(position),
        "correct": np.bincount(position, weights=hits).astype(np.int64),
    }
