"""The command that runs the open blocks of this package's studies for some hours, most numbers per hour first."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from .common import count, exit_code, warn


def add(commands: Any) -> None:
    """Add `campaign`."""
    text = "Run the blocks of this package's studies whose printed numbers aren't judged yet, those with most " \
           "numbers per hour first, for some hours; stop in time at a checkpoint, write evidence, and report the " \
           "outcome. Started again, the same command continues. See docs/campaign.md."  # fmt: skip
    parser = commands.add_parser("campaign", help="run what judges most printed numbers per hour", description=text)
    parser.set_defaults(run=_campaign)
    parser.add_argument("--list", action="store_true", help="only list the blocks: the numbers that each can judge, "
                        "hours of one core of this machine, seeds done, rounds")  # fmt: skip
    parser.add_argument("--hours", type=_hours, default=2.0, metavar="N", help="hours of wall-clock time (default: 2)")
    parser.add_argument("--jobs", type=count, default=1, metavar="N", help="jobs at the same time (default: 1)")
    parser.add_argument("--seeds", type=_seeds, metavar="N-M", help="only these of each study's seeds, e.g. 1-2 or "
                        "0,3: so that machines can share a queue")  # fmt: skip
    parser.add_argument("--only", action="append", metavar="PATTERN", help="only the blocks PAPER/FEDERATION/METHOD "
                        "that match, e.g. 'clove/mnist-*'; given again, those that match either one")  # fmt: skip
    parser.add_argument("--to", type=Path, default=Path("docs/reproduction/evidence"), metavar="FOLDER", help="where "
                        "evidence is written (default: docs/reproduction/evidence)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run, and when")
    parser.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def _hours(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 10_000:
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: hours above 0, e.g. 2 or 0.5")
    return found


def _seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if ends is None:
            raise argparse.ArgumentTypeError(f"'{text}'; allowed: seeds and ranges, e.g. 1-3 or 0,2")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' holds no seed: a range begins with its smallest number, e.g. 1-3")
    return found


def _campaign(options: argparse.Namespace) -> int:
    from ..claims.campaign import run, show
    from ..claims.campaign.queue import Queue
    from ..claims.evidence import check_target

    def look() -> Queue:
        return Queue(run.sources(options.to), options.seeds, options.only or ["*"])

    if options.list:
        found = look()
        print(show.as_json(found.blocks) if options.json else show.table(found))
        return 0
    if options.dry_run:
        found = look()
        print(show.as_json(found.blocks) if options.json else show.dry(found, options.hours, options.jobs))
        return 0
    check_target(options.to)
    came = run.run(look, options.hours, options.jobs, options.to, exit_code, warn)
    print(show.outcome_json(came) if options.json else show.outcome(came))
    if came.number is not None:
        return 128 + came.number
    return 2 if came.failed else 0
