"""The user's own data: a table, a folder of images, or arrays. A user's own function needs no reader.

Clients and groups may have any names; they are numbered in the sorted order of their names, and reports show these
names. Labels are classes 0, 1, 2, ... or texts, which are numbered in their sorted order, or, with
``task: regression``, real numbers.

With ``new`` a reader reads new clients for a finished study (`clusterfl.assign`): one client is enough, and if there
are no labels, all are `UNKNOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError, choices
from ...registry import find_file
from ..names import Named
from ..samples import Samples
from . import sheet
from .picture import decoded
from .sheet import Column

UNKNOWN = -1  # the label of a new client's unlabelled sample
INDEX = re.compile(r"Unnamed: \d+")  # pandas' name of a column without a name
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


class Roles(NamedTuple):
    """The names of the columns that aren't features."""

    label: str
    client: str | None
    test: str | None
    group: str | None


def table(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[
        str, Field(description="CSV or Parquet file, one sample per row", json_schema_extra={"file": True})
    ],
    label: Annotated[str, Field(description="column with the class, 0, 1, ... or a text, or with the real target")],
    client: Annotated[
        str | None,
        Field(description="column with the client, a number or a name; null: none, a partition deals the samples out"),
    ] = None,
    features: Annotated[
        list[str] | None, Field(description="columns with the sample's numbers and categories; null: all others")
    ] = None,
    categories: Annotated[
        list[str] | None,
        Field(
            description="columns whose values are categories, not amounts, although they look like numbers; columns "
            "of texts needn't be listed"
        ),
        "later",
    ] = None,
    test: Annotated[
        str | None, Field(description="column that is true for test samples; null: none are marked")
    ] = None,
    group: Annotated[
        str | None, Field(description="column with the client's true cluster, a number or a name; null: unknown")
    ] = None,
    task: Annotated[Literal["classification", "regression"], Field(description="what the label is")] = "classification",
) -> Samples:
    """Return the samples of a table, features as float32 ``[N, columns]``: numbers, and the codes of categories.

    Raises
    ------
    UserError
        If the file isn't readable, a column is missing, a value is missing or not allowed, a feature is the label, or
        there is only one client.
    """
    kinds = categories or []
    frame = sheet.frame(path, [client, group, *kinds], label if task == "classification" else None)
    roles = Roles(label, client, test, group)
    own = [name for name in roles if name]
    names = _others(frame.columns, own) if features is None else features
    index = [name for name in names if features is None and INDEX.fullmatch(name)]
    if index:
        raise UserError(
            f"{path}: there is a column '{index[0]}', which pandas writes for the numbers of the rows and which would "
            "be a feature; write the file again with to_csv(..., index=False), give the column a name, or name the "
            "columns to use with `features`"
        )
    sheet.need(path, frame, [*own, *names], label if new else None)
    if not names:
        raise UserError(f"{path}: no feature columns beside {', '.join(own)}; add some to the file")
    if label in names:
        raise UserError(f"features: '{label}' is the label's column; take it out, or name another column as label")
    if label in kinds and task == "regression":
        raise UserError(
            f"categories: '{label}' is the label, which task: regression makes a real target; take it out, or leave "
            "task away"
        )
    for name in kinds:
        if name not in (label, *names):
            raise UserError(
                f"categories: '{name}' is neither a feature nor the label; {choices([label, *names], name)}"
            )
    return _encoded(
        _samples(path, frame, np.empty((len(frame), 0)), roles, task, new, kinds), path, frame, names, kinds
    )


def _encoded(samples: Samples, path: str, frame: Any, names: Sequence[str], kinds: Sequence[str]) -> Samples:
    """Return samples with these columns as x: numbers, or, if a column has texts, the codes of its categories."""
    columns: list[NDArray[Any]] = []
    texts: list[NDArray[np.str_]] = []
    mend = "name the columns to use with `features`"
    for name in names:
        column = Column(path, name, frame[name].to_numpy(), name in kinds)
        if column.texts():
            codes, found = column.categories(f"{mend}, or list '{name}' under `categories`")
            columns.append(codes)
            texts.append(found)
        else:
            columns.append(column.singles(f", list '{name}' under `categories` if its values are kinds, or {mend}"))
            texts.append(np.empty(0, dtype="<U1"))
    x = np.stack(columns, axis=1).astype(np.float32)
    if not any(map(len, texts)):
        return replace(samples, x=x)
    sizes = np.array([len(found) for found in texts])
    return replace(samples, x=x, columns=np.array(names), sizes=sizes, categories=np.concatenate(texts))


