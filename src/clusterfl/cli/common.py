"""What several commands share: options, how their values are read, and how a command ends."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import Stopped, UserError, printable


def count(text: str) -> int:
    """Read a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: 1, 2, ...")
    return int(text)


def whole(text: str) -> int:
    """Read a number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: 0, 1, 2, ...")
    return int(text)


def option(text: str) -> tuple[str, Any]:
    """Read ``KEY=VALUE``; the value is YAML, or JSON as a job's command has it."""
    import json

    import yaml

    from ..config.text import parse

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"'{text}'; an option is given as KEY=VALUE")
    if value.startswith(('"', "[", "{")):  # as a job's command has it: YAML reads some of JSON's codes otherwise
        with contextlib.suppress(ValueError):
            return name, json.loads(value)
    try:
        return name, parse(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"'{text}'; the value isn't readable YAML, quote it") from error


def config(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a study's configuration."""
    parser.add_argument(
        "--config", type=Path, nargs="+", default=[Path("config.yaml")], metavar="FILE",
        help="configuration; of several files later ones override earlier ones, key by key (default: config.yaml)",
    )  # fmt: skip


def study(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a study that was run, or its configuration."""
    parser.add_argument("study", nargs="?", metavar="STUDY", help="name or folder under results/, with the settings "
                        "that it was run with; or give --config instead")  # fmt: skip
    config(parser)
    parser.set_defaults(config=None)


def part(parser: argparse.ArgumentParser) -> None:
    """Add the options that restrict a command to a part of the study; the report, of the whole study, is left out."""
    parser.add_argument("--table", metavar="NUMBER", help="only what a table of the paper needs, e.g. II")
    often: dict[str, Any] = {"action": "append", "metavar": "NAME"}
    parser.add_argument("--federation", **often, help="only this block under `federations`; like the next two, may "
                        "be repeated")  # fmt: skip
    parser.add_argument("--method", **often, help="only this block under `methods`")
    parser.add_argument("--seed", **often | {"metavar": "N"}, type=int, help="only this one of `seeds.runs`")


def plan_of(options: argparse.Namespace, sources: bool = True) -> Any:
    """Return the plan of the configuration, or of the study that was run, that the options name.

    A command that only looks at results needs no `sources`: the user's data may be gone then.
    """
    from ..pipeline.finished import settings_of
    from ..pipeline.jobs import Plan

    one_of(options)
    name = getattr(options, "study", None)
    files = options.config or [Path("config.yaml")] if name is None else [settings_of(name)]
    return Plan.from_files(files, sources)


def one_of(options: argparse.Namespace) -> None:
    """Refuse a study's name and a configuration at once."""
    name = getattr(options, "study", None)
    if name is not None and options.config is not None:
        raise UserError(f"both STUDY ('{name}') and --config given; give one of them")


def wanted(options: argparse.Namespace, plan: Any) -> list[Any] | None:
    """Return the jobs of the part that is asked for; None: all."""
    if (options.table, options.federation, options.method, options.seed) == (None,) * 4:
        return None
    places = None
    if options.table is not None:
        from ..claims.ours import Results

        if plan.study.claims is None:
            raise UserError(f"--table: study '{plan.study.study}' has no block `claims`, which says what tables it has")
        places = Results(plan).places(options.table)
    found: list[Any] = plan.part(options.federation, options.method, options.seed, places)
    return found


def sources(parser: argparse.ArgumentParser) -> None:
    """Add the option that names where claims find runs."""
    parser.add_argument("--from", type=Path, nargs="+", metavar="FOLDER", dest="folders", help="where runs are read "
                        "from: results, and folders of evidence; if several have the same run, the first is used "
                        "(default: results, and docs/reproduction/evidence if it exists)")  # fmt: skip


def warn(sentences: Sequence[str]) -> None:
    """Print sentences as the program's own on stderr."""
    for text in sentences:
        print(f"clusterfl: {printable(text)}", file=sys.stderr)


def exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of some work, and print what ended it."""
    try:
        return work()
    except UserError as error:
        print(f"clusterfl: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("clusterfl: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except Stopped as end:
        print(f"clusterfl: {end}", file=sys.stderr)
        return 128 + end.number
