"""What a method's hooks may give: anything else is named with the method, the round and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from federations import engine, uneven

from clusterfl.errors import UserError
from clusterfl.methods.fixed import begin_with
from clusterfl.methods.ifca import IFCA
from clusterfl.privacy.settings import Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.evaluation import newcomer_labels
from clusterfl.simulation.method import Assignment, Context, Method, State
from clusterfl.simulation.returned import check_labels

LABELS = np.array([0, 1, 1, 0, 1, 0])


@dataclass(frozen=True, kw_only=True)
class Mine(IFCA):
    """IFCA that gives, from its second round on, whatever a test wants."""

    gives: ClassVar[Callable[[], Any]] = lambda: Assignment(LABELS)

    def assign(self, context: Context, state: State, round_: int, *others: Any) -> Assignment:
        """See `Method.assign`."""
        return Assignment(LABELS) if round_ == 1 else type(self).gives()


def run(gives: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, minimum: int = 0) -> State:
    monkeypatch.setattr(Mine, "gives", gives)
    with engine(rounds=2, epochs=1) as used:
        method = wrap(Mine(clusters=2), "mine", Rebalance(minimum=minimum) if minimum else None)
        state, _ = loop.run(method, loop.context(used), used)
    return state


@pytest.mark.parametrize(
    "gives, says",
    [
        (lambda: None, "gives None; allowed: an Assignment of whole numbers 0 to 1, .* return Assignment"),
        (lambda: LABELS, "gives a value of the type ndarray; allowed: an Assignment"),
        (lambda: Assignment(LABELS.tolist()), "type list as labels; allowed: an array of 6 whole numbers 0 to 1, a"),
        (lambda: Assignment(1), "gives a value of the type int as labels"),  # type: ignore[arg-type]
        (lambda: Assignment(None), "gives None as labels"),  # type: ignore[arg-type]
        (lambda: Assignment(LABELS[:-1]), r"gives labels of shape \(5,\) for 6 clients; one for each is needed"),
        (lambda: Assignment(LABELS[:1]), r"gives labels of shape \(1,\) for 6 clients"),
        (lambda: Assignment(LABELS[:, None]), r"gives labels of shape \(6, 1\) for 6 clients"),
        (lambda: Assignment(LABELS + 1), r"gives label 2 to client 1 \(3 of 6\), of 2 models; allowed: whole numbers"),
        (lambda: Assignment(LABELS - 1), r"gives label -1 to client 0 \(3 of 6\), of 2 models"),
        (lambda: Assignment(LABELS * 1.0), "gives labels of float64, e.g. 0.0; .* convert them with astype"),
        (lambda: Assignment(LABELS > 0), "gives labels of bool, e.g. False"),
        (lambda: Assignment(LABELS.astype(np.uint8)), r"gives labels of uint8, e.g. 0; .* astype\(np.int64\)"),
        (lambda: Assignment(LABELS, LABELS - 1), r"gives label -1 to client 0 \(3 of 6\)"),
        (
            lambda: Assignment(LABELS, shares=[1.0]),
            r"type list as shares; allowed: an array of numbers, 0 or more, of ",
        ),
        (lambda: Assignment(LABELS, shares=np.ones((6, 2))), r"float64 of shape \(6, 2\) as shares; .* \(101, 2\)"),
        (lambda: Assignment(LABELS, shares=np.full((101, 2), -0.5)), "gives shares with -0.5; allowed"),
        (lambda: Assignment(LABELS, shares=np.full((101, 2), np.nan)), "gives shares with nan"),
        (
            lambda: Assignment(LABELS, shares=np.ones((101, 2)), trains=np.ones((6, 2))),
            r"float64 of shape \(6, 2\) as trains; allowed: an array of truth values of shape \(6, 2\)",
        ),
        (lambda: Assignment(LABELS, blends=np.ones((6, 3))), r"shape \(6, 3\) as blends; .* \(6, 2\)"),
        (lambda: Assignment(LABELS, blends=np.ones((6, 2))), "blends of a participant that add up to 2.0; allowed: 1"),
        (lambda: Assignment(LABELS, given=torch.ones(6, 2)), r"float32 and shape \(6, 2\) as given; .* \(6, \d+\)"),
        (
            lambda: Assignment(LABELS, given=torch.ones(6, 75).double()),
            r"of torch.float64 .* as given; allowed: a tensor",
        ),
        (
            lambda: Assignment(LABELS, given=torch.full((6, 75), torch.inf)),
            r"gives given with inf in row 0 \(75 of 75 numbers\); allowed: finite numbers",
        ),
        (lambda: Assignment(LABELS, blends=np.full((6, 2), 0.25)), "blends of a participant that add up to 0.5; allo"),
        (lambda: Assignment(LABELS, given=[1.0]), "gives a value of the type list as given; allowed: a tensor"),
        (lambda: Assignment(LABELS, shares=np.ones((101, 2)), blends=np.ones((6, 2))), "gives shares and blends; allo"),
        (lambda: Assignment(np.ma.masked_array(LABELS)), "gives a value of the type MaskedArray as labels"),
    ],
)
def test_what_is_no_assignment_is_named(gives, says, monkeypatch):
    with pytest.raises(UserError, match=f"method 'Mine': assign, in round 2, .*{says}"):
        run(gives, monkeypatch)


def test_within_a_wrapper_the_studys_name_stands(monkeypatch):
    with pytest.raises(UserError, match="method 'mine': assign, in round 2, gives None"):
        run(lambda: None, monkeypatch, minimum=1)


def test_labels_of_32_bits_give_the_same_bits(monkeypatch):
    """scikit-learn's are such."""
    found = [run(lambda dtype=dtype: Assignment(LABELS.astype(dtype)), monkeypatch) for dtype in (np.int64, np.int32)]
    assert np.array_equal(np.asarray(found[0].theta[:]), np.asarray(found[1].theta[:]))


