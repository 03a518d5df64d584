"""FedCAM: a client's model is the sum of a common model and its cluster's; their outputs are added up.

Paper: Ma, Zhou, Long, Jiang and Zhang, Structured Federated Learning through Clustered Additive Modeling, NeurIPS 2023.
The prediction is ``h(x; g) + f(x; c_k)``. A participant takes the cluster whose part, added to the common one, has the
least loss on its data (IFCA's rule), trains both parts, each while the other is fixed, and sends both. The common part
becomes the mean over all participants, a cluster's part the mean over its own. No code was released. The related FeMAM
(shutong043/FeMAM) finishes training one level before the next one begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ..simulation.method import Context, Known, Problem, Reveals
from .ifca import Choices, SeveralModels

if TYPE_CHECKING:
    from torch import Tensor

COMMON, OWN = "0.", "1."  # what the names of the two parts' tensors begin with


@dataclass(frozen=True, kw_only=True)
class FedCAM(SeveralModels):
    """Add a common model and the one of K that gives the sum the least loss; both are trained, in turns."""

    copies: ClassVar[int] = 2
    reveals: ClassVar[Reveals] = "choice"
    own: ClassVar[type | None] = Choices
    order: Annotated[
        Literal["common", "cluster", "alternate", "together"],
        Field(
            description="which part a participant trains first in a round; alternate: one part per round, the common "
            "one in odd rounds; together: both at once"
        ),
    ] = "common"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        training = known.training
        if self.order != "together" and training.average == "gradients":
            sentence = "'gradients' is of both parts at once; allowed: models, or order: together of the method"
            yield Problem("training.average", sentence)
        if self.order != "together" and training.optimizer_state == "kept":
            sentence = "'kept' is one optimiser for both parts; allowed: fresh, or order: together of the method"
            yield Problem("training.optimizer_state", sentence)
        if training.average == "gradients" and training.optimizer == "adam":
            sentence = "'adam' on the server counts each model's steps, and the common part is of all; allowed: sgd"
            yield Problem("training.optimizer", sentence)

    def common(self, context: Context) -> Collection[str]:
        """See `Method.common`."""
        return [name for name in context.tensors if name.startswith(COMMON)]

    def turns(self, context: Context, round_: int) -> Sequence[Collection[str]]:
        """See `Method.turns`."""
        both = [[name for name in context.tensors if name.startswith(part)] for part in (COMMON, OWN)]
        if self.order == "alternate":
            return [both[(abs(round_) + 1) % 2]]
        return {"common": both, "cluster": both[::-1], "together": []}[self.order]

    def _models(self, context: Context, draw: int) -> Tensor:
        from ..engine.personal import Columns

        models, columns = super()._models(context, draw), Columns.of(context.tensors, self.common(context))
        columns.put(models, columns.taken(models[0]))
        return models
