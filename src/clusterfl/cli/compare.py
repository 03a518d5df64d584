"""The command that compares two studies, or two methods of one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError, printable


def add(commands: Any) -> None:
    """Add `compare`."""
    text = "Pair the results of two studies, or of two methods of one, by federation and seed: for each metric the " \
           "mean difference B - A with its 95 % interval (Student's t of the paired differences), and whether it " \
           "excludes 0; and what differs in settings, clients, rounds, code, processor, packages and " \
           "bytes. Both must have their report. See docs/compare.md."  # fmt: skip
    parser = commands.add_parser("compare", help="compare two studies, or two methods, pair by pair", description=text)
    parser.set_defaults(run=_compare)
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="two names under results/, or folders of studies "
                        "anywhere; with --methods only one")  # fmt: skip
    parser.add_argument("--methods", nargs=2, metavar=("A", "B"), help="two methods of the study")
    parser.add_argument("--all", action="store_true", help="show all metrics, not only accuracy, loss and adjusted "
                        "Rand index")  # fmt: skip
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write it as one HTML page with figures; an "
                        "existing file is replaced only if it is an earlier such page")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def _compare(options: argparse.Namespace) -> None:
    _check(options.studies, options.methods)
    from ..pipeline.compare import comparison, show
    from ..pipeline.compare.side import read

    if options.page is not None:
        from ..pipeline.compare.page import check_target

        check_target(options.page, options.studies)
    first, *others = [read(name) for name in options.studies]
    found = comparison.studies(first, *others) if others else comparison.methods(first, *options.methods)
    print(show.as_json(found) if options.json else printable(show.text(found, options.all)))
    if options.page is not None:
        from ..pipeline.compare.page import write

        print(f"written: {write(found, options.page)}", file=sys.stderr)


def _check(studies: list[str], methods: list[str] | None) -> None:
    """Refuse a number of studies that can't be compared."""
    count, names = len(studies), ", ".join(studies)
    if methods is not None and count != 1:
        raise UserError(f"--methods compares two methods of one study, {count} are given: {names}; give one study, "
                        "or leave out --methods")  # fmt: skip
    if methods is None and count == 1:
        raise UserError(f"one study is given, {names}; give a second one, or two of its methods: --methods A B")
    if count > 2:
        raise UserError(f"{count} studies are given, {names}; allowed: two; compare them two at a time")
