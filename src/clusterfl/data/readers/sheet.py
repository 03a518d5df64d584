"""A user's own tables and arrays, column by column: numbers, categories, labels, clients, and errors in them.

Rows are counted from 0, as in pandas and numpy. A column's kind follows from its values: texts are categories or
classes, and a mix of texts and numbers is a mistake, unless the column is declared to have categories.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError, choices
from ...registry import find_file
from ...storage.store import first_line
from ..packed import arrays as arrays_of

PARQUET = (".parquet", ".pq")
OTHERS = (".xlsx", ".xls", ".ods", ".json", ".feather", ".sav", ".dta")  # tables that would be misread as CSV
LARGEST_CLASS = 999_999  # a network has an output for each class up to the largest: beyond, it's a wrong column
FEW, MOST = 20, 1000  # categories of a column: up to FEW may differ in each row; more than MOST are refused
# A column is refused if it has at least SEVERAL different numbers, float32 makes most of them equal, and its rounding
# error exceeds this share of the column's standard deviation.
SEVERAL, COARSE = 10, 0.01
DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{4}")
# Texts that can be restored from the number: 7, 2.5 or 1.500e+02, as numpy writes it, but not 07 or 12e1.
PLAIN = re.compile(r"-?(0|[1-9]\d*)([.,]\d+(e[+-]\d+)?)?")
TRUTHS = {"true": True, "yes": True, "test": True, "false": False, "no": False, "train": False}


def frame(path: str, kinds: Iterable[str | None] = (), label: str | None = None) -> Any:
    """Return a CSV or Parquet file as a data frame.

    Parameters
    ----------
    path
        The file.
    kinds
        Columns whose values are names, even if they look like numbers: in a CSV 07 and 7 then differ, and 12e1 and 120.
        Columns of plain numbers are still read as numbers.
    label
        The column of the classes: in a CSV two spellings of one number are refused there.
    """
    import pandas as pd

    place = find_file(path)
    if place.suffix.lower() in OTHERS or place.is_dir():
        raise UserError(f"{path} is no table that is read here; allowed: CSV and Parquet (.parquet, .pq); save it so")
    kind = "Parquet" if place.suffix in PARQUET else "CSV"
    try:
        found = pd.read_parquet(place) if kind == "Parquet" else _csv(place)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} can't be read as CSV: it isn't UTF-8 (byte {error.object[error.start]:#04x}); write it again as "
            "UTF-8 (in Excel: CSV UTF-8)"
        ) from error
    except Exception as error:  # damaged files may raise anything
        raise UserError(f"{path} can't be read as {kind} ({first_line(error)}); write it again") from error
    if not len(found):
        raise UserError(f"{path} has no rows; write it again with some")
    mark, names = _header(place) if kind == "CSV" else ("", list(found))
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise UserError(
            f"{path} has {names.count(twice)} columns '{twice}'; allowed: a name of its own for each; rename or drop "
            "one, write the file again"
        )
    if kind == "Parquet":
        return found
    # Where rows have more values than there are names, pandas takes the first ones as names of the rows.
    values = pd.read_csv(place, sep=mark, header=None, skiprows=1, nrows=1, dtype=str).shape[1]
    if values > len(names):
        raise UserError(
            f"{path} has {len(names)} names in its first line and {values} values in row 0, so that it isn't sure "
            "which is which; allowed: as many; name each column, or take the commas at the rows' ends away"
        )
    return _named(path, found, set(kinds), label)


def columns(path: str) -> list[str]:
    """Return the columns of a file that `frame` reads; of a CSV only the first line is read."""
    place = find_file(path)
    return [str(name) for name in (frame(path) if place.suffix in PARQUET else _csv(place, nrows=0))]


def _named(path: str, found: Any, kinds: set[str | None], label: str | None) -> Any:
    """Return a CSV's frame, with columns of names as texts if pandas took them for numbers."""
    looked_at = [name for name in found if (name in kinds or name == label) and found[name].dtype.kind in "iuf"]
    if not looked_at:
        return found
    raw = _csv(find_file(path), dtype=dict.fromkeys(looked_at, str))
    for name in looked_at:
        texts, numbers = raw[name].str.strip(), found[name]
        merged = texts.nunique() > numbers.nunique()
        if name in kinds:
            if merged or not all(PLAIN.fullmatch(text) for text in texts.dropna().unique()):
                found[name] = texts
        elif merged:
            first = texts.groupby(numbers).transform("first")
            row = int(np.argmax(((texts != first) & numbers.notna()).to_numpy()))
            raise UserError(
                f"{path}: '{name}' holds '{texts.iloc[row]}' in row {row}, counted from 0, and '{first.iloc[row]}' "
                "elsewhere, which are one number; allowed: one way to write a class; write them in one way, or, if "
                f"they are two classes, list '{name}' under `categories`"
            )
    return found


