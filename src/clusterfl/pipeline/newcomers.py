"""Clients that are added after a study has ended, from a user's file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.federation import Dataset
from ..config.loading import dataset_block
from ..data import DATASETS
from ..data.encoding import Encoding, listed
from ..data.federation import Federation
from ..data.inputs import Inputs
from ..data.load import clients
from ..data.readers import own, sheet
from ..data.samples import Samples
from ..errors import UserError, choices
from ..registry import find_file
from .job import missing

READERS = ("table", "images", "arrays")
NONE = -1  # the number of a category that the study doesn't have
TARGETS = {False: "classes", True: "real targets"}


def read(
    data: str,
    reader: str | None,
    options: Mapping[str, Any],
    block: Dataset,
    study: Samples,
    inputs: Inputs,
    encoding: Encoding,
) -> tuple[Federation, NDArray[Any]]:
    """Return the clients of a file or folder, with all samples as training data, and their names.

    Parameters
    ----------
    data
        The file or folder.
    reader, options
        One of `READERS` and its options; what isn't given follows from the file's type and `block`.
    block
        The study's own dataset. New samples should be like its members' samples: the partition's transforms aren't
        applied to them.
    study
        The study's samples, with which the new ones are compared.
    inputs
        How samples become a network's inputs. If the inputs are also the targets, labels are ignored.
    encoding
        The study's encoding of columns.

    Raises
    ------
    UserError
        If the data can't be read, or differ from the study's in type or shape.
    """
    reader = reader or _reader(data, block)
    if reader not in READERS:
        raise UserError(f"--dataset: '{reader}'; {choices(READERS, reader)}")
    place = _place(reader, data, options, block)
    if twice := sorted(place.keys() & options.keys()):
        raise UserError(f"--option {twice[0]}: --data '{data}' already gives it; omit one of them")
    task = {"task": "regression" if study.y.dtype.kind == "f" else "classification"}
    given = {**task, **_inherited(reader, block, study, options), **options, **place}
    new: Samples = DATASETS[reader](Path(), True, **dataset_block(reader, given).options())
    if new.owner is None:
        way = {"table": "give --option client=COLUMN", "arrays": "put an array 'client' into it"}
        way["images"] = "give --option folders=client/label, or a table"
        raise UserError(f"{data}: the samples' clients aren't given; {way[reader]}")
    if inputs.target == "label":
        _check_labels(data, new, study)
        new = _with_classes(data, new, study)
    else:
        new = replace(new, y=np.zeros(len(new.x), dtype=study.y.dtype))
    _check_samples(data, new, study)
    new = _with_categories(data, new, study, encoding)
    rows = len(new.x)
    common = {"split": "train", "role": "newcomer", "transform": "none", "true_cluster": -1}
    table = {"sample": np.arange(rows), "client": np.asarray(new.owner)}
    table |= {name: np.full(rows, value) for name, value in common.items()}
    return clients(new, table, inputs, "newcomer", f"{data}: ", encoding), np.asarray(new.names)


def _reader(data: str, block: Dataset) -> str:
    place = find_file(data)
    if place.is_dir():
        return "images"
    if place.suffix == ".npz":
        return "arrays"
    return "images" if block.part == "images" else "table"


def _place(reader: str, data: str, options: Mapping[str, Any], block: Dataset) -> dict[str, Any]:
    """Return the reader's options for the location of the data."""
    folder = find_file(data)
    if reader != "images" or not folder.is_dir():
        return {"path": data}
    by_folder = block.part == "images" and block.options().get("folders") is not None
    if "path" in options or "folders" in options or by_folder:
        return {"images": data}
    tables = sorted(str(p) for p in folder.iterdir() if p.suffix in (".csv", *sheet.PARQUET))
    if len(tables) != 1:
        raise UserError(
            f"--data: the folder '{data}' holds {len(tables)} tables (.csv, {', '.join(sheet.PARQUET)}); name the one "
            "that lists the images: --option path=FILE"
        )
    return {"images": data, "path": tables[0]}


