"""All claims compared with the numbers of all studies: the tables over everything under results/."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..progress import Report, bar
from ..storage.store import RESULTS, Columns, write_table
from . import central, discrepancies, evidence, grammar, notes, verdicts, weigh
from .evidence_file import AGAIN
from .grammar import Key, Number
from .orderings import NO_NUMBER, judge
from .ours import Outcome, Results, spread
from .printed import Claim, Ordering, claims, orderings
from .runs import Made
from .scale import LITE, PAPER
from .scale import NAMES as SCALES

LITE_REASON = "scale lite, not the paper's settings"
# name -> type; what isn't known is NaN or an empty string
CLAIM_COLUMNS: dict[str, type] = {
    "claim_id": str, "paper": str, "printed": float, "printed_std": float, "ours": float, "ours_std": float,
    "seeds": int, "difference": float, "standardised": float, "scale": str, "profile": str, "verdict": str,
    "reason": str, "also_accepts": str, "guesses": int, "dataset": str, "setting": str, "method": str, "metric": str,
    "at": str, "where": str, "study": str, "federation": str, "our_method": str, "note": str, "values": str,
    "origin": str, "processor": str, "branch": str, "commit": str,
}  # fmt: skip
ORDERING_COLUMNS: dict[str, type] = {
    "claim_id": str, "paper": str, "statement": str, "left": str, "relation": str, "right": str, "verdict": str,
    "reason": str, "scale": str, "study": str, "combinations": int, "evaluated": int, "holding": int, "failing": int,
    "undecided": int, "share": float, "seeds": int, "seeds_holding": int, "on_print": str, "dataset": str,
    "setting": str, "metric": str, "at": str, "where": str, "note": str,
}  # fmt: skip
Row = dict[str, Any]


EVIDENCE_COLUMNS: dict[str, type] = {
    "study": str, "federation": str, "seed": int, "method": str, "place": str, "origin": str, "status": str,
    "detail": str, "other": str, "difference": float, "processor": str, "branch": str, "commit": str, "code": str,
    "settings": str, "partition": str,
}  # fmt: skip


def studies(folders: Sequence[Path] | None = None) -> list[Results]:
    """Return the studies of `gathered`, without its warnings."""
    return gathered(folders)[0]


def gathered(folders: Sequence[Path] | None = None) -> tuple[list[Results], list[str]]:
    """Return every study with a block `claims` that has results or evidence, by name, and warnings about them.

    Parameters
    ----------
    folders
        ``results``, and folders of evidence; of several pieces for a run the first is used. By default ``results``, and
        ``docs/reproduction/evidence`` where it holds any.
    """
    if folders is None:
        folders = [RESULTS, *([evidence.FOLDER] if any(evidence.FOLDER.glob("*/*.parquet")) else [])]
    own = [folder for folder in folders if folder.resolve() == RESULTS.resolve()]
    pool = evidence.read([folder for folder in folders if folder not in own])
    here = {path.parent.name: path for path in sorted(RESULTS.glob("*/settings.json"))} if own else {}
    found, warnings = [], pool.warnings
    for name in sorted(pool.settings.keys() | here.keys() | pool.pieces.keys()):
        pieces = pool.pieces.get(name, [])
        try:
            study = None
            if name in here or name in pool.settings:
                study = Results.from_snapshot(here.get(name) or pool.settings[name], pieces, name in here)
        except UserError as error:
            if name in here:
                raise
            warnings.append(f"evidence of study '{name}' can't be read: {error}")
            continue
        if study is not None:
            found.append(study)
            warnings += weigh.sentences(study.weighed_all())
            warnings += filter(None, [study.overstated()])
        elif pieces:
            warnings.append(
                f"{pieces[0].file}: there are no settings of study '{name}' with a block `claims`, neither under "
                f"{RESULTS}/ nor beside it; {AGAIN} {name}"
            )
    return found, warnings


def write(results: Sequence[Results]) -> tuple[list[Row], list[Row]]:
    """Write the tables and return the rows of the claims and of the orderings."""
    with bar("printed numbers", len(claims())) as progress:
        rows, second = claim_rows(results, progress)
    ordered = [row for ordering in orderings() for row in ordering_rows(ordering, results)]
    write_table(RESULTS / "claims.parquet", columns(rows, CLAIM_COLUMNS))
    write_table(RESULTS / "discrepancies.parquet", columns(second, CLAIM_COLUMNS))
    write_table(RESULTS / "orderings.parquet", columns(ordered, ORDERING_COLUMNS))
    measured = list(discrepancies.rows(results))
    write_table(RESULTS / "consequences.parquet", columns(measured, discrepancies.COLUMNS))
    write_table(RESULTS / "central.parquet", columns(central_rows(results), central.COLUMNS))
    write_table(RESULTS / "evidence.parquet", columns(evidence_rows(results), EVIDENCE_COLUMNS))
    return rows, ordered


def evidence_rows(results: Iterable[Results]) -> list[Row]:
    """Return one row for each piece of every run that has evidence, with how it was used."""
    rows = []
    for study in results:
        for one in study.weighed:
            row = {name: getattr(one, name, None) or getattr(one.made, name, "") for name in EVIDENCE_COLUMNS}
            where = dict(zip(("federation", "seed", "method"), one.where, strict=True))
            rows.append(row | where | {"study": study.study.study, "difference": one.difference})
    return sorted(rows, key=lambda row: (row["study"], row["federation"], row["method"], row["seed"]))


def central_rows(results: Sequence[Results]) -> list[Row]:
    """Return the rows of the papers' central claims, see `central.rows`."""

    def lookup(claim: Ordering, scale: str) -> _Lookup:
        return _Lookup(claim, [study for study in results if study.claims.paper == claim.paper], scale)

    return list(central.rows(lookup))