def features(path: str, *others: str | None) -> list[str]:
    """Return the columns that `table` uses as features if none are named: all but the `others`."""
    return _others(sheet.columns(path), others)


def _others(columns: Iterable[Any], own: Sequence[str | None]) -> list[str]:
    return [str(c) for c in columns if c not in own]


def images(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[
        str | None,
        Field(
            description="CSV or Parquet file, one image per row; null: see folders", json_schema_extra={"file": True}
        ),
    ] = None,
    images: Annotated[
        str,
        Field(
            description="folder with the images and nothing else; images that are added, removed or changed in size "
            "are noticed",
            json_schema_extra={"file": True},
        ),
    ],
    folders: Annotated[
        str | None,
        Field(
            description="instead of a table: what the folders' names are, from the outermost on, e.g. client/label or "
            "label alone; also group, and test for folders train and test"
        ),
        "later",
    ] = None,
    file: Annotated[str, Field(description="column with the image's path inside the folder")] = "path",
    label: Annotated[
        str, Field(description="column with the class, 0, 1, ... or a text, or with the real target")
    ] = "label",
    client: Annotated[str, Field(description="column with the client, a number or a name")] = "client",
    test: Annotated[
        str | None, Field(description="column that is true for test samples; null: none are marked")
    ] = None,
    group: Annotated[
        str | None, Field(description="column with the client's true cluster, a number or a name; null: unknown")
    ] = None,
    size: Annotated[
        int | None, Field(gt=0, description="pixels per side after resizing and centre crop; null: all have one size")
    ] = None,
    colour: Annotated[Literal["grey", "rgb"], Field(description="number of channels: 1 or 3")] = "rgb",
    task: Annotated[Literal["classification", "regression"], Field(description="what the label is")] = "classification",
) -> Samples:
    """Return images as uint8 ``[N, channels, height, width]``.

    Raises
    ------
    UserError
        If the table or the folders are invalid, a path leads out of the folder, an image can't be read, or sizes differ
        and no `size` is given.
    """
    roles = Roles(label, client, test, group)
    places, samples = images_listed(path, images, folders, file, roles, task, new)
    pixels: list[NDArray[np.uint8]] = []
    for place in places:
        image = decoded(place, size, colour)
        if pixels and image.shape != pixels[0].shape:
            raise UserError(
                f"{place} has shape {image.shape}, the images before it {pixels[0].shape}; "
                "give `size` to bring all to one size"
            )
        pixels.append(image)
    return replace(samples, x=np.stack(pixels))


def images_listed(
    path: str | None, images: str, folders: str | None, file: str, roles: Roles, task: str, new: bool = False
) -> tuple[list[Path], Samples]:
    """Return the image files, and the samples without pixels; see `images`."""
    root = find_file(images).resolve()
    if Path.cwd().resolve().is_relative_to(root):
        raise UserError(
            f"images: '{images}' holds the working folder with all results, so it would change with each of them; "
            "move the images into a folder of their own"
        )
    if (path is None) == (folders is None):
        raise UserError(
            f"images: give either path, a table that lists the images, or folders, what the names of the folders in "
            f"'{images}' are, e.g. client/label"
        )
    if path is None:
        frame, roles = _by_folder(root, images, str(folders), new)
        path = images
    else:
        named = [file, roles.client, roles.group]
        frame = sheet.frame(path, named, roles.label if task == "classification" else None)
        sheet.need(path, frame, [name for name in (file, *roles) if name], roles.label if new else None)
    samples = _samples(path, frame, np.empty((len(frame), 0)), roles, task, new)
    return list(_inside(root, path, frame[file].astype(str))), samples


