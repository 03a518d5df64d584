"""Checks of a method's class and of what its hooks return, before the loop uses it, with errors that name the hook.

Axes: M clients, m participants, K models, P columns of a model's row, t trainings of a model by a participant.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, choices, kind_of
from ..registry import inside
from .assignment import Assignment
from .state import SERVER, State

if TYPE_CHECKING:  # see `simulation.method`
    from .method import Context, Method

Ids = NDArray[np.int64]
LOOSE = 1e-3  # tolerance of shares that must add up to 1
NEEDS = frozenset({"updates", "curves", "last_gradient", "features"})  # `Method.needs`
LABELLING = ("begin", "drifted", "prepare", "regroup", "merge")  # hooks that may change labels besides `assign`
NOISE = "-1 is no model: give each client that a clusterer calls noise a cluster of its own, with a model"
APPEND = "append_copies(context, state, models) of clusterfl.simulation.model_rows appends models with what is kept"
KEPT = (type(None), bool, int, np.bool_, np.integer, np.ndarray)  # types of fields in the method's part of a state
VERY_NEAR = 0.9  # of difflib's ratio: regroups and re_group for regroup, but not sent for spent


class BadLabels(UserError):
    """Invalid labels; raised before they cause errors elsewhere."""


def hook(method: Method, name: str, round_: int | None = None) -> str:
    """Name a hook at the beginning of an error message; for an `assign` not overridden, the hooks that set labels."""
    from .method import Method

    where, own = "" if round_ is None else f", in round {round_},", type(method)
    if name == "assign" and own.assign is Method.assign:
        changed = [one for one in LABELLING if getattr(own, one) is not getattr(Method, one)]
        name, where = " or ".join(changed) or name, f", whose labels hold in round {round_},"
    return f"method '{getattr(method, 'name', own.__name__)}': {name}{where}"


def check_class(kind: type[Method]) -> None:
    """Raise an error if a user's class has something that is never read: a misspelt hook or an unknown need."""
    from .method import Method

    if inside(kind.__module__):
        return
    said, known = f"method {kind.__name__}", [name for name in vars(Method) if not name.startswith("_")]
    hidden = sorted({one.name for one in fields(kind)} & {*known})
    if hidden:
        raise UserError(
            f"{said} has an option '{hidden[0]}', which is a hook or class variable of every method; rename the "
            f"option, or write {hidden[0]}: ClassVar if the class variable is meant"
        )
    for name in own_names(kind):
        near = near_hook(name, VERY_NEAR)
        if near and getattr(kind, near) is getattr(Method, near):
            raise UserError(
                f"{said} has '{name}', which is never called; did you mean '{near}'? Rename it, to _{name} if it is a "
                "helper of yours"
            )
    _check_needs(kind.needs, said)


def _check_needs(needs: Any, said: str) -> None:
    if not isinstance(needs, set | frozenset):
        raise UserError(f'{said}: needs is {kind_of(needs)}; allowed: a set, e.g. needs = frozenset({{"updates"}})')
    unknown = sorted(map(str, needs - NEEDS))
    if unknown:
        raise UserError(f"{said}: needs has '{unknown[0]}'; {choices(NEEDS, unknown[0])}")


def near_hook(name: str, least: float) -> str | None:
    """Return the hook or class variable of `Method` named most like `name`, with a ratio of at least `least`, or None.

    Capitals and underscores don't count.
    """
    from .method import Method

    plain = {known.replace("_", ""): known for known in vars(Method) if not known.startswith("_")}
    found = difflib.get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=least)
    return plain[found[0]] if found else None


def own_names(kind: type[Method]) -> list[str]:
    """Return the public names in a user's classes that are neither options nor attributes of `Method`."""
    from .method import Method

    classes = [one for one in kind.__mro__ if issubclass(one, Method) and not inside(one.__module__)]
    known = {*vars(Method), *(one.name for one in fields(kind))}
    return [name for one in classes for name in vars(one) if not name.startswith("_") and name not in known]


