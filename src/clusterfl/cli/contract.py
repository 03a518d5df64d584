"""The command that tests a part, the package's or a user's own, against the contract."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..errors import printable
from .common import option

KINDS = ("method", "metric", "clusterer", "partition", "model", "dataset")


def add(commands: Any) -> None:
    """Add `test`."""
    text = "Test a method, metric, clusterer, partition, model or dataset against the contract: bits, resuming, " \
           "order, one cluster, newcomers, cost, and so on, on a small federation; a line for each check, with a " \
           "sentence on what is wrong. Exit code 0: none failed, 1: some did."  # fmt: skip
    parser = commands.add_parser("test", help="test a method, metric, model, ... of your own",
                                 description=text)  # fmt: skip
    parser.set_defaults(run=_test)
    parser.add_argument("part", metavar="PART", help="your own as my_module:name, from a file in this folder or an "
                        "installed module; or a name from the tables, e.g. ifca")  # fmt: skip
    parser.add_argument(
        "--kind", choices=KINDS, help="what it is (default: recognised by its class, decorator or parameters)"
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=option, help="an option of "
                        "the part (default: its own; clusters=2 and clients=8 where they are required)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def _test(options: argparse.Namespace) -> int:
    from ..pipeline.contract import part
    from ..pipeline.jobs import search
    from ..progress import bar

    search([os.getcwd()])
    given = dict(options.option)
    if options.json:
        kind = options.kind or part.kind_of(options.part)
        with bar(f"checks of {options.part}", part.number(kind)) as progress:
            found = part.examine(options.part, kind, given, progress=progress)
        print(found.json())
    else:
        found = part.examine(
            options.part, options.kind, given, lambda outcome: print(printable(part.line(outcome)), flush=True)
        )
        print(printable(found.summary()))
    return 0 if found.sound else 1
