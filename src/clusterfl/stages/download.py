"""Stage download: a dataset's arrays, in one file that all studies share."""

from __future__ import annotations

import hashlib

import numpy as np

from ..data import DATASETS
from ..errors import UserError
from ..store import write_tensors
from . import Facts, Work


def run(work: Work) -> Facts:
    """Write ``x [N, ...]`` and ``y [N]`` and return the digest of their content."""
    name = work.settings["dataset"]
    path = work.outputs["samples"]
    path.parent.mkdir(parents=True, exist_ok=True)
    result = DATASETS[name](path.parent)
    if not isinstance(result, tuple) or len(result) != 2:
        raise UserError(
            f"dataset '{name}' should return two arrays, x [N, ...] and y [N]; it returned {type(result).__name__}"
        )
    x, y = (np.asarray(part) for part in result)
    if not x.ndim or y.ndim != 1 or len(x) != len(y) or x.dtype.kind not in "iufb" or y.dtype.kind not in "iufb":
        raise UserError(
            f"dataset '{name}': x and y need equally many rows of numbers; found {x.shape} {x.dtype} and "
            f"{y.shape} {y.dtype}"
        )
    write_tensors(path, {"x": x, "y": y})
    content = hashlib.sha256()
    for array in (x, y):
        content.update(f"{array.dtype.str}{array.shape}".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return {"content": content.hexdigest(), "samples": len(x), "shape": list(x.shape[1:])}