def check_state(state: Any, columns: int | None, ids: Ids, said: str) -> None:
    """Raise an error unless `state` is valid: ``theta [K, P]`` of float32, a label or -1 for each client of `ids` [M].

    If `columns`, P, is None, rows may have any length.
    """
    import torch

    if not isinstance(state, State):
        raise UserError(f"{said} gives {kind_of(state)}; allowed: a State: return State(theta, labels)")
    asked = f"[K, {'P' if columns is None else columns}]"
    if not _are_rows(state.theta):
        raise UserError(
            f"{said} gives {kind_of(state.theta)} as theta; allowed: a tensor {asked}, a model in each row: make "
            "one of context.initial(k), or of an array by torch.from_numpy"
        )
    shape = tuple(state.theta.shape)
    if isinstance(state.theta, torch.Tensor) and state.theta.requires_grad:
        raise UserError(f"{said} gives theta that requires gradients; allowed: plain numbers: theta.detach()")
    if len(shape) == 2 and not shape[0]:
        raise UserError(f"{said} gives theta of shape {shape}; allowed: {asked}; where all labels are -1, {NOISE}")
    if len(shape) != 2 or not shape[0] or columns not in (None, shape[1]) or state.theta.dtype != torch.float32:
        raise UserError(
            f"{said} gives theta of shape {shape} and {state.theta.dtype}; allowed: {asked} of torch.float32, "
            "a model in each row: stack what context.initial(k) gives"
        )
    for name in (*SERVER, "server_steps"):
        kept = getattr(state, name)
        if kept is not None and len(kept) != shape[0]:
            raise UserError(
                f"{said} gives {shape[0]} models as theta, and {len(kept)} rows of state.{name}, what the server keeps "
                f"of them, are there; {APPEND}"
            )
    check_labels(state.labels, shape[0], ids, said)
    check_own(state.own, said)


def check_own(own: Any, said: str, name: str = "own") -> None:
    """Raise an error unless `own` can be saved and restored: None, or a dataclass of arrays (`simulation.state`)."""
    way = "a dataclass of arrays and whole numbers, whose type the class names: own: ClassVar[type | None]"
    if own is None:
        return
    if isinstance(own, type) or not is_dataclass(own):
        raise UserError(
            f"{said} leaves {kind_of(own)} as state.{name}; allowed: {way}: results and checkpoints couldn't hold it"
        )
    for one in fields(own):
        value, inner = getattr(own, one.name), f"{name}.{one.name}"
        if one.metadata.get("many"):
            for item in value:
                check_own(item, said, inner)
        elif "kind" in one.metadata:
            check_own(value, said, inner)
        elif not (isinstance(value, KEPT) or _are_rows(value)):
            raise UserError(
                f"{said} leaves {kind_of(value)} as state.{inner}; allowed there: an array, a truth value or a whole "
                "number, which checkpoints give back as they are: make an array by np.array"
            )


def check_declared(own: Any, kind: type | None, said: str) -> None:
    """Raise an error unless a method's part of the state has the type that its class declares, or is None."""
    if own is not None and type(own) is not kind:
        raise UserError(
            f"{said} gives {kind_of(own)} as state.own, and the class names {getattr(kind, '__name__', 'no type')}, by "
            f"which a checkpoint is read; write own: ClassVar[type | None] = {type(own).__name__} into the class"
        )


def check_finite(models: Any, what: str, said: str) -> None:
    """Raise an error if a number of one of the ``models [K, P]`` is NaN or infinite."""
    for k in range(len(models)):  # one by one: they may be in a file
        row = models[k]
        bad = row[~row.isfinite()]
        if len(bad):
            raise UserError(
                f"{said} gives {what} with {bad[0]} in row {k} ({len(bad)} of {len(row)} numbers); allowed: finite "
                "numbers: look for a division by 0, or for unfilled rows of torch.empty"
            )


def check_constant(method: Method, context: Context) -> None:
    """Check what holds for all rounds: the class, and that the tensors its hooks name are the model's."""
    check_class(type(method))
    for name in ("keeps", "common", "fixed", "free"):
        check_names(getattr(method, name)(context), context.tensors, hook(method, name))


