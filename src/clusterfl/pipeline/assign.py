"""The cluster of clients that never trained: `clusterfl assign`.

A method's own rule (`Method.place`) chooses among the final models of a finished run, from the losses on a client's
data: most methods take the model of least loss, CLoVE the one whose last group has the nearest vector of losses. If the
method has kept models for this purpose (CLoVE's from the round of stability), losses are measured on those instead. The
margin is the loss of the best other final model minus that of the chosen one: the larger, the clearer the choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..data.encoding import Encoding
from ..data.inputs import Inputs
from ..data.names import Names
from ..data.samples import read_samples
from ..engine.engine import Engine
from ..engine.training import Training
from ..errors import UserError, choices
from ..methods import METHODS
from ..progress import bar
from ..registry import find_file
from ..report.tables import harmless
from ..simulation import loop
from ..simulation.evaluation import newcomer_labels, newcomer_losses
from ..simulation.method import Method, prepared
from ..storage.manifest import manifest_path, verified
from ..storage.outputs import check_output
from ..storage.store import read_json, read_table, replacing
from . import newcomers
from .execute import check_inputs
from .job import Job, missing
from .jobs import Plan
from .stages import Work
from .stages.common import engine, read_state
from .stages.federate import make

COLUMNS = ("client", "cluster", "group", "margin", "loss", "second_cluster", "second_loss", "n")


def assign(
    plan: Plan,
    federation: str | None = None,
    seed: int | None = None,
    method: str | None = None,
    data: str | None = None,
    dataset: str | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> pd.DataFrame:
    """Return the cluster of each new client, one row a client, as `table` describes.

    Parameters
    ----------
    plan
        A study whose method was run.
    federation, seed, method
        Which of its runs; each may be omitted if the study has only one.
    data
        A file or folder with the new clients' samples; the partition's own newcomers if not given.
    dataset, options
        How `data` are read, see `clusterfl.pipeline.newcomers.read`.
    threads
        Processes on a CPU; they change no bit.

    Raises
    ------
    UserError
        If the run is missing or damaged, its method has no model for new clients, or their data don't fit.
    """
    made, job = _trained(
        plan,
        where := _only("federation", federation, list(plan.study.federations)),
        _only("seed", seed, plan.study.seeds.runs),
        _only("method", method, list(plan.on(where).methods) if where in plan.study.federations else []),
    )
    new, names, classes = None, np.empty(0), None
    if data is not None:
        block = plan.study.federations[str(job.federation)].dataset
        samples, inputs = read_samples(job.inputs["samples"]), Inputs(**job.settings["inputs"])
        encoding, classes = Encoding.fitted(samples, read_table(job.inputs["partition"]), inputs), samples.classes
        new, names = newcomers.read(data, dataset, options or {}, block, samples, inputs, encoding)
    elif dataset or options:
        raise UserError("--dataset and --option say how --data is read; give --data as well, or omit them")
    work = Work(job.settings, job.identity, job.inputs, made.outputs, bar, threads, plan.study.engine.chunk)
    training = Training(**(job.settings["training"] | {"evaluations": ["newcomer"]}))
    with engine(work, training, new) as used:
        rule = make(work)
        if not rule.places:
            raise UserError(
                f"method '{job.name}' ({job.settings['method']}) has no model for clients that it didn't train with; "
                f"methods of this study that have one: {', '.join(_that_place(plan, job, used)) or '(none)'}"
            )
        if new is not None and used.federation.classes:
            newcomers.check_classes(used.federation, new, names, classes)
        called = Names.of(read_json(manifest_path(job.inputs["partition"])).get("names"))
        return _placed(work, used, rule, names, called)


def _only(kind: str, given: Any, there: Collection[Any]) -> Any:
    """Return what is given, or the only choice; raise an error if there are several."""
    if given is None and len(there) > 1:
        raise UserError(f"--{kind}: the study has {len(there)}; say which; {choices(map(str, there))}")
    return next(iter(there)) if given is None else given


def _trained(plan: Plan, federation: str, seed: int, method: str) -> tuple[Job, Job]:
    """Return the job with the final models, and the one that trained them: for a swept method the chosen trial.

    The models and their inputs are checked.
    """
    made = job = plan.result(federation, seed, method)
    models = made.outputs["models"]
    if not models.exists():
        raise UserError(
            f"method '{method}' hasn't been run on federation '{federation}' with seed {seed}; run it: {made.command}, "
            f"or all of the study: clusterfl run --config {' '.join(map(str, plan.files))}"
        )
    if method in plan.swept:
        chosen = verified(models, made.identity, made.settings_digest, made.command)["chosen"]
        job = plan.job("federate", federation, seed, method, chosen)
    check_inputs(replace(job, inputs={"models": models} | job.inputs, upstream={"models": made} | job.upstream))
    return made, job


def _placed(work: Work, used: Engine, method: Method, names: NDArray[Any], called: Names) -> pd.DataFrame:
    """Return the table of an engine's newcomers, by `names`, else by the partition's names `called`, else by ids."""
    new = used.newcomers
    if new is None:
        raise UserError(
            f"the partition of federation '{work.identity['federation']}' has no newcomers; give the data of new "
            "clients with --data, or set partition.newcomers and run the study again"
        )
    if len(names):
        names = names[new.ids]
    else:
        names = np.array([called.client(i) for i in new.ids.tolist()]) if called.clients else new.ids
    train, test = new.splits["train"].sizes, new.splits["test"].sizes
    n = np.where(train > 0, train, test)
    if not n.all():
        raise UserError(
            f"newcomer {names[np.argmin(n)]} ({(n == 0).sum()} in all) has no training or test samples to measure "
            "losses on; use a smaller partition.validation, or fewer clients"
        )
    used.enter(used.training.rounds)
    state = read_state(work.outputs["models"], method.own)
    labels, losses = newcomer_labels(used, method, state)
    _check_finite(names, losses)
    if method.placing(state) is not state.theta:  # the table shows losses on the final models
        losses = newcomer_losses(used, state.theta)
        _check_finite(names, losses)
    found = table(names, labels, losses, n, groups(state.labels, used.federation.true_cluster, len(losses.T)))
    if called.groups and "group" in found:
        found["group"] = [None if pd.isna(k) else called.groups.get(k, str(k)) for k in found["group"]]
    return found


def _check_finite(names: NDArray[Any], losses: NDArray[np.float64]) -> None:
    bad = np.argwhere(~np.isfinite(losses))
    if len(bad):
        raise UserError(
            f"client {names[bad[0][0]]}: its loss on model {bad[0][1]} is NaN or infinite; its samples are far from "
            "the study's: check their scale"
        )


def _that_place(plan: Plan, job: Job, used: Engine) -> list[str]:
    """Return the study's methods that have a model for new clients, run or not."""
    one = np.zeros(used.federation.clients, dtype=np.int64)  # any clustering, for one-shot methods
    found = []
    for name in plan.on(str(job.federation)).methods:
        trial = 1 if name in plan.swept else None
        settings = plan.job("federate", job.federation, job.seed, name, trial).settings
        with contextlib.suppress(UserError):  # if the method can't run on this federation
            rule = METHODS.make(settings["method"], settings["options"])
            prepared(rule, loop.context(used, clustering=one))
            if rule.places:
                found.append(name)
    return found


