"""Hours of runs: which row of two is kept, sums by hand, and files that aren't as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.claims import hours
from clusterfl.errors import UserError


def row(seed: int, seconds: float, predicted: str = "", processor: str = "p", origin: str = "a") -> hours.Row:
    values = ("f", "m", str(seed), origin, processor, "5", predicted, str(seconds))
    return dict(zip(hours.COLUMNS, values, strict=True))


def rows(*given: hours.Row) -> dict[hours.Key, hours.Row]:
    return {hours._key(one): one for one in given}


def test_of_two_rows_of_a_run_the_first_is_kept_with_the_prediction_of_either() -> None:
    ours, theirs = rows(row(0, 10), row(1, 20, "5")), rows(row(0, 99, "7"), row(1, 99, "8"), row(0, 3, origin="b"))
    assert hours.joined(ours, theirs) == rows(row(0, 10, "7"), row(1, 20, "5"), row(0, 3, origin="b"))


def test_hours_are_summed_by_block_and_seeds_named_by_number(tmp_path: Path) -> None:
    given = rows(row(10, 1800, "36"), row(2, 5400, "36"), row(3, 360, "", "q"), row(4, 360, "9", "q"))
    hours.put(tmp_path / "t" / hours.NAME, given)
    assert hours.read(tmp_path / "t" / hours.NAME) == given
    assert hours.table(tmp_path)[1:] == [
        ["t", "f", "m", "5", "2, 10", "0.02", "2.00", "p"], ["t", "f", "m", "5", "3, 4", "", "0.20", "q"],
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["f,m,0,a,p,5,,1.0,", "f,m,0,a,p,5", "f,m,0,a,p,5,,long", "f,m,x,a,p,5,,1.0"])
def test_a_line_that_is_no_row_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / hours.NAME
    path.write_text(f"{','.join(hours.COLUMNS)}\n{line}\n")
    with pytest.raises(UserError, match=r"hours.csv hasn't the columns federation, .* put it back, or delete it"):
        hours.read(path)
