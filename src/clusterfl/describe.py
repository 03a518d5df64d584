"""Pages about federations, and the list of those in the catalogue."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .config import Federation
from .data.federations import catalogue, known, pins
from .data.load import clients, read_samples
from .data.samples import Samples, Table
from .data.transforms import parse
from .errors import UserError, choices
from .execute import execute, is_done
from .jobs import RESULTS, Plan, download
from .loading import federation_block
from .report import portrait
from .store import manifest_path, read_json, replacing
from .stages.partition import class_counts, content, make

SHOWN, GROUPS = 10, 8  # pictures of a group, groups with pictures
FEDERATIONS = RESULTS / "federations"


@dataclass(frozen=True)
class Built:
    """A federation with all that a page says about it."""

    block: Federation
    samples: Samples
    table: Table
    counts: pd.DataFrame
    digest: str


def dataset_of(block: Federation, folders: tuple[str, ...] = ()) -> tuple[Samples, str]:
    """Return a federation's dataset and the digest of its content; it is fetched if it isn't there."""
    job = download(block.dataset, folders)
    if not is_done(job):
        execute(job)
    path = job.outputs["samples"]
    return read_samples(path), read_json(manifest_path(path))["content"]


def build(block: Federation, seed: int) -> Built:
    """Draw a federation's partition."""
    samples, known_content = dataset_of(block)
    table = make(block.partition.resolved(), samples, seed)
    return Built(block, samples, table, pd.DataFrame(class_counts(table, samples.y)), content(table, known_content))


def block_of(name: str, config: list[Path], seed: int | None) -> tuple[Federation, int]:
    """Return a federation of the catalogue, or one of a study, and the seed of its partition."""
    if not config:
        return federation_block({"base": name} if known(name) else {}), seed or 0
    study = Plan.from_files(config).study
    if name not in study.federations:
        raise UserError(f"no federation '{name}' in {', '.join(map(str, config))}; {choices(study.federations, name)}")
    return study.federations[name], study.seeds.runs[0] if seed is None else seed


def describe(name: str, config: list[Path], seed: int | None = None) -> str:
    """Write a page about a federation and return its gist for the terminal."""
    from .report import page

    block, seed = block_of(name, config, seed)
    built = build(block, seed)
    pinned = pins().get(name) if not config and seed == 0 else None
    path = FEDERATIONS / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = {
        "name": name,
        "about": known(name).about if not config else "",
        "stand_in_for": known(name).stand_in_for if not config else None,
        "seed": seed,
        "digest": built.digest,
        "pinned": None if pinned is None else pinned.digest == built.digest,
        "clients": len(portrait.clients(built.counts)),
        "settings": block.model_dump(mode="json", exclude={"training", "model"}),
        "distances": image_distances(built),
    }
    text = page.federation(shown, built.counts, pictures(built), FEDERATIONS)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return f"{gist(name, built, shown['pinned'])}\n{path}"


def gist(name: str, built: Built, pinned: bool | None) -> str:
    """Return the tables of a federation as text."""
    counts = built.counts
    table = portrait.clients(counts)
    roles = ", ".join(f"{n} {role}s" for role, n in table["role"].value_counts().items())
    lines = [f"{name}: {roles}; digest {built.digest[:16]}"]
    if pinned is not None:
        lines[0] += ", as pinned" if pinned else ", NOT the pinned one"
    lines += ["", portrait.sizes(counts).to_string(index=False)]
    groups = portrait.groups(counts)
    if len(groups):
        lines += ["", groups.head(20).to_string(index=False)]
        lines += [f"... and {len(groups) - 20} more groups"] if len(groups) > 20 else []
    if len(groups) > 1:
        lines += ["", f"distance between groups, classes (total variation): {portrait.spread(portrait.class_distances(counts))}"]
        if (distances := image_distances(built)) is not None:
            lines += [f"distance between groups, samples of a class (standard deviations): {portrait.spread(distances)}"]
    return "\n".join([*lines, "", *portrait.remarks(counts)]).strip()


def image_distances(built: Built, most: int = 1000) -> pd.DataFrame | None:
    """Return how far the groups' samples of equal class lie apart: 0 = alike.

    The distance of two groups is the root mean square difference of their mean samples of a class, in standard
    deviations of one number over all samples, averaged over the classes that both have. At most `most` training
    samples of a group are looked at. None where samples are tokens, or fewer than two groups are planted.
    """
    federation = clients(built.samples, built.table, built.block.inputs)
    groups = federation.true_cluster
    if groups is None or len(np.unique(groups)) < 2 or built.samples.x.dtype.kind in "i":
        return None
    from .data.prepared import Prepared

    train = federation.splits["train"]
    prepared, means = Prepared(train), {}
    names = np.unique(groups)
    parts, deviation = [], []
    import torch

    for group in names:
        rows, _ = train.of(np.flatnonzero(groups == group))
        rows = rows[:: max(1, len(rows) // most)][:most]
        x = prepared.take(torch.as_tensor(rows)).flatten(1).numpy().astype(np.float64)
        deviation.append(x.std())
        y = train.y[rows] if federation.classes else np.zeros(len(rows), dtype=int)
        parts.append({int(c): x[y == c].mean(0) for c in np.unique(y)})
    unit = max(float(np.mean(deviation)), 1e-12)
    values = np.zeros((len(names), len(names)))
    for i, one in enumerate(parts):
        for j, other in enumerate(parts):
            common = one.keys() & other.keys()
            gaps = [np.sqrt(np.mean((one[c] - other[c]) ** 2)) for c in sorted(common)]
            values[i, j] = np.mean(gaps) / unit if gaps else np.nan
    return pd.DataFrame(values, index=names, columns=names)


def pictures(built: Built) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """Return example images of each group's first clients as a network gets them, rescaled to 0..1 for the eye."""
    if built.samples.x.dtype != np.uint8 or built.samples.x.ndim != 4:
        return None
    federation = clients(built.samples, built.table, built.block.inputs)
    groups = federation.true_cluster
    groups = np.zeros(federation.clients, dtype=int) if groups is None else groups
    train = federation.splits["train"]
    from .data.prepared import Prepared
    import torch

    prepared = Prepared(train)
    images, labels, names = [], [], []
    for group in np.unique(groups)[:GROUPS]:
        rows, _ = train.of(np.flatnonzero(groups == group))
        rows = rows[np.argsort(train.y[rows], kind="stable")]
        rows = rows[np.linspace(0, len(rows) - 1, SHOWN).astype(int)]
        x = prepared.take(torch.as_tensor(rows)).numpy()
        low, high = x.min(axis=(1, 2, 3), keepdims=True), x.max(axis=(1, 2, 3), keepdims=True)
        images.append((x - low) / np.maximum(high - low, 1e-12))
        labels.append(train.y[rows])
        names.append(f"group {group}")
    return np.stack(images), np.stack(labels), names
