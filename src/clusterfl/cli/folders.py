"""Commands that set up a folder: the workflow with a configuration, and what its keys mean."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add `init` and `schema`."""
    init = commands.add_parser("init", help="write Snakefile, workflow and a commented configuration into a folder")
    init.set_defaults(run=_init)
    init.add_argument("folder", type=Path, help="folder to write into; made if it isn't there")
    schema = commands.add_parser("schema", help="print the JSON schema or the commented default configuration")
    schema.set_defaults(run=_schema)
    schema.add_argument("--format", choices=["json", "yaml"], default="json", help="json: schema for editors; "
                        "yaml: the default configuration with a comment on each key")  # fmt: skip


def _init(options: argparse.Namespace) -> None:
    from ..pipeline.project import init

    init(options.folder)


def _schema(options: argparse.Namespace) -> None:
    from ..config.schema import default_yaml, json_schema

    sys.stdout.write(json_schema() if options.format == "json" else default_yaml())
