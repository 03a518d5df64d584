"""The user's own data: a table, a folder of images, or arrays. A function of the user's own needs no reader.

Clients may be named by anything; they are numbered in the sorted order of their names. Labels are classes
0, 1, 2, ... or, with ``task: regression``, real numbers. Messages count a file's rows from 0, as pandas and numpy do.

With ``new`` a reader reads clients of a study that has ended (`clusterfl.assign`): one is enough, their names are kept,
and where there are no labels all are `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError, choices
from ...registry import find_file
from ...storage.store import first_line
from ..packed import arrays as arrays_of
from ..samples import Samples
from .picture import decoded

PARQUET = (".parquet", ".pq")
UNKNOWN = -1  # the label of a new client's sample that has none
LARGEST_CLASS = 999_999  # a network has an output for each class up to the largest: more is another column


def table(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[str, Field(description="CSV or Parquet file, one sample a row", json_schema_extra={"file": True})],
    label: Annotated[str, Field(description="column with the class 0, 1, ... or the real target")],
    client: Annotated[str, Field(description="column with the client, a number or a name")],
    features: Annotated[
        list[str] | None, Field(description="columns with the sample's numbers; null: all others")
    ] = None,
    test: Annotated[
        str | None, Field(description="column that is true for test samples; null: none are marked")
    ] = None,
    group: Annotated[
        str | None, Field(description="column with the client's true cluster, a number or a name; null: unknown")
    ] = None,
    task: Annotated[Literal["classification", "regression"], Field(description="what the label is")] = "classification",
) -> Samples:
    """Return the samples of a table, features as float32 ``[N, columns]``.

    Raises
    ------
    UserError
        If the file isn't readable, a column is missing, a number is missing or isn't one, a feature is the label, or
        there is one client only.
    """
    frame = _frame(path)
    roles = _Roles(label, client, test, group)
    own = [name for name in roles if name]
    names = _others(frame, own) if features is None else features
    _columns(path, frame, [*own, *names], label if new else None)
    if not names:
        raise UserError(f"{path}: no feature columns beside {', '.join(own)}; add some to the file")
    if label in names:
        raise UserError(f"features: '{label}' is the label's column; take it out, or name another column as label")
    hint = "encode texts as numbers, or name the columns to use with `features`"
    x = np.stack([_numbers(path, name, frame[name].to_numpy(), hint) for name in names], axis=1).astype(np.float32)
    return _samples(path, frame, x, roles, task, new)


def features(path: str, *others: str | None) -> list[str]:
    """Return the columns that `table` takes as features where none are named: all but the `others`."""
    return _others(_frame(path), others)


def _others(frame: Any, own: Sequence[str | None]) -> list[str]:
    return [str(c) for c in frame.columns if c not in own]


def images(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[str, Field(description="CSV or Parquet file, one image a row", json_schema_extra={"file": True})],
    images: Annotated[
        str,
        Field(
            description="folder with the images and nothing else; one that was added, removed or changed in size is "
            "noticed",
            json_schema_extra={"file": True},
        ),
    ],
    file: Annotated[str, Field(description="column with the image's path inside the folder")] = "path",
    label: Annotated[str, Field(description="column with the class 0, 1, ... or the real target")] = "label",
    client: Annotated[str, Field(description="column with the client, a number or a name")] = "client",
    test: Annotated[
        str | None, Field(description="column that is true for test samples; null: none are marked")
    ] = None,
    group: Annotated[
        str | None, Field(description="column with the client's true cluster, a number or a name; null: unknown")
    ] = None,
    size: Annotated[
        int | None, Field(gt=0, description="pixels of each side after resizing and a centre crop; null: sizes agree")
    ] = None,
    colour: Annotated[Literal["grey", "rgb"], Field(description="channels: 1 or 3")] = "rgb",
    task: Annotated[Literal["classification", "regression"], Field(description="what the label is")] = "classification",
) -> Samples:
    """Return images as uint8 ``[N, channels, height, width]``.

    Raises
    ------
    UserError
        If the table isn't right, a path leads out of the folder, an image can't be read, or sizes differ and no `size`
        is given.
    """
    frame = _frame(path)
    roles = _Roles(label, client, test, group)
    _columns(path, frame, [name for name in (file, *roles) if name], label if new else None)
    root = find_file(images).resolve()
    if Path.cwd().resolve().is_relative_to(root):
        raise UserError(
            f"images: '{images}' holds the working folder with all results, so it would change with each of them; "
            "move the images into a folder of their own"
        )
    pixels: list[NDArray[np.uint8]] = []
    for place in _inside(root, path, frame[file].astype(str)):
        image = decoded(place, size, colour)
        if pixels and image.shape != pixels[0].shape:
            raise UserError(
                f"{place} has shape {image.shape}, the images before it {pixels[0].shape}; "
                "give `size` to bring all to one size"
            )
        pixels.append(image)
    return _samples(path, frame, np.stack(pixels), roles, task, new)


def _inside(root: Path, path: str, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files that a table names, none of which lies outside their folder."""
    for row, name in enumerate(names):
        place = (root / name).resolve()
        if not place.is_relative_to(root):
            raise UserError(f"{path}, row {row}: the path '{name}' leads out of {root}; paths must stay inside")
        yield place


