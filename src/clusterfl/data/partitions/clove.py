"""CLoVE's partitions (arXiv 2506.22427, section 5 and appendix D.1): label skews, feature skew, concept shift.

Samples are first divided over clusters, then each cluster's are dealt to its clients in equal chunks. CLoVE draws the
division once and keeps it for all its seeds, which change only the dealing: ``clusters_seed`` does the same. CLoVE's
own draws are reproduced by ``label-skew-released``.
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ... import streams
from ...errors import UserError
from ..samples import Labels, Table
from .dealing import Ints, class_sizes, deal_classes, deal_clusters, proportions, shares, turns

# Smallest clusters in the released code, for training and test samples, each with the mean cluster on MNIST or AG News;
# scaled with the mean for other data and numbers of clusters.
SMALLEST = {
    "pairs": ((6000, 12000), (750, 2000)),
    "overlapping": ((5100, 12000), (510, 2000)),
    "all-but-one": ((6000, 12000), (750, 2000)),
    "single": ((4500, 6000), (750, 1000)),
    "every-pair": ((300, 20000), (300, 1266)),
}


def label_skew(
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
    profile: Annotated[
        Literal["released", "paper"], Field(description="how a class is divided over its clusters")
    ] = "released",
    minimum: Annotated[
        list[Annotated[int, Field(ge=0)]] | None,
        Field(description="least training and test samples of a cluster; null: the released code's, in proportion"),
    ] = None,
    clusters_seed: Annotated[
        int | None, Field(ge=0, description="seed of the division over clusters; null: a new division for each seed")
    ] = None,
) -> Table:
    """Divide each class over the clusters that own it, by a Dirichlet draw.

    ========== ============================================= ============================================
    sets       clusters                                      in CLoVE
    ========== ============================================= ============================================
    pairs      {0, 1}, {2, 3}, ...                           label skew 1 (203), and its scaling set (701)
    overlapping five of 4 classes, any two share exactly 2   label skew 2 (201)
    all-but-one all without the last, 0, 1, 2; all           label skew 3 (202)
    single     {0}, {1}, ...                                 scaling set (204)
    every-pair {0, 1}, {0, 2}, ...                           AG News (401)
    ========== ============================================= ============================================

    `paper`: a class goes to its clusters in proportions from Dir(alpha), the same for training and test.
    `released`, the default because the printed numbers are from it: a tenth of a class is first divided equally; as
    long as a cluster is below `minimum`, the division is drawn again with this share larger by a twentieth; the test
    part is drawn separately. If `minimum` is null, it is 6,000 and 750 on MNIST (overlapping: 5,100 and 510; single:
    4,500 and 750; every-pair on AG News: 300 and 300), elsewhere the same share of a cluster's mean size. The released
    code keeps MNIST's numbers on CIFAR-10; set them there to reproduce it.

    Raises
    ------
    UserError
        If the classes allow no such sets, or a cluster stays too small.
    """
    draw = _stream(generator, clusters_seed)
    owners = owned_classes(draw, sets, data.classes)
    parts = data.parts()
    sizes = [class_sizes(data, rows) for rows in parts]
    if profile == "paper":
        weights = _over_owners(draw, alpha, owners)
        counts = [_by_weight(weights, owners, n) for n in sizes]
    else:
        smallest = check_minimum(minimum, sets, len(owners), parts)
        counts = [_reserved(draw, alpha, owners, n, least) for n, least in zip(sizes, smallest, strict=False)]
    divided = [deal_classes(draw, data, rows, n) for rows, n in zip(parts, counts, strict=True)]
    return deal_clusters(generator, divided, len(owners), clients_per_cluster, samples)


def _stream(generator: np.random.Generator, clusters_seed: int | None) -> np.random.Generator:
    """Return the generator for the division over clusters."""
    return generator if clusters_seed is None else streams.generator(clusters_seed, "clusters")


def check_minimum(minimum: list[int] | None, sets: str, clusters: int, parts: list[Ints]) -> list[int]:
    """Return the least samples of a cluster in each part; by default the released code's, in proportion.

    Raises
    ------
    UserError
        If `minimum` doesn't have two numbers.
    """
    if minimum is None:
        return [len(rows) // clusters * least // of for rows, (least, of) in zip(parts, SMALLEST[sets], strict=False)]
    if len(minimum) != 2:
        raise UserError(f"minimum: {minimum}; give two numbers, for training and test samples of a cluster")
    return minimum


def too_small(sizes: Ints, minimum: int) -> UserError:
    """Return the error if no division gives each cluster enough samples; `sizes` [K] are those of the last one."""
    return UserError(
        f"minimum: even dealt equally, cluster {sizes.argmin()} has {sizes.min()} samples where {minimum} are "
        "wanted; lower it"
    )


def owned_classes(generator: np.random.Generator | np.random.RandomState, sets: str, classes: int) -> NDArray[np.bool_]:
    """Return which cluster owns which class, [K, C]."""
    least = {"overlapping": 4, "all-but-one": 4, "every-pair": 2}.get(sets, 1)
    if classes < least:
        raise UserError(f"sets: {sets} needs at least {least} classes, but there are {classes}; use single")
    everything = list(range(classes))
    if sets == "overlapping":
        chosen = _overlapping(generator, classes)
    elif sets == "all-but-one":
        chosen = [[c for c in everything if c != out] for out in (classes - 1, 0, 1, 2)] + [everything]
    elif sets == "every-pair":
        chosen = [list(pair) for pair in combinations(everything, 2)]
    else:
        width = 2 if sets == "pairs" else 1
        chosen = [everything[c : c + width] for c in range(0, classes, width)]
    owners = np.zeros((len(chosen), classes), dtype=bool)
    for k, labels in enumerate(chosen):
        owners[k, labels] = True
    return owners


def _overlapping(generator: np.random.Generator | np.random.RandomState, classes: int) -> list[list[int]]:
    """Draw five sets of 4 classes of which any two share exactly 2, by rejection."""
    for _ in range(20):  # after some first sets there are no possible others: start again
        chosen: list[list[int]] = []
        for _ in range(1000):
            labels = generator.choice(classes, 4, replace=False).tolist()
            if all(len(set(labels) & set(other)) == 2 for other in chosen):
                chosen.append(labels)
            if len(chosen) == 5:
                return chosen
    raise UserError(
        f"sets: among {classes} classes no five sets of 4 were found of which any two share 2; use pairs or all-but-one"
    )


def _over_owners(generator: np.random.Generator, alpha: float, owners: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Draw the proportions of the clusters in each class that has an owner, [C', K]."""
    return proportions(generator, alpha, owners.T[owners.any(axis=0)])


