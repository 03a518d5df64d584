"""Stage warmup: rounds of FedAvg; each client's model after its last participation is written."""

from __future__ import annotations

from typing import Any

from ...simulation.ledger import BYTES_PER_NUMBER
from ...simulation.warm_up import WarmUp, warm_up
from ...storage.store import write_tensors
from . import Facts, Work
from .common import arrays, engine, facts, keeping, resumed, write_record

SHARD_BYTES = 64 << 20


def run(work: Work) -> Facts:
    """Write the clients' models in shards, the common model, and the rounds' tables."""
    kept = work.unfinished
    with engine(work) as used, work.progress("warm-up", used.training.rounds) as progress, kept.watching():
        wanted = {name: work.settings.get(name, False) for name in ("gradients", "deltas")}
        warm = warm_up(used, **wanted, progress=progress, resume=resumed(kept), save=keeping(kept))
        write_record(work, warm.record)
        write_tensors(work.outputs["common"], arrays(warm.state))
        _write_shards(work, used.federation.ids, warm)
        return facts(used, warm.record) | {"bytes_per_model": used.layout.columns * BYTES_PER_NUMBER}


def _write_shards(work: Work, ids: Any, warm: WarmUp) -> None:
    """Write the clients' rows in shards of about 64 MB."""
    folder, written = work.outputs["clients"], set()
    per_shard = max(1, SHARD_BYTES // (4 * warm.theta.shape[1]))
    for number, first in enumerate(range(0, len(ids), per_shard)):
        part = slice(first, first + per_shard)
        tensors: dict[str, Any] = {"client": ids[part], "theta": warm.theta[part]}
        if warm.gradients is not None:
            tensors["last_gradient"] = warm.gradients[part]
        if warm.deltas is not None:
            tensors["delta"] = warm.deltas[part]
        written.add(folder / f"{number:05d}.safetensors")
        write_tensors(folder / f"{number:05d}.safetensors", tensors)
    for left in set(folder.glob("*.safetensors")) - written:
        left.unlink()  # an earlier run wrote more shards
