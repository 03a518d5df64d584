"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the publisher's archive, its files, or lossless mosaics of them."""

from __future__ import annotations

import importlib
import io
import pickle
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ..samples import Samples

AGAIN = "delete it, then download it again"
# What pickles of arrays refer to: the constructors of arrays, and how Python 3 writes byte strings for Python 2.
ALLOWED = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
TILES, ROWS = (100, 50), (32, 32, 3)  # a mosaic: 100 rows of 50 images, each of 32 x 32 pixels in 3 colours


def cifar10(folder: Path) -> Samples:
    """Return CIFAR-10: uint8 ``[60000, 3, 32, 32]``, five training batches then the test batch, in their order."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches = _batches(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", names)
    x, y = _joined(batches, "labels")
    return Samples(x, y, _last(len(y), len(batches[-1]["labels"])))


def cifar100(folder: Path) -> Samples:
    """Return CIFAR-100: uint8 ``[60000, 3, 32, 32]``, train then test; the group is the coarse label."""
    files = [folder / "cifar-100-python.tar.gz", folder / "cifar-100-python" / "train"]
    if (folder / "cifar-100").is_dir() and not any(file.exists() for file in files):
        batches = [_mosaics(folder / "cifar-100", part) for part in ("train", "test")]
    else:
        batches = _batches(folder, files[0].name, "cifar-100-python", ["train", "test"])
    x, y = _joined(batches, "fine_labels")
    group = np.concatenate([np.asarray(batch["coarse_labels"], np.int64) for batch in batches])
    return Samples(x, y, _last(len(y), len(batches[-1]["fine_labels"])), group=group)


def _last(count: int, test: int) -> NDArray[np.bool_]:
    return np.arange(count) >= count - test


def _joined(batches: list[dict[str, Any]], labels: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return x, np.concatenate([np.asarray(batch[labels], np.int64) for batch in batches])


def _batches(folder: Path, archive: str, inner: str, names: list[str]) -> list[dict[str, Any]]:
    """Read pickled batches out of an archive, which stays packed, or from a folder."""
    packed = folder / archive
    if not packed.exists():
        return [unpickled((folder / inner / name).read_bytes(), str(folder / inner / name)) for name in names]
    found = {}
    try:
        with tarfile.open(packed) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream and member.name in [f"{inner}/{name}" for name in names]:
                    found[Path(member.name).name] = unpickled(stream.read(), f"{packed}: {member.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{packed} can't be read ({error}); {AGAIN}") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"{packed} has no {inner}/{missing[0]}; {AGAIN}")
    return [found[name] for name in names]


class _Arrays(pickle.Unpickler):
    """An unpickler that builds arrays and plain values: a pickle may otherwise run any program."""

    def __init__(self, data: bytes, source: str):
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # as it was called before numpy 2
        if (module, name) not in ALLOWED:
            raise UserError(
                f"{self.source} asks for {module}.{name}, which no image file needs: it isn't the publisher's; {AGAIN}"
            )
        return super().find_class(module, name)


def unpickled(data: bytes, source: str) -> dict[str, Any]:
    """Read a pickled batch.

    Raises
    ------
    UserError
        If the pickle is damaged, refers to anything but arrays, or holds no images.
    """
    try:
        batch = _Arrays(data, source).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{source} can't be read ({error}); {AGAIN}") from error
    pixels = batch.get("data") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        raise UserError(f"{source} holds no images of 3,072 bytes under 'data'; {AGAIN}")
    return batch


def _mosaics(folder: Path, part: str) -> dict[str, Any]:
    """Read one part of CIFAR-100 from its mosaics and labels."""
    paths = sorted(folder.glob(f"{part}-*.jxl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    with np.load(folder / f"{part}-labels.npz") as labels:
        data = np.concatenate([tiles(_picture(path)) for path in paths])
        return {"data": data, "fine_labels": labels["fine"], "coarse_labels": labels["coarse"]}


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
