"""Updates the tables of a README and of the pages beside it.

Counts of verdicts, central claims and consequences are found by their head, hours by block by the line
``<!-- hours -->``, verdicts by method by ``<!-- verdicts PAPER -->``, accuracies by
``<!-- accuracies PAPER DATASET TABLE, TABLE -->``, what verdicts rest on by ``<!-- rests -->``. All other
lines are left as they are.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from ...config.claims import PAPERS
from ...errors import UserError
from ...storage.store import RESULTS, replacing
from .. import central, hours, rests
from ..evidence import FOLDER
from ..orderings import KINDS, kind
from ..verdicts import JUDGED, VERDICTS
from .site import TITLES

NAMES = ("claims", "orderings", "central", "discrepancies", "consequences")
HEADS = re.compile(r"\| (numbers|orderings, scale \w+) \| (.*) \|$")
CONSEQUENCES = ("paper", "what", "released", "text", "difference ± its standard error", "seeds")
ACCURACIES = re.compile(r"<!-- accuracies (\S+) (\S+) (.+) -->$")
VERDICTS_BY_METHOD = re.compile(r"<!-- verdicts (\S+) -->$")
HOURS, RESTS = "<!-- hours -->", "<!-- rests -->"
NONE = "No run at the paper's scale is kept yet."
Table = Callable[[str], pd.DataFrame]


def check_target(folder: Path) -> None:
    """Refuse a folder without a README, or one with files of these names and a README without their tables.

    Raises
    ------
    UserError
        If it is such a folder.
    """
    page = folder / "README.md"
    if not page.is_file():
        raise UserError(f"--write: {page} isn't there; give a folder with a README.md whose tables are these")
    lines = page.read_text(encoding="utf-8").splitlines()
    there = [path for path in (folder / f"{name}.parquet" for name in NAMES) if path.exists()]
    if there and not any(map(_known, lines)):
        raise UserError(
            f"--write: {there[0]} already exists, and {page} has no table of claims; give a folder with a README.md "
            "whose tables are these, or move the file away"
        )


def write(folder: Path) -> str:
    """Copy the tables that `gather.write` wrote into a folder, update its pages, and return what was done.

    Raises
    ------
    UserError
        If the folder has no README.md, or other tables of these names.
    """
    check_target(folder)
    for name in NAMES:
        with replacing(folder / f"{name}.parquet") as temporary:
            shutil.copyfile(RESULTS / f"{name}.parquet", temporary)
    written, spent = [], hours.table(folder / FOLDER.name)
    for page in sorted(folder.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        text = updated(before, lambda name: pd.read_parquet(folder / f"{name}.parquet"), spent)
        if text != before:
            with replacing(page) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(str(page))
    return f"written: {', '.join(written)}" if written else f"the pages in {folder} are up to date"


def updated(text: str, table: Table, spent: Sequence[Sequence[str]]) -> str:
    """Return a page's text with its tables updated from `table`, by name, and `spent`, the hours, head first."""
    lines, paper = text.split("\n"), ""
    found: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        paper = line.removeprefix("### ") if line.startswith("#") else paper
        rows = _rows(line, paper, table)
        found.append(line)
        place += 1
        if line == HOURS:
            found += [_row(spent[0]), _row(["---"] * len(spent[0])), *map(_row, spent[1:])] if spent[1:] else [NONE]
            place = _end(lines, place)
        elif line == RESTS:
            found.append(rests.sentences(table("claims").to_dict("records")))
            place = _end(lines, place)
        elif (where := VERDICTS_BY_METHOD.match(line)) is not None:
            found += _by_method(table("claims"), where[1])
            place = _end(lines, place)
        elif (where := ACCURACIES.match(line)) is not None:
            end = _end(lines, place)
            found += _accuracies(where, lines[place:end], table("claims"))
            place = end
        elif rows is not None:
            found += [lines[place], *rows]
            place = _end(lines, place)
    return "\n".join(found)


def _rows(head: str, paper: str, table: Table) -> list[str] | None:
    """Return the rows for the table that a line is the head of; None if it isn't the head of a known one."""
    counted = _counted(head)
    if counted is not None:
        name, scale, verdicts = counted
        rows = table(name)
        return _counts(rows[rows["scale"] == scale] if scale else rows, verdicts)
    names = {title: name for name, title in TITLES.items()}
    if head == _row(central.HEAD) and paper in names:
        rows = table("central")
        own = rows.loc[rows["paper"] == names[paper], list(central.HEAD)]
        return [_row(values) for values in own.itertuples(index=False)]
    if head == _row(CONSEQUENCES):
        return list(_consequences(table("consequences")))
    return None


