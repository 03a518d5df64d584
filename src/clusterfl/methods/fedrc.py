"""FedRC: FedEM with responsibilities divided by how common a sample's label is in a model's cluster.

Paper: Guo, Tang and Lin, FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
Clustering, ICML 2024, arXiv 2301.12379, Algorithm 1. With ``gamma_k ~ omega_k exp(-loss of model k) / C[k, y]`` and
``C[k, y]`` label y's share of all gamma_k, a model gets no credit just for having seen a label often: only clients
whose labels contradict each other are separated, not those with different labels or inputs. Participants send their
sums of gamma by label, the server sends C.

In the authors' code (LINs-lab/FedRC, Apache-2.0) C is computed from all clients' last sums, where a client that never
took part counts as one sample for each model, spread evenly over the labels, and here not at all; for newcomers C isn't
used (``equal_labels``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from ..simulation.method import Context, Ids, Known, Problem, SampleLosses, State
from .fedem import Array, FedEM

if TYPE_CHECKING:
    from ..engine.update import Update

LEAST = 1e-8  # least samples of a label in a cluster, against divisions by zero (authors)


@dataclass
class LabelSums:
    """What FedRC keeps: each client's last sums of gamma by model and label, zeros before its first round.

    What is `sent` becomes part of `sums` only if the client's update is sound.
    """

    sums: Array  # [M, K, classes]
    sent: Array  # [M, K, classes]


@dataclass(frozen=True, kw_only=True)
class FedRC(FedEM):
    """Train K models as FedEM does, with responsibilities divided by how common a sample's label is in the cluster."""

    own: ClassVar[type | None] = LabelSums
    asks: ClassVar[str] = "sums of its shares by model and label"
    equal_labels: Annotated[
        bool,
        Field(description="newcomers' shares are FedEM's, as if all labels were equally common (authors)"),
    ] = False

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        if known.numbers:
            sentence = (
                "it divides by how common a sample's class is, and here real numbers are predicted; allowed: data "
            )
            yield Problem("", f"{sentence}with classes, or method fedem")

    def begin(self, context: Context) -> State:
        """See `Method.begin`."""
        state = super().begin(context)
        state.own = LabelSums(*np.zeros((2, context.clients, self.clusters, context.classes)))
        return state

    def odds(self, state: State, losses: SampleLosses) -> Array:
        """See `FedEM.odds`: minus the logarithm of C; before any sums were sent, all labels are equally common."""
        return -np.log(common_labels(state.own.sums)).T[losses.classes.astype(np.int64)]

    def sent(self, context: Context, state: State, clients: Ids, losses: SampleLosses, found: Array) -> None:
        """See `FedEM.sent`: sums by label, from which the next C is computed; C was received with the models."""
        shape = state.own.sums.shape[1:]
        at = losses.owner * context.classes + losses.classes.astype(np.int64)
        for k in range(shape[0]):
            sums = np.bincount(at, weights=found[:, k], minlength=len(clients) * shape[1])
            state.own.sent[clients, k] = sums.reshape(len(clients), shape[1])
        many = len(clients) * shape[0] * shape[1]
        context.survey.counted(many, many)

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """See `Method.regroup`: sums count only if none of the client's updates was dropped."""
        sound = np.setdiff1d(update.clients, update.clients[update.dropped])
        state.own.sums[sound] = state.own.sent[sound]

    def blend(self, state: State, losses: SampleLosses) -> Array:
        """See `FedEM.blend`."""
        if not self.equal_labels:
            return super().blend(state, losses)
        return FedEM(clusters=self.clusters).blend(state, losses)

    def besides(self, context: Context, columns: int, participations: float, rounds: int) -> float:
        """See `Method.besides`: sums up and C down."""
        return 2 * participations * self.clusters * context.classes


def common_labels(sums: Array) -> Array:
    """Return C [K, classes], each label's share of a cluster's samples, from clients' ``sums [M, K, classes]``."""
    total = sums.sum(axis=0).clip(min=LEAST)
    return np.asarray(total / total.sum(axis=1, keepdims=True))