def _csv(place: Path, **options: Any) -> Any:
    """Read a CSV file, with semicolons or tabs as separators if its first line has no commas.

    With semicolons, numbers may have decimal commas, as Excel writes them in much of Europe.
    """
    import pandas as pd

    mark = _header(place)[0]
    found = pd.read_csv(place, sep=mark, low_memory=False, **options)
    if mark != ";" or options:
        return found
    texts = (found[name].astype(str) for name in found.select_dtypes(["object", "string"]))
    commas = any(column.str.fullmatch(r"-?\d+,\d+").any() for column in texts)
    return pd.read_csv(place, sep=mark, low_memory=False, decimal=",") if commas else found


def _header(place: Path) -> tuple[str, list[str]]:
    """Return the mark between a CSV's columns, and their names as they stand in the first line, empty ones too."""
    import pandas as pd

    def names(mark: str) -> list[str]:
        line = pd.read_csv(place, sep=mark, header=None, nrows=1, dtype=str, keep_default_na=False)
        return [str(name) for name in line.iloc[0]]

    first = names(",")
    mark = next((mark for mark in (";", "\t") if len(first) == 1 and mark in first[0]), ",")
    return mark, first if mark == "," else names(mark)


def arrays(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file."""
    place = find_file(path)
    try:
        return arrays_of(place)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} can't be read as .npz without Python objects ({error}); write it again with numpy.savez"
        ) from error


def need(path: str, table: Any, names: list[str], spared: str | None = None) -> None:
    """Raise an error if a table lacks one of these columns, except for the one that is `spared`."""
    for name in names:
        if name not in table and name != spared:
            index = name in table.index.names
            more = "; it is the index of this file: write it again after reset_index()" if index else ""
            raise UserError(f"{path} has no column '{name}'; {choices(list(map(str, table)), name)}{more}")


@dataclass(frozen=True)
class Column:
    """A column of a file, or an array whose first axis is the rows."""

    path: str
    name: str
    values: NDArray[Any]
    kinds: bool = False  # its values are categories, not amounts, even if they look like numbers

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which values are missing."""
        import pandas as pd

        return np.asarray(pd.isna(self.values))

    def found(self, row: int) -> str:
        """Return a value for a message: for a CSV as it is written in the file."""
        import pandas as pd

        value = self.values[row]
        if np.ndim(value):  # a sample of an array: its number that isn't finite
            value = next((one for one in value.flat if not np.isfinite(one)), value.flat[0])
            return f"'{value}'"
        if not pd.isna(value):
            return f"'{value}'"
        text = "" if Path(self.path).suffix in (*PARQUET, ".npz") else self._raw(row)
        return f"'{text}', which counts as missing," if text else "nothing"

    def _raw(self, row: int) -> str:
        """Return the text of a CSV's cell that pandas takes as missing."""
        with contextlib.suppress(ValueError, IndexError):  # in odd files, where it can't be found
            return str(_csv(find_file(self.path), dtype=str, keep_default_na=False)[self.name].iloc[row])
        return ""

    def wrong(self, row: int, allowed: str, mend: str, count: int | None = None) -> UserError:
        """Return the error about a value."""
        more = "" if count is None else f" ({count} row{'s' * (count != 1)} in all)"
        return UserError(
            f"{self.path}: '{self.name}' holds {self.found(row)} in row {row}, counted from 0{more}; "
            f"allowed: {allowed}; {mend}"
        )

    def refuse_missing(self) -> None:
        """Raise an error if a value is missing."""
        rows = np.flatnonzero(self.missing)
        if len(rows):
            raise self.wrong(int(rows[0]), "a value in each row", "fill in or drop them", len(rows))

    def numbers(self, hint: str = "") -> NDArray[np.float64]:
        """Return the values as finite numbers, or raise an error; `hint` is a further way to correct it."""
        if self.values.dtype.kind in "iufb":
            numbers = self.values.astype(np.float64)
        else:
            missing = self.missing
            self._refuse_texts(hint)
            numbers = np.where(missing, np.nan, 0.0)
            numbers[~missing] = self.values[~missing].astype(np.float64)
        with np.errstate(over="ignore"):  # what float32 can't hold would be infinite in training
            bad = np.flatnonzero(~np.isfinite(numbers.astype(np.float32).reshape(len(numbers), -1)).all(axis=1))
        if len(bad):
            raise self.wrong(int(bad[0]), "finite numbers", "fill in or drop them", len(bad))
        return numbers

    def singles(self, hint: str = "") -> NDArray[np.float32]:
        """Return the values as float32, in which networks compute, or raise an error if that loses too much."""
        numbers = self.numbers(hint)
        found = numbers.astype(np.float32)
        if self.values.dtype not in (np.float32, np.float16, np.bool_):
            exact, rounded = numbers.reshape(len(numbers), -1), found.reshape(len(numbers), -1)
            for j in range(exact.shape[1]):
                self._refuse_coarse(
                    exact[:, j], rounded[:, j], f", number {j} of a sample," if numbers.ndim > 1 else ""
                )
        return found

    def _refuse_coarse(self, exact: NDArray[np.float64], rounded: NDArray[np.float32], where: str) -> None:
        """Refuse numbers that are so close, relative to their size, that float32 makes most of them equal."""
        if np.sqrt(np.mean((exact - rounded) ** 2)) <= COARSE * exact.std():
            return
        before, after = (len(np.unique(values)) for values in (exact, rounded))
        if before >= SEVERAL and after < before / 2:
            raise UserError(
                f"{self.path}: '{self.name}'{where} holds {before} different values from {exact.min():.15g} to "
                f"{exact.max():.15g}, of which float32, in which networks compute, keeps {after}; allowed: numbers "
                f"that differ in their first 7 digits; subtract an offset, e.g. {exact.min():.15g}, and write the file "
                "again"
            )

    def _refuse_texts(self, hint: str) -> None:
        """Raise an error for a value that isn't a number, if possible one that doesn't read as a number either."""
        import pandas as pd

        strange = np.flatnonzero(_strange(self.values) & ~self.missing)
        if not len(strange):
            return
        # One text in a CSV's column makes all of its numbers texts: report that one.
        unread = np.asarray(pd.to_numeric(pd.Series(self.values[strange], dtype=object), errors="coerce").isna())
        row = int(strange[np.argmax(unread)] if unread.any() else strange[0])
        raise self.wrong(row, "numbers", f"correct it{hint}")

    def texts(self) -> bool:
        """Return whether the column is of texts: all its values are, and none reads as a number, nor all as dates.

        Arrays of texts always are, whatever they look like.
        """
        meant = self.kinds or self.values.dtype.kind == "U"
        return meant or (self._reading_as_numbers() == 0 and not self._dates())

    def _distinct(self) -> NDArray[Any]:
        """Return the different values if all values present are texts; otherwise none."""
        import pandas as pd

        there: Any = self.values[~self.missing] if self.values.dtype.kind == "O" else []
        texts = all(isinstance(value, str) for value in there)
        return np.asarray(pd.unique(pd.Series(there if texts else [], dtype=object)))

    def _reading_as_numbers(self) -> float | None:
        """Return the share of the different texts that read as numbers; None if not all values are texts."""
        import pandas as pd

        distinct = self._distinct()
        read = pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").notna()
        return float(read.mean()) if len(distinct) else None

    def _dates(self) -> bool:
        return all(DATE.fullmatch(text) for text in self._distinct())

    def coded(self, few: int, most: int, mend: str) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """Return each row's text as its position in the sorted texts, and these texts.

        More than `few` texts that differ in most rows are refused: they are names.
        """
        import pandas as pd

        self.refuse_missing()
        values = self.values
        if values.dtype.kind == "f" and (values == np.floor(values)).all():
            values = values.astype(np.int64)  # 3, as in the file, not 3.0
        codes, names = pd.factorize(pd.Series([str(value) for value in values], dtype=object), sort=True)
        several = len(names) > max(few, len(codes) // 2) and not self.kinds
        if several or len(names) > most:
            raise UserError(
                f"{self.path}: '{self.name}' holds {len(names)} different texts in {len(codes)} rows, such as "
                f"{self.found(0)} in row 0: names rather than kinds; allowed: at most {most}, with several rows each; "
                f"{mend}"
            )
        return codes.astype(np.int64), np.asarray(names).astype(str)

    def categories(self, mend: str) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """Return a feature's categories: the code in each row, and the names."""
        return self.coded(FEW, MOST, mend)

    def labels(self, task: str, mend: str) -> tuple[NDArray[Any], NDArray[np.str_] | None]:
        """Return classes as int64, with their names if they are texts, or targets as float32.

        `mend` says how values that look like numbers become classes.
        """
        if task == "regression":
            return self.singles(), None
        if self.texts() or self._reading_as_numbers() == 1:
            return self.coded(MOST, LARGEST_CLASS + 1, "name the column with the classes as label")
        numbers = self.numbers(f", or, if it is a class, {mend}")
        wrong = np.flatnonzero((numbers != np.floor(numbers)) | (numbers < 0) | (numbers > LARGEST_CLASS))
        if len(wrong):
            raise self.wrong(
                int(wrong[0]),
                f"classes 0, 1, 2, ... up to {LARGEST_CLASS}, or texts",
                f"number them so, {mend}, or for real targets say task: regression",
            )
        return numbers.astype(np.int64), None

    def owners(self, fewest: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return each row's client or group, numbered in the sorted order of the names, and these names."""
        self.refuse_missing()
        kinds = np.array([str(value) for value in self.values]) if self.values.dtype.kind == "O" else self.values
        names, position = np.unique(kinds, return_inverse=True)
        if len(names) < fewest:
            raise UserError(
                f"{self.path}: '{self.name}' has the one value '{names[0]}'; name what has at least {fewest}"
            )
        return position.astype(np.int64), names

    def truth(self) -> NDArray[np.bool_]:
        """Return which samples are for testing."""
        said = self.numbers() if not self.texts() else np.array([_said(value) for value in self.values])
        wrong = np.flatnonzero(~np.isin(said, (0, 1)))
        if len(wrong):
            raise self.wrong(int(wrong[0]), "true, false, 0, 1, yes, no, test, train", "correct it")
        return said.astype(bool)


def _said(value: Any) -> float:
    """Return a text's truth value; -1 if it has none."""
    return float(TRUTHS.get(str(value).lower(), -1))


def _strange(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind != "O":  # dates, texts of an .npz file
        return np.ones(len(values), dtype=bool)
    return np.array([not isinstance(value, Real | Decimal) for value in values], dtype=bool)
