"""The claims as text for the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ..config.claims import PAPERS
from ..errors import UserError, choices
from ..report.words import aligned
from . import central, counts, exchange, rests, standardised
from .gather import Row
from .grammar import compared
from .orderings import KINDS, kind
from .ours import Results
from .printed import orderings
from .scale import LITE, PAPER
from .verdicts import VERDICTS


def select(
    tables: Sequence[Sequence[Row]],
    paper: str | None = None,
    table: str | None = None,
    verdict: str | None = None,
    method: str | None = None,
    cell: str | None = None,
) -> list[list[Row]]:
    """Return the fitting rows, list by list: of a paper, of a table (``II`` is Table II; or `where` in full) and so on.

    `cell` is a pattern for dataset/setting. An ordering is kept if it compares any number of the method and cell.

    Raises
    ------
    UserError
        If a name is unknown, or the paper and the table have no row of that method and cell.
    """
    for option, given, allowed in (("paper", paper, PAPERS), ("verdict", verdict, {*VERDICTS, *KINDS})):
        if given is not None and given not in allowed:
            raise UserError(f"--{option}: '{given}' is unknown; {choices(allowed, given)}")
    kept = [[row for row in rows if paper in (None, row["paper"])] for rows in tables]
    if table is not None:
        kept = _from(kept, table)
    if method is not None or cell is not None:
        kept = _of(kept, method, cell)
    return [[row for row in rows if verdict in (None, kind(row["verdict"]))] for rows in kept]


def _from(tables: Sequence[Sequence[Row]], table: str) -> list[list[Row]]:
    """Return the rows of one of the papers' tables."""
    places = {place for rows in tables for row in rows for place in row["where"].split("|")}
    wanted = {table, f"Table {table}"}
    if not places & wanted:
        raise UserError(f"--table: nothing is from '{table}'; {choices(places, f'Table {table}')}")
    return [[row for row in rows if wanted & set(row["where"].split("|"))] for rows in tables]


def _of(tables: Sequence[Sequence[Row]], method: str | None, cell: str | None) -> list[list[Row]]:
    """Return the rows of a method in the cells that fit a pattern; None fits any."""
    found = [[(row, _numbers(row)) for row in rows] for rows in tables]
    there = {number for rows in found for _, numbers in rows for number in numbers}
    methods = {name for name, _ in there}
    if method is not None and method not in methods:
        raise UserError(f"--method: no row there is of '{method}'; {choices(methods, method)}")
    cells = {place for name, place in there if method in (None, name)}
    fitting = cells if cell is None else {place for place in cells if fnmatchcase(place, cell)}
    if not fitting:
        raise UserError(f"--cell: no row there is of '{cell}'; {choices(cells, str(cell))}")
    wanted = {(name, place) for name, place in there if method in (None, name) and place in fitting}
    return [[row for row, numbers in rows if numbers & wanted] for rows in found]


def _numbers(row: Row) -> set[tuple[str, str]]:
    """Return method and cell of a number's row, or of all numbers that an ordering's row compares."""
    if "left" not in row:
        return {(row["method"], f"{row['dataset']}/{row['setting']}")}
    ordering = next(one for one in orderings() if one.claim_id == row["claim_id"])
    return {(key.method, f"{key.dataset}/{key.setting}") for key in compared(ordering)}


def text(rows: Sequence[Row], orderings: Sequence[Row]) -> str:
    """Return the rows of claims and orderings as tables, and how many there are by paper and verdict."""
    parts = []
    if rows:
        head = ["claim", "printed", "ours", "seeds", "scale", "verdict", "guesses", "also accepts", "reason"]
        parts.append(aligned([head, *map(_claim, rows)], right={"printed", "ours", "seeds", "guesses"}))
    if orderings:
        head = ["ordering", "verdict", "seeds", "scale", "on print", "reason"]
        parts.append(aligned([head, *map(_ordering, orderings)], right={"seeds"}))
    return "\n\n".join([*parts, *_verdicts(rows, orderings)])


def first(rows: Sequence[Row], paper: str | None = None) -> str:
    """Return the papers' central claims as tables, and how many comparisons would be clear by chance."""
    rows = [row for row in rows if paper in (None, row["paper"])]
    parts = []
    for name in PAPERS if paper is None else (paper,):
        own = [[row[column] for column in central.HEAD] for row in rows if row["paper"] == name]
        parts.append(f"{name}\n{aligned([list(central.HEAD), *own], right={'seeds'})}")
    return "\n\n".join([*parts, central.sentence(rows)])


def summary(tables: Sequence[Sequence[Row]], results: Sequence[Results]) -> str:
    """Return counts by kind, reach and verdict, differences in standard errors, and what exchanging names does."""
    found = [rests.sentences(tables[0]), standardised.sentence(tables[0]), exchange.sentence(results)]
    return "\n\n".join([counts.text(), *_verdicts(*tables), *found])


def _verdicts(rows: Sequence[Row], orderings: Sequence[Row]) -> list[str]:
    """Return tables of how many numbers and orderings have each verdict."""
    repeated = sum(row["note"].startswith("repeats ") or "; repeats " in row["note"] for row in rows)
    more = f", {repeated} of which repeat another" if repeated else ""
    parts = [_counts(f"{len(rows)} numbers{more}", rows, VERDICTS, str)]
    for scale in (PAPER, LITE):
        own = [row for row in orderings if row["scale"] == scale]
        parts.append(_counts(f"{len(own)} orderings, scale {scale}", own, KINDS, kind))
    return parts


def _claim(row: Row) -> list[str]:
    printed, ours = (_number(row[name], row[f"{name}_std"]) for name in ("printed", "ours"))
    seeds = str(row["seeds"]) if row["seeds"] else "-"
    more = [str(row["guesses"] or "-"), row["also_accepts"].replace("|", ", ") or "-", row["reason"]]
    return [row["claim_id"], printed, ours, seeds, row["scale"] or "-", row["verdict"], *more]


def _number(mean: float, std: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4g}" + ("" if math.isnan(std) else f" ± {std:.2g}")


def _ordering(row: Row) -> list[str]:
    seeds = f"{row['seeds_holding']} of {row['seeds']}" if row["seeds"] else "-"
    return [row["claim_id"], row["verdict"], seeds, row["scale"] or "-", row["on_print"], row["reason"]]


def _counts(title: str, rows: Sequence[Row], verdicts: Sequence[str], name: Callable[[str], str]) -> str:
    counts = Counter((row["paper"], name(row["verdict"])) for row in rows)
    papers = [paper for paper in PAPERS if any(row["paper"] == paper for row in rows)]
    lines = [[title, *verdicts]]
    lines += [[paper, *(str(counts[paper, verdict]) for verdict in verdicts)] for paper in papers]
    lines.append(["all", *(str(sum(counts[paper, verdict] for paper in papers)) for verdict in verdicts)])
    return aligned(lines, right=set(verdicts))
