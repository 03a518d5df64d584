"""Image datasets through torchvision's readers.

Files are looked for under the folder given by ``CLUSTERFL_MIRROR`` (laid out as torchvision does), then under the
dataset's own folder; what is in neither is downloaded.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError


def torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators don't fit the installed torch.

    A torchvision built for CUDA beside a CPU build of torch fails at import, because it registers fake kernels for
    operators that were never defined. Defining the two names lets datasets, transforms and models work; the
    operators themselves (``torchvision.ops``) stay unusable. A sound installation imports at the first try.
    """
    import torch

    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    )
    _KEPT.append(library)  # a library's definitions vanish with it
    return importlib.import_module("torchvision")


_KEPT: list[Any] = []


def _idx(name: str, folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return train part then test part of a dataset in MNIST's format: uint8 [70000, 1, 28, 28], labels."""
    torchvision()
    reader = getattr(importlib.import_module("torchvision.datasets"), name)
    mirror = os.environ.get("CLUSTERFL_MIRROR")
    root = Path(mirror) if mirror and (Path(mirror) / name).is_dir() else folder
    try:
        parts = [reader(_unpacked(root, folder, name), train=train, download=root == folder) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{name} can't be read or downloaded ({error}); without internet, set CLUSTERFL_MIRROR to a folder that "
            f"holds {name}/raw/*.gz"
        ) from error
    images = np.concatenate([part.data.numpy() for part in parts])[:, None]
    return images, np.concatenate([part.targets.numpy() for part in parts])


def _unpacked(root: Path, folder: Path, name: str) -> Path:
    """Unpack a mirror's files into `folder`: torchvision's readers want them uncompressed."""
    if root == folder:
        return folder
    import gzip
    import shutil

    target = folder / name / "raw"
    target.mkdir(parents=True, exist_ok=True)
    for packed in sorted((root / name / "raw").glob("*.gz")):
        with gzip.open(packed) as source, open(target / packed.stem, "wb") as sink:
            shutil.copyfileobj(source, sink)
    return folder


def mnist(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return MNIST, 60,000 training images then 10,000 test images (LeCun, Cortes and Burges 1998)."""
    return _idx("MNIST", folder)


def fashionmnist(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return Fashion-MNIST, 60,000 then 10,000 images (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747)."""
    return _idx("FashionMNIST", folder)
