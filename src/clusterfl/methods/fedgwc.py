"""FedGWC: clients whose losses stay close to one another's belong together; clusters are split during the run.

Paper: arXiv 2502.03340, Eqs. 1, 3 and 4, Algorithms 1 and 2. In each cluster and round a participant k has a reward
omega_k, which is 1 if its losses equal the participants' mean, and smaller the further they are from it. Entry P_kj of
the interaction matrix is a moving average of k's rewards in rounds in which j took part, too. When P has converged,
spectral clustering finds clients that are similar in P, and the cluster is split if the Davies-Bouldin score says that
the parts are well separated. Each part continues with a copy of the model.

`PROFILES` lists where the released code departs from the paper; the paper's printed numbers are most likely the code's,
so ``profile: released`` is the default. Eq. 2, the Gaussian weights, has no effect in either and isn't implemented.

Axes: M clients, m participants or members of a cluster, S iterations, K models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..clustering.affinity import of_rows, scaled
from ..errors import Diverged
from ..simulation.method import Context, Ids, Known, Method, Problem, State, draw
from ..simulation.model_rows import append_copies
from ..simulation.state import named, part, parts
from ..storage.blocks import too_many
from .splitting import best_split

if TYPE_CHECKING:
    from ..engine.update import Update

GUARD = 1e-16  # added to the variance, as the released code does: equal losses have reward 1
MOST_PARTS = 4  # the most that the released code tries
REWARDS = 1 << 24  # the most that are kept, 4 bytes each
KEPT_SPLITS, KEPT_CLIENTS = 8, 1000  # with more clients, only this many splits keep their matrices


class Switches(NamedTuple):
    """What paper and released code do differently. ``relative``: from a cluster's size and the clients per round."""

    alpha: float | Literal["relative"]
    patience: int | Literal["relative"]
    parts: int | Literal["relative"]
    start: Literal["uniform", "zero"]
    variance: Literal["weighted", "sample"]
    normalised: bool
    transposed: bool
    scaled: bool


PROFILES = {
    "released": Switches("relative", "relative", "relative", "uniform", "weighted", True, True, True),
    "paper": Switches(0.1, 1, MOST_PARTS, "zero", "sample", False, False, False),
}


def rewards(losses: Any, sizes: Any = None) -> NDArray[np.float64]:
    """Return Eq. 1 averaged over iterations, [m]: in (0, 1], and 1 where all losses are equal.

    With mu_s and sigma_s^2 the mean and variance of the losses in iteration s, the reward of client k is the mean over
    its iterations of ``exp(-(l_ks - mu_s)^2 / (2 sigma_s^2))``.

    Parameters
    ----------
    losses : [m, S]
        Each client's losses on its mini-batches, before their steps. NaN where a client had no more steps: this counts
        neither in the iteration's mean nor in the client's.
    sizes : [m], optional
        Weights in mu and sigma^2, which are then divided by the weights' sum (released code). Without them both are
        unweighted and the variance is the sample variance, divided by the number of clients minus 1 (paper).
    """
    losses = np.asarray(losses, dtype=np.float64)
    losses = losses[:, ~np.isnan(losses).all(axis=0)]
    there = ~np.isnan(losses)
    weights = there * (1.0 if sizes is None else np.asarray(sizes, dtype=np.float64)[:, None])
    mean = (weights * np.where(there, losses, 0)).sum(axis=0) / weights.sum(axis=0)
    squares = np.where(there, np.square(losses - mean), 0)
    divisor = np.maximum(there.sum(axis=0) - 1, 1) if sizes is None else weights.sum(axis=0)
    variance = (weights * squares).sum(axis=0) / divisor + GUARD
    found: NDArray[np.float64] = np.where(there, np.exp(-squares / (2 * variance)), 0).sum(axis=1) / there.sum(axis=1)
    return found


