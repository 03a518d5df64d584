"""The command that packages a study's results for others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError
from .common import plan_of, study


def add(commands: Any) -> None:
    """Add `crate`."""
    text = "Write a finished study as a Workflow Run RO-Crate: settings, results, report, workflow, and for each job " \
           "what it was made from, when and where; for archives of research data. Models are left out, but their " \
           "digests are listed. With a block `claims` it has the paper's orderings and their outcomes."  # fmt: skip
    parser = commands.add_parser("crate", help="package a finished study as an RO-Crate", description=text)
    study(parser)
    parser.set_defaults(run=_crate)
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="folder to write (default: crates/STUDY)")
    parser.add_argument("--license", metavar="SPDX", help="licence under which the results are published, e.g. "
                        "CC-BY-4.0")  # fmt: skip
    parser.add_argument("--author", metavar="NAME", help="who ran the study")
    parser.add_argument("--orcid", metavar="ID", help="the author's ORCID, e.g. 0000-0002-1825-0097")
    parser.add_argument("--affiliation", metavar="NAME", help="the author's organisation")


def _crate(options: argparse.Namespace) -> None:
    from ..claims.reviews import entities
    from ..pipeline.crate import author, write

    for key, example in {"license": "CC-BY-4.0", "author": '"Ada Lovelace"'}.items():
        if getattr(options, key) is None:
            raise UserError(f"--{key} is missing: an archive asks for it; give it, e.g. --{key} {example}")
    plan = plan_of(options, sources=False)
    folder = options.to or Path("crates") / plan.study.study
    who = author(options.author, options.orcid, options.affiliation)
    print(write(plan, folder, options.license, who, entities(plan)))
