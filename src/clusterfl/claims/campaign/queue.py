"""The open blocks: runs of shipped studies whose printed numbers aren't judged yet, best numbers an hour first.

A block is a federation and a method of a shipped study, the seeds that are wanted of it and haven't run, and how many
rounds: all of them, or those of a prefix. A number is open where fewer than the wanted seeds have one beside it at the
paper's scale, and those seeds can decide it: one alone can't where print gives no deviation. Of each run, the prefix
with most open numbers an hour is a block, or a longer one of nearly as many, then the best that follows it; a prefix of
more than half of the rounds isn't, for the whole run costs less than twice as much and judges all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path

from ...config.claims import PAPERS
from ...errors import UserError
from ...pipeline.checkpoint import Unfinished
from ...pipeline.job import Job
from ...progress import bar
from ...storage.store import RESULTS
from .. import counts, scale
from ..gather import claim_rows, gathered
from ..ours import Results
from ..printed import Claim, claims
from ..reading import Reader
from ..runs import Run
from . import costs, prefix

HOUR = 3600.0  # seconds
HALF = 0.5  # of the rounds: longer prefixes aren't run
NEARLY = 2 / 3  # of the best prefix's numbers an hour: a longer one with these spares a second beginning


@dataclass(frozen=True)
class Block:
    """A part of the queue."""

    paper: str
    study: str
    federation: str
    method: str
    rounds: int
    whole: int  # rounds of the shipped run
    claims: tuple[Claim, ...]  # that it can judge
    seeds: tuple[int, ...]  # to run
    wanted: tuple[int, ...]
    hours: float | None  # of one core, all of `seeds`; None: the table of costs doesn't know it
    share_done: float = 0.0  # of the rounds of all `seeds`, by checkpoints

    @property
    def name(self) -> str:
        """Paper, federation and method, as `--only` is compared with."""
        return f"{self.paper}/{self.federation}/{self.method}"

    @property
    def done(self) -> tuple[int, ...]:
        """The wanted seeds that have run."""
        return tuple(seed for seed in self.wanted if seed not in self.seeds)

    @property
    def each(self) -> float:
        """Hours of a seed; 0 where they aren't known."""
        return (self.hours or 0.0) / len(self.seeds)

    @property
    def left(self) -> float:
        """Hours of what no checkpoint has; 0 where they aren't known."""
        return (self.hours or 0.0) * (1 - self.share_done)

    @property
    def rate(self) -> float:
        """Numbers an hour of what is left; 0 where the hours aren't known."""
        return 0.0 if self.hours is None else len(self.claims) / max(self.left, 1e-9)

    @property
    def stops(self) -> int | None:
        """The round at which its study stops; None: the shipped study runs."""
        return None if self.rounds == self.whole else self.rounds


@dataclass
class Open:
    """What a run of a shipped study could judge and hasn't: the rounds that each number needs."""

    paper: str
    place: scale.Place
    job: Job  # of the first wanted seed
    needs: dict[Claim, int]

    @cached_property
    def whole(self) -> int:
        """Rounds of the shipped run."""
        return int(self.job.settings["training"]["rounds"])