def check_drawn(drawn: Any, clients: int, said: str) -> None:
    """Raise an error unless `drawn` has positions among the clients, each once, ascending."""
    allowed = f"allowed: an array of whole numbers 0 to {clients - 1}, ascending, each once"
    if not _is_array(drawn):
        raise UserError(f"{said} gives {kind_of(drawn)}; {allowed}: make one by np.array(clients, dtype=np.int64)")
    if drawn.ndim != 1 or drawn.dtype not in (np.int64, np.int32):
        way = "np.flatnonzero(mask)" if drawn.dtype == bool else "astype(np.int64)"
        raise UserError(
            f"{said} gives an array of {drawn.dtype} of shape {drawn.shape}; {allowed}: convert it by {way}"
        )
    bad = drawn[(drawn < 0) | (drawn >= clients)]
    if len(bad):
        raise UserError(f"{said} gives client {bad[0]}, of {clients}; {allowed}: count from 0")
    back = np.flatnonzero(np.diff(drawn) <= 0)
    if len(back):
        first, second = drawn[back[0]], drawn[back[0] + 1]
        raise UserError(f"{said} gives client {second} after client {first}; {allowed}: use np.unique")


def check_assignment(found: Any, models: int, clients: Ids, said: str) -> None:
    """Raise an error unless an assignment gives each participant of `clients` [m] one of the models."""
    if not isinstance(found, Assignment):
        raise BadLabels(
            f"{said} gives {kind_of(found)}; allowed: an Assignment of whole numbers 0 to {models - 1}, a model's row "
            "in state.theta for each participant: return Assignment(labels)"
        )
    check_labels(found.start, models, clients, said, 0)
    if found.target is not None:
        check_labels(found.target, models, clients, f"{said} as target,", 0)


def check_rows(found: Assignment, models: int, sizes: Ids, columns: int, said: str) -> None:
    """Raise an error unless an assignment's other arrays have the shapes that `Assignment` documents.

    ``sizes [m]`` are the participants' numbers of samples, `columns` is P.
    """
    shapes = {
        "shares": (found.shares, (int(sizes.sum()), models), "fiu"),
        "trains": (found.trains, (len(sizes), models), "b"),
        "blends": (found.blends, (len(sizes), models), "fiu"),
    }
    ways = [name for name in ("shares", "blends", "given") if getattr(found, name) is not None]
    if len(ways) > 1:
        raise UserError(f"{said} gives {' and '.join(ways)}; allowed: one of them")
    for name, (values, shape, kinds) in shapes.items():
        if values is None:
            continue
        what = "truth values" if kinds == "b" else "numbers, 0 or more,"
        allowed = f"allowed: an array of {what} of shape {shape}"
        if not _is_array(values) or values.dtype.kind not in kinds or values.shape != shape:
            kind = f"{values.dtype} of shape {values.shape}" if _is_array(values) else kind_of(values)
            raise UserError(f"{said} gives {kind} as {name}; {allowed}")
        if not (np.isfinite(values) & (values >= 0)).all():
            bad = values[~(np.isfinite(values) & (values >= 0))][0]
            raise UserError(f"{said} gives {name} with {bad}; {allowed}")
    if found.blends is not None and len(sizes) and np.abs(found.blends.sum(axis=1) - 1).max() > LOOSE:
        sums = found.blends.sum(axis=1)
        bad = sums[np.argmax(np.abs(sums - 1))]
        raise UserError(f"{said} gives blends of a participant that add up to {bad}; allowed: 1 for each")
    given = found.given
    if given is None:
        return
    import torch

    shape = tuple(getattr(given, "shape", ()))
    if not _are_rows(given) or shape != (len(sizes), columns) or given.dtype != torch.float32:
        kind = f"models of {given.dtype} and shape {shape}" if _are_rows(given) else kind_of(given)
        raise UserError(
            f"{said} gives {kind} as given; allowed: a tensor of torch.float32 of shape {(len(sizes), columns)}, a "
            "model for each participant"
        )
    check_finite(given, "given", said)


