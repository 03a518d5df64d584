"""The runs of a study with a block `claims`: the jobs they are results of, their files, and evidence of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ..errors import UserError
from ..pipeline import jobs
from ..report import measures
from ..report.source import Source
from ..storage import digest
from ..storage.manifest import verified
from .evidence_file import Piece
from .runs import Run


class StudyRuns:
    """The runs of a study.

    Parameters
    ----------
    plan
        The study's.
    pieces
        Evidence of its runs.
    own
        Whether the files under results/ are read, too.
    """

    def __init__(self, plan: jobs.Plan, pieces: Sequence[Piece] = (), own: bool = True):
        assert plan.study.claims is not None
        self.plan, self.study, self.claims, self.own = plan, plan.study, plan.study.claims, own
        self.pieces: dict[tuple[str, int, str], list[Piece]] = {}
        for piece in pieces:
            self.pieces.setdefault(piece.where, []).append(piece)
        self._report = plan.job("report")
        self.source = Source(self._report.settings, self._report.inputs)
        self._partitions: dict[tuple[str, int], measures.Planted] = {}
        self._names: dict[str, list[str]] = {}  # of the report's inputs, by all before the last dot
        for name in self._report.inputs:
            self._names.setdefault(name.rpartition(".")[0], []).append(name)

    def job(self, federation: str, seed: int, method: str) -> jobs.Job | None:
        """Return the job that a run is the result of; None if the study has none such."""
        return self._report.upstream.get(f"{federation}/seed{seed}/methods/{method}.history")

    def chain(self, job: jobs.Job) -> str:
        """Return the digest of the settings of all jobs that a result is made from, its own included."""
        return digest.of_text(digest.canonical({str(one): one.settings_digest for one in self.plan.jobs([job])}))

    def here(self, federation: str, seed: int, method: str) -> Run | str:
        """Return a run under results/ whose files are there and right, or what is wrong with them."""
        job = self.job(federation, seed, method)
        if job is None or not self.own:
            return f"there is no evidence of {method} on {federation}, seed {seed}"
        place = f"{federation}/seed{seed}"
        names = [*self._names.get(f"{place}/partition", ()), *self._names.get(f"{place}/methods/{method}", ())]
        try:
            for name in names:
                one = self._report.upstream[name]
                verified(self._report.inputs[name], one.identity, one.settings_digest)
        except UserError as error:
            return str(error).partition("; ")[0]
        planted = partial(self._planted, federation, seed)
        return Run(self.source, self.plan.on(federation), federation, seed, method, self.chain(job), planted)

    def _planted(self, federation: str, seed: int) -> measures.Planted:
        """Return what a partition says, which all runs on it need."""
        if (federation, seed) not in self._partitions:
            self._partitions[federation, seed] = measures.Planted.of(self.source, federation, seed)
        return self._partitions[federation, seed]

    def places_run(self) -> Iterator[tuple[str, int, str]]:
        """Yield federation, seed and method of every run that the study has."""
        for federation, seed in self.source.places():
            for method in self.plan.on(federation).methods:
                yield federation, seed, method