def hooked(hook: str, gives: Callable[..., Any], base: type[Method] = Method) -> type[Method]:
    """Return a method, FedAvg if no other is given, with another hook, which takes its arguments without `self`."""
    made = type("Mine", (base,), {hook: lambda self, *given: gives(*given)})
    return dataclass(frozen=True, kw_only=True)(made)


def first(theta: Callable[[Any], Any], labels: Callable[[int], Any] = lambda m: np.zeros(m, dtype=np.int64)) -> Any:
    return lambda context: State(theta(context.initial(0)[None].clone()), labels(context.clients))


def changed(**values: Callable[[State], Any]) -> Callable[..., None]:
    """Return a hook that puts other values into the state."""

    def hook(context: Context, state: State, *others: Any) -> None:
        for name, value in values.items():
            setattr(state, name, value(state))

    return hook


@dataclass
class Kept:
    """A method's part of the state."""

    sums: Any


def owning(own: Any) -> Callable[[Context], State]:
    """Return a `begin` that gives FedAvg's state with something in `own`."""
    return lambda context: State(context.initial(0)[None].clone(), np.zeros(context.clients, dtype=np.int64), own)


SAME: Callable[[Any], Any] = lambda theta: theta  # noqa: E731
DRAWN = r"allowed: an array of whole numbers 0 to 5, ascending, each once"
WEIGHTS = r"allowed: an array of shape \(6,\), one number for each participant, 0 or more"
TENSORS = "no tensor of the model; allowed: "


