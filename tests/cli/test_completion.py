"""`clusterfl completion`: scripts that hold what the parser knows, and a real bash that completes with one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterfl.cli import main
from clusterfl.cli.scripts import SCRIPTS
from clusterfl.methods import METHODS


@pytest.fixture
def scripts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the script of each shell."""
    found = {}
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        found[shell] = capsys.readouterr().out
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two studies as `results/` holds them, as far as a shell looks."""
    for study, method in (("digits", "ifca"), ("digits", "my-own"), ("patients", "clove")):
        place = tmp_path / "results" / study / "hospitals" / "seed0"
        (place / "methods" / method).mkdir(parents=True)
        (place / "methods" / method / "manifest.json").touch()
        (tmp_path / "results" / study / "settings.json").touch()
        (place / "clusters").mkdir(exist_ok=True)
        (place / "clusters" / "by-loss.manifest.json").touch()
    (tmp_path / "results" / "no-study").mkdir()
    (tmp_path / "my study.yaml").touch()
    return tmp_path


class Bash:
    """A bash in a folder that has loaded the script, and completes the last of some words.

    It finds no program but `sort`: no Python is started for an answer, which takes some hundredths of a second so.
    """

    def __init__(self, script: str, folder: Path):
        self.folder = folder
        (folder / "completion.bash").write_text(script, encoding="utf-8")
        (folder / "programs").mkdir()
        (folder / "programs" / "sort").symlink_to(str(shutil.which("sort")))

    def __call__(self, *words: str) -> list[str]:
        """Return the candidates, as the function that bash has been given for the command finds them."""
        ask = """
            source ./completion.bash
            registered=$(complete -p clusterfl)
            [[ $registered == "complete -F _clusterfl clusterfl" ]] || exit 9
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _clusterfl && printf '%s\\n' "${COMPREPLY[@]}"
        """
        command = [str(shutil.which("bash")), "--norc", "-c", ask, "bash", "clusterfl", *words]
        alone = {"PATH": str(self.folder / "programs")}
        done = subprocess.run(command, cwd=self.folder, env=alone, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@pytest.fixture
def bash(scripts: dict[str, str], folder: Path) -> Bash:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    return Bash(scripts["bash"], folder)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ver"], ["verify"]),
        (["--v"], ["--version"]),
        (["verify", ""], ["digits", "patients"]),
        (["verify", "pat"], ["patients"]),
        (["verify", "digits", "--met"], ["--method"]),
        (["verify", "--method", "my"], ["my-own"]),
        (["verify", "--method", "if"], ["ifca"]),  # of the package and of a study, once
        (["verify", "--method", "ifca", "dig"], ["digits"]),  # the option has its value
        (["run", "--federation", ""], ["hospitals"]),
        (["run", "--jobs", ""], []),  # a number
        (["cluster", "--clustering", ""], ["by-loss"]),
        (["compare", "digits", "--methods", "ifca", "my"], ["my-own"]),  # two values
        (["schema", "--format", ""], ["json", "yaml"]),
        (["schema", "--format", "=", "y"], ["yaml"]),  # as bash cuts --format=y
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["download", "digi"], ["digits"]),
        (["check", "--config", "my"], ["my study.yaml"]),
        (["nonsense", ""], []),
    ],
)
def test_a_real_bash_completes(bash: Bash, words: list[str], found: list[str]) -> None:
    assert bash(*words) == found


def test_bash_knows_every_command_and_method(bash: Bash) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {"run", "compare", "completion"} <= set(bash(""))
    assert set(METHODS) == set(bash("methods", ""))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_option_of_every_command_is_in_every_script(
    shell: str, scripts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) > 20
    for command in commands:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options = set(re.findall(r"(?<![\w-])--[a-z-]+", capsys.readouterr().out.partition("\n\n")[0]))
        lines = [line for line in scripts[shell].splitlines() if re.search(rf'(^| |")\(?{command}[")\' ]', line)]
        text = "\n".join(lines)
        missing = [name for name in options if (name if shell != "fish" else f"-l {name[2:]} ") not in text]
        assert not missing, (command, missing)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_itself_reads_the_script(shell: str, scripts: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n"], input=scripts[shell], text=True, check=True)


def test_fish_completes(scripts: dict[str, str], folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    (folder / "c.fish").write_text(scripts["fish"], encoding="utf-8")
    ask = "source c.fish; complete -C 'clusterfl verify '"
    done = subprocess.run(["fish", "-N", "-c", ask], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["digits", "patients"]
