"""Completion scripts of bash, zsh and fish for a table of commands. Nothing in them starts Python.

Names of studies and of their blocks are read from the paths under results/, which the shell itself lists.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FILES = "files"
# What a shell looks up: a pattern of paths, and what follows the name.
FOUND = {
    "studies": ("results/*/settings.json", "/settings.json"),
    "federations": ("results/*/*/seed*", "/seed*"),
    "methods": ("results/*/*/seed*/methods/*/manifest.json", "/manifest.json"),
    "warmups": ("results/*/*/seed*/warmup/*/manifest.json", "/manifest.json"),
    "distances": ("results/*/*/seed*/distance/*.manifest.json", ".manifest.json"),
    "clusterings": ("results/*/*/seed*/clusters/*.manifest.json", ".manifest.json"),
}


@dataclass(frozen=True)
class Values:
    """The values allowed in one place: known words, and a kind that the shell looks up."""

    words: tuple[str, ...] = ()
    kind: str = ""  # of FOUND, or FILES
    many: bool = False  # any number of them


@dataclass(frozen=True)
class Option:
    """An option: its names, what it is for, what its value is called, and its values; None: it takes none."""

    names: tuple[str, ...]
    help: str
    metavar: str
    values: Values | None


@dataclass(frozen=True)
class Command:
    """A command; the one without a name is the program, whose options come before any command."""

    name: str
    help: str
    options: list[Option]
    values: Values  # of what is no option's


def _names(command: Command) -> str:
    return " ".join(name for option in command.options for name in option.names)


BASH = """\
# Completion of clusterfl for bash, written by: clusterfl completion bash
_clusterfl_found() {
    local path
    for path in $1; do
        [[ -e $path ]] || continue
        path=${path%$2}
        printf '%s\\n' "${path##*/}"
    done | sort -u
}
_clusterfl() {
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} option= count=0 i
    local words= kind= many= options= found= name
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        =) ;;
        -*) option=${COMP_WORDS[i]} count=0 ;;
        *) count=$((count + 1)) ;;
        esac
    done
    [[ $cur == = ]] && cur=
    if ((COMP_CWORD == 1)); then command= option=; fi
    case "$command $option" in
@values@
    *) count=1 ;;
    esac
    if ((count > 0)) && [[ -z $many ]]; then
        words= kind=
        case "$command" in
@places@
        esac
    fi
    case "$command" in
@options@
    esac
    [[ $cur == -* ]] && words=$options kind=
    case $kind in
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
@found@
    esac
    for name in $found; do
        [[ " $words " == *" $name "* ]] || words+=" $name"
    done
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _clusterfl clusterfl"""


def bash(commands: list[Command]) -> Iterator[str]:
    """Yield the script for bash: what may follow an option, else what may follow a command."""
    values: dict[Values, list[str]] = {}
    for command in commands:
        for option in command.options:
            for name in option.names if option.values is not None else ():
                values.setdefault(option.values or Values(), []).append(f'"{command.name} {name}"')
    given = [command.name for command in commands if command.name]
    places = [(command.name, command.values if command.name else Values(tuple(given))) for command in commands]
    blocks = {
        "values": [f"    {' | '.join(names)}) {_assigned(own)} ;;" for own, names in values.items()],
        "places": [f'        "{name}") {_assigned(own)} ;;' for name, own in places if own.words or own.kind],
        "options": [f'    "{command.name}") options="{_names(command)}" ;;' for command in commands],
        "found": [f"    {kind}) found=$(_clusterfl_found '{path}' '{end}') ;;"
                  for kind, (path, end) in FOUND.items()],
    }  # fmt: skip
    yield re.sub("@(.*)@", lambda place: "\n".join(blocks[place[1]]), BASH)


def _assigned(values: Values) -> str:
    return f"words={shlex.quote(' '.join(values.words))} kind={values.kind} many={'1' * values.many}"


ZSH = """\
#compdef clusterfl
# Completion of clusterfl for zsh, written by: clusterfl completion zsh
_clusterfl_found() {
    local -a found
    found=( ${~1}(N) )
    found=( ${(u)${found%${~2}}:t} )
    compadd -a found
}
_clusterfl() {
    if (( CURRENT == 2 )); then
        local -a commands
        commands=(
@commands@
        )
        _describe command commands
        _arguments @program@
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT -= 1 ))
    case $command in
