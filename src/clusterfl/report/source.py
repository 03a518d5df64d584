"""The result files from which a study's report is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config.blocks import differing
from ..data.names import Names
from ..storage.manifest import manifest_path
from ..storage.store import names_of, read_json, read_tensors


@dataclass(frozen=True)
class Source:
    """The result files of a study, by federation, seed and name."""

    settings: Mapping[str, Any]
    inputs: Mapping[str, Path]

    def on(self, federation: str) -> Mapping[str, Any]:
        """Return the study's settings for one federation, with the methods that run there."""
        return differing(self.settings, federation)

    def path(self, federation: str, seed: int, name: str) -> Path:
        """Return the path of a file."""
        return self.inputs[f"{federation}/seed{seed}/{name}"]

    def frame(self, federation: str, seed: int, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Return a file as a table; `columns` that it lacks, as after a run without rounds, are empty."""
        table = pd.read_parquet(self.path(federation, seed, name))
        return table if columns is None else table.reindex(columns=columns)

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield every federation with every seed."""
        for federation in self.settings["federations"]:
            for seed in self.settings["seeds"]["runs"]:
                yield federation, seed

    def names(self, federation: str, seed: int) -> Names:
        """Return the names of a partition's clients and planted groups."""
        path = self.path(federation, seed, "partition.partition")
        return Names.of(read_json(manifest_path(path)).get("names"))

    def left_out(self, federation: str, seed: int) -> list[str]:
        """Return sentences about the data's own clients that have no sample in a partition."""
        path = self.path(federation, seed, "partition.partition")
        return list(read_json(manifest_path(path)).get("left_out", []))

    def sweep(self, federation: str, method: str) -> pd.DataFrame | None:
        """Return the trials of a swept method on a federation, the same for every seed; None for other methods."""
        if not self.on(federation)["methods"][method]["sweep"]:
            return None
        return self.frame(federation, self.settings["seeds"]["runs"][0], f"methods/{method}.sweep")

    def chosen(self, federation: str, method: str) -> pd.Series | None:
        """Return the chosen trial of a swept method; None for other methods."""
        table = self.sweep(federation, method)
        return None if table is None else table[table["chosen"]].iloc[0]

    def clustering(self, federation: str, method: str) -> str | None:
        """Return the clustering that a method continues on a federation; None if it isn't a one-shot method."""
        found: str | None = self._block(federation, method)["clustering"]
        return found

    def _block(self, federation: str, method: str) -> dict[str, Any]:
        """Return a method's block, for a swept method with the values chosen on a federation."""
        chosen = self.chosen(federation, method)
        return self.on(federation)["methods"][method] | ({} if chosen is None else json.loads(chosen["values"]))

    def chain(self, federation: str, method: str) -> list[str]:
        """Return a file of each job of a method: training and, for a one-shot method, clustering to warm-up."""
        chosen, clustering = self.chosen(federation, method), self.clustering(federation, method)
        names = [
            f"methods/{method}.history" if chosen is None else f"methods/{method}/trials/{chosen['trial']}.history"
        ]
        if clustering is not None:
            distance = self.on(federation)["clusterings"][clustering]["distance"]
            warmup = self.settings["distances"][distance]["warmup"]
            names += [f"clusters/{clustering}.clusters", f"distance/{distance}.distance", f"warmup/{warmup}.history"]
        return names

    def losses(self, federation: str, seed: int, method: str) -> pd.DataFrame | None:
        """Return the clients' losses on a method's models as last measured, [client x model].

        Clients without losses, or with a loss that isn't finite, are left out; None for a method that measures none.
        """
        path = self.inputs.get(f"{federation}/seed{seed}/methods/{method}.models")
        found = {} if path is None else read_tensors(path, ["losses"])
        clusters = self.frame(federation, seed, f"methods/{method}.clusters", ["client"])
        clients = np.sort(clusters["client"].unique())
        losses = found.get("losses")
        if losses is None or losses.ndim != 2 or len(losses) != len(clients):  # a user's method may store other losses
            return None
        table = pd.DataFrame(losses, index=clients)
        return table[np.isfinite(table).all(axis=1)]

    def sizes(self, federation: str, seed: int, method: str) -> tuple[np.ndarray, int] | None:
        """Return a rebalanced method's cluster sizes before and after, [T, 2, K], and the minimum; else None."""
        block = self._block(federation, method).get("rebalance")
        if block is None:
            return None
        found = read_tensors(self.path(federation, seed, f"methods/{method}.models"), ["rebalanced"])
        return found["rebalanced"], block["minimum"]

    def guarantee(self, federation: str, seed: int, method: str) -> Mapping[str, Any] | None:
        """Return the privacy facts in a method's manifest; None for a method without privacy."""
        if self._block(federation, method).get("privacy") is None:
            return None
        path = self.path(federation, seed, self.chain(federation, method)[0])
        found: Mapping[str, Any] | None = read_json(manifest_path(path)).get("privacy")
        return found

    def corrupt(self, federation: str, seed: int, method: str) -> np.ndarray:
        """Return the ids of the clients that send no sound update."""
        path = self.path(federation, seed, self.chain(federation, method)[0])
        return np.array(read_json(manifest_path(path)).get("corrupt", []), dtype=np.int64)

    def splits(self, federation: str, seed: int, method: str) -> dict[str, Any] | None:
        """Return the arrays of splits and rewards in a method's state, see `FedGWC`; None for one that doesn't split.

        ``clients [M]`` are the clients' ids, in the order of the arrays.
        """
        path = self.inputs.get(f"{federation}/seed{seed}/methods/{method}.models")
        names = set() if path is None else names_of(path)
        if path is None or not {"attempts.round", "splits.attempt", "rewards", "labels"} <= names:
            return None
        own = [
            name
            for name in names
            if re.match(r"(attempts|splits?\d*|last|rewards)\.|(labels|rewards|mse\.rounds|interaction)$", name)
        ]
        clusters = self.frame(federation, seed, f"methods/{method}.clusters", ["client"])
        return read_tensors(path, own) | {"clients": np.sort(clusters["client"].unique())}

    def clusterings(self, federation: str) -> list[str]:
        """Return the clusterings that a federation's methods use, including those that are only tried in sweeps."""
        blocks = self.on(federation)["methods"].values()
        used = {name for block in blocks for name in block["sweep"].get("clustering", [block["clustering"]])}
        return sorted(used - {None})
