"""Commands that list methods and federations, describe a federation, and assign new clients to a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import printable
from .common import count, option, plan_of, study


def add_catalogue(commands: Any) -> None:
    """Add `methods`, `federations` and `describe`."""
    methods = commands.add_parser("methods", help="list the methods, or one with its options", description="List every "
                                  "method: its kind, what it needs and what the server learns; or one with its "
                                  "options.")  # fmt: skip
    methods.set_defaults(run=_methods)
    methods.add_argument(
        "method",
        metavar="METHOD",
        nargs="?",
        help="a name from the table, or your own as my_module:Class, from a file in this folder or an installed module",
    )
    methods.add_argument("--json", action="store_true", help="a JSON list of objects, and nothing else, on stdout")
    known = commands.add_parser("federations", help="list the federations of the papers", description="List every "
                                "federation of the catalogue: whose it is, how large, and whether its data are here; "
                                "nothing is built.")  # fmt: skip
    known.set_defaults(run=_federations)
    known.add_argument("--build", action="store_true", help="build those whose data are available, and say whether "
                       "each has the pinned digest")  # fmt: skip
    known.add_argument("--json", action="store_true", help="a JSON list of objects, and nothing else, on stdout")
    describe = commands.add_parser("describe", help="show a federation in tables and a picture", description="Build a "
                                   "federation and write a page about it: results/federations/NAME.html.")  # fmt: skip
    describe.set_defaults(run=_describe)
    describe.add_argument("federation", metavar="FEDERATION", help="a name of the catalogue, or with --config a block "
                          "under `federations`")  # fmt: skip
    describe.add_argument("--config", type=Path, nargs="+", default=[], metavar="FILE", help="configuration of a study")
    describe.add_argument("--seed", type=int, default=None, metavar="N", help="of the partition (default: 0, or the "
                          "study's first)")  # fmt: skip
    describe.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def add_assign(commands: Any) -> None:
    """Add `assign`."""
    text = "Give each new client the model that the method's own rule chooses, and say how clear the choice is: the " \
           "margin is the loss of the best other model minus that of the chosen one."  # fmt: skip
    parser = commands.add_parser("assign", help="give new clients a cluster of a finished study", description=text)
    parser.set_defaults(run=_assign)
    study(parser)
    parser.add_argument("--federation", metavar="NAME", help="block under `federations` (default: the only one)")
    parser.add_argument("--seed", type=int, metavar="N", help="one of `seeds.runs` (default: the only one)")
    parser.add_argument("--method", metavar="NAME", help="block under `methods` (default: the only one)")
    parser.add_argument("--data", metavar="PATH", help="the new clients' samples: a table (.csv, .parquet), arrays "
                        "(.npz) or a folder of images (default: the newcomers of the study's partition)")  # fmt: skip
    parser.add_argument("--dataset", metavar="READER", help="table, images or arrays (default: by the type of PATH)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=option, help="an option of "
                        "the reader (default: as for the study's own dataset, if it is read by the same)")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table as CSV; an existing file "
                        "is replaced only if it is an earlier such table")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="a JSON list of objects, and nothing else, on stdout")
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="processes (default: 1)")


def _methods(options: argparse.Namespace) -> None:
    from ..methods.listing import listing
    from ..pipeline.jobs import search

    if options.method:
        search([os.getcwd()])
    sys.stdout.write(listing(options.method, options.json))


def _federations(options: argparse.Namespace) -> None:
    from ..pipeline.describe import listing, verify

    if options.build:
        for line in verify():
            print(line, flush=True)
    else:
        sys.stdout.write(listing(options.json))


def _describe(options: argparse.Namespace) -> None:
    from ..pipeline.describe import describe

    print(describe(options.federation, options.config, options.seed, options.json))


def _assign(options: argparse.Namespace) -> None:
    from ..pipeline.assign import as_json, assign, check_target, text, write

    where, of_reader = (options.federation, options.seed, options.method), dict(options.option)
    plan = plan_of(options, sources=False)
    if options.output is not None:
        check_target(options.output, plan, options.data, of_reader)
    found = assign(plan, *where, options.data, options.dataset, of_reader, options.threads)
    print(as_json(found) if options.json else printable(text(found)))
    if options.output is not None:
        write(found, options.output)
