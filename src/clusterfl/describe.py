"""Pages about federations, and the list of those in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .config import Federation
from .data.federations import known, pins
from .data.load import clients
from .data.samples import Samples, Table, read_samples
from .errors import UserError, choices
from .execute import execute, is_done
from .jobs import RESULTS, Plan, download
from .loading import federation_block
from .report import page, portrait
from .stages.partition import class_counts, content, make
from .store import manifest_path, read_json, replacing

PICTURES, GROUPS = 10, 8  # pictures of a group, groups with pictures
LOOKED_AT = 1000  # training samples of a group that distances between groups are taken from
FOLDER = RESULTS / "federations"


@dataclass(frozen=True)
class Built:
    """A federation with all that a page says about it."""

    name: str
    block: Federation
    seed: int
    samples: Samples
    content: str  # digest of the samples
    table: Table  # the partition

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Samples by client, role, planted group, split and class."""
        return pd.DataFrame(class_counts(self.table, self.samples.y))

    @cached_property
    def digest(self) -> str:
        """Digest of all that defines the federation."""
        return content(self.table, self.content)

    @cached_property
    def by_group(self) -> dict[int, tuple[Any, np.ndarray]]:
        """Inputs ``[n, ...]`` (a torch tensor) and labels of some training samples of each planted group.

        One group, 0, where none is planted; at most `LOOKED_AT` samples of a group, evenly from all of its clients.
        """
        import torch

        from .data.prepared import Prepared

        federation = clients(self.samples, self.table, self.block.inputs)
        train = federation.splits["train"]
        prepared = Prepared(train)
        groups = federation.true_cluster
        groups = np.zeros(federation.clients, dtype=np.int64) if groups is None else groups
        found = {}
        for group in np.unique(groups).tolist():
            rows, _ = train.of(np.flatnonzero(groups == group))
            rows = rows[np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT).astype(int))]
            labels = train.y[rows] if federation.classes else np.zeros(len(rows), dtype=np.int64)
            found[group] = (prepared.take(torch.as_tensor(rows)), labels)
        return found


def build(name: str, block: Federation, seed: int, folders: tuple[str, ...] = ()) -> Built:
    """Draw a federation's partition; its dataset is fetched if it isn't there."""
    job = download(block.dataset, folders)
    if not is_done(job):
        execute(job)
    path = job.outputs["samples"]
    samples = read_samples(path)
    digest = read_json(manifest_path(path))["content"]
    return Built(name, block, seed, samples, digest, make(block.partition.resolved(), samples, seed))


def describe(name: str, config: list[Path], seed: int | None = None) -> str:
    """Write a page about a federation of the catalogue, or of a study, and return its gist for the terminal."""
    shown: dict[str, Any] = {"about": "", "stand_in_for": None, "pinned": None}
    if config:
        plan = Plan.from_files(config)
        blocks = plan.study.federations
        if name not in blocks:
            raise UserError(f"no federation '{name}' in {', '.join(map(str, config))}; {choices(blocks, name)}")
        seed = plan.study.seeds.runs[0] if seed is None else seed
        built = build(name, blocks[name], seed, tuple(plan.study.modules))
    else:
        row = known(name)
        built = build(name, federation_block({"base": name}), seed or 0)
        shown |= {"about": row.about, "stand_in_for": row.stand_in_for}
        if not seed and name in pins():
            shown["pinned"] = pins()[name].digest == built.digest
    shown |= {"name": name, "seed": built.seed, "digest": built.digest}
    shown |= {"settings": built.block.model_dump(mode="json", exclude={"training", "model"})}
    path = FOLDER / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = page.federation(shown, built.counts, sample_distances(built), pictures(built), FOLDER)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return f"{gist(built, shown['pinned'])}\n{path}"


def gist(built: Built, pinned: bool | None) -> str:
    """Return the tables of a federation as text."""
    roles = ", ".join(f"{n} {role}s" for role, n in portrait.clients(built.counts)["role"].value_counts().items())
    lines = [f"{built.name}: {roles}; seed {built.seed}; digest {built.digest[:16]}"]
    if pinned is not None:
        lines[0] += ", as pinned" if pinned else ", NOT the pinned one"
    lines += ["", portrait.sizes(built.counts).to_string(index=False)]
    groups = portrait.groups(built.counts)
    if len(groups):
        lines += ["", groups.head(20).to_string(index=False)]
        lines += [f"... and {len(groups) - 20} more groups"] if len(groups) > 20 else []
    lines += ["", *portrait.distances(built.counts, sample_distances(built)), *portrait.remarks(built.counts)]
    return "\n".join(lines).strip()


def sample_distances(built: Built) -> pd.DataFrame | None:
    """Return how far the planted groups' samples of equal class lie apart, [G, G]: 0 = alike.

    The distance of two groups is the root mean square difference of their mean samples of a class, in standard
    deviations of one number over all samples, averaged over the classes that both have. None where samples are
    tokens, or fewer than two groups are planted.
    """
    if built.samples.x.dtype.kind == "i" or len(built.by_group) < 2:
        return None
    means, deviations = [], []
    for inputs, labels in built.by_group.values():
        x = inputs.flatten(1).numpy().astype(np.float64)
        deviations.append(x.std())
        means.append({c: x[labels == c].mean(0) for c in np.unique(labels).tolist()})
    unit = max(float(np.mean(deviations)), 1e-12)
    values = np.full((len(means), len(means)), np.nan)
    for i, one in enumerate(means):
        for j, other in enumerate(means):
            gaps = [np.sqrt(np.mean((one[c] - other[c]) ** 2)) for c in sorted(one.keys() & other.keys())]
            values[i, j] = np.mean(gaps) / unit if gaps else np.nan
    return pd.DataFrame(values, index=list(built.by_group), columns=list(built.by_group))


def pictures(built: Built) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """Return examples of each planted group, ``images [G, n, channels, height, width]``, labels and rows' names.

    Each image's shades are spread over 0 to 1. None where samples aren't images.
    """
    if built.samples.x.dtype != np.uint8 or built.samples.x.ndim != 4:
        return None
    images, labels = [], []
    for inputs, own in list(built.by_group.values())[:GROUPS]:
        rows = np.argsort(own, kind="stable")[np.linspace(0, len(own) - 1, PICTURES).astype(int)]
        x = inputs.numpy()[rows]
        low, high = x.min(axis=(1, 2, 3), keepdims=True), x.max(axis=(1, 2, 3), keepdims=True)
        images.append((x - low) / np.maximum(high - low, 1e-12))
        labels.append(own[rows])
    return np.stack(images), np.stack(labels), [f"group {g}" for g in list(built.by_group)[:GROUPS]]
