"""Losses that an evaluation has measured, so that the next round needn't measure them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..engine.task import Scores
from ..storage.row_store import Readable
from .state import Ids, State


@dataclass(frozen=True)
class Measured:
    """The loss of each client's own model on its training data."""

    models: bytes  # digest of all K
    labels: Ids  # [M]; -1: none
    loss: NDArray[np.float64]  # [M]

    @classmethod
    def of(cls, state: State, clients: Ids, scores: Scores) -> Measured | None:
        """Return the losses in the `scores` [m] of the models that `state` assigns to `clients` [m].

        None if clients keep columns or mix models, so that their own models aren't among the K, or if these are in a
        file.
        """
        if state.personal is not None or state.mixture is not None or not isinstance(state.theta, Tensor):
            return None
        labels, loss = np.full(len(state.labels), -1), np.full(len(state.labels), np.nan)
        labels[clients], loss[clients] = state.labels[clients], scores.loss
        return cls(_digest(state.theta), labels, loss)

    def own(self, theta: Readable, clients: Ids) -> tuple[Ids, NDArray[np.float64]] | None:
        """Return labels and losses [m] of `clients`; None if ``theta [K, P]`` aren't the measured models."""
        if not isinstance(theta, Tensor) or _digest(theta) != self.models:
            return None
        return self.labels[clients], self.loss[clients]


def _digest(theta: Tensor) -> bytes:
    return hashlib.blake2b(theta.contiguous().cpu().numpy().data, digest_size=32).digest()