def check_labels(labels: Any, models: int, clients: Ids, said: str, least: int = -1) -> None:
    """Raise an error unless each of `clients` has a label from `least` to `models` - 1."""
    allowed = f"whole numbers 0 to {models - 1}, a model's row in state.theta"
    allowed += ", or -1 before a client has a model" if least < 0 else ""
    if not _is_array(labels):
        raise BadLabels(
            f"{said} gives {kind_of(labels)} as labels; allowed: an array of {len(clients)} {allowed}: make one by "
            "np.array(labels, dtype=np.int64)"
        )
    if labels.shape != clients.shape:
        raise BadLabels(
            f"{said} gives labels of shape {labels.shape} for {len(clients)} clients; one for each is needed: return "
            f"an array of shape {clients.shape}"
        )
    if labels.dtype not in (np.int64, np.int32):  # torch accepts no other index types
        raise BadLabels(
            f"{said} gives labels of {labels.dtype}, e.g. {next(iter(labels), 'none')}; allowed: {allowed}: convert "
            "them with astype(np.int64)"
        )
    bad = np.flatnonzero((labels < least) | (labels >= models))
    if len(bad):
        way = NOISE if labels[bad[0]] == -1 else f"count from 0; {APPEND}, before it is used"
        raise BadLabels(
            f"{said} gives label {labels[bad[0]]} to client {clients[bad[0]]} ({len(bad)} of {len(clients)}), of "
            f"{models} models; allowed: {allowed}: {way}"
        )


def check_weights(weights: Any, trainings: int, said: str) -> None:
    """Raise an error unless there is a weight, finite and not negative, for each training, [t]."""
    allowed = f"allowed: an array of shape ({trainings},), one number for each participant, 0 or more"
    if not _is_array(weights) or weights.dtype.kind not in "fiu":
        what = f"an array of {weights.dtype}" if _is_array(weights) else kind_of(weights)
        raise UserError(f"{said} gives {what}; {allowed}: make one by np.array(weights, dtype=np.float64)")
    if weights.shape != (trainings,):
        raise UserError(f"{said} gives weights of shape {weights.shape}; {allowed}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise UserError(
            f"{said} gives the weight {weights[bad[0]]} ({len(bad)} of {trainings}); {allowed}: look for a division by "
            "0 or a difference that may be negative"
        )


def check_turns(turns: Any, tensors: Iterable[str], said: str) -> tuple[frozenset[str], ...]:
    """Return the turns of training as sets of names, or raise an error if they are invalid."""
    if not isinstance(turns, list | tuple):
        raise UserError(f"{said} gives {kind_of(turns)}; allowed: a list of turns, each several names of tensors")
    return tuple(frozenset(check_names(names, tensors, said)) for names in turns)


def check_names(names: Any, tensors: Iterable[str], said: str) -> Collection[str]:
    """Return the names as they are, or raise an error if one isn't a tensor of the model."""
    if isinstance(names, str) or not isinstance(names, Collection):
        what = f"the text '{names}'" if isinstance(names, str) else kind_of(names)
        raise UserError(f"{said} gives {what}; allowed: several names of tensors, as a set, list or tuple")
    known = list(tensors)
    for name in names:
        if name not in known:
            raise UserError(f"{said} gives '{name}', no tensor of the model; {choices(known, str(name))}")
    return names


def check_towards(towards: Any, models: int, said: str) -> None:
    """Raise an error unless `towards` is 'start', 'given' or a model's number."""
    if isinstance(towards, str) and towards in ("start", "given"):
        return
    if isinstance(towards, int) and not isinstance(towards, bool) and 0 <= towards < models:
        return
    what = repr(towards) if isinstance(towards, int | str) else kind_of(towards)
    raise UserError(
        f"{said} gives {what}; allowed: 'start', 'given' or the number of one of the models, 0 to {models - 1}"
    )


def _are_rows(value: Any) -> bool:
    import torch

    from ..storage.row_store import RowStore

    return isinstance(value, torch.Tensor | RowStore)


def _is_array(value: Any) -> bool:
    """Return whether it is a plain array; in a masked one the hidden values would count."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