def padded(
    losses: NDArray[np.float64], sizes: NDArray[Any], count: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return losses [count, S]: those given, followed by losses of made-up clients (released code).

    A made-up client's loss in iteration s is drawn from N(mu_s, sigma_s^2), both weighted by sizes. Rewards then follow
    from the unweighted mean and variance of all these losses, the variance with divisor count - 1.
    """
    m = len(losses)
    there = ~np.isnan(losses)
    weights = there * sizes[:, None]
    total = weights.sum(axis=0)
    mean = (weights * np.where(there, losses, 0)).sum(axis=0) / total
    std = np.sqrt((weights * np.where(there, np.square(losses - mean), 0)).sum(axis=0) / total)
    drawn = mean + std * generator.standard_normal((count - m, losses.shape[1]))
    return np.concatenate([losses, drawn])


def update_interaction(interaction: Any, members: Any, omega: Any, alpha: float) -> NDArray[np.float64]:
    """Return the next interaction matrix, Eq. 3: ``P_kj <- (1 - alpha) P_kj + alpha omega_k`` for k and j in `members`.

    Parameters
    ----------
    interaction : [M, M]
        P, with entries from 0 to 1; the result's are in this range, too.
    members : [m]
        The round's participants, positions in P.
    omega : [m]
        Their rewards.
    alpha
        From 0 to 1.
    """
    found = np.array(interaction, dtype=np.float64)
    block = np.ix_(members, members)
    found[block] = (1 - alpha) * found[block] + alpha * np.asarray(omega)[:, None]
    return found


@dataclass
class Matrices:
    """An attempt to split a cluster: its members, their clusters afterwards, and the matrices that decided.

    The members' block of P and the affinity are kept for small federations, and for the first splits of large ones.
    """

    members: Ids  # [m]
    labels: Ids  # [m]
    interaction: NDArray[np.float32] | None = None  # [m, m]
    affinity: NDArray[np.float32] | None = None  # [m, m]


@dataclass
class Attempts:
    """All A attempts to split a cluster."""

    round: Ids  # [A]
    cluster: Ids  # [A]
    parts: Ids  # [A], how many were found, 1 = no split
    scores: NDArray[np.float64]  # [A, parts], Davies-Bouldin scores of 2, 3, ... parts, NaN = not tried

    def append(self, **row: Any) -> None:
        """Append an attempt; missing scores are filled up with NaN."""
        for name, value in row.items():
            before = getattr(self, name)
            if name == "scores":
                value = np.append(value, np.full(before.shape[1] - len(value), np.nan))
            setattr(self, name, np.concatenate([before, np.asarray(value, before.dtype)[None]]))


@dataclass(kw_only=True)
class Interaction:
    """What FedGWC keeps. P is one matrix, of which each cluster uses the block of its members."""

    interaction: NDArray[np.float64]  # [M, M], P
    mse: NDArray[np.float64]  # [K], of each cluster's block
    calm: Ids  # [K], rounds in a row with an MSE below epsilon
    mse_rounds: NDArray[np.float64] = field(metadata=named("mse.rounds"))  # [rounds], the mean over clusters
    # [rounds, M] in float32, NaN for non-participants; in long runs a row has the last reward in `window` rounds.
    rewards: NDArray[np.float32]
    window: int = field(metadata=named("rewards.window"))
    attempts: Attempts = field(metadata=part(Attempts))
    split_attempts: Ids = field(metadata=named("splits.attempt"))  # which attempts were splits
    split: list[Matrices] = field(default_factory=list, metadata=parts(Matrices, "split"))
    last: Matrices | None = field(default=None, metadata=part(Matrices))  # of the last attempt whose matrices are kept


@dataclass(frozen=True, kw_only=True)
class FedGWC(Method):
    """Split clusters by how close their members' losses have been to one another."""

    needs: ClassVar[frozenset[str]] = frozenset({"curves"})
    splits: ClassVar[bool] = True
    own: ClassVar[type | None] = Interaction
    profile: Annotated[
        Literal["released", "paper"],
        Field(description="values of the options below that aren't set: those of the released code or of the paper"),
    ] = "released"
    beta: Annotated[float, Field(gt=0, description="in the affinity exp(-beta d^2), Eq. 4; paper: .1, .5, 1, 2, 4")] = (
        0.5
    )
    epsilon: Annotated[
        float,
        Field(gt=0, description="a cluster has converged when the MSE of its interaction matrix is below this"),
    ] = 1e-5
    alpha: Annotated[
        Annotated[float, Field(gt=0, le=1)] | Literal["relative"] | None,
        Field(description="weight of a new round: clients per round / members (relative; released), .1 (paper)"),
    ] = None
    normalised: Annotated[
        bool | None, Field(description="rewards are divided by their sum: true (released), false (paper)")
    ] = None
    start: Annotated[
        Literal["uniform", "zero"] | None,
        Field(description="first entries of the interaction matrix: 1 / M^2 (uniform; released), 0 (zero; paper)"),
    ] = None
    variance: Annotated[
        Literal["weighted", "sample"] | None,
        Field(description="variance of losses: population's, by samples (weighted; released), or sample's (paper)"),
    ] = None
    transposed: Annotated[
        bool | None, Field(description="clients are compared by columns of the matrix (released), not by rows (paper)")
    ] = None
    scaled: Annotated[
        bool | None, Field(description="the matrix is scaled to 0..1 before Eq. 4: true (released), false (paper)")
    ] = None
    patience: Annotated[
        Annotated[int, Field(ge=1)] | Literal["relative"] | None,
        Field(description="rounds in a row below epsilon: members / clients per round (relative; released), 1 (paper)"),
    ] = None
    parts: Annotated[
        Annotated[int, Field(ge=2)] | Literal["relative"] | None,
        Field(description="most parts tried: members // clients per round, at most 4 (relative; released), 4 (paper)"),
    ] = None
    loss_sampling_size: Annotated[
        int,
        Field(ge=0, description="made-up losses pad a cluster's participants to this many (released code's option)"),
    ] = 0

    @property
    def switches(self) -> Switches:
        """The profile's switches, replaced by options that are set."""
        given = {name: getattr(self, name) for name in Switches._fields}
        return PROFILES[self.profile]._replace(**{name: value for name, value in given.items() if value is not None})

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        problem = too_many(known.clients, "use a method that compares clients with models, such as ifca or clove")
        if problem:
            yield Problem("", problem)
        training = known.training
        if training.divisor in ("ratio", "expected") and training.participation < 1:
            sentence = (
                f"'{training.divisor}' counts a share of each cluster, and as many take part in each as in the first "
                "one, so that steps would be longer after each split"
            )
            yield Problem("training.divisor", f"{sentence}; allowed: participants, all")

    def begin(self, context: Context) -> State:
        """Return one model for all, and an empty record; warn if no cluster can ever be split with these settings."""
        clients, rounds, switches = context.clients, context.training.rounds, self.switches
        if not self._numbers(context, clients, 1):
            print(
                f"fedgwc: {_per_round(context)} of {clients} clients take part in a round, so no cluster is large "
                "enough to be split; lower participation to 0.5 or less, or set parts",
                file=sys.stderr,
            )
        window = max(1, -(-rounds * clients // REWARDS))
        most = MOST_PARTS if switches.parts == "relative" else switches.parts
        none = np.zeros(0, dtype=np.int64)
        state = super().begin(context)
        state.own = Interaction(
            interaction=np.full((clients, clients), 1 / clients**2 if switches.start == "uniform" else 0.0),
            mse=np.ones(1),
            calm=np.zeros(1, dtype=np.int64),
            mse_rounds=np.full(rounds, np.nan),
            rewards=np.full((-(-rounds // window), clients), np.nan, dtype=np.float32),
            window=window,
            attempts=Attempts(none, none, none, np.zeros((0, most - 1))),
            split_attempts=none,
        )
        return state

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """Return who takes part: from each cluster as many as from all clients in the first round, or all members."""
        members, count = [np.flatnonzero(state.labels == k) for k in range(len(state.theta))], _per_round(context)
        return np.sort(np.concatenate([draw(context, own, round_, count) for own in members]))

    def regroup(self, context: Context, state: State, update: Update) -> None:
        """Compute the rewards of each cluster's participants and update the interaction matrix."""
        there = np.flatnonzero(~update.dropped & (update.steps > 0))
        if not len(there):
            return
        assert update.curves is not None
        _check_curves(update, there)
        labels = state.labels[update.clients[there]]
        for k in np.unique(labels):
            rows = there[labels == k]
            losses = update.curves[rows].astype(np.float64)
            self._observe(context, state, int(k), update.clients[rows], losses, update.round)
        state.own.mse_rounds[update.round - 1] = state.own.mse.mean()

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """See `Method.merge`; then split clusters that have converged: their parts begin with the merged model."""
        super().merge(context, state, update, target, weights)
        for k in range(len(state.theta)):
            members = np.flatnonzero(state.labels == k)
            if state.own.calm[k] >= self._patience(context, len(members)):
                self._split(context, state, k, members, update.round)

    def _observe(
        self, context: Context, state: State, k: int, clients: Ids, losses: NDArray[np.float64], round_: int
    ) -> None:  # fmt: skip
        own: Interaction = state.own
        omega = self._rewards(context, losses, clients, k, round_)
        own.rewards[(round_ - 1) // own.window, clients] = omega
        if self.switches.normalised:
            omega = omega / omega.sum()
        members = int((state.labels == k).sum())
        alpha = self.switches.alpha
        if alpha == "relative":
            alpha = min(_per_round(context), members) / members
        block = np.ix_(clients, clients)
        before = own.interaction[block]
        after = update_interaction(before, np.arange(len(clients)), omega, alpha)
        own.interaction[block] = after
        own.mse[k] = (1 - alpha) * own.mse[k] + alpha * np.square(after - before).mean()
        own.calm[k] = own.calm[k] + 1 if own.mse[k] < self.epsilon else 0

    def _rewards(
        self, context: Context, losses: NDArray[np.float64], clients: Ids, k: int, round_: int
    ) -> NDArray[np.float64]:
        weighted, losses = self.switches.variance == "weighted", losses[:, ~np.isnan(losses).all(axis=0)]
        sizes = context.sizes[clients] if weighted else np.ones(len(clients), dtype=np.int64)
        if self.loss_sampling_size > len(clients):
            generator = streams.generator(context.seed, "made-up losses", round_, k)
            return rewards(padded(losses, sizes, self.loss_sampling_size, generator))[: len(clients)]
        return rewards(losses, sizes if weighted else None)

    def _patience(self, context: Context, members: int) -> int:
        """Return after how many rounds in a row with an MSE below epsilon a split is tried."""
        if self.switches.patience == "relative":
            return max(1, round(members / _per_round(context)))
        return self.switches.patience

    def _numbers(self, context: Context, members: int, models: int) -> range:
        """Return the numbers of parts to try: none for a cluster that each round samples whole, unless it's the first.

        At most m - 2 for m members, so that with the constant eigenvector fewer than m eigenvectors are needed.
        """
        drawn, parts = _per_round(context), self.switches.parts
        if models > 1 and members <= drawn:
            return range(0)
        most = min(members // drawn, MOST_PARTS) if parts == "relative" else parts
        return range(2, min(most, members - 2) + 1)

    def _split(self, context: Context, state: State, k: int, members: Ids, round_: int) -> None:
        """Split a cluster if a good split is found; its MSE is reset in any case."""
        own: Interaction = state.own
        own.mse[k], own.calm[k] = 1.0, 0
        numbers = self._numbers(context, len(members), len(state.theta))
        if not numbers:
            return
        block = own.interaction[np.ix_(members, members)]
        matrix = self._affinity(block)
        found, scores = best_split(matrix, numbers, context.seed)
        count = int(found.max()) + 1
        noted = Matrices(members, np.where(found == 0, k, len(state.theta) + found - 1))
        own.attempts.append(round=round_, cluster=k, parts=count, scores=scores)
        if context.clients <= KEPT_CLIENTS or len(own.split) < KEPT_SPLITS:
            noted.interaction, noted.affinity = block.astype(np.float32), matrix.astype(np.float32)
            own.last = noted
        if count == 1:
            return
        own.split_attempts = np.append(own.split_attempts, len(own.attempts.round) - 1)
        own.split.append(noted)
        parents = np.full(count - 1, k)
        append_copies(context, state, parents)
        own.mse, own.calm = np.append(own.mse, own.mse[parents]), np.append(own.calm, own.calm[parents])
        state.labels[members] = noted.labels

    def _affinity(self, interaction: NDArray[np.float64]) -> NDArray[np.float64]:
        switches = self.switches
        matrix = interaction.T if switches.transposed else interaction
        found = of_rows(scaled(matrix) if switches.scaled else matrix, self.beta)
        if self.profile == "released":
            np.fill_diagonal(found, 0.0)  # without effect: the graph's Laplacian ignores the diagonal
        return found


def _per_round(context: Context) -> int:
    """Return how many clients of each cluster take part in a round."""
    return context.training.participants(context.clients)


def _check_curves(update: Update, there: Ids) -> None:
    """Raise an error for losses that are NaN or infinite although the client's update is sound."""
    assert update.curves is not None
    curves = update.curves[there]
    taken = np.arange(curves.shape[1]) < update.steps[there, None]
    bad = (taken & ~np.isfinite(curves)).any(axis=1)
    if bad.any():
        raise Diverged(
            f"round {update.round}: client {update.clients[there[bad][0]]} (in the order of ids) has a loss that "
            "is NaN or infinite; training diverged: lower the learning rate"
        )