def groups(labels: NDArray[np.int64], true_cluster: NDArray[np.int64] | None, models: int) -> NDArray[np.int64] | None:
    """Return the planted group that most members of each model belong to, [K]; -1 = unknown.

    Parameters
    ----------
    labels : [M]
        The model of each member, -1 = none.
    true_cluster : [M]
        The planted group of each member, -1 = unknown; None if none is known, and then so is the result.
    models
        K.
    """
    if true_cluster is None:
        return None
    found = np.full(models, -1)
    for k in range(models):
        own_groups = true_cluster[(labels == k) & (true_cluster >= 0)]
        if len(own_groups):
            found[k] = np.bincount(own_groups).argmax()  # the first one on ties
    return found


def table(
    names: NDArray[Any],
    labels: NDArray[np.int64],
    losses: NDArray[np.float64],
    n: NDArray[np.int64],
    group: NDArray[np.int64] | None = None,
) -> pd.DataFrame:
    """Return the result's columns, one row a client.

    ``client, cluster, group, margin, loss, second_cluster, second_loss, n``: `loss` is that of the client's model,
    `second_*` that of the best other model, and ``margin = second_loss - loss``, negative if the method chose a model
    with a larger loss. Cells are blank if there is only one model, or none for the client.

    Parameters
    ----------
    names : [m]
        Names of the clients.
    labels : [m]
        The model of each, -1 = none.
    losses : [m, K]
        Mean loss of each model on each client's data.
    n : [m]
        Samples that the losses were measured on.
    group : [K]
        The planted group of each model's members, -1 = unknown; None leaves the column out.
    """
    rows, placed = np.arange(len(labels)), labels >= 0
    loss = np.where(placed, losses[rows, labels], np.nan)
    others = losses.copy()
    others[rows, labels] = np.inf
    second = others.argmin(axis=1)
    known = placed & (losses.shape[1] > 1)
    second_loss = np.where(known, others[rows, second], np.nan)
    columns: dict[str, Any] = {"client": names, "cluster": _whole(labels, placed)}
    if group is not None:
        columns["group"] = _whole(group[labels], placed & (group[labels] >= 0))
    columns |= {"margin": second_loss - loss, "loss": loss}
    return pd.DataFrame(columns | {"second_cluster": _whole(second, known), "second_loss": second_loss, "n": n})


