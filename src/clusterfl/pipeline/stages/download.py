"""Stage download: a dataset's arrays in one file, which all studies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DATASETS
from ...data.catalogue import content, rows
from ...data.fetch import fetch
from ...data.names import given
from ...data.samples import Samples
from ...errors import UserError
from ...progress import bar
from ...storage.store import write_tensors
from . import Facts, Work


def run(work: Work) -> Facts:
    """Write ``x [N, ...]``, ``y [N]`` and the other arrays of `Samples`; return facts, with the content's digest."""
    path = work.outputs["samples"]
    samples, digest = obtain(work.settings["dataset"], path.parent, work.settings["options"], work.progress)
    write_tensors(path, samples.tensors())
    facts = {"content": digest, "samples": len(samples.x), "shape": list(samples.x.shape[1:])}
    names = given(samples)
    if names:  # the user's own data: errors about partitions name its columns
        options = work.settings["options"]
        facts["columns"] = {role: options[role] for role in ("client", "test") if options.get(role)}
    return facts | ({"names": names} if names else {})


def obtain(name: str, folder: Path, options: Mapping[str, Any], progress: Any = bar) -> tuple[Samples, str]:
    """Fetch a dataset's files into `folder`, if it has any, read them, and check the arrays.

    Returns the samples and the digest of their content.

    Raises
    ------
    UserError
        If the files can't be fetched, the arrays don't fit together, or their digest isn't that of the catalogue.
    """
    folder.mkdir(parents=True, exist_ok=True)
    row = rows().get(name)
    if row and row.sources:
        fetch(name, folder, progress=progress)
    samples = _checked(name, DATASETS[name](folder, **options))
    found, model = content(samples), DATASETS.options(name)
    if row and row.content and model(**options) == model() and found != row.content:
        raise UserError(
            f"dataset '{name}' differs from the catalogue: x and y have sha256 {found}, {row.content} expected; delete "
            f"{folder}, then run clusterfl download {name} again, from another mirror if one was used"
        )
    return samples, found


def _checked(name: str, result: Any) -> Samples:
    """Return what a dataset's function returned as `Samples` of matching shapes."""
    if not isinstance(result, Samples) and not (isinstance(result, tuple) and len(result) == 2):
        raise UserError(
            f"dataset '{name}' should return two arrays, x [N, ...] and y [N], or Samples; it returned "
            f"{type(result).__name__}"
        )
    given = vars(result) if isinstance(result, Samples) else dict(zip(("x", "y"), result, strict=True))
    arrays = {key: np.asanyarray(array) for key, array in given.items() if array is not None or key in "xy"}
    x, y = arrays["x"], arrays["y"]
    if not x.ndim or y.ndim != 1 or len(x) != len(y) or x.dtype.kind not in "iufb" or y.dtype.kind not in "iufb":
        raise UserError(
            f"dataset '{name}': x and y need equally many rows of numbers; found {x.shape} {x.dtype} and "
            f"{y.shape} {y.dtype}"
        )
    for key, kinds in {"test": "b", "owner": "iu", "group": "iu"}.items():
        if key in arrays and (arrays[key].shape != y.shape or arrays[key].dtype.kind not in kinds):
            raise UserError(
                f"dataset '{name}': {key} needs one {'truth value' if kinds == 'b' else 'whole number'} for each of "
                f"the {len(y)} samples; found {arrays[key].shape} {arrays[key].dtype}"
            )
    if "classes" in arrays and (y.dtype.kind not in "iu" or len(arrays["classes"]) <= y.max(initial=-1)):
        raise UserError(
            f"dataset '{name}': classes needs a text for each class 0 to {y.max(initial=-1)}; found "
            f"{len(arrays['classes'])}"
        )
    return replace(result, **arrays) if isinstance(result, Samples) else Samples(**arrays)