def _by_weight(weights: NDArray[np.float64] | Ints, owners: NDArray[np.bool_], sizes: Ints) -> Ints:
    """Divide classes of `sizes` over their owners, [K, C]; a class without an owner goes to nobody."""
    counts = np.zeros(owners.shape, dtype=np.int64)
    owned = owners.any(axis=0)
    counts[:, owned] = shares(weights, sizes[owned]).T
    return counts


def _reserved(
    generator: np.random.Generator, alpha: float, owners: NDArray[np.bool_], sizes: Ints, minimum: int
) -> Ints:
    """Divide classes by Dir(alpha) after a reserved share that grows until the smallest cluster is large enough."""
    equal = owners.T[owners.any(axis=0)].astype(np.int64)
    for percent in range(10, 101, 5):
        reserved = sizes * percent // 100
        counts = _by_weight(equal, owners, reserved)
        counts += _by_weight(_over_owners(generator, alpha, owners), owners, sizes - reserved)
        if counts.sum(axis=1).min() >= minimum:
            return counts
    raise too_small(counts.sum(axis=1), minimum)


def dominant_class(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients_per_cluster: Annotated[int, Field(gt=0, description="clients of each cluster")] = 5,
    samples: Annotated[int | None, Field(gt=0, description="most training (and test) samples of a client")] = 500,
    profile: Annotated[
        Literal["released", "paper"], Field(description="whether the rest is without the dominant class (released)")
    ] = "released",
    clusters_seed: Annotated[
        int | None, Field(ge=0, description="seed of the division over clusters; null: a new division for each seed")
    ] = None,
) -> Table:
    """Give cluster c two thirds of its samples from class c and the rest from all classes: CLoVE's label skew 4.

    A cluster's size is 90 % of the smallest class, so that no class runs out. `paper` (after Xu et al. 2023): the
    remaining third is uniform over all classes. `released`, the default because the printed numbers are from it: 66.6 %
    from class c, and the rest from the *other* classes.
    """
    draw = _stream(generator, clusters_seed)
    divided = []
    for rows in data.parts():
        size = int(class_sizes(data, rows).min()) * 9 // 10
        own = size * 666 // 1000 if profile == "released" else size * 2 // 3
        others = data.classes - 1 if profile == "released" else data.classes
        counts = np.full((data.classes, data.classes), (size - own) // max(others, 1))
        counts[np.diag_indices(data.classes)] = own if profile == "released" else own + counts[0, 0]
        divided.append(deal_classes(draw, data, rows, counts))
    return deal_clusters(generator, divided, data.classes, clients_per_cluster, samples)


def feature_skew(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients_per_cluster: Annotated[int, Field(gt=0, description="clients of each cluster")] = 10,
    samples: Annotated[int | None, Field(gt=0, description="most training (and test) samples of a client")] = 500,
    angles: Annotated[
        list[Literal[0, 90, 180, 270]],
        Field(min_length=1, description="degrees counter-clockwise; one cluster each"),
    ] = [0, 90, 180, 270],  # noqa: B006 (read from the source as a literal, never changed)
    profile: Annotated[
        Literal["paper", "released"],
        Field(description="paper: rotate images; released: permute labels, as that code does on CIFAR-10"),
    ] = "paper",
    clusters_seed: Annotated[
        int | None, Field(ge=0, description="seed of the label permutations; null: new ones for each seed")
    ] = None,
) -> Table:
    """Rotate each cluster's images by its own angle; every cluster draws from the full data.

    `paper` is the default, because the released code does the same on MNIST and Fashion-MNIST. `released` is what it
    does on CIFAR-10, where it reads the raw array: there is no rotation, and because each load permutes the labels at
    random, each cluster has another permutation, which is a concept shift.
    """
    draw = _stream(generator, clusters_seed)
    clusters = len(angles)
    if profile == "paper":
        names = turns(angles)
    else:
        permuted = [draw.permutation(data.classes) for _ in angles]
        names = np.array([f"relabel({','.join(map(str, p))})" for p in permuted])
    parts = [(np.tile(rows, clusters), np.repeat(np.arange(clusters), len(rows))) for rows in data.parts()]
    table = deal_clusters(generator, parts, clusters, clients_per_cluster, samples)
    return {**table, "transform": names[table["true_cluster"]]}


def concept_shift(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients_per_cluster: Annotated[int, Field(gt=0, description="clients of each cluster")] = 5,
    samples: Annotated[int | None, Field(gt=0, description="most training (and test) samples of a client")] = 1000,
    swaps: Annotated[
        list[list[int]], Field(min_length=1, description="for each cluster, labels that are exchanged pair by pair")
    ] = [[0, 3, 8, 9], [1, 4, 6, 9], [1, 2, 3, 6], [3, 5, 4, 7]],  # noqa: B006 (a literal, never changed)
    train_per_class: Annotated[int, Field(gt=0, description="training samples of each class in a cluster")] = 1250,
    test_per_class: Annotated[int, Field(gt=0, description="test samples of each class in a cluster")] = 200,
    clusters_seed: Annotated[
        int | None, Field(ge=0, description="seed of the division over clusters; null: a new division for each seed")
    ] = None,
) -> Table:
    """Give all clusters the same classes, but exchange different pairs of labels in each (CLoVE's experiment 111).

    Raises
    ------
    UserError
        If a class has too few samples, or a label in `swaps` doesn't exist.
    """
    for labels in swaps:
        if len(labels) % 2 or len(set(labels)) != len(labels) or not set(labels) <= set(range(data.classes)):
            raise UserError(
                f"swaps: {labels}; give an even number of different labels from 0 to {data.classes - 1}, neighbours "
                "being exchanged"
            )
    draw = _stream(generator, clusters_seed)
    wanted = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    divided = []
    for rows, (option, each) in zip(data.parts(), wanted.items(), strict=False):
        sizes = class_sizes(data, rows)
        if sizes.min() < each * len(swaps):
            raise UserError(
                f"{option}: {each} for {len(swaps)} clusters, but class {sizes.argmin()} has {sizes.min()} samples; "
                f"at most {sizes.min() // len(swaps)} are possible"
            )
        divided.append(deal_classes(draw, data, rows, np.full((len(swaps), data.classes), each)))
    pairs = [[f"swap({a},{b})" for a, b in zip(s[::2], s[1::2], strict=True)] for s in swaps]
    names = np.array(["+".join(cluster) or "none" for cluster in pairs])
    table = deal_clusters(generator, divided, len(swaps), clients_per_cluster, samples)
    return {**table, "transform": names[table["true_cluster"]]}