@pytest.mark.parametrize(
    "hook, gives, says",
    [
        ("begin", lambda context: None, "begin gives None; allowed: a State: return State"),
        ("begin", lambda context: (1, 2), "begin gives a value of the type tuple; allowed: a State"),
        ("begin", first(lambda theta: theta.numpy()), r"type ndarray as theta; allowed: a tensor \[K, \d+\]"),
        ("begin", first(lambda theta: theta[0]), r"theta of shape \(\d+,\) and torch.float32; allowed: \[K, \d+\]"),
        ("begin", first(lambda theta: theta[:, 1:]), r"theta of shape \(1, \d+\) and torch.float32; allowed: \[K, "),
        ("begin", first(lambda theta: theta[:0]), r"theta of shape \(0, \d+\)"),
        ("begin", first(lambda theta: theta.double()), "and torch.float64; allowed: .* of torch.float32"),
        ("begin", first(SAME, lambda m: [0] * m), "begin gives a value of the type list as labels"),
        ("begin", first(SAME, lambda m: np.zeros(m)), "begin gives labels of float64, e.g. 0.0"),
        ("begin", first(SAME, lambda m: np.zeros(m - 1, dtype=int)), r"labels of shape \(5,\) for 6 clients"),
        ("begin", first(SAME, lambda m: np.full(m, 3)), r"label 3 to client 0 \(6 of 6\), of 1 models"),
        ("begin", first(SAME, lambda m: np.full(m, -2)), "label -2 to client 0 .* or -1 before a client has a model"),
        ("begin", first(lambda theta: theta.requires_grad_()), "theta that requires gradients; allowed: plain numbers"),
        ("sample", lambda *given: np.ma.masked_array([0, 1]), "gives a value of the type MaskedArray"),
        (
            "begin",
            first(lambda theta: theta / 0),
            r"theta with -?(inf|nan) in row 0 \(\d+ of \d+ numbers\); allowed: finite",
        ),
        ("sample", lambda *given: None, f"sample, in round 1, gives None; {DRAWN}: make one by np.array"),
        ("sample", lambda *given: [0, 1], f"gives a value of the type list; {DRAWN}"),
        ("sample", lambda *given: np.array([0.0, 1.0]), rf"float64 of shape \(2,\); {DRAWN}: convert it by astype"),
        ("sample", lambda *given: np.arange(6) < 3, rf"bool of shape \(6,\); {DRAWN}: convert it by np.flatnonzero"),
        ("sample", lambda *given: np.array([[0, 1]]), r"int64 of shape \(1, 2\)"),
        ("sample", lambda *given: np.array([2, 6]), f"gives client 6, of 6; {DRAWN}: count from 0"),
        ("sample", lambda *given: np.array([-1, 2]), "gives client -1, of 6"),
        ("sample", lambda *given: np.array([0, 2, 2]), f"gives client 2 after client 2; {DRAWN}: use np.unique"),
        ("sample", lambda *given: np.array([3, 1]), "gives client 1 after client 3"),
        ("weights", lambda *given: None, f"weights, in round 1, gives None; {WEIGHTS}: make one by np.array"),
        ("weights", lambda context, clients: len(clients), "gives a value of the type int"),
        ("weights", lambda context, clients: torch.ones(len(clients)), "gives a value of the type Tensor"),
        ("weights", lambda context, clients: np.array(["1"] * len(clients)), "gives an array of <U1"),
        ("weights", lambda context, clients: np.ma.masked_array(np.ones(6)), "gives a value of the type MaskedArray"),
        ("weights", lambda context, clients: np.ones(1), rf"weights of shape \(1,\); {WEIGHTS}"),
        ("weights", lambda context, clients: np.ones((len(clients), 1)), r"weights of shape \(6, 1\)"),
        ("weights", lambda context, clients: np.arange(len(clients)) - 1.0, r"the weight -1.0 \(1 of 6\)"),
        ("weights", lambda context, clients: np.full(len(clients), np.nan), r"the weight nan \(6 of 6\)"),
        ("regroup", changed(labels=lambda state: None), "regroup, in round 1, gives None as labels"),
        ("regroup", changed(labels=lambda state: state.labels + 1), "regroup, in round 1, gives label 1 to client 0"),
        (
            "regroup",
            changed(labels=lambda state: state.labels - 1),
            "label -1 to client 0 .*: whole numbers 0 to 0",
        ),
        ("regroup", changed(theta=lambda state: state.theta[:, 1:]), r"regroup, in round 1, gives theta of shape"),
        ("merge", changed(labels=lambda state: state.labels + 1), "merge, in round 1, gives label 1 to client 0"),
        ("keeps", lambda context: ["nix"], f"keeps gives 'nix', {TENSORS}"),
        ("keeps", lambda context: "weight", "keeps gives the text 'weight'; allowed: several names of tensors"),
        ("common", lambda context: {"nix"}, f"common gives 'nix', {TENSORS}"),
        ("fixed", lambda context: None, "fixed gives None; allowed: several names"),
        ("free", lambda context: ("nix",), f"free gives 'nix', {TENSORS}"),
        ("turns", lambda *given: [["nix"]], f"turns, in round 1, gives 'nix', {TENSORS}"),
        ("turns", lambda *given: ["nix"], "turns, in round 1, gives the text 'nix'"),
        ("towards", lambda *given: "nix", "towards, in round 1, gives 'nix'; allowed: 'start', 'given' or the number"),
        ("turns", lambda *given: None, "turns, in round 1, gives None; allowed: a list of turns"),
        ("begin", owning({"sums": np.zeros(3)}), "begin leaves a value of the type dict as state.own; allowed: "),
        ("begin", owning(Kept), "begin leaves a value of the type type as state.own; allowed: a dataclass of arrays"),
        ("begin", owning(Kept([1, 2])), r"begin leaves a value of the type list as state.own.sums; .* by np.array"),
        ("begin", owning(Kept(0.5)), "begin leaves a value of the type float as state.own.sums; "),
        ("regroup", changed(own=lambda state: {}), "regroup, in round 1, leaves a value of the type dict as state.own"),
        ("turns", lambda *given: 3, "gives a value of the type int"),
        ("towards", lambda *given: np.array([0, 0]), "gives a value of the type ndarray"),
        ("towards", lambda *given: False, "gives False; allowed"),
        ("prepare", changed(labels=lambda state: state.labels * 1.0), "prepare, in round 1, gives labels of float64"),
        ("prepare", changed(theta=lambda state: state.theta.double()), r"prepare, in round 1, gives theta of shape"),
        ("towards", lambda *given: 1, "gives 1; allowed: .* one of the models, 0 to 0"),
        ("towards", lambda *given: -1, "gives -1; allowed: .* one of the models, 0 to 0"),
        ("towards", lambda *given: np.int64(0), "gives a value of the type int64"),
    ],
)
def test_what_a_hook_may_not_give_is_named(hook, gives, says):
    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match=says) as raised:
        loop.run(hooked(hook, gives)(), loop.context(used), used)
    assert str(raised.value).startswith(f"method 'Mine': {hook}")


