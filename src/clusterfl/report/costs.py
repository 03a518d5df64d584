"""A study's predicted costs as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from ..plan import Prediction, totals

COLUMNS = ("seconds", "memory MB", "disk MB", "sent MB")


def text(prediction: Prediction) -> str:
    """Return the rows as a table, totals, and what was measured."""
    lines = [["stage", "name", "federation", "seed", *COLUMNS, ""]]
    for row in prediction.rows:
        values = (row.seconds, *(b and b / 1e6 for b in (row.memory, row.disk, row.sent)))
        numbers = ["-" if value is None else f"{value:,.1f}" for value in values]
        numbers[-1] += "" if row.known else "?"
        words = ", ".join(filter(None, ["done" if row.done else "", row.note]))
        where = [row.stage, row.name or "", row.federation or "", "" if row.seed is None else str(row.seed)]
        lines.append([*where, *numbers, words])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(
        f"{{:{'>' if name in ('seed', *COLUMNS) else '<'}{w}}}" for name, w in zip(lines[0], widths, strict=True)
    )
    shown = [form.format(*line).rstrip() for line in lines]
    return "\n".join([*shown, "", *_totals(prediction), *_measured(prediction)])


def as_json(prediction: Prediction) -> str:
    """Return the rows and totals as JSON."""
    rows = [asdict(row) for row in prediction.rows]
    return json.dumps({"jobs": rows, "totals": totals(prediction), "calibration_seconds": prediction.seconds}, indent=1)


def _totals(prediction: Prediction) -> list[str]:
    found = totals(prediction)
    lines = [
        f"{found['jobs']} jobs to do: {found['seconds']:,.0f} s one after another, {found['on_all_cores']:,.0f} s with "
        f"{found['cores']} at a time (snakemake), {found['in_one_process']:,.0f} s in one process (clusterfl run); at "
        f"most {found['memory'] / 1e9:.2f} GB of memory a job, {found['disk'] / 1e6:,.1f} MB of files, "
        f"{found['sent'] / 1e6:,.1f} MB sent"
    ]
    if found["unknown"]:
        lines.append(f"{found['unknown']} of them can't be predicted yet and aren't in these sums: see their rows")
    return lines


def _measured(prediction: Prediction) -> list[str]:
    lines = []
    for name, (speed, layout) in prediction.speeds.items():
        each = ", ".join(f"{1e6 * s:.3g}" for s in speed.training.values())
        lines.append(
            f"{name}: {layout.columns:,} numbers a model; a sample takes {each} microseconds in a step and "
            f"{1e6 * speed.forward[1]:.3g} in a forward pass"
        )
    if not all(row.known for row in prediction.rows):
        lines.append("?: depends on how training goes")
    starts = [seconds for seconds, _ in prediction.starts.values()]
    return [
        f"measured in {prediction.seconds:.1f} s: starting takes {min(starts):.1f} to {max(starts):.1f} s, a figure "
        f"{prediction.figure[0]:.2f} s",
        *lines,
    ]
