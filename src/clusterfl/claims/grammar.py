"""The orderings' grammar (README of `data`), evaluated on the printed numbers or on ours.

``left relation right`` is checked for every combination of the values in dataset, setting and at. An operand is a
number, ``empty``, a method, or ``min(a;b;...)`` or ``max(a;b;...)`` of methods. A method may carry ``{setting=...}``,
``{at=...}`` or ``{suffix=...}``, and ``std:`` before it asks for the standard deviation over seeds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .printed import Claim, Ordering, claims, decimals
from .verdicts import CLOSE, COUNTS, sample_form

SCORES = ("accuracy", "balanced_accuracy", "test_loss")
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}  # `==` and `approx` have a tolerance
KEYS = ("setting", "at", "suffix")
METHOD = re.compile(r"(std:)?([a-z0-9][a-z0-9+-]*)(?:\{(\w+)=([^{}]+)\})?")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Key(NamedTuple):
    """Identifies a number."""

    dataset: str
    setting: str
    method: str
    metric: str
    at: str


@dataclass(frozen=True)
class Number:
    """A number that was looked up: its mean, and each seed's value where seeds are known.

    ``mean`` and the seeds' values are infinite for what was not reached, and NaN for what is empty for another reason.
    ``std`` is over the seeds; for one seed it may be that of print, as if the seed were another draw of the same kind.
    """

    mean: float
    std: float | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)
    decimals: int | None = None  # as printed

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None where no deviation or no seed is known."""
        return None if self.std is None or not self.seeds else self.std / math.sqrt(len(self.seeds))

    @property
    def spread(self) -> Number | None:
        """The standard deviation as a number of its own; of a normal sample its error is s / sqrt(2 (n - 1))."""
        if self.std is None or len(self.seeds) == 1:
            return None
        return Spread(self.std, self.std / math.sqrt(2) if self.seeds else None, self.seeds, self.decimals)


class Spread(Number):
    """A standard deviation over seeds; ``seeds`` are the numbers that it is over, not values of it."""

    @property
    def error(self) -> float | None:
        """The standard error of the deviation."""
        return None if self.std is None else self.std / math.sqrt(len(self.seeds) - 1)


Lookup = Callable[[Key], Number | None]


@dataclass(frozen=True)
class OperandMethod:
    """A method in an operand."""

    name: str
    std: bool = False
    key: str | None = None  # of KEYS
    value: str = ""

    def at(self, dataset: str, setting: str, metric: str, at: str) -> Key:
        """Return the key of its number in a combination."""
        if self.key == "setting":
            setting = self.value
        elif self.key == "at":
            at = self.value
        elif self.key == "suffix":
            name, sign, budget = setting.partition("@")
            setting = name + self.value + sign + budget
        return Key(dataset, setting, self.name, metric, at)


@dataclass(frozen=True)
class Operand:
    """A parsed operand: a constant, ``empty``, a method, or the least or greatest of some methods' numbers."""

    text: str
    constant: float | None = None
    empty: bool = False
    choose: str | None = None  # min or max
    methods: tuple[OperandMethod, ...] = ()


def parse(text: str) -> Operand:
    """Return an operand.

    Raises
    ------
    ValueError
        If the text isn't in the grammar.
    """
    if text == "empty":
        return Operand(text, empty=True)
    if NUMBER.fullmatch(text):
        return Operand(text, constant=float(text))
    several = re.fullmatch(r"(min|max)\((.+)\)", text)
    if several:
        return Operand(text, choose=several[1], methods=tuple(_method(part) for part in several[2].split(";")))
    return Operand(text, methods=(_method(text),))


def _method(text: str) -> OperandMethod:
    found = METHOD.fullmatch(text)
    if found is None:
        raise ValueError(f"operand '{text}'; allowed: a number, empty, a method, min(a;b;...) or max(a;b;...)")
    std, name, key, value = found.groups()
    if key is not None and key not in KEYS:
        raise ValueError(f"operand '{text}': '{key}' is unknown; allowed: {', '.join(KEYS)}")
    return OperandMethod(name, std is not None, key, value or "")


@dataclass(frozen=True)
class Value:
    """An operand's value in a combination."""

    mean: float
    error: float | None  # standard error of the mean; None where unknown
    seeds: Mapping[int, float] | None  # None for a constant, which every seed has
    decimals: int
    missing: tuple[str, ...] = ()  # methods without a number


