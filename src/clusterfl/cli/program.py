"""The program `clusterfl`: its commands, its exit codes, and what it says when a command fails."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import sys

from .. import __version__
from ..pipeline.chain import STAGES
from . import campaign, claims, compare, completion, contract, crate, federations, folders, stages, studies
from .common import exit_code
from .handing import handed

LIKE = {"±": "+-", "–": "-", "−": "-", "≥": ">=", "≤": "<=", "≠": "!=", "ε": "epsilon", "é": "e"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clusterfl",
        description="Clustered federated learning: rerun, compare and check the field's papers.",
        epilog="The stages run in the order in which they are listed; `make reproduce` or `snakemake` runs them all. "
        "Exit codes: 0 done, 1 `verify` found damage or "
        "`test` a check that fails, 2 something to correct in settings or files.",
    )
    parser.add_argument("--version", action="version", version=f"clusterfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    stages.add(commands)
    studies.add_run(commands)
    federations.add_catalogue(commands)
    compare.add(commands)
    studies.add_verify(commands)
    federations.add_assign(commands)
    claims.add(commands)
    campaign.add(commands)
    studies.add_check(commands)
    contract.add(commands)
    crate.add(commands)
    folders.add(commands)
    completion.add(commands, parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 `verify` or `test` found an error, 2 something to correct."""
    if arguments is None and (code := handed(sys.argv[1:])) is not None:
        return code
    _write_any_letter()
    options = _parser().parse_args(arguments)
    try:
        return exit_code(lambda: options.run(options) or 0)
    except BrokenPipeError:  # as in `clusterfl jobs | head`; a job whose listener is gone isn't done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if options.command in ("run", *STAGES) else 0


def _write_any_letter() -> None:
    """Let a stream that can't encode a letter, e.g. in ASCII, write a similar one or a question mark, not fail."""

    def similar(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(LIKE.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("clusterfl", similar)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterfl")
