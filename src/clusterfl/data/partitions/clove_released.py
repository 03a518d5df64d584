"""The label skews of CLoVE's released code (Nokia-Bell-Labs' repository of the paper), sample by sample.

That code divides the samples over clusters once, with its first seed, and keeps the division for the others. So the
spread over seeds doesn't show the influence of the division, and another one may be easier: each of the five sets of
labels in its label skew 2 has two or three of Fashion-MNIST's pullovers, coats and shirts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...errors import UserError
from ..samples import Labels, Table
from .clove import check_minimum, owned_classes, too_small
from .dealing import Ints, deal_clusters


def label_skew_released(
    data: Labels,
    generator: np.random.Generator,
    *,
    sets: Annotated[
        Literal["pairs", "overlapping", "all-but-one", "single", "every-pair"],
        Field(description="the clusters' classes: label skew 1, 2, 3; one class each; all pairs (AG News)"),
    ],
    clients_per_cluster: Annotated[int, Field(gt=0, description="clients of each cluster")] = 5,
    samples: Annotated[int | None, Field(gt=0, description="most training (and test) samples of a client")] = 500,
    alpha: Annotated[float, Field(gt=0, description="alpha of the Dirichlet over a class's clusters")] = 0.5,
    minimum: Annotated[
        list[Annotated[int, Field(ge=0)]] | None,
        Field(description="least training and test samples of a cluster; null: the released code's, in proportion"),
    ] = None,
    drawn_with: Annotated[
        int, Field(ge=0, le=4294967295, description="the released code's seed; all its runs keep the first one's, 1")
    ] = 1,
    order: Annotated[
        list[int] | None,
        Field(description="the classes as that code numbers them, e.g. [3, 0, 2, 1]; null: unchanged"),
    ] = None,
) -> Table:
    """Give each cluster the samples that it has in CLoVE's released code: ``label-skew`` with the draws of that code.

    Draws are made in that code's order from NumPy's legacy generator, whose numbers no version may change (NEP 19):
    first the sets of labels, if they are random; then, in the training and again in the test part, each class is
    shuffled and divided, a tenth equally and the rest by Dir(alpha), again with this share larger by a twentieth as
    long as a cluster is below `minimum`. A study's seed changes only the dealing of a cluster's samples to its clients.
    On CIFAR-10 that code numbers the classes in a random order, which `order` gives.

    Raises
    ------
    UserError
        If the classes allow no such sets, or a cluster stays too small.
    """
    if order is not None:
        if sorted(order) != list(range(data.classes)):
            raise UserError(f"order: {order}; give each class from 0 to {data.classes - 1} once")
        data = replace(data, y=np.argsort(order)[data.y])
    draw = np.random.RandomState(drawn_with)
    owners = owned_classes(draw, sets, data.classes)
    parts = data.parts()
    least = check_minimum(minimum, sets, len(owners), parts)
    divided = [_divide(draw, data, rows, owners, alpha, n) for rows, n in zip(parts, least, strict=False)]
    return deal_clusters(generator, divided, len(owners), clients_per_cluster, samples)


def _divide(
    draw: np.random.RandomState, data: Labels, rows: Ints, owners: NDArray[np.bool_], alpha: float, minimum: int
) -> tuple[Ints, Ints]:
    """Return samples and their clusters, [N] each.

    Some draws only advance the generator, as in that code: shuffles of classes without an owner, and of clusters.
    """
    classes = [rows[data.y[rows] == c] for c in range(data.classes)]
    reserve = 0.1
    while True:
        clusters: list[list[Ints]] = [[] for _ in owners]
        for c, its in enumerate(classes):
            pool, mine = its.copy(), np.flatnonzero(owners[:, c])
            draw.shuffle(pool)
            if not len(mine):
                continue
            equal, rest = np.split(pool, [int(len(pool) * reserve)])
            ends = np.cumsum(draw.dirichlet([alpha] * len(mine))) * len(rest)
            drawn = np.split(rest, ends.astype(np.int64)[:-1])
            for k, *both in zip(mine, drawn, np.array_split(equal, len(mine)), strict=True):
                clusters[k] += both
        members = [np.concatenate(cluster) for cluster in clusters]
        for cluster in members:
            draw.shuffle(cluster)
        sizes = np.array([len(cluster) for cluster in members])
        if sizes.min() >= minimum:
            return np.concatenate(members), np.repeat(np.arange(len(members)), sizes)
        reserve += 0.05
        if reserve > 1:
            raise too_small(sizes, minimum)