def value(operand: Operand, where: tuple[str, str, str, str], lookup: Lookup) -> Value | None:
    """Return an operand's value at (dataset, setting, metric, at); None if it has none.

    Methods without a number inside ``min`` and ``max`` are skipped, and named in ``missing``. The value is the extreme
    of the means, and in each seed that of the seed's numbers; its error is that of the seeds' extremes. These leave out
    methods with one seed; if there is such a method, the error is at least that of the method with the extreme mean.
    """
    if operand.constant is not None:
        return Value(operand.constant, 0.0, None, decimals(operand.text))
    if operand.empty:
        return Value(math.nan, 0.0, None, 0)
    found, missing = [], []
    for method in operand.methods:
        number = lookup(method.at(*where))
        if number is not None and method.std:
            number = number.spread
        if number is None or (operand.choose and math.isnan(number.mean)):
            missing.append(method.name)
        else:
            found.append(number)
    if not found:
        return None
    places = max((number.decimals or 0) for number in found)
    if operand.choose is None:
        (one,) = found
        return Value(one.mean, one.error, {} if isinstance(one, Spread) else one.seeds, places)
    extreme = min if operand.choose == "min" else max
    seeds = _extremes(extreme, found)
    best = extreme(found, key=lambda number: number.mean)
    several = [number for number in found if len(number.seeds) > 1]
    error = _error(_extremes(extreme, several)) if several else best.error
    if 0 < len(several) < len(found):
        error = None if error is None or best.error is None else max(error, best.error)
    return Value(best.mean, error, seeds, places, tuple(missing))


def _extremes(extreme: Callable[..., float], numbers: Sequence[Number]) -> dict[int, float]:
    """Return the extreme of the numbers in each seed that they all have."""
    common = set.intersection(*(set(number.seeds) for number in numbers))
    return {seed: extreme(number.seeds[seed] for number in numbers) for seed in sorted(common)}


def _error(seeds: Mapping[int, float]) -> float | None:
    """Return the standard error of the seeds' mean; None where it isn't known."""
    values = list(seeds.values())
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True)
class Combination:
    """The result of an ordering in one combination."""

    where: tuple[str, str, str, str]  # dataset, setting, metric, at
    holds: bool  # on the means
    clear: bool  # whether the numbers settle it, see `combination`
    seeds: int  # in which both sides have a number
    seeds_holding: int
    missing: tuple[str, ...]  # methods of a min or max without a number

    def without(self, names: Collection[str]) -> Combination:
        """Return it with `names` taken out of the missing methods: those that print lacks, too."""
        return replace(self, missing=tuple(name for name in self.missing if name not in names))


def places(ordering: Ordering) -> Iterator[tuple[str, str, str, str]]:
    """Yield (dataset, setting, metric, at) of every combination."""
    parts = (ordering.dataset.split("|"), ordering.setting.split("|"), ordering.at.split("|"))
    for dataset, setting, at in itertools.product(*parts):
        yield dataset, setting, ordering.metric, at


def compared(ordering: Ordering) -> Iterator[Key]:
    """Yield every number that an ordering compares, in all its combinations."""
    methods = [one for side in (ordering.left, ordering.right) for one in parse(side).methods]
    for place in places(ordering):
        for one in methods:
            yield one.at(*place)


def combination(ordering: Ordering, where: tuple[str, str, str, str], lookup: Lookup) -> Combination | None:
    """Return the result of an ordering in one combination; None where an operand has no number.

    In metrics that count rounds, what was not reached is infinite; an operand that is empty for another reason has no
    number, except for ``== empty``. With d the difference of the means and e their joint standard error:

    - an inequality is clear if ``|d| > 2 e``, and ``>=`` and ``<=`` also where d and e are 0; where only one side was
      not reached in some seed, it is clear if all seeds agree;
    - ``==`` holds within half a unit of the last digit of the printed number with most digits, of counts exactly,
      ``approx`` within the ordering's tolerance t. They are clear if they hold and ``2 e <= t``, or ``|d| > 2 e``
      where they don't;
    - ``== empty`` is clear if all of two seeds or more agree;
    - otherwise nothing is clear where a side has no deviation.
    """
    found = sides(ordering, where, lookup)
    if found is None:
        return None
    left, right = found
    held = holds(ordering, left.mean, right.mean, left, right)
    each = [holds(ordering, a, b, left, right) for a, b in pairs(left, right).values()]
    agreed = len(set(each)) == 1 < len(each)
    if _of_emptiness(ordering):
        clear = agreed
    elif math.isfinite(left.mean) and math.isfinite(right.mean):
        equality = None if ordering.relation in RELATIONS else _tolerance(ordering, left, right)
        clear = _clear(left, right, held, equality)
    else:  # if neither was reached nothing decides between them; otherwise no error is known
        clear = left.mean != right.mean and agreed
    missing = (*left.missing, *right.missing)
    return Combination(where, held, clear, len(each), sum(each), missing)


