"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the publisher's archive, its files, or lossless mosaics of them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ..packed import DAMAGED, arrays, content
from ..samples import Samples
from .pickled import AGAIN, unpickled

MOST = 1 << 28  # bytes of a batch: the largest has 155 million
TILES, ROWS = (100, 50), (32, 32, 3)  # a mosaic: 100 rows of 50 images, each of 32 x 32 pixels in 3 colours


def cifar10(folder: Path) -> Samples:
    """Return CIFAR-10: uint8 ``[60000, 3, 32, 32]``, five training batches then the test batch, in their order."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches = _batches(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", names, ("labels",))
    x, y = _joined(batches, "labels")
    return Samples(x, y, _last(len(y), len(batches[-1]["labels"])))


def cifar100(folder: Path) -> Samples:
    """Return CIFAR-100: uint8 ``[60000, 3, 32, 32]``, train then test; the group is the coarse label."""
    files = [folder / "cifar-100-python.tar.gz", folder / "cifar-100-python" / "train"]
    if (folder / "cifar-100").is_dir() and not any(file.exists() for file in files):
        batches = [_mosaics(folder / "cifar-100", part) for part in ("train", "test")]
    else:
        batches = _batches(
            folder, files[0].name, "cifar-100-python", ["train", "test"], ("fine_labels", "coarse_labels")
        )
    x, y = _joined(batches, "fine_labels")
    group = np.concatenate([np.asarray(batch["coarse_labels"], np.int64) for batch in batches])
    return Samples(x, y, _last(len(y), len(batches[-1]["fine_labels"])), group=group)


def _last(count: int, test: int) -> NDArray[np.bool_]:
    return np.arange(count) >= count - test


def _joined(batches: list[dict[str, Any]], labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return x, np.concatenate([np.asarray(batch[labels], np.int64) for batch in batches])


def _batches(folder: Path, archive: str, inner: str, names: list[str], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read pickled batches from an archive, without unpacking it, or from a folder."""
    packed = folder / archive
    if not packed.exists():
        return [batch((folder / inner / name).read_bytes(), str(folder / inner / name), labels) for name in names]
    found = {}
    try:
        with tarfile.open(packed) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream and member.name in [f"{inner}/{name}" for name in names]:
                    source = f"{packed}: {member.name}"
                    found[Path(member.name).name] = batch(content(stream, MOST, source), source, labels)
    except DAMAGED as error:
        raise UserError(f"{packed} can't be read ({error}); {AGAIN}") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"{packed} has no {inner}/{missing[0]}; {AGAIN}")
    return [found[name] for name in names]


def batch(data: bytes, source: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """Read a pickled batch: ``data``, uint8 ``[n, 3072]``, and n labels of each name, int64.

    Raises
    ------
    UserError
        If the pickle is damaged, refers to anything but arrays, or lacks images or their labels.
    """
    found = unpickled(data, source)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        raise UserError(f"{source} holds no images of 3,072 bytes under 'data'; {AGAIN}")
    return {"data": pixels} | {name: _labels(found.get(name), len(pixels), name, source) for name in labels}


def _labels(values: Any, count: int, name: str, source: str) -> NDArray[np.int64]:
    whole = isinstance(values, list) and all(type(value) is int and 0 <= value < 100 for value in values)
    if not whole or len(values) != count:
        raise UserError(f"{source} has no class from 0 to 99 for each of its {count} images under '{name}'; {AGAIN}")
    return np.array(values, np.int64)


def _mosaics(folder: Path, part: str) -> dict[str, Any]:
    """Read one part of CIFAR-100 from its mosaics and labels."""
    paths = sorted(folder.glob(f"{part}-*.jxl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    place = folder / f"{part}-labels.npz"
    try:
        labels = arrays(place)
        found = {"fine_labels": labels["fine"], "coarse_labels": labels["coarse"]}
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"{place} can't be read ({error}); {AGAIN}") from error
    return {"data": np.concatenate([tiles(_picture(path)) for path in paths])} | found


def tiles(mosaic: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut a mosaic ``[3200, 1600, 3]`` into its images, row by row: ``[5000, 3072]`` as CIFAR has them."""
    (down, across), (height, width, colours) = TILES, ROWS
    cut = mosaic.reshape(down, height, across, width, colours).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut).reshape(down * across, -1)


def _picture(path: Path) -> NDArray[np.uint8]:
    """Decode a JPEG XL file to uint8 ``[height, width, 3]`` with pillow-jxl-plugin or the program djxl."""
    from PIL import Image

    try:
        importlib.import_module("pillow_jxl")  # registers the format with Pillow
    except ModuleNotFoundError as error:
        if not shutil.which("djxl"):
            raise UserError(
                f"{path} is a JPEG XL file, which neither pillow-jxl-plugin nor djxl is there to read; run pip install "
                "'clusterfl[jxl]', or install libjxl's tools"
            ) from error
        with tempfile.TemporaryDirectory() as temporary:
            decoded = Path(temporary) / "mosaic.png"
            subprocess.run(["djxl", str(path), str(decoded)], check=True, capture_output=True)
            with Image.open(decoded) as picture:
                return np.asarray(picture.convert("RGB"))
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))
