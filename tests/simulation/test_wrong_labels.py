"""What a method's `assign` may give: anything else is named with the method, the round and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from federations import engine

from clusterfl.errors import UserError
from clusterfl.methods.ifca import IFCA
from clusterfl.privacy.settings import Rebalance
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Assignment, Context, State

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
        (lambda: Assignment(LABELS.tolist()), "type list as labels; allowed: an array of 6 whole numbers 0 to 1: make"),
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
    ],
)
def test_what_is_no_assignment_is_named(gives, says, monkeypatch):
    with pytest.raises(UserError, match=f"method 'Mine': assign.*, in round 2, .*{says}"):
        run(gives, monkeypatch)


def test_within_a_wrapper_the_studys_name_stands(monkeypatch):
    with pytest.raises(UserError, match="method 'mine': assign, in round 2, gives None"):
        run(lambda: None, monkeypatch, minimum=1)


def test_labels_of_32_bits_give_the_same_bits(monkeypatch):
    """scikit-learn's are such."""
    found = [run(lambda dtype=dtype: Assignment(LABELS.astype(dtype)), monkeypatch) for dtype in (np.int64, np.int32)]
    assert np.array_equal(np.asarray(found[0].theta[:]), np.asarray(found[1].theta[:]))
