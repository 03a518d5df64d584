"""Which shares of the clients' last layers a client is given: a quadratic programme over their features (FedPAC).

Of a mixture with shares a, ``sum_j a_j^2 V_j`` is the variance and ``|sum_j a_j (h_i - h_j)|^2`` the squared bias for
client i, where h_j are its classes' mean features times their shares, and V_j is the variance of its features over the
number of its samples (Xu, Tong and Huang, ICLR 2023, arXiv 2306.11867, Sec. 4.2).
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
SMALL = 1e-3  # weights below it are none: the authors' code and PFLlib
RIDGE = 1e-10  # of the mean of a matrix's diagonal, so that a client without variance is a point, too


def least(matrix: Array) -> Array:
    """Return the shares a [m] that minimise ``a' matrix a``, for a positive semidefinite matrix that isn't zero.

    With a = b / sum(b) they are those of ``b' matrix b / 2 - sum(b)`` over b >= 0, whose conditions (Karush, Kuhn and
    Tucker) are the same but for a factor; by the matrix's Cholesky factor that is a problem of least squares.
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
    means = means - means.mean(axis=0)  # differences stay, and what is rounded away is of their size
    with numpy_alone():
        gram = means @ means.T
    found = np.eye(len(n))
    for i, own in enumerate(gram):
        matrix = gram - own - own[:, None] + gram[i, i] + np.diag(variance.clip(min=0))
        if np.trace(matrix) > 0:
            found[i] = least(matrix)
    return np.where(found > SMALL, found, 0)


def mixtures(heads: Tensor, share: Array, overwritten: bool) -> Tensor:
    """Return what each client is given, [m, columns], of `heads` of that shape by its row of `share` [m, m].

    With `overwritten` each one takes its head's place before the next is mixed. Sums are over rows in their order, one
    client after another: a product of matrices would have other bits for other numbers of clients.
    """
    import torch

    given, mixed = heads.double(), torch.empty_like(heads)
    for i, row in enumerate(torch.as_tensor(share)):
        mixed[i] = (row[:, None] * given).sum(0)
        if overwritten:
            given[i] = mixed[i]
    return mixed
