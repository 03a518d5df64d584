"""Stage report: all results of a study as a summary, tables, figures and one page.

Times are on the page, in ``times.csv`` and in ``jobs.csv``; all other files are the same whenever they are made.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ...report import measures, page, tables, words
from ...report.source import Source
from ...storage.store import replacing, write_json, write_table
from . import Facts, Work

CLOCK = ["seconds", "server_seconds"]


def run(work: Work) -> Facts:
    """Write the settings, the summary, tables (CSV), figures (SVG, PNG) and the page."""
    out, settings = work.outputs, work.settings
    source = Source(settings, work.inputs)
    for name in ("tables", "figures"):  # removes files of an earlier report, which may be of other methods
        shutil.rmtree(out[name], ignore_errors=True)
        out[name].mkdir(parents=True)
    scores, curves, clients = tables.runs(source)
    differences = tables.differences(scores, settings["baseline"])
    informed = [name for name, block in settings["methods"].items() if block["method"] == words.INFORMED]
    summary = tables.summarise(scores, settings["score"], differences, tables.to_best(scores, informed), clients)
    members, samples, choices = tables.members(source), tables.samples(source), tables.choices(source)
    measured, agreement = measures.measures(source, curves)
    jobs, versions = tables.jobs(source)
    write_json(out["study"], settings)
    write_table(out["summary"], {name: summary[name] for name in summary.columns.difference(CLOCK, sort=False)})
    found = {"summary": summary, "scores": scores, "curves": curves, "members": members, "samples": samples}
    found |= {"differences": differences, "choices": choices, "measures": measured, "agreement": agreement}
    found["clients"] = clients
    found |= dict(zip(("faults", "bad_clients"), tables.faults(source, scores), strict=True))
    found |= {"sweeps": tables.sweeps(source), "jobs": jobs, "versions": versions}
    _write(out["tables"], found | {"times": scores[["federation", "method", "seed", *CLOCK]]})
    text = page.render(source, found, out["figures"])
    with replacing(out["page"]) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return {"page_bytes": len(text.encode())}


def _write(folder: Path, found: Mapping[str, pd.DataFrame]) -> None:
    for name, table in found.items():
        clock = CLOCK if name in ("summary", "scores") else []
        table.drop(columns=clock, errors="ignore").to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
