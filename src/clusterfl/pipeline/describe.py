"""Pages about federations, and the list of those in the catalogue."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..config.federation import FederationBlock
from ..config.loading import federation_block
from ..data import MIRROR, drift, encoding
from ..data.catalogue import rows
from ..data.federations import PINS, Pin, catalogue, known, pins
from ..data.fetch import in_mirror
from ..data.load import clients
from ..data.names import Names, of_partition
from ..data.samples import Samples, Table, read_samples
from ..errors import UserError, choices
from ..report import page, portrait
from ..report.words import aligned
from ..storage.manifest import manifest_path
from ..storage.store import RESULTS, read_json, replacing, write_json
from .execute import execute, is_done
from .job import download
from .jobs import Plan
from .stages.partition import class_counts, content, left_out, make, source

PICTURES, GROUPS = 10, 8  # pictures of each group, and the most groups with pictures
LOOKED_AT = 1000  # the most training samples of a group used for distances between groups
FOLDER = RESULTS / "federations"


@dataclass(frozen=True)
class Built:
    """A federation with all that its page shows."""

    name: str
    block: FederationBlock
    seed: int
    samples: Samples
    content: str  # digest of the samples
    table: Table  # the partition
    seconds: float  # of drawing it
    names: Names  # of clients and planted groups
    left_out: list[str] = field(default_factory=list)  # sentences about the data's clients without samples in it

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Samples by client, role, planted group, split and class."""
        return pd.DataFrame(class_counts(self.table, self.samples))

    @cached_property
    def remarks(self) -> list[str]:
        """Sentences about clients left out, columns of categories, and about what changes in later rounds."""
        return [*self.left_out, *encoding.remarks(self.samples, drift.at(self.table, 1)), *drift.remarks(self.table)]

    @cached_property
    def digest(self) -> str:
        """Digest of all that defines the federation."""
        return content(self.table, self.content)

    @cached_property
    def by_group(self) -> dict[int, tuple[Any, np.ndarray]]:
        """Inputs ``[n, ...]`` (a torch tensor) and labels of some training samples of each planted group.

        A single group, 0, if none is planted; at most `LOOKED_AT` samples of a group, spread evenly over its clients.
        """
        import torch

        from ..data.prepared import Prepared

        federation = clients(self.samples, self.table, self.block.inputs)
        train = federation.splits["train"]
        prepared = Prepared(train)
        groups = federation.true_cluster
        groups = np.zeros(federation.clients, dtype=np.int64) if groups is None else groups
        found = {}
        for group in np.unique(groups).tolist():
            rows, _ = train.of(np.flatnonzero(groups == group))
            rows = rows[np.unique(np.linspace(0, len(rows) - 1, LOOKED_AT).astype(int))]
            labels = train.y[rows] if train.y.dtype.kind == "i" else np.zeros(len(rows), dtype=np.int64)
            found[group] = (prepared.take(torch.as_tensor(rows)), labels)
        return found


def build(name: str, block: FederationBlock, seed: int, folders: tuple[str, ...] = ()) -> Built:
    """Draw a federation's partition; its dataset is fetched if necessary."""
    job = download(block.dataset.for_run(seed), folders)
    if not is_done(job):
        execute(job)
    path = job.outputs["samples"]
    samples = read_samples(path)
    dataset = read_json(manifest_path(path))
    began = time.perf_counter()
    settings = block.partition.resolved()
    given = dataset.get("names", {})
    table = make(settings, samples, seed, source(dataset), given)
    seconds = time.perf_counter() - began
    names, without = of_partition(given, samples, table), left_out(settings, samples, table, given)
    return Built(name, block, seed, samples, dataset["content"], table, seconds, names, without)


def listing(as_json: bool) -> str:
    """Return the catalogue of federations as a JSON list of objects or as a text table, without building any.

    Counts and digests are the pinned ones, of seed 0; null for federations that have never been built.
    """
    table = [_row(name) for name in catalogue()]
    if as_json:
        return json.dumps(table, indent=1) + "\n"
    columns = ["name", "paper", "dataset", "clients", "groups", "train", "test", "digest", "data"]
    texts = [columns]
    for row in table:
        name = row["name"] + " *" * (row["stand_in_for"] is not None)
        row = row | {"name": name, "digest": (row["digest"] or "")[:16]}
        texts.append([f"{row[c]:,}" if isinstance(row[c], int) else row[c] or "-" for c in columns])
    note = "* a stand-in: it resembles a federation whose own data can't be downloaded"
    return f"{aligned(texts, right={'clients', 'groups', 'train', 'test'})}\n{note}\n"


def rebuild(name: str) -> tuple[Pin, float]:
    """Build a federation of the catalogue with seed 0; return its counts and digest, and the partition's seconds."""
    built = build(name, federation_block({"base": name}), 0)
    table = portrait.clients(built.counts)
    amounts = {split: int(table[split].sum()) for split in ("train", "test")}
    groups = table.loc[table["true_cluster"] >= 0, "true_cluster"].nunique()
    return Pin(clients=len(table), groups=groups, digest=built.digest, **amounts), built.seconds


def verify() -> Iterator[str]:
    """Build every federation whose data are available here; yield a line on whether it equals the pinned one."""
    for name in catalogue():
        if (where := _row(name)["data"]) == "must be fetched":
            yield f"{name:36} {where}"
            continue
        try:
            pin, seconds = rebuild(name)
        except UserError as error:
            yield f"{name:36} can't be built: {error}"
            continue
        verdict = "not pinned" if name not in pins() else "as pinned" if pin == pins()[name] else "NOT as pinned"
        counts = f"{pin.clients:6,} clients {pin.train:9,} train {pin.test:8,} test"
        yield f"{name:36} {counts}  {seconds:6.2f} s  {pin.digest[:16]}  {verdict}"