def _known(line: str) -> bool:
    """Return whether a line begins a table that is updated."""
    heads = {_row(central.HEAD), _row(CONSEQUENCES), HOURS, RESTS}
    return line in heads or _counted(line) is not None or bool(VERDICTS_BY_METHOD.match(line) or ACCURACIES.match(line))


def _counted(head: str) -> tuple[str, str, list[str]] | None:
    """Return table, scale ("" for all) and verdicts of a table of counts, by its head; None for other heads."""
    found = HEADS.match(head)
    if found is None:
        return None
    name, _, scale = found[1].partition(", scale ")
    verdicts = found[2].split(" | ")
    return ({"numbers": "claims"}.get(name, name), scale, verdicts) if {*verdicts} <= {*VERDICTS, *KINDS} else None


def _consequences(table: pd.DataFrame) -> Iterator[str]:
    """Yield the rows on the differences between text and released code, in the scores' units."""
    for own in table[table["seeds"] > 0].sort_values(["paper", "name"]).itertuples():
        error = "" if math.isnan(own.error) else f" ± {own.error:.2f}"  # one seed has none
        difference = f"{own.difference:+.2f}{error}"
        yield _row([TITLES[own.paper], own.about, f"{own.released:.2f}", f"{own.text:.2f}", difference, own.seeds])


def _accuracies(where: re.Match[str], lines: Sequence[str], claims: pd.DataFrame) -> list[str]:
    """Return the lines of a table of methods by settings, its cells "ours (printed)" in %.

    Ours has * at the paper's scale, ** if it has one seed.

    Raises
    ------
    UserError
        If no table is below the marker, or print has no number for a row's method and a column's setting.
    """
    if len(lines) < 2 or not all(line.startswith("|") for line in lines):  # the head and the line of dashes
        raise UserError(f"{where[0]}: no table is on the next line; begin one with its head, | | setting | setting |")
    paper, dataset, tables = where.groups()
    rows = claims[
        (claims["paper"] == paper)
        & (claims["dataset"] == dataset)
        & (claims["metric"] == "accuracy")
        & claims["where"].isin(tables.split(", "))
    ]
    there = {(one.method, one.setting): one for one in rows.itertuples()}

    def cell(method: str, setting: str) -> str:
        one = there.get((method.lower(), setting.replace(" ", "-")))
        if one is None:
            raise UserError(f"{where[0]}: nothing is printed there for method '{method}' and setting '{setting}'")
        stars = 0 if one.scale != "paper" else 2 if one.seeds == 1 else 1
        ours = "-" if pd.isna(one.ours) else f"{one.ours:.1f}{'*' * stars}"
        return f"{ours} ({one.printed:.1f})"

    settings = lines[0].strip("| ").split(" | ")
    methods = [line.strip("| ").split(" | ")[0] for line in lines[2:]]
    return [*lines[:2], *(_row([method, *(cell(method, one) for one in settings)]) for method in methods)]


def _by_method(claims: pd.DataFrame, paper: str) -> list[str]:
    """Return the lines of a table with the number of each verdict by method, most judged numbers first."""
    verdicts = claims.loc[claims["paper"] == paper, ["method", "verdict"]]
    shown = [verdict for verdict in VERDICTS if verdict in set(verdicts["verdict"])]
    rows = pd.crosstab(verdicts["method"], verdicts["verdict"])[shown]
    judged = rows[[verdict for verdict in shown if verdict in JUDGED]].sum(axis=1)
    order = sorted(rows.index, key=lambda method: (-judged[method], method))
    return [_row(["method", *shown]), _row(["---"] * (1 + len(shown))), *(_row([one, *rows.loc[one]]) for one in order)]


def _counts(rows: pd.DataFrame, verdicts: Sequence[str]) -> list[str]:
    """Return how many rows have each verdict, by paper and in all."""
    kinds = rows["verdict"].map(kind)
    parts = {TITLES[paper]: kinds[rows["paper"] == paper] for paper in PAPERS} | {"all": kinds}
    return [_row([name, *(int((own == verdict).sum()) for verdict in verdicts)]) for name, own in parts.items()]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _end(lines: Sequence[str], start: int) -> int:
    """Return the first empty line from a place on."""
    return next((number for number in range(start, len(lines)) if not lines[number]), len(lines))
