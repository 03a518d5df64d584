"""Groups of clients whose images are rotated by the same angle: LCFL, IFCA, RR-Cluster."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...errors import UserError
from ..samples import Labels, Table
from .dealing import Ints, check_enough, evenly, joined, shares, turns


def rotated(
    labels: Labels,
    generator: np.random.Generator,
    *,
    clients: Annotated[int, Field(gt=0, description="number of clients")],
    angles: Annotated[
        list[Literal[0, 90, 180, 270]],
        Field(min_length=1, description="degrees counter-clockwise; one group each"),
    ] = [0, 90, 180, 270],  # noqa: B006 (read from the source as a literal, never changed)
    data: Annotated[
        Literal["once", "each"],
        Field(description="deal all data once (RR-Cluster), or once to each group (LCFL, IFCA)"),
    ] = "once",
    ratios: Annotated[
        list[int] | None, Field(description="ratio of the groups' numbers of clients, e.g. [2, 1, 1]; null: equal")
    ] = None,
    test_order: Annotated[
        Literal["shuffled", "file"], Field(description="order in which test rows are cut; LCFL and IFCA: file")
    ] = "shuffled",
    test_clients: Annotated[
        int, Field(ge=0, description="newcomers that get the test part instead of the members; IFCA: clients / 6")
    ] = 0,
) -> Table:
    """Deal samples out evenly; the images of group g are rotated by ``angles[g]``.

    Client ids are consecutive within a group. The defaults deal every sample once, shuffled (RR-Cluster, section 5.2):
    if small datasets were copied four times, each client would share its images with three others. LCFL's Rotated MNIST
    and CIFAR-10 (fl-sim, released code) and IFCA's are ``data: each, test_order: file``: every group gets a complete
    copy, and test rows are not shuffled (with `once` each group would get its own section of the test file). IFCA's
    test data belong to M / 6 separate clients, with as many samples each as the others have.
    """
    ratio = np.ones(len(angles), dtype=np.int64) if ratios is None else np.asarray(ratios)
    if len(ratio) != len(angles) or ratio.min() < 1:
        raise UserError(f"ratios: {ratios} for {len(angles)} angles; give one whole number above 0 for each angle")
    if test_clients > len(labels.test):
        raise UserError(
            f"test_clients: {test_clients}, but the dataset's test part has {len(labels.test)} samples; give at most "
            "as many, 0 for no newcomers"
        )
    members = _members(clients, ratio, "clients")
    copies = len(angles) if data == "each" else 1
    check_enough(int(members.max()) if copies > 1 else clients, len(labels.train))
    table = _dealt(generator, labels.train, members, copies, shuffle=True)
    tests = _members(test_clients, ratio, "test_clients") if test_clients else members
    test = _dealt(generator, labels.test, tests, copies, shuffle=test_order == "shuffled")
    if test_clients:
        test["client"] += clients
        for part, split, role in ((table, "train", "member"), (test, "test", "newcomer")):
            part["split"], part["role"] = np.full(len(part["sample"]), split), np.full(len(part["sample"]), role)
    table = joined([table, test])
    return {**table, "transform": turns(angles)[table["true_cluster"]]}


def _members(clients: int, ratio: Ints, option: str) -> Ints:
    """Return the number of clients in each group."""
    members = shares(ratio, clients)
    if not members.all():
        raise UserError(f"{option}: {clients} can't be divided over {len(ratio)} groups; every group needs a client")
    return members


def _dealt(generator: np.random.Generator, rows: Ints, members: Ints, copies: int, shuffle: bool) -> Table:
    """Cut `copies` of the rows into equal pieces, one for each client."""
    pieces = members if copies > 1 else members.sum(keepdims=True)
    samples = [generator.permutation(rows) if shuffle else rows for _ in range(copies)]
    client = np.repeat(np.arange(members.sum()), np.concatenate([evenly(int(m), len(rows)) for m in pieces]))
    group = np.repeat(np.arange(len(members)), members)
    return {"sample": np.concatenate(samples), "client": client, "true_cluster": group[client]}
