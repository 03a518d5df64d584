"""Methods around a method: one that rebalances its clusters, one that makes it differentially private.

RR-Cluster (Yang, Hu, Kim and Li, arXiv 2508.06183, Algorithms 1 and 2) is both around IFCA: noisy identifiers, then
rebalancing, then clipped updates added up with noise. Axes: M clients, m participants, K models, p parameters.

Noise is drawn from streams, so that a run can be repeated: for research. Who publishes models that protect people has
to draw it from the operating system's generator and to guard against floating point's gaps (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import streams
from ..engine.clipping import clip
from ..engine.engine import Update
from ..errors import UserError
from ..simulation.method import Ids, Losses, Method, State, draw
from ..storage.row_store import Rows
from .accounting import adjacency, counted_by, epsilon, factors, noise_for, proven
from .losses import displaced
from .rebalancing import rebalance
from .settings import Privacy, Rebalance, conflicts, unbalanced

# What privacy covers: what a method's clients reveal besides their updates.
COVERED = ("nothing", "choice", "losses")


def wrap(
    method: Method,
    name: str,
    rebalancing: Rebalance | None = None,
    privacy: Privacy | None = None,
    trial: bool = False,
) -> Method:
    """Return a method with the blocks of its settings around it.

    Parameters
    ----------
    name
        The one in messages.
    trial
        Whether it is one of several among which scores decide, which costs privacy that no accounting here counts.
    """
    moves = rebalancing is not None and rebalancing.minimum > 0
    problem = None if rebalancing is None else unbalanced(rebalancing, method.training)
    if problem:
        raise UserError(f"rebalance: {problem}")
    if privacy is not None:
        method = Private(method, name, privacy, moves, trial)
    return method if rebalancing is None else Rebalanced(method, name, rebalancing)


class Wrapper(Method):
    """A method that does what another one does."""

    def __init__(self, inner: Method):
        super().__init__(inner.context)
        self.inner, self.training, self.clip = inner, inner.training, inner.clip
        self.needs, self.communicates, self.places = inner.needs, inner.communicates, inner.places
        self.sends_losses, self.reveals, self.assigns = inner.sends_losses, inner.reveals, inner.assigns
        self.round = 0

    def begin(self) -> State:
        """See `Method.begin`."""
        return self.inner.begin()

    def sample(self, state: State, round_: int) -> Ids:
        """See `Method.sample`; the round is kept for the draws that follow."""
        self.round = round_
        return self.inner.sample(state, round_)

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """See `Method.assign`."""
        return self.inner.assign(state, clients, losses)

    def regroup(self, state: State, update: Update) -> State:
        """See `Method.regroup`."""
        return self.inner.regroup(state, update)

    def weights(self, clients: Ids) -> NDArray[np.float64]:
        """See `Method.weights`."""
        return self.inner.weights(clients)

    def merge(self, state: State, update: Update, target: Ids, weights: NDArray[np.float64]) -> State:
        """See `Method.merge`."""
        return self.inner.merge(state, update, target, weights)

    def placing(self, state: State) -> Rows:
        """See `Method.placing`."""
        return self.inner.placing(state)

    def place(self, state: State, losses: NDArray[np.float64]) -> Ids:
        """See `Method.place`."""
        return self.inner.place(state, losses)

    def spent(self, round_: int) -> float:
        """See `Method.spent`."""
        return self.inner.spent(round_)

    def facts(self) -> dict[str, Any]:
        """See `Method.facts`."""
        return self.inner.facts()


class Rebalanced(Wrapper):
    """RR-Cluster's rebalancing: updates move from large clusters to small ones, never the models they start from."""

    def __init__(self, inner: Method, name: str, settings: Rebalance):
        super().__init__(inner)
        self.minimum = settings.minimum
        if not inner.assigns:
            raise UserError(
                f"rebalance: method '{name}' doesn't assign clients to models in each round, so there is nothing "
                "to rebalance; allowed: methods that do, such as ifca, clove, and fesem with variant: flexcfl"
            )
        if self.minimum and inner.training.divisor == "ratio":
            raise UserError(
                "rebalance: divisor: ratio divides by the size of a cluster before rebalancing; allowed: participants, "
                "all, expected"
            )

    def begin(self) -> State:
        """Return the inner state and ``rebalanced [T, 2, K]``, each round's sizes before and after, 0 until then."""
        state = self.inner.begin()
        models, rounds = len(state["theta"]), self.training.rounds
        first = len(self.inner.sample(state, 1))
        rebalance(np.zeros(first), models, self.minimum, np.random.default_rng(0))  # said before any training
        return state | {"rebalanced": np.zeros((rounds, 2, models), dtype=np.int64)}

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """Let the method assign, then move updates until each model has the minimum of them."""
        state = self.inner.assign(state, clients, losses)
        models, target = len(state["theta"]), np.array(state.get("target", state["labels"]))
        draws = streams.generator(self.context.seed, "rebalance", self.round)
        before, after = target[clients], rebalance(target[clients], models, self.minimum, draws)
        target[clients] = after
        sizes = [np.bincount(labels, minlength=models) for labels in (before, after)]
        state["rebalanced"][self.round - 1] = sizes
        return state | {"target": target}