def columns(rows: Sequence[Row], types: dict[str, type]) -> Columns:
    """Return rows as typed columns, even if there are no rows."""
    return {name: np.array([row[name] for row in rows], dtype=kind) for name, kind in types.items()}


def claim_rows(results: Sequence[Results], progress: Report = lambda done, text: None) -> tuple[list[Row], list[Row]]:
    """Return one row for each claim, and the rows of second profiles.

    Where several studies have a number, a judged one is preferred, then more seeds, then a whole run over a prefix,
    then the first by name. Profiles by which studies judge the claim, other than that of the chosen number, are second
    ones, too.
    """
    rows, second = [], []
    for number, claim in enumerate(claims(), 1):
        progress(number, "")
        found = _candidates(claim, results)
        main = _main(found)
        if main is None or main[2].not_run is not None:
            rows.append(_not_run(claim, results, main))
        else:
            rows.append(_row(claim, *main))
        stands = main[1] if main is not None and main[2].not_run is None else None
        for profile in sorted({p for _, p, outcome in found if outcome.not_run is None} - {stands}):
            best = min((c for c in found if c[1] == profile), key=_rank)
            second.append(_row(claim, *best))
    return rows, second


Candidate = tuple[Results, str, Outcome]


def standing(claim: Claim, results: Iterable[Results]) -> Candidate | None:
    """Return the study, the profile and the outcome that a claim is compared with; None where nothing was run."""
    main = _main(_candidates(claim, results))
    return None if main is None or main[2].not_run is not None else main


def _main(found: Sequence[Candidate]) -> Candidate | None:
    return min((c for c in found if c[0].claims.profile == c[1]), key=_rank, default=None)


def _candidates(claim: Claim, results: Iterable[Results]) -> list[Candidate]:
    """Return what studies have for a claim, each with its profile.

    A second profile counts only where its run is a different one.
    """
    found = []
    for study in results:
        places = set()
        for profile in study.claims.profiles() if study.claims.paper == claim.paper else ():
            place = study.named(profile, claim.cell, claim.method)
            if place in places:
                continue
            places.add(place)
            outcome = study.outcome(profile, claim.cell, claim.method, claim.metric, claim.at)
            if outcome is not None:
                found.append((study, profile, outcome))
    return found


def _rank(candidate: Candidate) -> tuple[bool, bool, int, int, str]:
    """Return a study's rank for a number; a prefix has the rounds that it reached just as a whole run does."""
    study, _, outcome = candidate
    scale = outcome.scale
    return outcome.not_run is not None, not scale.judged, -outcome.seeds, SCALES.index(scale.name), study.study.study


