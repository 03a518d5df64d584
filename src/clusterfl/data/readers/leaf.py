"""Data by natural client in LEAF's format (Caldas et al. 2018, arXiv 1812.01097), which FedProx uses too.

The folders ``train`` and ``test`` hold JSON files, each with ``users``, ``num_samples`` and, by user, ``user_data``
with the lists ``x`` and ``y``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...storage.store import first_line
from ..samples import Samples
from .text import WINDOW, numbered

Pair = tuple[NDArray[Any], NDArray[np.int64]]
Convert = Callable[[list[Any], list[Any]], Pair]


def femnist(folder: Path) -> Samples:
    """Return handwritten characters by writer: float32 ``[N, 1, 28, 28]`` with white paper = 1, classes 0 to 61."""
    return _samples(folder, _images)


def nist_letters(folder: Path) -> Samples:
    """Return FedProx's letters a to j for 200 users: float32 ``[N, 1, 28, 28]`` with white paper = 1, classes 0 to 9.

    Source: Li et al. 2020, arXiv 1812.06127; the users of a letter share images (FedProx issue 13).
    """
    return _samples(folder, _images)


def shakespeare(folder: Path) -> Samples:
    """Return windows of 80 characters by speaking role, int16 ``[N, 80]``, and the number of the next character."""
    return _samples(folder, _windows)


def _images(x: list[Any], y: list[Any]) -> Pair:
    labels = np.asarray(y, dtype=np.float64)
    if (labels != np.rint(labels)).any():
        raise ValueError("a class isn't a whole number")
    return np.asarray(x, dtype=np.float32).reshape(len(y), 1, 28, 28), labels.astype(np.int64)


def _windows(x: list[Any], y: list[Any]) -> Pair:
    if any(len(text) != WINDOW for text in x) or any(len(text) != 1 for text in y):
        raise ValueError(f"texts of {WINDOW} characters and a next one are expected")
    return numbered("".join(x)).reshape(-1, WINDOW), numbered("".join(y)).astype(np.int64)


def _samples(folder: Path, convert: Convert) -> Samples:
    """Return the training then the test part, each by user; an owner is a user's position among the sorted names."""
    parts = [_part(folder / name, convert) for name in ("train", "test")]
    users = sorted({user for part in parts for user in part})
    pieces = [
        (*pair, position, bool(test))
        for test, part in enumerate(parts)
        for position, user in enumerate(users)
        for pair in part.get(user, [])
    ]
    x, y, owner, test = zip(*pieces, strict=True)
    sizes = [len(labels) for labels in y]
    return Samples(np.concatenate(x), np.concatenate(y), np.repeat(test, sizes), np.repeat(owner, sizes))


def _part(folder: Path, convert: Convert) -> dict[str, list[Pair]]:
    """Return the samples of each user in the files of a folder, in the order of the files' names."""
    found: dict[str, list[Pair]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
            users, sizes, data = content["users"], content["num_samples"], content["user_data"]
            for user, size in zip(users, sizes, strict=True):
                x, y = data[user]["x"], data[user]["y"]
                if not len(x) == len(y) == size:
                    raise ValueError(f"user {user} has {len(x)} samples and {len(y)} labels, where {size} are stated")
                found.setdefault(user, []).append(convert(x, y))
        except KeyError as error:
            raise UserError(f"{path} isn't in LEAF's format: it has no {error}; make or download it again") from error
        except (ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"{path} isn't in LEAF's format ({first_line(error)}); make or download it again"
            ) from error
    if not found:
        raise UserError(f"{folder} holds no JSON files with users; make or download them again")
    return found
