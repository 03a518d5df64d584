"""Differences in joint standard errors: what is counted, the sentence, and the figure's files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clusterfl.claims import standardised
from clusterfl.claims.pages import readme
from clusterfl.claims.pages import standardised as page
from clusterfl.errors import UserError

ROOT = Path(__file__).parents[2]


def row(name: str, z: float, verdict: str = "reproduced", note: str = "") -> dict[str, Any]:
    return {"claim_id": name, "standardised": z, "verdict": verdict, "note": note}


TWO = math.nextafter(2.0, 3.0)  # as 2/3 by a third may be: it isn't beyond 2
ROWS = [
    row("b", 0.5), row("a", -3.5, "differs"), row("c", TWO, "undecided"), row("d", math.nan),
    row("e", 9.0, "by construction"), row("f", 9.0, "not comparable"), row("g", 9.0, note="approximate; repeats b"),
]  # fmt: skip


def test_what_is_counted() -> None:
    names, z, without = standardised.judged(ROWS)
    assert (names, z.tolist(), without) == (["a", "b", "c"], [-3.5, 0.5, TWO], 1)


def test_the_sentence_by_hand() -> None:
    said = standardised.sentence(ROWS)
    deviation = math.sqrt(((-3.5 + 1 / 3) ** 2 + (0.5 + 1 / 3) ** 2 + (2 + 1 / 3) ** 2) / 2)
    assert (
        "of 3 judged numbers (1 more have none" in said
        and f"mean -0.33 (normal: 0), standard deviation {deviation:.2f}" in said
    )
    assert said.endswith("beyond ±2: 1 (normal: 0.1). Tails: a -3.5.")  # 4.55 % of 3
    assert standardised.sentence([row("a", 0.25)]).endswith("mean +0.25 (normal: 0); beyond ±2: 0 (normal: 0.0).")
    assert standardised.sentence([row("a", math.nan)]) == "No judged number has a joint standard error."
    many = [row(f"n{i:02}", 3.0 + i) for i in range(14)]
    assert "Tails: n13 +16.0, n12 +15.0" in standardised.sentence(many) and " and 2 more." in standardised.sentence(
        many
    )


def test_tails_are_on_both_sides_and_the_furthest_come_first() -> None:
    """Of 20 standard normal numbers 20 x 4.55 % lie beyond 2 on either side, half of them on each."""
    near = [row(f"n{i:02}", 0.0) for i in range(17)]
    said = standardised.sentence([row("a", 2.5), row("b", -4.0), row("c", 3.0), *near])
    assert said.endswith("beyond ±2: 3 (normal: 0.9). Tails: b -4.0, c +3.0, a +2.5.")


def test_the_figure_and_its_table(tmp_path: Path) -> None:
    page.write(pd.DataFrame(ROWS), tmp_path)
    assert (tmp_path / "standardised.csv").read_text().splitlines() == [
        "claim_id,standardised", "a,-3.5000", "b,0.5000", "c,2.0000",
    ]  # fmt: skip
    svg = (tmp_path / "standardised.svg").read_text(encoding="utf-8")
    assert "a  -3.5" in svg and "c  +2.0" not in svg
    page.write(pd.DataFrame([row("a", math.nan)]), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    names = [f"n{i:02}" for i in range(14)]
    drawn = page.figure(names, np.arange(3.0, 17.0))
    (text,) = drawn.axes[0].texts
    lines = text.get_text().split("\n")
    assert lines[:2] == ["", "n13  +16.0"] and lines[-1] == "and 4 more: standardised.csv"
    drawn.draw_without_rendering()
    box = text.get_window_extent()
    assert box.y1 - box.height / len(lines) <= drawn.bbox.y1  # no name is cut
    assert sum(patch.get_height() for patch in drawn.axes[0].patches) == 14  # none falls outside


# The README beside the tables, and the pages beside it.

STALE = {  # page: how lines that are put right begin
    "README.md": ("all |", "without noise IFCA leaves", "LCFL | 0"),
    "clove.md": ("CLoVE | 99.8* (99.8) |", "clove |", "PACFL |"),
    "changes.md": (),  # its table of numbers isn't of verdicts
    "hours.md": ("clove | fashion-concept |",),
    "text-and-code.md": ("FedGWC | rewards are divided by",),
}


@pytest.mark.parametrize("name", STALE)
def test_a_committed_page_is_up_to_date_and_a_changed_one_is_put_right(name: str) -> None:
    folder = ROOT / "docs/reproduction"
    text = (folder / name).read_text(encoding="utf-8")

    def table(name: str) -> pd.DataFrame:
        return pd.read_parquet(folder / f"{name}.parquet")

    spent = readme.hours.table(folder / "evidence")
    assert readme.updated(text, table, spent) == text
    wrong = text
    for stale in STALE[name]:  # but for its first cell, by which a row of accuracies is found
        pattern = rf"^(?=\| {re.escape(stale)})(\|[^|]*\|).*$"
        wrong, count = re.subn(pattern, r"\1 0 |", wrong, count=1, flags=re.MULTILINE)
        assert count == 1, stale
    assert readme.updated(wrong, table, spent) == text


def test_every_page_of_the_folder_is_held_against_the_results() -> None:
    assert {page.name for page in (ROOT / "docs/reproduction").glob("*.md")} == {*STALE}


def test_a_table_that_only_begins_as_one_of_counts_is_left() -> None:
    text = "| numbers | what was mended |\n| --- | --- |\n| 12 | a rate |\n"
    assert readme.updated(text, lambda name: pd.DataFrame(), [[]]) == text


def test_verdicts_by_method_have_the_most_judged_first() -> None:
    rows = [
        ("clove", "b", "reproduced"),
        ("clove", "b", "differs"),
        ("clove", "a", "undecided"),
        ("lcfl", "c", "differs"),
    ]
    rows += 3 * [("clove", "d", "not run")]
    claims = pd.DataFrame(rows, columns=["paper", "method", "verdict"])
    mark = "<!-- verdicts clove -->"
    lines = readme.updated(f"{mark}\n| stale |\n\nend\n", lambda name: claims, [[]]).split("\n")
    assert lines[:3] == [mark, "| method | reproduced | undecided | differs | not run |", readme._row(["---"] * 5)]
    assert lines[3:] == ["| b | 1 | 0 | 1 | 0 |", "| a | 0 | 1 | 0 | 0 |", "| d | 0 | 0 | 0 | 3 |", "", "end", ""]


def test_accuracies_are_ours_and_print_by_method_and_setting() -> None:
    def printed(method: str, setting: str, printed: float, ours: float, scale: str, **other: Any) -> dict[str, Any]:
        common = {"paper": "clove", "dataset": "mnist", "metric": "accuracy", "where": "Table 1", "seeds": 3} | other
        return common | {"method": method, "setting": setting, "printed": printed, "ours": ours, "scale": scale}

    rows = [
        printed("per-fedavg", "label-skew-1", 97.84, 78.24, "lite"),
        printed("per-fedavg", "feature-skew", 87.8, math.nan, "", where="Table 8"),
        printed("clove", "label-skew-1", 99.8, 99.75, "paper"),
        printed("clove", "feature-skew", 97.7, 97.6, "paper", seeds=1),
        printed("clove", "feature-skew", 11.1, 11.1, "paper", where="Table 9"),
        printed("clove", "feature-skew", 22.2, 22.2, "paper", dataset="cifar10"),
        printed("clove", "feature-skew", 0.3, 0.3, "paper", metric="ari"),
    ]
    mark, head = "<!-- accuracies clove mnist Table 1, Table 8 -->", "| | label skew 1 | feature skew |"
    text = f"{mark}\n{head}\n|---|---|---|\n| Per-FedAvg | 1 | 2 |\n| CLoVE |\n\nend\n"
    lines = readme.updated(text, lambda name: pd.DataFrame(rows), [[]]).split("\n")
    assert lines == [mark, head, "|---|---|---|", "| Per-FedAvg | 78.2 (97.8) | - (87.8) |",
                     "| CLoVE | 99.8* (99.8) | 97.6** (97.7) |", "", "end", ""]  # fmt: skip
    for wrong in (text.replace("| CLoVE |", "| CLOVER |"), text.replace("feature skew", "feature")):
        with pytest.raises(UserError, match=r"Table 8 -->: nothing is printed there for method '\S+' and setting '"):
            readme.updated(wrong, lambda name: pd.DataFrame(rows), [[]])
    for missing in (f"{mark}\n\nend\n", f"{mark}\n{head}\n\nend\n", f"{mark}\nend\nof it\n"):
        with pytest.raises(UserError, match=r"Table 8 -->: no table is on the next line"):
            readme.updated(missing, lambda name: pd.DataFrame(rows), [[]])


def test_hours_stand_where_the_page_has_a_place_for_them() -> None:
    head, first, second = ["study", "hours"], ["clove", "1.50"], ["lcfl", "2.00"]
    text = f"# x\n\n{readme.HOURS}\n{readme.NONE}\n\nend\n"

    def table(name: str) -> pd.DataFrame:
        raise AssertionError(name)

    one = readme.updated(text, table, [head, first])
    assert one.split("\n")[3:6] == ["| study | hours |", "| --- | --- |", "| clove | 1.50 |"] and one.endswith(
        "\n\nend\n"
    )
    two = readme.updated(one, table, [head, first, second])
    assert two == one.replace("| clove | 1.50 |", "| clove | 1.50 |\n| lcfl | 2.00 |")
    assert readme.updated(two, table, [head]) == text


def test_a_folder_without_a_readme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--write: .*README.md isn't there"):
        readme.write(tmp_path)