@pytest.mark.parametrize("labels", [[0, 1, -1, 1, 0, -1], [0, -1, -1, -1, 1, 0]])
def test_noise_of_a_clusterer_is_named_with_the_hook_that_gave_it(labels):
    kind, bad = hooked("begin", lambda context: begin_with(context, np.array(labels))), labels.index(-1)
    says = rf"'Mine': begin, whose labels hold in round 1, gives label -1 to client {bad} .* noise a cluster of its own"
    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match=says):
        loop.run(kind(), loop.context(used), used)


@pytest.mark.parametrize(
    "labels, says",
    [
        ([0, 1, 1, 0, 1, 0], "what begin_with gets gives a value of the type list as labels; .* np.array"),
        (LABELS * 1.0, "labels of float64, e.g. 0.0; .* astype"),
        (LABELS[:2], r"labels of shape \(2,\) for 6 clients"),
    ],
)
def test_labels_that_begin_with_cannot_take_are_named(labels, says):
    kind = hooked("begin", lambda context: begin_with(context, labels))
    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match=says):
        loop.run(kind(), loop.context(used), used)


def test_a_part_of_the_state_that_the_class_does_not_name_is_refused():
    says = "begin gives a value of the type Kept as state.own, and the class names no type, .* = Kept into the class"
    with engine(rounds=1, epochs=1) as used:
        with pytest.raises(UserError, match=says):
            loop.run(hooked("begin", owning(Kept(np.zeros(3))))(), loop.context(used), used)
        named = hooked("begin", owning(Kept(np.zeros(3))))
        named.own = Kept
        loop.run(named(), loop.context(used), used)


