"""The queue, and what came of running it, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...report.words import aligned
from ..verdicts import JUDGED, VERDICTS
from .queue import Block, Queue
from .run import Came, Turn, turns

HEAD = ("block", "numbers", "hours", "numbers an hour", "seeds", "to run", "rounds", "")
RIGHT = ("numbers", "hours", "numbers an hour", "rounds")


def table(queue: Queue) -> str:
    """Return the queue as a table, with its sums."""
    blocks, lacking = queue.blocks, queue.lacking
    data = f"{lacking} more need data that this machine doesn't have: docs/federations.md" if lacking else ""
    if not blocks:
        words = "nothing is open: all numbers that the shipped studies can reach with the data here have their seeds"
        return "\n".join(filter(None, [words, data]))
    known = [block.hours for block in blocks if block.hours is not None]
    lines = [f"{len(blocks)} blocks, {_open(blocks)} numbers, {sum(known):,.0f} hours of one core of this machine"]
    if len(known) < len(blocks):
        lines.append(
            f"{len(blocks) - len(known)} blocks have no hours, for their settings aren't those of the table of costs, "
            "and aren't run: make costs"
        )
    return "\n".join([aligned([HEAD, *map(_line, blocks)], right=RIGHT), "", *lines, *filter(None, [data])])


def _open(blocks: Sequence[Block]) -> int:
    return len({claim.claim_id for block in blocks for claim in block.claims})


def _line(block: Block) -> list[str]:
    hours = "-" if block.hours is None else _hours(block.hours)
    rounds = str(block.whole) if block.stops is None else f"{block.rounds} of {block.whole}"
    if block.stops is not None:
        rounds += f" ({block.rounds / block.whole:.0%})"
    seeds = f"{len(block.done)} of {len(block.wanted)}"
    rate = "-" if block.hours is None else f"{block.rate:.3g}"
    return [block.name, str(len(block.claims)), hours, rate, seeds, _seeds(block.seeds), rounds,
            f"{block.share_done:.0%} done" if block.share_done else ""]  # fmt: skip


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text, a range where they follow each other.

    >>> _seeds((1, 2, 3)), _seeds((0, 2)), _seeds((4,))
    ('1-3', '0, 2', '4')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2g}"


def as_json(blocks: Sequence[Block]) -> str:
    """Return the queue as JSON."""
    return json.dumps({"blocks": list(map(_fields, blocks)), "numbers": _open(blocks)}, indent=1)


def _fields(block: Block) -> dict[str, object]:
    return {
        "block": block.name, "study": block.study, "numbers": [claim.claim_id for claim in block.claims],
        "hours": block.hours, "numbers_an_hour": None if block.hours is None else block.rate,
        "seeds_done": list(block.done), "seeds_to_run": list(block.seeds), "rounds": block.rounds,
        "share_of_rounds": block.rounds / block.whole, "share_done": block.share_done,
    }  # fmt: skip


def dry(queue: Queue, hours: float, jobs: int) -> str:
    """Return which turns a campaign of some hours would begin, by what is predicted."""
    lines, left = [["turn", "hours of a core", "begins at"]], hours
    for turn in turns(queue.blocks, jobs):
        if left <= 0:
            break
        lines.append([turn.name, _hours(turn.hours), f"{60 * (hours - left):.0f} min"])
        left -= turn.hours / min(jobs, len(turn.runs))
    if len(lines) == 1:
        return table(queue)
    return aligned(lines, right=("hours of a core", "begins at")) + "\n\nnothing was run"


def outcome(came: Came) -> str:
    """Return what came of a campaign."""
    names = [name for name in VERDICTS if came.before[name] or came.now.verdicts[name]]
    rows = [["numbers", *names]]
    rows += [
        [word, *(str(own[name]) for name in names)]
        for word, own in (("before", came.before), ("now", came.now.verdicts))
    ]
    judged = [sum(own[name] for name in JUDGED) for own in (came.before, came.now.verdicts)]
    lines = [
        aligned(rows, right=set(names)),
        "",
        f"{judged[0]} numbers were judged, {judged[1]} are now; {came.hours:.2f} hours by the clock, "
        f"{len(came.turns)} turns done",
    ]
    lines += [
        f"done: {turn.name}; {_hours(took)} hours by the clock, {_hours(turn.hours)} of a core predicted"
        for turn, took in came.turns
    ]
    lines += [f"failed, see above: {turn.name}" for turn in came.failed]
    if came.late:
        lines.append(f"not begun, for a round takes longer than what was left: {came.late[0].name}{_more(came.late)}")
    if came.stopped is not None:
        lines.append(f"goes on at the next start: {came.stopped.name}")
    return "\n".join([*lines, _next(came.now.blocks)])


def _more(turns: Sequence[Turn]) -> str:
    return f", and {len(turns) - 1} more turns" if len(turns) > 1 else ""


def _next(blocks: Sequence[Block]) -> str:
    known = [block for block in blocks if block.hours is not None]
    if not known:
        return "next block: none is open"
    block = known[0]
    return f"next block: {block.name}, seeds {_seeds(block.seeds)}, {len(block.claims)} numbers in " \
           f"{_hours(block.hours or 0.0)} hours of a core"  # fmt: skip


def outcome_json(came: Came) -> str:
    """Return what came of a campaign as JSON."""

    def name(turn: Turn | None) -> str | None:
        return None if turn is None else turn.name

    return json.dumps(
        {
            "before": came.before, "now": came.now.verdicts, "won": came.won, "hours": came.hours,
            "turns": [{"turn": turn.name, "hours": took} for turn, took in came.turns],
            "stopped": name(came.stopped), "failed": list(map(name, came.failed)), "late": list(map(name, came.late)),
            "next": _fields(came.now.blocks[0]) if came.now.blocks else None,
        },
        indent=1,
    )  # fmt: skip
