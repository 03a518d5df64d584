"""From a table's columns to a network's inputs: categories one-hot, numbers standardised if the settings say so.

Categories, means and standard deviations are taken from the members' training samples alone. A category that doesn't
occur there becomes all zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .inputs import Inputs
from .samples import Samples

SHOWN = 10  # names in a sentence


@dataclass(frozen=True)
class Encoding:
    """How samples [N, d] become inputs, each column by itself.

    Parameters
    ----------
    kept : [d]
        For each column the codes of the categories that training samples have, None for a column of numbers; None if
        no column has categories.
    mean, std : [d]
        The mean is subtracted, then the result divided by std; None: neither.
    """

    kept: tuple[NDArray[np.int64] | None, ...] | None = None
    mean: NDArray[np.float64] | None = None
    std: NDArray[np.float64] | None = None

    @classmethod
    def fitted(cls, samples: Samples, table: Mapping[str, NDArray[Any]], inputs: Inputs) -> Encoding:
        """Return the encoding fitted to the members' training samples of a partition.

        Raises
        ------
        UserError
            If samples are to be standardised but aren't features.
        """
        if samples.sizes is None and not inputs.standardise:
            return cls()
        rows = np.unique(table["sample"][(table["role"] == "member") & (table["split"] == "train")])
        x = samples.x.reshape(len(samples.x), -1)
        coded = np.zeros(x.shape[1], dtype=bool) if samples.sizes is None else samples.sizes > 0
        mean, std = _scales(samples.x.dtype, x, rows, coded) if inputs.standardise else (None, None)
        if not coded.any():
            return cls(None, mean, std)
        return cls(tuple(_present(x[rows, j]) if coded[j] else None for j in range(len(coded))), mean, std)

    def known(self, column: int) -> NDArray[np.int64]:
        """Return the codes of a column's categories that training samples have; none for a column of numbers."""
        found = None if self.kept is None else self.kept[column]
        return np.empty(0, dtype=np.int64) if found is None else found

    def inputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return samples ``[N, ...]`` encoded: the same array if there is nothing to encode."""
        if self.mean is not None and self.std is not None:
            flat, scaled = x.reshape(len(x), -1), np.empty((len(x), len(self.mean)), dtype=np.float32)
            for j, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
                scaled[:, j] = (flat[:, j].astype(np.float64) - mean) / std
            x = scaled.reshape(x.shape)
        if self.kept is None:
            return x
        columns = [x[:, [j]] if codes is None else x[:, [j]] == codes for j, codes in enumerate(self.kept)]
        return np.concatenate(columns, axis=1).astype(np.float32)


def _scales(
    kind: np.dtype[Any], x: NDArray[Any], rows: NDArray[np.int64], coded: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and standard deviations of the columns' numbers; a column that is constant is only shifted."""
    if kind.kind != "f":
        raise UserError(
            f"inputs.standardise: true is for features, which are real numbers; the samples are {kind}; omit it, "
            "or for images give mean and std"
        )
    mean, std = np.zeros(x.shape[1]), np.ones(x.shape[1])
    for j in np.flatnonzero(~coded):
        numbers = x[rows, j].astype(np.float64)
        mean[j], std[j] = numbers.mean(), numbers.std() or 1.0
    return mean, std


def _present(codes: NDArray[Any]) -> NDArray[np.int64]:
    found = np.unique(codes).astype(np.int64)
    return found[found >= 0]


def remarks(samples: Samples, table: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield sentences about a federation's columns of categories, and about those that training samples lack."""
    if samples.sizes is None or samples.columns is None:
        return
    encoding = Encoding.fitted(samples, table, Inputs())
    used = samples.x[np.unique(table["sample"])]
    for j in np.flatnonzero(samples.sizes).tolist():
        names, codes = samples.categories_of(j), encoding.known(j)
        yield f"Column '{samples.columns[j]}' is {len(codes)} inputs, one for each category: {listed(names[codes])}."
        lacking = used[~np.isin(used[:, j], codes), j].astype(np.int64)
        if len(lacking):
            yield (
                f"Categories of '{samples.columns[j]}' that no training sample has, whose inputs are all zeros: "
                f"{listed(names[np.unique(lacking)])} ({len(lacking)} samples)."
            )


def listed(names: NDArray[Any]) -> str:
    """Return names in one line, the first ones if there are many."""
    shown = ", ".join(map(str, names[:SHOWN]))
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
