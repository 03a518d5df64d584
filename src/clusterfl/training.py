"""Settings of training: what every client does in a round, and how a round's updates are merged."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from .typed import Typed


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
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser, made anew for each client and round")
    learning_rate: float = Field(0.1, gt=0, description="local step size (default: our choice for the default study)")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD, PyTorch's form")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to the gradient")
    proximal: float = Field(
        0.0, ge=0, description="mu of FedProx: adds mu/2 |w - w_start|^2 to the local loss (Li et al. 2020)"
    )
    schedule: Literal["constant", "round", "participation"] = Field(
        "constant",
        description="what the decay counts: rounds, or the client's own participations (fl-sim's StepLR)",
    )
    decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate per round or participation")
    batch_size: int | Literal["full"] = Field(
        10,
        description="samples per step, or full; an epoch's last batch may be short (default: as FedProx and PFLlib)",
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
    divisor: Literal["participants", "ratio"] = Field(
        "participants",
        description="what a cluster's sum is divided by: its participants' weights, or participation x cluster size "
        "(LCFL's released code; needs uniform weights)",
    )
    server_learning_rate: float = Field(1.0, gt=0, description="factor on the merged update")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="of the server optimiser; above 0 this is FedAvgM")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round always counts")
    evaluations: list[Literal["aggregated", "local", "stale"]] = Field(
        ["aggregated"],
        description="which models are scored: a client's cluster model after aggregation, its model after local "
        "training, or the one of its previous participation (LCFL's published protocol)",
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
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, and set the other to null")
        if self.divisor == "ratio" and self.weights != "uniform":
            raise ValueError("divisor: ratio counts clients, so it needs weights: uniform")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError("momentum belongs to optimizer: sgd; Adam has its own")
        if self.decay < 1 and self.schedule == "constant":
            raise ValueError("decay needs schedule: round or participation; with 'constant' it would have no effect")
        return self
