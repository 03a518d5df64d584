"""Clients' updates in terms of the main directions of all updates. M clients, P columns, K directions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .distances import compared, products, rows_of
from .threads import numpy_alone


def decomposed_cosines(deltas: Any, number: int) -> NDArray[np.float64]:
    """Return the cosines of ``deltas [M, P]`` to the first K left singular vectors of their transpose, [M, K].

    FedGroup and FlexCFL (Duan et al., arXiv 2010.06870 and 2108.09749) embed updates in this way. With ``G = deltas
    deltas'``, its largest eigenvalues l and eigenvectors v, row i's cosine to direction k is ``sqrt(l[k]) v[i, k] /
    |row i|``: only products of rows are needed, and `deltas` may be any object whose rows are read by indexing. There
    are no more directions than G has eigenvalues above rounding errors. A zero row has cosines 0. A direction's sign
    makes the largest entry of its v positive.

    Parameters
    ----------
    deltas : [M, P]
    number
        K, the largest number of directions.
    """
    gram = rows_of(compared(deltas, None, rows_of, products))
    with numpy_alone():
        values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    values, vectors = values[::-1][:number], vectors[:, ::-1][:, :number]
    kept = values > values.max(initial=0) * len(gram) * np.finfo(np.float32).eps
    values, vectors = values[kept], vectors[:, kept]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))]
    lengths = np.sqrt(np.diag(gram))[:, None]
    turned = vectors * np.sign(largest) * np.sqrt(values)
    return np.divide(turned, lengths, out=np.zeros_like(turned), where=lengths > 0)
