"""Scoring of models on clients' data: losses, correct predictions, features and their sums.

Axes: M clients, m of them, K models, P columns of a model's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.federation import Federation
from ..errors import UserError
from ..storage.blocks import blocks
from ..storage.row_store import Readable
from .features import Head, Moments
from .personal import Personal
from .processes import Processes, one_thread
from .task import Ids, Scores
from .worker import Worker

MODELS_AT_ONCE = 8  # the most models that one task scores


class Scoring:
    """The part of an engine that scores models."""

    worker: Worker
    federation: Federation
    device: torch.device
    workers: int
    _processes: Processes

    def losses(
        self, theta: Readable, clients: Ids, split: str = "train", personal: Personal | None = None,
        own: tuple[Ids, NDArray[np.float64]] | None = None,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return ``L [m, K]``, the mean loss of each model of ``theta [K, P]`` on each client's data.

        `own` gives labels [m] (-1: none) and the already known losses [m] of these models, which aren't measured again
        unless models are scored together, because then leaving one out saves nothing.
        """
        if own is None or personal is not None or self.worker.several:
            return self.scores(theta, clients, split, personal=personal).loss
        labels, found = own[0], np.full((len(clients), len(theta)), np.nan)
        groups = [np.array_split(np.flatnonzero(labels != k), self._pieces(len(theta))) for k in range(len(theta))]
        jobs = [(np.array([k]), group) for k, parts in enumerate(groups) for group in parts if len(group)]
        for (k, group), scores in zip(jobs, self._scored(theta, jobs, split, clients, None), strict=True):
            found[group, k] = scores.loss[:, 0]
        there = np.flatnonzero(labels >= 0)
        found[there, labels[there]] = own[1][there]
        return found

    def scores(
        self,
        theta: Readable,
        clients: Ids,
        split: str,
        progress: Callable[[int], None] = lambda done: None,
        models: Ids | None = None,
        personal: Personal | None = None,
    ) -> Scores:
        """Return the scores of all models, or of the given `models`, on each client: arrays [m, K] (``n`` is [m]).

        `progress` is called with the number of models done. With `personal`, a client's own columns replace those of
        every model.
        """
        wanted = np.arange(len(theta)) if models is None else models
        found = Scores.none(self.worker.splits[split].sizes[clients], len(wanted))
        # As many models together as possible, if there are enough clients for all processes.
        together = self.worker.several and len(clients) >= 4 * self.workers
        few = len(wanted) if together else -(-len(wanted) // (4 * self.workers))
        parts = np.array_split(np.arange(len(wanted)), -(-len(wanted) // min(MODELS_AT_ONCE, max(few, 1))))
        pieces = self._pieces(len(parts)) if personal is None else len(clients)
        groups = np.array_split(np.arange(len(clients)), max(1, min(pieces, len(clients))))
        jobs = [(columns, group) for columns in parts for group in groups]
        asked = [(wanted[columns], group) for columns, group in jobs]
        for (columns, group), scores in zip(jobs, self._scored(theta, asked, split, clients, personal), strict=True):
            for name in ("correct", "loss"):
                getattr(found, name)[np.ix_(group, columns)] = getattr(scores, name)
            progress(int(columns[-1]) + 1)
        return found

    def _pieces(self, parts: int) -> int:
        """Return into how many groups to cut the clients, with this many `parts` of models, to occupy all processes."""
        return -(-4 * self.workers // max(parts, 1)) if self.workers > 1 else 1

    def losses_of_samples(self, theta: Readable, clients: Ids, split: str = "train") -> NDArray[np.float64]:
        """Return the loss of each model of ``theta [K, P]`` on each sample of `clients`, client by client, [N, K].

        The server must not see them; `losses` are their means.
        """
        theta, k = self._processes.shared(theta), np.arange(len(theta))
        tasks = ((theta, k, split, clients[group]) for group in self._groups(len(clients)))
        found = [np.array(part) for part in self._processes.map(Worker.losses_of_samples, tasks)]
        return np.concatenate(found)

    def own_scores(
        self, theta: Readable, labels: Ids, clients: Ids, split: str, personal: Personal | None = None,
        nearest: Tensor | None = None, mixture: NDArray[np.float64] | None = None,
    ) -> Scores:  # fmt: skip
        """Return the scores of each client's own model, ``theta[labels[i]]`` for ``clients[i]``, arrays [m].

        With `personal`, the client's own columns replace the model's; with `nearest`, class centres [classes, d], the
        class whose centre is nearest to the features is predicted; with a `mixture` [m, K] (and neither of the others),
        the mean of all models' predictions, weighted by these shares, is scored instead.
        """
        found = Scores.none(self.worker.splits[split].sizes[clients])
        if mixture is not None:
            assert personal is None and nearest is None
            return self._blended(theta, mixture, clients, split, found)
        order = np.argsort(labels, kind="stable")
        if self.worker.chains and nearest is None:
            parts = self._groups(len(order), len(blocks(len(order), 4 * theta.shape[1])))
            groups = [order[part] for part in parts]
            theta, personal = self._processes.shared(theta), self._shared(personal)
            tasks = ((theta, labels[group], split, clients[group], personal) for group in groups)
            return _put(found, groups, self._processes.map(Worker.score_own, tasks))
        most = max(1, -(-len(clients) // (4 * self.workers))) if personal is None else 1
        jobs = []
        for group in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []:
            k = labels[group[0]]
            jobs += [(np.array([k]), group[i : i + most]) for i in range(0, len(group), most)]
        return _put(found, [group for _, group in jobs], self._scored(theta, jobs, split, clients, personal, nearest))

    def _blended(
        self, theta: Readable, mixture: NDArray[np.float64], clients: Ids, split: str, found: Scores
    ) -> Scores:
        """Write the scores of mixtures of models into `found` and return it."""
        theta = self._processes.shared(theta)
        groups = self._groups(len(clients))
        tasks = ((theta, mixture[group], split, clients[group]) for group in groups)
        return _put(found, groups, self._processes.map(Worker.score_blends, tasks))

    def _scored(
        self, theta: Readable, jobs: list[tuple[Ids, Ids]], split: str, clients: Ids, personal: Personal | None,
        nearest: Tensor | None = None,
    ) -> Iterator[Scores]:  # fmt: skip
        """Yield the scores [m, k] for each job: k models, and m positions among `clients`."""
        theta, personal = self._processes.shared(theta), self._shared(personal)
        return self._processes.map(
            Worker.score_models, ((theta, models, split, clients[group], personal, nearest) for models, group in jobs)
        )

    def _shared(self, personal: Personal | None) -> Personal | None:
        """Return `personal` in memory, or files, that all processes share."""
        return None if personal is None else personal.at(self._processes.shared(personal.rows))

    def moments(self, theta: Readable, start: Ids, clients: Ids) -> Moments:
        """Return the `Moments` of the training samples of `clients` [m], with features under ``theta[start]``.

        Raises
        ------
        UserError
            If the model has no features.
        """
        found, theta = self._no_moments(len(clients)), self._processes.shared(theta)
        tasks = ((theta, int(k), int(client)) for k, client in zip(start, clients, strict=True))
        for i, one in enumerate(self._processes.map(Worker.moments_of, tasks)):
            found.put(slice(i, i + 1), one)
        return found

    def features(self, row: Tensor, clients: Ids, split: str) -> Iterator[Tensor]:
        """Yield each client's samples' features under the model ``row [P]``, [n, d] in float64.

        They are valid until the next client's are requested.

        Raises
        ------
        UserError
            If the model has no features.
        """
        if not isinstance(self.worker.head, Head):
            raise UserError(f"the model has no features: {self.worker.head}")
        theta, sizes = self._processes.shared(row[None]), self.worker.splits[split].sizes[clients]
        parts = self._groups(len(clients), len(blocks(int(sizes.sum()), 8 * self.worker.head.features)))
        tasks = ((theta, split, clients[part]) for part in parts)
        for part, found in zip(parts, self._processes.map(Worker.features_of, tasks), strict=True):
            yield from found.split(sizes[part].tolist())

    def _groups(self, clients: int, fewest: int = 1) -> list[Ids]:
        """Cut positions 0 to clients - 1 into groups: several for each process, and at least `fewest` if possible."""
        return np.array_split(np.arange(clients), max(1, min(max(4 * self.workers, fewest), clients)))

    def _no_moments(self, clients: int) -> Moments:
        """Return zeros for the sums of this many clients' features."""
        if not isinstance(self.worker.head, Head):
            raise UserError(f"the model has no features: {self.worker.head}")
        return Moments.none(clients, self.federation.classes, self.worker.head.features)

    def blended(
        self, theta: Readable, shares: NDArray[np.float64], split: str, rows: Ids
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return losses and correctness (0, 1) of mixtures of all models by ``shares [rows, K]``, each [rows]."""
        with torch.inference_mode(), one_thread(self.device):
            losses, correct = self.worker.blended(theta[torch.arange(len(theta))], shares, split, rows)
        return losses.numpy(), correct.numpy()

    def correct(self, row: Tensor, split: str, rows: Ids, nearest: Tensor | None = None) -> NDArray[np.float64]:
        """Return whether the model ``row [P]`` is correct (0, 1) on each of the split's `rows`; see `own_scores`."""
        with torch.inference_mode(), one_thread(self.device):
            if nearest is not None:
                return self.worker.nearest(row, split, rows, nearest)[1].numpy()
            return self.worker.forward(row[None], split, rows)[1][0].numpy()


def _put(found: Scores, groups: Sequence[Ids], each: Iterable[Scores]) -> Scores:
    """Write the scores [n, 1] of groups of positions into `found`, arrays [m], and return it."""
    for group, scores in zip(groups, each, strict=True):
        found.correct[group], found.loss[group] = scores.correct[:, 0], scores.loss[:, 0]
    return found
