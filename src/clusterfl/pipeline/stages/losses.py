"""Stage losses: the losses of one shard of the clients' models, if several jobs measure a distance's input."""

from __future__ import annotations

import numpy as np

from ...engine.training import Training
from ...errors import UserError
from ...storage.store import write_table
from . import Facts, Work
from .common import engine, read_clients
from .distance import check_clients, measured


def run(work: Work) -> Facts:
    """Write the losses of the shard's models on every client's data, a row for each client."""
    settings = work.settings
    ids, theta = read_clients(work.inputs["clients"], "theta")
    if settings["shards"] > len(ids):
        raise UserError(f"shards: {settings['shards']} jobs can't share {len(ids)} models; allowed: 1 to {len(ids)}")
    models = np.array_split(np.arange(len(ids)), settings["shards"])[settings["shard"] - 1]
    with engine(work, Training()) as used, work.progress("losses of the clients' models", len(models)) as progress:
        check_clients(used, ids)
        losses = measured(
            used, theta, np.arange(len(ids)), models, settings["data"], lambda n: progress(n, ""), work.unfinished
        )
    write_table(work.outputs["losses"], {"client": ids, "losses": losses})
    return {"models": len(models)}
