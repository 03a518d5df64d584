"""Running the queue: turn by turn through the runner of `clusterfl run`, evidence after each, an end in time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from ...errors import Stopped, UserError
from ...pipeline import running
from ...storage.store import RESULTS
from .. import evidence, hours
from ..study_runs import StudyRuns
from ..verdicts import JUDGED
from . import prefix
from .queue import HOUR, Block, Queue

ROUNDS = 2.0  # before the end, running jobs are asked to write a checkpoint: so many rounds, and at least
LEAST = 20.0  # seconds, but never more than
SHARE = 0.25  # of the time that is left
LAST = 60.0  # seconds for the evidence of the last turn and the verdicts, but never more than
PART = 0.05  # of the hours
TURN = 1.1  # hours by the clock of a turn, at most, but that each core may have one run that is longer


@dataclass
class Turn:
    """What runs at once: of one study, about an hour on all cores, or a run on each where one takes longer."""

    study: str
    paper: str
    stops: int | None
    ends: list[float]  # of each core, hours after the turn's begin
    runs: list[tuple[Block, int]] = field(default_factory=list)  # and seed

    @property
    def hours(self) -> float:
        """The hours of one core."""
        return sum(self.ends)

    @property
    def name(self) -> str:
        """Study and runs, for a line."""
        blocks = dict.fromkeys(block for block, _ in self.runs)
        seeds = ", ".join(str(seed) for seed in sorted({seed for _, seed in self.runs}))
        places = [f"{block.federation}/{block.method}" for block in blocks]
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        return f"{self.study}: {', '.join(places[:3])}{more}; seeds {seeds}"

    @property
    def round(self) -> float:
        """The hours of the longest round."""
        return max(block.each / block.rounds for block, _ in self.runs)

    def holds(self, hours: float) -> bool:
        """Return whether one more run is part of it."""
        return len(self.runs) < len(self.ends) or min(self.ends) + hours <= max(TURN, *self.ends)


def turns(blocks: Sequence[Block], jobs: int) -> list[Turn]:
    """Return the turns of a queue, in its order; neighbours of the same study share one. Blocks without hours are left.

    A turn may be of several blocks, so that no core waits for the last seed of each, and of any run that fits beside a
    longer one.
    """
    found: list[Turn] = []
    for block in blocks:
        if block.hours is None:
            continue
        for seed in block.seeds:
            hours = block.left / len(block.seeds)
            last = found[-1] if found else None
            if last is None or last.study != block.study or not last.holds(hours):
                last = Turn(block.study, block.paper, block.stops, [0.0] * jobs)
                found.append(last)
            last.runs.append((block, seed))
            last.ends[last.ends.index(min(last.ends))] += hours
    return found


@dataclass
class Came:
    """What came of a campaign."""

    before: Counter[str]  # numbers by verdict
    now: Queue
    hours: float = 0.0  # spent, by the clock
    turns: list[tuple[Turn, float]] = field(default_factory=list)  # that ended, with their hours by the clock
    failed: list[Turn] = field(default_factory=list)
    late: list[Turn] = field(default_factory=list)  # not begun: a round of theirs takes longer than what was left
    stopped: Turn | None = None  # that goes on at the next start
    number: int | None = None  # of the signal that ended it, if it wasn't the clock

    @property
    def won(self) -> int:
        """Numbers that are judged now and weren't."""
        return sum(self.now.verdicts[name] - self.before[name] for name in JUDGED)


def run(
    look: Callable[[], Queue],
    time: float,
    jobs: int,
    folder: Path,
    guard: running.Guard,
    say: Callable[[Sequence[str]], None],
) -> Came:
    """Run the queue's turns for some hours and return what came of it.

    Parameters
    ----------
    look
        Returns what is open.
    time
        Hours by the clock, all included.
    jobs
        Side by side.
    folder
        Where evidence is written.
    guard
        See `pipeline.running.run`.
    say
        Gets sentences about what is wrong with runs or evidence.
    """
    began, first = monotonic(), look()
    came = Came(first.verdicts, first)
    until = began + time * HOUR - min(LAST, PART * time * HOUR)
    for turn in turns(first.blocks, jobs):
        left = until - monotonic()
        if left <= 0 or came.stopped:
            break
        if turn.round * HOUR > left - _margin(left, turn.round * HOUR):
            came.late.append(turn)
            continue
        print(f"{turn.name}; {turn.hours:.2g} hours of a core predicted, {left / HOUR:.2g} left", file=sys.stderr)
        _run(turn, left, jobs, guard, came)
        write(turn, folder, say)
    came.now, came.hours = look(), (monotonic() - began) / HOUR
    return came


def _run(turn: Turn, left: float, jobs: int, guard: running.Guard, came: Came) -> None:
    """Run a turn for the seconds that are left, and note what came of it."""
    plan, began = prefix.plan(turn.paper, turn.stops), monotonic()
    wanted = [plan.job("federate", block.federation, seed, block.method) for block, seed in turn.runs]
    try:
        with _ending(left, turn.round * HOUR) as over:
            code = running.run(plan, wanted, "clusterfl campaign", guard, jobs, keep_going=True)
    except UserError as error:  # of one turn; the others may run
        print(f"clusterfl: {error}", file=sys.stderr)
        code = 2
    except Stopped as end:
        came.stopped, came.number = turn, None if over else end.number
        return
    if code:
        came.failed.append(turn)
    else:
        came.turns.append((turn, (monotonic() - began) / HOUR))


def write(turn: Turn, folder: Path, say: Callable[[Sequence[str]], None]) -> None:
    """Write the evidence of a turn's runs that are there, and the hours that they took."""
    study = StudyRuns(prefix.plan(turn.paper, turn.stops))
    predicted = {(block.federation, seed, block.method): block.each * HOUR for block, seed in turn.runs}
    with evidence.writing(folder):
        written = evidence.write(study, folder, only=predicted)
        hours.write(study, predicted, folder)
    say(written.left_out)
    print(written, file=sys.stderr)


def _margin(left: float, round_: float) -> float:
    """Return how many seconds before the end checkpoints are asked for, by what is left and what a round takes."""
    return min(max(ROUNDS * round_, LEAST), SHARE * left)


@contextlib.contextmanager
def _ending(left: float, round_: float) -> Iterator[list[int]]:
    """Ask for checkpoints in time, by SIGTERM, and at the end once more, which kills; yield a list that notes it.

    What a killed job had done since its last checkpoint is lost. Before jobs run SIGTERM ends the turn, too.
    """
    over: list[int] = []
    margin = _margin(left, round_)

    def end(number: int, frame: object) -> None:
        over.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(number: int, frame: object) -> None:
        raise Stopped(f"stopped by {signal.Signals(number).name} before any job ran", number)

    before = {number: signal.signal(number, own) for number, own in ((signal.SIGALRM, end), (signal.SIGTERM, stop))}
    signal.setitimer(signal.ITIMER_REAL, left - margin, margin)
    try:
        yield over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def sources(folder: Path) -> list[Path]:
    """Return where a campaign reads runs from: results, the evidence that is committed, and the folder it writes to."""
    there = [one for one in dict.fromkeys((evidence.FOLDER, folder)) if any(one.glob("*/*.parquet"))]
    return [RESULTS, *there]
