"""The runs of a study with a block `claims`: their jobs, their files, and evidence of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

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
        The study's plan.
    pieces
        Evidence of its runs.
    own
        Whether files under results/ are read, too.
    """

    def __init__(self, plan: jobs.Plan, pieces: Sequence[Piece] = (), own: bool = True):
        assert plan.study.claims is not None
        self.plan, self.study, self.claims, self.own = plan, plan.study, plan.study.claims, own
        self.pieces: dict[tuple[str, int, str], list[Piece]] = {}
        for piece in pieces:
            self.pieces.setdefault(piece.where, []).append(piece)
        self._partitions: dict[tuple[str, int], measures.Planted] = {}

    @cached_property
    def _report(self) -> jobs.Job:
        """The report's job, which has every file; it takes a second for a large study, and evidence doesn't need it."""
        return self.plan.job("report")

    @cached_property
    def source(self) -> Source:
        """The study's settings, and its files where those are read."""
        if not self.own:
            return Source(self.study.model_dump(mode="json"), {})
        return Source(self._report.settings, self._report.inputs)

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Names of the files, by what comes before the last dot."""
        found: dict[str, list[str]] = {}
        for name in self._report.inputs:
            found.setdefault(name.rpartition(".")[0], []).append(name)
        return found

    def job(self, federation: str, seed: int, method: str) -> jobs.Job | None:
        """Return the job that makes a run; None if the study has none."""
        if federation not in self.study.federations or seed not in self.study.seeds.runs:
            return None
        if method not in self.plan.on(federation).methods:
            return None
        return self.plan.result(federation, seed, method)

    def chain(self, job: jobs.Job) -> str:
        """Return the digest of the settings of all jobs that a result is made from, its own included."""
        return digest.of_text(digest.canonical({str(one): one.settings_digest for one in self.plan.jobs([job])}))

    def here(self, federation: str, seed: int, method: str) -> Run | str:
        """Return a run under results/ whose files exist and are valid, or what is wrong with them."""
        job = self.job(federation, seed, method) if self.own else None
        if job is None:
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
        """Return the planted groups of a partition, which all runs on it need."""
        if (federation, seed) not in self._partitions:
            self._partitions[federation, seed] = measures.Planted.of(self.source, federation, seed)
        return self._partitions[federation, seed]

    def places_run(self) -> Iterator[tuple[str, int, str]]:
        """Yield federation, seed and method of every run that the study has."""
        for federation, seed in self.source.places():
            for method in self.plan.on(federation).methods:
                yield federation, seed, method