def test_all_noise_is_no_model():
    kind = hooked("begin", lambda context: begin_with(context, np.full(6, -1)))
    says = r"begin gives theta of shape .* where all labels are -1, -1 is no model: give each"
    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match=says):
        loop.run(kind(), loop.context(used), used)


def test_models_that_are_added_without_what_the_server_keeps_are_named():
    def regroup(context: Context, state: State, update: Any) -> None:
        if update.round == 2:
            state.theta = state.theta[[0, 0]]

    says = r"regroup, in round 2, gives 2 models as theta, and 1 rows of state.server_velocity, .*; append_copies\("
    with engine(rounds=2, epochs=1, server_momentum=0.9) as used, pytest.raises(UserError, match=says):
        loop.run(hooked("regroup", regroup)(), loop.context(used), used)


def test_an_assignment_may_not_spoil_the_state():
    def assign(context: Context, state: State, *others: Any) -> Assignment:
        state.theta = state.theta[:, 1:]
        return Assignment(state.labels.copy())

    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match=r"assign, in round 1, gives theta of sh"):
        loop.run(hooked("assign", assign)(), loop.context(used), used)


def test_labels_of_nobody_are_no_index_error():
    with pytest.raises(UserError, match=r"gives labels of float64, e.g. none"):
        check_labels(np.array([]), 2, np.zeros(0, dtype=np.int64), "it")


def test_a_method_within_another_is_named_as_the_study_names_it():
    method = wrap(hooked("begin", lambda context: None, IFCA)(clusters=2), "mine", Rebalance(minimum=1))
    with engine(rounds=1, epochs=1) as used, pytest.raises(UserError, match="method 'mine': begin gives None"):
        loop.run(method, loop.context(used), used)


@pytest.mark.parametrize("hook", ["place", "recognise"])
def test_labels_of_newcomers_are_looked_at(hook):
    kind = hooked(hook, lambda state, given: np.full(6, len(state.theta)))
    with engine(rounds=1, epochs=1, newcomers=uneven()) as used:
        method = kind()
        state, _ = loop.run(method, loop.context(used), used)
        with pytest.raises(UserError, match=rf"{hook} gives label 1 to client 0 \(6 of 6\), of 1 models"):
            newcomer_labels(used, method, state)


def test_the_state_after_a_drift_is_looked_at():
    data = uneven()
    drifting = replace(data, later=(replace(data, begins=2),))
    kind = hooked("drifted", changed(labels=lambda state: state.labels + 1))
    with (
        engine(federation=drifting, rounds=2, epochs=1) as used,
        pytest.raises(UserError, match=r"method 'Mine': drifted, in round 2, gives label 1 to client 0 \(6 of 6\)"),
    ):
        loop.run(kind(), loop.context(used), used)


@pytest.mark.parametrize("who", [[0, 1, 2, 3, 4, 5], [0, 1]])
def test_a_cluster_whose_weights_are_all_zero_keeps_its_model(who):
    """Of two clusters, by hand: one has its members' mean, the other what it had."""
    labels = np.array([0, 0, 1, 1, 1, 1])

    def begin(context: Context) -> State:
        return State(torch.stack([context.initial(0), context.initial(1)]), labels.copy())

    def weights(context: Context, clients: Any) -> Any:
        return np.where(np.isin(clients, who), 0.0, 1.0)

    kind = hooked("weights", weights, hooked("begin", begin))
    with engine(rounds=1, epochs=1) as used:
        context = loop.context(used)
        before = begin(context).theta
        state, _ = loop.run(kind(), context, used)
    moved = [not torch.equal(state.theta[k], before[k]) for k in range(2)]
    assert moved == [k == 1 and len(who) == 2 for k in range(2)]
