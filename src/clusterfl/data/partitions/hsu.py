"""Clients with their own class distributions (Hsu et al. 2019), and FedGWC's mixtures of such clients."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError
from ..samples import Labels, Table
from .dealing import Ints, check_enough, class_sizes, deal_classes, evenly, in_proportion, joined, proportions, shares

EVEN = 1000  # from this sum of the classes' alphas on, a client has equally many samples of each class


def dirichlet_clients(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    alpha: Annotated[float, Field(ge=0, description="concentration; 0 = one class for each client")] = 0.5,
    concentration: Annotated[
        Literal["total", "per-class"],
        Field(description="whether alpha is the sum over the classes (Hsu et al., FedGWC), or the value of each class"),
    ] = "total",
) -> Table:
    """Give each client its own draw from a Dirichlet over the classes, and equally many samples.

    Hsu, Qi and Brown 2019 (arXiv 1909.06335): the prior is uniform, so each of C classes has alpha / C; FedGWC's
    published files follow this (`per-class` would give ten times as many classes to a client). When a class runs out,
    the others' probabilities are renormalised. Test rows are dealt in each client's training proportions.

    Two extremes are not drawn: for alpha 0 a client has one class, as long as one with enough samples is left; and if
    the classes' alphas add up to 1,000 or more, it has equally many samples of each, as in FedGWC's file for 1,000: 5
    of each of 100 classes for every client, where draws would give 5 +- 2.7. Of unequal classes some run out, and the
    last clients get what the large ones leave (MNIST, 100 clients: the first 90 have 60 of
    each digit, the last one 536 of one and 64 of another).
    """
    check_enough(clients, len(data.train))
    each = alpha / data.classes if concentration == "total" else alpha
    return _dealt(generator, data, _filled(generator, data, np.full(clients, each)))


def mixture(
    labels: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(min_length=1, description="number of clients for each alpha, e.g. [10, 0, 90]"),
    ],
    alphas: Annotated[
        list[Annotated[float, Field(ge=0)]],
        Field(min_length=1, description="total concentrations: homogeneous, heterogeneous, extremely heterogeneous"),
    ] = [1000, 0.5, 0],  # noqa: B006 (read from the source as a literal, never changed)
    data: Annotated[
        Literal["each", "once"],
        Field(description="draw each alpha's clients from a complete copy of the data, or all from one"),
    ] = "each",
) -> Table:
    """Mix clients of several degrees of heterogeneity; the planted group is the degree.

    FedGWC's clusters by distribution (section 7.3, tables 3 and 6). All clients have equally many training samples: 500
    on CIFAR-100 with 100 clients. How the authors combined the degrees is not published. Their files are one complete
    partition of the data for each alpha, so by default (`each`) a group's clients are those with the same numbers in
    its alpha's partition, and two groups may share samples. With `once` no two clients do; then 90 clients can't have
    one class each if 10 have all classes, because 450 samples of a class are left for clients of 500.
    """
    if len(clients) != len(alphas) or not any(clients):
        raise UserError(
            f"clients: {clients} for the {len(alphas)} alphas {alphas}; give one number for each alpha, not all 0"
        )
    total = sum(clients)
    check_enough(total, len(labels.train))
    group = np.repeat(np.arange(len(clients)), clients)
    if data == "once":
        table = _dealt(generator, labels, _filled(generator, labels, np.repeat(alphas, clients) / labels.classes))
        return {**table, "true_cluster": group[table["client"]]}
    tables = []
    for g in np.unique(group).tolist():
        counts = _filled(generator, labels, np.full(total, alphas[g] / labels.classes))
        table = _dealt(generator, labels, counts)
        kept = group[table["client"]] == g
        tables.append({name: column[kept] for name, column in table.items()} | {"true_cluster": np.full(kept.sum(), g)})
    return joined(tables)


def _filled(generator: np.random.Generator, data: Labels, alphas: NDArray[np.float64]) -> Ints:
    """Draw every client's number of training samples of each class, [M, C], until its size is reached.

    If a class has fewer samples left than drawn, the excess is drawn again from the others, as if drawing one by one.
    If no class with a positive probability is left, the rest is of one class, if possible one with enough samples: the
    limit for alpha -> 0.

    Parameters
    ----------
    alphas : [M]
        Each client's concentration per class.
    """
    left = class_sizes(data, data.train)
    weights = proportions(generator, alphas[:, None], np.ones((len(alphas), len(left)), dtype=bool))
    weights[alphas == 0] = 0
    even = np.round(alphas * len(left), 6) >= EVEN  # the product of a quotient may fall short by a last digit
    counts = np.zeros(weights.shape, dtype=np.int64)
    for i, missing in enumerate(evenly(len(alphas), len(data.train)).tolist()):
        while missing:  # each pass completes the client or exhausts a class
            chances = np.where(left > 0, weights[i], 0)
            if even[i]:
                drawn = shares((left > 0).astype(np.int64), missing)
            elif chances.any():
                chances /= chances.max()  # first, because the sum of the smallest floats has too few digits
                drawn = generator.multinomial(missing, chances / chances.sum())
            else:
                room = left >= missing if (left >= missing).any() else left > 0
                drawn = np.zeros_like(left)
                drawn[generator.choice(np.flatnonzero(room))] = missing
            drawn = np.minimum(drawn, left)
            counts[i] += drawn
            left -= drawn
            missing -= int(drawn.sum())
    return counts


def _dealt(generator: np.random.Generator, data: Labels, counts: Ints) -> Table:
    """Deal training rows by the counts, [M, C], and test rows in the same proportions."""
    tests = in_proportion(counts, class_sizes(data, data.train), class_sizes(data, data.test))
    dealt = [deal_classes(generator, data, *part) for part in ((data.train, counts), (data.test, tests))]
    sample, client = (np.concatenate(column) for column in zip(*dealt, strict=True))
    return {"sample": sample, "client": client}
