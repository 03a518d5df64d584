"""Image datasets in MNIST's file format: MNIST, Fashion-MNIST and EMNIST, through torchvision's reader."""

from __future__ import annotations

import gzip
import importlib
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ..packed import DAMAGED, copied, longer
from ..samples import Samples

MOST = 1 << 30  # bytes of an unpacked file: the largest has 548 million


def torchvision() -> ModuleType:
    """Import torchvision, even if its compiled operators don't fit the installed torch.

    A torchvision built for CUDA fails at import with a CPU build of torch, because it registers fake kernels for
    operators that were never defined. Defining the two names lets datasets, transforms and models work; the operators
    themselves (``torchvision.ops``) stay unusable. A sound installation imports at the first try.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    from torch import library as operators

    library = operators.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    )
    _KEPT.append(library)  # a library's definitions vanish with it
    return importlib.import_module("torchvision")


_KEPT: list[Any] = []


def mnist(folder: Path) -> Samples:
    """Return MNIST: uint8 ``[70000, 1, 28, 28]``, 60,000 training images then 10,000 test images.

    Source: LeCun, Bottou, Bengio and Haffner 1998.
    """
    return _parts(folder / "MNIST" / "raw", ("train", "t10k"))


def fashionmnist(folder: Path) -> Samples:
    """Return Fashion-MNIST, in the form of MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747)."""
    return _parts(folder / "FashionMNIST" / "raw", ("train", "t10k"))


def emnist_letters(folder: Path) -> Samples:
    """Return EMNIST's letters: uint8 ``[145600, 1, 28, 28]``, a = 0 to z = 25 (Cohen et al. 2017, arXiv 1702.05373)."""
    samples = _emnist(folder, "letters")
    return Samples(samples.x, samples.y - 1, samples.test)  # the files count from 1


def emnist_digits(folder: Path) -> Samples:
    """Return EMNIST's digits: uint8 ``[280000, 1, 28, 28]`` (Cohen et al. 2017)."""
    return _emnist(folder, "digits")


def emnist_balanced(folder: Path) -> Samples:
    """Return EMNIST's balanced set of 47 classes: uint8 ``[131600, 1, 28, 28]`` (Cohen et al. 2017)."""
    return _emnist(folder, "balanced")


def emnist_byclass(folder: Path) -> Samples:
    """Return EMNIST's 62 classes, digits, upper case, lower case: uint8 ``[814255, 1, 28, 28]`` (Cohen et al. 2017)."""
    return _emnist(folder, "byclass")


def nist_letters_emnist(folder: Path) -> Samples:
    """Return the letters a to j of EMNIST's 62 classes as FedProx's archive has them: black on white, a = 0.

    The archive has NIST images of the same forms; which ones isn't known.
    """
    samples = _emnist(folder, "byclass")
    first = 36  # after ten digits and 26 capitals
    chosen = (samples.y >= first) & (samples.y < first + 10)
    assert samples.test is not None
    return Samples(255 - samples.x[chosen], samples.y[chosen] - first, samples.test[chosen])


def _emnist(folder: Path, name: str) -> Samples:
    """Unpack the four files of one set from the publisher's archive, read them, and turn the images upright."""
    archive = folder / "gzip.zip"
    with tempfile.TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(archive) as packed:
                for member in packed.namelist():
                    # Only the last part of a name is used, so no name can lead out of the temporary folder.
                    file = Path(member).name
                    if file.startswith(f"emnist-{name}-") and file.endswith("-ubyte.gz"):
                        refused = UserError(
                            f"{longer(f'{archive}: {member}', MOST)}; delete it, then download it again"
                        )
                        with (
                            packed.open(member) as inner,
                            gzip.open(inner) as stream,
                            open(Path(temporary) / file.removesuffix(".gz"), "wb") as sink,
                        ):
                            copied(stream, sink, MOST, refused)
        except DAMAGED as error:
            raise UserError(f"{archive} is damaged ({error}); delete it, then download it again") from error
        samples = _parts(Path(temporary), (f"emnist-{name}-train", f"emnist-{name}-test"), archive)
    # An image is stored column by column.
    return Samples(np.ascontiguousarray(samples.x.swapaxes(-2, -1)), samples.y, samples.test)


def _parts(folder: Path, names: tuple[str, str], source: Path | None = None) -> Samples:
    """Return the images and labels of a training and a test part."""
    images = [_idx(folder / f"{name}-images-idx3-ubyte", 3, source) for name in names]
    labels = [_idx(folder / f"{name}-labels-idx1-ubyte", 1, source) for name in names]
    for name, part, classes in zip(names, images, labels, strict=True):
        if len(part) != len(classes):
            raise UserError(
                f"{source or folder}: {name} has {len(part)} images and {len(classes)} labels; delete the files, then "
                "download them again"
            )
    test = np.repeat([False, True], [len(part) for part in labels])
    return Samples(np.concatenate(images)[:, None], np.concatenate(labels).astype(np.int64), test)


def _idx(path: Path, dimensions: int, source: Path | None) -> NDArray[np.uint8]:
    """Read one file in MNIST's format.

    torchvision's reader doesn't check the file: a wrong header or length raises whatever fails first.
    """
    torchvision()
    read = importlib.import_module("torchvision.datasets.mnist").read_sn3_pascalvincent_tensor
    try:
        array: NDArray[np.uint8] = read(str(path)).numpy()
    except FileNotFoundError as error:
        raise UserError(f"{source or path.parent} has no {path.name}; download it again") from error
    except (AssertionError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            f"{source or path.parent}: {path.name} isn't whole or not in MNIST's format; delete it, then download it "
            "again"
        ) from error
    if array.ndim != dimensions or array.dtype != np.uint8:
        raise UserError(
            f"{source or path.parent}: {path.name} holds {array.dtype} {list(array.shape)}, where {dimensions} "
            "dimensions of uint8 are expected; delete it, then download it again"
        )
    return array
