"""A method whose models are differentially private: noisy identifiers, and noisy sums of clipped updates.

Axes: M clients, m participants, K models, p parameters.

For research, noise is drawn from streams, so that a run can be repeated. Published models that are to protect people
need noise from the operating system's generator, and protection against attacks on floating point (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import streams
from ..engine.clipping import clip
from ..engine.personal import Columns, Personal
from ..errors import UserError
from ..simulation.method import Assignment, Context, Ids, Known, Losses, Method, Problem, SampleLosses, State, draw
from .accounting import adjacency, counted_by, epsilon, factors, noise_for, proven
from .around import Wrapper
from .losses import displaced
from .settings import Privacy, conflicts

if TYPE_CHECKING:
    from ..engine.update import Update
    from ..storage.row_store import Rows

# What a method's clients may reveal besides their updates, for privacy to cover it.
COVERED = ("nothing", "choice", "losses")
COVERS = "this run alone: private runs of the same seed draw the same noise, and of two published it can be removed"


@dataclass(frozen=True)
class Noise:
    """A round's noise, on identifiers (what clients reveal besides updates) and on each model's sum of updates.

    Its standard deviation is ``multipliers[part] * sensitivities[part]``. `multiplier` is that of both parts together,
    from which epsilon is computed. `rate` is the sampling rate; `identified`: whether identifiers get noise.
    """

    rate: float
    multiplier: float
    identified: bool
    multipliers: dict[str, float]
    sensitivities: dict[str, float]

    def scale(self, part: str) -> float:
        """Return the noise's standard deviation on ``identifiers`` or ``updates``."""
        return self.multipliers[part] * self.sensitivities[part]