def arrays(
    folder: Path,
    new: bool = False,
    *,
    path: Annotated[
        str,
        Field(
            description=".npz file with x (bytes: images, other whole numbers: tokens, real: features), y, client, and "
            "test and group if known",
            json_schema_extra={"file": True},
        ),
    ],
    task: Annotated[Literal["classification", "regression"], Field(description="what y is")] = "classification",
) -> Samples:
    """Return the arrays ``x [N, ...], y [N], client [N]`` of a file, and ``test [N], group [N]`` if they are there.

    Raises
    ------
    UserError
        If the file isn't readable or holds Python objects, an array is missing, or their rows don't agree.
    """
    found = _arrays(path)
    for name in ("x", "y", "client"):
        if name not in found and not (new and name == "y"):
            raise UserError(f"{path} has no array '{name}'; {choices(found, name)}")
    rows = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    if len({rows[n] for n in ("x", "y", "client", "test", "group") if n in rows}) > 1:
        raise UserError(f"{path}: the arrays need equally many rows; found {rows}; write the file again")
    if found["x"].ndim == 1:
        raise UserError(f"{path}: x has shape {found['x'].shape}; samples of one number need the shape (N, 1)")
    if not rows["x"]:
        raise UserError(f"{path} has no rows; write it again with some")
    if found["x"].dtype.kind not in "iufb":
        raise UserError(
            f"{path}: x holds {found['x'].dtype}; whole or real numbers are needed; convert it, write it again"
        )
    x = found["x"] if found["x"].dtype.kind in "iu" else _numbers(path, "x", found["x"]).astype(np.float32)
    test, group = ("test" if "test" in found else None), ("group" if "group" in found else None)
    return _samples(path, found, x, _Roles("y", "client", test, group), task, new)


class _Roles(NamedTuple):
    """The names of the columns that aren't features."""

    label: str
    client: str
    test: str | None
    group: str | None


def _samples(path: str, columns: Mapping[str, Any], x: NDArray[Any], roles: _Roles, task: str, new: bool) -> Samples:
    """Return samples, all but x from the columns of these names."""
    label, client, test, group = roles
    values = {name: np.asarray(columns[name]) for name in roles if name and name in columns}
    owner, names = owners(path, client, values[client], fewest=1 if new else 2)
    return Samples(
        x,
        labels(path, label, values[label], task) if label in values else np.full(len(x), UNKNOWN),
        _truth(path, test, values[test]) if test else None,
        owner,
        owners(path, group, values[group], fewest=1)[0] if group else None,
        names if new else None,
    )


