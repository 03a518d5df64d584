"""Settings of training: what each client does in a round, and how a round's updates are merged."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ..registry import Typed

Share = Annotated[float, Field(ge=0, le=1)]
Evaluation = Literal["aggregated", "local", "stale", "personalised", "newcomer"]


class Faults(Typed):
    """Clients that misbehave in training, and what is done about it."""

    dropout: Share = Field(
        0.0,
        description="probability that a participant drops out of a round, after it received the model and before it "
        "sends anything",
    )
    dropped: Literal["exclude", "stop"] = Field(
        "exclude", description="the round goes on without clients that dropped out, or the run stops and names them"
    )
    stragglers: Share = Field(
        0.0,
        description="probability that a participant straggles: it does only 1 to all of its epochs (or steps), a "
        "number drawn uniformly (FedProx, Li et al. 2020, Sec. 5)",
    )
    straggled: Literal["exclude", "keep", "stop"] = Field(
        "exclude",
        description="a straggler's work is lost (as FedAvg does there), merged as it is (as FedProx does), or stops "
        "the run",
    )
    corrupt: Share | list[Annotated[int, Field(ge=0)]] = Field(
        0.0,
        description="share of the clients, or their ids, who send no sound update in any round; `diverged` says what "
        "happens then",
    )
    sends: Literal["nan", "infinity", "huge"] = Field(
        "nan", description="what they send: NaN or infinity, also as losses, or their update times `factor`"
    )
    factor: float = Field(1e9, gt=0, description="of a huge update")

    @property
    def loses(self) -> bool:
        """Whether a round may have fewer participants than were drawn."""
        return self.dropout > 0 or (self.stragglers > 0 and self.straggled == "exclude")


class Training(Typed):
    """Local training and aggregation. Defaults are those of the default study unless a field says otherwise."""

    rounds: int = Field(
        30,
        ge=0,
        description="communication rounds in all, warm-up rounds included (default: our choice for the default study)",
    )
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of clients drawn each round, without replacement; at least one (default: as LCFL on MNIST)",
    )
    sampler: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="how they are drawn: always as many, or each client by itself with probability `participation`, "
        "which may leave a round empty (for privacy's accounting)",
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser of each client")
    optimizer_state: Literal["fresh", "kept"] = Field(
        "fresh",
        description="fresh: a new optimiser for each client and round; kept: a client's optimiser lives as long as the "
        "run, with its momentum buffers, or Adam's moments and step count, whatever model it trains (CFL's released "
        "code)",
    )
    learning_rate: float = Field(0.1, gt=0, description="local step size (default: our choice for the default study)")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD, PyTorch's form")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to the gradient")
    proximal: float = Field(
        0.0, ge=0, description="mu of FedProx: adds mu/2 |w - w_start|^2 to the local loss (Li et al. 2020)"
    )
    lookahead: float = Field(
        0.0,
        ge=0,
        description="above 0, mini-batches come in pairs: a plain step of this rate on the first leads to where the "
        "second's gradient is taken, and its step begins where the pair did (first-order MAML, Finn et al. 2017)",
    )
    schedule: Literal["constant", "round", "participation"] = Field(
        "constant",
        description="what the decay counts: rounds, or the client's own participations (fl-sim's StepLR)",
    )
    decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate per round or participation")
    decays_before: int = Field(
        0,
        ge=0,
        description="times that `decay` is applied before the first round (CFL's released code: 1)",
    )
    batch_size: int | Literal["full"] = Field(
        10,
        description="samples per step, or full (default: as FedProx and PFLlib); an epoch's last batch may be short, "
        "see short_batches",
    )
    short_batches: Literal["train", "drop"] = Field(
        "train",
        description="an epoch's last batch, where it is short: trained, or left out (PFLlib and FedGWC: drop_last)",
    )
    epochs: int | None = Field(
        5,
        ge=1,
        description="passes over the client's data per round; give this or `steps` (default: as LCFL on FEMNIST)",
    )
    steps: int | None = Field(None, ge=1, description="mini-batch steps per round, instead of `epochs`")
    weights: Literal["samples", "uniform"] = Field(
        "samples",
        description="weight of a client's update: its training samples (FedAvg) or 1 (fl-sim, IFCA)",
    )
    average: Literal["models", "gradients"] = Field(
        "models",
        description="what is averaged: the clients' trained models, or one full-batch gradient of each, with which the "
        "server takes a step of `optimizer` (option II of CLoVE, gradient averaging of IFCA)",
    )
    divisor: Literal["participants", "ratio", "all", "expected"] = Field(
        "participants",
        description="what a cluster's sum is divided by: its participants' weights, participation x cluster size "
        "(LCFL's released code; needs uniform weights), the weights of all participants (IFCA's Algorithm 1 with "
        "gradients), or participation x clients / clusters, which tells of no client (needs uniform weights)",
    )
    server_learning_rate: float = Field(1.0, gt=0, description="factor on the merged update")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="of the server optimiser; above 0 this is FedAvgM")
    diverged: Literal["stop", "exclude"] = Field(
        "stop",
        description="what happens when a client's update has NaN or infinity or is longer than largest_update: the run "
        "stops and names the client, or goes on without that update, which `rounds` counts",
    )
    largest_update: float = Field(
        1e6, gt=0, allow_inf_nan=True, description="Euclidean norm that no sound update exceeds; .inf = any finite one"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round always counts")
    evaluations: list[Evaluation] = Field(
        ["aggregated"],
        description="which models are scored besides a client's cluster model after aggregation: its model after local "
        "training, the one of its previous participation (LCFL's published protocol), its cluster model after "
        "personalised_steps on its own data, or the model that a newcomer is given",
    )
    personalised_steps: int = Field(10, ge=1, description="mini-batch steps before the personalised evaluation")
    faults: Faults | None = Field(
        None,
        description="clients that misbehave, e.g. {dropout: 0.2, corrupt: 0.1}; given again, it replaces all of this",
    )
    later: ClassVar[frozenset[str]] = frozenset(
        {"faults", "optimizer_state", "decays_before", "lookahead", "short_batches"}
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_epochs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("steps") is not None and "epochs" not in values:
            return values | {"epochs": None}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if isinstance(self.batch_size, int) and self.batch_size < 1:
            raise ValueError(f"batch_size: {self.batch_size} must be at least 1, or 'full'")
        if self.batch_size == "full" and self.short_batches == "drop":
            raise ValueError("short_batches: drop, but with batch_size: full no batch is short; omit it")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs: {self.epochs} and steps: {self.steps}; give one of them, and set the other to null"
            )
        if self.divisor in ("ratio", "expected") and self.weights != "uniform":
            raise ValueError(f"divisor: {self.divisor} counts clients, so it needs weights: uniform")
        if self.average == "gradients":
            self._check_gradients()
        if self.faults is not None and self.faults.stragglers and self.most == 1:
            unit = "epochs" if self.steps is None else "steps"
            raise ValueError(f"faults.stragglers: with {unit}: 1 there is no smaller number to do; set more {unit}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum: {self.momentum:g}, but Adam has its own; set momentum: 0 or optimizer: sgd")
        if self.optimizer_state == "kept" and self.optimizer == "sgd" and not self.momentum:
            raise ValueError(
                "optimizer_state: kept, but SGD with momentum: 0 has nothing to keep; allowed: fresh, or kept with a "
                "momentum above 0 or with optimizer: adam"
            )
        if self.lookahead:
            self._check_lookahead()
        for name, given in {"decay": self.decay < 1, "decays_before": self.decays_before > 0}.items():
            if given and self.schedule == "constant":
                raise ValueError(
                    f"{name} needs schedule: round or participation; with 'constant' it would have no effect"
                )
        return self

    def _check_lookahead(self) -> None:
        """Raise an error if no client could have two mini-batches in a round."""
        if self.steps == 1 or (self.batch_size == "full" and self.epochs == 1):
            raise ValueError(
                "lookahead takes mini-batches in pairs, but a client has only one in a round; set more steps or epochs"
            )

    def _check_gradients(self) -> None:
        """Raise an error for settings that have no effect with one full-batch gradient."""
        if self.batch_size != "full" or self.steps != 1:
            raise ValueError("average: gradients takes one full-batch gradient: set batch_size: full and steps: 1")
        without = {
            "proximal": self.proximal > 0,
            "lookahead": self.lookahead > 0,
            "server_momentum": self.server_momentum > 0,
            "server_learning_rate": self.server_learning_rate != 1,
            "schedule: participation": self.schedule == "participation",
            "optimizer_state: kept": self.optimizer_state == "kept",
            "evaluation of local or stale models": bool({"local", "stale"} & set(self.evaluations)),
        }
        for name, given in without.items():
            if given:
                raise ValueError(f"{name} has no effect with average: gradients, where the server steps; remove it")

    def participants(self, clients: int) -> int:
        """Return how many of these clients take part in a round, at least one; with ``sampler: poisson`` on average."""
        return max(1, round(self.participation * clients))

    @property
    def most(self) -> int:
        """The epochs, or steps, of a client in a round."""
        return int(self.epochs or self.steps or 1)

    def on_clients(self) -> Training:
        """Return the settings for clients: with ``average: gradients`` plain SGD, because they only send a gradient."""
        if self.average == "models":
            return self
        plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "decay": 1.0}
        plain |= {"decays_before": 0}
        return self.model_copy(update=plain)

    def rates(self, round_: int, participations: Any) -> NDArray[np.float64]:
        """Return the learning rates [m] in a round (negative: in the evaluation after it; 0: before round 1).

        `participations` [m] are the numbers of rounds that each client took part in before.
        """
        count = np.asarray(participations if self.schedule == "participation" else np.zeros(np.shape(participations)))
        if self.schedule == "round":
            count = np.full(count.shape, max(abs(round_) - 1, 0))
        return np.asarray(self.learning_rate * self.decay ** (count + self.decays_before))