class Private(Wrapper):
    """A method whose models protect each client: docs/privacy.md says what that means and why.

    Clients are clipped in the engine; here their identifiers (what they reveal besides updates) get noise, and each
    model's sum of updates does.
    """

    def __init__(self, inner: Method, name: str, settings: Privacy, rebalanced: bool = False, trial: bool = False):
        super().__init__(inner)
        self.settings, self.name, self.trial = settings, name, trial
        self._check()
        training, clients = self.training, self.context.clients
        self.rate = training.participation
        if training.sampler == "fixed":
            self.rate = self.context.training.participants(clients) / clients
        self.how: dict[str, Any] = {"accounting": settings.accounting, "adaptive": self.reveals == "losses"}
        self._set_noise(rebalanced)
        self.scale = {part: z * self.sensitivities[part] for part, z in self.multipliers.items()}  # sigma
        self.clip = math.inf if settings.off else settings.clip
        # Which models got updates must not show.
        self.hidden = not (self.identified or settings.off or settings.proves_nothing)
        inner.merges_all = inner.merges_all or self.hidden
        inner.own_draws = not settings.off
        if settings.delta is not None and settings.delta >= 1 / clients:
            print(
                f"privacy.delta: {settings.delta:g} isn't below 1 / clients = {1 / clients:.2g}; a mechanism that "
                "publishes one client's data would be allowed: choose a smaller one",
                file=sys.stderr,
            )

    def _set_noise(self, rebalanced: bool) -> None:
        """Set noise multipliers, and the sensitivities that they multiply; what is composed of both parts first."""
        settings = self.settings
        if settings.proves_nothing:
            self.identified, self.multiplier = bool(settings.identifier_noise), 0.0
            if self.identified and self.reveals == "nothing":
                raise UserError(
                    f"privacy.identifier_noise: method '{self.name}' sends neither choice nor losses; allowed: 0, or "
                    "leave it away"
                )
            self.multipliers = {
                "identifiers": settings.identifier_noise or 0.0,
                "updates": settings.update_noise or 0.0,
            }
            units = {"nothing": 0.0, "choice": 1.0, "losses": settings.loss_clip}
            self.sensitivities = {"identifiers": units[self.reveals], "updates": settings.clip}
            return
        factor = factors(settings.accounting, rebalanced, settings.sensitivity)
        self.identified = self.reveals != "nothing" and factor[self.reveals] > 0
        self.multiplier = settings.noise_multiplier or noise_for(
            float(settings.epsilon or 0),
            self.rate,
            max(1, self.training.rounds),
            float(settings.delta or 0),
            **self.how,
        )
        portion = settings.identifier_share if self.identified else 0.0
        self.multipliers = {
            "identifiers": self.multiplier / math.sqrt(portion) if self.identified else 0.0,
            "updates": self.multiplier / math.sqrt(1 - portion),
        }
        unit = factor[self.reveals] * (settings.loss_clip if self.reveals == "losses" else 1) if self.identified else 0
        self.sensitivities = {"identifiers": unit, "updates": factor["updates"] * settings.clip}

    def _check(self) -> None:
        """Refuse what the guarantee doesn't cover."""
        inner, where = self.inner, f"privacy: method '{self.name}'"
        reveals = "warm-up" if self.context.clustering is not None else inner.reveals
        if not inner.communicates:
            raise UserError(f"{where} sends nothing, so there is nothing to protect; leave privacy away")
        own = [hook for hook in ("regroup", "weights") if getattr(type(inner), hook) is not getattr(Method, hook)]
        if reveals not in COVERED or inner.needs or own:
            seen = reveals if reveals not in COVERED else ", ".join([*sorted(inner.needs), *own])
            raise UserError(
                f"{where} lets the server see more of a client than noisy sums can protect ({seen}); allowed: methods "
                f"whose clients reveal, besides their update, {', '.join(COVERED)}, such as fedavg, ifca and clove"
            )
        if len(self.context.initial(0)) > self.context.parameter_columns:
            raise UserError(
                "privacy: the model has buffers, such as batch normalisation's statistics, which aren't clipped; take "
                "a model without"
            )
        if inner.training.weights != "uniform":
            raise UserError(
                f"training.weights: '{inner.training.weights}' would let one client weigh more than its clipped "
                "update; set weights: uniform with privacy"
            )
        for key, problem in conflicts(self.settings, inner.training):
            raise UserError(f"training.{key}: {problem}")
        if reveals == "losses" and self.settings.accounting == "poisson":
            raise UserError(
                f"{where} compares all participants' losses, which one client more would change for all; allowed with "
                "it: accounting: replace-one, theorem-4.2"
            )
        self._check_divisor(reveals)

    def _check_divisor(self, reveals: str) -> None:
        """Refuse to divide by numbers that tell of a client without noise."""
        inner, found = self.inner, self.inner.training.divisor
        if self.settings.proves_nothing:
            return
        if self.settings.accounting == "poisson":
            allowed = ["expected"]
        elif reveals != "nothing":  # counted by identifiers with noise
            allowed = ["participants", "all", "expected"]
        elif inner.training.participation == 1 or len(inner.begin()["theta"]) == 1:
            return
        else:
            allowed = ["ratio", "all", "expected"]
        if found not in allowed:
            raise UserError(
                f"training.divisor: '{found}' counts what would tell of one client; allowed with privacy.accounting: "
                f"{self.settings.accounting} and method '{self.name}': {', '.join(allowed)}"
            )

    def sample(self, state: State, round_: int) -> Ids:
        """Return who takes part, or refuse a draw that no accounting covers."""
        clients = super().sample(state, round_)
        if not np.array_equal(clients, draw(self.context, np.arange(self.context.clients), round_)):
            raise UserError(
                f"privacy: method '{self.name}' draws its participants by a rule of its own, which no accounting "
                "covers; allowed: a share of all clients, as `Method.sample` draws it"
            )
        return clients

    def assign(self, state: State, clients: Ids, losses: Losses) -> State:
        """Let the method see no more than noise allows; y is what the noisy identifiers say."""
        if self.reveals != "choice":
            return self.inner.assign(state, clients, _Guarded(self, clients, losses))
        state = self.inner.assign(state, clients, losses)
        if not self.scale["identifiers"]:
            return state
        models, target = len(state["theta"]), state["labels"].copy()
        chosen = np.eye(models)[target[clients]]
        target[clients] = np.argmax(chosen + self.noise("identifier noise", chosen.shape), axis=1)
        return state | {"target": target}

    def noise(self, purpose: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the identifiers' noise in this round."""
        draws = streams.generator(self.context.seed, purpose, self.round)
        return self.scale["identifiers"] * draws.standard_normal(shape)

    def merge(self, state: State, update: Update, target: Ids, weights: NDArray[np.float64]) -> State:
        """Add noise to each model's sum of clipped updates, then merge."""
        if self.scale["updates"]:
            assert update.sums is not None
            touched = range(len(state["theta"])) if self.hidden else np.unique(target).tolist()
            self._add_noise(update.sums, touched, update.round)
        return self.inner.merge(state, update, target, weights)

    def _add_noise(self, sums: Rows, models: Any, round_: int) -> None:
        for k in models:
            draws = streams.generator(self.context.seed, "update noise", round_, k)
            noise = self.scale["updates"] * draws.standard_normal(self.context.parameter_columns)
            sums[k] = sums[k] + torch.from_numpy(noise)

    def spent(self, round_: int) -> float:
        """Return the epsilon of all rounds up to this one; NaN where none is counted."""
        if self.settings.proves_nothing:
            return math.nan
        if self.settings.off:
            return math.inf
        return epsilon(self.multiplier, self.rate, round_, float(self.settings.delta or 0), **self.how)

    def facts(self) -> dict[str, Any]:
        """Return what is guaranteed, for the manifest; without noise there is nothing to say."""
        settings = self.settings
        found: dict[str, Any] = {"accounting": settings.accounting, "delta": settings.delta}
        found |= {"counted_by": counted_by(rate=self.rate, **self.how)}
        found |= {"proven": proven(settings.accounting) and not settings.off and not self.trial}
        found |= {"not_counted": "the choice among trials by their scores" if self.trial else None}
        found |= {"adjacency": adjacency(settings.accounting), "sampler": self.training.sampler}
        found |= {"sampling_rate": self.rate, "noise_multiplier": None if settings.proves_nothing else self.multiplier}
        found |= {f"noise_multiplier_{part}": z or None for part, z in self.multipliers.items()}
        found |= {f"sensitivity_{part}": value or None for part, value in self.sensitivities.items()}
        spent = self.spent(self.training.rounds) if self.training.rounds else 0.0
        found |= {"epsilon": spent if spent < math.inf else None, "epsilon_at_least": self._at_least()}
        return self.inner.facts() | {"privacy": found}

    def _at_least(self) -> float | None:
        """Return what the printed theorem's epsilon would at least have to be, see `losses.displaced`.

        With K models the attacker adds up their sums, so that it doesn't matter which of them the client's update is
        in, nor whether updates move; their noise adds up, too.
        """
        if self.settings.accounting != "theorem-4.2" or self.settings.off or self.rate == 1:
            return None
        models = len(self.inner.begin()["theta"])
        z = self.scale["updates"] * math.sqrt(models) / self.settings.clip
        return displaced(z, self.rate, max(1, self.training.rounds), float(self.settings.delta or 0))


class _Guarded:
    """Losses as the server may see them: clipped and with noise, once a round; not at all if it should see none."""

    def __init__(self, method: Private, clients: Ids, losses: Losses):
        self.method, self.clients, self.losses, self.calls = method, clients, losses, 0

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `methods.base.Losses`."""
        method, self.calls = self.method, self.calls + 1
        if method.reveals != "losses" or self.calls > 1:
            raise UserError(
                f"privacy: method '{method.name}' asks for its clients' losses, and says that they reveal "
                f'{method.reveals}; allowed: `reveals = "losses"` and one call in each round'
            )
        measured = self.losses(theta, clients)
        if method.settings.off:
            return measured
        return np.asarray(clip(measured, method.settings.loss_clip)) + method.noise("loss noise", measured.shape)
