"""One side of a comparison: a finished study, read from its report and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ...errors import UserError
from ...storage.manifest import content, manifest_path, verified
from ...storage.store import RESULTS, read_json, rebuild
from ..finished import folder_of

KEYS = ["federation", "method", "seed"]
FACTS = ["round", "last_round", "clients", "scored", "epsilon_proven"]  # columns of runs that aren't metrics


@dataclass(frozen=True)
class Side:
    """A finished study."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    runs: pd.DataFrame  # by federation, method and seed: every metric, and FACTS
    manifests: Mapping[str, Mapping[str, Any]]  # of the jobs that the report was made from, by path in the folder

    @property
    def metrics(self) -> list[str]:
        """The columns of `runs` that are metrics and have a value."""
        return [name for name in self.runs if name not in FACTS and self.runs[name].notna().any()]


def read(study: str) -> Side:
    """Return a study by its name under results/, or by any path of its folder.

    Raises
    ------
    UserError
        If it doesn't exist, has no report, or its report is damaged or was made from other results than the present.
    """
    folder = folder_of(study)
    again = f"make the report, where the study was run: clusterfl report {folder.name}"
    if not (folder / "summary.parquet").exists():
        raise UserError(f"study '{study}' has no report yet ({folder / 'summary.parquet'} is missing); {again}")
    command = f"clusterfl report {folder.name}"
    verified(folder / "study.json", {"stage": "report"}, command=command)
    settings = read_json(folder / "study.json")
    report = verified(folder / "tables", {"stage": "report", "study": settings["study"]}, command=command)
    manifests = _manifests(folder, report, again)
    return Side(study, folder, settings, _runs(folder, manifests), manifests)


def _manifests(folder: Path, report: Mapping[str, Any], again: str) -> dict[str, Mapping[str, Any]]:
    """Return the manifests of a report's inputs; raise an error if these have changed since."""
    found: dict[str, Mapping[str, Any]] = {}
    for text, recorded in report.get("inputs", {}).items():
        file = folder / Path(text).relative_to(RESULTS / report["study"])
        place = manifest_path(file)
        key = place.relative_to(folder).as_posix()
        if key not in found:
            found[key] = _whole(place)
        if content(file, found[key]) != recorded:
            raise UserError(f"{file} has changed since the report of '{folder}' was made from it; {again}")
    return found


def _whole(place: Path) -> Mapping[str, Any]:
    """Return a manifest; raise an error if it lacks a needed entry."""
    manifest = read_json(place)
    needed = {"stage", "files"} | ({"federation", "seed", "content"} if place.name.startswith("partition.") else set())
    lacking = sorted(needed - manifest.keys() if isinstance(manifest, dict) else needed)
    if lacking:
        raise UserError(f"{place} isn't a complete manifest: it has no '{lacking[0]}'; {rebuild(place)}")
    found: Mapping[str, Any] = manifest
    return found


def _runs(folder: Path, manifests: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    scores, measures = (_table(folder, name).set_index(KEYS) for name in ("scores", "measures"))
    runs = scores.join(measures[measures.columns.difference(scores.columns, sort=False)])
    runs["last_round"] = _table(folder, "curves").groupby(KEYS)["round"].max()
    partitions = {(m["federation"], m["seed"]): m for m in manifests.values() if m["stage"] == "partition"}
    runs["scored"] = _scored(folder).reindex(runs.index)
    runs["clients"] = [partitions[federation, seed]["content"] for federation, _, seed in runs.index]
    return runs


def _scored(folder: Path) -> pd.Series:
    """Return the ids of the clients on which each run is scored, as text; none in a report of before it named them."""
    if not (folder / "tables" / "clients.csv").exists():
        return pd.Series(dtype=object)
    return _table(folder, "clients").groupby(KEYS)["client"].agg(lambda ids: ",".join(map(str, sorted(ids))))


def _table(folder: Path, name: str) -> pd.DataFrame:
    """Return one of the report's tables, with exact numbers; names such as 1 or NA stay texts."""
    names = csv.ConvertOptions(column_types={"federation": pa.string(), "method": pa.string()})
    return csv.read_csv(folder / "tables" / f"{name}.csv", convert_options=names).to_pandas()