def repin() -> None:
    """Write the pins of every federation whose data are available here (for developers: ``make pins``)."""
    found = {name: pin.model_dump() for name, pin in pins().items() if name in catalogue()}
    for name in catalogue():
        if _row(name)["data"] == "must be fetched":
            continue
        pin, seconds = rebuild(name)
        print(f"{name}: {seconds:.2f} s", file=sys.stderr)
        found[name] = pin.model_dump()
    write_json(PINS, found)


def _row(name: str) -> dict[str, Any]:
    row, pin = known(name), pins().get(name)
    dataset = federation_block({"base": name}).dataset
    source = rows()[dataset.part]
    if download(dataset).outputs["samples"].exists():
        data = "here"
    elif not source.sources:
        data = "made here"
    elif in_mirror(source, os.environ.get(MIRROR)):
        data = "in the mirror"
    else:
        data = "must be fetched"
    counts = {"clients": None, "groups": None, "train": None, "test": None, "digest": None}
    return {
        "name": name,
        "paper": row.paper,
        "about": row.about,
        "stand_in_for": row.stand_in_for,
        "dataset": dataset.part,
        **(counts if pin is None else pin.model_dump()),
        "data": data,
    }


def describe(name: str, config: list[Path], seed: int | None = None, as_json: bool = False) -> str:
    """Write a page about a federation of the catalogue, or of a study, and return a summary, as text or JSON.

    Raises
    ------
    UserError
        If there is no such federation, or it can't be built.
    """
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
    shown |= {"name": name, "seed": built.seed, "digest": built.digest, "remarks": built.remarks}
    shown |= {"settings": built.block.model_dump(mode="json", exclude={"training", "model"})}
    path = FOLDER / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    distances = sample_distances(built)
    text = page.federation(shown, built.counts, built.names, distances, pictures(built), FOLDER)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    if as_json:
        return gist_json(built, shown["pinned"], distances, path)
    return f"{gist(built, shown['pinned'], distances)}\n{path}"


def gist(built: Built, pinned: bool | None, distances: pd.DataFrame | None) -> str:
    """Return the tables of a federation as text; `distances` are those between the groups' samples."""
    roles = ", ".join(f"{n} {role}s" for role, n in portrait.clients(built.counts)["role"].value_counts().items())
    lines = [f"{built.name}: {roles}; seed {built.seed}; digest {built.digest[:16]}"]
    if pinned is not None:
        lines[0] += ", as pinned" if pinned else ", NOT the pinned one"
    lines += ["", portrait.sizes(built.counts).to_string(index=False)]
    groups = portrait.groups(built.counts, built.names)
    if len(groups):
        lines += ["", groups.head(20).to_string(index=False)]
        lines += [f"... and {len(groups) - 20} more groups"] if len(groups) > 20 else []
    lines += ["", *portrait.distances(built.counts, distances), *portrait.remarks(built.counts), *built.remarks]
    return "\n".join(lines).strip()


def gist_json(built: Built, pinned: bool | None, distances: pd.DataFrame | None, page: Path) -> str:
    """Return the tables of a federation, all rows, as a JSON object; `pinned` is null without a pinned digest."""
    roles = portrait.clients(built.counts)["role"].value_counts()
    found = {
        "name": built.name,
        "seed": built.seed,
        "digest": built.digest,
        "pinned": pinned,
        "roles": roles.to_dict(),
        "sizes": portrait.sizes(built.counts).to_dict("records"),
        "groups": portrait.groups(built.counts, built.names).to_dict("records"),
        "remarks": [*portrait.distances(built.counts, distances), *portrait.remarks(built.counts), *built.remarks],
        "page": str(page),
    }
    return json.dumps(found, indent=2, default=np.generic.item)


def sample_distances(built: Built) -> pd.DataFrame | None:
    """Return the distances of the planted groups' samples of equal class, [G, G]; 0: equal.

    The distance of two groups is the root mean square difference of their mean samples of a class, divided by the
    standard deviation of a sample's numbers, averaged over the classes that both have. None if samples are tokens, or
    fewer than two groups are planted.
    """
    if built.samples.x.dtype.kind == "i" or len(built.by_group) < 2:
        return None
    means, deviations = [], []
    for inputs, labels in built.by_group.values():
        x = inputs.reshape(len(inputs), -1).numpy().astype(np.float64)
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

    Each image's values are scaled to 0 to 1. None if samples aren't grey or colour images.
    """
    x = built.samples.x
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        return None
    images, labels = [], []
    for inputs, own in list(built.by_group.values())[:GROUPS]:
        rows = np.argsort(own, kind="stable")[np.linspace(0, len(own) - 1, PICTURES).astype(int)]
        x = inputs.numpy()[rows]
        low, high = x.min(axis=(1, 2, 3), keepdims=True), x.max(axis=(1, 2, 3), keepdims=True)
        images.append((x - low) / np.maximum(high - low, 1e-12))
        labels.append(own[rows] if built.samples.classes is None else built.samples.classes[own[rows]])
    return (
        np.stack(images),
        np.stack(labels),
        [f"group {built.names.group(g)}" if len(built.by_group) > 1 else "" for g in list(built.by_group)[:GROUPS]],
    )
