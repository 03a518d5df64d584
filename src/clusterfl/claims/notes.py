"""Which notes of the claims rule out a comparison: one table with an entry for every note, none by default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .printed import Claim

Score = Mapping[str, object]
UNSAID: Score = MappingProxyType({})


class Rule(NamedTuple):
    """What a note with a certain beginning means: why its number isn't compared, or None if it is."""

    note: str  # a regular expression, matched from the beginning
    reason: str | None
    unless: str | None = None  # the profile with which the number is compared nevertheless
    scored: tuple[str, str] | None = None  # key and value of a score with which it is compared nevertheless

    def lifted(self, profile: str, score: Score) -> bool:
        """Return whether the number is compared nevertheless with a run of this profile and score."""
        return self.unless == profile or (self.scored is not None and self.scored in score.items())


RULES = (
    # Budgets.
    Rule("column heads stripped in the source", "budget unknown: the source has lost the heads of the columns"),
    # Misprints and contradictions.
    Rule("column unreliable", "misprint: the column's means contradict the curve released with the paper"),
    Rule("possible decimal slip", "misprint: about ten times its neighbours"),
    Rule("disagrees with ", "misprint: the paper prints two numbers for this cell"),
    Rule("printed 04.47", "misprint: printed as 04.47, in two cells"),
    Rule("the dash is explained only for", "misprint: a dash that is not explained"),
    Rule(
        "most likely training accuracy",
        "another quantity: training accuracy, printed as test accuracy",
        scored=("split", "train"),
    ),
    # Text and released code differ: the printed number was made by the code.
    Rule(
        "released code does not rotate cifar10",
        "text and code differ: the code permutes labels where the text rotates images",
        "released",
    ),
    # Compared; the comment says what the note changes.
    Rule("approximate in print", None),  # to half as many digits: see `verdicts.rounding`
    Rule("digitised from a released figure", None),  # to 0.01, which the digits say
    Rule("std is the drawn band", None),  # population form: see `Claim.ddof`
    Rule("order reversed in print", None),  # put right in the row
    Rule('"considering standard deviation"', None),  # within the tolerance
    Rule("equals fedavg: still in warm-up", None),
    Rule("block label resolved by position", None),
    Rule("number of clusters unknown to the method", None),
    Rule("Awasthi-Sheffet k-means|standard k-means", None),  # the setting's name says which
    Rule("printed in the released notebook", None),
    Rule('prose: "in all experiments"', None),
    Rule("prose: all clients end in three of ten models", None),
    Rule("prose: homogeneous federation is not split", None),
    Rule("prose only, the table is graphical", None),
    Rule("number of models that were trained", None),  # see `ours.Run`
    Rule('"one cluster model ... remained untrained"', None),
    Rule("single run|single seed", None),  # see `Claim.seeds`
    Rule("caption: perfect separation", None),
    Rule("legend shows two clusters", None),
    Rule("ground truth \\d", None),
    Rule("printed gain ", None),  # the gain agrees with the cells
    Rule("repeats ", None),  # compared like the cell that it repeats
    Rule("not reached|diverged|undefined for one cluster", None),  # why nothing is printed: compared with why ours is
)

# Rows of a paper that another program made, by paper and method: why they aren't compared, and the datasets on which
# ours does the same as that program.
ELSEWHERE = {
    ("clove", "fesem"): ("made by other code: FlexCFL's, which moves a centre by the update of one of its clients", ()),
    ("clove", "flexcfl"): (
        "made by other code: FlexCFL's, in TensorFlow 2, which has no network for these data",
        ("mnist", "fashionmnist"),
    ),
}

# Accuracies of other models than those that the paper names, by paper and method, with our evaluation of such models.
OTHER_MODELS = {
    ("clove", "pacfl"): ("another quantity: accuracy after local training, from PACFL's released code", "local"),
    ("clove", "per-fedavg"): (
        "another quantity: accuracy after a step of adaptation, from PFLlib's code",
        "personalised",
    ),
}

# Accuracies by which a setting was chosen, so they can't judge it: by paper, cell, method and the setting's profile.
CHOSEN_BY = {
    ("clove", *place, "released"): "used to choose a setting: PFLlib's network, not CLoVE's, after runs with both"
    for place in (
        ("mnist/concept-shift", "fedproto"),
        ("mnist/label-skew-3", "fedproto"),
        ("mnist/label-skew-3", "fedala"),
        ("mnist/label-skew-3", "fedpac"),
    )
}


def rules(claim: Claim) -> list[Rule]:
    """Return the rule for each part of a claim's note.

    Raises
    ------
    ValueError
        If a part has no rule, or more than one.
    """
    found = []
    for note in claim.notes:
        own = [rule for rule in RULES if re.match(rule.note, note)]
        if len(own) != 1:
            raise ValueError(f"{claim.claim_id}: {len(own)} rules for the note '{note}', not one")
        found += own
    return found


def incomparable(claim: Claim, profile: str, score: Score = UNSAID) -> str | None:
    """Return why a claim isn't compared with a run that follows `profile`; None if it is. See `reasons`."""
    return next(iter(reasons(claim, profile, score)), None)


def reasons(claim: Claim, profile: str, score: Score = UNSAID) -> list[str]:
    """Return all reasons why a claim isn't compared with a run that follows `profile` and is scored by `score`.

    Without a score, the run counts as scored on the models and the data that the paper names.
    """
    place = claim.paper, claim.method
    other, same = ELSEWHERE.get(place, (None, ()))
    found = [None if claim.dataset in same else other, CHOSEN_BY.get((claim.paper, claim.cell, claim.method, profile))]
    why, evaluation = OTHER_MODELS.get(place, (None, None))
    if claim.metric == "accuracy" and score.get("evaluation") != evaluation:
        found.append(why)
    found += [rule.reason for rule in rules(claim) if not rule.lifted(profile, score)]
    return [reason for reason in found if reason is not None]
