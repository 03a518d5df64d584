"""Writing a first study on a user's own data: `clusterfl init --data`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config.federation import Dataset
from ..config.loading import dataset_block
from ..config.text import parse, write
from ..data import DATASETS
from ..data.encoding import listed
from ..data.readers import own, sheet
from ..data.samples import Samples
from ..errors import UserError, choices
from ..registry import find_file
from ..storage.store import cannot_write
from .jobs import Plan

COMPARED = 1000  # the most clients that are compared pairwise, in a time that grows with their number's square
SPLIT = 4  # the fewest clients that FedGWC can split
FAR = 10  # standard deviation of targets above which training at usual learning rates diverges
SHOWN = 12  # the most features listed by name
MANY = 200  # mean samples of a client above which a round has one epoch
DEALT, EACH = 20, 25  # without given clients: the most clients, and the fewest samples of each on average


@dataclass(frozen=True)
class Data:
    """The data of a new study, and what was found out about them."""

    source: str
    samples: Samples
    options: dict[str, Any]  # of the block `dataset`
    names: tuple[int, int]  # numbers of clients and of groups; 0: no groups
    features: Sequence[str] = ()  # the columns of a table that are features

    @property
    def classes(self) -> int:
        """Number of classes; 0 for real targets."""
        return len(np.unique(self.samples.y)) if self.samples.y.dtype.kind in "iu" else 0

    @property
    def dealt(self) -> str:
        """How samples without clients are distributed, as text."""
        return "a Dirichlet draw for each class" if self.classes else "chance"

    @property
    def scheme(self) -> dict[str, Any]:
        """The partition: the data's own clients, or, if there are none, samples distributed at random."""
        if self.samples.owner is not None:
            return {"scheme": "natural"}
        if not self.classes:
            return {"scheme": "iid", "clients": self.names[0]}
        least = max(1, len(self.samples.y) // (4 * self.names[0]))
        return {"scheme": "dirichlet", "clients": self.names[0], "alpha": 0.5, "minimum": min(10, least)}


def start(folder: Path, data: str, roles: Mapping[str, str | None], options: Mapping[str, Any]) -> tuple[Path, str]:
    """Write a study into `folder`; return the file and a description of the data, one sentence a line.

    Parameters
    ----------
    folder
        Made if it doesn't exist. The file is named after the data; an existing one is never overwritten.
    data
        A table, an .npz file, or a folder of images.
    roles
        The columns of label, client and group; None for those that aren't given.
    options
        Further options of the reader.

    Raises
    ------
    UserError
        If the data can't be read or don't make a study, or the file already exists.
    """
    found = _read(folder, data, {key: value for key, value in roles.items() if value is not None} | dict(options))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(data).resolve().name.split(".")[0]).strip("-._")[:80] or "own"
    path, text = folder / f"{name}.yaml", _text(name, found)
    if path.exists():
        raise UserError(f"{path} already exists; choose another folder, or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the data's path is relative to it
        Plan.from_settings(parse(text), [path])
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(path, error) from error
    return path, "\n".join([f"{data}: {_gist(found)}", *_features(found)])


def commands(path: Path) -> list[str]:
    """Return the next commands for a study."""
    where = shlex.quote(str(path))
    return [f"clusterfl check --config {where}", f"clusterfl run --config {where}"]


def _read(folder: Path, data: str, options: dict[str, Any]) -> Data:
    """Read the data; raise a UserError if an option is missing or wrong."""
    place = find_file(data)
    reader = "images" if place.is_dir() else "arrays" if place.suffix == ".npz" else "table"
    if reader == "table" and "label" not in options:
        allowed = choices(map(str, sheet.frame(data)))
        raise UserError(f"--label: name the column with the label of {data}; {allowed}")
    where = {"images": "images"}.get(reader, "path")
    block = dataset_block(reader, {where: data, **options})
    samples: Samples = DATASETS[reader](Path(), **block.options())
    _check(data, samples)
    # Paths are relative to the study's folder, so that both can be moved together.
    files = {key: os.path.relpath(find_file(block.options()[key]), folder) for key in block.files()}
    owner, group = samples.owner, samples.group
    clients = max(2, min(DEALT, len(samples.y) // EACH)) if owner is None else len(np.unique(owner))
    amounts = (clients, 0 if group is None else len(np.unique(group)))
    rest = {key: value for key, value in options.items() if key not in files}
    columns = (options.get("features") or _columns(data, block)) if reader == "table" else ()
    return Data(data, samples, {"dataset": reader, **files, **rest}, amounts, columns)


def _columns(data: str, block: Dataset) -> list[str]:
    """Return the columns of a table that are features if none are named."""
    given = block.options()
    return own.features(data, *(given[key] for key in own.Roles._fields))


def _check(data: str, samples: Samples) -> None:
    """Raise an error for data from which no useful study can be written."""
    if samples.owner is None and samples.group is not None:
        raise UserError(
            f"{data}: a group is given, but no clients, and groups consist of clients; name the clients as well, or "
            "omit the group"
        )
    if samples.x.dtype.kind in "iu" and samples.x.dtype != np.uint8:
        raise UserError(
            f"{data}: x holds whole numbers, which would be tokens; store features as real numbers, or write a study "
            "with a network for words, see workflow/studies"
        )
    if samples.y.dtype.kind in "iu" and len(np.unique(samples.y)) < 2:
        only = samples.y[0] if samples.classes is None else samples.classes[samples.y[0]]
        raise UserError(f"{data}: all labels are '{only}'; name a column with at least 2 classes")
    if samples.owner is not None and samples.group is not None:
        pairs = np.unique(np.stack([samples.owner, samples.group]), axis=1)
        several = len(pairs[0]) - len(np.unique(samples.owner))
        if several:
            raise UserError(
                f"{data}: {several} clients have samples of several groups; a client is in one group: omit --group, or "
                "name another column"
            )


def _gist(data: Data) -> str:
    """Return a description of the data in a sentence."""
    samples, (clients, groups) = data.samples, data.names
    if samples.owner is None:
        parts = [f"{len(samples.x)} samples without given clients: distributed to {clients} by {data.dealt}"]
    else:
        parts = [f"{len(samples.x)} samples of {clients} clients"]
    if data.classes:
        named = "" if samples.classes is None else f" ({listed(samples.classes)})"
        parts.append(f"{data.classes} classes{named}")
    else:
        far = "; scale them to about 1, or training may diverge" if samples.y.std() > FAR else ""
        parts.append(f"real targets {samples.y.min():g} to {samples.y.max():g}{far}")
    if groups:
        parts.append(f"{groups} groups")
    if samples.sizes is not None and samples.columns is not None:
        coded = ", ".join(f"{name}: {size}" for name, size in zip(samples.columns, samples.sizes, strict=True) if size)
        parts.append(f"columns of categories ({coded})")
    return ", ".join(parts)


def _features(data: Data) -> Iterator[str]:
    """Yield lines on which columns are features, and which of these may have another role."""
    if not data.features:
        return
    more = f" and {len(data.features) - SHOWN} more" if len(data.features) > SHOWN else ""
    yield f"features ({len(data.features)}): {', '.join(data.features[:SHOWN])}{more}"
    flags = {"test": ("marks test samples", "--option test="), "group": ("is the client's true cluster", "--group ")}
    if data.samples.owner is None:
        flags = {"test": flags["test"], "client": ("says whose a sample is", "--client ")}
    for name in data.features:
        if name.lower() in flags:
            meaning, flag = flags[name.lower()]
            yield f"'{name}' is taken as a feature: if it {meaning}, give {flag}{shlex.quote(name)}"


def _block(value: Any, indent: int) -> str:
    """Return settings as indented YAML."""
    text = write(value, width=1000)
    return "\n".join(" " * indent + line for line in text.splitlines())


def _text(name: str, data: Data) -> str:
    """Return the study as commented YAML."""
    samples, (clients, groups) = data.samples, data.names
    clusters = min(max(groups, 2), clients)
    known = f"the {groups} groups" if groups else "a guess: how many kinds of clients do you expect?"
    epochs = 5 if len(samples.y) <= MANY * clients else 1
    rate = 0.05 if data.classes else 0.01
    features = samples.x.dtype.kind == "f"
    whose = "Your clients as they are"
    if samples.owner is None:
        whose = f"The data name no clients: samples are distributed by {data.dealt}"
    scheme = ", ".join(f"{key}: {value}" for key, value in data.scheme.items())
    lines = [
        f"# Clustered federated learning on {Path(data.source).name}: {clients} clients. Every key is explained by",
        "# `clusterfl schema --format yaml`, every method in docs/methods; `clusterfl methods` lists them.",
        f"study: {_scalar(name)}",
        "seeds: {runs: [0, 1, 2]} # a complete run each",
        "model: {model: mlp, hidden: [64]}",
        f"training: {{rounds: 30, epochs: {epochs}, batch_size: 10, learning_rate: {rate}}}",
        "",
        "federations:",
        f"  {_scalar(name)}:",
        "    dataset:",
        _block(data.options, 6),
        f"    # {whose}; a quarter of each client's samples is for testing if none are marked.",
        f"    partition: {{{scheme}, test: 0.25}}",
    ]
    if features:
        lines += [
            "    # Subtract the training samples' mean and divide by their standard deviation.",
            "    inputs: {standardise: true}",
        ]
    if clients <= COMPARED:
        lines += [
            "",
            "# LCFL: each client trains a model alone; its losses on the others' data determine the clusters.",
            "warmups:",
            "  alone: {rounds: 1, training: {epochs: 20}}",
            "distances:",
            "  loss: {metric: loss, warmup: alone}",
            "clusterings:",
            f"  loss: {{clusterer: hierarchical, distance: loss, clusters: {clusters}}} # {known}",
        ]
    lines += [
        "",
        "methods:",
        "  fedavg: {method: fedavg} # one model for all",
        "  local: {method: local} # a model for each client, never averaged",
        *(["  oracle: {method: oracle} # knows the groups"] if groups else []),
        f"  ifca: {{method: ifca, clusters: {clusters}}} # {known}",
        f"  clove: {{method: clove, clusters: {clusters}}}",
    ]
    if clients <= COMPARED:
        lines.append("  lcfl: {method: lcfl, clustering: loss}")
    if SPLIT <= clients <= COMPARED:
        lines.append("  fedgwc: {method: fedgwc, training: {participation: 0.3}} # finds the number; splits late")
    return "\n".join([*lines, "baseline: fedavg # the method that others are compared with", ""])


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted if it would be read as a number or a truth value."""
    return write(text).splitlines()[0]