def _inherited(reader: str, block: Dataset, study: Samples, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the study's own dataset that apply to new data as well.

    They name the columns of features, so that the order of a new table's columns and additional ones don't matter, and
    the columns of categories, including a label of texts, since a table of few rows needn't show that they are.
    """
    if block.part != reader:
        return {}
    given = block.options()
    if reader == "table" and given["features"] is None and "features" not in options:
        if study.columns is not None:
            given["features"] = study.columns.tolist()
        elif missing([given["path"]]):
            raise UserError(
                f"'{given['path']}', which has the columns of the study's features, no longer exists; put it back, or "
                "name them in its order: --option 'features=[age, weight]'"
            )
        else:
            given["features"] = own.features(given["path"], *(given[key] for key in own.Roles._fields))
    if reader == "table":
        coded = [] if study.sizes is None or study.columns is None else study.columns[study.sizes > 0].tolist()
        given["categories"] = [*coded, *([given["label"]] if study.classes is not None else [])] or None
    if reader == "images" and "path" in options:
        given["folders"] = None
    return {name: value for name, value in given.items() if name not in ("path", "test", "group")}


def _check_labels(data: str, new: Samples, study: Samples) -> None:
    """Raise an error for clients without labels, or with labels of another type."""
    found, needed = (samples.y.dtype.kind == "f" for samples in (new, study))
    if not found and (new.y == own.UNKNOWN).all():
        raise UserError(
            f"{data} has no labels, but losses are needed to choose a client's model; add them, or name their column: "
            "--option label=COLUMN"
        )
    if found != needed:
        raise UserError(f"{data}: labels are {TARGETS[found]}, in the study {TARGETS[needed]}; omit the option task")


def _with_classes(data: str, new: Samples, study: Samples) -> Samples:
    """Return samples with the study's class numbers; classes must be texts in both or in neither."""
    if new.classes is None and study.classes is None:
        return new
    if new.classes is None or study.classes is None:
        raise UserError(
            f"{data}: labels are {'numbers' if new.classes is None else 'texts'}, in the study "
            f"{'texts' if new.classes is None else 'numbers'}; write them as in the study"
        )
    strange = np.setdiff1d(new.classes, study.classes)
    if len(strange):
        raise UserError(
            f"{data} has the class '{strange[0]}', which the study doesn't have; {choices(study.classes)}; leave its "
            "samples out"
        )
    return replace(new, y=np.searchsorted(study.classes, new.classes)[new.y], classes=study.classes)


def _with_categories(data: str, new: Samples, study: Samples, encoding: Encoding) -> Samples:
    """Return samples with the study's category numbers; print the categories that no training sample has."""
    columns = new.columns if study.columns is None else study.columns
    if columns is None:
        return new
    x = new.x.copy()
    for j, column in enumerate(columns):
        there, here = _names(study, j), _names(new, j)
        if (there is None) != (here is None):
            raise UserError(
                f"{data}: '{column}' has {_held(here)}, in the study it has {_held(there)}; write columns as in the "
                "study"
            )
        if there is None or here is None:
            continue
        place = np.searchsorted(there, here).clip(0, len(there) - 1)
        known = (there[place] == here) & np.isin(place, encoding.known(j))
        codes = np.where(known, place, NONE)
        x[:, j] = codes[new.x[:, j].astype(np.int64)]
        lacking = int((x[:, j] == NONE).sum())
        if lacking:
            print(
                f"{data}: {lacking} samples have categories of '{column}' that no training sample of the study has, "
                f"and are encoded as zeros: {listed(here[codes == NONE])}",
                file=sys.stderr,
            )
    return replace(new, x=x)


def _names(samples: Samples, column: int) -> NDArray[np.str_] | None:
    """Return the names of a column's categories, or None for a column of numbers."""
    coded = samples.sizes is not None and samples.sizes[column] > 0
    return samples.categories_of(column) if coded else None


def _held(names: NDArray[np.str_] | None) -> str:
    return "numbers" if names is None else f"texts such as '{names[0]}'"


def _check_samples(data: str, new: Samples, study: Samples) -> None:
    """Raise an error for samples that aren't of the study's type and shape."""
    kind = _kind(study.x)
    if _kind(new.x) != kind:
        raise UserError(f"{data}: samples are {_kind(new.x)}, in the study {kind}; convert them, or name a --dataset")
    if new.x.shape[1:] != study.x.shape[1:]:
        raise UserError(
            f"{data}: samples have the shape {new.x.shape[1:]}, in the study {study.x.shape[1:]}; convert them to "
            "that shape (images: --option size=PIXELS, --option colour=grey or rgb)"
        )
    if kind != KINDS["i"]:
        return
    strange = new.x[(new.x < study.x.min()) | (new.x > study.x.max())]
    if len(strange):
        raise UserError(
            f"{data} has the token {strange[0]}, the study has {study.x.min()} to {study.x.max()}; encode the texts "
            "with its vocabulary"
        )


KINDS = {"b": "bytes (images)", "i": "whole numbers (tokens)", "f": "real numbers (features)"}


def _kind(x: NDArray[Any]) -> str:
    return KINDS["b" if x.dtype == np.uint8 else "i" if x.dtype.kind in "iu" else "f"]


def check_classes(
    members: Federation, new: Federation, names: NDArray[Any], classes: NDArray[Any] | None = None
) -> None:
    """Raise an error for classes that no member trained with, which no model can predict.

    Parameters
    ----------
    members, new
        The study's members, and the new clients, which have training data only.
    names : [m]
        The new clients' names.
    classes
        The classes' names, if they have any.

    Raises
    ------
    UserError
        If a new client has such a class.
    """
    data = new.splits["train"]
    strange = np.flatnonzero(~np.isin(data.y, members.splits["train"].y))
    if len(strange):
        client = np.searchsorted(data.offsets, strange[0], side="right") - 1
        found = data.y[strange[0]] if classes is None else classes[data.y[strange[0]]]
        raise UserError(
            f"client {names[client]} has samples of class {found}, which no member of the study has in "
            f"training ({len(strange)} samples in all are of such classes); leave them out"
        )
