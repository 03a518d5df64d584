"""FedProx's rule for its federated NIST: three consecutive classes for each user."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...errors import UserError
from ..samples import Labels, Table
from .dealing import class_sizes, grouped, ranks


def consecutive_classes(
    data: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of users; 200 in the archive")] = 200,
    classes: Annotated[int, Field(gt=0, description="classes of each user; 3 in the archive")] = 3,
    pool: Annotated[int, Field(gt=0, description="most images used of a class; 4,000 in the archive")] = 4000,
    profile: Annotated[
        Literal["released", "paper"], Field(description="whether users of a class share its first images")
    ] = "released",
) -> Table:
    """Give user u the classes u, u + 1 and u + 2 modulo the number of classes, log-normal numbers of each.

    Li et al. 2020 (arXiv 1812.06127), script data/nist/data/my_sample.py of litian96/FedProx. Of each of its classes a
    user has (lognormal(4, 1) + 5) / 3 images, rounded down, at least 2 and at most as many as there are. A user's
    images are shuffled and the first 90 %, at least 1, are for training, the rest for testing. Users with the same
    first class have the same classes: ten natural clusters for ten classes. All come from the training part; a test
    part of the dataset is left unused.

    `released` is the default, because the archive that LCFL and others train on was made in this way: by a reversed
    comparison every user starts at a class's first image, so users of a class share images, also between one's training
    and another's test part. `paper`: each user continues after the one before, and no image is used twice until a class
    has run out; then reading continues from its first image.
    """
    if classes > data.classes:
        raise UserError(f"classes: {classes} for each user, but the dataset has {data.classes}")
    sizes = np.minimum(class_sizes(data, data.train), pool)
    if not sizes.all():
        raise UserError(f"consecutive-classes: class {sizes.argmin()} has no training sample; number classes 0, 1, ...")
    wanted = np.maximum(((generator.lognormal(4, 1, clients) + 5) / classes).astype(np.int64), 2)
    user = np.repeat(np.arange(clients), classes)
    label = (user + np.tile(np.arange(classes), clients)) % data.classes
    counts = np.minimum(wanted[user], sizes[label])  # [users x classes of each]
    first = np.zeros_like(counts)
    if profile == "paper":
        order = np.argsort(label, kind="stable")
        ends = np.cumsum(counts[order])
        blocks = np.bincount(label, minlength=data.classes)  # a class's users are consecutive
        before = np.concatenate([[0], ends])[np.cumsum(blocks) - blocks]
        first[order] = ends - counts[order] - np.repeat(before, blocks)
    images = data.train[grouped(generator, data.y[data.train])]
    starts = np.cumsum(class_sizes(data, data.train)) - class_sizes(data, data.train)
    place = (np.repeat(first, counts) + ranks(counts)) % np.repeat(sizes[label], counts)
    sample, client = images[np.repeat(starts[label], counts) + place], np.repeat(user, counts)
    sample = sample[grouped(generator, client)]
    totals = np.bincount(client)
    train = ranks(totals) < np.repeat(np.maximum(totals * 9 // 10, 1), totals)
    return {
        "sample": sample,
        "client": client,
        "split": np.where(train, "train", "test"),
        "true_cluster": client % data.classes,
    }
