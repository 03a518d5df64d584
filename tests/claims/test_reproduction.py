"""What the documents say was reproduced is what the committed results say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from clusterfl.claims import central
from clusterfl.claims.orderings import KINDS, kind
from clusterfl.claims.pages.site import TITLES
from clusterfl.claims.verdicts import VERDICTS
from clusterfl.config.claims import PAPERS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reproduction"
PLACES = {"claims": "numbers", "orderings": "orderings"}  # what the tables' heads begin with


def read(name: str) -> pd.DataFrame:
    return pd.read_parquet(FOLDER / f"{name}.parquet")


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def counts(table: pd.DataFrame, verdicts: list[str]) -> list[str]:
    shown = table.assign(verdict=table["verdict"].map(kind))
    assert set(shown["verdict"]) <= set(verdicts)
    found = {TITLES[paper]: shown.loc[shown["paper"] == paper, "verdict"] for paper in PAPERS} | {
        "all": shown["verdict"]
    }
    return [row(name, *(int((own == verdict).sum()) for verdict in verdicts)) for name, own in found.items()]


def tables(text: str, name: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the scale ("" without), the verdicts and the lines of each table of counts in a text."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = re.match(rf"\| {PLACES[name]}(?:, scale (\w+))? \| (.*) \|$", line)
        if found:
            end = next(i for i in range(number, len(lines)) if not lines[i].startswith("|"))
            yield found[1] or "", found[2].split(" | "), lines[number + 2 : end]


def consequences() -> list[str]:
    done = read("consequences").query("seeds > 0").sort_values(["paper", "name"])
    return [
        row(
            TITLES[own.paper],
            own.about,
            f"{own.released:.2f}",
            f"{own.text:.2f}",
            f"{own.difference:+.2f}" + (f" ± {own.error:.2f}" if own.seeds > 1 else ""),
            own.seeds,
        )
        for own in done.itertuples()
    ]


@pytest.mark.parametrize("name", PLACES)
def test_a_table_of_counts_says_what_the_results_say(name: str) -> None:
    table, found = read(name), list(tables((FOLDER / "README.md").read_text(encoding="utf-8"), name))
    twice = table["claim_id"].duplicated().any()  # orderings are evaluated at two scales
    assert [scale for scale, *_ in found] == (["paper", "lite"] if twice else [""])
    for scale, verdicts, lines in found:
        assert lines == counts(table[table["scale"] == scale] if scale else table, verdicts)


def test_the_central_claims_are_the_results() -> None:
    """A table for each paper; and the sentence on chance counts the same comparisons."""
    text, table = (FOLDER / "README.md").read_text(encoding="utf-8"), read("central")
    lines = text.split("\n")
    for paper in PAPERS:
        start = lines.index(f"### {TITLES[paper]}") + 2
        own = table[table["paper"] == paper]
        assert lines[start] == row(*central.HEAD)
        assert lines[start + 2 : lines.index("", start)] == [
            row(*values) for values in own[list(central.HEAD)].itertuples(index=False)
        ]
    made, intervals = (int(table[name].sum()) for name in ("comparisons", "intervals"))
    equals = f"were all of them between equals, about {intervals * (1 - central.LEVEL):.0f} would"
    chance = f"{intervals} use 95 % intervals: {equals}"
    assert f"The rows make {made} comparisons in cells. {chance}" in text


def test_the_claims_that_are_traced_are_the_results() -> None:
    """Printed number, ours, verdict and each seed's number, as rounded there."""
    text, table = (FOLDER / "README.md").read_text(encoding="utf-8"), read("claims").set_index("claim_id")
    part = text[text.index("## Claims traced") : text.index("## Scope and ceiling")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.split("\n") if line.startswith("| `")
    ]
    assert len(rows) == 11
    for name, printed, ours, verdict, by_hand, _ in rows:
        found = table.loc[name.strip("`")]
        assert float(printed) == found["printed"], name
        lite = ", lite" if found["scale"] == "lite" else ""
        assert verdict == found["verdict"] + lite, name
        values = [float(part.split(": ")[1]) for part in found["values"].split("; ")]
        for said, value in zip([ours, *by_hand.split(", ")], [found["ours"], *values], strict=True):
            places = len(said.partition(".")[2])
            assert abs(float(said) - value) <= 0.5 * 10.0**-places + 1e-9, name


def test_a_table_of_consequences_says_what_the_results_say() -> None:
    lines = (FOLDER / "text-and-code.md").read_text(encoding="utf-8").split("\n")
    head = row("paper", "what", "released", "text", "difference ± its standard error", "seeds")
    start = lines.index(head) + 2
    assert lines[start : lines.index("", start)] == consequences()


def test_the_summary_says_what_the_results_say() -> None:
    """The first page counts verdicts: numbers in a table, orderings in words or in a table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.split("\n")
    place = next(i for i, line in enumerate(lines) if line.startswith("| 1,452 printed numbers |"))
    verdicts = lines[place - 2].strip("| ").split(" | ")
    verdicts = [name for name in verdicts if name in VERDICTS]
    assert lines[place] == counts(read("claims"), verdicts)[-1].replace("all", "1,452 printed numbers")
    words, table = " ".join(text.split()), read("orderings")
    if not table["claim_id"].duplicated().any():
        number = table["verdict"].map(kind).value_counts()
        assert (
            f"{number['holds']} hold, {number['holds in part']} hold in part, {number['fails']} fail, "
            f"{number['undecided']} are undecided and {number['not run']} weren't run" in words
        )
        return
    for scale, rows in table.groupby("scale"):  # both scales: "scale paper: 2 holds, 1 by construction, 77 not run"
        number = rows["verdict"].map(kind).value_counts()
        assert f"scale {scale}: " + ", ".join(f"{number[name]} {name}" for name in KINDS if name in number) in words


def test_the_changes_since_the_first_edition_end_at_todays_verdicts() -> None:
    """Each number and each ordering is in one row of changes.md, with the verdict that it has today."""
    lines = [line.strip("| ").split(" | ") for line in (FOLDER / "changes.md").read_text(encoding="utf-8").split("\n")]
    numbers = Counter[str]()
    for cells in lines:
        if cells[0] in VERDICTS and cells[1] in VERDICTS and cells[2].isdecimal():
            numbers[cells[1]] += int(cells[2])
    assert numbers == Counter(read("claims")["verdict"])
    own = [cells for cells in lines if cells[0] in KINDS and len(cells) > 3 and cells[2] in ("paper", "reduced")]
    assert sum(int(cells[3]) for cells in own) == len(read("orderings")) / 2
    table = read("orderings").assign(verdict=lambda rows: rows["verdict"].map(kind))
    for scale, name in (("paper", "paper"), ("lite", "reduced")):
        today = Counter(table.loc[table["scale"] == scale, "verdict"])
        said = Counter[str]()
        for cells in own:
            said[cells[1]] += int(cells[3]) * (cells[2] == name)
        assert all(count <= today[verdict] for verdict, count in said.items()), (said, today)