def _row(claim: Claim, study: Results, profile: str, outcome: Outcome) -> Row:
    """Return a claim's row with what a study has for it."""
    reason = notes.incomparable(claim, profile, outcome.score)
    if not outcome.scale.judged:
        reason = "; ".join(filter(None, (f"{LITE_REASON}: {outcome.scale.reason}", reason)))
    apart = not outcome.scale.judged or notes.incomparable(claim, profile)  # from the other methods' numbers
    found = judged(claim, outcome, reason)
    known = outcome.empty is None
    return _blank(claim) | {
        "ours": float(np.mean(list(outcome.values.values()))) if known else math.nan,
        "ours_std": spread(outcome.values, claim.ddof) if known else math.nan,
        "seeds": outcome.seeds,
        "difference": _nan(found.difference),
        "standardised": _nan(found.standardised),
        "scale": outcome.scale.name,
        "profile": profile,
        "verdict": found.verdict,
        "reason": "; ".join(filter(None, (found.reason, outcome.read_as))),
        "also_accepts": "" if apart else "|".join(also_accepts(claim, outcome)),
        "guesses": outcome.scale.guesses,
        "study": study.study.study,
        "federation": outcome.federation,
        "our_method": outcome.method,
        "values": values(outcome),
        **{name: _joined(outcome.made, name) for name in ("origin", "processor", "branch", "commit")},
    }


def judged(claim: Claim, outcome: Outcome, incomparable: str | None = None) -> verdicts.Verdict:
    """Return the verdict on a printed number compared with ours."""
    printed = verdicts.Print(
        claim.printed, claim.metric, claim.decimals, claim.printed_std, claim.seeds, claim.ddof, claim.empty,
        claim.better, claim.approximate,
    )  # fmt: skip
    return verdicts.verdict(
        printed,
        list(outcome.values.values()),
        empty=outcome.empty,
        incomparable=incomparable,
        constructed=outcome.constructed,
    )


def also_accepts(claim: Claim, outcome: Outcome) -> list[str]:
    """Return the other methods of the cell from whose printed number ours doesn't differ, by the same rule."""
    return [one.method for one in rivals(claim) if judged(one, outcome).verdict != verdicts.DIFFERS]


def rivals(claim: Claim) -> list[Claim]:
    """Return the other methods' printed numbers in a claim's cell, one for each, of those that may be compared."""
    found: dict[str, Claim] = {}
    for one in _cells()[_place(claim)]:
        if one.method != claim.method and notes.incomparable(one, "released") is None:
            found.setdefault(one.method, one)
    return list(found.values())


def _place(claim: Claim) -> tuple[str, str, str, str]:
    return claim.paper, claim.cell, claim.metric, claim.at


@lru_cache(maxsize=1)
def _cells() -> dict[tuple[str, str, str, str], list[Claim]]:
    found: dict[tuple[str, str, str, str], list[Claim]] = {}
    for claim in claims():
        found.setdefault(_place(claim), []).append(claim)
    return found


def values(outcome: Outcome) -> str:
    """Return the seeds with their exact values, or why they have none, as text: ``0: 97.05; 1: not reached``."""
    found: dict[int, object] = {**outcome.values, **outcome.without}
    return "; ".join(f"{seed}: {found[seed]}" for seed in sorted(found))


def _joined(made: Mapping[int, Made], name: str) -> str:
    """Return one fact on how runs were made, each value once, separated by ``|``."""
    return "|".join(dict.fromkeys(text for _, one in sorted(made.items()) if (text := getattr(one, name))))


def _not_run(claim: Claim, results: Sequence[Results], candidate: Candidate | None) -> Row:
    """Return the row of a claim for which no study has a number, with the reason."""
    of_paper = [study for study in results if study.claims.paper == claim.paper]
    absent = next((why for s in of_paper if (why := s.absent(claim.cell, claim.method))), None)
    mapped = [s for s in of_paper if claim.cell in s.claims.cells]
    if absent:
        reason = absent
    elif candidate is not None:
        reason = str(candidate[2].not_run)
    elif not of_paper:
        reason = f"no study of paper '{claim.paper}' was run"
    elif not any(s.named(s.claims.profile, c, claim.method) for s in of_paper for c in s.claims.cells):
        reason = f"no study has a method '{claim.method}'"
    elif not mapped:
        reason = f"no study has the cell {claim.cell}"
    else:
        reason = f"study {mapped[0].study.study} has no method '{claim.method}' for the cell {claim.cell}"
    return _blank(claim) | {"verdict": verdicts.NOT_RUN, "reason": reason}


def _blank(claim: Claim) -> Row:
    """Return a row with what is printed, and nothing of ours."""
    own = {name: getattr(claim, name) for name in CLAIM_COLUMNS if hasattr(claim, name) and name != "seeds"}
    row = {name: {str: "", int: 0, float: math.nan}[kind] for name, kind in CLAIM_COLUMNS.items()} | own
    return row | {"printed": _nan(claim.printed), "printed_std": _nan(claim.printed_std)}


def _nan(number: float | None) -> float:
    return math.nan if number is None else number