class Queue:
    """What is open, by the runs that there are under results/ or as evidence.

    Parameters
    ----------
    folders
        Where runs are read from, see `gathered`.
    seeds
        Only these; a study has those of `seeds.runs` of them. By default all.
    only
        Patterns for PAPER/FEDERATION/METHOD, of which one must fit. By default all do.
    """

    def __init__(self, folders: Sequence[Path], seeds: Collection[int] | None = None, only: Sequence[str] = ("*",)):
        self.seeds, self.only = seeds, only
        self.own = any(folder.resolve() == RESULTS.resolve() for folder in folders)
        self.results = gathered(folders)[0]
        self.pieces = {study.study.study: list(chain(*study.pieces.values())) for study in self.results}
        self._studies: dict[tuple[str, int | None], Results] = {}

    @cached_property
    def blocks(self) -> list[Block]:
        """The open blocks, the best numbers an hour first; what checkpoints have of a block costs nothing.

        Raises
        ------
        UserError
            If no run of a shipped study is meant.
        """
        reached = {paper: costs.reachable(paper) for paper in PAPERS}
        named = [_name(paper, place) for paper in PAPERS for place in reached[paper].values()]
        for pattern in self.only:
            if any(fnmatchcase(name, pattern) for name in named):
                continue
            example = next(iter(named), "clove/mnist-ls1/ifca")
            raise UserError(
                f"--only: '{pattern}' matches no run whose numbers can be judged with the data on this machine; a "
                f"pattern is compared with PAPER/FEDERATION/METHOD, e.g. {example} or 'clove/mnist-*'"
            )
        asked = {p: tuple(s for s in scale.seeds(p) if self.seeds is None or s in self.seeds) for p in PAPERS}
        if not any(asked.values()):
            allowed = "; ".join(f"{paper} {', '.join(map(str, scale.seeds(paper)))}" for paper in PAPERS)
            raise UserError(f"--seeds: no shipped study has one of them; allowed: {allowed}")
        runs = [own for p in PAPERS if asked[p] for own in self._open(p, reached[p], asked[p])]
        found: list[Block] = []
        with bar("runs with open numbers", len(runs)) as progress:
            for number, own in enumerate(runs, 1):
                found += self.of(own, asked[own.paper])
                progress(number, "")
        return sorted(found, key=lambda block: (-block.rate, block.study, block.name))

    @cached_property
    def verdicts(self) -> Counter[str]:
        """How many printed numbers have which verdict."""
        return Counter(row["verdict"] for row in claim_rows(self.results)[0])

    @property
    def lacking(self) -> int:
        """How many printed numbers nothing but data stands in the way of."""
        found = (counts.reach(claim, scale.shipped(claim.paper)) for claim in claims())
        return sum(reach == counts.NO_DATA for reach in found)

    def _open(self, paper: str, reached: Mapping[Claim, scale.Place], wanted: Sequence[int]) -> Iterator[Open]:
        """Yield what each run of a paper's shipped study could judge and hasn't, of those that match."""
        found: dict[scale.Place, dict[Claim, int]] = defaultdict(dict)
        for claim, place in reached.items():
            if not any(fnmatchcase(_name(paper, place), pattern) for pattern in self.only):
                continue
            there = _judged(claim, self.results)
            if not set(wanted) <= there and _decidable(claim, there.union(wanted)):
                found[place][claim] = _needed(claim, self.study(paper, None), place)
        for (federation, method), needs in found.items():
            job = prefix.plan(paper).job("federate", federation, wanted[0], method)
            yield Open(paper, (federation, method), job, needs)

    def study(self, paper: str, stops: int | None) -> Results:
        """Return what there is of a shipped study, or of one that stops at a round."""
        key = paper, stops
        if key not in self._studies:
            plan = prefix.plan(*key)
            self._studies[key] = Results(plan, self.pieces.get(plan.study.study, ()), self.own)
        return self._studies[key]

    def of(self, own: Open, wanted: tuple[int, ...]) -> Iterator[Block]:
        """Yield the blocks of a run, the best first."""
        needs = {claim: n if n <= HALF * own.whole else own.whole for claim, n in own.needs.items()}
        while needs:
            rates = {r: self._rate(own, needs, r) for r in set(needs.values())}
            rounds = max(r for r, rate in rates.items() if rate >= NEARLY * max(rates.values()))
            judged = tuple(claim for claim, n in needs.items() if n <= rounds)
            block = self._block(own, rounds, judged, wanted)
            if block.seeds:
                yield block
                needs = {claim: n for claim, n in needs.items() if n > rounds}
            else:  # it has run, and these numbers need more; or there is no more
                needs = {claim: own.whole if n <= rounds else n for claim, n in needs.items() if rounds < own.whole}

    def _rate(self, own: Open, needs: Mapping[Claim, int], rounds: int) -> float:
        cost = self._cost(own.paper, own.job, rounds)
        numbers = sum(n <= rounds for n in needs.values())
        return numbers / rounds if cost is None else numbers / max(cost, 1e-9)

    def _block(self, own: Open, rounds: int, judged: tuple[Claim, ...], wanted: tuple[int, ...]) -> Block:
        stops = None if rounds == own.whole else rounds
        plan = prefix.plan(own.paper)
        study = prefix.named(plan.study.study, stops)
        seeds = tuple(seed for seed in wanted if not self._ran(own, stops, seed))
        jobs = [plan.job("federate", own.place[0], seed, own.place[1]) for seed in seeds]
        units = [self._cost(own.paper, job, rounds, study) for job in jobs]
        known = [cost for cost in units if cost is not None]
        hours = sum(known) * costs.unit() / HOUR if len(known) == len(units) else None
        done = sum(Unfinished(_moved(job.unfinished, study)).step for job in jobs)
        share = min(done / (rounds * max(1, len(jobs))), 1.0)
        return Block(own.paper, study, *own.place, rounds, own.whole, judged, seeds, wanted, hours, share)

    def _ran(self, own: Open, stops: int | None, seed: int) -> bool:
        """Return whether a run is there that counts."""
        study = prefix.named(prefix.plan(own.paper).study.study, stops)
        if not self.pieces.get(study) and not (self.own and (RESULTS / study).is_dir()):
            return False
        return isinstance(self.study(own.paper, stops).run(own.place[0], seed, own.place[1]), Run)

    def _cost(self, paper: str, job: Job, rounds: int, study: str = "") -> float | None:
        """Return the units of a run and of what it needs before it, less what a study has of it already."""
        found = 0.0
        for one in prefix.plan(paper).jobs([job]):
            if study and one.stage != "download" and _moved(one.first, study).exists():
                continue
            cost = costs.of(paper, one)
            if cost is None:
                return None
            found += cost.of(rounds if one is job else int(one.settings.get("training", {}).get("rounds", 0)))
        return found


