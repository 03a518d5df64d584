"""What the documents say was reproduced is what the committed results say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from clusterfl.claims.settings import PAPERS
from clusterfl.report.site import TITLES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reproduction"
VERDICTS = ["reproduced", "differs", "not comparable", "not run"]
ORDERINGS = ["holds", "holds in part", "fails", "undecided", "no number", "not run"]


def read(name: str) -> pd.DataFrame:
    return pd.read_parquet(FOLDER / f"{name}.parquet")


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def counts(table: pd.DataFrame, verdicts: list[str]) -> list[str]:
    shown = table.assign(verdict=table["verdict"].str.replace(r"^holds in \d+ of \d+$", "holds in part", regex=True))
    assert set(shown["verdict"]) <= set(verdicts)
    found = {TITLES[paper]: shown.loc[shown["paper"] == paper, "verdict"] for paper in PAPERS} | {
        "all": shown["verdict"]
    }
    return [row(name, *(int((own == verdict).sum()) for verdict in verdicts)) for name, own in found.items()]


def consequences() -> list[str]:
    done = read("consequences").query("seeds > 0").sort_values(["paper", "name"])
    return [
        row(
            TITLES[own.paper],
            own.about,
            f"{own.released:.2f}",
            f"{own.text:.2f}",
            f"{own.difference:+.2f} ± {own.error:.2f}",
            own.seeds,
        )
        for own in done.itertuples()
    ]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (row("numbers", *VERDICTS), lambda: counts(read("claims"), VERDICTS)),
        (row("orderings", *ORDERINGS), lambda: counts(read("orderings"), ORDERINGS)),
        (row("paper", "what", "released", "text", "difference ± its standard error", "seeds"), consequences),
    ],
    ids=["numbers", "orderings", "consequences"],
)
def test_a_table_says_what_the_results_say(head: str, expected: Callable[[], list[str]]) -> None:
    lines = (FOLDER / "README.md").read_text().split("\n")
    start = lines.index(head) + 2
    assert lines[start : lines.index("", start)] == expected()


def test_the_summary_says_what_the_results_say() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    held, part, fails, undecided, _, missing = counts(read("orderings"), ORDERINGS)[-1].strip("| ").split(" | ")[1:]
    assert counts(read("claims"), VERDICTS)[-1].replace("all", "1,452 printed numbers") in text
    assert (
        f"{held} hold, {part} hold in part, {fails} fail, {undecided} are undecided and {missing} weren't run" in text
    )
