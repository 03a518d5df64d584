"""A comparison as text for the terminal, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...metrics import LEVEL
from ...report.measures import CLIENTS, CLUSTERS
from ...report.words import aligned, label
from .comparison import Comparison, Row
from .origins import Difference
from .paired import HIGHER, INTERVAL, LOWER, OPEN

FIRST = ("accuracy", "loss", "ari")  # the metrics that the terminal shows by default
# For each metric: factor, unit and number format.
FORMS = {"accuracy": (100.0, "%", ".2f"), "loss": (1.0, "", ".4g"), "clusters": (1.0, "", ".1f")}
FORMS |= dict.fromkeys(("bytes_down", "bytes_up"), (1e-06, "MB", ",.2f"))
FORMS |= dict.fromkeys(("local_steps", "client_forwards"), (1.0, "", ",.0f"))
FORMS |= {name: (float(factor), "%" if factor == 100 else "", f".{int(form[1]) + 1}f")
          for name, (_, factor, form, _) in (CLUSTERS | CLIENTS).items()}  # fmt: skip
SPAN = f"{LEVEL:.0%} interval"
HEAD = ["federation", "method", "metric", "verdict", "B - A", SPAN, "A", "B", "pairs"]
RIGHT = {"B - A", SPAN, "A", "B", "pairs"}


def text(found: Comparison, everything: bool = False) -> str:
    """Return the differences in settings, origins and bytes, then the table, and how to read it."""
    lines = [title(found), *(f"caution: {line}" for line in found.cautions)]
    lines += _listed("settings", found.settings)
    lines += [*_listed("commit, revisions, processor, packages", found.origins), *provenance(found)]
    if not found.rows:
        return "\n".join([*lines, "no pairs: A and B share no federation, seed and method with a result"])
    rows = [row for row in found.rows if everything or row.metric in FIRST]
    lines += ["", *headlines(found), ""]
    lines.append(aligned([HEAD, *(cells(row) for row in rows)], RIGHT))
    hidden = len({row.metric for row in found.rows}) - len({row.metric for row in rows})
    lines += ["", *(f"{line}." for line in reading(rows))]
    return "\n".join(lines + [f"{hidden} more metrics: --all, --json or --page."] * (hidden > 0))


def title(found: Comparison) -> str:
    """Return a line that names A and B."""
    return f"A: {found.a}, B: {found.b}" + (f", methods of study {found.study}" if found.study else "")


def _listed(what: str, differences: list[Difference]) -> Iterator[str]:
    if not differences:
        yield f"{what}: the same"
        return
    yield f"{what} that differ:"
    yield from (f"  {one.key}: {_shortened(one.a)} -> {_shortened(one.b)}" for one in differences)


def _shortened(value: str) -> str:
    return value if len(value) <= 100 else f"{value[:97]}..."


def provenance(found: Comparison) -> list[str]:
    """Return lines about code, bytes and what only one side has."""
    lines = []
    if found.code is not None:
        other, both = found.code
        lines.append(
            f"code: another digest in {other:,} of {both:,} jobs" if other else f"code: the same in {both:,} jobs"
        )
    lines.append(bytes_of(found))
    return lines + [
        f"only in {name}: {', '.join(own)}" for name, own in (("A", found.only_a), ("B", found.only_b)) if own
    ]


def bytes_of(found: Comparison) -> str:
    """Return a line about the number of equal files."""
    files = found.files
    if not files.both:
        return "bytes: no file that both have"
    same = "the same, " if not files.different else ""
    line = f"bytes: {same}digests equal for {files.equal:,} of {files.both:,} files"
    alone = [f"{count:,} more only in {name}" for name, count in (("A", files.only_a), ("B", files.only_b)) if count]
    return "; ".join([line, *alone])


def headlines(found: Comparison) -> list[str]:
    """Return the verdicts on the score: a sentence for each federation, or for two methods one for each measure."""
    parts: dict[str, dict[str, list[str]]] = {}
    for federation in found.federations:
        measure = found.measure(federation)
        name = label(measure, found.score)
        for row in found.of(federation, measure):
            place, own = (name, federation) if row.method is None else (f"{federation}: {name}", row.method)
            parts.setdefault(place, {}).setdefault(row.verdict, []).append(own)
    word = "for" if found.study is None else "on"
    sentences = []
    for place, verdicts in parts.items():
        clear_first = sorted(verdicts, key=lambda verdict: not verdict.startswith((HIGHER, LOWER)))
        sentences.append(f"{place}: " + "; ".join(f"{one} {word} {', '.join(verdicts[one])}" for one in clear_first))
    return sentences


def reading(rows: Sequence[Row]) -> Iterator[str]:
    """Yield explanations of the numbers in the rows."""
    yield f"A and B are means over the pairs, a pair is one federation and one seed; interval ({LEVEL:.0%}): {INTERVAL}"
    yield f'"{OPEN}": the interval holds 0; which of higher and lower is better depends on the metric'
    several = sum(row.paired.verdict in (OPEN, HIGHER, LOWER) for row in rows)
    if several > 1:
        chance = f"{(1 - LEVEL) * several:.2g}"
        yield f"each interval stands alone: if nothing differed, about {chance} of {several} would exclude 0 by chance"
    if any(row.federation is None for row in rows):
        yield "over all federations pairs are taken as independent, which those of one federation need not be"
    lacking = sum(row.lacking for row in rows)
    if lacking:
        yield f"{lacking} pairs of a metric are left out: A or B has no finite value there"


def cells(row: Row) -> list[str]:
    """Return a row as the cells of `HEAD`."""
    factor, unit, form = FORMS.get(row.metric, (1.0, "", ",.4g"))
    one = row.paired

    def write(value: float | None, sign: str = "") -> str:
        return "-" if value is None else f"{factor * value:{sign}{form}}"

    interval = "-" if one.low is None else f"{write(one.low, '+')} to {write(one.high, '+')}"
    metric = f"{row.metric} ({unit})" if unit else row.metric
    pairs = str(one.pairs) + (f" of {one.pairs + row.lacking}" if row.lacking else "")
    numbers = [write(one.mean, "+"), interval, write(row.mean_a), write(row.mean_b), pairs]
    return [row.federation or "all", row.method or "-", metric, row.verdict, *numbers]


def as_json(found: Comparison) -> str:
    """Return the comparison as a JSON object; accuracies are fractions, missing values null."""
    fields = {key: value for key, value in asdict(found).items() if key not in ("rows", "code", "files")}
    other, both = found.code or (None, None)
    fields |= {"code": {"jobs": both, "of_other_code": other}, "interval": {"level": LEVEL, "kind": INTERVAL}}
    fields["files"] = asdict(found.files) | {"both": found.files.both}
    fields["rows"] = [_plain(row) for row in found.rows]
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)


def _plain(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    fields |= fields.pop("paired")
    assert all(not isinstance(value, float) or math.isfinite(value) for value in fields.values())
    return fields
