"""Stage select: the trial of a swept method with the best validation score over all seeds of a federation.

Test samples aren't used: their rows of the histories aren't read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from ...errors import UserError
from ...report.tables import curve, measure, pick, spread
from ...storage.digest import canonical
from ...storage.manifest import manifest_path
from ...storage.store import read_json, replacing, write_table
from . import Facts, Work

BYTES = ["bytes_down", "bytes_up"]


def run(work: Work) -> Facts:
    """Write all trials' scores, and copies of this seed's files of the chosen trial."""
    table = scores(work.settings, work.inputs)
    best = choose(table)
    if best is None:
        raise UserError(_nothing_to_choose(work, table))
    columns = table.assign(chosen=table["trial"] == best)
    write_table(work.outputs["sweep"], {name: columns[name].to_numpy() for name in columns})
    seed = work.identity["seed"]
    for key in work.outputs.keys() - {"sweep"}:
        with replacing(work.outputs[key]) as temporary:
            shutil.copyfile(work.inputs[f"seed{seed}/{best}.{key}"], temporary)
    return {"chosen": best, "trials": len(table)}


def scores(settings: Mapping[str, Any], inputs: Mapping[str, Path]) -> pd.DataFrame:
    """Return each trial's values (canonical JSON), mean validation score and mean cost, in the order of the grid.

    Means are over all seeds, so a score is NaN if training diverged with one of them; ``seeds`` counts the others.

    Parameters
    ----------
    settings
        ``trials``, the values of each; ``seeds``; ``score``, whose split is validation.
    inputs
        History and rounds of each trial and seed, as ``seed{seed}/{trial}.history``; trials count from 1.
    """
    score, rows = settings["score"], []
    for number, values in enumerate(settings["trials"], 1):
        places = [f"seed{seed}/{number}" for seed in settings["seeds"]]
        found = pd.DataFrame([_score(inputs[f"{place}.history"], score) for place in places])
        costs = [pd.read_parquet(inputs[f"{place}.rounds"]).reindex(columns=BYTES).sum() for place in places]
        row: dict[str, Any] = {"trial": number, "values": canonical(values)}
        for name in ("accuracy", "loss"):
            row[f"{name}_mean"] = found[name].mean(skipna=False)
            row[f"{name}_std"] = spread(found[name], score["ddof"])
        row |= {"score_split": score["split"], "seeds": int(found["round"].count())}
        rows.append(row | pd.DataFrame(costs).mean().to_dict())
    return pd.DataFrame(rows)


def _score(history: Path, score: Mapping[str, Any]) -> dict[str, float]:
    if not pq.read_metadata(history).num_rows:  # it diverged
        return {"round": np.nan, "accuracy": np.nan, "loss": np.nan}
    return pick(curve(pd.read_parquet(history, filters=[("split", "==", score["split"])]), score), score)


def choose(table: pd.DataFrame) -> int | None:
    """Return the trial of highest mean accuracy, or for regression of lowest mean loss; the first one on ties.

    Means that differ only by rounding are ties, e.g. the means of 0.5 and 0.7, and of 0.4 and 0.8. A score that is NaN
    or infinite is never the best; None if there is no other.
    """
    name = measure(table)
    values = table[f"{name}_mean"] * (1 if name == "accuracy" else -1)
    values = values[np.isfinite(values)]
    best = values[np.isclose(values, values.max(), rtol=1e-12, atol=0)]
    return None if values.empty else int(table["trial"].loc[best.index[0]])


def _nothing_to_choose(work: Work, table: pd.DataFrame) -> str:
    """Return the error message for a sweep in which no trial has a finite score with every seed."""
    where = f"sweep of method '{work.identity['name']}' on federation '{work.identity['federation']}'"
    for seed in work.settings["seeds"]:
        for number in table["trial"]:
            reason = read_json(manifest_path(work.inputs[f"seed{seed}/{number}.history"])).get("diverged")
            if reason:
                return (
                    f"{where}: none of the {len(table)} trials has a score with every seed; trial {number}, seed "
                    f"{seed}: {reason}, or sweep other values"
                )
    return (
        f"{where}: none of the {len(table)} trials has a finite {work.settings['score']['evaluation']} score on "
        f"validation samples (score.at: {work.settings['score']['at']}); evaluate in that round, or change `score`"
    )
