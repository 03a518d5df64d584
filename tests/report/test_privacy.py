"""What the page says of private methods: which sentences, and lines of equal epsilons."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from clusterfl.report import figures, section_privacy


@pytest.mark.parametrize(
    ("guarantees", "said"),
    [
        ([("theorem-4.2", None), ("poisson", None)], ["The epsilon of theorem-4.2"]),
        ([("none", None)], ["Accounting none"]),
        ([("poisson", "the choice among trials")], ["Choosing among"]),
        ([("poisson", None)], []),
    ],
)
def test_page_says_why_there_is_no_guarantee(guarantees: list[tuple[str, str | None]], said: list[str]) -> None:
    facts = [{"accounting": accounting, "not_counted": what} for accounting, what in guarantees]
    found = list(section_privacy._unproven(facts))
    assert len(found) == len(said) and all(map(str.startswith, found, said))


def test_equal_epsilons_share_a_line() -> None:
    spent = {name: pd.Series([1.0, last], [1, 2]) for name, last in {"a": 2.0, "b": 2.0, "c": 3.0}.items()}
    style = {name: {"marker": "o", "label": name} for name in spent}
    (axes,) = figures.epsilons(spent, style, ["b", "c"]).axes
    lines = {line.get_label(): (line.get_alpha(), list(line.get_ydata())) for line in axes.lines}
    assert lines == {"a\nb, not proven": (None, [1.0, 2.0]), "c, not proven": (0.5, [1.0, 3.0])}


@pytest.mark.parametrize(
    ("facts", "promise"),
    [
        ({"accounting": "none", "epsilon": None}, "no guarantee"),
        ({"accounting": "theorem-4.2", "epsilon": 1.0}, "no: as printed by the paper"),
        ({"accounting": "poisson", "epsilon": 1.0, "not_counted": "the choice"}, "no: the choice isn't counted"),
        ({"accounting": "poisson", "epsilon": None}, "no noise"),
        ({"accounting": "poisson", "epsilon": 1.0}, "yes"),
    ],
)
def test_promises(facts: dict[str, Any], promise: str) -> None:
    assert section_privacy._promise(facts) == promise
