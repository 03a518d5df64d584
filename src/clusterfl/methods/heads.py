"""Shares in which the clients' last layers are mixed for each client: a quadratic programme over features (FedPAC).

For client i a mixture with shares a has the variance ``sum_j a_j^2 V_j`` and the squared bias
``|sum_j a_j (h_i - h_j)|^2``, where h_j are client j's mean features by class times the classes' shares, and V_j is the
variance of its features over its number of samples (Xu, Tong and Huang, ICLR 2023, arXiv 2306.11867, Sec. 4.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..clustering.threads import numpy_alone
from ..errors import Diverged

if TYPE_CHECKING:
    from torch import Tensor

    from ..engine.features import Moments

Array = NDArray[np.float64]
SMALL = 1e-3  # smaller weights are set to 0, as in the authors' code and PFLlib
RIDGE = 1e-10  # times the mean of a matrix's diagonal, added to it for clients without variance


def least(matrix: Array) -> Array:
    """Return the shares a [m] that minimise ``a' matrix a``, for a positive semidefinite matrix that isn't zero.

    They are a = b / sum(b) for the b >= 0 that minimises ``b' matrix b / 2 - sum(b)``, as the Karush-Kuhn-Tucker
    conditions agree up to a factor; with the matrix's Cholesky factor this is a nonnegative least-squares problem.
    """
    from scipy.optimize import nnls

    with numpy_alone():
        lower = np.linalg.cholesky(matrix + RIDGE * np.mean(np.diag(matrix)) * np.eye(len(matrix)))
        found, _ = nnls(lower.T, np.linalg.solve(lower, np.ones(len(matrix))))
    return np.asarray(found / found.sum())


def shares(moments: Moments) -> Array:
    """Return the share of each head in each client's mixture, [m, m], from the sums of features of m clients.

    Raises
    ------
    Diverged
        If features are NaN or infinite.
    """
    n = moments.counts.sum(1).numpy()
    means = (moments.sums.flatten(1) / moments.counts.sum(1)[:, None]).numpy()  # h [m, classes d]
    variance = (moments.squares.numpy() / n - np.square(means).sum(axis=1)) / n
    if not (np.isfinite(means).all() and np.isfinite(variance).all()):
        raise Diverged("features of clients' samples are NaN or infinite; training diverged: lower the learning rate")
    means = means - means.mean(axis=0)  # keeps differences, and makes rounding errors relative to their size
    with numpy_alone():
        gram = means @ means.T
    found = np.eye(len(n))
    for i, own in enumerate(gram):
        matrix = gram - own - own[:, None] + gram[i, i] + np.diag(variance.clip(min=0))
        if np.trace(matrix) > 0:
            found[i] = least(matrix)
    return np.where(found > SMALL, found, 0)


def mixtures(heads: Tensor, share: Array, overwritten: bool) -> Tensor:
    """Return each client's mixture, [m, columns], of `heads` of the same shape, by its row of `share` [m, m].

    With `overwritten` each mixture replaces the client's head before the next is mixed. Rows are added in order, one
    client after another: a matrix product's bits would depend on the number of clients.
    """
    import torch

    given, mixed = heads.double(), torch.empty_like(heads)
    for i, row in enumerate(torch.as_tensor(share)):
        mixed[i] = (row[:, None] * given).sum(0)
        if overwritten:
            given[i] = mixed[i]
    return mixed
