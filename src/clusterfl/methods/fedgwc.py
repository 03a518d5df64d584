"""FedGWC: clients whose losses lie close among those of their cluster belong together; clusters split as it runs.

Paper: arXiv 2502.03340, Eqs. 1, 3 and 4, Algorithms 1 and 2. In each cluster and round a participant k has the reward
omega_k, 1 where its losses are the participants' mean ones and less the further they lie from it. The interaction
matrix P remembers at [k, j] the rewards of k in rounds that j took part in, too. When P has come to rest, clients that
are similar in P are found by spectral clustering, and the cluster is split if the Davies-Bouldin score says that the
parts are well separated. Each part goes on with a copy of the model.

The released code departs from the paper in what `PROFILES` lists; the numbers that the paper prints are most likely the
code's, so ``profile: released`` is the default. Eq. 2, the Gaussian weights, decides nothing in either and isn't kept.

Axes: M clients, m participants or members of a cluster, S iterations, K models.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .. import streams
from ..engine.engine import Update
from ..errors import Diverged
from ..simulation.method import Context, Ids, Method, State, append_copies, draw
from ..storage.blocks import check_pairs
from .splitting import best_split

GUARD = 1e-16  # added to the variance, as the released code does: equal losses have reward 1
MOST_PARTS = 4  # that the released code tries
REWARDS = 1 << 24  # kept at most, 4 bytes each
KEPT_SPLITS, KEPT_CLIENTS = 8, 1000  # with more clients only so many splits keep their matrices


class Switches(NamedTuple):
    """What paper and released code do apart. ``relative`` is of the cluster's size over a round's clients."""

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
        Of each client's mini-batches, before their steps. NaN where a client had no more steps: it counts neither in
        that iteration's mean nor in its own.
    sizes : [m], optional
        Weights in mu and sigma^2, whose divisor is then their sum (released code). Without them both are unweighted
        and the variance is the sample's, divided by one less than the clients (paper).
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
    """Return losses [count, S], those given followed by made-up clients' (released code).

    A made-up client's loss in iteration s is drawn from N(mu_s, sigma_s^2), both weighted by sizes. The mean and the
    variance of all of them, from which rewards follow, are unweighted then, the variance with divisor count - 1.
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
        P, with entries from 0 to 1, which then stay there.
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


def affinity(interaction: Any, beta: float) -> NDArray[np.float64]:
    """Return Eq. 4, [M, M]: ``W_kj = exp(-beta |v_k - v_j|^2)``, v the rows of P without their entries k and j.

    Parameters
    ----------
    interaction : [M, M]
        P.
    beta
        Above 0; the larger, the more local the affinity.
    """
    from scipy.spatial.distance import pdist, squareform

    p = np.asarray(interaction, dtype=np.float64)
    own = np.square(np.diagonal(p)[:, None] - p.T)  # [k, j]: (P_kk - P_jk)^2
    squares = squareform(pdist(p, "sqeuclidean")) - (own + own.T)
    found = np.exp(-beta * np.maximum(squares, 0))
    np.fill_diagonal(found, 1.0)
    return found


def scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix moved and stretched to least entry 0 and greatest 1; zeros if all are equal."""
    low, width = values.min(), np.ptp(values)
    return (values - low) / width if width else np.zeros_like(values)


class FedGWC(Method):
    """See the module. What its state has besides models and labels, for A attempts to split a cluster, follows.

    ``interaction [M, M]``
        P; each cluster uses the block of its members.
    ``mse``, ``calm [K]``; ``mse.rounds [rounds]``
        Of each cluster's block; rounds in a row with an MSE below epsilon; the mean MSE of the clusters in each round.
    ``rewards [rounds, M]``
        float32, NaN for who didn't take part. In long runs a row is the last reward in ``rewards.window`` rounds.
    ``attempts.round``, ``.cluster``, ``.parts [A]``, ``.scores [A, parts]``
        How many parts were found, 1 = no split, and the Davies-Bouldin score of 2, 3, ... parts, NaN = not tried.
    ``splits.attempt``; ``split{i}.members``, ``.labels``, ``.interaction``, ``.affinity``
        Which attempts were splits; of the i-th who was in the cluster, in which clusters they are after it, their
        block of P, and the affinity by which they parted, both float32.
    ``last.members``, ``.labels``, ``.interaction``, ``.affinity``
        The same of the last attempt whose matrices are kept, split or not, once there was one.
    """

    needs = frozenset({"curves"})
    reveals = "curves"

    def __init__(
        self, context: Context, beta: float, epsilon: float, switches: Switches, profile: str, loss_sampling_size: int
    ):
        super().__init__(context)
        check_pairs(context.clients, "use a method that compares clients with models, such as ifca or clove")
        self.beta, self.epsilon, self.switches, self.profile = beta, epsilon, switches, profile
        self.loss_sampling_size = loss_sampling_size
        self.per_round = context.training.participants(context.clients)

    def begin(self) -> State:
        """Return one model for all, and an empty record; say so if by these settings no cluster can ever be split."""
        clients, rounds = self.context.clients, self.training.rounds
        if not self._numbers(clients, 1):
            print(
                f"fedgwc: {self.per_round} of {clients} clients take part in a round, so no cluster is large enough to "
                "be split; lower participation to 0.5 or less, or set parts",
                file=sys.stderr,
            )
        window = max(1, -(-rounds * clients // REWARDS))
        parts = MOST_PARTS if self.switches.parts == "relative" else self.switches.parts
        own: State = {
            "interaction": np.full((clients, clients), 1 / clients**2 if self.switches.start == "uniform" else 0.0),
            "mse": np.ones(1),
            "mse.rounds": np.full(rounds, np.nan),
            "calm": np.zeros(1, dtype=np.int64),
            "rewards": np.full((-(-rounds // window), clients), np.nan, dtype=np.float32),
            "rewards.window": np.array([window]),
            "attempts.round": np.zeros(0, dtype=np.int64),
            "attempts.cluster": np.zeros(0, dtype=np.int64),
            "attempts.parts": np.zeros(0, dtype=np.int64),
            "attempts.scores": np.zeros((0, parts - 1)),
            "splits.attempt": np.zeros(0, dtype=np.int64),
        }
        return super().begin() | own

    def sample(self, state: State, round_: int) -> Ids:
        """Return who takes part: of each cluster as many as of all clients in the first round, or all there are."""
        members = [np.flatnonzero(state["labels"] == k) for k in range(len(state["theta"]))]
        return np.sort(np.concatenate([draw(self.context, own, round_, self.per_round) for own in members]))

    def regroup(self, state: State, update: Update) -> State:
        """Reward the participants of each cluster and note it in the interaction matrix."""
        there = np.flatnonzero(~update.dropped & (update.steps > 0))
        if not len(there):
            return state
        assert update.curves is not None
        self._check(update, there)
        labels = state["labels"][update.clients[there]]
        for k in np.unique(labels):
            rows = there[labels == k]
            self._observe(state, int(k), update.clients[rows], update.curves[rows].astype(np.float64), update.round)
        state["mse.rounds"][update.round - 1] = state["mse"].mean()
        return state

    def merge(self, state: State, update: Update, target: Ids, weights: NDArray[np.float64]) -> State:
        """See `Method.merge`; then split clusters that have come to rest: their parts begin with the merged model."""
        state = super().merge(state, update, target, weights)
        for k in range(len(state["theta"])):
            members = np.flatnonzero(state["labels"] == k)
            if state["calm"][k] >= self._patience(len(members)):
                self._split(state, k, members, update.round)
        return state

    def _check(self, update: Update, there: Ids) -> None:
        """Refuse losses that are no numbers although the client's update is sound."""
        assert update.curves is not None
        curves = update.curves[there]
        taken = np.arange(curves.shape[1]) < update.steps[there, None]
        bad = (taken & ~np.isfinite(curves)).any(axis=1)
        if bad.any():
            raise Diverged(
                f"round {update.round}: client {update.clients[there[bad][0]]} (in the order of ids) has a loss that "
                "is NaN or infinite; training diverged: lower the learning rate"
            )

    def _observe(self, state: State, k: int, clients: Ids, losses: NDArray[np.float64], round_: int) -> None:
        omega = self._rewards(losses, clients, k, round_)
        state["rewards"][(round_ - 1) // state["rewards.window"][0], clients] = omega
        if self.switches.normalised:
            omega = omega / omega.sum()
        members = int((state["labels"] == k).sum())
        alpha = self.switches.alpha
        if alpha == "relative":
            alpha = min(self.per_round, members) / members
        block = np.ix_(clients, clients)
        before = state["interaction"][block]
        after = update_interaction(before, np.arange(len(clients)), omega, alpha)
        state["interaction"][block] = after
        state["mse"][k] = (1 - alpha) * state["mse"][k] + alpha * np.square(after - before).mean()
        state["calm"][k] = state["calm"][k] + 1 if state["mse"][k] < self.epsilon else 0

    def _rewards(self, losses: NDArray[np.float64], clients: Ids, k: int, round_: int) -> NDArray[np.float64]:
        weighted, losses = self.switches.variance == "weighted", losses[:, ~np.isnan(losses).all(axis=0)]
        sizes = self.context.sizes[clients] if weighted else np.ones(len(clients), dtype=np.int64)
        if self.loss_sampling_size > len(clients):
            generator = streams.generator(self.context.seed, "made-up losses", round_, k)
            return rewards(padded(losses, sizes, self.loss_sampling_size, generator))[: len(clients)]
        return rewards(losses, sizes if weighted else None)

    def _patience(self, members: int) -> int:
        """Return the rounds in a row with an MSE below epsilon after which a cluster is clustered."""
        if self.switches.patience == "relative":
            return max(1, round(members / self.per_round))
        return self.switches.patience

    def _numbers(self, members: int, models: int) -> range:
        """Return the numbers of parts to try: none in a cluster, other than the first, that a round samples whole.

        At most m - 2, so that as many eigenvectors, and the constant one, are fewer than the m members.
        """
        if models > 1 and members <= self.per_round:
            return range(0)
        parts = self.switches.parts
        most = min(members // self.per_round, MOST_PARTS) if parts == "relative" else parts
        return range(2, min(most, members - 2) + 1)

    def _split(self, state: State, k: int, members: Ids, round_: int) -> None:
        """Split a cluster if there is a good way to, and let its MSE begin again if not, too."""
        state["mse"][k], state["calm"][k] = 1.0, 0
        numbers = self._numbers(len(members), len(state["theta"]))
        if not numbers:
            return
        block = state["interaction"][np.ix_(members, members)]
        matrix = self._affinity(block)
        found, scores = best_split(matrix, numbers, self.context.seed)
        parts = int(found.max()) + 1
        labels = np.where(found == 0, k, len(state["theta"]) + found - 1)
        self._note(state, round_, k, parts, scores)
        i = len(state["splits.attempt"])
        noted = {"members": members, "labels": labels}
        if self.context.clients <= KEPT_CLIENTS or i < KEPT_SPLITS:
            noted |= {"interaction": block.astype(np.float32), "affinity": matrix.astype(np.float32)}
            state |= {f"last.{name}": value for name, value in noted.items()}
        if parts == 1:
            return
        state["splits.attempt"] = np.append(state["splits.attempt"], len(state["attempts.round"]) - 1)
        state |= {f"split{i}.{name}": value for name, value in noted.items()}
        parents = np.full(parts - 1, k)
        append_copies(self.context, state, parents)
        for name in ("mse", "calm"):
            state[name] = np.append(state[name], state[name][parents])
        state["labels"][members] = labels

    def _affinity(self, interaction: NDArray[np.float64]) -> NDArray[np.float64]:
        matrix = interaction.T if self.switches.transposed else interaction
        found = affinity(scaled(matrix) if self.switches.scaled else matrix, self.beta)
        if self.profile == "released":
            np.fill_diagonal(found, 0.0)  # which decides nothing: the graph's Laplacian leaves the diagonal out
        return found

    def _note(self, state: State, round_: int, k: int, parts: int, scores: NDArray[np.float64]) -> None:
        row = np.full(state["attempts.scores"].shape[1], np.nan)
        row[: len(scores)] = scores
        for name, value in {"round": round_, "cluster": k, "parts": parts, "scores": row}.items():
            before = state[f"attempts.{name}"]
            state[f"attempts.{name}"] = np.concatenate([before, np.asarray(value, before.dtype)[None]])


def fedgwc(
    undivided: Context,
    *,
    profile: Annotated[
        Literal["released", "paper"],
        Field(description="what the switches below are that aren't set: as in the released code or in the paper"),
    ] = "released",
    beta: Annotated[
        float, Field(gt=0, description="of the affinity exp(-beta d^2), Eq. 4; paper: .1, .5, 1, 2, 4")
    ] = 0.5,
    epsilon: Annotated[
        float,
        Field(gt=0, description="a cluster has come to rest where the MSE of its interaction matrix is below this"),
    ] = 1e-5,
    alpha: Annotated[
        Annotated[float, Field(gt=0, le=1)] | Literal["relative"] | None,
        Field(description="weight of a round: clients per round / members (relative; released), .1 (paper)"),
    ] = None,
    normalised: Annotated[
        bool | None, Field(description="rewards are divided by their sum: true (released), false (paper)")
    ] = None,
    start: Annotated[
        Literal["uniform", "zero"] | None,
        Field(description="first entries of the interaction matrix: 1 / M^2 (uniform; released), 0 (zero; paper)"),
    ] = None,
    variance: Annotated[
        Literal["weighted", "sample"] | None,
        Field(description="of the losses: by samples, the population's (weighted; released), or the sample's (paper)"),
    ] = None,
    transposed: Annotated[
        bool | None, Field(description="clients are compared by columns (released), not by rows (paper)")
    ] = None,
    scaled: Annotated[
        bool | None, Field(description="the matrix is scaled to 0 .. 1 before Eq. 4: true (released), false (paper)")
    ] = None,
    patience: Annotated[
        Annotated[int, Field(ge=1)] | Literal["relative"] | None,
        Field(description="rounds in a row below epsilon: members / clients per round (relative; released), 1 (paper)"),
    ] = None,
    parts: Annotated[
        Annotated[int, Field(ge=2)] | Literal["relative"] | None,
        Field(description="most parts tried: members // clients per round, at most 4 (relative; released), 4 (paper)"),
    ] = None,
    loss_sampling_size: Annotated[
        int,
        Field(ge=0, description="made-up losses pad a cluster's participants to this many (released code's option)"),
    ] = 0,
) -> Method:
    """Return FedGWC."""
    given: dict[str, Any] = {
        "alpha": alpha, "normalised": normalised, "start": start, "variance": variance, "transposed": transposed,
        "scaled": scaled, "patience": patience, "parts": parts,
    }  # fmt: skip
    switches = PROFILES[profile]._replace(**{name: value for name, value in given.items() if value is not None})
    return FedGWC(undivided, beta, epsilon, switches, profile, loss_sampling_size)
