"""Partitions: which client holds which sample, in which split, under which transform.

A partition is a function of the labels that returns columns of equal length: ``sample, client, split, transform,
true_cluster``. It stores row numbers and names, never data. Its draws come from the generator it is given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..errors import UserError
from .transforms import ROTATIONS

Table = dict[str, NDArray[Any]]


def iid(
    y: NDArray[Any],
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    test: Annotated[float, Field(ge=0, lt=1, description="share of each client's samples kept for testing")] = 0.2,
    validation: Annotated[float, Field(ge=0, lt=1, description="share kept for validation")] = 0.0,
) -> Table:
    """Shuffle all samples and deal them out evenly; no planted groups."""
    table = rotated(y, generator, clients=clients, angles=[0], test=test, validation=validation)
    table["true_cluster"][:] = -1
    return table


def rotated(
    y: NDArray[Any],
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    angles: Annotated[
        list[Literal[0, 90, 180, 270]],
        Field(min_length=1, description="degrees counter-clockwise; one group each"),
    ] = [0, 90, 180, 270],  # noqa: B006 (read from the source as a literal, never changed)
    test: Annotated[float, Field(ge=0, lt=1, description="share of each client's samples kept for testing")] = 0.2,
    validation: Annotated[float, Field(ge=0, lt=1, description="share kept for validation")] = 0.0,
) -> Table:
    """Deal all samples out evenly, each to one client; the images of group g are turned by ``angles[g]``.

    Client ids run in blocks by group: the first ``clients / groups`` ids are group 0.
    """
    if test + validation >= 1:
        raise UserError(f"test + validation = {test + validation:g}; it must stay below 1 to leave training samples")
    if clients > len(y):
        raise UserError(f"clients: {clients} clients for {len(y)} samples; at most {len(y)} are possible")
    parts = np.array_split(generator.permutation(len(y)), clients)
    groups = np.arange(clients) * len(angles) // clients
    names = np.array([ROTATIONS[a] for a in angles])
    client = np.repeat(np.arange(clients), [len(p) for p in parts])
    return {
        "sample": np.concatenate(parts),
        "client": client,
        "split": np.concatenate([_split(len(p), test, validation) for p in parts]),
        "transform": names[groups[client]],
        "true_cluster": groups[client],
    }


def _split(n: int, test: float, validation: float) -> NDArray[Any]:
    """Return n names of splits. Samples come shuffled, so the first ones serve for testing."""
    tests, validations = round(n * test), round(n * validation)
    return np.repeat(["test", "validation", "train"], [tests, validations, max(n - tests - validations, 0)])
