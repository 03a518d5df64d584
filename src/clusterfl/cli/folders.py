"""Commands that set up a folder (the workflow with a configuration, or a study on own data), and print the schema."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .common import option


def add(commands: Any) -> None:
    """Add `init` and `schema`."""
    text = "Write Snakefile, workflow and a commented configuration into FOLDER; or, with --data, a study on data of " \
           "your own, named after them, which `clusterfl run` runs. No existing file is overwritten."  # fmt: skip
    init = commands.add_parser(
        "init", help="set up a folder, or with --data a study on your own data", description=text
    )
    init.set_defaults(run=_init)
    init.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="folder to write into; created if it "
                      "doesn't exist (with --data default: .)")  # fmt: skip
    init.add_argument("--data", metavar="PATH", help="a table (.csv, .parquet), arrays (.npz) or a folder of images")
    for role, what in {"label": "the class or real target",
                       "client": "the client; without it the study distributes the samples",
                       "group": "the client's true cluster, if known"}.items():  # fmt: skip
        init.add_argument(f"--{role}", metavar="COLUMN", help=f"column with {what}")
    init.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=option, help="another option "
                      "of the reader, e.g. test=COLUMN, task=regression, folders=client/label, size=32")  # fmt: skip
    schema = commands.add_parser("schema", help="print the JSON schema or the commented default configuration")
    schema.set_defaults(run=_schema)
    schema.add_argument("--format", choices=["json", "yaml"], default="json", help="json: schema for editors; "
                        "yaml: the default configuration with a comment on each key")  # fmt: skip


def _init(options: argparse.Namespace) -> None:
    roles = {key: getattr(options, key) for key in ("label", "client", "group")}
    if options.data is not None:
        from ..pipeline.starter import commands, start

        path, gist = start(options.folder or Path("."), options.data, roles, dict(options.option))
        print(f"{gist}\nwritten: {path}; next:", file=sys.stderr)
        print("\n".join(commands(path)))
        return
    from ..pipeline.project import init

    given = [f"--{key}" for key, value in {**roles, "option": options.option}.items() if value]
    if given:
        raise UserError(f"{given[0]} says how data are read; give the data, too: --data PATH")
    if options.folder is None:
        raise UserError("init: give a FOLDER for the workflow and its configuration, or --data PATH for your own data")
    init(options.folder)


def _schema(options: argparse.Namespace) -> None:
    from ..config.schema import default_yaml, json_schema

    sys.stdout.write(json_schema() if options.format == "json" else default_yaml())
