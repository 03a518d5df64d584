"""PACFL: cluster clients once, before any training, by the angles between the subspaces that their samples span.

Paper: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah and Lin, AAAI 2023, arXiv 2209.10526. A client sends the first p
left singular vectors of each of its classes' samples; the server computes the smallest angle between any two clients,
merges clusters as long as they are at most a threshold apart, and runs FedAvg in each cluster; all clusters begin with
the same untrained model.

Released code (MMorafah/PACFL), as options: its angle is the least between any two vectors of two clients, without an
absolute value, so it depends on the arbitrary signs of singular vectors (``angle: pairs``); its "average" linkage is
the plain mean of two clusters' distances (``linkage: weighted``, SciPy's name). Not implemented: its number of vectors
by the classes' shares ("budget", for Dirichlet partitions), which never takes effect there, because a list of one class
is looked up among the classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..clustering.linkage import hierarchical
from ..clustering.subspaces import angles, basis
from ..simulation.method import Context, Known, Method, Problem, State
from ..storage.blocks import too_many
from .fixed import begin_with, threshold_or_clusters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class PACFL(Method):
    """Cluster clients by the angles between the subspaces of their samples, then run FedAvg in each cluster."""

    settles: ClassVar[bool] = True
    asks: ClassVar[str] = "singular vectors of each client's samples"
    threshold: Annotated[
        float | None,
        Field(ge=0, le=180, description="clusters up to this far apart, in degrees, merge (released: 4.9 on CIFAR-10)"),
    ] = None
    clusters: Annotated[
        int | None, Field(gt=0, description="K, the number of clusters, instead of a threshold (ours)")
    ] = None
    vectors: Annotated[int, Field(gt=0, description="p, singular vectors per class (released: 3, default 5)")] = 3
    angle: Annotated[
        Literal["smallest", "pairs"],
        Field(description="smallest angle of the spans (paper, Eq. 2), or of any two vectors, with signs (released)"),
    ] = "pairs"
    linkage: Annotated[
        Literal["weighted", "complete", "single"],
        Field(description="distance to a merged cluster: mean of its halves' (released: average), maximum, minimum"),
    ] = "weighted"

    def check(self, known: Known) -> Iterator[Problem]:
        """See `Method.check`."""
        yield from super().check(known)
        yield from threshold_or_clusters(self, "degrees up to which clusters merge")
        problem = too_many(known.clients, "PACFL compares the subspaces of all clients")
        if problem:
            yield Problem("", problem)

    def begin(self, context: Context) -> State:
        """See `Method.begin`: every client sends its vectors, and all clusters begin with the same model."""

        def reduced(x: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float64]:
            return basis(x, y, self.vectors)

        distance = angles(context.survey.samples.reduced(reduced), self.angle)
        labels = hierarchical(distance, self.clusters, linkage=self.linkage, threshold=self.threshold)
        return begin_with(context, labels)