@cases@
    esac
}
if [[ $funcstack[1] == _clusterfl ]]; then _clusterfl "$@"; else compdef _clusterfl clusterfl; fi"""


def zsh(commands: list[Command]) -> Iterator[str]:
    """Yield the script for zsh, with what each option is for."""
    cases = []
    for command in commands[1:]:
        own = [_specification(name, option) for option in command.options for name in option.names]
        place = _action(command.values)
        cases.append(
            f"    {command.name}) _arguments {' '.join([*own, *([_quoted(f'*:value:{place}')] if place else [])])} ;;"
        )
    blocks = {
        "commands": [f"            {_quoted(f'{command.name}:{command.help}')}" for command in commands[1:]],
        "program": [" ".join(_specification(name, option) for option in commands[0].options for name in option.names)],
        "cases": cases,
    }
    yield re.sub("@(commands|program|cases)@", lambda place: "\n".join(blocks[place[1]]), ZSH)


def _specification(name: str, option: Option) -> str:
    """Return what zsh's `_arguments` takes of an option."""
    said = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
    text = f"*{name}[{said}]"
    if option.values is not None:
        text += f":{'*-*:' * option.values.many}{option.metavar}:{_action(option.values)}"
    return _quoted(text)


def _action(values: Values) -> str:
    """Return zsh's way to get the values."""
    if values.kind == FILES:
        return "_files"
    parts = [f"compadd -- {' '.join(values.words)}"] if values.words else []
    if values.kind:
        parts.append("_clusterfl_found {} {}".format(*map(shlex.quote, FOUND[values.kind])))
    return "{ " + "; ".join(parts) + " }" if parts else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


FISH = """\
# Completion of clusterfl for fish, written by: clusterfl completion fish
function __clusterfl_is
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end
function __clusterfl_first
    test (count (commandline -opc)) -eq 1
end"""


def fish(commands: list[Command]) -> Iterator[str]:
    """Yield the script for fish, with what each command and option is for."""
    yield FISH
    for kind, (pattern, end) in FOUND.items():
        behind = re.escape(end).replace(r"\*", "[^/]*")
        yield f"function __clusterfl_{kind}"
        yield f"    for path in {pattern}"
        yield f"        string replace -r '.*/' '' (string replace -r '{behind}$' '' $path)"
        yield "    end | sort -u"
        yield "end"
    yield "complete -c clusterfl -f"
    for command in commands:
        here = f"'__clusterfl_is {command.name}'" if command.name else "__clusterfl_first"
        if command.name:
            yield f"complete -c clusterfl -n __clusterfl_first -a {command.name} -d {_quoted(command.help)}"
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            yield f"complete -c clusterfl -n {here} {names} {_taken(option.values)}-d {_quoted(option.help)}"
        if _candidates(command.values):
            yield f"complete -c clusterfl -n {here} {_candidates(command.values)}"


def _taken(values: Values | None) -> str:
    """Return fish's words for an option's value."""
    if values is None:
        return ""
    return f"{'-r' if values.kind == FILES else '-x'} {_candidates(values)} "


def _candidates(values: Values) -> str:
    """Return fish's words for values."""
    if values.kind == FILES:
        return "-F"
    parts = [*values.words, *([f"(__clusterfl_{values.kind})"] if values.kind else [])]
    return f"-a '{' '.join(parts)}'" if parts else ""


SCRIPTS: dict[str, Callable[[list[Command]], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
