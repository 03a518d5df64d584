"""Stage cluster: labels from a distance matrix."""

from __future__ import annotations

import numpy as np

from ...clustering.choice import find
from ...clustering.distances import check_distance
from ...storage.store import read_table, write_table
from . import Facts, Work


def run(work: Work) -> Facts:
    """Write each client's cluster, and the scores of every number of clusters tried."""
    settings = work.settings
    table = read_table(work.inputs["distance"])
    order = np.argsort(table["client"])
    ids, distance, landmarks = table["client"][order], table["distance"][order], None
    if "landmark" in table:
        landmarks = np.flatnonzero(table["landmark"][order])
        distance = distance[:, np.argsort(table["client"][table["landmark"]])]
    else:
        distance = distance[:, order]
    check_distance(distance, landmarks)
    number = {key: settings[key] for key in ("clusters", "most", "margin") if key in settings}
    found = find(
        distance, settings["clusterer"], **number, seed=settings["seed"], options=settings["options"],
        landmarks=landmarks,
    )  # fmt: skip
    write_table(work.outputs["clusters"], {"client": ids, "cluster": found.labels})
    write_table(work.outputs["scores"], found.scores)
    return {"clusters": len(np.unique(found.labels)), "k": found.k}
