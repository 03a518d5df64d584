"""How many numbers there are, how many a run can be compared with, and what rules out the others: computed, not kept.

This *reach* follows from what ships with the package (the notes of the claims, the methods of the shipped studies) and
from the data that this machine can read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..config.claims import PAPERS
from ..config.federation import Dataset
from ..data import MIRROR
from ..data.addresses import is_address
from ..data.catalogue import rows as catalogue
from ..pipeline.jobs import Plan
from ..report.words import aligned
from ..storage.store import DATA
from . import notes, scale
from .printed import Claim, claims

REACHABLE, NO_METHOD, NO_DATA = "reachable", "method not built", "data not at hand"
# How the reasons of `notes` begin. Text and code differ: the number was made by the code, the study follows the text.
NOTED = (
    "budget unknown", "misprint", "another quantity", "text and code differ", "made by other code",
    "used to choose a setting",
)  # fmt: skip
REACHES = (REACHABLE, NO_METHOD, NO_DATA, *NOTED)
KINDS = ("printed once", "released, not in print", "repeats")


def kind(claim: Claim) -> str:
    """Return whether a number is printed, is released material in no text, or repeats another."""
    return KINDS[2] if claim.repeats else KINDS[1] if claim.released else KINDS[0]


def reach(claim: Claim, shipped: Plan) -> str:
    """Return whether a number can be compared with a run, or the first reason why it can't."""
    own = scale.claims_of(shipped)
    where = scale.named(shipped, own.profile, claim.cell, claim.method)
    score = {} if where is None else shipped.study.score.model_dump() | own.score(*where)
    reasons = notes.reasons(claim, own.profile, score)
    if reasons:
        return next(name for name in NOTED if any(reason.startswith(name) for reason in reasons))
    if where is None:
        return NO_METHOD
    return REACHABLE if at_hand(shipped.study.federations[where[0]].dataset) else NO_DATA


def at_hand(dataset: Dataset) -> bool:
    """Return whether a dataset is prepared under data/, needs no file, or is whole in the mirror.

    A mirror at a web address isn't contacted: whatever the table of datasets has an entry for there counts as at hand.
    """
    row = catalogue().get(dataset.part)
    if row is None or not row.sources or (DATA / dataset.folder / "samples.safetensors").exists():
        return True
    mirror = os.environ.get(MIRROR, "")
    if not mirror:
        return False

    def there(place: str) -> bool:
        return is_address(mirror) or any(path.is_file() for path in Path(mirror).glob(place))

    return any(all(any(map(there, file.mirror)) for file in files) for files in row.sources)


def counted() -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Return for each paper how many numbers are of each kind, and how many have each reach."""
    kinds: dict[str, Counter[str]] = {paper: Counter() for paper in PAPERS}
    reaches: dict[str, Counter[str]] = {paper: Counter() for paper in PAPERS}
    for claim in claims():
        kinds[claim.paper][kind(claim)] += 1
        reaches[claim.paper][reach(claim, scale.shipped(claim.paper))] += 1
    return kinds, reaches


def text() -> str:
    """Return both counts as tables."""
    kinds, reaches = counted()
    total = f"{len(claims())} numbers"
    return "\n\n".join((_table(total, kinds, KINDS), _table(total, reaches, REACHES)))


def _table(title: str, found: dict[str, Counter[str]], names: Sequence[str]) -> str:
    every = sum(found.values(), Counter())
    names = [name for name in names if every[name]]
    lines = [[title, *names, "all"]]
    lines += [[p, *(str(own[n]) for n in names), str(own.total())] for p, own in (*found.items(), ("all", every))]
    return aligned(lines, right={*names, "all"})


def sentence() -> str:
    """Return both counts in one sentence, whatever data this machine has."""
    kinds, reaches = (sum(found.values(), Counter()) for found in counted())
    reaches[REACHABLE] += reaches.pop(NO_DATA, 0)
    behind = ", ".join(f"{name} {reaches[name]}" for name in REACHES[1:] if reaches[name])
    return (
        f"Of {kinds.total():,} numbers {kinds[KINDS[0]]:,} are printed once, {kinds[KINDS[1]]} are points of released "
        f"curves or notebooks, and {kinds[KINDS[2]]} repeat another. With the methods here and all of the data, at "
        f"most {reaches[REACHABLE]:,} can be compared with a run. The others, by reason: {behind}."
    )