def _frame(path: str) -> Any:
    import pandas as pd

    place = find_file(path)
    try:
        frame = pd.read_parquet(place) if place.suffix in PARQUET else pd.read_csv(place)
    except Exception as error:  # of any kind, as the damage is
        kind = "Parquet" if place.suffix in PARQUET else "CSV"
        raise UserError(f"{path} can't be read as {kind} ({first_line(error)}); write it again") from error
    if not len(frame):
        raise UserError(f"{path} has no rows; write it again with some")
    return frame


def _arrays(path: str) -> dict[str, NDArray[Any]]:
    place = find_file(path)
    try:
        return arrays_of(place)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} can't be read as .npz without Python objects ({error}); write it again with numpy.savez"
        ) from error


def _columns(path: str, frame: Mapping[Any, Any], names: list[str], spared: str | None) -> None:
    for name in names:
        if name not in frame and name != spared:
            raise UserError(f"{path} has no column '{name}'; {choices(list(map(str, frame)), name)}")


def _numbers(path: str, name: str, values: NDArray[Any], hint: str = "encode texts as numbers") -> NDArray[np.float64]:
    """Return values as numbers, or say where they are none."""
    import pandas as pd

    if values.dtype.kind in "iufb":
        numbers = values.astype(np.float64)
    else:
        missing = np.asarray(pd.isna(values))
        wrong = pd.Series([v for v in values[~missing] if not isinstance(v, Real | Decimal)], dtype=object)
        if len(wrong):
            # One text in a column of a CSV makes all of its numbers texts: that one is the culprit.
            text = next(iter(wrong[pd.to_numeric(wrong, errors="coerce").isna()]), wrong[0])
            raise UserError(f"{path}: '{name}' holds '{text}' where a number belongs; {hint}")
        numbers = np.where(missing, np.nan, 0.0)
        numbers[~missing] = values[~missing].astype(np.float64)
    with np.errstate(over="ignore"):  # what float32 can't hold would be infinite in training
        bad = np.flatnonzero(~np.isfinite(numbers.astype(np.float32).reshape(len(numbers), -1)).all(axis=1))
    if len(bad):
        raise UserError(
            f"{path}: '{name}' has no finite number in row {bad[0]} ({len(bad)} rows in all); fill in or drop them"
        )
    return numbers


def labels(path: str, name: str, values: NDArray[Any], task: str) -> NDArray[Any]:
    """Return classes as int64 or targets as float32."""
    numbers = _numbers(path, name, values)
    if task == "regression":
        return numbers.astype(np.float32)
    wrong = numbers[(numbers != np.floor(numbers)) | (numbers < 0) | (numbers > LARGEST_CLASS)]
    if len(wrong):
        raise UserError(
            f"{path}: label '{name}' holds {wrong[0]:g}; classes are 0, 1, 2, ... up to {LARGEST_CLASS}: number them "
            "so, or for real targets say task: regression"
        )
    return numbers.astype(np.int64)


def owners(path: str, name: str, values: NDArray[Any], fewest: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return clients, numbered in the sorted order of their names, and these names."""
    import pandas as pd

    missing = np.flatnonzero(pd.isna(values))
    if len(missing):
        raise UserError(
            f"{path}: '{name}' is missing in row {missing[0]} ({len(missing)} rows in all); fill in or drop them"
        )
    kinds = values.astype(str) if values.dtype.kind == "O" else values
    names, position = np.unique(kinds, return_inverse=True)
    if len(names) < fewest:
        raise UserError(f"{path}: '{name}' has the one value '{names[0]}'; name what has at least {fewest}")
    return position.astype(np.int64), names


def _truth(path: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    numbers = _numbers(path, name, values)
    if not np.isin(numbers, (0, 1)).all():
        raise UserError(
            f"{path}: '{name}' holds {numbers[~np.isin(numbers, (0, 1))][0]:g}; allowed: true, false, 0, 1; correct it"
        )
    return numbers.astype(bool)