def _whole(values: NDArray[np.int64], known: NDArray[np.bool_]) -> Any:
    return pd.arrays.IntegerArray(values.astype(np.int64), ~known)  # blank where not known


def text(found: pd.DataFrame) -> str:
    """Return the table as printed, with a remark on negative margins."""
    shown = found.astype(object).where(found.notna(), "")
    lines = [shown.to_string(index=False, float_format="{:.4g}".format)]
    against = int((found["margin"] < 0).sum())
    if against:
        lines.append(
            f"margin below 0: by the method's own rule {against} of {len(found)} clients get a model with a larger "
            "loss than another model's"
        )
    return "\n".join(lines)


def as_json(found: pd.DataFrame) -> str:
    """Return the table as a JSON list of objects; unknown values are null."""
    return str(found.to_json(orient="records", indent=2, double_precision=15))


def check_target(path: Path, plan: Plan, data: str | None, options: Mapping[str, Any]) -> None:
    """Raise an error if a file for `write` exists and isn't an earlier table of `assign`.

    Parameters
    ----------
    path
        The file.
    plan
        The study.
    data, options
        As for `assign`: the new clients' data.

    Raises
    ------
    UserError
        If it is a file of the study's or the new clients' data, is inside their folders, under results/ or data/, or
        exists and isn't such a table.
    """
    blocks = [block.dataset for block in plan.study.federations.values()]
    named = [data, *(options.get(key) for key in ("path", "images")), *(plan.files)]
    named += [block.options()[key] for block in blocks for key in block.files()]
    names = [str(one) for one in named if one is not None]
    gone = missing(names)
    check_output("--output", path, "assign", _is_table, [find_file(name) for name in names if name not in gone])


def _is_table(text: str) -> bool:
    """Return whether a CSV begins with the columns of a table of `assign`."""
    head = tuple(text.splitlines()[0].split(","))
    return head in (COLUMNS, tuple(name for name in COLUMNS if name != "group"))


def write(found: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV, with all digits.

    Spreadsheets treat a text that begins with ``= + - @`` or a tab as a formula, so such names get an apostrophe.
    """
    named = {kind: harmless(found[kind]) for kind in ("client", "group") if kind in found}
    with replacing(path) as temporary:
        found.assign(**named).to_csv(temporary, index=False)
