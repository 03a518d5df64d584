"""The command that prints a shell's completion: a static script, derived from the parser of all commands.

Completion itself needs no Python: commands, options, choices and the package's own names are in the script, and names
of studies and of their blocks are read from the folders under results/.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from .scripts import FILES, SCRIPTS, Command, Option, Values

# By option or metavar: what a shell looks up.
LOOKED_UP = {
    "STUDY": "studies",
    "--federation": "federations",
    "--method": "methods",
    "--methods": "methods",
    "--warmup": "warmups",
    "--distance": "distances",
    "--clustering": "clusterings",
} | dict.fromkeys(["FILE", "FOLDER", "PATH", "PATH-or-URL", "DIR"], FILES)


def add(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add `completion`; `parser` is the one of all commands, which the script is derived from."""
    text = "Print a script that completes commands, options, methods, and the studies under results/, without " \
           "starting Python. Once: clusterfl completion bash > " \
           "~/.local/share/bash-completion/completions/clusterfl; for zsh into a folder of $fpath, as _clusterfl; " \
           "for fish into ~/.config/fish/completions/clusterfl.fish."  # fmt: skip
    completion = commands.add_parser("completion", help="print a shell's completion script", description=text)
    completion.set_defaults(run=partial(_completion, commands, parser))
    completion.add_argument("shell", choices=list(SCRIPTS), help="the shell it is for")


def _completion(commands: Any, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    print("\n".join(SCRIPTS[options.shell](table(commands, parser))))


def table(commands: Any, parser: argparse.ArgumentParser) -> list[Command]:
    """Return the program itself, without a name, then every command."""
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    found = [_command("", "", parser)]
    return found + [_command(name, helps[name], own) for name, own in commands.choices.items()]


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Command:
    known, options, places = _known(name), [], []
    for action in parser._actions:
        if action.option_strings:
            options.append(_option(action, known))
        elif not isinstance(action, argparse._SubParsersAction):
            places.append(_values(action, known))
    words = tuple(word for one in places for word in one.words)
    kind = next((one.kind for one in places if one.kind), "")
    return Command(name, text, options, Values(words, kind, many=True))


def _known(command: str) -> dict[str, tuple[str, ...]]:
    """Return the package's own names, by metavar or option of a command."""
    from ..data import DATASETS
    from ..data.federations import catalogue
    from ..methods import METHODS

    found = dict.fromkeys(["METHOD", "--method", "--methods"], tuple(METHODS))
    if command == "download":
        found["NAME"] = tuple(DATASETS)
    if command == "describe":
        found["FEDERATION"] = tuple(catalogue())
    return found


def _option(action: argparse.Action, known: dict[str, tuple[str, ...]]) -> Option:
    text = (action.help or "").replace("%%", "%").partition("; ")[0].partition(" (default")[0]
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return Option(tuple(action.option_strings), text, metavar, None if action.nargs == 0 else _values(action, known))


def _values(action: argparse.Action, known: dict[str, tuple[str, ...]]) -> Values:
    """Return the values that an action accepts."""
    many = action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1)
    if action.choices is not None:
        return Values(tuple(map(str, action.choices)), many=many)
    names = [*action.option_strings, *([action.metavar] if isinstance(action.metavar, str) else [])]
    if action.option_strings and "NAME" in names:  # of a block: the option says its kind
        names.remove("NAME")
    words = next((known[name] for name in names if name in known), ())
    kind = next((LOOKED_UP[name] for name in names if name in LOOKED_UP), FILES if action.type is Path else "")
    return Values(words, kind, many)
