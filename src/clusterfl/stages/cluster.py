"""Stage cluster: labels from a distance matrix."""

from __future__ import annotations

import numpy as np

from ..clustering import CLUSTERERS, renumbered
from ..distances import check_distance
from ..errors import UserError
from ..store import read_table, write_table
from . import Facts, Work


def run(work: Work) -> Facts:
    """Write each client's cluster, and the silhouette of the number of clusters tried."""
    settings = work.settings
    table = read_table(work.inputs["distance"])
    order = np.argsort(table["client"])
    ids, distance = table["client"][order], table["distance"][order][:, order]
    check_distance(distance)
    k = settings["clusters"]
    if k > len(ids):
        raise UserError(f"clusters: {k} for {len(ids)} clients; allowed: 1 to {len(ids)}")
    found = CLUSTERERS[settings["clusterer"]](distance, k=k, seed=settings["seed"], **settings["options"])
    labels = np.asarray(found)
    if labels.shape != ids.shape or labels.dtype.kind not in "iu":
        raise UserError(
            f"clusterer '{settings['clusterer']}' should return a whole number as label for each of the {len(ids)} "
            "clients; "
            f"it returned {type(found).__name__} ({labels.dtype}, shape {labels.shape})"
        )
    labels = renumbered(labels)
    write_table(work.outputs["clusters"], {"client": ids, "cluster": labels})
    score = _silhouette(distance, labels)
    write_table(
        work.outputs["scores"],
        {"k": np.array([k]), "silhouette": np.array([score]), "chosen": np.array([True])},
    )
    return {"clusters": len(np.unique(labels))}


def _silhouette(distance: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean silhouette; NaN where it isn't defined, with one cluster or only singletons."""
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(labels)) < len(labels):
        return float("nan")
    return float(silhouette_score(distance, labels, metric="precomputed"))
