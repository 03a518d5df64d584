"""Functions for all stages that train: federation, model and engine from a job's settings and files; states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ...data.federation import Federation
from ...data.inputs import Inputs
from ...data.load import load_federation
from ...data.prepared import augmented_once, outputs, sample_shape
from ...engine import memory
from ...engine.engine import Engine
from ...engine.training import Training
from ...errors import UserError
from ...models import MODELS
from ...simulation import participation
from ...simulation.loop import Checkpoint
from ...simulation.record import Record
from ...simulation.state import State, row_names
from ...simulation.warm_up import CLIENTS
from ...storage.row_store import Rows, StoredRows
from ...storage.store import names_of, read_tensors, write_table
from ..checkpoint import Saved, Unfinished
from . import Facts, Work


def engine(work: Work, training: Training | None = None, newcomers: Federation | None = None) -> Engine:
    """Return the engine of a job. `training` replaces the job's settings, `newcomers` the partition's newcomers.

    The partition's newcomers are loaded only if the training evaluates them.
    """
    settings = work.settings
    training = training or Training(**settings["training"])
    drawn_too = newcomers is None and "newcomer" in training.evaluations
    inputs = Inputs(**settings["inputs"])
    federation, drawn = load_federation(work.inputs["samples"], work.inputs["partition"], inputs, drawn_too)
    if settings.get("data") == "augmented":  # of a distance
        federation = augmented_once(federation, settings["seed"])
    return engine_of(settings, federation, training, newcomers or drawn, work.chunk, work.threads)


def engine_of(
    settings: dict[str, Any],
    federation: Federation,
    training: Training,
    newcomers: Federation | None = None,
    chunk: int | None = None,
    workers: int = 1,
) -> Engine:
    """Return the engine for a job's settings and data in memory."""
    return Engine(
        partial(_model, settings["model"], sample_shape(federation), outputs(federation)),
        federation,
        training,
        seed=settings.get("sampling_seed", 0),
        model_seed=settings.get("model_seed", 0),
        device=settings["device"],
        precision=settings["precision"],
        backend=settings.get("backend", "auto"),
        chunk=chunk,
        workers=workers,
        newcomers=newcomers,
        copies=settings.get("copies", 1),
    )


def _model(block: dict[str, Any], sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Make a model; raise a UserError if that fails."""
    name, make = block["model"], MODELS[block["model"]]
    try:
        model = make(sample_shape, outputs, **block["options"])
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"model '{name}' can't be made for samples of shape {sample_shape}: {error}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model '{name}' should return a torch module; it returned {type(model).__name__}")
    return model


def arrays(state: State, optimizers: bool = True) -> dict[str, Any]:
    """Return a state as it is stored: arrays by name, and rows that may be in a file.

    The clients' optimiser states (`optimizers`) belong to the clients and are stored only in checkpoints.
    """
    return {
        name: value if isinstance(value, Rows) else np.atleast_1d(np.asarray(value))
        for name, value in sorted(state.arrays().items())
        if optimizers or name not in memory.NAMES
    }


def read_state(path: Path, own: type | None = None) -> State:
    """Read a stored state; models and optimiser states are rows again, in a file if large.

    `own` is the type of the method's part of the state.
    """
    return State.of(_read_arrays(path, row_names(own)), own, memory.NAMES)


def _read_arrays(path: Path, rows: set[str]) -> dict[str, Any]:
    """Return the arrays of a file by name; those in `rows` and the optimisers' as rows."""
    stored = names_of(path) & {*rows, *memory.NAMES - {memory.STEPS}}
    found: dict[str, Any] = read_tensors(path, names_of(path) - stored)
    return found | {name: StoredRows([path], name).copy() for name in stored}


def resumed(unfinished: Unfinished, own: type | None = None) -> Checkpoint | None:
    """Return the checkpoint of an earlier run, if there is one; `own` as for `read_state`."""
    saved = unfinished.read(lambda path: _read_arrays(path, row_names(own) | set(CLIENTS)))
    if saved is None:
        return None
    beside = {name: saved.tensors[name] for name in CLIENTS if name in saved.tensors}
    return Checkpoint(saved.step, State.of(saved.tensors, own, memory.NAMES), Record.of(saved.tables), beside)


def keeping(unfinished: Unfinished) -> Callable[[Checkpoint], None]:
    """Return a function that writes a checkpoint at a round's end if one is due."""

    def saved(made: Checkpoint) -> Saved:
        return Saved(made.round, arrays(made.state) | made.beside, made.record.tables())

    return lambda made: unfinished.at(made.round, lambda: saved(made))


def facts(used: Engine, record: Record) -> Facts:
    """Return the facts of a computation for the manifest, and, as ``timing``, the rounds' times, which aren't in it.

    Chunk and workers aren't facts, as they change no bit.
    """
    factors = participation.factors(used.training.faults, used.seed, used.federation.ids)
    return ({} if factors is None else {"corrupt": used.federation.ids[factors != 1].tolist()}) | {
        "backend": used.backend,
        "backend_reason": used.reason,
        "device": used.device.type,
        "parameters": used.layout.parameter_columns,
        "timing": Record.table(record.timing),
    }


def write_record(work: Work, record: Record, before: dict[str, dict[str, NDArray[Any]]] | None = None) -> None:
    """Write history and rounds, after those of the warm-up (`before`), if there is one.

    If only one of the two has columns for faulty clients, the other's are filled with zeros.
    """
    for name in ("history", "rounds"):
        parts = [part for part in ((before or {}).get(name), Record.table(getattr(record, name))) if part]
        for key in participation.COUNTED:
            if any(key in part for part in parts):
                parts = [{key: np.zeros(len(part["round"]), dtype=np.int64)} | part for part in parts]
        columns = sorted(parts[0], key=participation.COUNTED.__contains__) if parts else []
        write_table(work.outputs[name], {key: np.concatenate([part[key] for part in parts]) for key in columns})


def read_clients(folder: Path, name: str) -> tuple[NDArray[np.int64], StoredRows]:
    """Return the client ids [M] and the rows [M, P] of the named array, which are read from the shards when needed.

    Raises
    ------
    UserError
        If a shard doesn't have the array.
    """
    shards = sorted(folder.glob("*.safetensors"))
    ids = [read_tensors(path, ["client"])["client"] for path in shards]
    if not shards or not all(name in names_of(path) for path in shards):
        raise UserError(f"{folder} has no array '{name}'; delete the folder and run the warm-up again")
    return np.concatenate(ids), StoredRows(shards, name)