def _moved(path: Path, study: str) -> Path:
    """Return a path under results/ as it is in another study."""
    return RESULTS.joinpath(study, *path.relative_to(RESULTS).parts[1:])


def _name(paper: str, place: scale.Place) -> str:
    return f"{paper}/{'/'.join(place)}"


def _judged(claim: Claim, results: Sequence[Results]) -> set[int]:
    """Return the seeds of which the study that has most of them has a number at the paper's scale."""
    found: list[set[int]] = [set()]
    for study in results:
        where = study.claims.profile, claim.cell, claim.method
        if study.claims.paper != claim.paper or study.named(*where) is None or not study.scale(*where).judged:
            continue
        outcome = study.outcome(*where, claim.metric, claim.at)
        if outcome is not None and outcome.not_run is None:
            found.append({*outcome.values, *outcome.without})
    return max(found, key=len)


def _decidable(claim: Claim, seeds: Collection[int]) -> bool:
    """Return whether a number may get another verdict than undecided: one seed has no deviation but that of print."""
    return len(seeds) > 1 or claim.printed is None or claim.printed_std is not None


def _needed(claim: Claim, shipped: Results, place: scale.Place) -> int:
    """Return the rounds that a number needs: all where fewer aren't the beginning of more."""
    plan, (federation, method) = shipped.plan, place
    seed = plan.study.seeds.runs[0]
    cell = shipped.claims.of(shipped.claims.profile)[0][claim.cell]
    how = shipped.scale(shipped.claims.profile, claim.cell, claim.method)
    run = prefix.Planned(shipped.source, plan.on(federation), federation, seed, method)
    reader = Reader(run, cell, how)
    if scale.bound(plan.job("federate", federation, seed, method)):
        return reader.rounds
    return max(prefix.needed(claim, reader), prefix.least(plan.study))