@dataclass(frozen=True, kw_only=True)
class Private(Wrapper):
    """A method whose models are differentially private for each client, as docs/privacy.md defines and proves it.

    The engine clips updates; here noise is added to identifiers (what clients reveal besides updates) and to each
    model's sum of updates.
    """

    block: Privacy
    rebalanced: bool = False
    trial: bool = False

    @property
    def clip(self) -> float:
        """See `Method.clip`."""
        return math.inf if self.block.off else self.block.clip

    @property
    def how(self) -> dict[str, Any]:
        """The arguments that say how epsilon is computed."""
        return {"accounting": self.block.accounting, "adaptive": self.reveals == "losses"}

    def inside(self, context: Context) -> Context:
        """See `Wrapper.inside`: which models got updates must not be visible, unless noisy identifiers show it."""
        if self.block.off:
            return context
        hidden = not (self.block.proves_nothing or self.noise(context).identified)
        # If what a client trains for itself diverges, the run mustn't stop, as that would reveal it.
        training = context.training.model_copy(update={"diverged": "exclude"})
        return replace(context, training=training, own_draws=True, merges_all=context.merges_all or hidden)

    def noise(self, context: Context) -> Noise:
        """Return the noise; the multiplier of both parts together is computed first."""
        block, training, reveals = self.block, context.training, self.reveals
        rate = training.participation
        if training.sampler == "fixed":
            rate = training.participants(context.clients) / context.clients
        if block.proves_nothing:
            units = {"nothing": 0.0, "choice": 1.0, "losses": block.loss_clip}
            given = {"identifiers": block.identifier_noise or 0.0, "updates": block.update_noise or 0.0}
            sensitivities = {"identifiers": units[reveals], "updates": block.clip}
            return Noise(rate, 0.0, bool(block.identifier_noise), given, sensitivities)
        factor = factors(block.accounting, self.rebalanced, block.sensitivity)
        identified = reveals != "nothing" and factor[reveals] > 0
        multiplier = block.noise_multiplier or noise_for(
            float(block.epsilon or 0), rate, max(1, training.rounds), float(block.delta or 0), **self.how
        )
        portion = block.identifier_share if identified else 0.0
        multipliers = {
            "identifiers": multiplier / math.sqrt(portion) if identified else 0.0,
            "updates": multiplier / math.sqrt(1 - portion),
        }
        unit = factor[reveals] * (block.loss_clip if reveals == "losses" else 1) if identified else 0
        sensitivities = {"identifiers": unit, "updates": factor["updates"] * block.clip}
        return Noise(rate, multiplier, identified, multipliers, sensitivities)

    def check(self, known: Known) -> Iterator[Problem]:
        """Yield what the guarantee doesn't cover."""
        yield from super().check(known)
        inner, where, training = self.inner, f"method '{self.name}'", known.training
        if not inner.communicates and inner.unprotected() is None:
            yield Problem("privacy", f"{where} sends nothing, so there is nothing to protect; omit privacy")
            return
        own = [hook for hook in ("regroup", "weights") if getattr(type(inner), hook) is not getattr(Method, hook)]
        seen = inner.unprotected() or ("" if self.reveals in COVERED else self.reveals) or ", ".join(own)
        if seen:
            yield Problem(
                "privacy",
                f"{where} lets the server see more of a client than noisy sums can protect ({seen}); allowed: methods "
                f"whose clients reveal, besides their update, {', '.join(COVERED)}, such as fedavg, ifca and clove",
            )
            return
        context = known.context
        if context is not None and len(context.initial(0)) > context.parameter_columns:
            yield Problem(
                "privacy",
                "the model has buffers, such as batch normalisation's statistics, which aren't clipped; take a model "
                "without",
            )
        if training.weights != "uniform":
            yield Problem(
                "training.weights",
                f"'{training.weights}' would let one client weigh more than its clipped update; set weights: uniform "
                "with privacy",
            )
        for key, problem in conflicts(self.block, training):
            yield Problem(f"training.{key}", problem)
        if self.block.accounting == "replace-one" and training.participation < 1 and _remembers(inner):
            yield Problem(
                "training.participation",
                f"{training.participation:g}, and with {where} what a client sends depends on what it keeps, so on the "
                "rounds in which it was drawn before, which no accounting of a fixed number of participants covers; "
                "allowed with it: participation: 1, or sampler: poisson with privacy.accounting: poisson; or a method "
                "whose clients train what they keep apart, such as ditto and pfedme",
            )
        if self.reveals == "losses" and self.block.accounting == "poisson":
            yield Problem(
                "privacy",
                f"{where} compares all participants' losses, which one client more would change for all; allowed with "
                "it: accounting: replace-one, theorem-4.2",
            )
        if self.block.proves_nothing and self.block.identifier_noise and self.reveals == "nothing":
            sentence = f"{where} sends neither choice nor losses; allowed: 0, or omit it"
            yield Problem("privacy.identifier_noise", sentence)
        allowed = self._divisors(known)
        if allowed and training.divisor not in allowed:
            yield Problem(
                "training.divisor",
                f"'{training.divisor}' depends on counts that would reveal one client; allowed with "
                f"privacy.accounting: {self.block.accounting} and {where}: {', '.join(allowed)}",
            )

    def _divisors(self, known: Known) -> list[str]:
        """Return the divisors that reveal nothing about a client without noise; empty: all."""
        if self.block.proves_nothing:
            return []
        if self.block.accounting == "poisson":
            return ["expected"]
        if self.reveals != "nothing":  # participants are counted by noisy identifiers
            return ["participants", "all", "expected"]
        if known.training.participation == 1 or self.models(known) in (1, None):
            return []
        return ["ratio", "all", "expected"]

    def begin(self, context: Context) -> State:
        """See `Method.begin`; warns of a delta that is too large to guarantee anything."""
        delta, clients = self.block.delta, context.clients
        if delta is not None and delta >= 1 / clients:
            print(
                f"privacy.delta: {delta:g} isn't below 1 / clients = {1 / clients:.2g}; a mechanism that publishes one "
                "client's data would be allowed: choose a smaller one",
                file=sys.stderr,
            )
        return super().begin(context)

    def sample(self, context: Context, state: State, round_: int) -> Ids:
        """Return who takes part, or raise an error for a draw that no accounting covers."""
        clients = super().sample(context, state, round_)
        if not np.array_equal(clients, draw(context, np.arange(context.clients), round_)):
            raise UserError(
                f"privacy: method '{self.name}' draws its participants by a rule of its own, which no accounting "
                "covers; allowed: a share of all clients, as `Method.sample` draws it"
            )
        return clients

    def assign(self, context: Context, state: State, round_: int, clients: Ids, losses: Losses) -> Assignment:
        """Let the method see only noisy identifiers; these determine the targets."""
        if self.reveals != "choice":
            return super().assign(context, state, round_, clients, _Guarded(self, context, round_, losses))
        found = super().assign(context, state, round_, clients, losses)
        if not self.noise(context).scale("identifiers"):
            return found
        chosen = np.eye(len(state.theta))[found.start]
        noisy = chosen + self.identifier_noise(context, "identifier noise", round_, chosen.shape)
        return replace(found, target=np.argmax(noisy, axis=1))

    def identifier_noise(
        self, context: Context, purpose: str, round_: int, shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """Return the identifiers' noise in a round."""
        draws = streams.generator(context.seed, purpose, round_)
        return self.noise(context).scale("identifiers") * draws.standard_normal(shape)

    def merge(
        self, context: Context, state: State, update: Update, target: Ids, weights: NDArray[np.float64]
    ) -> None:  # fmt: skip
        """Add noise to each model's sum of clipped updates, then merge."""
        scale = self.noise(context).scale("updates")
        if scale:
            assert update.sums is not None
            hidden = self.inside(context).merges_all
            touched = range(len(state.theta)) if hidden else np.unique(target).tolist()
            common = Columns.of(context.tensors, self.common(context))
            _add_noise(update.sums, touched, scale, context, update.round, state.personal, common)
        super().merge(context, state, update, target, weights)

    def spent(self, context: Context, round_: int) -> float:
        """Return the epsilon of all rounds up to this one; NaN if none is computed."""
        if self.block.proves_nothing:
            return math.nan
        if self.block.off:
            return math.inf
        noise = self.noise(context)
        return epsilon(noise.multiplier, noise.rate, round_, float(self.block.delta or 0), **self.how)

    def facts(self, context: Context) -> dict[str, Any]:
        """Return the guarantee, for the manifest."""
        block, noise, training = self.block, self.noise(context), context.training
        found: dict[str, Any] = {"accounting": block.accounting, "delta": block.delta}
        found |= {"counted_by": counted_by(rate=noise.rate, **self.how)}
        found |= {"proven": proven(block.accounting) and not block.off and not self.trial}
        found |= {"not_counted": "the choice among trials by their scores" if self.trial else None}
        found |= {"covers": COVERS}
        found |= {"adjacency": adjacency(block.accounting), "sampler": training.sampler}
        found |= {"sampling_rate": noise.rate, "noise_multiplier": None if block.proves_nothing else noise.multiplier}
        found |= {f"noise_multiplier_{part}": z or None for part, z in noise.multipliers.items()}
        found |= {f"sensitivity_{part}": value or None for part, value in noise.sensitivities.items()}
        spent = self.spent(context, training.rounds) if training.rounds else 0.0
        found |= {"epsilon": spent if spent < math.inf else None, "epsilon_at_least": self._at_least(context)}
        return super().facts(context) | {"privacy": found}

    def _at_least(self, context: Context) -> float | None:
        """Return a lower bound on the true epsilon, for the printed theorem, see `losses.displaced`.

        With K models the attacker adds up their sums, so that it doesn't matter which one contains the client's update,
        or whether updates are moved; their noise adds up, too.
        """
        noise, block = self.noise(context), self.block
        if block.accounting != "theorem-4.2" or block.off or noise.rate == 1:
            return None
        models = len(self.inner.begin(context).theta)
        z = noise.scale("updates") * math.sqrt(models) / block.clip
        return displaced(z, noise.rate, max(1, context.training.rounds), float(block.delta or 0))


def _remembers(method: Method) -> bool:
    """Return whether clients start from what they keep, so that their updates depend on earlier rounds' draws."""
    return type(method).keeps is not Method.keeps and not method.apart


def _add_noise(
    sums: Rows, models: Sequence[int], scale: float, context: Context, round_: int, personal: Personal | None,
    common: Columns,
) -> None:  # fmt: skip
    """Add noise to the sums of these models, in place; columns that clients keep and don't send get none.

    Nor do frozen columns: their sums are 0 for any data. Columns common to all models have one sum, so they get the
    same noise, that of the first model.
    """
    import torch

    shared, frozen = None, Columns.of(context.tensors, context.frozen)
    for k in models:
        draws = streams.generator(context.seed, "update noise", round_, k)
        noise = torch.from_numpy(scale * draws.standard_normal(context.parameter_columns))
        if personal is not None and not personal.sent:
            personal.columns.clear(noise)
        frozen.clear(noise)
        if len(common):
            shared = common.taken(noise) if shared is None else shared
            common.put(noise, shared)
        sums[k] = sums[k] + noise


class _Guarded:
    """Losses as the server may see them: clipped and with noise, once per round; none if the method reveals none."""

    def __init__(self, method: Private, context: Context, round_: int, losses: Losses):
        self.method, self.context, self.round, self.losses, self.calls = method, context, round_, losses, 0

    def __call__(self, theta: Rows | None = None, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `simulation.asking.Losses`."""
        method, self.calls = self.method, self.calls + 1
        if method.reveals != "losses" or self.calls > 1:
            raise UserError(
                f"privacy: method '{method.name}' asks for its clients' losses, and says that they reveal "
                f'{method.reveals}; allowed: `reveals = "losses"` and one call in each round'
            )
        measured = self.losses(theta, clients)
        if method.block.off:
            return measured
        noise = method.identifier_noise(self.context, "loss noise", self.round, measured.shape)
        return np.asarray(clip(measured, method.block.loss_clip)) + noise

    def errors(self, clients: Ids | None = None) -> NDArray[np.float64]:
        """See `simulation.asking.Losses`: no noise is set for them."""
        raise UserError(
            f"privacy: method '{self.method.name}' asks for shares of wrong predictions, to which no noise is added; "
            "allowed: methods that ask for losses"
        )

    def samples(self, clients: Ids | None = None) -> SampleLosses:
        """See `simulation.asking.Losses`: privacy doesn't cover what clients do with these."""
        raise UserError(
            f"privacy: method '{self.method.name}' trains models on shares of its clients' samples, of which no "
            "sensitivity is known; allowed: methods whose participants train one model each"
        )