def sides(ordering: Ordering, where: tuple[str, str, str, str], lookup: Lookup) -> tuple[Value, Value] | None:
    """Return both operands' values in a combination; None where one has none, see `combination`."""
    left, right = (value(parse(text), where, lookup) for text in (ordering.left, ordering.right))
    if left is None or right is None:
        return None
    if not _of_emptiness(ordering) and (math.isnan(left.mean) or math.isnan(right.mean)):
        return None
    return left, right


def pairs(left: Value, right: Value) -> dict[int, tuple[float, float]]:
    """Return both sides' numbers in each seed that both have; a constant is the same in every seed."""
    known = [set(side.seeds) for side in (left, right) if side.seeds is not None]
    seeds = sorted(set.intersection(*known)) if known else []

    def of(side: Value, seed: int) -> float:
        return side.mean if side.seeds is None else side.seeds[seed]

    return {seed: (of(left, seed), of(right, seed)) for seed in seeds}


def _of_emptiness(ordering: Ordering) -> bool:
    return "empty" in (ordering.left, ordering.right)


def holds(ordering: Ordering, a: float, b: float, left: Value, right: Value) -> bool:
    """Return whether an ordering's relation holds between two numbers; its sides `left`, `right` have their digits."""
    tolerance = _tolerance(ordering, left, right)
    if _of_emptiness(ordering):
        return not math.isfinite(a) and not math.isfinite(b)
    if math.isnan(a) or math.isnan(b):
        return False
    if ordering.relation in RELATIONS:
        return RELATIONS[ordering.relation](a, b)
    return a == b or abs(a - b) <= tolerance + CLOSE


def _tolerance(ordering: Ordering, left: Value, right: Value) -> float:
    if ordering.relation == "approx":
        if ordering.tolerance is None:
            raise ValueError(f"{ordering.claim_id}: 'approx' without tol= in the note")
        return ordering.tolerance
    if ordering.relation not in ("==", *RELATIONS):
        raise ValueError(f"{ordering.claim_id}: relation '{ordering.relation}'; allowed: ==, approx, >, >=, <, <=")
    return 0.0 if ordering.metric in COUNTS else 0.5 * 10.0 ** -max(left.decimals, right.decimals)


def _clear(left: Value, right: Value, held: bool, tolerance: float | None) -> bool:
    """Return whether finite means settle a relation: an equality within `tolerance`, or an inequality (None)."""
    if left.error is None or right.error is None:
        return False
    twice, gap = 2 * math.hypot(left.error, right.error), abs(left.mean - right.mean)
    if tolerance is not None and held:
        return twice <= tolerance + CLOSE
    return gap > twice or (held and gap == twice == 0)


def printed_lookup(ordering: Ordering) -> Lookup:
    """Return what finds an ordering's numbers among the printed ones.

    Of several numbers for a cell, those of the tables that the ordering names are preferred, then those that repeat no
    other. What print gives as not reached is infinite.
    """
    wanted = ordering.where.split("|")

    def find(key: Key) -> Number | None:
        rows = _printed().get((ordering.paper, key), [])
        rows = [row for row in rows if row.where in wanted] or [row for row in rows if not row.repeats] or rows
        return _number(rows[0]) if rows else None

    return find


_INDEX: dict[tuple[str, Key], list[Claim]] = {}


def _printed() -> dict[tuple[str, Key], list[Claim]]:
    if not _INDEX:
        for claim in claims():
            key = Key(claim.dataset, claim.setting, claim.method, claim.metric, claim.at)
            _INDEX.setdefault((claim.paper, key), []).append(claim)
    return _INDEX


def _number(claim: Claim) -> Number:
    missing = math.inf if claim.empty == "not reached" else math.nan
    std = None if claim.printed_std is None else sample_form(claim.printed_std, claim.seeds, claim.ddof)
    return Number(missing if claim.printed is None else claim.printed, std, {}, claim.decimals)


def on_print(ordering: Ordering) -> list[Combination]:
    """Return an ordering's results on the printed numbers, in every combination that has them."""
    lookup = printed_lookup(ordering)
    return [c for where in places(ordering) if (c := combination(ordering, where, lookup)) is not None]


def asked(ordering: Ordering) -> dict[tuple[str, str, str, str], tuple[str, ...]]:
    """Return the combinations with printed numbers, or all for a figure, each with the methods that print lacks."""
    return {one.where: one.missing for one in on_print(ordering)} or dict.fromkeys(places(ordering), ())


def absolute(ordering: Ordering) -> bool:
    """Return whether an ordering compares a score with a constant, which means nothing for a reduced study."""
    return ordering.metric in SCORES and any(
        parse(text).constant is not None for text in (ordering.left, ordering.right)
    )
