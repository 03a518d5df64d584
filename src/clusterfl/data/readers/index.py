"""Photographs by author: an index that says who took which picture of what, and folders of images.

Source of the indices: Hsu, Qi and Brown, ECCV 2020, arXiv 2003.08082 (google-research/federated_vision_datasets).
Their columns are ``user_id, image_id, class``; the test index has no users.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError
from ...storage.store import replacing
from ..catalogue import rows
from ..packed import DAMAGED, content
from ..samples import Samples
from .picture import decoded

MOST = 1 << 28  # bytes of an index: the largest has some million
IMAGES = (".jpg", ".jpeg", ".png")


def landmarks(
    folder: Path,
    *,
    size: Annotated[int, Field(gt=0, description="height and width of the images in pixels")] = 224,
) -> Samples:
    """Return Landmarks-User-160k: uint8 ``[N, 3, size, size]``, training images then test images; authors are owners.

    An image is scaled so that its shorter side has `size` pixels (bilinear), then cropped to the central square. The
    array is in a file of the folder and is read from there as needed.
    """
    return _indexed(folder, "landmarks", size)


def inaturalist(
    folder: Path,
    *,
    size: Annotated[int, Field(gt=0, description="height and width of the images in pixels")] = 224,
) -> Samples:
    """Return iNaturalist-User-120k in the form of `landmarks`."""
    return _indexed(folder, "inaturalist", size)


def _indexed(folder: Path, name: str, size: int) -> Samples:
    path = next(iter(sorted(folder.glob("*-user-*.zip"))), folder / f"{name}.zip")
    train, test = list(_table(path, "federated_train")), list(_table(path, "test"))
    entries = train + test
    users = {user: number for number, user in enumerate(sorted({entry["user_id"] for entry in train}))}
    owner = [users[entry["user_id"]] for entry in train] + [-1] * len(test)
    return Samples(
        _pixels([entry["image_id"] for entry in entries], folder, name, size),
        np.array([int(entry["class"]) for entry in entries], dtype=np.int64),
        np.arange(len(entries)) >= len(train),
        np.array(owner, dtype=np.int64),
    )


def _table(path: Path, prefix: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one index of the archive, checked."""
    needed = ["image_id", "class"] if prefix == "test" else ["user_id", "image_id", "class"]
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if Path(m).name.startswith(prefix) and m.endswith(".csv")]
            if len(members) != 1:
                raise UserError(f"{path} holds {len(members)} files {prefix}*.csv instead of one; download it again")
            with archive.open(members[0]) as stream:
                text = content(stream, MOST, f"{path}: {members[0]}").decode()
            reader = csv.DictReader(io.StringIO(text, newline=""))
            missing = [column for column in needed if column not in (reader.fieldnames or [])]
            if missing:
                raise UserError(f"{path}: {members[0]} has no column '{missing[0]}'; download it again")
            for number, row in enumerate(reader, 2):
                if not (row["class"] or "").isdecimal() or None in (row[column] for column in needed):
                    raise UserError(
                        f"{path}: {members[0]}, line {number} has class '{row['class']}' instead of 0, 1, ...; "
                        "download it again"
                    )
                yield row
    except (*DAMAGED, csv.Error) as error:
        raise UserError(f"{path} can't be read ({error}); delete it, then download it again") from error


def _pixels(names: list[str], folder: Path, dataset: str, size: int) -> NDArray[np.uint8]:
    """Decode the images one by one into a file, and return that file's array ``[N, 3, size, size]``."""
    there = {
        Path(file).stem: Path(place) / file
        for place, _, files in os.walk(folder / "images", followlinks=True)
        for file in files
        if Path(file).suffix.lower() in IMAGES
    }
    missing = [name for name in names if name not in there]
    if missing:
        raise UserError(
            f"{folder / 'images'} lacks {len(missing)} of {len(names)} images, first {missing[0]}.jpg; "
            f"{rows()[dataset].get}"
        )
    path = folder / f"images-{size}.npy"
    with replacing(path) as temporary:
        array = open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(names), 3, size, size))
        with open(temporary, "r+b") as stream:  # so a full disk is an error now; later it would kill the process
            os.posix_fallocate(stream.fileno(), 0, temporary.stat().st_size)
        for row, name in zip(array, names, strict=True):
            row[:] = decoded(there[name], size, "rgb")
        array.flush()
    return np.load(path, mmap_mode="r")
