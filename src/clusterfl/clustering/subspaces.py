"""Subspaces that clients' samples span, and the angles between them.

PACFL: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin, AAAI 2023, arXiv 2209.10526. For each of its classes, a
client sends the first p left singular vectors of the matrix that has the class's samples as columns. The distance of
two clients is the smallest angle between what they sent. Axes: n samples of d numbers, q vectors of a client,
M clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .metric import computed_from
from .threads import numpy_alone

Angle = Literal["smallest", "pairs"]
Basis = NDArray[np.float64]  # [d, q]
DIGITS = 5  # of degrees: near 0 arccos has no more; so rounding decides no ties, and all processors agree to the bit
ALONE = 90.0  # degrees to a client whose samples are all zero, so that they span nothing


def basis(x: NDArray[Any], y: NDArray[Any], number: int) -> Basis:
    """Return the first `number` left singular vectors of each class's samples as columns, classes in order: [d, q].

    A class whose samples span fewer dimensions gives fewer: further singular vectors would be rounding errors. LAPACK
    chooses a vector's sign.

    Parameters
    ----------
    x : [n, d]
        A client's samples.
    y : [n]
        Their classes; with real numbers, as in regression, all samples are one class.
    number
        p, at least 1.
    """
    classes = y if y.dtype.kind in "iub" else np.zeros(len(y), dtype=np.int64)
    with numpy_alone():  # bits of a decomposition may depend on the number of threads
        found = [_spanning(x[classes == c].T.astype(np.float64)) for c in np.unique(classes)]
    return np.hstack([vectors[:, :number] for vectors in found])


def angles(bases: Sequence[Basis], angle: Angle, landmarks: NDArray[np.int64] | None = None) -> Any:
    """Return the angles in degrees between clients' subspaces, [M, M], or with `landmarks` [r] these columns of it.

    Parameters
    ----------
    bases
        The result of `basis` for each client.
    angle
        ``smallest``: the smallest principal angle between the spans of all of a client's vectors (the paper's Eq. 2),
        ``arccos`` of the largest singular value of the product of two orthonormal bases. ``pairs``: the released
        code's, the least ``arccos(u . v)`` of any two vectors, without an absolute value; vectors of different classes
        aren't orthogonal to each other, and their signs depend on the decomposition.
    landmarks
        Positions of the clients that every client is compared with.
    """
    ready = [_spanning(vectors) for vectors in bases] if angle == "smallest" else list(bases)
    others = np.arange(len(ready)) if landmarks is None else landmarks
    found = np.zeros((len(ready), len(others)))
    with numpy_alone():
        for column, j in enumerate(others.tolist()):
            for i, vectors in enumerate(ready[:j] if landmarks is None else ready):
                if i != j:  # always in the same order, so that the matrix is symmetric to the bit
                    first, second = (vectors, ready[j]) if i < j else (ready[j], vectors)
                    found[i, column] = _between(first, second, angle)
    return found + found.T if landmarks is None else found


def _spanning(columns: NDArray[np.float64]) -> Basis:
    """Return an orthonormal basis of the columns' span: left singular vectors, by decreasing singular value."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > values.max(initial=0) * max(columns.shape) * np.finfo(np.float32).eps]


def _between(one: Basis, other: Basis, angle: Angle) -> float:
    if not one.shape[1] or not other.shape[1]:
        return ALONE
    product = one.T @ other
    cosine = float(np.linalg.norm(product, ord=2) if angle == "smallest" else product.max())
    return round(float(np.degrees(np.arccos(min(max(cosine, -1.0), 1.0)))), DIGITS)


@computed_from("samples")
def principal_angles(
    samples: Any,
    landmarks: NDArray[np.int64] | None = None,
    *,
    vectors: Annotated[int, Field(gt=0, description="p, singular vectors that a client sends for each class")] = 3,
    angle: Annotated[
        Literal["smallest", "pairs"],
        Field(description="smallest angle of the spans (PACFL's paper), or of any two vectors, with signs (its code)"),
    ] = "pairs",
) -> Any:
    """Return the angles in degrees between the spans of clients' training samples (PACFL), see `angles`.

    `samples` has samples [n, d] and classes [n] for each client; those reduced by a function don't leave the client.
    """

    def reduced(x: NDArray[Any], y: NDArray[Any]) -> Basis:
        return basis(x, y, vectors)

    return angles(_reduced(samples, reduced), angle, landmarks)


def _reduced(samples: Any, function: Any) -> list[Basis]:
    """Return the function's results: computed by the clients, or here if `samples` is a plain sequence."""
    pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = samples
    return samples.reduced(function) if hasattr(samples, "reduced") else [function(x, y) for x, y in pairs]
