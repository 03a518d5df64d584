"""A dataset as a function of one's own: scikit-learn's wine data over made-up cellars.

Data: S. Aeberhard and M. Forina, Wine, UCI Machine Learning Repository, 1992, doi 10.24432/C5PC7J; licence CC BY 4.0.
The cellars are ours.
"""

import numpy as np
from sklearn.datasets import load_wine

from clusterfl.data.samples import Samples


def cellars(folder, *, cellars: int = 6, swapped: bool = True):
    """Return 178 wines with 13 measurements and one of three growers each, dealt out to cellars.

    `folder` is a place for files, which this function doesn't need. The parameters behind the star are options: a
    configuration may give them, and other ones are refused. A plain pair ``x, y`` would do where all else is unknown.
    """
    data = load_wine()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    owner = np.random.default_rng(0).permutation(np.arange(len(x)) % cellars)
    # The second half of the cellars knows the growers 0 and 1 by each other's names.
    group = (owner >= cellars / 2).astype(np.int64)
    y = np.where((group == 1) & swapped & (data.target < 2), 1 - data.target, data.target)
    return Samples(x.astype(np.float32), y, owner=owner, group=group)