def _inside(root: Path, path: str, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files that a table names; raise an error for one that is missing or outside the folder."""
    for row, name in enumerate(names):
        place = (root / name).resolve()
        if not place.is_relative_to(root):
            raise UserError(f"{path}, row {row}: the path '{name}' leads out of {root}; paths must stay inside")
        if not place.is_file():
            raise UserError(
                f"{path}, row {row}, counted from 0: there is no image {place}; put it there, or leave its row out"
            )
        yield place


def _by_folder(root: Path, images: str, folders: str, new: bool) -> tuple[Any, Roles]:
    """Return a table of the images in a folder, with a column for each level of folders."""
    import pandas as pd

    levels = folders.split("/")
    strange = [level for level in levels if level not in Roles._fields]
    if strange or len(set(levels)) < len(levels) or not (new or "label" in levels):
        raise UserError(
            f"folders: '{folders}'; allowed: label, and client, group and test in any order, each at most once, with / "
            "between them, e.g. client/label"
        )
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not files:
        raise UserError(f"images: '{images}' has no files; put images into folders {folders}")
    parts = [file.relative_to(root).parts for file in files]
    for part in parts:
        if len(part) != len(levels) + 1 or Path(part[-1]).suffix.lower() not in PICTURES:
            raise UserError(
                f"images: '{images}' holds {'/'.join(part)}; allowed: images ({', '.join(PICTURES)}) in folders "
                f"{folders}, and nothing else; move it away, or say what the folders are: folders"
            )
    columns = {level: [part[i] for part in parts] for i, level in enumerate(levels)}
    numbered = {level: list(map(int, names)) if _numbers(level, names) else names for level, names in columns.items()}
    frame = pd.DataFrame({"path": ["/".join(part) for part in parts]} | numbered)
    return frame, Roles("label", *(level if level in levels else None for level in Roles._fields[1:]))


def _numbers(level: str, names: Sequence[str]) -> bool:
    """Return whether folder names such as 0, 1, ..., 10 are numbers, which are sorted differently from texts.

    Clients or groups 07 and 7 are different names; classes 01 and 02 are 1 and 2, unless there is also a 1.
    """
    distinct = set(names)
    if not all(name.isdecimal() for name in distinct):
        return False
    return (
        len(set(map(int, distinct))) == len(distinct) if level == "label" else all(str(int(n)) == n for n in distinct)
    )


def arrays(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[
        str,
        Field(
            description=".npz file with x (bytes: images; other whole numbers: tokens; real numbers: features), y, and "
            "client, test and group if known",
            json_schema_extra={"file": True},
        ),
    ],
    task: Annotated[Literal["classification", "regression"], Field(description="what y is")] = "classification",
) -> Samples:
    """Return the arrays ``x [N, ...], y [N]`` of a file, and ``client, test, group``, each [N], if present.

    Raises
    ------
    UserError
        If the file isn't readable or holds Python objects, an array is missing, or their rows don't agree.
    """
    found = sheet.arrays(path)
    for name in ("x", "y"):
        if name not in found and not (new and name == "y"):
            raise UserError(f"{path} has no array '{name}'; {choices(found, name)}")
    for name in found.keys() - {"x", "y", *Roles._fields[1:]}:
        near = [role for role in get_close_matches(name, Roles._fields[1:], n=1) if role not in found]
        if near:
            raise UserError(
                f"{path} holds an array '{name}', which isn't read; did you mean '{near[0]}'? Call it so, or otherwise"
            )
    rows = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len({rows[n] for n in ("x", "y", "client", "test", "group") if n in rows}) > 1:
        raise UserError(f"{path}: the arrays need equally many rows; found {rows}; write the file again")
    if found["x"].ndim == 1:
        raise UserError(f"{path}: x has shape {found['x'].shape}; samples of one number need the shape (N, 1)")
    if not rows["x"]:
        raise UserError(f"{path} has no rows; write it again with some")
    if not found["x"].size:
        raise UserError(f"{path}: x has shape {found['x'].shape}, no number in a sample; write it again with some")
    if found["x"].dtype.kind not in "iufb":
        raise UserError(
            f"{path}: x holds {found['x'].dtype}; whole or real numbers are needed; convert it, write it again"
        )
    x = found["x"] if found["x"].dtype.kind in "iu" else Column(path, "x", found["x"]).singles()
    roles = Roles("y", *(name if name in found else None for name in Roles._fields[1:]))
    return _samples(path, found, x, roles, task, new)


def _samples(
    path: str,
    columns: Mapping[str, Any],
    x: NDArray[Any],
    roles: Roles,
    task: str,
    new: bool,
    kinds: Sequence[str] | None = None,
) -> Samples:
    """Return samples, all but x from the columns that have `roles`; `kinds`: the option `categories`, if any."""

    def column(name: str) -> Column:
        return Column(path, name, np.asarray(columns[name]), name in (kinds or ()))

    label, client, test, group = roles
    owner, names = (None, None) if client is None else column(client).owners(fewest=1 if new else 2)
    mend = "write all of them as texts" if kinds is None else f"list '{label}' under `categories`"
    groups, group_names = (None, None) if group is None else column(group).owners(fewest=1)
    y, classes = column(label).labels(task, mend) if label in columns else (np.full(len(x), UNKNOWN), None)
    return Named(x, y, column(test).truth() if test else None, owner, groups, names, classes, group_names=group_names)