def ordering_rows(ordering: Ordering, results: Sequence[Results]) -> list[Row]:
    """Return an ordering's two rows: on the runs of the paper's scale, prefixes included, and on the lite ones.

    It is checked in the combinations for which the paper has numbers, in all where it has only a figure. Methods that
    are left out of a min or max, though print has them, are named in the reason. The verdict is `no number` where
    all that it needs was run but has no such number, `not run` where something wasn't.
    """
    of_paper = [study for study in results if study.claims.paper == ordering.paper]
    return [_ordering_row(ordering, of_paper, scale) for scale in (PAPER, LITE)]


def _ordering_row(ordering: Ordering, results: Sequence[Results], scale: str) -> Row:
    asked = grammar.asked(ordering)
    blank = {name: math.nan if kind is float else kind() for name, kind in ORDERING_COLUMNS.items()}
    row = {name: getattr(ordering, name, empty) for name, empty in blank.items()} | {"scale": scale}
    lookup = _Lookup(ordering, results, scale)
    found = [c for where in asked if (c := grammar.combination(ordering, where, lookup)) is not None]
    if found:
        found = [c.without(asked[c.where]) for c in found]
        judged = judge(found, len(asked))
        own = {name: getattr(judged, name) for name in ORDERING_COLUMNS if hasattr(judged, name)}
        if scale == LITE and grammar.absolute(ordering):
            own |= {"verdict": verdicts.UNDECIDED, "reason": "a score against a number says nothing at scale lite"}
        elif ordering.constructed and all(c.holds for c in found):
            own |= {"verdict": verdicts.CONSTRUCTED, "reason": ordering.constructed}
        return row | own | {"study": "|".join(sorted(lookup.used))}
    verdict, reason = _without(ordering, lookup, results)
    return row | {"verdict": verdict, "reason": reason, "combinations": len(asked)}


def _without(ordering: Ordering, lookup: _Lookup, results: Sequence[Results]) -> tuple[str, str]:
    """Return verdict and reason of an ordering without a combination that has numbers."""
    if lookup.no_number:
        return NO_NUMBER, lookup.no_number
    if lookup.lacking:
        return verdicts.NOT_RUN, str(min(lookup.lacking, key=lambda outcome: outcome.ran).not_run)
    what = "its cells and methods" if results else "results"
    return verdicts.NOT_RUN, f"no study of paper '{ordering.paper}' has {what} at scale {lookup.scale}"


class _Lookup:
    """Finds an ordering's numbers among the runs of a scale: the paper's, prefixes included, or lite."""

    def __init__(self, ordering: Ordering, results: Sequence[Results], scale: str):
        self.results, self.printed, self.scale = results, grammar.printed_lookup(ordering), scale
        self.used: set[str] = set()
        self.lacking: list[Outcome] = []  # those that have no number
        self.empty: list[str] = []  # why numbers that were found are none

    @property
    def no_number(self) -> str:
        """Why what was asked for has no number although all of it was run; '' where something wasn't."""
        if any(not outcome.ran for outcome in self.lacking):
            return ""
        return next(iter([*self.empty, *(str(outcome.not_run) for outcome in self.lacking)]), "")

    def __call__(self, key: Key) -> Number | None:
        place = (f"{key.dataset}/{key.setting}", key.method, key.metric, key.at)
        found = []
        for study in self.results:
            profile = study.claims.profile
            outcome = study.outcome(profile, *place, against_print=False)
            if outcome is not None and outcome.scale.judged == (self.scale == PAPER):
                found.append((study, profile, outcome))
        best = min(found, key=_rank, default=None)
        if best is None or best[2].not_run is not None:
            self.lacking += [best[2]] if best else []
            return None
        study, _, outcome = best
        self.used.add(study.study.study)
        if outcome.empty not in (None, "not reached"):
            self.empty.append(f"study {study.study.study}: {key.method} is {outcome.empty}")
        seeds = dict(outcome.values)
        seeds |= {s: math.inf if why == "not reached" else math.nan for s, why in outcome.without.items()}
        printed = self.printed(key)
        digits = printed.decimals if printed is not None else None
        return Number(float(np.mean(list(seeds.values()))), _deviation(outcome, printed), seeds, digits)


def _deviation(outcome: Outcome, printed: Number | None) -> float | None:
    """Return the standard deviation over our seeds; for one seed that of print."""
    if outcome.without:
        return None
    if len(outcome.values) == 1:
        return None if printed is None else printed.std
    return spread(outcome.values, 1)
